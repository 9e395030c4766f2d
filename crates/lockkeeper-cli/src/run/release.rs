//! Giving the lock back, and what it means when that fails.

use std::time::Duration;

use lockkeeper::{AnyGuard, Error};
use rustix::process::Signal;
use tokio::time::sleep;

use super::signals;

/// One answer is waited for, however near the end is; and nobody waits for long, however far it is.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);

/// Why it was not given back.
pub(super) enum Refusal {
    /// It was not there any more: the command did not run under it to its end.
    Gone(String),
    /// The store has not confirmed it.
    Unknown(String),
}

/// Gives the lock back, or leaves it standing for `rest`.
///
/// When the store does not answer, the command has still had the lock for as long as it ran, for
/// the lease was not over. It is tried until the lease is, or for a while; then it ends by itself. Who is
/// told to end by a signal, which is `told`, waits for no more than one answer.
pub(super) async fn give_back(
    guard: AnyGuard,
    rest: Option<Duration>,
    told: impl Future<Output = Signal>,
) -> Result<(), Refusal> {
    let remaining = guard.remaining().clamp(SHORTEST, LONGEST);
    let request = async {
        match rest {
            Some(rest) => guard.leave_for(rest.max(Duration::from_millis(1))).await,
            None => guard.release().await,
        }
    };
    let told = async {
        let signal = told.await;
        sleep(SHORTEST).await;
        signal
    };
    let cause = tokio::select! {
        biased;
        outcome = request => return outcome.map_err(Refusal::from),
        signal = told => format!("{} came before the store confirmed", signals::name(signal)),
        () = sleep(remaining) => "the store did not confirm".to_owned(),
    };
    Err(Refusal::Unknown(match rest {
        Some(_) => format!(
            "{cause} that the lock stays: it ends with its lease, or when --at-least is over"
        ),
        None => format!(
            "{cause} that the lock was given back; it is free when its lease ends at the latest"
        ),
    }))
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::NotHeld { .. } | Error::Lost { .. } => Self::Gone(error.to_string()),
            error => Self::Unknown(error.to_string()),
        }
    }
}
