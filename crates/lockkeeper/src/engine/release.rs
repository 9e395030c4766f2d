//! Releases: one hold of several, the last one, or the guard but not the lock.
//!
//! Each release runs to completion: if its caller drops the future, the reaper polls it to its end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, ready};
use std::time::Duration;

use tracing::Instrument;

use super::lease::{HoldId, Lease, State, Status, deadline};
use super::local_queue::{Offer, Others, Seat, Ticket, Turn};
use super::pending_acquire::PendingAcquire;
use super::request::Term;
use super::{Core, RETRY_COUNTERS, Tick, lock};
use crate::OwnerId;
use crate::backend::{Acquire, Attempt, Fault, Kind, Release, Released, Resource};
use crate::error::{Error, LostReason, Phase, Result};

/// What the release of one guard requires.
enum Plan {
    /// Other guards of the owner remain, and need this TTL.
    Partial { keep: u32, owed: Option<u64> },
    /// It was the last one.
    Last(Option<Seat>),
    /// It was the last one, but the lock stays held for this many milliseconds.
    Leave(Option<Seat>, u64),
    /// The client was abandoned, or its shutdown has released the lock.
    Nothing,
}

/// Releases the hold of one guard. Returns within `unreachable_after` of the first failure; an
/// unconfirmed release continues in the background until the lease expires.
///
/// Not an `async fn`: the release happens even if the future is never polled.
pub(crate) fn release(
    lease: Arc<Lease>,
    hold: HoldId,
    leave: Option<u64>,
) -> impl Future<Output = Result<()>> + Send + 'static {
    let core = Arc::clone(&lease.core);
    let name = lease.resource.name.clone();
    let watched = Arc::clone(&lease);
    // In a forked child the hold is the parent's to release.
    let ours = !core.home.is_forked();
    // If there are other guards, this one may have to wait for their requests.
    let alone = ours && lease.hold_count() == 1;
    let mut work = ours.then(|| core.unbroken(give_back(lease, hold, leave)).in_any_case());
    // The store answers or fails within its response timeout. Only a failure, or a wait for other
    // guards, needs a timer.
    let mut patience = None;
    std::future::poll_fn(move |cx| {
        let Some(work) = &mut work else {
            return Poll::Ready(Err(Error::Closed { lock: Some(name.clone()) }));
        };
        if let Poll::Ready(done) = Pin::new(work).poll(cx) {
            return Poll::Ready(done);
        }
        if alone && !watched.in_trouble.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let _entered = core.home.enter();
        let patience = patience
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(core.options.unreachable_after)));
        ready!(patience.as_mut().poll(cx));
        let detail = "the store does not answer; it is tried again until the lease ends";
        let (lock, detail) = (name.clone(), detail.to_owned());
        Poll::Ready(Err(Error::Unconfirmed { lock, phase: Phase::Release, detail }))
    })
}

