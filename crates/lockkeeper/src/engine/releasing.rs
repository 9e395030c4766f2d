//! The future of a release: waits for its outcome, or leaves it to the reaper.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use tokio::time::Sleep;
use tracing::Instrument;

use super::holds::HoldId;
use super::release::{Last, Turn, begin, in_turn, release_hold, span};
use super::{Core, Lease, RunToCompletion};
use crate::backend::{BoxFuture, Resource};
use crate::carrier::{self, Carrier};
use crate::error::{Error, Phase, Result};

/// Releases the hold of one guard. Returns within `unreachable_after` of the first failure; an
/// unconfirmed release continues in the background until the lease expires.
///
/// Not an `async fn`: the release happens even if the future is never polled.
pub(crate) fn release(lease: Arc<Lease>, hold: HoldId, leave: Option<u64>) -> Releasing {
    let carrier = lease.core.carrier();
    Releasing { lease, progress: Progress::New(hold, leave), _carrier: carrier }
}

/// The release of one hold. Most are of a last hold, alone and at the first try: these need no
/// allocation. Everything else is boxed. If its caller drops it, the reaper polls it to its end.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Releasing {
    lease: Arc<Lease>,
    progress: Progress,
    _carrier: Option<Arc<Carrier>>,
}

// The largest is the most frequent, and boxing it would be the allocation that it saves.
#[allow(clippy::large_enum_variant)]
enum Progress {
    New(HoldId, Option<u64>),
    /// The request of a last hold is under way.
    Last(Last),
    Boxed {
        work: RunToCompletion<Result<()>>,
        /// It may have to wait for the requests of other guards.
        waits: bool,
        limit: Option<Pin<Box<Sleep>>>,
    },
    Done,
}

impl Progress {
    fn boxed(core: &Core, work: BoxFuture<Result<()>>, waits: bool) -> Self {
        let work = RunToCompletion::new(work, core.reaper.clone()).in_any_case();
        Self::Boxed { work, waits, limit: None }
    }

    fn start(lease: &Arc<Lease>, hold: HoldId, leave: Option<u64>) -> Self {
        let span = span(&lease.resource);
        if span.is_none()
            && let Some(turn) = Turn::try_take(lease)
        {
            return match begin(turn, hold, leave) {
                Ok(last) => Self::Last(last),
                Err(work) => Self::boxed(&lease.core, work, false),
            };
        }
        let work = in_turn(Arc::clone(lease), hold, leave);
        let work: BoxFuture<_> = match span {
            Some(span) => Box::pin(work.instrument(span)),
            None => Box::pin(work),
        };
        // Another request may have the turn, and be repeated for as long as the lease lasts.
        Self::boxed(&lease.core, work, true)
    }
}

impl Future for Releasing {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Self { lease, progress, .. } = &mut *self;
        let Lease { core, resource: Resource { name, .. }, .. } = &**lease;
        let _entered = core.home.enter();
        if let Progress::New(hold, leave) = *progress {
            carrier::ensure_may_wait(Some(name))?;
            // In a forked child the hold is the parent's to release.
            *progress = match core.home.is_forked() {
                true => Progress::Done,
                false => Progress::start(lease, hold, leave),
            };
        }
        if let Progress::Last(last) = progress {
            let answer = ready!(Pin::new(&mut last.answer).poll(cx));
            match last.settle(answer) {
                Ok(released) => {
                    *progress = Progress::Done;
                    return Poll::Ready(released);
                }
                Err(fault) => {
                    if let Progress::Last(last) = std::mem::replace(progress, Progress::Done) {
                        *progress = Progress::boxed(core, Box::pin(last.repeat(fault)), false);
                    }
                }
            }
        }
        let Progress::Boxed { work, waits, limit } = progress else {
            return Poll::Ready(Err(Error::Closed { lock: Some(name.clone()) }));
        };
        if let Poll::Ready(released) = Pin::new(work).poll(cx) {
            *progress = Progress::Done;
            return Poll::Ready(released);
        }
        // The store answers or fails within its response timeout. Only a failure, or a wait for other
        // guards, needs a timer.
        if !*waits && !lease.in_trouble.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let limit = limit
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(core.options.unreachable_after)));
        ready!(limit.as_mut().poll(cx));
        let detail = "the store does not answer; it is tried again until the lease ends";
        Poll::Ready(Err(Error::unconfirmed(name, Phase::Release, detail)))
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        if matches!(self.progress, Progress::Boxed { .. } | Progress::Done) {
            return;
        }
        let work: BoxFuture<Result<()>> =
            match std::mem::replace(&mut self.progress, Progress::Done) {
                Progress::New(hold, leave) => {
                    Box::pin(release_hold(Arc::clone(&self.lease), hold, leave))
                }
                Progress::Last(last) => Box::pin(last.finish()),
                Progress::Boxed { .. } | Progress::Done => return,
            };
        self.lease.core.reaper.adopt(Box::pin(async move { drop(work.await) }));
    }
}
