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

use super::claim::{self, Claim};
use super::gate::Seat;
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

/// See the module.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) core: Arc<Core>,
    pub(crate) resource: Resource,
    pub(crate) owner: OwnerId,
    pub(crate) granted: Tick,
    /// The same by the wall clock, once it was asked for: it does not move when that clock does.
    since: OnceLock<SystemTime>,
    /// How many permits it has.
    pub(crate) permits: u32,
    /// Whether its owner may hold it more than once.
    pub(crate) reentrant: bool,
    /// How tokens are issued to its owner, if they are.
    pub(crate) fenced: Option<Fenced>,
    /// The named owner, if it was acquired by one.
    pub(crate) named: Option<Owner>,
    /// Requests about this lease go one at a time.
    pub(super) turn: AsyncMutex<()>,
    pub(super) state: Mutex<State>,
    /// A release got no answer: its caller need not wait for ever.
    pub(super) in_trouble: AtomicBool,
    ended: Notify,
    /// Until when an acquire of it that got no answer may take effect, where it cannot be revoked.
    late: Option<Tick>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) status: Status,
    /// Until when it is safe to act: before the lease can end at the store.
    pub(super) deadline: Tick,
    pub(super) holds: Vec<(HoldId, Term)>,
    next_hold: HoldId,
    pub(super) seat: Option<Seat>,
    /// Until when the lock must stay though its guards are gone.
    pub(super) floor: Option<Tick>,
    /// When the watchdog is to ask the store about it.
    pub(super) ask_at: Tick,
    /// An answer is still to come.
    pub(super) asking: bool,
    pub(super) failures: u32,
    /// Where the watchdog keeps it.
    slot: Option<usize>,
    /// When it was asked for.
    begun: Tick,
    pub(super) token: Option<u64>,
    /// The longest time between two looks.
    look_every: Duration,
    /// The shortest time to live that a partial release without an answer may still set, where it
    /// cannot be revoked.
    pub(super) cut: Option<u64>,
}

/// How often a reader is looked after at least. Redisson's renewal of one reader cuts the whole lock
/// to its own 30 s; this puts it back in time.
const REASSERT: Duration = Duration::from_secs(10);

/// The loss is signalled this much before the deadline: tokio's timers fire up to a millisecond
/// late.
const SIGNAL_AHEAD: Duration = Duration::from_millis(2);

impl Lease {
    /// What others are told of it.
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

    /// Takes over from `claim` and from the seat it was won on. Nothing, if the deadline has passed
    /// already: then it is no grant, and the claim undoes it.
    pub(crate) fn begin(
        claim: Claim,
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
            fenced: request.fenced,
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
                // Without it others of this client may try at once.
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
        // A client that is closed in this very moment has not seen it in the registry.
        if core.was_closed() {
            lease.close();
        }
        Ok(lease)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.lost_reason().is_none()
    }

    /// Why it is not held any more; reads the clock.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        // Before the state, whose lock another thread may have had at the moment of the fork.
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

