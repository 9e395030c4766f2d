//! Points in time, as JSON and people read them: RFC 3339, in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// With milliseconds, for machines.
pub(crate) fn exact(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(representable(at)).to_string()
}

/// Without milliseconds, for people.
pub(crate) fn plain(at: SystemTime) -> String {
    let text = humantime::format_rfc3339_seconds(representable(at)).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

/// The nearest time from 1970 to 9999. Times come from other clocks and from stores, which may hold any
/// number; others cannot be formatted.
fn representable(at: SystemTime) -> SystemTime {
    at.clamp(UNIX_EPOCH, UNIX_EPOCH + Duration::from_secs(253_402_300_799))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_utc_with_a_fraction_for_machines() {
        let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_042);
        assert_eq!(exact(at), "2023-11-14T22:13:20.042Z");
        assert_eq!(plain(at), "2023-11-14 22:13:20 UTC");
    }

    #[test]
    fn every_time_can_be_shown() {
        assert_eq!(exact(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
        let far = UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(exact(far), "9999-12-31T23:59:59.000Z");
    }
}
