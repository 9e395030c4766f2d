//! A claim: the right to one wire identity, and the duty to undo its requests.
//!
//! From the moment a request to acquire may have reached the store until a lease takes over, the claim
//! is *armed*: dropping it sends an undo to the reaper. The undo is the release of the requested hold.
//! That one request removes the hold, the queue position or the mark of a waiting writer, whichever
//! there is, so the undo need not know how far the acquire came, and
//! [`Backend`](crate::backend::Backend) needs no request to leave a queue.
//!
//! # Why a late request is harmless
//!
//! - Every first acquire draws an identity that is never used again. So requests of different holds
//!   cannot be confused, in whatever order they execute.
//! - Requests of one hold go one at a time. The next is sent only after the last one has a final
//!   outcome: on the same connection, which executes them in order, or after the last one's connection
//!   was killed at the server.
//! - Where the user may not kill connections, the undo is repeated until the lost request's lease would
//!   have expired.
//! - Only one request takes time from a hold that continues: a partial release. A lease remembers the
//!   shortest TTL that a lost partial release may still set, and promises no more
//!   (`State::safe_until`).
//! - Hold counts are absolute, so a repeated request changes nothing. Semaphores and latches need
//!   increments; there the store remembers the answer to each request for as long as the request could
//!   be repeated.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::request::{Request, Wait};
use super::{Core, Rescue, Tick, UNDO_COUNTERS};
use crate::OwnerId;
use crate::backend::{Acquire, Attempt, BoxFuture, Fault, Kind, Release, Resource};

/// How long a waiter that gives up waits for the removal of its queue position; short, because the
/// store may not answer.
const LEAVING: Duration = Duration::from_millis(50);

/// How long a queue position may outlast the requested lease. After that the store has dropped it,
/// also beside waiters of Redisson, and a client whose store never returns must end.
const POSITION: Duration = Duration::from_secs(600);

/// How long the mark of a waiting writer is valid in the store.
const INTENT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct PendingAcquire {
    pub(super) core: Arc<Core>,
    pub(crate) resource: Resource,
    pub(crate) owner: OwnerId,
    armed: bool,
    /// The store keeps a queue position or a writer's mark for it.
    placed: bool,
    /// A request got no answer: whether the store granted it is unknown.
    pub(super) doubtful: bool,
    /// When the first unanswered request was sent. The TTL of a mutex may count from it.
    first_doubt: Option<Tick>,
    /// Until when the last unanswered request may execute, where it cannot be revoked.
    late: Option<Tick>,
    /// The store may keep a queue position for it, which does not expire with a lease.
    queued: bool,
    /// When everything that may be stored has expired.
    ends: Tick,
    /// How many permits it is for.
    count: u32,
}

impl PendingAcquire {
    pub(crate) fn new(core: &Arc<Core>, request: &Request) -> Self {
        let mut claim = Self::of(core, &request.resource, OwnerId::fresh(core.id));
        claim.count = request.count;
        claim
    }

    pub(super) fn of(core: &Arc<Core>, resource: &Resource, owner: OwnerId) -> Self {
        Self {
            core: Arc::clone(core),
            resource: resource.clone(),
            owner,
            armed: false,
            placed: false,
            doubtful: false,
            first_doubt: None,
            late: None,
            queued: false,
            ends: Tick::from_nanos(0),
            count: 1,
        }
    }

    /// Creates the claim of a hold that a handoff has granted.
    pub(crate) fn granted(
        core: &Arc<Core>,
        resource: &Resource,
        owner: OwnerId,
        ends: Tick,
    ) -> Self {
        let mut claim = Self::of(core, resource, owner);
        (claim.armed, claim.ends) = (true, ends);
        claim
    }

    /// Creates the claim of a hold that may or may not be granted.
    pub(crate) fn doubtful(
        core: &Arc<Core>,
        resource: &Resource,
        owner: OwnerId,
        ends: Tick,
    ) -> Self {
        let mut claim = Self::granted(core, resource, owner, ends);
        (claim.doubtful, claim.late) = (true, Some(ends));
        claim
    }

    /// Sends the request once, at the time `sent`.
    ///
    /// The future owns the claim, so that the receiver of the outcome also has the duty to undo.
    pub(crate) fn attempt(mut self, request: &Request, sent: Tick) -> Attempting {
        let ttl = request.term.ttl;
        self.arm(ttl, sent);
        let acquire = Acquire {
            count: request.count,
            beside: request.beside,
            // Readers share the lock: tokens cannot order them.
            fenced: request.fenced.filter(|_| request.resource.kind != Kind::Read),
            waits: request.wait != Wait::Never,
            temporary: request.temporary,
            ..Acquire::new(self.resource.clone(), self.owner, ttl)
        };
        let answer = self.core.backend.acquire(acquire);
        let waits = request.wait != Wait::Never && keeps_places(self.resource.kind);
        self.queued |= waits && self.resource.kind == Kind::Fair;
        Attempting { under_way: Some((self, answer)), sent, waits }
    }

