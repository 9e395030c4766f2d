//! How the thread learns that another process has left messages, and that the file was taken away.
//!
//! Whoever has committed messages for others touches the log file, which is there for as long as anybody
//! has the store open; the kernel tells those who watch it (`inotify`). The write itself would not do:
//! it comes a moment before the commit can be seen. So it costs nothing while nothing is said, however
//! much is written. A process that dies between the commit and the touch leaves its listeners to their
//! next look, a few seconds later.
//!
//! Where the kernel does not tell (other systems, or too many watches), the thread looks by itself, every
//! few milliseconds, as long as somebody listens. So it does in the first moment, too: the kernel takes
//! some ten milliseconds to end a watch, and a process that has a lock for an instant would end so much
//! later.

use std::io::PipeReader;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Timestamps, UTIME_NOW, utimensat};

use super::place::Place;

/// How often it looks where nobody tells.
const LOOKS: Duration = Duration::from_millis(15);

/// How often it looks at first, and for how long.
const EARLY_LOOKS: Duration = Duration::from_millis(5);
const EARLY: Duration = Duration::from_secs(1);

/// Tells other processes that there is something to read.
pub(super) fn ring(log: &Path) {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_NOW as _ };
    let times = Timestamps { last_access: now, last_modification: now };
    if let Err(error) = utimensat(CWD, log, &times, AtFlags::empty()) {
        tracing::debug!(%error, "the bell does not ring");
    }
}

/// What the thread sleeps beside.
#[derive(Debug)]
pub(super) enum Bell {
    /// Nobody listens.
    Silent,
    /// Somebody has listened since then.
    Early(Instant),
    /// The kernel tells.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Watched(std::os::fd::OwnedFd),
    /// Nobody tells.
    Unwatched,
}

/// Why a sleep has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Woken {
    /// There is an order, or the time is over.
    Otherwise,
    /// Something may have happened to the file.
    Rung,
}

impl Bell {
    /// Looks after it, now that somebody listens, or nobody does. True if the kernel tells from now on:
    /// something may have happened before.
    pub(super) fn tend(&mut self, place: &Place, listening: bool) -> bool {
        match self {
            Self::Silent if listening => *self = Self::Early(Instant::now()),
            Self::Early(_) if !listening => *self = Self::Silent,
            Self::Early(since) if since.elapsed() >= EARLY => {
                *self = Self::watching(place);
                return true;
            }
            _ => {}
        }
        false
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn watching(place: &Place) -> Self {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        let watch = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).and_then(|watch| {
            // To be unlinked counts as a change of attributes, too.
            for path in [place.wal(), place.path()] {
                add_watch(&watch, path, WatchFlags::ATTRIB | WatchFlags::MOVE_SELF)?;
            }
            Ok(watch)
        });
        watch.map_or_else(
            |error| {
                tracing::debug!(%error, "the kernel does not tell of changes: looking instead");
                Self::Unwatched
            },
            Self::Watched,
        )
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn watching(_: &Place) -> Self {
        Self::Unwatched
    }

    /// Sleeps until there is an order, the bell rings, or `limit` has passed.
    pub(super) fn sleep(
        &self,
        rings: &PipeReader,
        listening: bool,
        limit: Option<Duration>,
    ) -> Woken {
        let looks = match self {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Self::Watched(watch) => return hear(rings, watch, limit),
            Self::Early(_) if listening => EARLY_LOOKS,
            Self::Unwatched if listening => LOOKS,
            _ => {
                nap(rings, limit);
                return Woken::Otherwise;
            }
        };
        nap(rings, Some(limit.unwrap_or(looks).min(looks)));
        Woken::Rung
    }
}

fn nap(rings: &PipeReader, limit: Option<Duration>) {
    let _ = poll(&mut [PollFd::new(rings, PollFlags::IN)], timespec(limit).as_ref());
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn hear(rings: &PipeReader, watch: &std::os::fd::OwnedFd, limit: Option<Duration>) -> Woken {
    let mut fds = [PollFd::new(rings, PollFlags::IN), PollFd::new(watch, PollFlags::IN)];
    let _ = poll(&mut fds, timespec(limit).as_ref());
    if fds[1].revents().is_empty() {
        return Woken::Otherwise;
    }
    // What they say does not matter: whoever is woken looks at everything.
    let mut events = [0; 4096];
    while rustix::io::read(watch, &mut events).is_ok() {}
    Woken::Rung
}

fn timespec(limit: Option<Duration>) -> Option<Timespec> {
    limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos() as _,
    })
}
