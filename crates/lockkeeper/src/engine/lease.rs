//! A lease: all holds of one owner on one name, and until when they are safe.
//!
//! | state | event | becomes | by |
//! |---|---|---|---|
//! | Held | renewed, re-entered or extended in time | Held, later deadline | watchdog, re-entry, extend |
//! | Held | one of several guards is released | Held, earlier deadline if the others asked for less | release |
//! | Held | the store had less time left than expected | Held, earlier deadline | watchdog |
//! | Held | the deadline is near, or has passed | Lost (Expired, Unreachable) | watchdog, re-entry, extend |
//! | Held | a guard is released, and the terms of the others have passed | Lost (Expired) | release |
//! | Held | the store answers that it is deleted or another's | Lost (Deleted, Taken) | watchdog, re-entry, extend, partial release |
//! | Held | a notice of a force-release | Lost (Revoked) | presence |
//! | Held | the client is shut down or abandoned, its runtime ends | Lost (Closed) | client, watchdog |
//! | Held | its last guard is released, its permits are forgotten | Released | release |
//! | Lost, Released | any | unchanged | — |
//! | any | the process is forked | reads as Lost (Closed) in the child | — |
//!
//! Loss is final. A renewal that succeeds after it is undone.
//!
//! [`Lease::lost`] also resolves when the lock is released, with `Released`: a task that waits for it
//! must be able to end.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex as AsyncMutex, Notify};

use super::local_queue::Seat;
use super::pending_acquire::{self, PendingAcquire};
use super::request::{Request, Term, TermSpec};
use super::{Core, Tick, lock};
use crate::backend::{
    Acquire, Attempt, Fault, Fenced, Holding, Kind, Release, Renew, Renewed, Resource,
};
use crate::error::{Error, LostReason, Phase, Result};
use crate::{Owner, OwnerId};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Status {
    Held,
    Lost(LostReason),
    Released,
}

/// The number of a hold within its lease: which guard it belongs to.
pub(crate) type HoldId = u32;

/// See the module for its states.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) core: Arc<Core>,
    pub(crate) resource: Resource,
    pub(crate) owner: OwnerId,
    pub(crate) granted: Tick,
    /// The same by the wall clock, from the first time it is asked for: it does not change when
    /// that clock is set.
    since: OnceLock<SystemTime>,
    /// How many permits it has.
    pub(crate) permits: u32,
    /// Whether its owner may hold it more than once.
    pub(crate) reentrant: bool,
    /// The named owner, if there is one.
    pub(crate) named: Option<Owner>,
    /// Requests about this lease go one at a time.
    pub(super) turn: AsyncMutex<()>,
    pub(super) state: Mutex<State>,
    /// A release got no answer: its caller stops waiting after `unreachable_after`.
    pub(super) in_trouble: AtomicBool,
    ended: Notify,
    /// Until when an unanswered acquire of it may still execute, where it cannot be revoked.
    late: Option<Tick>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) status: Status,
    /// Until when the hold is safe: earlier than the lease can expire at the store.
    pub(super) deadline: Tick,
    pub(super) holds: Vec<(HoldId, Term)>,
    next_hold: HoldId,
    pub(super) seat: Option<Seat>,
    /// Until when the lock must stay held after its guards are released.
    pub(super) floor: Option<Tick>,
    /// When the watchdog asks the store about it.
    pub(super) ask_at: Tick,
    /// A request of the watchdog is under way.
    pub(super) asking: bool,
    pub(super) failures: u32,
    /// Its index in the registry.
    slot: Option<usize>,
    /// When the acquire was sent.
    begun: Tick,
    pub(super) token: Option<u64>,
    /// The longest time between two requests of the watchdog.
    look_every: Duration,
    /// The shortest TTL that an unanswered partial release may still set, where it cannot be
    /// revoked.
    pub(super) cut: Option<u64>,
}

/// The longest renewal interval of a reader. Redisson's renewal of one reader sets the TTL of the
/// whole lock to its own 30 s; this interval restores it in time.
const REASSERT: Duration = Duration::from_secs(10);

/// The loss is signalled this long before the deadline: tokio's timers fire up to a millisecond
/// late.
const SIGNAL_AHEAD: Duration = Duration::from_millis(2);

impl Lease {
    /// Its entry in the client's announcement.
    pub(super) fn holding(&self, now: Tick) -> Holding {
        let since = self.since.get_or_init(|| {
            let wall = SystemTime::now();
            wall.checked_sub(now.since(self.granted)).unwrap_or(wall)
        });
        Holding {
            owner: self.owner,
            resource: self.resource.clone(),
            count: self.permits,
            since: *since,
            left: None,
        }
    }

