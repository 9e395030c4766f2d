//! An acquire that has no lease yet: its identity on the wire, and the duty to undo its requests.
//!
//! From the moment a request may have reached the store until a lease takes over, a [`PendingAcquire`]
//! is *armed*: dropping it sends an undo to the reaper. The undo is the release of the requested hold.
//! That one request removes the hold, the queue position or the mark of a waiting writer, whichever
//! there is, so the undo need not know how far the acquire came, and
//! [`Backend`](crate::backend::Backend) needs no request to leave a queue.
//!
//! # Why a late request is harmless
//!
//! - Every first acquire draws an identity that is never used again. So requests of different holds
//!   cannot be confused, in whatever order they execute. The exception: a waiter of a fair lock may get
//!   an identity of which every request was answered (`identities.rs`).
//! - Requests of one hold go one at a time. The next is sent only after the last one has a final
//!   outcome: on the same connection, which executes them in order, or after the last one's connection
//!   was killed at the server.
//! - Where the user may not kill connections, the undo is repeated until the lost request's lease would
//!   have expired.
//! - Only one request takes time from a hold that continues: a partial release, where a lost one can be
//!   revoked. Elsewhere it leaves the TTL as it is.
//! - Hold counts are absolute, so a repeated request changes nothing. Semaphores and latches need
//!   increments; there the store remembers the answer to each request for as long as the request could
//!   be repeated.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::retry::retry_until;
use super::terms::Request;
use super::{Core, RunToCompletion, Tick, UNDO_COUNTERS};
use crate::OwnerId;
use crate::backend::{
    Acquire, Answer, Attempt, BoxFuture, Fault, Kind, LockInfo, Release, Resource,
};

/// How long a waiter that gives up waits for the removal of its queue position; short, because the
/// store may not answer.
const LEAVING: Duration = Duration::from_millis(50);

/// How long a queue position may outlast the requested lease. After that the store has dropped it,
/// also beside waiters of Redisson, and a client whose store never returns must end.
const POSITION: Duration = Duration::from_secs(600);

/// How long the mark of a waiting writer is valid in the store.
const INTENT: Duration = Duration::from_secs(2);

/// The answer to one attempt, and from when its TTL counts.
pub(super) type Answered = (Result<Attempt, Fault>, Tick);

#[derive(Debug)]
pub(crate) struct PendingAcquire {
    pub(super) core: Arc<Core>,
    pub(crate) resource: Resource,
    pub(crate) owner: OwnerId,
    armed: bool,
    /// The store keeps a queue position or a writer's mark for it.
    is_stored: bool,
    /// When the first unanswered request was sent. The TTL of a mutex may count from it.
    first_indeterminate: Option<Tick>,
    /// Until when the last unanswered request may execute, where it cannot be revoked. If there is one, whether
    /// the store granted it is unknown.
    pub(super) late: Option<Tick>,
    /// The store may keep a queue position for it, which does not expire with a lease.
    queued: bool,
    /// When everything that may be stored has expired.
    ends: Tick,
    /// How many permits it is for.
    count: u32,
}

impl PendingAcquire {
    pub(crate) fn new(request: &Request) -> Self {
        let Request { core, resource, .. } = request;
        let mut pending = Self::of(core, resource, OwnerId::fresh(core.id));
        pending.count = request.count;
        pending
    }

    pub(super) fn of(core: &Arc<Core>, resource: &Resource, owner: OwnerId) -> Self {
        Self {
            core: Arc::clone(core),
            resource: resource.clone(),
            owner,
            armed: false,
            is_stored: false,
            first_indeterminate: None,
            late: None,
            queued: false,
            ends: Tick::from_nanos(0),
            count: 1,
        }
    }

    /// Creates it for a hold that a handoff has granted.
    pub(super) fn handed_off(
        core: &Arc<Core>,
        resource: &Resource,
        owner: OwnerId,
        ends: Tick,
    ) -> Self {
        let mut pending = Self::of(core, resource, owner);
        (pending.armed, pending.ends) = (true, ends);
        pending
    }

    /// Sends the request once, at the time `sent`.
    ///
    /// The future owns it, so that the receiver of the outcome also has the duty to undo.
    pub(crate) fn attempt(mut self, request: &Request, sent: Tick) -> Attempting {
        if self.resource.kind == Kind::Latch {
            let answer = look_at_latch(self.core.backend.inspect(self.resource.clone()));
            return Attempting::new(self, Box::pin(answer), sent, false);
        }
        let ttl = request.term.ttl;
        self.arm(ttl, sent);
        let acquire = Acquire {
            count: request.count,
            beside: request.beside,
            // Readers share the lock: tokens cannot order them.
            fenced: request.fenced.filter(|_| request.resource.kind != Kind::Read),
            waits: request.waits(),
            temporary: request.temporary,
            ..Acquire::new(self.resource.clone(), self.owner, ttl)
        };
        let answer = self.core.backend.acquire(acquire);
        let waits = request.waits() && stores_waiters(self.resource.kind);
        self.queued |= waits && self.resource.kind == Kind::Fair;
        Attempting::new(self, answer, sent, waits)
    }

