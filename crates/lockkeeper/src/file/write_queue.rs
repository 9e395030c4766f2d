//! The queue of processes that wait to write.
//!
//! Trying for SQLite's write lock costs several system calls, each of which takes the kernel longer the
//! more processes have the file open, and SQLite can only be asked repeatedly. With hundreds of writers
//! the tries alone would keep the machine busy. So a process first locks the log file with `flock` and
//! holds that lock for the length of its transaction. The kernel queues the waiters and wakes one of
//! them for each unlock; a waiter costs nothing meanwhile. A busy attempt needs no turn: a read answers
//! it. SQLite itself locks nothing in that file, so closing it ends no lock of SQLite's.
//!
//! `flock` has no timeout. A thread of its own waits in it, started when the lock is first found busy;
//! if the lock comes after the wait limit, the thread unlocks it at once.
//!
//! SQLite's own lock is what excludes other writers. A process that waits for long, perhaps for a
//! stopped one, occasionally tries for that lock without its turn.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use super::busy_handler;
use crate::backend::{locked, unpoisoned};

/// In microseconds. A transaction takes some tens of them: most turns come during these pauses, for less than it
/// costs to wake the waiting thread.
const PAUSES: [u64; 3] = [60, 120, 240];

/// How long a process waits for its turn before it tries without.
const IMPATIENT: Duration = Duration::from_secs(1);

/// How often a waiter checks whether its client is closing.
const CHECKED: Duration = Duration::from_millis(250);

/// The turn to write; it ends when dropped.
#[derive(Debug)]
pub(super) struct Turn(OwnedFd);

