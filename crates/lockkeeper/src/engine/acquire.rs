//! The acquire loop: try, subscribe, try, wait. All primitives that wait use it, except the latch.
//!
//! **No wake-up is lost.** The count of wake-ups is read before each attempt, and a sleep ends as soon
//! as the count has changed. The first attempt after a confirmed subscription covers the time before
//! it. A wake-up that never arrives costs one re-check, a few seconds at most.
//!
//! **Nothing is left behind.** In the store there is only the hold or queue position of an armed
//! [`Claim`], and a subscription. Both undo themselves when dropped, and the reaper completes a request
//! under way before its claim is undone.
//!
//! **The wait limit limits the wait for a lock, not a round trip.** The loop waits for the answer to a
//! request under way for up to one response timeout, and a waiter whose last answer is old asks once
//! more. So `Ok(None)` always means busy. An error reply is an answer: the store then does not count as
//! unreachable.
//!
//! **Waiters beyond a crowd do not subscribe.** On Redis a release wakes all subscribers, so a busy
//! answer to a waiter says how many there are. From 16 clients on, a waiter polls two to four times a
//! second instead, and subscribes when there is room. At each wake-up some members of a crowd
//! unsubscribe, so that no client is kept out of it.

use std::sync::Arc;
use std::time::Duration;

use super::claim::{Attempting, Claim};
use super::gate::{Entered, Gates, Offer, Place, Seat, Turn};
use super::lease::{HoldId, Lease};
use super::registry::Kept;
use super::request::{Request, Seating, Wait, other_side};
use super::{Core, RETRY_COUNTERS, Tick, jittered, no_answer, until};
use crate::backend::{Attempt, CROWD, Fault, Kind, Resource, Topic, Ttl};
use crate::config::RECHECK;
use crate::error::{Error, Phase, Result};

/// At the wait limit, an answer older than this does not show that the store still answers: it is
/// asked once more.
const STALE: Duration = Duration::from_millis(250);

/// Re-check of those who are not told: mutex waiters, because others of the Redlock family do not
/// publish, and everybody without the right to subscribe.
pub(super) const POLL: Duration = Duration::from_millis(100);

/// Re-check of those who do not listen because enough others do.
const CROWDED: Duration = Duration::from_millis(500);

/// How many of a crowd leave it each time, about. Those who listen acquire the lock before those who look
/// now and then, and must not keep it among themselves.
const LEAVING: u64 = 2;

/// How often a waiting writer says that it still waits: the store forgets it after two seconds.
const INTENT: Duration = Duration::from_millis(1200);

/// A task that waits this long for a lock that its own client holds is told to the log.
const SUSPICIOUS: Duration = Duration::from_secs(5);

/// A hold that was acquired.
pub(crate) type Acquired = (Arc<Lease>, HoldId);

pub(super) async fn acquire_anew(core: &Arc<Core>, request: &Request) -> Result<Option<Acquired>> {
    let entered = match request.seating() {
        Seating::Exclusive => Gates::enter(core, &request.resource, || match request.wait {
            Wait::Never => None,
            _ => Some(Offer::new(core, request)),
        }),
        // Behind those who wait already; who only tries takes what is free.
        Seating::Waiting if request.wait != Wait::Never => {
            let offer = || Offer::new(core, request);
            match Gates::line_up(core, &request.resource, offer) {
                Some(place) => Entered::Queued(place),
                None => Entered::Seat(Gates::alone(core, &request.resource)),
            }
        }
        Seating::Waiting | Seating::Alone => Entered::Seat(Gates::alone(core, &request.resource)),
    };
    match entered {
        Entered::Seat(seat) if request.wait.limit() == Tick::NEVER => {
            // The first attempt, when nothing limits it. Most acquires end here; their futures are
            // kept small by leaving everything else to `run_on`.
            let mut drive = Drive::new(core, request);
            let (answer, sent, claim) = drive.first_attempt().await;
            match drive.judge(Refused { answer, claim, seat, seen: None, sent }) {
                Ok(acquired) => Ok(Some(acquired)),
                Err(refused) => Box::pin(drive.run_on(refused)).await,
            }
        }
        Entered::Seat(seat) => Box::pin(Drive::new(core, request).run(seat)).await,
        Entered::Taken => Ok(None),
        Entered::Queued(turn) => {
            // Waiting and what follows it are boxed each for itself: a waiter carries no room for
            // what comes after.
            let turn = Box::pin(queue(core, request, turn)).await;
            Box::pin(take_turn(core, request, turn)).await
        }
    }
}

