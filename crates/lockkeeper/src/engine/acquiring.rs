//! The future of an acquire.
//!
//! Most acquires are of a new owner and end with the first attempt: these need no allocation before
//! their lease. Everything else is boxed: named owners, waiting, faults, and executors without a runtime.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tracing::Instrument;

use super::acquire::{AcquireLoop, Acquired, Answer, acquire_anew, acquire_entered, begin, judge};
use super::local_queue::{Entered, Front, Grant, LocalQueues};
use super::owners::{acquire, span};
use super::pending_acquire::{Attempting, PendingAcquire};
use super::request::{Request, Wait};
use super::{Core, Home, Tick};
use crate::backend::BoxFuture;
use crate::carrier::Call;
use crate::error::{Error, Result};

const DONE: &str = "polled after it was ready";

/// How long an acquire waits, from its first poll on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    Forever,
    /// One attempt if it is zero or `None`.
    Within(Option<Duration>),
}

impl Patience {
    pub(crate) fn begin(self, core: &Core) -> Wait {
        match self {
            Self::Forever => Wait::Forever,
            Self::Within(span) => Wait::within(core, span),
        }
    }
}

/// An acquire. Returns `None` if the lock is busy and the wait limit has passed.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Acquiring {
    core: Arc<Core>,
    /// An invalid one fails at the first poll.
    request: Result<Request>,
    progress: Progress,
}

// The largest is the most frequent, and boxing it would be the allocation that it saves.
#[allow(clippy::large_enum_variant)]
enum Progress {
    New(Patience, Option<Call>),
    First(First),
    Boxed(BoxFuture<Result<Option<Acquired>>>),
    Done,
}

/// The first attempt. Dropped, it is completed and undone, and the front is passed on.
struct First {
    attempting: Attempting,
    /// `None` once it is answered.
    front: Option<Front>,
    started: Tick,
}

impl First {
    /// Begins the lease if the lock is granted.
    fn judge(
        &mut self,
        core: &Arc<Core>,
        request: &Request,
        (answer, pending): <Attempting as Future>::Output,
    ) -> ControlFlow<Acquired, Attempted> {
        let (Some(mut front), started) = (self.front.take(), self.started) else {
            panic!("{DONE}")
        };
        match judge(core, request, &mut front, &answer) {
            Some((token, now)) => {
                let grant = Grant { pending, front, token, sent: answer.1 };
                ControlFlow::Break(begin((grant, now), request, started))
            }
            None => ControlFlow::Continue(Attempted { answer, pending, front, started }),
        }
    }

    async fn finish(mut self, core: &Arc<Core>, request: &Request) -> Result<Option<Acquired>> {
        let answer = (&mut self.attempting).await;
        match self.judge(core, request, answer) {
            ControlFlow::Break(acquired) => Ok(Some(acquired)),
            ControlFlow::Continue(attempted) => acquire_after(core, request, attempted).await,
        }
    }
}

impl Acquiring {
    pub(crate) fn new(
        core: Arc<Core>,
        request: Result<Request>,
        patience: Patience,
        call: Option<Call>,
    ) -> Self {
        Self { core, request, progress: Progress::New(patience, call) }
    }
}

impl Progress {
    fn boxed(work: impl Future<Output = Result<Option<Acquired>>> + Send + 'static) -> Self {
        Self::Boxed(Box::pin(work))
    }

    /// Starts the acquire. In place: the first attempt is large, and each copy of it counts.
    fn start(&mut self, core: &Arc<Core>, request: &Request, call: Option<Call>) -> Result<()> {
        let owned = || (Arc::clone(core), request.clone());
        let is_called = call.is_some();
        if is_called || request.owner.is_some() || !request.is_simple() || !Home::is_inside() {
            let (core, request) = owned();
            let work = async move {
                let _call = call;
                core.anywhere(|| acquire(&core, &request)).await
            };
            *self = Self::boxed(work);
            return Ok(());
        }
        core.ensure_open(&request.resource)?;
        if let Some(span) = span(&request.resource) {
            let (core, request) = owned();
            let work = async move { core.anywhere(|| acquire_anew(&core, &request)).await };
            *self = Self::boxed(work.instrument(span));
            return Ok(());
        }
        let started = core.clock.now();
        match LocalQueues::join(core, request) {
            Entered::Front(front) => {
                let attempting = PendingAcquire::new(core, request).attempt(request, started);
                *self = Self::First(First { attempting, front: Some(front), started });
            }
            entered => {
                let (core, request) = owned();
                *self = Self::boxed(async move {
                    core.anywhere(|| acquire_entered(&core, &request, entered, started)).await
                });
            }
        }
        Ok(())
    }
}

impl Future for Acquiring {
    type Output = Result<Option<Acquired>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { core, request, progress } = &mut *self;
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                return Poll::Ready(Err(std::mem::replace(error, Error::Closed { lock: None })));
            }
        };
        if let Progress::New(patience, call) = progress {
            if let Some(call) = call {
                call.ensure_waited_for(&request.resource.name)?;
            }
            let (patience, call) = (*patience, call.take());
            request.wait = patience.begin(core);
            progress.start(core, request, call)?;
        }
        let owned = || (Arc::clone(core), request.clone());
        if let Progress::First(first) = progress {
            if Home::is_inside() {
                let answer = ready!(Pin::new(&mut first.attempting).poll(cx));
                match first.judge(core, request, answer) {
                    ControlFlow::Break(acquired) => {
                        *progress = Progress::Done;
                        return Poll::Ready(Ok(Some(acquired)));
                    }
                    ControlFlow::Continue(attempted) => {
                        let (core, request) = owned();
                        *progress = Progress::boxed(async move {
                            core.anywhere(|| acquire_after(&core, &request, attempted)).await
                        });
                    }
                }
            } else if let Progress::First(first) = std::mem::replace(progress, Progress::Done) {
                let (core, request) = owned();
                *progress = Progress::boxed(async move {
                    core.anywhere(|| first.finish(&core, &request)).await
                });
            }
        }
        match progress {
            Progress::Boxed(work) => work.as_mut().poll(cx),
            _ => panic!("{DONE}"),
        }
    }
}

/// An attempt that did not acquire the lock.
struct Attempted {
    answer: Answer,
    pending: PendingAcquire,
    front: Front,
    started: Tick,
}

/// Acquires after a first attempt.
async fn acquire_after(
    core: &Arc<Core>,
    request: &Request,
    Attempted { answer, pending, front, started }: Attempted,
) -> Result<Option<Acquired>> {
    let mut acquiring = AcquireLoop::new(core, request, front, started);
    acquiring.pending = Some(pending);
    let granted = acquiring.run(Some(answer)).await?;
    Ok(granted.map(|granted| begin(granted, request, started)))
}