    /// Resolves when it is held no longer.
    pub(crate) async fn lost(self: Arc<Self>) -> LostReason {
        // In a forked child nothing of the parent's is listened to.
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

    /// Ends it, once. The seat passes on, so that local waiters try for themselves.
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

    /// Marks it released; whoever does so sends the release. The seat is theirs.
    pub(super) fn finish(&self, state: &mut State) -> Option<Seat> {
        if state.status == Status::Held {
            state.status = Status::Released;
        }
        state.leave(&self.core)
    }

    /// What must happen outside of the state's lock when it has ended.
    pub(super) fn after_end(&self, seat: Option<Seat>) {
        drop(seat);
        self.ended.notify_waiters();
        if let Some(owner) = &self.named {
            self.core.owners.tidy(&self.resource, owner);
        }
    }

    /// The client is shut down: lost to whoever holds it, and given back.
    pub(crate) fn close(self: &Arc<Self>) {
        if self.lose(LostReason::Closed) {
            self.undo();
        }
    }

    /// Releases all of it in the background.
    pub(super) fn undo(&self) {
        let now = self.core.clock.now();
        let ends = now + self.longest();
        let left = lock(&self.state).floor.map(|floor| floor.since(now).as_millis() as u64);
        let release = match left {
            // One of its guards left the lock standing, which is not to be undone.
            Some(ttl) if ttl > 0 => Release { ttl: Some(ttl), leave: true, ..self.release_of(1) },
            _ => self.release_of(0),
        };
        let core = Arc::clone(&self.core);
        self.core.reaper.adopt(Box::pin(claim::undo(core, release, ends, Some(ends))));
    }

    /// After its end: where an acquire of it got no answer and cannot be revoked, releases it again and
    /// again until that one's time to live would have ended, or else it could leave a hold behind. Not
    /// before `stands`, until when the lock was left standing.
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
            claim::undo(core, release, late, Some(late)).await;
        }));
    }

    /// How long the store may keep it from now on if nothing more is sent.
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

    /// Holds it once more. Bears with a store that does not answer until `give_up`.
    pub(crate) async fn reenter(
        self: Arc<Self>,
        spec: TermSpec,
        fenced: Option<Fenced>,
        give_up: Tick,
    ) -> Result<HoldId> {
        // Before the turn, which in a forked child never comes.
        self.ensure_held(Phase::Reenter)?;
        let _turn = self.turn.lock().await;
        let mut failures = 0;
        loop {
            self.ensure_held(Phase::Reenter)?;
            let sent = self.core.clock.now();
            let request = Acquire {
                count: self.hold_count() + 1,
                // A token is the owner's, not the hold's: a second one is asked for by nobody.
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
                // The store may count one hold more than there are. That is harmless: a release
                // says how many stay.
                Err(fault) => return Err(self.core.error(fault, &self.resource, Phase::Reenter)),
            }
        }
    }

    fn add_hold(&self, spec: TermSpec, token: Option<u64>, sent: Tick) -> Result<HoldId> {
        // If it was lost by the clock while the store was asked, the store has just made it live
        // longer, and nobody would ever give that back.
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

    /// Gives one guard a new term, from now on.
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

    /// The state, after the store has just lengthened the lease; if it is lost all the same, by the
    /// clock or otherwise, that is undone. Loss is terminal: no answer revives a guard.
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
    /// By which clock reason a passed deadline goes.
    pub(super) fn why_late(&self) -> LostReason {
        match self.renewed_ttl() {
            Some(_) => LostReason::Unreachable,
            None => LostReason::Expired,
        }
    }

    /// What the watchdog renews, if any hold is without a fixed end.
    pub(super) fn renewed_ttl(&self) -> Option<u64> {
        let ttls = self.holds.iter().filter_map(|(_, term)| match term {
            Term::Renewed(ttl) => Some(*ttl),
            Term::Fixed(_) => None,
        });
        ttls.max()
    }

    /// How often the store is asked: every third of the lease.
    pub(super) fn period(&self, core: &Core) -> Duration {
        let lease = self.renewed_ttl().map_or(core.options.watchdog_timeout, Duration::from_millis);
        let lease = self.cut(core).map_or(lease, |cut| lease.min(Duration::from_millis(cut)));
        (lease / 3).min(self.look_every)
    }

    /// A request may cut the time to live to `ttl`, and come late. Answers what was so before.
    pub(super) fn may_be_cut(&mut self, ttl: u64) -> Option<u64> {
        let shorter = self.cut.map_or(ttl, |cut| cut.min(ttl));
        self.cut.replace(shorter)
    }

    /// What a request without an answer may cut the time to live to, at any time. Until it is answered,
    /// any may be one that is not.
    pub(super) fn cut(&self, core: &Core) -> Option<u64> {
        self.cut.filter(|_| !core.backend.capabilities().fences_lost_requests)
    }

    /// Until when it is safe after the store was told `ttl` at `sent`: a cut leaves at least its own
    /// time to live, from then on.
    pub(super) fn safe_until(&self, core: &Core, sent: Tick, ttl: u64) -> Tick {
        deadline(core, sent, self.cut(core).map_or(ttl, |cut| ttl.min(cut)))
    }

    /// The store was asked, or told, at `sent`.
    pub(super) fn ask_after(&mut self, core: &Core, sent: Tick) {
        // What has no end is not asked about: the store does not know whose it is.
        let endless = self.deadline == Tick::NEVER;
        self.ask_at = if endless { Tick::NEVER } else { sent + self.period(core) };
    }

    /// How long before the deadline the loss is signalled.
    pub(super) fn ahead(&self) -> Duration {
        let shortest = self.deadline.since(self.begun) / 8;
        SIGNAL_AHEAD.min(shortest)
    }

    /// When the watchdog must look at it next.
    pub(super) fn due(&self) -> Tick {
        let deadline = self.deadline.minus(self.ahead());
        if self.asking { deadline } else { deadline.min(self.ask_at) }
    }

    pub(super) fn reschedule(&self, core: &Core) {
        if let Some(slot) = self.slot {
            core.registry.set_due(slot, self.due());
        }
    }

    /// Out of the registry, and off the seat.
    fn leave(&mut self, core: &Core) -> Option<Seat> {
        if let Some(slot) = self.slot.take() {
            core.registry.remove(slot);
        }
        self.seat.take()
    }
}

/// Until when a lease is safe that was asked for at `sent`.
pub(super) fn deadline(core: &Core, sent: Tick, ttl: u64) -> Tick {
    if ttl == TermSpec::ENDLESS.ttl {
        return Tick::NEVER;
    }
    (sent + Duration::from_millis(ttl)).minus(core.drift(ttl))
}

/// Whether a kind of lock can be re-entered.
pub(crate) fn reentrant(kind: Kind) -> bool {
    match kind {
        Kind::Lock | Kind::Fair | Kind::Read | Kind::Write => true,
        Kind::Mutex | Kind::Semaphore | Kind::Permits | Kind::Latch => false,
    }
}
