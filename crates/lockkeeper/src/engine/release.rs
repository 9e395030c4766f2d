//! Releases: one hold of several, the last one, or the guard but not the lock.
//!
//! Each release runs to completion: if its caller drops the future, the reaper polls it to its end.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;
use tracing::{Instrument, Span};

use super::handoff::hand_off;
use super::identities::LINGER;
use super::lease::{Lease, Status, deadline};
use super::local_queue::{Front, LocalQueues, Others};
use super::pending_acquire;
use super::retry::{Retried, retry_until};
use super::terms::HoldId;
use super::{RETRY_COUNTERS, RunToCompletion, Tick, lock};
use crate::backend::{Answer, BoxFuture, Detail, Fault, Holder, Kind, Release, Released, Resource};
use crate::carrier::{self, Carrier};
use crate::error::{Error, LostReason, Phase, Result};

/// The turn of a lease, which ends when it is dropped.
pub(super) struct Turn(Arc<Lease>);

impl Turn {
    pub(super) fn try_take(lease: &Arc<Lease>) -> Option<Self> {
        lease.turn.try_acquire().ok()?.forget();
        Some(Self(Arc::clone(lease)))
    }

    pub(super) async fn take(lease: &Arc<Lease>) -> Self {
        // It is never closed.
        if let Ok(turn) = lease.turn.acquire().await {
            turn.forget();
        }
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
        self.0.turn.add_permits(1);
    }
}

/// The release of the hold of one guard. If its caller drops it, also before its first poll, the reaper
/// does it.
///
/// Most releases are of a last hold, alone and at the first try: that request is in place. Everything
/// else is boxed.
pub(crate) struct Releasing {
    pub(crate) lease: Arc<Lease>,
    /// Not begun: the hold, and for how long the lock is to be left held.
    new: Option<(HoldId, Option<u64>)>,
    /// The request of a last hold is under way.
    last: Option<Last>,
    _carrier: Option<Arc<Carrier>>,
}

impl Releasing {
    pub(crate) fn new(lease: Arc<Lease>, hold: HoldId, leave: Option<u64>) -> Self {
        let carrier = lease.core.carrier();
        Self { lease, new: Some((hold, leave)), last: None, _carrier: carrier }
    }

    /// Releases it, on any executor.
    pub(crate) fn released(mut self) -> impl Future<Output = Result<()>> + Send + 'static {
        let core = Arc::clone(&self.lease.core);
        core.anywhere(async move { self.run().await })
    }

    /// Returns within `unreachable_after` of the first failure; an unconfirmed release continues in the
    /// background until the lease expires.
    pub(crate) async fn run(&mut self) -> Result<()> {
        let Self { lease, new, last, .. } = self;
        let Lease { core, resource, .. } = &**lease;
        carrier::ensure_may_wait(Some(&resource.name))?;
        if core.executor.is_forked() {
            // The hold is the parent's to release.
            *new = None;
        }
        let Some((hold, leave)) = *new else {
            return Err(Error::Closed { lock: Some(resource.name.clone()) });
        };
        let span = span(resource);
        let turn = if span.is_none() { Turn::try_take(lease) } else { None };
        // Another request may have the turn, and be repeated for as long as the lease lasts.
        let waits = turn.is_none();
        let begun = turn.map(|turn| begin(turn, hold, leave));
        *new = None;
        let work: BoxFuture<Result<()>> = match begun {
            Some(Ok(begun)) => {
                let answer = (&mut last.insert(begun).answer).await;
                match last.take().expect("it was inserted").settle(answer) {
                    Ok(released) => return released,
                    Err(work) => work,
                }
            }
            Some(Err(work)) => work,
            None => {
                let work = in_turn(Arc::clone(lease), hold, leave);
                Box::pin(work.instrument(span.unwrap_or_else(Span::none)))
            }
        };
        let mut work = RunToCompletion::new(work, core.reaper.clone()).in_any_case();
        let mut limit = None::<Pin<Box<Sleep>>>;
        poll_fn(|cx| {
            if let Poll::Ready(released) = Pin::new(&mut work).poll(cx) {
                return Poll::Ready(released);
            }
            // The store answers or fails within its response timeout. Only a failure, or a wait for other
            // guards, needs a timer.
            if !waits && !lease.in_trouble.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            let after = core.options.unreachable_after;
            let limit = limit.get_or_insert_with(|| Box::pin(tokio::time::sleep(after)));
            ready!(limit.as_mut().poll(cx));
            let detail = "the store does not answer; it is tried again until the lease ends";
            Poll::Ready(Err(Error::unconfirmed(&resource.name, Phase::Release, detail)))
        })
        .await
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        let work: BoxFuture<Result<()>> = match (self.last.take(), self.new.take()) {
            (Some(last), _) => Box::pin(last.finish()),
            (None, Some((hold, leave))) => {
                let lease = Arc::clone(&self.lease);
                Box::pin(async move {
                    let span = span(&lease.resource).unwrap_or_else(Span::none);
                    in_turn(lease, hold, leave).instrument(span).await
                })
            }
            (None, None) => return,
        };
        let name = self.lease.resource.name.clone();
        self.lease.core.reaper.adopt(Box::pin(async move {
            if let Err(error) = work.await {
                tracing::debug!(lock = %name, %error, "released in the background");
            }
        }));
    }
}