    /// Takes over from `claim` and from its seat. Fails with the seat if the deadline has passed
    /// already: then the claim undoes the grant.
    pub(crate) fn begin(
        claim: PendingAcquire,
        mut seat: Seat,
        seated: bool,
        request: &Request,
        token: Option<u64>,
        (sent, now): (Tick, Tick),
    ) -> std::result::Result<Arc<Self>, Seat> {
        let (core, spec) = (&Arc::clone(&claim.core), request.term);
        let deadline = deadline(core, sent, spec.ttl);
        if now >= deadline {
            return Err(seat);
        }
        seat.leave_subscription();
        let lease = Arc::new(Self {
            core: Arc::clone(core),
            resource: claim.resource.clone(),
            owner: claim.owner,
            granted: now,
            since: OnceLock::new(),
            permits: request.count,
            reentrant: request.reentrant && reentrant(request.resource.kind),
            named: request.owner.clone(),
            turn: AsyncMutex::new(()),
            in_trouble: AtomicBool::new(false),
            ended: Notify::new(),
            late: claim.late(),
            state: Mutex::new(State {
                status: Status::Held,
                deadline,
                holds: vec![(0, spec.sent_at(sent))],
                next_hold: 1,
                // Without the seat, other tasks of this client may try at once.
                seat: Some(seat).filter(|_| seated),
                floor: None,
                ask_at: Tick::NEVER,
                asking: false,
                failures: 0,
                slot: None,
                begun: sent,
                token,
                look_every: match request.resource.kind {
                    Kind::Read => REASSERT,
                    _ => Duration::MAX,
                },
                cut: None,
            }),
        });
        claim.disarm();
        if let Some(owner) = &lease.named {
            core.owners.set(owner, &lease);
        }
        let mut state = lock(&lease.state);
        state.ask_after(core, sent);
        let due = state.due();
        state.slot = Some(core.registry.add(&lease, due));
        drop(state);
        // A client that is closed concurrently may not have found it in the registry.
        if core.was_closed() {
            lease.close();
        }
        Ok(lease)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.lost_reason().is_none()
    }

