//! Points in time, as JSON and people read them: RFC 3339, in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 24 * 60 * 60;

/// With milliseconds, for machines. What is before 1970 comes from a clock that was never set; it
/// is shown as 1970.
pub(crate) fn exact(at: SystemTime) -> String {
    let since = since_1970(at);
    format!("{}.{:03}Z", to_the_second(since, 'T'), since.subsec_millis())
}

/// Without them, for people.
pub(crate) fn plain(at: SystemTime) -> String {
    format!("{} UTC", to_the_second(since_1970(at), ' '))
}

fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn to_the_second(since: Duration, between: char) -> String {
    let (days, second) = (since.as_secs() / DAY, since.as_secs() % DAY);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}{between}{hour:02}:{minute:02}:{second:02}")
}

/// The Gregorian date so many days after 1970-01-01.
///
/// Counted from the first of March in the year 0: the leap day is then the last of its year, and the
/// lengths of the months repeat every five of them, in 153 days.
fn date(days: u64) -> (u64, u64, u64) {
    const BEFORE_1970: u64 = 719_468;
    const FOUR_CENTURIES: u64 = 146_097;
    let days = days + BEFORE_1970;
    let (era, day) = (days / FOUR_CENTURIES, days % FOUR_CENTURIES);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (400 * era + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (68_169_599, "1972-02-28T23:59:59.000Z"),
            (68_169_600, "1972-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_700_000_000, "2023-11-14T22:13:20.000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(exact(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_042);
        assert_eq!(exact(at), "2023-11-14T22:13:20.042Z");
        assert_eq!(plain(at), "2023-11-14 22:13:20 UTC");
        assert_eq!(exact(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
    }
}
