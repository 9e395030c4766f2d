//! The acquire of a lock: its parameters, and the first attempt.
//!
//! Most acquires are of a new owner and end with the first attempt, which is in place: each box costs
//! time. Everything else is boxed: named owners, spans, and waiting (`wait.rs`).

use std::sync::Arc;
use std::time::Duration;

use tracing::{Instrument, Span};

use super::lease::{Lease, deadline};
use super::local_queue::{Entered, Front, Grant, LocalQueues};
use super::pending_acquire::{Answered, PendingAcquire};
use super::terms::{HoldId, TermSpec};
use super::wait::AcquireLoop;
use super::{Core, Tick};
use crate::backend::{Attempt, Fenced, Kind, Resource, Topic};
use crate::error::{Phase, Result};
use crate::options::Backoff;
use crate::{Owner, OwnerId};

/// An acquired hold.
pub(crate) type Acquired = (Arc<Lease>, HoldId);

/// The parameters of one acquire.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) core: Arc<Core>,
    pub(crate) resource: Resource,
    pub(crate) term: TermSpec,
    /// How long to wait for the lock; zero makes one attempt.
    pub(crate) wait: Duration,
    /// When that has passed: never for one attempt, whose answer is waited for.
    pub(crate) limit: Tick,
    pub(crate) owner: Option<Owner>,
    /// How many permits; 1 for locks.
    pub(crate) count: u32,
    pub(crate) fenced: Option<Fenced>,
    /// Whether the owner may hold it more than once.
    pub(crate) reentrant: bool,
    /// Waits by repeated tries instead of wake-ups.
    pub(crate) spin: Option<Backoff>,
    /// The hold of the same owner on the other side of a read/write lock.
    pub(crate) beside: Option<OwnerId>,
    /// The number of permits of a semaphore that this acquire may create.
    pub(crate) temporary: Option<u64>,
}

/// How tasks of one client that want the same lock use the local queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Queueing {
    /// One task asks, waits or holds at a time.
    Exclusive,
    /// Any task asks and holds; one waits at the store.
    Waiting,
    /// Each task acts for itself.
    None,
}

impl Request {
    /// Counts the wait from now.
    pub(super) fn begin(&mut self) {
        self.limit = match self.wait {
            Duration::ZERO | Duration::MAX => Tick::NEVER,
            span => self.core.clock.now() + span,
        };
    }

    /// Whether it makes more than one attempt.
    pub(super) fn waits(&self) -> bool {
        !self.wait.is_zero()
    }

    pub(super) fn queueing(&self) -> Queueing {
        match self.resource.kind {
            // An upgrade must not queue behind a writer that waits for this very reader.
            Kind::Write if self.beside.is_some() => Queueing::None,
            Kind::Lock | Kind::Mutex | Kind::Write => Queueing::Exclusive,
            Kind::Semaphore | Kind::Permits => Queueing::Waiting,
            Kind::Fair | Kind::Read | Kind::Latch => Queueing::None,
        }
    }

    /// Whether the first attempt needs neither a timer nor an earlier identity.
    pub(super) fn is_simple(&self) -> bool {
        self.limit == Tick::NEVER && self.resource.kind != Kind::Fair
    }

    pub(super) fn phase(&self) -> Phase {
        match self.resource.kind {
            Kind::Latch => Phase::Wait,
            _ => Phase::Acquire,
        }
    }

    /// Returns the topic of the wake-ups of a waiter.
    pub(super) fn topic(&self, owner: OwnerId) -> Topic {
        let turn = || Topic::Turn(self.resource.name.clone(), owner);
        Topic::shared_by(&self.resource).unwrap_or_else(turn)
    }

    /// Acquires the lock. Returns `None` if it is busy and the wait limit has passed.
    pub(crate) async fn acquire(&mut self) -> Result<Option<Acquired>> {
        self.begin();
        match (span(&self.resource), self.owner.clone()) {
            (None, None) => self.acquire_anew().await,
            (span, owner) => {
                let work = async {
                    match owner {
                        None => self.acquire_anew().await,
                        Some(owner) => self.acquire_as(&owner).await,
                    }
                };
                Box::pin(work.instrument(span.unwrap_or_else(Span::none))).await
            }
        }
    }

    /// Fails for a client that acquires nothing more. One side of a lock beside the other is no new lock.
    pub(super) fn ensure_may_begin(&self) -> Result<()> {
        if self.beside.is_none() { self.core.ensure_open(&self.resource) } else { Ok(()) }
    }

    /// Acquires for an owner that does not hold the lock yet.
    pub(super) async fn acquire_anew(&self) -> Result<Option<Acquired>> {
        self.ensure_may_begin()?;
        let started = self.core.clock.now();
        let granted = match LocalQueues::join(self) {
            Entered::Front(mut front) if self.is_simple() => {
                let (answer, pending) = PendingAcquire::new(self).attempt(self, started).await;
                match self.judge(&mut front, &answer) {
                    Some((token, now)) => {
                        Some((Grant { pending, front, token, sent: answer.1 }, now))
                    }
                    None => {
                        let acquiring = AcquireLoop::new(self, front, started);
                        Box::pin(acquiring.run(Some((answer, pending)))).await?
                    }
                }
            }
            entered => Box::pin(self.wait_from(entered, started)).await?,
        };
        Ok(granted.map(|(grant, now)| {
            let lease = Lease::begin(grant, self, now);
            tracing::debug!(lock = %lease.resource.name, owner = %lease.owner,
                waited = ?now.since(started), "acquired");
            (lease, 0)
        }))
    }

    /// Returns the token of a grant that arrived in time, and when it arrived.
    pub(super) fn judge(
        &self,
        front: &mut Front,
        (answer, sent): &Answered,
    ) -> Option<(Option<u64>, Tick)> {
        let Ok(Attempt::Granted { token }) = answer else { return None };
        let now = self.core.clock.now();
        front.acquired(now);
        self.is_in_time(*sent, now).then_some((*token, now))
    }

    /// Whether a grant of a request sent at `sent` arrived before its lease expired.
    pub(super) fn is_in_time(&self, sent: Tick, now: Tick) -> bool {
        now < deadline(&self.core, sent, self.term.ttl)
    }
}

/// Returns the span of an acquire, unless it is disabled.
fn span(Resource { kind, name }: &Resource) -> Option<Span> {
    let span = tracing::debug_span!("acquire", lock = %name, %kind);
    (!span.is_disabled()).then_some(span)
}

/// Returns one side of a read/write lock; any other kind unchanged.
pub(super) fn other_side(resource: &Resource, side: Kind) -> Resource {
    let kind = match resource.kind {
        Kind::Read | Kind::Write => side,
        kind => kind,
    };
    Resource { kind, name: resource.name.clone() }
}
