//! The line of processes that wait to write.
//!
//! To try for SQLite's write lock costs several system calls, each of which takes the kernel longer the
//! more processes have the file open; with hundreds that try again and again the tries alone would keep the
//! machine busy. So a process first takes an advisory lock on the log file, which is cheap to try for, and
//! holds it for as long as its transaction lasts. SQLite itself locks nothing in that file, so that closing
//! it ends no lock of SQLite's.
//!
//! It is no queue: to wait until one certain process is let run would take longer, on a busy machine, than
//! all of their transactions. Those who have waited for long try less often.
//!
//! What excludes others is SQLite's own lock. A process that waits for long, perhaps for one that is
//! stopped, tries for that one without its turn now and then.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use super::patience;

/// How often in vain until a try without the turn: after some 200 ms, and about as often from then on.
const IMPATIENT: u32 = 24;

/// The longest pause between two tries, in microseconds.
const LONGEST: u64 = 16_000;

/// The turn to write; it ends when dropped.
#[derive(Debug)]
pub(super) struct Turn(#[expect(dead_code)] OwnedFd);

/// Whether it is this process's turn.
#[derive(Debug)]
pub(super) enum Entered {
    Turn(Turn),
    /// It is another's, and there is no time left to wait.
    Behind,
    /// There is no line here, or it takes too long.
    Unordered,
}

#[derive(Debug)]
pub(super) struct Line {
    log: PathBuf,
}

impl Line {
    pub(super) fn new(log: &Path) -> Self {
        Self { log: log.to_owned() }
    }

    /// Waits for the turn as long as the patience of this thread lasts. `tried` counts how often, over
    /// several calls.
    pub(super) fn enter(&self, tried: &mut u32) -> Entered {
        let opened = open(&self.log, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let Ok(file) = opened else { return Entered::Unordered };
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Entered::Turn(Turn(file)),
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) if !patience::is_left() => return Entered::Behind,
                Err(Errno::WOULDBLOCK) => {}
                Err(_) => return Entered::Unordered,
            }
            let longest = (80 << (*tried / 2).min(8)).min(LONGEST);
            thread::sleep(Duration::from_micros(fastrand::u64(longest / 2..longest)));
            *tried += 1;
            if tried.is_multiple_of(IMPATIENT) {
                return Entered::Unordered;
            }
        }
    }
}
