//! Releases: one hold of several, the last one, or the guard but not the lock.
//!
//! Each release runs to completion: if its caller drops the future, the reaper polls it to its end
//! (`releasing.rs`).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::{Instrument, Span};

use super::holds::HoldId;
use super::identities::LINGER;
use super::lease::{Lease, Status, deadline};
use super::local_queue::{Front, Grant, Handoff, Others, Served, Waiter};
use super::pending_acquire::{self, PendingAcquire};
use super::retry::{Retried, retry_after, retry_until};
use super::{RETRY_COUNTERS, Tick, lock};
use crate::OwnerId;
use crate::backend::{
    Acquire, Answer, Attempt, BoxFuture, Detail, Fault, HolderEntry, Kind, Release, Released,
    Resource,
};
use crate::error::{Error, LostReason, Phase, Result};
use crate::holder::Holder;

/// The turn of a lease, given back when it is dropped.
pub(super) struct Turn(Arc<Lease>);

impl Turn {
    pub(super) fn try_take(lease: &Arc<Lease>) -> Option<Self> {
        lease.turns.try_take().then(|| Self(Arc::clone(lease)))
    }

    pub(super) async fn take(lease: &Arc<Lease>) -> Self {
        lease.turns.take().await;
        Self(Arc::clone(lease))
    }
}

impl Deref for Turn {
    type Target = Arc<Lease>;

    fn deref(&self) -> &Arc<Lease> {
        &self.0
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.give_back();
    }
}

/// What the release of one guard requires.
enum Plan {
    /// Other guards of the owner remain, and need this TTL.
    Partial { keep: u32, owed: Option<u64> },
    /// It was the last one.
    Last(Option<Front>),
    /// It was the last one, but the lock stays held for this many milliseconds.
    Leave(Option<Front>, u64),
    /// The client was abandoned, or its shutdown has released the lock.
    Nothing,
}

/// Releases the hold of a dropped guard in the background.
pub(crate) fn release_later(lease: Arc<Lease>, hold: HoldId) {
    let reaper = lease.core.reaper.clone();
    reaper.adopt(Box::pin(async move {
        let name = lease.resource.name.clone();
        match release_hold(lease, hold, None).await {
            Ok(()) => {}
            Err(error) => tracing::debug!(lock = %name, %error, "dropped guard"),
        }
    }));
}

/// Ends a lease without a release in the store.
pub(crate) fn forget(lease: &Lease) {
    if lease.core.home.is_forked() {
        return;
    }
    let front = {
        let mut state = lock(&lease.state);
        state.holds.clear();
        lease.finish(&mut state)
    };
    lease.after_end(front);
}

impl Lease {
    /// How long the store may keep it if nothing more is sent.
    fn longest(&self, now: Tick) -> Duration {
        let state = lock(&self.state);
        if state.deadline == Tick::NEVER {
            return RETRY_COUNTERS;
        }
        let by_deadline = state.deadline.since(now) + self.core.options.response_timeout;
        by_deadline.max(state.renewed_ttl().map(Duration::from_millis).unwrap_or_default())
    }

    /// Releases all its holds in the background.
    pub(super) fn undo(&self) {
        let now = self.core.clock.now();
        let ends = now + self.longest(now);
        let left = lock(&self.state).floor.map(|floor| floor.since(now).as_millis() as u64);
        let release = match left {
            // One of its guards left the lock held until `floor`, which is not to be undone.
            Some(ttl) if ttl > 0 => Release { ttl: Some(ttl), leave: true, ..self.release_of(1) },
            _ => self.release_of(0),
        };
        let core = Arc::clone(&self.core);
        self.core.reaper.adopt(Box::pin(pending_acquire::undo(core, release, ends, Some(ends))));
    }

