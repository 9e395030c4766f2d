//! The clock of leases in a file.
//!
//! All processes of one host must agree on it, no user may be able to set it, and it must continue
//! while the machine is suspended: it is the time since the machine was started. It restarts with the
//! machine, so each row records the start from which it counts; a row of another start is expired. No
//! lease outlives a restart.

use std::io::ErrorKind;
use std::sync::OnceLock;

use crate::backend::Fault;
use crate::clock::boot_time;
use crate::model::now_ms;

/// A point in time by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Milliseconds since boot. All decisions use this clock.
    pub(super) now: u64,
    /// The difference of the wall clock to it: for tokens, and for people.
    pub(super) epoch: u64,
}

impl Moment {
    pub(super) fn read() -> Self {
        let now = since_start();
        Self { now, epoch: now_ms().saturating_sub(now) }
    }

    /// Converts a time since boot to the wall clock.
    pub(super) fn wall(self, tick: u64) -> u64 {
        tick.saturating_add(self.epoch)
    }
}

/// Milliseconds since boot, by the clock that all processes of the host share.
pub(super) fn since_start() -> u64 {
    let millis = i64::try_from(boot_time().as_millis()).unwrap_or(i64::MAX);
    u64::try_from(millis.saturating_sub(skew())).unwrap_or(0)
}

static SKEW: OnceLock<i64> = OnceLock::new();

/// The offset of the boot clock in a container, which other processes on the host do not share.
/// Known after [`known`] has succeeded.
fn skew() -> i64 {
    SKEW.get().copied().unwrap_or(0)
}

/// Makes sure that the offset to the shared boot clock is known.
pub(super) fn known() -> Result<(), Fault> {
    let path = "/proc/self/timens_offsets";
    match std::fs::read_to_string(path) {
        Ok(offsets) => SKEW.get_or_init(|| offset(&offsets).unwrap_or(0)),
        // There are no time namespaces here.
        Err(error) if error.kind() == ErrorKind::NotFound => SKEW.get_or_init(|| 0),
        Err(error) => {
            let needs = "a file store must know by which clock leases go";
            return Err(Fault::invalid(format!("{needs}: {path}: {error}")));
        }
    };
    Ok(())
}

/// Parses a line `boottime SECONDS NANOSECONDS`.
fn offset(offsets: &str) -> Option<i64> {
    let line = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i64>);
    let (seconds, nanos) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(seconds * 1000 + nanos / 1_000_000)
}

/// Converts to the signed integers of SQLite.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_containers_clock_is_read() {
        let usual = "monotonic           0         0\nboottime            0         0\n";
        assert_eq!(offset(usual), Some(0));
        assert_eq!(offset("monotonic 1 2\nboottime -3 500000000\n"), Some(-2500));
        assert_eq!(offset(""), None);
    }

    #[test]
    fn both_clocks_are_read_at_once() {
        let (before, moment) = (std::time::SystemTime::now(), Moment::read());
        let wall = crate::model::time(moment.wall(moment.now) + 1);
        assert!(wall >= before);
        assert!(moment.now > 0);
    }
}