/// Releases the hold of a dropped guard in the background.
pub(crate) fn release_later(lease: Arc<Lease>, hold: HoldId) {
    drop(Releasing::new(lease, hold, None));
}

/// Ends a lease without a release in the store.
pub(crate) fn forget(lease: &Lease) {
    if lease.core.executor.is_forked() {
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
    pub(super) fn longest(&self, now: Tick) -> Duration {
        let state = lock(&self.state);
        if state.deadline == Tick::NEVER {
            return RETRY_COUNTERS;
        }
        let by_deadline = state.deadline.since(now) + self.core.options.response_timeout;
        by_deadline.max(state.holds.renewed_ttl().map(Duration::from_millis).unwrap_or_default())
    }

    /// Releases all its holds in the background.
    pub(super) fn undo(&self) {
        let now = self.core.clock.now();
        let ends = now + self.longest(now);
        let release = match lock(&self.state).left_for(now) {
            // One of its guards left the lock held, which is not to be undone.
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
        let indeterminate = self.indeterminate.load(Ordering::Relaxed);
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
    pub(super) fn note_release(&self, fault: &Fault) {
        self.in_trouble.store(true, Ordering::Relaxed);
        self.note(fault);
    }
}

/// Returns the span of a release, unless it is disabled.
fn span(Resource { kind, name }: &Resource) -> Option<Span> {
    let span = tracing::debug_span!("release", lock = %name, %kind);
    (!span.is_disabled()).then_some(span)
}

async fn in_turn(lease: Arc<Lease>, hold: HoldId, leave: Option<u64>) -> Result<()> {
    let turn = Turn::take(&lease).await;
    match begin(turn, hold, leave) {
        Ok(last) => last.finish().await,
        Err(work) => work.await,
    }
}

/// Begins a release. Returns the request of a last hold without a successor, or else the work to do.
fn begin(
    turn: Turn,
    hold: HoldId,
    leave: Option<u64>,
) -> std::result::Result<Last, BoxFuture<Result<()>>> {
    let now = turn.core.clock.now();
    let mut state = lock(&turn.state);
    state.holds.remove(hold);
    // A shutdown releases each hold once: permits have no owner by which the store would recognise
    // a repetition.
    let is_held = state.status == Status::Held;
    if turn.core.was_closed() && !is_held || turn.core.is_abandoned() {
        let closed = Error::Closed { lock: Some(turn.resource.name.clone()) };
        return Err(Box::pin(std::future::ready(Err(closed))));
    }
    if let Some(ttl) = leave {
        let end = now + Duration::from_millis(ttl);
        state.held_until = state.held_until.max(Some(end));
    }
    let keep = state.holds.len();
    if keep > 0 {
        // Other guards of the owner remain, and need this TTL.
        let ttl = state.remaining_ttl(now);
        if ttl.is_some() || !is_held {
            drop(state);
            return Err(Box::pin(
                async move { partial(&turn, keep, ttl.filter(|_| is_held)).await },
            ));
        }
        // The terms of the remaining guards have passed: the whole lease has expired.
        state.status = Status::Lost(LostReason::Expired);
    }
    let left_for = state.left_for(now).filter(|ttl| *ttl > 0);
    let mut front = turn.finish(&mut state);
    drop(state);
    turn.after_end(None);
    if let Some(ttl) = left_for {
        return Err(Box::pin(async move { stay(&turn, front, ttl, now).await }));
    }
    if let Some(successor) = front.as_mut().and_then(|front| front.successor(now))
        && let Some(front) = front.take()
    {
        return Err(Box::pin(async move {
            let released = hand_off(&turn, front, successor).await;
            turn.undo_late(None);
            released
        }));
    }
    // A shutdown waits for the answer.
    let front = front.unwrap_or_else(|| LocalQueues::unqueued(&turn.core, &turn.resource));
    let answer = turn.core.backend.release(turn.release_of(0));
    Ok(Last { turn, front, answer, sent: now })
}

/// The first request of the release of a last hold.
struct Last {
    turn: Turn,
    front: Front,
    answer: Answer<Released>,
    sent: Tick,
}

impl Last {
    /// Completes the release by the answer. Returns the work that is left if the request has to be repeated.
    fn settle(
        self,
        answer: std::result::Result<Released, Fault>,
    ) -> std::result::Result<Result<()>, BoxFuture<Result<()>>> {
        let sent = self.sent;
        self.turn.core.note(&self.turn.resource.name, sent, &answer);
        match answer {
            Err(fault) if fault.may_pass() => Err(Box::pin(async move {
                let release = self.turn.release_of(0);
                let tried = self.turn.send_release(release, sent, Some(fault)).await;
                self.end(tried)
            })),
            answer => Ok(self.end(Retried { answer, sent, maybe_ran: false })),
        }
    }

    async fn finish(mut self) -> Result<()> {
        let answer = (&mut self.answer).await;
        match self.settle(answer) {
            Ok(released) => released,
            Err(work) => work.await,
        }
    }

    fn end(self, tried: Retried<Released>) -> Result<()> {
        let Self { turn: lease, mut front, .. } = self;
        match &tried.answer {
            answer if front.unqueued => {
                lease.leave_identity(matches!(answer, Ok(Released::Freed { .. })));
            }
            Ok(Released::Freed { listeners }) => {
                front.released = Some(others(&lease, &front, *listeners));
            }
            _ => {}
        }
        drop(front);
        let released = lease.verdict(tried);
        lease.undo_late(None);
        released
    }
}

async fn partial(lease: &Lease, keep: u32, ttl: Option<u64>) -> Result<()> {
    let core = &lease.core;
    let sent = core.clock.now();
    // Where a lost request cannot be revoked, it could shorten the TTL at any time: the TTL stays there.
    let ttl = ttl.filter(|_| core.revokes_lost_requests(&lease.resource.name));
    if let Some(ttl) = ttl {
        // Before it is sent: from then on the store may count the shorter TTL.
        let mut state = lock(&lease.state);
        state.deadline = state.deadline.min(deadline(core, sent, ttl));
        state.reschedule(core);
    }
    let tried = lease.send_release(Release { ttl, ..lease.release_of(keep) }, sent, None).await;
    match &tried.answer {
        // No earlier try can have removed the last hold, so the lease is lost.
        Ok(Released::Absent { holder }) => {
            lease.lose(LostReason::Deleted);
            return Err(lease.not_held(holder.clone()));
        }
        Ok(_) if ttl.is_some() => {
            let mut state = lock(&lease.state);
            state.ask_after(core, sent);
            state.reschedule(core);
        }
        _ => {}
    }
    lease.verdict(tried)
}

async fn stay(lease: &Lease, front: Option<Front>, ttl: u64, now: Tick) -> Result<()> {
    lease.leave_identity(false);
    // Behind it the lock would get its old TTL again. Every request is answered within this time.
    let limit = lease.core.options.response_timeout;
    let _ = tokio::time::timeout(limit, lease.no_renewal_under_way()).await;
    let request = Release { ttl: Some(ttl), leave: true, ..lease.release_of(1) };
    let tried = lease.send_release(request, lease.core.clock.now(), None).await;
    drop(front);
    lease.undo_late(Some(now + Duration::from_millis(ttl)));
    if let Ok(Released::Absent { holder }) = tried.answer {
        // No earlier try can have removed it.
        return Err(lease.not_held(holder));
    }
    lease.verdict(tried)?;
    lease.core.leave(lease, ttl);
    Ok(())
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

/// The requests of a release, and what their answers mean.
impl Lease {
    /// Sends a release until it is answered or the lease has expired, after `fault` if a first try had one.
    pub(super) async fn send_release(
        &self,
        release: Release,
        now: Tick,
        fault: Option<Fault>,
    ) -> Retried<Released> {
        let core = &self.core;
        let ends = match self.resource.kind {
            // The store does not remember it for longer.
            Kind::Semaphore => now + RETRY_COUNTERS,
            // The first try may take one response timeout.
            _ => now + self.longest(now) + core.options.response_timeout,
        };
        let failed = |fault: &Fault| {
            if core.clock.now().since(now) >= core.options.unreachable_after {
                // The waiters in the local queue have waited for the same store.
                core.local_queues.fail(&self.resource, fault);
            }
            self.note_release(fault);
        };
        let send = || core.backend.release(release.clone());
        let (name, stop) = (&self.resource.name, || core.is_abandoned());
        retry_until(core, name, (now, ends), fault, send, failed, stop).await
    }

    /// Decides by the first answer. If an answer finds the lock absent after an unanswered request,
    /// that request most likely removed it; this is certain only while the lease cannot have expired.
    pub(super) fn verdict(&self, tried: Retried<Released>) -> Result<()> {
        let Self { core, resource, .. } = self;
        let unconfirmed =
            |detail: Detail| Err(Error::unconfirmed(&resource.name, Phase::Release, detail));
        match tried.answer {
            Ok(Released::Freed { .. } | Released::Kept) => {
                tracing::debug!(lock = %resource.name, owner = %self.owner,
                    held = ?core.clock.now().since(self.granted), "released");
                Ok(())
            }
            Ok(Released::Absent { holder }) if !tried.maybe_ran => Err(self.not_held(holder)),
            Ok(Released::Absent { .. }) => {
                // Of several members, another client may have had the lock on those that had lost it.
                let is_one = !core.leaves_remains(&resource.name);
                if is_one && core.clock.now() < self.deadline() {
                    return Ok(());
                }
                unconfirmed("an answer was lost, and it is no longer held since".into())
            }
            Err(Fault::Unreachable { detail, .. } | Fault::Refused { detail }) => {
                unconfirmed(detail)
            }
            Err(fault) => Err(core.error(fault, resource, Phase::Release)),
        }
    }

    pub(super) fn not_held(&self, holder: Option<String>) -> Error {
        let holder = holder.map(|id| Box::new(Holder::new(id, 1, false)));
        Error::NotHeld { lock: self.resource.name.clone(), phase: Phase::Release, holder }
    }
}
