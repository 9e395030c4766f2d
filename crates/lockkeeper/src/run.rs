//! Work that runs under a lock and ends with it.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::engine::Tick;
use crate::error::{Error, LostReason};
use crate::guard::Guard;

/// What came of work that ran under a lock from beginning to end.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Ran<T> {
    /// What the work returned.
    pub output: T,
    /// How long the lock was waited for.
    pub waited: Duration,
    /// How long the lock was held.
    pub held: Duration,
}

/// Why work did not run under a lock from beginning to end, as far as is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<T> {
    /// The lock was not acquired; the work was never started.
    #[error(transparent)]
    Acquire(Error),
    /// The lock was lost. The work was dropped, or had just finished.
    #[error("the lock was lost while the work ran: {reason}")]
    Lost {
        /// Why.
        reason: LostReason,
        /// What the work returned, if it finished before the loss was known.
        output: Option<T>,
    },
    /// The work finished and the lock was held to the end, but whether it was given back is not
    /// known.
    #[error("the work finished, but: {error}")]
    Release {
        /// What came of the release.
        error: Error,
        /// What the work returned.
        output: T,
    },
}

/// Something held that work can run under.
pub(crate) trait Held {
    /// Why it is held no longer.
    fn lost_reason(&self) -> Option<LostReason>;
    /// Resolves when it is held no longer.
    fn lost_later(&self) -> impl Future<Output = LostReason> + Send + 'static;
    /// Since when it is held, and what time it is.
    fn granted(&self) -> (Tick, Tick);
    fn give_back(self) -> impl Future<Output = Result<(), Error>> + Send + 'static;
}

impl Held for Guard {
    fn lost_reason(&self) -> Option<LostReason> {
        self.lease().lost_reason()
    }

    fn lost_later(&self) -> impl Future<Output = LostReason> + Send + 'static {
        self.lost()
    }

    fn granted(&self) -> (Tick, Tick) {
        let lease = self.lease();
        (lease.granted, lease.core.clock.now())
    }

    fn give_back(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.release()
    }
}

/// Runs `work` under `guard`. The clock is read before every poll: after a pause of the whole
/// process the work does not get another turn.
pub(crate) async fn run<T, W: Future<Output = T>>(
    guard: impl Held,
    started: Tick,
    work: impl FnOnce() -> W,
) -> Result<Ran<T>, RunError<T>> {
    let mut lost = pin!(guard.lost_later());
    let mut work = pin!(Some(work()));
    let outcome = std::future::poll_fn(|cx| {
        if let Some(reason) = guard.lost_reason() {
            return Poll::Ready(Err(reason));
        }
        let Some(running) = work.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        if let Poll::Ready(output) = running.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        lost.as_mut().poll(cx).map(Err)
    })
    .await;
    // Before the lock goes, so that nothing of the work runs without it.
    work.set(None);
    let output = match outcome {
        Ok(output) => output,
        Err(reason) => {
            return Err(RunError::Lost { reason, output: None });
        }
    };
    let (granted, ended) = guard.granted();
    let (waited, held) = (granted.since(started), ended.since(granted));
    // Lost before the work had finished, or while it did: the clock knows.
    let reason = guard.lost_reason();
    finished(guard.give_back().await, reason, Ran { output, waited, held })
}

/// What work that came to its end is worth, by what was known of the lock then and what its release
/// said.
pub(crate) fn finished<T>(
    released: Result<(), Error>,
    lost: Option<LostReason>,
    ran: Ran<T>,
) -> Result<Ran<T>, RunError<T>> {
    match (released, lost) {
        (Ok(()), None) => Ok(ran),
        (_, Some(reason)) => Err(RunError::Lost { reason, output: Some(ran.output) }),
        (Err(Error::NotHeld { .. }), None) => {
            Err(RunError::Lost { reason: LostReason::Deleted, output: Some(ran.output) })
        }
        (Err(error), None) => Err(RunError::Release { error, output: ran.output }),
    }
}