    /// Returns why it is no longer held, by its state and the clock.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        // Before the state, whose mutex another thread may have held at the moment of the fork.
        if self.core.home.is_forked() {
            return Some(LostReason::Closed);
        }
        let now = self.core.clock.now();
        let state = lock(&self.state);
        match &state.status {
            Status::Lost(reason) => Some(reason.clone()),
            Status::Released => Some(LostReason::Released),
            Status::Held if now >= state.deadline => Some(state.why_late()),
            Status::Held => None,
        }
    }

    pub(crate) fn deadline(&self) -> Tick {
        lock(&self.state).deadline
    }

    pub(crate) fn token(&self) -> Option<u64> {
        lock(&self.state).token
    }

    pub(crate) fn hold_count(&self) -> u32 {
        lock(&self.state).holds.len() as u32
    }

    /// Resolves when it is no longer held.
    pub(crate) async fn lost(self: Arc<Self>) -> LostReason {
        // A forked child must not wait on what it shares with the parent.
        if self.core.home.is_forked() {
            return LostReason::Closed;
        }
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if let Some(reason) = self.lost_reason() {
                return reason;
            }
            ended.await;
        }
    }

    /// Declares it lost, once. The seat goes to the next local waiter, which tries for itself.
    pub(crate) fn lose(&self, reason: LostReason) -> bool {
        let mut state = lock(&self.state);
        if state.status != Status::Held {
            return false;
        }
        state.status = Status::Lost(reason.clone());
        let left = state.leave(&self.core);
        drop(state);
        tracing::warn!(lock = %self.resource.name, owner = %self.owner, %reason, "lock lost");
        self.after_end(left);
        true
    }

    /// Marks it released and returns its seat. The caller sends the release.
    pub(super) fn finish(&self, state: &mut State) -> Option<Seat> {
        if state.status == Status::Held {
            state.status = Status::Released;
        }
        state.leave(&self.core)
    }

    /// Completes its end, outside of the state's mutex.
    pub(super) fn after_end(&self, seat: Option<Seat>) {
        drop(seat);
        self.ended.notify_waiters();
        if let Some(owner) = &self.named {
            self.core.owners.tidy(&self.resource, owner);
        }
    }

    /// Declares it lost and releases it, because the client is shut down.
    pub(crate) fn close(self: &Arc<Self>) {
        if self.lose(LostReason::Closed) {
            self.undo();
        }
    }

    /// Releases all its holds in the background.
    pub(super) fn undo(&self) {
        let now = self.core.clock.now();
        let ends = now + self.longest();
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
    /// hold behind. Starts at `stands`, until when the lock was left held.
    pub(super) fn undo_late(&self, stands: Option<Tick>) {
        let fences = || self.core.backend.capabilities().fences_lost_requests;
        let Some(late) = self.late.filter(|late| *late > self.core.clock.now() && !fences()) else {
            return;
        };
        let (core, release) = (Arc::clone(&self.core), self.release_of(0));
        self.core.reaper.adopt(Box::pin(async move {
            if let Some(stands) = stands.and_then(|stands| core.clock.instant(stands)) {
                tokio::time::sleep_until(stands).await;
            }
            pending_acquire::undo(core, release, late, Some(late)).await;
        }));
    }

    /// How long the store may keep it if nothing more is sent.
    pub(super) fn longest(&self) -> Duration {
        let now = self.core.clock.now();
        let state = lock(&self.state);
        if state.deadline == Tick::NEVER {
            return super::RETRY_COUNTERS;
        }
        let by_deadline = state.deadline.since(now) + self.core.options.response_timeout;
        by_deadline.max(state.renewed_ttl().map(Duration::from_millis).unwrap_or_default())
    }

    pub(super) fn release_of(&self, keep: u32) -> Release {
        let count = self.permits;
        Release { keep, count, ..Release::new(self.resource.clone(), self.owner) }
    }

    pub(super) fn renewal(&self, ttl: Option<u64>) -> Renew {
        let count = self.permits;
        Renew { count, ..Renew::new(self.resource.clone(), self.owner, ttl) }
    }

    /// Re-enters it. Retries on a store that does not answer, until `give_up`.
    pub(crate) async fn reenter(
        self: Arc<Self>,
        spec: TermSpec,
        fenced: Option<Fenced>,
        give_up: Tick,
    ) -> Result<HoldId> {
        // Before the turn, which never comes in a forked child.
        self.ensure_held(Phase::Reenter)?;
        let _turn = self.turn.lock().await;
        let mut failures = 0;
        loop {
            self.ensure_held(Phase::Reenter)?;
            let sent = self.core.clock.now();
            let request = Acquire {
                count: self.hold_count() + 1,
                // A token belongs to the owner, not to the hold: no second one is issued.
                fenced: fenced
                    .filter(|_| self.token().is_none() && self.resource.kind != Kind::Read),
                ..Acquire::new(self.resource.clone(), self.owner, spec.ttl)
            };
            let answer = self.core.backend.acquire(request).await;
            self.core.note(sent, &answer);
            match answer {
                Ok(Attempt::Granted { token }) => return self.add_hold(spec, token, sent),
                Ok(_) => {
                    self.lose(LostReason::Deleted);
                    self.ensure_held(Phase::Reenter)?;
                }
                Err(fault) if fault.may_pass() && self.core.clock.now() < give_up => {
                    tokio::time::sleep(self.core.backoff(failures)).await;
                    failures += 1;
                }
                // The store may count one hold too many. That is harmless: a release states how
                // many remain.
                Err(fault) => return Err(self.core.error(fault, &self.resource, Phase::Reenter)),
            }
        }
    }

    fn add_hold(&self, spec: TermSpec, token: Option<u64>, sent: Tick) -> Result<HoldId> {
        // If it was lost by the clock meanwhile, the store has just extended it, and no guard would
        // ever release that.
        let mut state = self.still_held(Phase::Reenter)?;
        state.token = state.token.or(token);
        let id = state.next_hold;
        state.next_hold = state.next_hold.wrapping_add(1);
        state.holds.push((id, spec.sent_at(sent)));
        state.deadline = state.deadline.max(state.safe_until(&self.core, sent, spec.ttl));
        state.ask_after(&self.core, sent);
        state.reschedule(&self.core);
        Ok(id)
    }

    /// Gives one guard a new term, starting now.
    pub(crate) async fn extend(self: Arc<Self>, hold: HoldId, spec: TermSpec) -> Result<()> {
        let ttl = spec.ttl;
        self.ensure_held(Phase::Extend)?;
        let _turn = self.turn.lock().await;
        self.ensure_held(Phase::Extend)?;
        let sent = self.core.clock.now();
        let renew = self.renewal(Some(ttl));
        let answer = self.core.backend.renew(vec![renew]).await.pop();
        let answer = answer.unwrap_or(Err(Fault::Closed));
        self.core.note(sent, &answer);
        match answer {
            Ok(Renewed::Held(_)) => {}
            Ok(Renewed::Taken) => _ = self.lose(LostReason::Taken),
            Ok(_) => _ = self.lose(LostReason::Deleted),
            Err(fault) => return Err(self.core.error(fault, &self.resource, Phase::Extend)),
        }
        let mut state = self.still_held(Phase::Extend)?;
        if let Some(entry) = state.holds.iter_mut().find(|(id, _)| *id == hold) {
            entry.1 = spec.sent_at(sent);
        }
        state.deadline = state.deadline.max(state.safe_until(&self.core, sent, ttl));
        state.ask_after(&self.core, sent);
        state.reschedule(&self.core);
        Ok(())
    }

    /// Returns the state after the store has extended the lease. If the lease is lost all the same,
    /// undoes that: loss is final, and no answer revives a guard.
    fn still_held(&self, phase: Phase) -> Result<MutexGuard<'_, State>> {
        let now = self.core.clock.now();
        let state = lock(&self.state);
        let reason = match &state.status {
            Status::Held if now < state.deadline => return Ok(state),
            Status::Held => state.why_late(),
            Status::Lost(reason) => reason.clone(),
            Status::Released => LostReason::Released,
        };
        drop(state);
        self.lose(reason.clone());
        if reason != LostReason::Released {
            self.undo();
        }
        Err(self.lost_error(reason, phase))
    }

    pub(crate) fn ensure_held(&self, phase: Phase) -> Result<()> {
        match self.lost_reason() {
            Some(reason) => Err(self.lost_error(reason, phase)),
            None => Ok(()),
        }
    }

    fn lost_error(&self, reason: LostReason, phase: Phase) -> Error {
        Error::Lost { lock: self.resource.name.clone(), phase, reason }
    }
}