    /// Repeats the release after its end, where an unanswered acquire of it cannot be revoked,
    /// until the TTL of that acquire would have expired. Otherwise the late request could leave a
    /// hold behind. Starts at `held_until`, until when the lock was left held.
    pub(super) fn undo_late(&self, held_until: Option<Tick>) {
        let revokes = || self.core.revokes_lost_requests(&self.resource.name);
        let Some(late) = self.late.filter(|late| *late > self.core.clock.now() && !revokes())
        else {
            return;
        };
        let (core, release) = (Arc::clone(&self.core), self.release_of(0));
        self.core.reaper.adopt(Box::pin(async move {
            if let Some(held_until) =
                held_until.and_then(|held_until| core.clock.instant(held_until))
            {
                tokio::time::sleep_until(held_until).await;
            }
            pending_acquire::undo(core, release, late, Some(late)).await;
        }));
    }

    /// Ends the subscription of a waiter of a fair lock. If the release was `confirmed`, leaves it to
    /// the next waiter, with the identity: not if a request of it may still execute, and not if
    /// another guard of the expired lease remains, which will release the same identity.
    fn leave_identity(&self, confirmed: bool) {
        let mut state = lock(&self.state);
        let Some(listening) = state.listening.take() else { return };
        let ended = state.status == Status::Released && state.holds.len() == 0 && !state.asking;
        drop(state);
        let indeterminate = self.indeterminate.load(Ordering::Relaxed) || self.late.is_some();
        let core = &self.core;
        if confirmed && ended && !indeterminate {
            let now = core.clock.now();
            core.identities.put(&self.resource.name, self.owner, listening, now);
            core.registry.wake_by(now + LINGER);
        }
        // After it was put: a client that is closed concurrently may have cleared them before.
        if core.was_closed() {
            core.identities.clear();
        }
    }

    /// Notes that a release got no answer.
    fn note_release(&self, fault: &Fault) {
        self.in_trouble.store(true, Ordering::Relaxed);
        self.note(fault);
    }
}

pub(super) async fn release_hold(
    lease: Arc<Lease>,
    hold: HoldId,
    leave: Option<u64>,
) -> Result<()> {
    match span(&lease.resource) {
        Some(span) => in_turn(lease, hold, leave).instrument(span).await,
        None => in_turn(lease, hold, leave).await,
    }
}

/// Returns the span of a release, unless it is disabled.
pub(super) fn span(Resource { kind, name }: &Resource) -> Option<Span> {
    let span = tracing::debug_span!("release", lock = %name, %kind);
    (!span.is_disabled()).then_some(span)
}

pub(super) async fn in_turn(lease: Arc<Lease>, hold: HoldId, leave: Option<u64>) -> Result<()> {
    let turn = Turn::take(&lease).await;
    match begin(turn, hold, leave) {
        Ok(last) => last.finish().await,
        Err(work) => work.await,
    }
}

/// Begins a release. Returns the request of a last hold without a successor, or else the work to do.
pub(super) fn begin(
    turn: Turn,
    hold: HoldId,
    leave: Option<u64>,
) -> std::result::Result<Last, BoxFuture<Result<()>>> {
    let now = turn.core.clock.now();
    let mut front = match plan(&turn, hold, leave, now) {
        Plan::Last(front) => front,
        plan => return Err(Box::pin(async move { not_last(&turn, plan, now).await })),
    };
    turn.after_end(None);
    if let Some(successor) = front.as_mut().and_then(|front| front.successor(now))
        && let Some(front) = front.take()
    {
        return Err(Box::pin(async move {
            let released = hand_off(&turn, front, successor).await;
            turn.undo_late(None);
            released
        }));
    }
    let answer = turn.core.backend.release(turn.release_of(0));
    Ok(Last { turn, front, answer, sent: now })
}

/// The first request of the release of a last hold.
pub(super) struct Last {
    turn: Turn,
    front: Option<Front>,
    pub(super) answer: Answer<Released>,
    sent: Tick,
}

impl Last {
    /// Completes the release by the answer. Returns the fault if the request has to be repeated.
    pub(super) fn settle(
        &mut self,
        answer: std::result::Result<Released, Fault>,
    ) -> std::result::Result<Result<()>, Fault> {
        self.turn.core.note(&self.turn.resource.name, self.sent, &answer);
        match answer {
            Err(fault) if fault.may_pass() => Err(fault),
            answer => Ok(self.end(Retried { answer, sent: self.sent, maybe_ran: false })),
        }
    }

