//! The clock that `run` and its guardian share: time since boot, including suspend, because a lease
//! also expires while the machine is suspended.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since an epoch that all processes of this host share.
pub(super) fn now() -> Duration {
    let time = clock_gettime(CLOCK);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

/// Other systems have no clock that includes suspend.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;
