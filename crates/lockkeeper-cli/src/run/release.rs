//! Giving the lock back, and what it means when that fails.

use std::time::Duration;

use lockkeeper::{Error, Guard};

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
/// the lease was not over. It is tried until the lease is, or for a while; then it ends by itself.
pub(super) async fn give_back(guard: Guard, rest: Option<Duration>) -> Result<(), Refusal> {
    let remaining = guard.remaining().clamp(SHORTEST, LONGEST);
    let outcome = match rest {
        Some(rest) => {
            let rest = rest.max(Duration::from_millis(1));
            tokio::time::timeout(remaining, guard.leave_for(rest)).await
        }
        None => tokio::time::timeout(remaining, guard.release()).await,
    };
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error @ (Error::NotHeld { .. } | Error::Lost { .. }))) => {
            Err(Refusal::Gone(error.to_string()))
        }
        Ok(Err(error)) => Err(Refusal::Unknown(error.to_string())),
        Err(_) => Err(Refusal::Unknown(
            "the store did not confirm that the lock was given back; it is free when its lease ends"
                .into(),
        )),
    }
}