/// Releases the hold of a dropped guard in the background.
pub(crate) fn release_later(lease: Arc<Lease>, hold: HoldId) {
    let reaper = lease.core.reaper.clone();
    reaper.adopt(Box::pin(async move {
        let name = lease.resource.name.clone();
        match give_back(lease, hold, None).await {
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
    let seat = {
        let mut state = lock(&lease.state);
        state.holds.clear();
        lease.finish(&mut state)
    };
    lease.after_end(seat);
}

async fn give_back(lease: Arc<Lease>, hold: HoldId, leave: Option<u64>) -> Result<()> {
    let Resource { kind, name } = &lease.resource;
    let span = tracing::debug_span!("release", lock = %name, %kind);
    if span.is_disabled() {
        return in_turn(&lease, hold, leave).await;
    }
    Box::pin(in_turn(&lease, hold, leave).instrument(span)).await
}

async fn in_turn(lease: &Arc<Lease>, hold: HoldId, leave: Option<u64>) -> Result<()> {
    let _turn = lease.turn.lock().await;
    let now = lease.core.clock.now();
    match plan(lease, hold, leave, now) {
        Plan::Partial { keep, owed } => Box::pin(partial(lease, keep, owed)).await,
        Plan::Last(seat) => {
            let released = last(lease, seat, now).await;
            lease.undo_late(None);
            released
        }
        Plan::Leave(seat, ttl) => {
            let left = Box::pin(stay(lease, seat, ttl)).await;
            lease.undo_late(Some(now + Duration::from_millis(ttl)));
            left
        }
        Plan::Nothing => Err(Error::Closed { lock: Some(lease.resource.name.clone()) }),
    }
}

fn plan(lease: &Lease, hold: HoldId, leave: Option<u64>, now: Tick) -> Plan {
    let mut state = lock(&lease.state);
    state.holds.retain(|(id, _)| *id != hold);
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
    let keep = state.holds.len() as u32;
    if keep > 0 {
        match owed(&state, now) {
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
    let seat = lease.finish(&mut state);
    match rest {
        Some(ttl) if ttl > 0 => Plan::Leave(seat, ttl),
        _ => Plan::Last(seat),
    }
}

/// Returns the TTL that the remaining holds need from `now` on; `None` when their terms have
/// passed.
pub(super) fn owed(state: &State, now: Tick) -> Option<u64> {
    let ends = state.holds.iter().map(|(_, term)| match term {
        Term::Renewed(ttl) => *ttl,
        Term::Fixed(end) => end.since(now).as_millis() as u64,
    });
    let floor = state.floor.map(|floor| floor.since(now).as_millis() as u64);
    ends.chain(floor).max().filter(|ttl| *ttl > 0)
}

async fn partial(lease: &Arc<Lease>, keep: u32, ttl: Option<u64>) -> Result<()> {
    let core = &lease.core;
    let sent = core.clock.now();
    let cut = ttl.and_then(|ttl| {
        // Before it is sent: from then on the store may count the shorter TTL.
        let mut state = lock(&lease.state);
        state.deadline = state.deadline.min(deadline(core, sent, ttl));
        state.reschedule(core);
        state.may_be_cut(ttl)
    });
    let answer = confirm(lease, Release { ttl, ..lease.release_of(keep) }, sent).await;
    match &answer {
        // No earlier try can have removed the last hold, so the lease is lost.
        Ok((Released::Absent { holder }, _)) => {
            lease.lose(LostReason::Deleted);
            return Err(not_held(lease, holder.clone()));
        }
        Ok((_, doubtful)) if ttl.is_some() => {
            let mut state = lock(&lease.state);
            if !doubtful {
                // It was executed, once.
                state.cut = cut;
            }
            state.ask_after(core, sent);
            state.reschedule(core);
        }
        _ => {}
    }
    verdict(lease, answer)
}

async fn stay(lease: &Arc<Lease>, seat: Option<Seat>, ttl: u64) -> Result<()> {
    lease.after_end(None);
    let request = Release { ttl: Some(ttl), leave: true, ..lease.release_of(1) };
    let answer = confirm(lease, request, lease.core.clock.now()).await;
    drop(seat);
    match answer {
        // No earlier try can have removed it.
        Ok((Released::Absent { holder }, _)) => Err(not_held(lease, holder)),
        answer => {
            let left = verdict(lease, answer);
            if left.is_ok() {
                lease.core.leave(lease, ttl);
            }
            left
        }
    }
}

async fn last(lease: &Arc<Lease>, seat: Option<Seat>, now: Tick) -> Result<()> {
    lease.after_end(None);
    let Some(mut seat) = seat else {
        return verdict(lease, confirm(lease, lease.release_of(0), now).await);
    };
    if let Some(successor) = seat.successor(now) {
        return Box::pin(hand_over(lease, seat, successor)).await;
    }
    let answer = confirm(lease, lease.release_of(0), now).await;
    if let Ok((Released::Freed { listeners }, _)) = &answer {
        let others = others(lease, &seat, *listeners);
        seat.released(lease.core.clock.now(), others);
    }
    drop(seat);
    verdict(lease, answer)
}

/// Whether a waiter of another client listens for the lock.
fn others(lease: &Lease, seat: &Seat, listeners: Option<u64>) -> Others {
    match listeners {
        Some(count) if count > seat.subscriptions() => Others::Listen,
        // Readers of this client listen on the same channel as its writers.
        Some(1..) if lease.resource.kind == Kind::Write => Others::Unknown,
        // Other Redlock clients do not subscribe.
        Some(_) if lease.resource.kind != Kind::Mutex => Others::None,
        Some(_) | None => Others::Unknown,
    }
}

/// Hands the lock off to a waiter of this client in one request. If that waiter has left when the
/// answer arrives, hands it off to the next one, or releases it.
async fn hand_over(lease: &Arc<Lease>, mut seat: Seat, mut successor: Ticket) -> Result<()> {
    let core = &lease.core;
    let mut from = lease.owner;
    let mut outcome = None;
    loop {
        let (answer, sent, doubtful) = pass(lease, from, &successor).await;
        let token = match answer {
            Ok(Attempt::Granted { token }) => token,
            // Released, but not handed off: readers of the owner remain.
            Ok(Attempt::Busy(_) | Attempt::Crowded(..)) => {
                seat.give(successor);
                return Ok(());
            }
            Ok(Attempt::Gone) => {
                let lost_answer = doubtful && core.clock.now() < lease.deadline();
                seat.give(successor);
                let not_held = if lost_answer { Ok(()) } else { Err(not_held(lease, None)) };
                return outcome.unwrap_or(not_held);
            }
            Err(fault) => {
                let released = abandon(lease, seat, successor, from, (fault, sent, doubtful)).await;
                return outcome.unwrap_or(released);
            }
        };
        outcome = Some(Ok(()));
        let ends = sent + Duration::from_millis(successor.offer.ttl);
        let claim = PendingAcquire::granted(core, &lease.resource, successor.offer.owner, ends);
        let turn = Box::new(Turn::Handed(seat, claim, token, sent));
        let refused = successor.turn.send(turn).err().map(|turn| *turn);
        let Some(Turn::Handed(returned, claim, ..)) = refused else { return Ok(()) };
        seat = returned;
        match seat.successor(core.clock.now()) {
            Some(next) => {
                from = claim.owner;
                claim.disarm();
                successor = next;
            }
            // Dropping the claim releases the lock; dropping the seat passes it on.
            None => return Ok(()),
        }
    }
}

/// Gives up a handoff: the waiters fail or try for themselves, and both holds that may be stored
/// are released.
async fn abandon(
    lease: &Arc<Lease>,
    seat: Seat,
    successor: Ticket,
    from: OwnerId,
    (fault, sent, doubtful): (Fault, Tick, bool),
) -> Result<()> {
    let core = &lease.core;
    if doubtful || fault.maybe_ran() {
        let ends = sent + Duration::from_millis(successor.offer.ttl);
        drop(PendingAcquire::doubtful(core, &lease.resource, successor.offer.owner, ends));
    }
    if fault.may_pass() {
        core.local_queues.fail(&lease.resource, &fault);
        let _ = successor.turn.send(Box::new(Turn::Failed(fault)));
        drop(seat);
    } else {
        seat.give(successor);
    }
    let request = Release { owner: from, ..lease.release_of(0) };
    let answer = confirm(lease, request, core.clock.now()).await;
    match answer {
        // The handoff was executed after all; the claim dropped above undoes it.
        Ok((Released::Absent { .. }, _)) if doubtful => Ok(()),
        answer => verdict(lease, answer),
    }
}

/// Sends a handoff until it is answered, or until the waiters have waited for an answer for
/// `unreachable_after`.
async fn pass(
    lease: &Lease,
    from: OwnerId,
    successor: &Ticket,
) -> (Result<Attempt, Fault>, Tick, bool) {
    let core = &lease.core;
    let started = core.clock.now();
    let ends = started + lease.longest().min(core.options.unreachable_after);
    let (mut failures, mut doubtful) = (0, false);
    loop {
        let sent = core.clock.now();
        let Offer { owner, ttl, fenced } = successor.offer;
        let request = Acquire {
            from: Some(from),
            fenced,
            ..Acquire::new(lease.resource.clone(), owner, ttl)
        };
        let answer = core.backend.acquire(request).await;
        core.note(sent, &answer);
        match &answer {
            Err(fault) if fault.may_pass() && core.clock.now() < ends && !core.is_abandoned() => {
                doubtful |= fault.maybe_ran();
                lease.in_trouble.store(true, Ordering::Relaxed);
                pause(core, &mut failures).await;
            }
            _ => return (answer, sent, doubtful),
        }
    }
}

/// Sends a release until it is answered or the lease has expired. Also returns whether an earlier
/// try may have been executed.
async fn confirm(lease: &Lease, request: Release, sent: Tick) -> Result<(Released, bool), Fault> {
    match ask(&lease.core, request.clone(), sent).await {
        Err(fault) if fault.may_pass() => Box::pin(insist(lease, request, fault, sent)).await,
        answer => answer.map(|released| (released, false)),
    }
}

/// The rare rest of [`confirm`]: the first request failed.
async fn insist(
    lease: &Lease,
    request: Release,
    mut fault: Fault,
    sent: Tick,
) -> Result<(Released, bool), Fault> {
    let core = &lease.core;
    let ends = match lease.resource.kind {
        // Counted from the first try: the store does not remember it for longer.
        Kind::Semaphore => sent + RETRY_COUNTERS,
        _ => core.clock.now() + lease.longest(),
    };
    let (mut failures, mut doubtful) = (0, false);
    lease.in_trouble.store(true, Ordering::Relaxed);
    loop {
        doubtful |= fault.maybe_ran();
        if core.clock.now() >= ends || core.is_abandoned() {
            return Err(fault);
        }
        if core.clock.now().since(sent) >= core.options.unreachable_after {
            // The waiters in the local queue have waited for the same store.
            core.local_queues.fail(&lease.resource, &fault);
        }
        pause(core, &mut failures).await;
        if lease.resource.kind == Kind::Semaphore && core.clock.now() >= ends {
            return Err(fault);
        }
        match ask(core, request.clone(), core.clock.now()).await {
            Err(again) if again.may_pass() => fault = again,
            answer => return answer.map(|released| (released, doubtful)),
        }
    }
}

async fn ask(core: &Core, request: Release, sent: Tick) -> Result<Released, Fault> {
    let answer = core.backend.release(request).await;
    core.note(sent, &answer);
    answer
}

async fn pause(core: &Core, failures: &mut u32) {
    tokio::time::sleep(core.backoff(*failures)).await;
    *failures += 1;
}

/// Decides by the first answer. If an answer finds the lock absent after an unanswered request,
/// that request most likely removed it; this is certain only while the lease cannot have expired.
fn verdict(lease: &Lease, answer: Result<(Released, bool), Fault>) -> Result<()> {
    let unconfirmed = |detail: String| {
        let lock = lease.resource.name.clone();
        Err(Error::Unconfirmed { lock, phase: Phase::Release, detail })
    };
    match answer {
        Ok((Released::Freed { .. } | Released::Kept, _)) => {
            tracing::debug!(lock = %lease.resource.name, owner = %lease.owner,
                held = ?lease.core.clock.now().since(lease.granted), "released");
            Ok(())
        }
        Ok((Released::Absent { holder }, false)) => Err(not_held(lease, holder)),
        Ok((Released::Absent { .. }, true)) => {
            if lease.core.clock.now() < lease.deadline() {
                return Ok(());
            }
            unconfirmed("its answer was lost and the lease has ended since".to_owned())
        }
        Err(Fault::Unreachable { detail, .. } | Fault::Refused { detail }) => unconfirmed(detail),
        Err(fault) => Err(lease.core.error(fault, &lease.resource, Phase::Release)),
    }
}

fn not_held(lease: &Lease, holder: Option<String>) -> Error {
    Error::NotHeld { lock: lease.resource.name.clone(), phase: Phase::Release, holder }
}
