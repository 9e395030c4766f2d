//! A lease: all holds of one owner on one name, and until when they are safe.
//!
//! | state | event | becomes | by |
//! |---|---|---|---|
//! | Held | renewed, re-entered or extended in time | Held, later deadline | watchdog, re-entry, extend |
//! | Held | one of several guards is released | Held, earlier deadline if the others asked for less | release |
//! | Held | the store had less time left than expected | Held, earlier deadline | watchdog |
//! | Held | the deadline is near, or has passed | Lost (Expired, Unreachable, Unacknowledged) | watchdog, re-entry, extend |
//! | Held | a guard is released, and the terms of the others have passed | Lost (Expired) | release |
//! | Held | the store answers that it is deleted or another's | Lost (Deleted, Taken) | watchdog, re-entry, extend, partial release |
//! | Held | a notice of a force-release | Lost (Revoked) | announcer |
//! | Held | the client is shut down or abandoned, its runtime ends | Lost (Closed) | client, watchdog |
//! | Held | its last guard is released, its permits are forgotten | Released | release |
//! | Lost, Released | any | unchanged | — |
//! | any | the process is forked | reads as Lost (Closed) in the child | — |
//!
//! Loss is final, and [`Lease::lose`] undoes what may remain of it in the store, which would keep other
//! clients out: a renewal that succeeds after it, and what a part of the store may still have, or be about
//! to get, when the store as a whole has lost it. A lease that is lost by the client's clock is left to
//! expire: until then its holder has time to stop.
//!
//! [`Lease::lost`] also resolves when the lock is released, with `Released`: a task that waits for it
//! must be able to end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, Semaphore};

use super::local_queue::{Front, Grant};
use super::terms::{HoldId, Holds, TermSpec};
use super::terms::{Queueing, Request};
use super::{Core, Tick, lock};
use crate::backend::{Fault, Kind, Release, Renew, Renewed, Resource, Subscription, Ttl};
use crate::error::{Error, LostReason, Phase, Result};
use crate::{Owner, OwnerId};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Status {
    Held,
    Lost(LostReason),
    Released,
}

/// See the module for its states.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) core: Arc<Core>,
    pub(crate) resource: Resource,
    pub(crate) owner: OwnerId,
    pub(crate) granted: Tick,
    /// The same by the wall clock, from the first time it is asked for: it does not change when
    /// that clock is set.
    pub(super) since: OnceLock<SystemTime>,
    /// How many permits it has.
    pub(crate) permits: u32,
    /// Whether its owner may hold it more than once.
    pub(crate) reentrant: bool,
    /// Whether an acquire of it asked for a fencing token: an upgrade then gets one.
    pub(crate) fenced: AtomicBool,
    /// The named owner, if there is one.
    pub(crate) named: Option<Owner>,
    /// The turn to send a request about it: one at a time, in the order in which they ask. A task that re-enters
    /// in a loop must not pass the releases of its earlier holds again and again.
    pub(super) turn: Semaphore,
    pub(super) state: Mutex<LeaseState>,
    /// A release got no answer: its caller stops waiting after `unreachable_after`.
    pub(super) in_trouble: AtomicBool,
    /// A request about it got no answer: its identity is not used again.
    pub(super) indeterminate: AtomicBool,
    ended: Notify,
    /// Until when an unanswered acquire of it may still execute, where it cannot be revoked.
    pub(super) late: Option<Tick>,
}

#[derive(Debug)]
pub(super) struct LeaseState {
    pub(super) status: Status,
    /// Until when the hold is safe: earlier than the lease can expire at the store.
    pub(super) deadline: Tick,
    pub(super) holds: Holds,
    pub(super) front: Option<Front>,
    /// It is lost, and its front is on the way to the next local waiter.
    passing_front: bool,
    /// Until when the lock must stay held after its guards are released.
    pub(super) held_until: Option<Tick>,
    /// When the watchdog asks the store about it.
    pub(super) ask_at: Tick,
    /// Since when it is to do so at once.
    checked_since: Tick,
    /// A request of the watchdog is under way.
    pub(super) asking: bool,
    /// The store does not have it, and it is looked up why.
    vanished: bool,
    pub(super) failures: u32,
    /// Its index in the registry.
    slot: Option<usize>,
    /// When the acquire was sent.
    begun: Tick,
    pub(super) token: Option<u64>,
    /// The longest time between two requests of the watchdog.
    look_every: Duration,
    /// The last renewal was executed, but not acknowledged.
    unacknowledged: bool,
    /// The subscription of a waiter of a fair lock, for the next waiter with this identity.
    pub(super) listening: Option<Subscription>,
}

