//! Durations as they are written on a command line.
//!
//! A number without a unit is seconds, with a fraction if need be, as `flock -w` takes them. With
//! units: `500ms`, `1m30s`, `1.5h`. Units may follow each other in any order; they are added up.

use std::time::Duration;

use humantime::DurationError;

/// The longest one: beyond a century it is a mistake, and the library would refuse it as a lease.
const MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Parses a duration; the error is a sentence for the user.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let refused = || {
        format!(
            "\"{text}\" is no duration: write seconds, as in 30 or 2.5, \
             or units, as in 500ms, 90s, 1m30s, 2h or 1d"
        )
    };
    let has_only = |characters: &str| text.chars().all(|c| characters.contains(c));
    let parsed = if has_only("0123456789.") {
        let seconds = text.parse().map_err(|_| refused())?;
        Duration::try_from_secs_f64(seconds).ok()
    } else if has_only("0123456789.dhms") {
        // Other letters are left out for the units that they spell: a lease of `5M` is not meant to last
        // for five months.
        match humantime::parse_duration(text) {
            Err(DurationError::NumberOverflow) => None,
            parsed => Some(parsed.map_err(|_| refused())?),
        }
    } else {
        return Err(refused());
    };
    parsed
        .filter(|duration| *duration <= MAX)
        .ok_or_else(|| format!("\"{text}\" is more than a century"))
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
            ("0.3s", 300),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("0.3"), Ok(Duration::from_millis(300)), "without a float's error");
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in [
            "", ".", "s", "-1", "1x", "1m30", "1 s", "1,5", "1e3", "soon", "1..2", "ms5", "½",
            "5M", "1y", "inf",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("1m30s") && error.contains(text), "{text}: {error}");
        }
        for text in ["40000d", "99999999999999999999999999", "99999999999999999999999999d"] {
            assert!(parse(text).unwrap_err().contains("century"), "{text}");
        }
    }
}