    pub(super) async fn repeat(mut self, fault: Fault) -> Result<()> {
        let release = self.turn.release_of(0);
        let tried = retry_release(&self.turn, release, self.sent, Some(fault)).await;
        self.end(tried)
    }

    pub(super) async fn finish(mut self) -> Result<()> {
        let answer = (&mut self.answer).await;
        match self.settle(answer) {
            Ok(released) => released,
            Err(fault) => self.repeat(fault).await,
        }
    }

    fn end(&mut self, tried: Retried<Released>) -> Result<()> {
        let released = last(&self.turn, self.front.take(), tried);
        self.turn.undo_late(None);
        released
    }
}

async fn not_last(lease: &Arc<Lease>, plan: Plan, now: Tick) -> Result<()> {
    match plan {
        Plan::Partial { keep, owed } => partial(lease, keep, owed).await,
        Plan::Leave(front, ttl) => {
            let left = stay(lease, front, ttl).await;
            lease.undo_late(Some(now + Duration::from_millis(ttl)));
            left
        }
        Plan::Last(_) | Plan::Nothing => {
            Err(Error::Closed { lock: Some(lease.resource.name.clone()) })
        }
    }
}

fn plan(lease: &Lease, hold: HoldId, leave: Option<u64>, now: Tick) -> Plan {
    let mut state = lock(&lease.state);
    state.holds.remove(hold);
    // A shutdown releases each hold once: permits have no owner by which the store would recognise
    // a repetition.
    let released = lease.core.was_closed() && state.status != Status::Held;
    if released || lease.core.is_abandoned() {
        return Plan::Nothing;
    }
    if let Some(ttl) = leave {
        let end = now + Duration::from_millis(ttl);
        state.floor = state.floor.max(Some(end));
    }
    let keep = state.holds.len();
    if keep > 0 {
        match state.owed(now) {
            Some(ttl) => {
                let held = state.status == Status::Held;
                return Plan::Partial { keep, owed: held.then_some(ttl) };
            }
            // The terms of the remaining guards have passed: the whole lease has expired.
            None if state.status == Status::Held => {
                state.status = Status::Lost(LostReason::Expired)
            }
            None => return Plan::Partial { keep, owed: None },
        }
    }
    let rest = state.floor.map(|floor| floor.since(now).as_millis() as u64);
    let front = lease.finish(&mut state);
    match rest {
        Some(ttl) if ttl > 0 => Plan::Leave(front, ttl),
        _ => Plan::Last(front),
    }
}

async fn partial(lease: &Arc<Lease>, keep: u32, ttl: Option<u64>) -> Result<()> {
    let core = &lease.core;
    let sent = core.clock.now();
    let cut = ttl.and_then(|ttl| {
        // Before it is sent: from then on the store may count the shorter TTL.
        let mut state = lock(&lease.state);
        state.deadline = state.deadline.min(deadline(core, sent, ttl));
        state.reschedule(core);
        state.may_be_cut(&lease.resource.name, ttl)
    });
    let tried = send_release(lease, Release { ttl, ..lease.release_of(keep) }, sent).await;
    match &tried.answer {
        // No earlier try can have removed the last hold, so the lease is lost.
        Ok(Released::Absent { holder }) => {
            lease.lose(LostReason::Deleted);
            return Err(not_held(lease, holder.clone()));
        }
        Ok(_) if ttl.is_some() => {
            let mut state = lock(&lease.state);
            if !tried.maybe_ran {
                // It was executed, once.
                state.cut = cut;
            }
            state.ask_after(core, sent);
            state.reschedule(core);
        }
        _ => {}
    }
    verdict(lease, tried)
}

