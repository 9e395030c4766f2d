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

    /// The same as the sum with a [`Duration`], which divides and multiplies.
    pub(crate) fn plus_millis(self, millis: u64) -> Tick {
        Tick(self.0.saturating_add(millis.saturating_mul(1_000_000)))
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

pub(crate) fn nanos(span: Duration) -> u64 {
    let seconds = span.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(u64::from(span.subsec_nanos()))
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
    /// In nanoseconds.
    boot_origin: u64,
    /// What a test added: time that passed for this process and for nothing else.
    skipped: AtomicU64,
}

impl Clock {
    /// The clock of this machine.
    pub fn system() -> Self {
        Self {
            inner: Arc::new(Inner {
                tokio_origin: Instant::now(),
                boot_origin: boot_nanos(),
                skipped: AtomicU64::new(0),
            }),
        }
    }

    /// A clock that follows tokio's alone, for a simulation: the time that the machine needs does not count.
    pub fn simulated() -> Self {
        let clock = Inner {
            tokio_origin: Instant::now(),
            boot_origin: u64::MAX,
            skipped: AtomicU64::new(0),
        };
        Self { inner: Arc::new(clock) }
    }

    /// Makes `span` pass at once for all users of this clock, as a suspended machine does.
    pub fn skip(&self, span: Duration) {
        self.inner.skipped.fetch_add(nanos(span), Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Tick {
        let inner = &*self.inner;
        let by_tokio = nanos(inner.tokio_origin.elapsed());
        let by_boot = boot_nanos().saturating_sub(inner.boot_origin);
        Tick(by_tokio.max(by_boot).saturating_add(inner.skipped.load(Ordering::Relaxed)))
    }

    /// `tick` on tokio's clock, for its timers; `None` when it never comes.
    pub(crate) fn instant(&self, tick: Tick) -> Option<Instant> {
        if tick == Tick::NEVER {
            return None;
        }
        Instant::now().checked_add(tick.since(self.now()))
    }
}

fn boot_nanos() -> u64 {
    nanos(boot_time())
}

/// Time since boot, including suspend; the same for all processes of a host.
#[cfg(unix)]
pub(crate) fn boot_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    // Apple's continues while the machine is suspended. Elsewhere suspend goes unnoticed.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let time = clock_gettime(CLOCK);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Elsewhere tokio's clock alone decides.
#[cfg(not(unix))]
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