/// The longest renewal interval of a reader. Redisson's renewal of one reader sets the TTL of the
/// whole lock to its own 30 s; this interval restores it in time.
const REASSERT: Duration = Duration::from_secs(10);

/// The loss is signalled this long before the deadline: tokio's timers fire up to a millisecond
/// late.
const SIGNAL_AHEAD: Duration = Duration::from_millis(2);

impl Lease {
    /// Begins the lease of a grant that arrived in time.
    pub(crate) fn begin(grant: Grant, request: &Request, now: Tick) -> Arc<Self> {
        let Grant { pending, mut front, token, sent } = grant;
        let (core, term) = (&pending.core, request.term);
        let listening = front.subscription.take_if(|_| request.resource.kind == Kind::Fair);
        front.leave_subscription();
        let lease = Arc::new(Self {
            core: Arc::clone(core),
            resource: pending.resource.clone(),
            owner: pending.owner,
            granted: now,
            since: OnceLock::new(),
            permits: request.count,
            reentrant: request.reentrant && request.resource.kind.is_reentrant(),
            fenced: AtomicBool::new(request.fenced.is_some()),
            named: request.owner.clone(),
            turn: Semaphore::new(1),
            in_trouble: AtomicBool::new(false),
            indeterminate: AtomicBool::new(pending.is_indeterminate()),
            ended: Notify::new(),
            late: pending.late(),
            state: Mutex::new(LeaseState {
                status: Status::Held,
                deadline: deadline(core, sent, term.ttl),
                holds: Holds::one(term, sent),
                // Without it, other tasks of this client may try at once.
                front: Some(front).filter(|_| request.queueing() == Queueing::Exclusive),
                passing_front: false,
                held_until: None,
                ask_at: Tick::NEVER,
                checked_since: sent,
                asking: false,
                vanished: false,
                failures: 0,
                slot: None,
                begun: sent,
                token,
                look_every: match request.resource.kind {
                    Kind::Read => REASSERT,
                    _ => Duration::MAX,
                },
                unacknowledged: false,
                listening,
            }),
        });
        pending.disarm();
        lease.enter(sent);
        lease
    }

    /// Enters the tables of its owner and of the watchdog.
    fn enter(self: &Arc<Self>, sent: Tick) {
        let core = &self.core;
        if let Some(owner) = &self.named {
            core.owners.set(owner, self);
        }
        let mut state = lock(&self.state);
        state.ask_after(core, sent);
        let due = state.due();
        state.slot = Some(core.registry.add(self, due));
        drop(state);
        // A notice about it may have been missed.
        if sent.as_nanos() < core.listens_since.load(Ordering::SeqCst) {
            Arc::clone(self).look_now();
        }
        // A client that is closed concurrently may not have found it in the registry.
        if core.was_closed() {
            self.lose(LostReason::Closed);
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.lost_reason().is_none()
    }

    /// Returns why it is no longer held, by its state and the clock.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        // Before the state, whose mutex another thread may have held at the moment of the fork.
        if self.core.executor.is_forked() {
            return Some(LostReason::Closed);
        }
        let now = self.core.clock.now();
        lock(&self.state).lost_reason(now)
    }

    pub(crate) fn deadline(&self) -> Tick {
        lock(&self.state).deadline
    }

    pub(crate) fn token(&self) -> Option<u64> {
        lock(&self.state).token
    }

    pub(crate) fn hold_count(&self) -> u32 {
        lock(&self.state).holds.len()
    }