/// Waits in the local queue; nothing when the wait limit comes first.
async fn queue(core: &Arc<Core>, request: &Request, mut turn: Place) -> Option<Turn> {
    let limit = request.wait.limit();
    let suspicious = core.clock.now() + SUSPICIOUS;
    let mut given = until(&core.clock, suspicious.min(limit), turn.wait()).await;
    if given.is_none() && suspicious < limit {
        if request.seating() == Seating::Exclusive {
            core.warn_waiting_for_itself(&request.resource);
        }
        given = until(&core.clock, limit, turn.wait()).await;
    }
    given.or_else(|| turn.failure().map(Turn::Failed))
}

/// What comes after the queue.
async fn take_turn(
    core: &Arc<Core>,
    request: &Request,
    turn: Option<Turn>,
) -> Result<Option<Acquired>> {
    let drive = Drive::new(core, request);
    match turn {
        // This waiter has not asked the store; whether it answers may be known all the same.
        None if core.is_silent() => Err(drive.unserved()),
        None => Ok(None),
        Some(Turn::Seat(seat)) => drive.run(seat).await,
        Some(Turn::Handed(seat, claim, token, sent)) => {
            match drive.begin(claim, seat, token, sent, core.clock.now()) {
                Ok(acquired) => Ok(Some(acquired)),
                Err(seat) => drive.run(seat).await,
            }
        }
        Some(Turn::Failed(fault)) => Err(core.error(fault, &request.resource, Phase::Acquire)),
    }
}

/// One acquire that has the seat.
struct Drive<'a> {
    core: &'a Arc<Core>,
    request: &'a Request,
    started: Tick,
    /// The time, as long as nothing was awaited since it was read.
    now: Option<Tick>,
    failures: u32,
    /// When the first of the attempts was sent that have failed in a row.
    failing_since: Option<Tick>,
    /// What the store said to the last of them, if it said something.
    refusal: Option<Fault>,
    polling: bool,
    /// When the store said "busy", if it has said nothing else since: what decides at the wait limit.
    busy: Option<Tick>,
    /// Told the log that it waits for its own client.
    warned: bool,
    /// How often it was busy in a row: what a spinning waiter goes by.
    spins: u32,
    /// The place in the store's queue that the watchdog keeps.
    kept: Option<Kept>,
}

/// What one round of the loop came to.
enum Round {
    Acquired(Acquired),
    /// With what is still to be given up: a place among the waiters.
    GaveUp(Option<Claim>),
    Again(Claim, Seat),
}

/// An attempt that did not end with the lock, and what it needs for the next.
struct Refused {
    answer: Result<Attempt, Fault>,
    claim: Claim,
    seat: Seat,
    /// How many wake-ups there had been before the attempt, if anybody listened.
    seen: Option<u64>,
    sent: Tick,
}

impl<'a> Drive<'a> {
    fn new(core: &'a Arc<Core>, request: &'a Request) -> Self {
        let started = core.clock.now();
        let now = Some(started);
        Self {
            core,
            request,
            started,
            now,
            failures: 0,
            failing_since: None,
            refusal: None,
            polling: false,
            busy: None,
            warned: false,
            spins: 0,
            kept: None,
        }
    }