impl Drop for Turn {
    fn drop(&mut self) {
        // Closing is not enough: a process that was forked meanwhile has the file open, too.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Whether it is this process's turn.
#[derive(Debug)]
pub(super) enum Entered {
    Turn(Turn),
    /// Another process has had the turn for long, or the wait limit has passed.
    Late,
    /// The file cannot be locked.
    Unlockable,
}

#[derive(Debug)]
pub(super) struct WriteQueue {
    log: PathBuf,
    /// The thread that waits, once one was needed; nothing if it could not be started.
    waiter: OnceLock<Option<Arc<Waiter>>>,
}

impl WriteQueue {
    pub(super) fn new(log: &Path) -> Self {
        Self { log: log.to_owned(), waiter: OnceLock::new() }
    }

    /// Waits for the turn until the wait limit of this thread.
    pub(super) fn enter(&self) -> Entered {
        let Ok(log) = opened(&self.log) else { return Entered::Unlockable };
        for pause in PAUSES {
            match flock(&log, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Entered::Turn(Turn(log)),
                Err(Errno::WOULDBLOCK) if !busy_handler::is_left() => return Entered::Late,
                Err(Errno::WOULDBLOCK) => thread::sleep(Duration::from_micros(pause)),
                Err(_) => return Entered::Unlockable,
            }
        }
        match self.waiter.get_or_init(|| Waiter::start(&self.log).ok()) {
            Some(waiter) => waiter.wait(),
            None => Entered::Unlockable,
        }
    }
}

impl Drop for WriteQueue {
    fn drop(&mut self) {
        if let Some(Some(waiter)) = self.waiter.get() {
            *locked(&waiter.state) = TurnState::Closed;
            waiter.changed.notify_all();
        }
    }
}

fn opened(log: &Path) -> rustix::io::Result<OwnedFd> {
    open(log, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// What the thread that waits and the one that writes exchange.
#[derive(Debug)]
struct Waiter {
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Debug)]
enum TurnState {
    /// The turn is not needed, or no longer.
    Idle,
    /// The turn is needed.
    Wanted,
    /// The turn is here, or the file cannot be locked.
    Came(rustix::io::Result<Turn>),
    /// The thread must end.
    Closed,
}

impl Waiter {
    fn start(log: &Path) -> std::io::Result<Arc<Self>> {
        let waiter = Arc::new(Self { state: Mutex::new(TurnState::Idle), changed: Condvar::new() });
        let (shared, log) = (Arc::clone(&waiter), log.to_owned());
        let thread = thread::Builder::new().name("lockkeeper-line".to_owned());
        thread.spawn(move || while shared.serve(&log) {})?;
        Ok(waiter)
    }

    /// Waits for one turn; false at the end.
    fn serve(&self, log: &Path) -> bool {
        let state = self.changed.wait_while(locked(&self.state), |state| {
            matches!(state, TurnState::Idle | TurnState::Came(_))
        });
        if matches!(*unpoisoned(state), TurnState::Closed) {
            return false;
        }
        let came = opened(log).and_then(|log| {
            rustix::io::retry_on_intr(|| flock(&log, FlockOperation::LockExclusive))?;
            Ok(Turn(log))
        });
        let mut state = locked(&self.state);
        if let TurnState::Wanted = *state {
            *state = TurnState::Came(came);
            self.changed.notify_all();
        }
        // If it is not needed any longer, it ends here.
        true
    }

    fn wait(&self) -> Entered {
        let begun = Instant::now();
        let mut state = locked(&self.state);
        *state = TurnState::Wanted;
        self.changed.notify_all();
        loop {
            let waited = self.changed.wait_timeout(state, CHECKED.min(busy_handler::left()));
            state = unpoisoned(waited).0;
            let entered = match std::mem::replace(&mut *state, TurnState::Idle) {
                TurnState::Came(Ok(turn)) => Entered::Turn(turn),
                TurnState::Came(Err(_)) => Entered::Unlockable,
                _ if !busy_handler::is_left() || begun.elapsed() >= IMPATIENT => Entered::Late,
                waiting => {
                    *state = waiting;
                    continue;
                }
            };
            return entered;
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::NamedTempFile;

    use super::*;

    /// The turn, if it comes within so long.
    fn turn(line: &WriteQueue, limit: Duration) -> Option<Turn> {
        busy_handler::set_limit(Instant::now() + limit);
        loop {
            match line.enter() {
                Entered::Turn(turn) => return Some(turn),
                Entered::Late if busy_handler::is_left() => {}
                Entered::Late => return None,
                Entered::Unlockable => panic!("the file is there"),
            }
        }
    }

    #[test]
    fn a_turn_comes_when_the_one_before_it_ends() {
        let log = NamedTempFile::new().expect("there is room");
        let first = turn(&WriteQueue::new(log.path()), Duration::ZERO).expect("the file is free");
        let second = WriteQueue::new(log.path());
        assert!(turn(&second, Duration::ZERO).is_none());
        assert!(turn(&second, IMPATIENT + CHECKED).is_none());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| turn(&second, Duration::from_secs(60)).is_some());
            drop(first);
            assert!(waiting.join().expect("it has ended"));
        });
    }

    /// As a forked process has it.
    #[test]
    fn a_turn_ends_though_its_file_is_open_elsewhere() {
        let log = NamedTempFile::new().expect("there is room");
        let first = turn(&WriteQueue::new(log.path()), Duration::ZERO).expect("the file is free");
        let inherited = first.0.try_clone().expect("there are descriptors left");
        drop(first);
        assert!(turn(&WriteQueue::new(log.path()), Duration::ZERO).is_some());
        drop(inherited);
    }

    #[test]
    fn a_turn_that_comes_too_late_is_passed_on() {
        let log = NamedTempFile::new().expect("there is room");
        let first = turn(&WriteQueue::new(log.path()), Duration::ZERO).expect("the file is free");
        let second = WriteQueue::new(log.path());
        assert!(turn(&second, CHECKED).is_none());
        drop(first);
        // The kernel gives it to the second first.
        assert!(turn(&WriteQueue::new(log.path()), Duration::from_secs(60)).is_some());
        drop(second);
    }
}
