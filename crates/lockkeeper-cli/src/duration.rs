//! Durations as they are written on a command line.
//!
//! A number without a unit is seconds, with a fraction if need be, as `flock -w` takes them. With
//! units: `500ms`, `1m30s`, `1.5h`. Units may follow each other in any order; each one once would be
//! pedantic to check, so they are simply added up.

use std::time::Duration;

/// The longest one: beyond a century it is a mistake, and the library would refuse it as a lease.
const MAX: Duration = lockkeeper::MAX_LEASE;

/// Reads a duration; the error is a sentence for the user.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let refused = || {
        format!(
            "\"{text}\" is no duration: write seconds, as in 30 or 2.5, \
             or units, as in 500ms, 90s, 1m30s, 2h or 1d"
        )
    };
    let mut rest = text;
    let mut total = Duration::ZERO;
    loop {
        let (number, after) = number(rest).ok_or_else(refused)?;
        let (unit, after) = unit(after).ok_or_else(refused)?;
        // Only the whole text may go without a unit: `1m30` is a typing error more often than not.
        let unit = match unit {
            "" if rest.len() == text.len() => Duration::from_secs(1),
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            "d" => Duration::from_secs(24 * 3600),
            _ => return Err(refused()),
        };
        let too_long = || format!("\"{text}\" is more than a century");
        total = times(number, unit)
            .and_then(|part| total.checked_add(part))
            .filter(|total| *total <= MAX)
            .ok_or_else(too_long)?;
        if after.is_empty() {
            return Ok(total);
        }
        rest = after;
    }
}

/// A decimal number at the beginning: its digits before and after the point, and what follows.
fn number(text: &str) -> Option<((&str, &str), &str)> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => digits(rest),
        None => ("", rest),
    };
    (!whole.is_empty() || !fraction.is_empty()).then_some(((whole, fraction), rest))
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// The letters at the beginning, and what follows, which must be another number.
fn unit(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (unit, rest) = text.split_at(end);
    (rest.is_empty() || !unit.is_empty()).then_some((unit, rest))
}

/// In whole nanoseconds: a float would turn `0.3` into something else.
fn times((whole, fraction): (&str, &str), unit: Duration) -> Option<Duration> {
    let unit = unit.as_nanos();
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // More digits than nanoseconds of a day can show.
    let fraction = &fraction[..fraction.len().min(15)];
    let part = match fraction {
        "" => 0,
        digits => unit * digits.parse::<u128>().ok()? / 10u128.pow(digits.len() as u32),
    };
    let nanos = whole.checked_mul(unit)?.checked_add(part)?;
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_with_a_fraction_or_units() {
        for (text, millis) in [
            ("0", 0),
            ("30", 30_000),
            ("2.5", 2_500),
            (".5", 500),
            ("5.", 5_000),
            ("0.001", 1),
            ("500ms", 500),
            ("90s", 90_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("1d", 86_400_000),
            ("1h0.5m", 3_630_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("0.3"), Ok(Duration::from_millis(300)), "without a float's error");
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "s", "-1", "1x", "1m30", "1 s", "1,5", "1e3", "soon", "1..2", "ms5", "½"]
        {
            let error = parse(text).unwrap_err();
            assert!(error.contains("1m30s") && error.contains(text), "{text}: {error}");
        }
        for text in
            ["40000d", "99999999999999999999999999", "99999999999999999999999999999999999999999"]
        {
            assert!(parse(text).unwrap_err().contains("century"), "{text}");
        }
    }
}
