//! The line of processes that wait to write.
//!
//! SQLite has no queue for its write lock: each process tries again and again. With hundreds of them the
//! tries alone would keep the machine busy, and chance would decide who writes. So a process first takes
//! an advisory lock on the log file, for which the kernel keeps a queue, and holds it for as long as its
//! transaction lasts. SQLite itself locks nothing in that file, so that closing it ends no lock of
//! SQLite's.
//!
//! The kernel does not wait for a limited time, so another thread waits in the line. When its client gives
//! up, it stays: the place serves the next transaction, or passes on once its turn comes.
//!
//! The line only keeps order. What excludes others is SQLite's own lock: a process that waits for long in
//! the line, perhaps behind one that is stopped, tries without its turn now and then.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use super::patience;

/// How often a process in the line tries without its turn.
const IMPATIENT: Duration = Duration::from_millis(100);

/// What the thread that waits in the line needs of stack.
const STACK: usize = 64 << 10;

/// The turn to write; it ends when dropped.
#[derive(Debug)]
pub(super) struct Turn(#[expect(dead_code)] OwnedFd);

/// Whether it is this process's turn.
#[derive(Debug)]
pub(super) enum Entered {
    Turn(Turn),
    /// Others are before it.
    Behind,
    /// There is no line here.
    Unordered,
}

#[derive(Debug)]
pub(super) struct Line {
    log: PathBuf,
    waiter: Arc<Waiter>,
}

/// What is shared with the thread that waits in the line.
#[derive(Debug, Default)]
struct Waiter {
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The thread is in the line.
    in_line: bool,
    /// The client waits for its turn.
    wanted: bool,
    entered: Option<Entered>,
}

impl Waiter {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread is out of the line. A turn that no one waits for passes on.
    fn arrive(&self, entered: Entered) {
        let mut state = self.lock();
        state.in_line = false;
        if state.wanted {
            state.entered = Some(entered);
            self.came.notify_one();
        }
    }
}

impl Line {
    pub(super) fn new(log: &Path) -> Self {
        Self { log: log.to_owned(), waiter: Arc::default() }
    }

    fn join(log: &Path, operation: FlockOperation) -> Entered {
        let opened = open(log, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let Ok(file) = opened else { return Entered::Unordered };
        loop {
            return match flock(&file, operation) {
                Ok(()) => Entered::Turn(Turn(file)),
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => Entered::Behind,
                Err(_) => Entered::Unordered,
            };
        }
    }

    /// The turn, if no other process is before this one.
    pub(super) fn enter(&self) -> Entered {
        Self::join(&self.log, FlockOperation::NonBlockingLockExclusive)
    }

    /// Waits for the turn as long as the patience of this thread lasts, and calls `meanwhile` now and
    /// then. Answers `None` once that is true.
    pub(super) fn wait(&self, mut meanwhile: impl FnMut() -> bool) -> Option<Entered> {
        if !self.line_up() {
            return Some(Entered::Unordered);
        }
        let mut done = false;
        let mut state = self.waiter.lock();
        while state.entered.is_none() && !done && patience::is_left() {
            let came = &self.waiter.came;
            let (back, limit) = came
                .wait_timeout_while(state, IMPATIENT, |state| state.entered.is_none())
                .unwrap_or_else(PoisonError::into_inner);
            drop(back);
            done = limit.timed_out() && meanwhile();
            state = self.waiter.lock();
        }
        state.wanted = false;
        let entered = state.entered.take();
        if done { None } else { Some(entered.unwrap_or(Entered::Behind)) }
    }

    /// Has a thread wait in the line, unless it still does; false if there can be none.
    fn line_up(&self) -> bool {
        let mut state = self.waiter.lock();
        state.wanted = true;
        if state.in_line {
            return true;
        }
        let (log, waiter) = (self.log.clone(), Arc::clone(&self.waiter));
        let waits = move || waiter.arrive(Self::join(&log, FlockOperation::LockExclusive));
        let thread = thread::Builder::new().name("lockkeeper-line".to_owned()).stack_size(STACK);
        state.in_line = thread.spawn(waits).is_ok();
        state.wanted = state.in_line;
        state.in_line
    }
}