impl State {
    /// The loss reason of a passed deadline.
    pub(super) fn why_late(&self) -> LostReason {
        match self.renewed_ttl() {
            Some(_) => LostReason::Unreachable,
            None => LostReason::Expired,
        }
    }

    /// The TTL that the watchdog renews, if any hold has no fixed end.
    pub(super) fn renewed_ttl(&self) -> Option<u64> {
        let ttls = self.holds.iter().filter_map(|(_, term)| match term {
            Term::Renewed(ttl) => Some(*ttl),
            Term::Fixed(_) => None,
        });
        ttls.max()
    }

    /// The interval of renewals: a third of the lease.
    pub(super) fn period(&self, core: &Core) -> Duration {
        let lease = self.renewed_ttl().map_or(core.options.watchdog_timeout, Duration::from_millis);
        let lease = self.cut(core).map_or(lease, |cut| lease.min(Duration::from_millis(cut)));
        (lease / 3).min(self.look_every)
    }

    /// Notes that a request may cut the TTL to `ttl`, and may execute late. Returns the previous
    /// value.
    pub(super) fn may_be_cut(&mut self, ttl: u64) -> Option<u64> {
        let shorter = self.cut.map_or(ttl, |cut| cut.min(ttl));
        self.cut.replace(shorter)
    }

    /// The TTL that an unanswered request may set at any time. A request that is under way counts
    /// as unanswered.
    pub(super) fn cut(&self, core: &Core) -> Option<u64> {
        self.cut.filter(|_| !core.backend.capabilities().fences_lost_requests)
    }

    /// Until when it is safe after a request with `ttl` was sent at `sent`: a late cut leaves at
    /// least its own TTL from its execution on.
    pub(super) fn safe_until(&self, core: &Core, sent: Tick, ttl: u64) -> Tick {
        deadline(core, sent, self.cut(core).map_or(ttl, |cut| ttl.min(cut)))
    }

    /// Schedules the next request of the watchdog after one that was sent at `sent`.
    pub(super) fn ask_after(&mut self, core: &Core, sent: Tick) {
        // A lease without an end is not checked: the store does not record its owner.
        let endless = self.deadline == Tick::NEVER;
        self.ask_at = if endless { Tick::NEVER } else { sent + self.period(core) };
    }

    /// How long before the deadline the loss is signalled.
    pub(super) fn ahead(&self) -> Duration {
        let shortest = self.deadline.since(self.begun) / 8;
        SIGNAL_AHEAD.min(shortest)
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

    /// Leaves the registry and returns the seat.
    fn leave(&mut self, core: &Core) -> Option<Seat> {
        if let Some(slot) = self.slot.take() {
            core.registry.remove(slot);
        }
        self.seat.take()
    }
}

/// Until when a lease is safe that was requested at `sent`.
pub(super) fn deadline(core: &Core, sent: Tick, ttl: u64) -> Tick {
    if ttl == TermSpec::ENDLESS.ttl {
        return Tick::NEVER;
    }
    (sent + Duration::from_millis(ttl)).minus(core.drift(ttl))
}

/// Whether a kind of lock is reentrant.
pub(crate) fn reentrant(kind: Kind) -> bool {
    match kind {
        Kind::Lock | Kind::Fair | Kind::Read | Kind::Write => true,
        Kind::Mutex | Kind::Semaphore | Kind::Permits | Kind::Latch => false,
    }
}