    /// Resolves when it is no longer held, and does not stand in the way of the next acquire of its client.
    pub(crate) async fn lost(self: Arc<Self>) -> LostReason {
        // A forked child must not wait on what it shares with the parent.
        if self.core.executor.is_forked() {
            return LostReason::Closed;
        }
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if let Some(reason) = self.lost_reason().filter(|_| lock(&self.state).is_settled()) {
                return reason;
            }
            ended.await;
        }
    }

    /// Declares it lost. The front of the local queue goes to the next local waiter, which tries for itself.
    pub(crate) fn lose(&self, reason: LostReason) {
        self.lose_after(reason, false);
    }

    /// The same; `revived` if the store, or a part of it, may have extended it after its end.
    fn lose_after(&self, reason: LostReason, revived: bool) {
        let mut state = lock(&self.state);
        let ended = match state.status {
            Status::Held => {
                state.status = Status::Lost(reason.clone());
                let left = state.leave(&self.core);
                state.passing_front = left.is_some();
                Some((left, state.listening.take()))
            }
            Status::Lost(_) if revived => None,
            Status::Lost(_) | Status::Released => return,
        };
        drop(state);
        if let Some((left, listening)) = ended {
            drop(listening);
            tracing::warn!(lock = %self.resource.name, owner = %self.owner, %reason, "lock lost");
            self.after_end(left);
        }
        use LostReason::{Closed, Expired, Unacknowledged, Unreachable};
        let by_clock = matches!(reason, Expired | Unreachable | Unacknowledged);
        let remains = || reason == Closed || self.core.leaves_remains(&self.resource.name);
        // Not before its guards know of the loss.
        if revived || !by_clock && remains() {
            self.undo();
        }
    }

    /// Marks it released and returns the front of the local queue. The caller sends the release.
    pub(super) fn finish(&self, state: &mut LeaseState) -> Option<Front> {
        if state.status == Status::Held {
            state.status = Status::Released;
        }
        state.leave(&self.core)
    }

    /// Completes its end, outside of the state's mutex.
    pub(super) fn after_end(&self, front: Option<Front>) {
        if front.is_some() {
            drop(front);
            lock(&self.state).passing_front = false;
        }
        self.ended.notify_waiters();
        if let Some(owner) = &self.named {
            self.core.owners.tidy(&self.resource, owner);
        }
    }

    /// Notes the fault of a request about it.
    pub(super) fn note(&self, fault: &Fault) {
        if fault.may_pass() {
            self.indeterminate.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn release_of(&self, keep: u32) -> Release {
        let count = self.permits;
        Release { keep, count, ..Release::new(self.resource.clone(), self.owner) }
    }

    pub(super) fn renewal(&self, ttl: Option<u64>) -> Renew {
        let count = self.permits;
        Renew { count, ..Renew::new(self.resource.clone(), self.owner, ttl) }
    }

    /// Adds a hold that the store has granted.
    pub(super) fn add_hold(
        &self,
        term: TermSpec,
        token: Option<u64>,
        sent: Tick,
    ) -> Result<HoldId> {
        // If it was lost by the clock meanwhile, the store has just extended it, and no guard would
        // ever release that.
        let mut state = self.still_held(Phase::Reenter)?;
        state.token = state.token.or(token);
        let id = state.holds.add(term, sent);
        state.extended(&self.core, sent, term.ttl);
        Ok(id)
    }

    /// Gives one hold the term that the store has confirmed.
    pub(super) fn set_term(&self, hold: HoldId, term: TermSpec, sent: Tick) -> Result<()> {
        let mut state = self.still_held(Phase::Extend)?;
        state.holds.set(hold, term, sent);
        state.extended(&self.core, sent, term.ttl);
        Ok(())
    }

    /// Returns the state after the store has extended the lease, unless the lease is lost all the same.
    fn still_held(&self, phase: Phase) -> Result<MutexGuard<'_, LeaseState>> {
        let now = self.core.clock.now();
        let state = lock(&self.state);
        let Some(reason) = state.lost_reason(now) else { return Ok(state) };
        drop(state);
        self.lose_after(reason.clone(), true);
        Err(self.lost_error(reason, phase))
    }

    pub(crate) fn ensure_held(&self, phase: Phase) -> Result<()> {
        match self.lost_reason() {
            Some(reason) => Err(self.lost_error(reason, phase)),
            None => Ok(()),
        }
    }

    pub(super) fn lost_error(&self, reason: LostReason, phase: Phase) -> Error {
        Error::Lost { lock: self.resource.name.clone(), phase, reason }
    }
}

/// What the watchdog must do with a lease.
pub(crate) enum Todo {
    /// It has ended.
    Nothing,
    /// Check again at this time.
    Later(Tick),
    /// Ask the store, and check again at this time whatever the outcome.
    Ask(Renew, Tick),
}

