//! Releases the lock after the command.

use std::time::Duration;

use lockkeeper::{AnyGuard, Error, LostReason};
use rustix::process::Signal;
use tokio::time::sleep;

use super::signals;

/// The limits for the wait for an answer: at least one answer, and never for long.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);

/// Why the release is not confirmed.
pub(super) enum Unreleased {
    /// The lock was lost before: the command did not hold it until its end.
    Lost(String),
    /// The store has not answered.
    Unconfirmed(String),
}

/// Releases the lock, or leaves it held for `rest`.
///
/// Without an answer, the client retries until the lease expires, within the limit. After a `signal`
/// it waits for one answer only.
pub(super) async fn release(
    guard: AnyGuard,
    rest: Option<Duration>,
    signal: impl Future<Output = Signal>,
) -> Result<(), Unreleased> {
    let name = guard.name().clone();
    let remaining = guard.remaining().clamp(SHORTEST, LONGEST);
    let request = async {
        match rest {
            Some(rest) => guard.leave_for(rest.max(Duration::from_millis(1))).await,
            None => guard.release().await,
        }
    };
    let signal = async {
        let signal = signal.await;
        sleep(SHORTEST).await;
        signal
    };
    let cause = tokio::select! {
        biased;
        outcome = request => return outcome.map_err(Unreleased::from),
        signal = signal => format!("{} arrived before the store confirmed", signals::name(signal)),
        () = sleep(remaining) => "the store did not confirm".to_owned(),
    };
    let (what, then) = match rest {
        Some(_) => ("--at-least", "it expires with its lease, or after --at-least"),
        None => ("the release", "it expires with its lease at the latest"),
    };
    Err(Unreleased::Unconfirmed(format!("lock \"{name}\": {cause} {what}; {then}")))
}

impl From<Error> for Unreleased {
    fn from(error: Error) -> Self {
        match error {
            Error::Lost { reason, .. } => Self::Lost(reason.to_string()),
            Error::NotHeld { holder: Some(_), .. } => Self::Lost(LostReason::Taken.to_string()),
            Error::NotHeld { .. } => Self::Lost(LostReason::Deleted.to_string()),
            error => Self::Unconfirmed(error.to_string()),
        }
    }
}