async fn stay(lease: &Arc<Lease>, front: Option<Front>, ttl: u64) -> Result<()> {
    lease.after_end(None);
    lease.leave_identity(false);
    let request = Release { ttl: Some(ttl), leave: true, ..lease.release_of(1) };
    let tried = send_release(lease, request, lease.core.clock.now()).await;
    drop(front);
    if let Ok(Released::Absent { holder }) = tried.answer {
        // No earlier try can have removed it.
        return Err(not_held(lease, holder));
    }
    verdict(lease, tried)?;
    lease.core.leave(lease, ttl);
    Ok(())
}

/// Completes the release of the last hold.
fn last(lease: &Lease, front: Option<Front>, tried: Retried<Released>) -> Result<()> {
    match (front, &tried.answer) {
        (None, answer) => lease.leave_identity(matches!(answer, Ok(Released::Freed { .. }))),
        (Some(mut front), Ok(Released::Freed { listeners })) => {
            front.released = Some(others(lease, &front, *listeners));
        }
        (Some(_), _) => {}
    }
    verdict(lease, tried)
}

/// Whether a waiter of another client listens for the lock.
fn others(lease: &Lease, front: &Front, listeners: Option<u64>) -> Others {
    match listeners {
        Some(0) if lease.resource.kind != Kind::Mutex => Others::None,
        Some(0) => Others::Unknown,
        Some(count) if count > front.subscriptions() => Others::Listen,
        // Readers of this client listen on the same channel as its writers.
        Some(1..) if lease.resource.kind == Kind::Write => Others::Unknown,
        // Other Redlock clients do not subscribe.
        Some(_) if lease.resource.kind != Kind::Mutex => Others::None,
        Some(_) | None => Others::Unknown,
    }
}

/// Hands the lock off to a waiter of this client in one request. If that waiter has left when the
/// answer arrives, hands it off to the next one, or releases it.
async fn hand_off(lease: &Arc<Lease>, mut front: Front, mut successor: Waiter) -> Result<()> {
    let core = &lease.core;
    let mut from = lease.owner;
    let mut outcome = None;
    loop {
        let tried = send_handoff(lease, from, &successor).await;
        let token = match tried.answer {
            Ok(Attempt::Granted { token }) => token,
            // Released, but not handed off: readers of the owner remain.
            Ok(Attempt::Busy { .. }) => {
                front.give(successor);
                return Ok(());
            }
            Ok(Attempt::Gone) => {
                let answer = Ok(Released::Absent { holder: None });
                let Retried { sent, maybe_ran, .. } = tried;
                let released = verdict(lease, Retried { answer, sent, maybe_ran });
                front.give(successor);
                return outcome.unwrap_or(released);
            }
            Err(_) => {
                let released = give_up_handoff(lease, front, successor, from, tried).await;
                return outcome.unwrap_or(released);
            }
        };
        outcome = Some(Ok(()));
        let Waiter { served, handoff } = successor;
        let ends = tried.sent + Duration::from_millis(handoff.ttl);
        let pending = PendingAcquire::granted(core, &lease.resource, handoff.owner, ends);
        let grant = Grant { pending, front, token, sent: tried.sent };
        let refused = served.send(Box::new(Served::Granted(grant))).err().map(|served| *served);
        let Some(Served::Granted(returned)) = refused else { return Ok(()) };
        front = returned.front;
        match front.successor(core.clock.now()) {
            Some(next) => {
                from = returned.pending.owner;
                returned.pending.disarm();
                successor = next;
            }
            // Dropping the grant releases the lock, and passes the front on.
            None => return Ok(()),
        }
    }
}

/// Gives up a handoff: the waiters fail or try for themselves, and both holds that may be stored
/// are released.
async fn give_up_handoff(
    lease: &Arc<Lease>,
    front: Front,
    successor: Waiter,
    from: OwnerId,
    Retried { answer, sent, maybe_ran }: Retried<Attempt>,
) -> Result<()> {
    let core = &lease.core;
    let Err(fault) = answer else { return Ok(()) };
    if maybe_ran || fault.maybe_ran() {
        let Handoff { owner, ttl, .. } = successor.handoff;
        let ends = sent + Duration::from_millis(ttl);
        drop(PendingAcquire::indeterminate(core, &lease.resource, owner, ends));
    }
    if fault.may_pass() {
        core.local_queues.fail(&lease.resource, &fault);
        let _ = successor.served.send(Box::new(Served::Failed(fault)));
        drop(front);
    } else {
        front.give(successor);
    }
    let request = Release { owner: from, ..lease.release_of(0) };
    let mut tried = send_release(lease, request, core.clock.now()).await;
    // The handoff may have been executed after all; the undo from above removes it.
    tried.maybe_ran |= maybe_ran;
    verdict(lease, tried)
}

