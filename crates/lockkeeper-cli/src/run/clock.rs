//! The clock by which `run` and its guardian agree on a deadline: time since the boot, sleep of the
//! machine included, because a lease goes on while the machine sleeps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Now, as a time since some point that is the same for all processes of this host.
pub(super) fn now() -> Duration {
    let time = clock_gettime(CLOCK);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

/// Elsewhere a sleep of the machine is not seen.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;