    /// Arms it: from now on the store may know of it.
    pub(super) fn arm(&mut self, ttl: u64, sent: Tick) {
        self.armed = true;
        self.ends = match self.resource.kind {
            // Without a lease: for as long as the store can undo it.
            Kind::Semaphore => sent + UNDO_COUNTERS,
            // The mark of a waiting writer may outlive a short lease.
            Kind::Write => sent.plus_millis(ttl).max(sent + INTENT),
            _ => sent.plus_millis(ttl),
        };
    }

    pub(super) fn is_indeterminate(&self) -> bool {
        self.late.is_some()
    }

    /// Until when an unanswered request may still acquire the lock, where it cannot be revoked.
    pub(super) fn late(&self) -> Option<Tick> {
        // A semaphore remembers each request, and a late one acquires nothing.
        self.late.filter(|_| self.resource.kind != Kind::Semaphore)
    }

    /// Updates it by the answer to a request sent at `sent`. Returns from when the TTL
    /// counts.
    pub(super) fn note_answer(
        &mut self,
        answer: &Result<Attempt, Fault>,
        sent: Tick,
        waits: bool,
    ) -> Tick {
        self.core.note(&self.resource.name, sent, answer);
        match answer {
            Ok(Attempt::Granted { .. }) => {}
            Ok(Attempt::Busy { .. }) if waits => self.is_stored = true,
            Ok(_) => self.armed = self.is_indeterminate(),
            // A look at a latch leaves nothing to undo: it is never armed.
            Err(fault) if fault.maybe_ran() && self.armed => {
                self.late = Some(self.ends);
                self.first_indeterminate.get_or_insert(sent);
            }
            Err(_) => self.armed = self.is_indeterminate() || self.is_stored,
        }
        // Scripts refresh the TTL each time they run; a repeated `SET NX` does not.
        match self.resource.kind {
            Kind::Mutex => self.first_indeterminate.unwrap_or(sent),
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
        if !self.is_stored {
            return;
        }
        self.armed = false;
        let leaving = RunToCompletion::new(self.undoing(), self.core.reaper.clone()).in_any_case();
        let _ = tokio::time::timeout(LEAVING, leaving).await;
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
            self.core.reaper.adopt(self.undoing());
        }
    }
}

/// An attempt under way. If its caller drops it, the reaper waits for the answer, and a
/// grant is then undone.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Attempting {
    /// `None` when it is ready.
    pending: Option<PendingAcquire>,
    answer: Option<Answer<Attempt>>,
    sent: Tick,
    waits: bool,
}

impl Attempting {
    fn new(pending: PendingAcquire, answer: Answer<Attempt>, sent: Tick, waits: bool) -> Self {
        Self { pending: Some(pending), answer: Some(answer), sent, waits }
    }
}

impl Future for Attempting {
    /// The answer, the time from which the TTL counts, and the pending acquire.
    type Output = (Answered, PendingAcquire);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self.answer.as_mut().expect("polled after it was ready");
        let answer = ready!(Pin::new(answer).poll(cx));
        self.answer = None;
        let mut pending = self.pending.take().expect("it is there until it is ready");
        let counts = pending.note_answer(&answer, self.sent, self.waits);
        Poll::Ready(((answer, counts), pending))
    }
}

impl Drop for Attempting {
    fn drop(&mut self) {
        if let Some(mut pending) = self.pending.take()
            && let Some(answer) = self.answer.take()
        {
            let (reaper, sent, waits) = (pending.core.reaper.clone(), self.sent, self.waits);
            reaper.adopt(Box::pin(async move {
                let answer = answer.await;
                pending.note_answer(&answer, sent, waits);
            }));
        }
    }
}

/// Whether the store keeps something for a waiter: a queue position, or the mark of a waiting
/// writer.
fn stores_waiters(kind: Kind) -> bool {
    matches!(kind, Kind::Fair | Kind::Write)
}

/// An open latch is granted, a closed one is busy.
async fn look_at_latch(lock: Answer<LockInfo>) -> Result<Attempt, Fault> {
    let open = lock.await?.count.is_none_or(|count| count <= 0);
    Ok(if open { Attempt::GRANTED } else { Attempt::busy(None) })
}

/// Releases until nothing can be left: until the first answer or `give_up`; then until `late`,
/// where an unanswered request may execute until then and cannot be revoked.
pub(crate) async fn undo(core: Arc<Core>, release: Release, give_up: Tick, late: Option<Tick>) {
    let name = &release.resource.name;
    let send = || async {
        let _permit = core.reaper.undo_permit(core.lane(name)).await;
        core.backend.release(release.clone()).await
    };
    if core.is_abandoned() {
        return;
    }
    let retry = |ends| {
        let now = core.clock.now();
        retry_until(&core, name, (now, ends), None, send, |_| {}, || core.is_abandoned())
    };
    let first = retry(give_up).await;
    let late = late.filter(|_| !core.revokes_lost_requests(name));
    let (Ok(_), Some(late)) = (first.answer, late) else { return };
    while core.clock.now() < late && !core.is_abandoned() {
        tokio::time::sleep(core.options.backoff(3)).await;
        if retry(late).await.answer.is_err() {
            return;
        }
    }
}