/// The checks of the watchdog.
impl Lease {
    /// Checks it: signals the loss when the deadline is near, and asks the store when that is due
    /// by `soon`, so that one request covers many leases.
    pub(crate) fn check(&self, now: Tick, soon: Tick) -> Todo {
        let mut state = lock(&self.state);
        if state.status != Status::Held {
            return Todo::Nothing;
        }
        if now + state.ahead() >= state.deadline {
            let reason = state.why_late();
            drop(state);
            self.lose(reason);
            return Todo::Nothing;
        }
        // Ahead of time by no more than a fraction of the lease.
        let soon = soon.min(now + state.period(&self.core) / 4);
        if state.asking || soon < state.ask_at {
            let due = state.due();
            return Todo::Later(due);
        }
        state.asking = true;
        let ttl = match self.core.restores_ttl(&self.resource) {
            true => state.remaining_ttl(now),
            false => state.holds.renewed_ttl(),
        };
        state.reschedule(&self.core);
        let renew = self.renewal(ttl);
        Todo::Ask(renew, state.due())
    }

    /// Processes the store's answer to the request that [`check`](Lease::check) returned, sent at
    /// `sent`.
    pub(crate) fn answered(&self, ttl: Option<u64>, answer: Result<Renewed, Fault>, sent: Tick) {
        let now = self.core.clock.now();
        let mut state = lock(&self.state);
        state.asking = false;
        if state.status == Status::Released {
            self.ended.notify_waiters();
        }
        let ran = matches!(answer, Ok(Renewed::Held(_)) | Err(Fault::Unacknowledged { .. }));
        let lost = match (&state.status, answer) {
            (Status::Released, _) => return,
            (Status::Lost(reason), _) => Some(reason.clone()),
            // The process was stopped past the deadline, and the answer had arrived meanwhile.
            (Status::Held, _) if now >= state.deadline => Some(state.why_late()),
            (Status::Held, Ok(Renewed::Held(found))) => {
                (state.failures, state.unacknowledged) = (0, false);
                state.ask_after(&self.core, sent);
                self.confirmed(&mut state, ttl, found, (sent, now));
                None
            }
            (Status::Held, Ok(Renewed::Gone | Renewed::Waiting | Renewed::Due)) => {
                Some(LostReason::Deleted)
            }
            (Status::Held, Ok(Renewed::Taken) | Err(Fault::WrongKind { .. })) => {
                Some(LostReason::Taken)
            }
            (Status::Held, Err(fault)) => {
                self.note(&fault);
                state.unacknowledged = matches!(fault, Fault::Unacknowledged { .. });
                let pause =
                    self.core.options.backoff(state.failures).min(state.period(&self.core) / 4);
                state.ask_at = now + pause;
                state.failures += 1;
                None
            }
        };
        let Some(reason) = lost else { return state.reschedule(&self.core) };
        drop(state);
        // Where parts can have what the whole lacks, some of them may have extended it in any case.
        let extended = || ran || self.core.leaves_remains(&self.resource.name);
        self.lose_after(reason, ttl.is_some() && extended());
    }

    /// Resolves when no request of the watchdog about it is under way, after its end.
    pub(super) async fn no_renewal_under_way(&self) {
        loop {
            let answered = self.ended.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            if !lock(&self.state).asking {
                return;
            }
            answered.await;
        }
    }

    fn confirmed(
        &self,
        state: &mut LeaseState,
        ttl: Option<u64>,
        found: Ttl,
        (sent, now): (Tick, Tick),
    ) {
        // The TTL that the store found at some time between `sent` and `now`. If even the later
        // time puts its end before the deadline, the clock of the store has jumped.
        if let Ttl::For(left) = found {
            let found = left.as_millis() as u64;
            if now + left < state.deadline
                && !(ttl.is_some() && self.core.restores_ttl(&self.resource))
            {
                tracing::warn!(lock = %self.resource.name, found_ms = found,
                    "the store's clock runs ahead: less of the lease was left than was due");
                state.deadline = (sent + left).minus(self.core.drift(found));
            }
        }
        // Only by the terms that remain: the release of another hold meanwhile has shortened the TTL
        // after this renewal.
        if let Some(ttl) = ttl.min(state.holds.renewed_ttl()) {
            tracing::trace!(lock = %self.resource.name, owner = %self.owner, "renewed");
            state.deadline = state.deadline.max(deadline(&self.core, sent, ttl));
        }
    }

