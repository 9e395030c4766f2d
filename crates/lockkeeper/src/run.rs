//! Work that runs under a lock and is stopped when the lock is lost.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::LockName;
use crate::engine::{Core, Tick};
use crate::error::{Error, LostReason, Phase};
use crate::hold::AnyGuard;

/// The outcome of work that ran under a lock from beginning to end.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Completed<T> {
    /// What the work returned.
    pub output: T,
    /// How long the acquire waited.
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
    #[error("lock {lock:?}: lost while the work ran: {reason}")]
    Lost {
        /// The lock.
        lock: LockName,
        /// Why.
        reason: LostReason,
        /// What the work returned, if it finished before the loss was known.
        output: Option<T>,
    },
    /// The work finished and the lock was held to the end, but the outcome of its release is
    /// unknown.
    #[error("the work finished, but: {source}")]
    Release {
        /// The error of the release.
        source: Error,
        /// What the work returned.
        output: T,
    },
}

impl<T> From<RunError<T>> for Error {
    /// Drops the output of the work.
    fn from(error: RunError<T>) -> Self {
        match error {
            RunError::Acquire(error) | RunError::Release { source: error, .. } => error,
            RunError::Lost { lock, reason, .. } => {
                Error::Lost { lock, phase: Phase::Release, reason }
            }
        }
    }
}

/// The lock that was lost, and why.
pub(crate) type Loss = (LockName, LostReason);

/// A hold under which work can run.
pub(crate) trait HeldGuard {
    /// The loss, if it is no longer held.
    fn loss(&self) -> Option<Loss>;
    /// Resolves when it is no longer held.
    fn lost_later(&self) -> impl Future<Output = Loss> + Send + 'static;
    fn release_it(self) -> impl Future<Output = Result<(), Error>> + Send + 'static;
}

impl HeldGuard for AnyGuard {
    fn loss(&self) -> Option<Loss> {
        self.lease().lost_reason().map(|reason| (self.name().clone(), reason))
    }

    fn lost_later(&self) -> impl Future<Output = Loss> + Send + 'static {
        let (name, lost) = (self.name().clone(), self.lost());
        async move { (name, lost.await) }
    }

    fn release_it(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.release()
    }
}

/// Runs `work` under `guard`, which was requested at `started`. The clock is read before every poll: after a pause of the whole
/// process the work does not get another turn.
pub(crate) async fn run<T, W: Future<Output = T>>(
    guard: impl HeldGuard,
    core: &Core,
    started: Tick,
    work: impl FnOnce() -> W,
) -> Result<Completed<T>, RunError<T>> {
    let granted = core.clock.now();
    let mut lost = pin!(guard.lost_later());
    let mut work = pin!(Some(work()));
    let outcome = std::future::poll_fn(|cx| {
        if guard.loss().is_some() {
            return Poll::Ready(None);
        }
        let Some(running) = work.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        if let Poll::Ready(output) = running.poll(cx) {
            return Poll::Ready(Some(output));
        }
        // It wakes this also at a loss whose reason is not known yet, unless that came before this poll.
        let lost = lost.as_mut().poll(cx).map(|_| None);
        if guard.loss().is_some() { Poll::Ready(None) } else { lost }
    })
    .await;
    // Before the release, so that no part of the work runs without the lock.
    work.set(None);
    let Some(output) = outcome else {
        let (lock, reason) = guard.lost_later().await;
        return Err(RunError::Lost { lock, reason, output: None });
    };
    let (waited, held) = (granted.since(started), core.clock.now().since(granted));
    // Lost before the work had finished, or meanwhile: the clock decides.
    let loss = guard.loss();
    match (guard.release_it().await, loss) {
        (Ok(()), None) => Ok(Completed { output, waited, held }),
        (_, Some((lock, reason))) => Err(RunError::Lost { lock, reason, output: Some(output) }),
        (Err(Error::NotHeld { lock, .. }), None) => {
            let reason = LostReason::Deleted;
            Err(RunError::Lost { lock, reason, output: Some(output) })
        }
        (Err(source), None) => Err(RunError::Release { source, output }),
    }
}