    /// Arms it: from now on the store may know of it.
    pub(super) fn arm(&mut self, ttl: u64, sent: Tick) {
        self.armed = true;
        self.ends = sent
            + match self.resource.kind {
                // Without a lease: for as long as the store can undo it.
                Kind::Semaphore => UNDO_COUNTERS,
                // The mark of a waiting writer may outlive a short lease.
                Kind::Write => Duration::from_millis(ttl).max(INTENT),
                _ => Duration::from_millis(ttl),
            };
    }

    /// Until when an unanswered request may still acquire the lock, where it cannot be revoked.
    pub(super) fn late(&self) -> Option<Tick> {
        // A semaphore remembers each request, and a late one acquires nothing.
        self.late.filter(|_| self.resource.kind != Kind::Semaphore)
    }

    /// Updates the claim by the answer to a request sent at `sent`. Returns from when the TTL
    /// counts.
    pub(super) fn learn(
        &mut self,
        answer: &Result<Attempt, Fault>,
        sent: Tick,
        waits: bool,
    ) -> Tick {
        self.core.note(sent, answer);
        match answer {
            Ok(Attempt::Granted { .. }) => {}
            Ok(Attempt::Busy(_) | Attempt::Crowded(..)) if waits => self.placed = true,
            Ok(_) => self.armed = self.doubtful,
            Err(fault) if fault.maybe_ran() => {
                (self.doubtful, self.late) = (true, Some(self.ends));
                self.first_doubt.get_or_insert(sent);
            }
            Err(_) => self.armed = self.doubtful || self.placed,
        }
        // Scripts refresh the TTL each time they run; a repeated `SET NX` does not.
        match self.resource.kind {
            Kind::Mutex => self.first_doubt.unwrap_or(sent),
            _ => sent,
        }
    }

    /// Ends the duty to undo: a lease has taken over.
    pub(crate) fn disarm(mut self) {
        self.armed = false;
    }

    /// Gives up the queue position, and briefly waits for its removal, so that a caller that timed
    /// out is normally no longer in the queue.
    pub(crate) async fn leave(mut self) {
        if !self.placed {
            return;
        }
        self.armed = false;
        let leaving = Rescue::new(self.undoing(), self.core.reaper.clone()).in_any_case();
        let _ = tokio::time::timeout(LEAVING, leaving).await;
    }

    fn undo(&self) {
        self.core.reaper.adopt(self.undoing());
    }

    fn undoing(&self) -> BoxFuture<()> {
        let core = Arc::clone(&self.core);
        let give_up = if self.queued { self.ends + POSITION } else { self.ends };
        let release = Release {
            undo: true,
            count: self.count,
            ..Release::new(self.resource.clone(), self.owner)
        };
        Box::pin(undo(core, release, give_up, self.late))
    }
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        if self.armed {
            tracing::debug!(lock = %self.resource.name, owner = %self.owner, "undoing an acquire");
            self.undo();
        }
    }
}

/// An attempt under way. If its caller drops it, the reaper waits for the answer, and the claim
/// then undoes a grant.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Attempting {
    under_way: Option<(PendingAcquire, BoxFuture<Result<Attempt, Fault>>)>,
    sent: Tick,
    waits: bool,
}

impl Future for Attempting {
    /// The answer, the time from which the TTL counts, and the claim.
    type Output = (Result<Attempt, Fault>, Tick, PendingAcquire);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (_, answer) = self.under_way.as_mut().expect("polled after it was ready");
        let answer = ready!(answer.as_mut().poll(cx));
        let (mut claim, _) = self.under_way.take().expect("it was there a line ago");
        let counts = claim.learn(&answer, self.sent, self.waits);
        Poll::Ready((answer, counts, claim))
    }
}

impl Drop for Attempting {
    fn drop(&mut self) {
        if let Some((mut claim, answer)) = self.under_way.take() {
            let (reaper, sent, waits) = (claim.core.reaper.clone(), self.sent, self.waits);
            reaper.adopt(Box::pin(async move {
                let answer = answer.await;
                claim.learn(&answer, sent, waits);
            }));
        }
    }
}

/// Whether the store keeps something for a waiter: a queue position, or the mark of a waiting
/// writer.
fn keeps_places(kind: Kind) -> bool {
    matches!(kind, Kind::Fair | Kind::Write)
}

/// Releases until nothing of the claim can be left: until the first answer or `give_up`; then until
/// `late`, where an unanswered request may execute until then and cannot be revoked.
pub(crate) async fn undo(core: Arc<Core>, release: Release, give_up: Tick, late: Option<Tick>) {
    let (mut failures, mut ends) = (0, give_up);
    while !core.is_abandoned() {
        let permit = core.reaper.undo_permit().await;
        let sent = core.clock.now();
        let answer = core.backend.release(release.clone()).await;
        drop(permit);
        core.note(sent, &answer);
        match answer {
            Ok(_) => match late.filter(|_| !core.backend.capabilities().fences_lost_requests) {
                Some(late) => (failures, ends) = (3, late),
                None => return,
            },
            Err(fault) if fault.may_pass() => failures += 1,
            Err(_) => return,
        }
        if core.clock.now() >= ends {
            return;
        }
        tokio::time::sleep(core.backoff(failures)).await;
    }
}