    fn begin(
        &self,
        claim: Claim,
        seat: Seat,
        token: Option<u64>,
        sent: Tick,
        now: Tick,
    ) -> Result<Acquired, Seat> {
        let seated = self.request.seating() == Seating::Exclusive;
        let lease = Lease::begin(claim, seat, seated, self.request, token, (sent, now))?;
        tracing::debug!(lock = %lease.resource.name, owner = %lease.owner,
            waited = ?now.since(self.started), "acquired");
        Ok((lease, 0))
    }

    fn first_attempt(&self) -> Attempting {
        let claim = Claim::new(self.core, self.request);
        claim.attempt(self.request, self.started)
    }

    /// Grants what was granted in time.
    fn judge(&mut self, mut refused: Refused) -> Result<Acquired, Box<Refused>> {
        let Ok(Attempt::Granted { token }) = refused.answer else {
            return Err(Box::new(refused));
        };
        let now = self.core.clock.now();
        refused.seat.taken(now);
        let Refused { claim, seat, seen, sent, .. } = refused;
        self.begin(claim, seat, token, sent, now).map_err(|mut seat| {
            if seat.alone {
                // It told of this very claim.
                (seat.subscription, self.kept) = (None, None);
            }
            // Granted, but the answer took so long that the lease is over; the claim has undone it.
            let claim = Claim::new(self.core, self.request);
            Box::new(Refused { answer: Ok(Attempt::GRANTED), claim, seat, seen, sent })
        })
    }

    async fn run(mut self, seat: Seat) -> Result<Option<Acquired>> {
        let pause = seat.pause(self.started);
        if !pause.is_zero() {
            self.now = None;
            self.nap(pause).await;
        }
        let claim = Claim::new(self.core, self.request);
        self.rounds(claim, seat).await
    }

    async fn run_on(mut self, refused: Box<Refused>) -> Result<Option<Acquired>> {
        self.now = None;
        match self.refused(refused).await? {
            Round::Acquired(acquired) => Ok(Some(acquired)),
            Round::GaveUp(claim) => self.give_up(claim).await,
            Round::Again(claim, seat) => self.rounds(claim, seat).await,
        }
    }

    async fn rounds(&mut self, mut claim: Claim, mut seat: Seat) -> Result<Option<Acquired>> {
        loop {
            match self.round(claim, seat).await? {
                Round::Acquired(acquired) => return Ok(Some(acquired)),
                Round::GaveUp(claim) => return self.give_up(claim).await,
                Round::Again(same, still) => (claim, seat) = (same, still),
            }
        }
    }

    /// One attempt, and what follows from its answer.
    async fn round(&mut self, claim: Claim, seat: Seat) -> Result<Round> {
        let core = self.core;
        let seen = seat.subscription.as_ref().map(|subscription| subscription.seen());
        let sent = self.now.take().unwrap_or_else(|| core.clock.now());
        let patience = self.patience();
        if sent >= patience {
            return Err(self.unreachable());
        }
        let answer_by = core.answer_by(self.request.wait.limit(), sent);
        let attempt = claim.attempt(self.request, sent);
        let Some((answer, sent, claim)) =
            until(&core.clock, answer_by.min(patience), attempt).await
        else {
            if patience < answer_by {
                return Err(self.unreachable());
            }
            self.busy = None;
            self.failing_since.get_or_insert(sent);
            return Ok(Round::GaveUp(None));
        };
        match self.judge(Refused { answer, claim, seat, seen, sent }) {
            Ok(acquired) => Ok(Round::Acquired(acquired)),
            Err(refused) => self.refused(refused).await,
        }
    }

