//! How many replicas must acknowledge a lock, as it is written: `N` or `N/TIMEOUT`.

use std::str::FromStr;
use std::time::Duration;

use lockkeeper::RedisOptions;
use serde::Deserialize;

use crate::duration;

/// How long replicas may take by default; less with a short lease, which a late answer would use up.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How many replicas must acknowledge a lock.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(try_from = "Written")]
pub(crate) struct Acknowledgement {
    /// None at all if zero.
    replicas: u32,
    timeout: Option<Duration>,
}

/// The value in the configuration file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u32),
    Text(String),
}

impl TryFrom<Written> for Acknowledgement {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(replicas) => Ok(Self { replicas, timeout: None }),
            Written::Text(text) => text.parse(),
        }
    }
}

impl FromStr for Acknowledgement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (replicas, timeout) = match text.split_once('/') {
            Some((replicas, timeout)) => (replicas, Some(duration::parse(timeout)?)),
            None => (text, None),
        };
        let refused = |_| format!("\"{text}\" is no number of replicas: write 2, or 2/500ms");
        let replicas = replicas.parse().map_err(refused)?;
        if timeout.is_some_and(|span| span.is_zero() || replicas == 0) {
            return Err(format!("\"{text}\" leaves nothing to wait for"));
        }
        Ok(Self { replicas, timeout })
    }
}

impl Acknowledgement {
    /// The settings of a client whose locks have this lease.
    pub(crate) fn apply(self, options: RedisOptions, lease: Duration) -> RedisOptions {
        match self.replicas {
            0 => options.unacknowledged(),
            replicas => {
                let timeout = self.timeout.unwrap_or_else(|| TIMEOUT.min(lease / 5));
                options.acknowledged_by(replicas, timeout)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_limit_are_parsed() {
        let of = |replicas, timeout| Ok(Acknowledgement { replicas, timeout });
        assert_eq!("2".parse(), of(2, None));
        assert_eq!("1/500ms".parse(), of(1, Some(Duration::from_millis(500))));
        assert_eq!("0".parse(), of(0, None));
        for wrong in ["", "-1", "all", "1/", "1/0", "0/1", "1/x", "/1"] {
            assert!(wrong.parse::<Acknowledgement>().is_err(), "{wrong}");
        }
    }
}