    /// The store does not have it: it is lost, for a reason that [`answered`](Lease::answered) gets later.
    pub(super) fn vanish(&self) {
        lock(&self.state).vanished = true;
        // For `run`, which ends its work at once.
        self.ended.notify_waiters();
    }

    /// Makes the watchdog ask the store at once, because the connection was lost for a while. A request that
    /// is under way does not count.
    pub(crate) fn check_now(&self) {
        let mut state = lock(&self.state);
        state.checked_since = self.core.clock.now();
        state.ask_after(&self.core, Tick::from_nanos(0));
        state.reschedule(&self.core);
    }
}

impl LeaseState {
    /// Whether the reason of its loss is known, and its front belongs to the next local waiter.
    fn is_settled(&self) -> bool {
        !(self.passing_front || self.vanished && self.status == Status::Held)
    }

    /// Returns why it is no longer held.
    fn lost_reason(&self, now: Tick) -> Option<LostReason> {
        match &self.status {
            Status::Lost(reason) => Some(reason.clone()),
            Status::Released => Some(LostReason::Released),
            Status::Held => (self.vanished || now >= self.deadline).then(|| self.why_late()),
        }
    }

    /// The loss reason of a passed deadline, or while another is looked up.
    pub(super) fn why_late(&self) -> LostReason {
        match self.holds.renewed_ttl() {
            _ if self.vanished => LostReason::Deleted,
            Some(_) if self.unacknowledged => LostReason::Unacknowledged,
            Some(_) => LostReason::Unreachable,
            None => LostReason::Expired,
        }
    }

    /// The interval of renewals: a third of the lease.
    pub(super) fn period(&self, core: &Core) -> Duration {
        let third = |ttl: u64| Duration::from_nanos(ttl.saturating_mul(1_000_000) / 3);
        let period =
            self.holds.renewed_ttl().map_or_else(|| core.options.watchdog_timeout / 3, third);
        period.min(self.look_every)
    }

    /// The store has extended the lease to `ttl` from `sent` on.
    fn extended(&mut self, core: &Core, sent: Tick, ttl: u64) {
        self.deadline = self.deadline.max(deadline(core, sent, ttl));
        self.ask_after(core, sent);
        self.reschedule(core);
    }

    /// Returns the TTL that the holds need from `now` on; `None` when their terms have passed.
    pub(super) fn remaining_ttl(&self, now: Tick) -> Option<u64> {
        self.holds.remaining_ttl(now).max(self.left_for(now)).filter(|ttl| *ttl > 0)
    }

    /// For how many milliseconds the lock must stay held after its guards are released.
    pub(super) fn left_for(&self, now: Tick) -> Option<u64> {
        self.held_until.map(|until| until.since(now).as_millis() as u64)
    }

    /// Schedules the next request of the watchdog after one that was sent at `sent`.
    pub(super) fn ask_after(&mut self, core: &Core, sent: Tick) {
        self.ask_at = if self.deadline == Tick::NEVER {
            // A lease without an end is not checked: the store does not record its owner.
            Tick::NEVER
        } else if sent < self.checked_since {
            Tick::from_nanos(0)
        } else {
            sent + self.period(core)
        };
    }

    /// How long before the deadline the loss is signalled.
    pub(super) fn ahead(&self) -> Duration {
        let lease = self.deadline.as_nanos().saturating_sub(self.begun.as_nanos());
        SIGNAL_AHEAD.min(Duration::from_nanos(lease / 8))
    }

    /// When the watchdog must check it next.
    pub(super) fn due(&self) -> Tick {
        let deadline = self.deadline.minus(self.ahead());
        if self.asking { deadline } else { deadline.min(self.ask_at) }
    }

    pub(super) fn reschedule(&self, core: &Core) {
        if let Some(slot) = self.slot {
            core.registry.set_due(slot, self.due());
        }
    }

    /// Leaves the registry and returns the front of the local queue.
    fn leave(&mut self, core: &Core) -> Option<Front> {
        if let Some(slot) = self.slot.take() {
            core.registry.remove(slot);
        }
        self.front.take()
    }
}

/// Until when a lease is safe that was requested at `sent`.
pub(super) fn deadline(core: &Core, sent: Tick, ttl: u64) -> Tick {
    if ttl == TermSpec::ENDLESS.ttl {
        return Tick::NEVER;
    }
    sent.plus_millis(ttl).minus(core.drift(ttl))
}