    /// What follows when an attempt did not end with the lock.
    async fn refused(&mut self, refused: Box<Refused>) -> Result<Round> {
        let Refused { answer, claim, seat, seen, sent } = *refused;
        match answer {
            Ok(Attempt::Busy(_) | Attempt::Crowded(..) | Attempt::Gone) => {
                self.failing_since = None
            }
            _ => {
                self.failing_since.get_or_insert(sent);
                self.busy = None;
            }
        }
        match answer {
            Ok(Attempt::Granted { .. }) => self.came_late(claim, seat).await,
            Ok(Attempt::Busy(ttl)) => self.busy(ttl, 0, claim, seat, seen).await,
            Ok(Attempt::Crowded(ttl, crowd)) => self.busy(ttl, crowd, claim, seat, seen).await,
            Ok(Attempt::Gone) => self.busy(None, 0, claim, seat, seen).await,
            Err(fault) => self.fault(fault, claim, seat).await,
        }
    }

    /// Somebody else has it: subscribe, or wait. In a crowd of listeners, look again by oneself.
    async fn busy(
        &mut self,
        ttl: Option<Ttl>,
        crowd: u64,
        claim: Claim,
        mut seat: Seat,
        seen: Option<u64>,
    ) -> Result<Round> {
        let now = self.core.clock.now();
        (self.busy, self.failures, self.refusal) = (Some(now), 0, None);
        seat.busy();
        if self.request.wait == Wait::Never || now >= self.request.wait.limit() {
            return Ok(Round::GaveUp(Some(claim)));
        }
        if !self.warned && now.since(self.started) >= SUSPICIOUS {
            self.warned = true;
            // Of permits a client holds some and waits for others without anything being wrong.
            if self.request.seating() != Seating::Waiting {
                self.core.warn_waiting_for_itself(&self.request.resource);
            }
        }
        if let Some(spin) = self.request.spin {
            // Not past the limit, so that there is a last try shortly before it.
            let left = self.request.wait.limit().since(self.core.clock.now());
            self.nap(spin.pause(self.spins).min(left - left / 4)).await;
            self.spins += 1;
            return self.again(claim, seat);
        }
        if self.request.resource.kind == Kind::Fair && self.kept.is_none() {
            let registry = &self.core.registry;
            self.kept = Some(registry.keep(&self.request.resource, claim.owner, now));
        }
        if seat.alone && self.request.seating() == Seating::Waiting {
            return self.queue_up(claim).await;
        }
        match seen {
            None if self.polling => self.nap(jittered(POLL)).await,
            None if crowd >= CROWD => self.nap(self.pause(ttl).min(jittered(CROWDED))).await,
            // About as many stay as make a crowd, and others than before.
            Some(_) if crowd >= CROWD && fastrand::u64(..crowd + LEAVING) >= CROWD => {
                seat.subscription = None;
                self.nap(self.pause(ttl).min(jittered(CROWDED))).await;
            }
            None => {
                let topic = self.request.topic(claim.owner);
                return self.subscribe(topic, claim, seat, self.pause(ttl)).await;
            }
            Some(seen) => {
                tracing::trace!(lock = %self.request.resource.name, ?ttl, "waiting");
                self.sleep(&seat, seen, self.pause(ttl)).await;
                let failure = seat.subscription.as_ref().and_then(|listening| listening.failure());
                if let Some(fault) = failure {
                    seat.subscription = None;
                    self.poll_instead(&fault);
                }
            }
        }
        self.again(claim, seat)
    }

    /// Lines up behind those of this client who wait for the same, and tries again when it comes to
    /// the front.
    async fn queue_up(&mut self, claim: Claim) -> Result<Round> {
        let (core, request) = (self.core, self.request);
        let offer = || Some(Offer::new(core, request));
        let seat = match Gates::enter(core, &request.resource, offer) {
            Entered::Seat(seat) => seat,
            Entered::Queued(mut place) => {
                let turn = until(&core.clock, request.wait.limit(), place.wait()).await;
                match turn.or_else(|| place.failure().map(Turn::Failed)) {
                    Some(Turn::Seat(seat)) => seat,
                    Some(Turn::Failed(fault)) => {
                        return Err(core.error(fault, &request.resource, Phase::Acquire));
                    }
                    // Nobody hands over what has no seat.
                    Some(Turn::Handed(..)) | None => {
                        self.busy = self.busy.filter(|_| !core.is_silent());
                        return Ok(Round::GaveUp(None));
                    }
                }
            }
            Entered::Taken => return Ok(Round::GaveUp(None)),
        };
        // After a wait that may have been long, a request without an answer is not repeated.
        let claim = if claim.doubtful { Claim::new(core, request) } else { claim };
        self.again(claim, seat)
    }

