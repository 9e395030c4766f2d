//! The signal by which the thread notices that another process has left messages for it.
//!
//! Each client that listens has a named pipe of its own beside the database, named after its session. A
//! process that has committed messages writes one byte into the pipe of each session that it chose to
//! notify, so that no other process is woken. With one `inotify` watch on a common file, each release
//! would wake each of a thousand waiters. A pipe without a reader belongs to a process that has died,
//! which the kernel reports at once; another session is woken instead. A process that dies between the
//! commit and the byte leaves its listeners to their next re-check, a few seconds later.
//!
//! Where there can be no such pipe (some systems, a directory that this user may not write to), the
//! thread polls every few milliseconds, as long as a waiter listens.

use std::ffi::OsString;
use std::io::PipeReader;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, open};
use rustix::io::Errno;

/// The polling interval without a pipe.
const LOOKS: Duration = Duration::from_millis(15);

/// The notification pipe of a client.
#[derive(Debug)]
pub(super) enum WakePipe {
    /// No subscriber yet, so there is no pipe.
    Silent,
    /// The pipe and its path.
    Hung(OwnedFd, PathBuf),
    /// No pipe could be created: the thread polls.
    Missing,
}

/// The outcome of notifying a session.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ring {
    /// The process was woken up.
    Heard,
    /// The process has died.
    Dead,
    /// The session has no pipe, or none that this user may write to: it polls.
    Unheard,
}

/// Returns the path of the pipe of a session.
fn path(database: &Path, session: i64) -> PathBuf {
    let mut path = OsString::from(database);
    path.push(format!("-bell-{session:016x}"));
    PathBuf::from(path)
}

/// Wakes up the process of this session. A negative session has no pipe.
pub(super) fn ring(database: &Path, session: i64) -> Ring {
    if session < 0 {
        return Ring::Unheard;
    }
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match open(path(database, session), flags, Mode::empty()) {
        // Another user may have replaced the pipe.
        Ok(bell) if !is_pipe(&bell) => Ring::Unheard,
        // A full pipe wakes up its reader already.
        Ok(bell) => match rustix::io::write(&bell, b"!") {
            Ok(_) | Err(Errno::AGAIN) => Ring::Heard,
            Err(_) => Ring::Dead,
        },
        // There is no reader, or the pipe was removed when its process ended.
        Err(Errno::NXIO | Errno::NOENT) => Ring::Dead,
        Err(_) => Ring::Unheard,
    }
}

fn is_pipe(bell: &OwnedFd) -> bool {
    let found = rustix::fs::fstat(bell);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Fifo)
}

/// Removes the pipe of a process that has died.
pub(super) fn remove(database: &Path, session: i64) {
    let _ = std::fs::remove_file(path(database, session));
}

impl WakePipe {
    /// Creates the pipe of this session, unless it exists.
    pub(super) fn hang(&mut self, database: &Path, session: i64) {
        if let Self::Silent = self {
            let path = path(database, session);
            *self = match hung(database, &path) {
                Ok(bell) => Self::Hung(bell, path),
                Err(error) => {
                    tracing::debug!(%error, "no named pipe to be woken by: looking instead");
                    Self::Missing
                }
            };
        }
    }

    /// Whether this client polls because it has no pipe.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }

    /// Whether other processes can find the pipe: not if it was removed.
    pub(super) fn is_found(&self) -> bool {
        let Self::Hung(bell, path) = self else { return true };
        let (bell, found) = (rustix::fs::fstat(bell), rustix::fs::lstat(path));
        bell.is_ok_and(|bell| found.is_ok_and(|found| found.st_ino == bell.st_ino))
    }

    /// Sleeps until there is an order, the pipe is written to, or `limit` has passed. Returns whether
    /// there may be messages.
    pub(super) fn sleep(
        &self,
        rings: &PipeReader,
        listening: bool,
        limit: Option<Duration>,
    ) -> bool {
        match self {
            Self::Hung(bell, _) => wait_for_ring(rings, bell, limit),
            Self::Missing if listening => {
                nap(rings, Some(limit.unwrap_or(LOOKS).min(LOOKS)));
                true
            }
            Self::Silent | Self::Missing => {
                nap(rings, limit);
                false
            }
        }
    }
}

impl Drop for WakePipe {
    fn drop(&mut self) {
        if let Self::Hung(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Creates a pipe. It is also opened for writing, so that it stays readable when all writers close
/// it.
#[cfg(not(target_vendor = "apple"))]
fn hung(database: &Path, path: &Path) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{CWD, fchmod, fchown, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let bell = open(path, flags, Mode::empty())?;
    // A user that may write to the directory may have replaced the pipe meanwhile.
    if !is_pipe(&bell) {
        return Err(Errno::EXIST);
    }
    // Exactly the users that may write to the database may write to the pipe.
    if let Ok(found) = rustix::fs::stat(database) {
        let (owner, group) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
        if fchown(&bell, Some(owner), Some(group)).is_err() {
            let _ = fchown(&bell, None, Some(group));
        }
        let _ = fchmod(&bell, Mode::from_raw_mode(0o600 | found.st_mode & 0o022));
    }
    Ok(bell)
}

#[cfg(target_vendor = "apple")]
fn hung(_: &Path, _: &Path) -> rustix::io::Result<OwnedFd> {
    Err(Errno::NOSYS)
}

fn nap(rings: &PipeReader, limit: Option<Duration>) {
    let _ = poll(&mut [PollFd::new(rings, PollFlags::IN)], timespec(limit).as_ref());
}

fn wait_for_ring(rings: &PipeReader, bell: &OwnedFd, limit: Option<Duration>) -> bool {
    let mut fds = [PollFd::new(rings, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
    let _ = poll(&mut fds, timespec(limit).as_ref());
    if fds[1].revents().is_empty() {
        return false;
    }
    // The number of bytes does not matter. Only one read: a writer that does not stop must not
    // block the thread.
    let _ = rustix::io::read(bell, &mut [0; 4096]);
    true
}

fn timespec(limit: Option<Duration>) -> Option<Timespec> {
    limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos() as _,
    })
}
