//! The acquire of a lock.
//!
//! Most acquires are of a new owner and end with the first attempt, which is in place: each box costs
//! time. Everything else is boxed: named owners, spans, and waiting (`wait.rs`).

use std::sync::Arc;

use tracing::{Instrument, Span};

use super::Tick;
use super::lease::{Lease, deadline};
use super::local_queue::{Entered, Front, Grant, LocalQueues};
use super::pending_acquire::{Answered, PendingAcquire};
use super::terms::{HoldId, Request};
use super::wait::AcquireLoop;
use crate::backend::{Attempt, Resource};
use crate::error::Result;

/// An acquired hold.
pub(crate) type Acquired = (Arc<Lease>, HoldId);

impl Request {
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
