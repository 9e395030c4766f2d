//! Elapsed time, as a lease sees it.
//!
//! A lease expires at the server while this process is stopped or the machine is suspended, so the
//! clock that decides must not stop then. tokio's clock does (it is `CLOCK_MONOTONIC`, or a paused test
//! clock); `CLOCK_BOOTTIME` does not. Elapsed time is the larger of the two: never too small on a real
//! machine, and driven by tokio's clock in a test that pauses it. No wall clock decides on a lease:
//! only differences of this clock count.

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A point in time: nanoseconds since the clock was made.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Tick(u64);

impl Tick {
    pub(crate) const NEVER: Tick = Tick(u64::MAX);

    pub(crate) fn since(self, earlier: Tick) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn minus(self, span: Duration) -> Tick {
        Tick(self.0.saturating_sub(nanos(span)))
    }

    pub(crate) fn as_nanos(self) -> u64 {
        self.0
    }

    pub(crate) fn from_nanos(nanos: u64) -> Tick {
        Tick(nanos)
    }
}

/// Saturates: a span beyond what the clock can count never ends.
impl Add<Duration> for Tick {
    type Output = Tick;

    fn add(self, span: Duration) -> Tick {
        Tick(self.0.saturating_add(nanos(span)))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The clock that decides when a lease has expired.
///
/// Every client has its own unless one is given by
/// [`ClientOptions::clock`](crate::ClientOptions::clock), which is for tests.
#[derive(Clone, Debug)]
pub struct Clock {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tokio_origin: Instant,
    boot_origin: Duration,
    /// What a test added: time that passed for this process and for nothing else.
    skipped: AtomicU64,
}

impl Clock {
    /// The clock of this machine.
    pub fn system() -> Self {
        Self {
            inner: Arc::new(Inner {
                tokio_origin: Instant::now(),
                boot_origin: boot_time(),
                skipped: AtomicU64::new(0),
            }),
        }
    }

    /// Makes `span` pass at once for all users of this clock, as a suspended machine does.
    pub fn skip(&self, span: Duration) {
        self.inner.skipped.fetch_add(nanos(span), Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Tick {
        let inner = &*self.inner;
        let by_tokio = inner.tokio_origin.elapsed();
        let by_boot = boot_time().saturating_sub(inner.boot_origin);
        Tick(nanos(by_tokio.max(by_boot)).saturating_add(inner.skipped.load(Ordering::Relaxed)))
    }

    /// `tick` on tokio's clock, for its timers; `None` when it never comes.
    pub(crate) fn instant(&self, tick: Tick) -> Option<Instant> {
        if tick == Tick::NEVER {
            return None;
        }
        Instant::now().checked_add(tick.since(self.now()))
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Elsewhere tokio's clock alone decides, and a suspended machine goes unnoticed.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn boot_time() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_follows_tokios_clock_and_what_was_skipped() {
        let clock = Clock::system();
        let origin = Tick::from_nanos(0);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(clock.now().since(origin) >= Duration::from_secs(5));
        clock.skip(Duration::from_secs(60));
        assert!(clock.now().since(origin) >= Duration::from_secs(65));
    }

    #[test]
    fn far_away_is_never_and_nothing_overflows() {
        let clock = Clock::system();
        assert_eq!(clock.now() + Duration::MAX, Tick::NEVER);
        assert!(clock.instant(Tick::NEVER).is_none());
        assert_eq!(Tick(5).minus(Duration::MAX), Tick(0));
    }
}