    /// Until a wake-up beyond `seen`, the end of `pause`, the wait limit or the client's end.
    async fn sleep(&self, seat: &Seat, seen: u64, pause: Duration) {
        let Some(subscription) = &seat.subscription else {
            return;
        };
        let core = self.core;
        let wake = (core.clock.now() + pause).min(self.request.wait.limit());
        let mut closing = std::pin::pin!(core.closing.notified());
        closing.as_mut().enable();
        let due = async {
            match &self.kept {
                Some(kept) => kept.due().await,
                None => std::future::pending().await,
            }
        };
        if !core.is_closed() {
            tokio::select! {
                _ = until(&core.clock, wake, subscription.beyond(seen)) => {}
                () = due => {}
                () = closing => {}
            }
        }
    }

    /// How long to sleep at most before the next attempt.
    fn pause(&self, ttl: Option<Ttl>) -> Duration {
        let recheck = match self.request.resource.kind {
            Kind::Mutex => jittered(POLL),
            Kind::Write => jittered(INTENT),
            _ => jittered(RECHECK),
        };
        match ttl {
            // A living key may read 0; the extra millisecond is also the shortest sleep.
            Some(Ttl::Millis(left)) => recheck.min(Duration::from_millis(left + 1)),
            Some(Ttl::Forever) | None => recheck,
        }
    }

    /// On to the next attempt, unless the wait is over. A lock that was busy long ago is asked for once
    /// more, to know whether the store still answers.
    fn again(&mut self, claim: Claim, seat: Seat) -> Result<Round> {
        if self.core.is_closed() {
            return Err(Error::Closed { lock: Some(self.request.resource.name.clone()) });
        }
        let now = self.core.clock.now();
        if now < self.request.wait.limit() {
            return Ok(Round::Again(claim, seat));
        }
        self.busy = self.busy.filter(|_| !self.core.is_silent());
        match self.busy {
            Some(at) if now.since(at) >= STALE => Ok(Round::Again(claim, seat)),
            _ => Ok(Round::GaveUp(Some(claim))),
        }
    }

    /// Until when to bear with a store that does not answer.
    fn patience(&self) -> Tick {
        let mut bears = self.core.options.unreachable_after;
        if self.request.resource.kind == Kind::Semaphore {
            // The store does not know for longer that a repetition is one.
            bears = bears.min(RETRY_COUNTERS);
        }
        self.failing_since.map_or(Tick::NEVER, |since| since + bears)
    }

    async fn give_up(&mut self, claim: Option<Claim>) -> Result<Option<Acquired>> {
        self.kept = None;
        if let Some(claim) = claim {
            claim.leave().await;
        }
        if self.busy.is_some() { Ok(None) } else { Err(self.unserved()) }
    }

    /// Why the store has not served: what it said last, if it said something.
    fn fault_so_far(&self) -> Fault {
        self.refusal.clone().unwrap_or_else(|| no_answer("the store does not answer"))
    }

    fn unserved(&self) -> Error {
        self.failed(self.fault_so_far())
    }

    /// The store has not served for too long: those behind in the queue fail, too.
    fn unreachable(&self) -> Error {
        let fault = self.fault_so_far();
        self.core.gates.fail(&self.request.resource, &fault);
        self.failed(fault)
    }

    fn failed(&self, fault: Fault) -> Error {
        let Resource { kind, name } = &self.request.resource;
        let since = self.failing_since.into_iter().chain(self.core.silent_since()).min();
        let silent = since.map(|since| self.core.clock.now().since(since));
        Error::from_fault(fault, Some((name, *kind)), Phase::Acquire, silent)
    }