/// Sends a handoff until it is answered, or until the waiters have waited for an answer for
/// `unreachable_after`.
async fn send_handoff(lease: &Lease, from: OwnerId, successor: &Waiter) -> Retried<Attempt> {
    let core = &lease.core;
    let now = core.clock.now();
    let ends = now + lease.longest(now).min(core.options.unreachable_after);
    let Handoff { owner, ttl, fenced } = successor.handoff;
    let send = || {
        let acquire = Acquire::new(lease.resource.clone(), owner, ttl);
        core.backend.acquire(Acquire { from: Some(from), fenced, ..acquire })
    };
    let failed = |fault: &Fault| lease.note_release(fault);
    retry_until(core, &lease.resource.name, (now, ends), send, failed, || core.is_abandoned()).await
}

/// Sends a release until it is answered or the lease has expired.
async fn send_release(lease: &Lease, release: Release, now: Tick) -> Retried<Released> {
    retry_release(lease, release, now, None).await
}

/// The same after `fault` of a first try.
async fn retry_release(
    lease: &Lease,
    release: Release,
    now: Tick,
    fault: Option<Fault>,
) -> Retried<Released> {
    let core = &lease.core;
    let ends = match lease.resource.kind {
        // The store does not remember it for longer.
        Kind::Semaphore => now + RETRY_COUNTERS,
        // The first try may take one response timeout.
        _ => now + lease.longest(now) + core.options.response_timeout,
    };
    let failed = |fault: &Fault| {
        if core.clock.now().since(now) >= core.options.unreachable_after {
            // The waiters in the local queue have waited for the same store.
            core.local_queues.fail(&lease.resource, fault);
        }
        lease.note_release(fault);
    };
    let send = || core.backend.release(release.clone());
    let (name, stop) = (&lease.resource.name, || core.is_abandoned());
    match fault {
        None => retry_until(core, name, (now, ends), send, failed, stop).await,
        Some(fault) => retry_after(core, name, fault, (now, ends), send, failed, stop).await,
    }
}

/// Decides by the first answer. If an answer finds the lock absent after an unanswered request,
/// that request most likely removed it; this is certain only while the lease cannot have expired.
fn verdict(lease: &Lease, tried: Retried<Released>) -> Result<()> {
    let unconfirmed =
        |detail: Detail| Err(Error::unconfirmed(&lease.resource.name, Phase::Release, detail));
    match tried.answer {
        Ok(Released::Freed { .. } | Released::Kept) => {
            tracing::debug!(lock = %lease.resource.name, owner = %lease.owner,
                held = ?lease.core.clock.now().since(lease.granted), "released");
            Ok(())
        }
        Ok(Released::Absent { holder }) if !tried.maybe_ran => Err(not_held(lease, holder)),
        Ok(Released::Absent { .. }) => {
            // Of several members, another client may have had the lock on those that had lost it.
            let is_one = !lease.core.leaves_remains(&lease.resource.name);
            if is_one && lease.core.clock.now() < lease.deadline() {
                return Ok(());
            }
            unconfirmed("an answer was lost, and it is no longer held since".into())
        }
        Err(Fault::Unreachable { detail, .. } | Fault::Refused { detail }) => unconfirmed(detail),
        Err(fault) => Err(lease.core.error(fault, &lease.resource, Phase::Release)),
    }
}

fn not_held(lease: &Lease, holder: Option<String>) -> Error {
    let holder = holder.map(|id| Box::new(Holder::new(HolderEntry::new(id.into(), 1, false))));
    Error::NotHeld { lock: lease.resource.name.clone(), phase: Phase::Release, holder }
}