    /// Granted each time, but each time after the lease had ended: the store is too slow for it.
    async fn came_late(&mut self, claim: Claim, seat: Seat) -> Result<Round> {
        let over = self.core.clock.now() >= self.patience();
        if over || self.request.wait == Wait::Never && self.failures > 3 {
            return Err(self.failed(no_answer("each grant arrived after its lease had ended")));
        }
        self.nap(self.core.backoff(self.failures)).await;
        self.failures += 1;
        self.again(claim, seat)
    }

    /// Rides out what may pass, for as long as the caller and the settings allow.
    async fn fault(&mut self, fault: Fault, claim: Claim, mut seat: Seat) -> Result<Round> {
        let resource = &self.request.resource;
        let over = self.core.clock.now() >= self.patience();
        if !fault.may_pass() || over || self.request.wait == Wait::Never {
            if over {
                // Those behind have waited for the same store.
                self.core.gates.fail(resource, &fault);
            }
            return Err(self.failed(fault));
        }
        tracing::debug!(lock = %resource.name, ?fault, "the store does not serve; waiting on");
        seat.failed(&fault);
        self.refusal = Some(fault).filter(|fault| matches!(fault, Fault::Refused { .. }));
        self.nap(self.core.backoff(self.failures)).await;
        self.failures += 1;
        self.again(claim, seat)
    }

    /// Subscribes, but looks again in time if that takes long.
    async fn subscribe(
        &mut self,
        topic: Topic,
        claim: Claim,
        mut seat: Seat,
        pause: Duration,
    ) -> Result<Round> {
        let core = self.core;
        let patience = core.clock.now() + pause.min(core.options.response_timeout);
        let limit = self.request.wait.limit();
        let subscribing = core.backend.subscribe(topic);
        match until(&core.clock, patience.min(limit), subscribing).await {
            Some(Ok(subscription)) => seat.subscription = Some(subscription),
            Some(Err(fault)) if !fault.may_pass() => self.poll_instead(&fault),
            // The store answers requests or it does not: the next attempt will tell.
            Some(Err(_)) | None => self.nap(core.backoff(self.failures)).await,
        }
        self.again(claim, seat)
    }

    /// Nobody will wake this waiter: it must look for itself.
    fn poll_instead(&mut self, fault: &Fault) {
        self.polling |= self.core.polls_instead(fault);
    }

    /// Sleeps, but not beyond the wait limit.
    async fn nap(&self, span: Duration) {
        let wake = (self.core.clock.now() + span).min(self.request.wait.limit());
        if let Some(instant) = self.core.clock.instant(wake) {
            tokio::select! {
                () = tokio::time::sleep_until(instant) => {}
                () = self.core.closing.notified() => {}
            }
        }
    }
}

impl Core {
    /// At most one a second: ten thousand waiters would say the same.
    fn warn_waiting_for_itself(&self, resource: &Resource) {
        let this = other_side(resource, Kind::Write);
        let same = |lease: &Arc<Lease>| other_side(&lease.resource, Kind::Write) == this;
        let held = || self.registry.all().iter().any(same);
        let now = self.clock.now();
        let mut last = super::lock(&self.last_warned);
        if last.is_none_or(|last| now.since(last) >= Duration::from_secs(1)) && held() {
            *last = Some(now);
            tracing::warn!(lock = %resource.name, waited = ?SUSPICIOUS,
                "waiting for a lock that this client holds itself");
        }
    }

    /// Nobody will wake a waiter, for this reason: whether it must look for itself.
    pub(super) fn polls_instead(&self, fault: &Fault) -> bool {
        if *fault == Fault::Closed {
            return false;
        }
        if !self.polling_warned.swap(true, std::sync::atomic::Ordering::Relaxed) {
            tracing::warn!(?fault, "cannot subscribe to wake-ups: waiting by polling instead");
        }
        true
    }
}
