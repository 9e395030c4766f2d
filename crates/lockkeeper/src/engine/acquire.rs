//! The acquire loop: try, subscribe, try, wait. All primitives that wait use it, except the latch.
//!
//! **No wake-up is lost.** The count of wake-ups is read before each attempt, and a sleep ends as soon
//! as the count has changed. The first attempt after a confirmed subscription covers the time before
//! it. A wake-up that never arrives costs one re-check, a few seconds at most.
//!
//! **Nothing is left behind.** In the store there is only the hold or queue position of an armed
//! [`PendingAcquire`], and a subscription. Both undo themselves when dropped, and the reaper completes a request
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

use super::lease::{HoldId, Lease};
use super::local_queue::{Entered, LocalQueues, Offer, Place, Seat, Turn};
use super::pending_acquire::{Attempting, PendingAcquire};
use super::registry::Kept;
use super::request::{Request, Seating, Wait, other_side};
use super::{Core, RETRY_COUNTERS, Tick, jittered, no_answer, until};
use crate::backend::{Attempt, CROWD, Fault, Kind, Resource, Topic, Ttl};
use crate::config::RECHECK;
use crate::error::{Error, Phase, Result};

/// At the wait limit, an answer older than this does not show that the store still answers: the
/// loop asks once more.
const STALE: Duration = Duration::from_millis(250);

/// Re-check interval of waiters that get no wake-ups: mutex waiters, because other Redlock clients
/// do not publish, and clients without the permission to subscribe.
pub(super) const POLL: Duration = Duration::from_millis(100);

/// Re-check interval of waiters that do not subscribe because enough others do.
const CROWDED: Duration = Duration::from_millis(500);

/// About how many members of a crowd unsubscribe each time. Subscribers acquire the lock before
/// pollers, and must not keep it among themselves.
const LEAVING: u64 = 2;

/// How often a waiting writer renews its mark in the store, which expires after two seconds.
const INTENT: Duration = Duration::from_millis(1200);

/// A task that waits this long for a lock that its own client holds is logged.
const SUSPICIOUS: Duration = Duration::from_secs(5);

/// An acquired hold.
pub(crate) type Acquired = (Arc<Lease>, HoldId);

pub(super) async fn acquire_anew(core: &Arc<Core>, request: &Request) -> Result<Option<Acquired>> {
    let entered = match request.seating() {
        Seating::Exclusive => LocalQueues::enter(core, &request.resource, || match request.wait {
            Wait::Never => None,
            _ => Some(Offer::new(core, request)),
        }),
        // Waiters queue behind earlier waiters; a mere try acquires what is free.
        Seating::Waiting if request.wait != Wait::Never => {
            let offer = || Offer::new(core, request);
            match LocalQueues::line_up(core, &request.resource, offer) {
                Some(place) => Entered::Queued(place),
                None => Entered::Seat(LocalQueues::alone(core, &request.resource)),
            }
        }
        Seating::Waiting | Seating::Alone => {
            Entered::Seat(LocalQueues::alone(core, &request.resource))
        }
    };
    match entered {
        Entered::Seat(seat) if request.wait.limit() == Tick::NEVER => {
            // The first attempt, without a wait limit. Most acquires end here; their futures stay
            // small because `run_on` contains everything else.
            let mut drive = AcquireLoop::new(core, request);
            let (answer, sent, claim) = drive.first_attempt().await;
            match drive.judge(Refused { answer, claim, seat, seen: None, sent }) {
                Ok(acquired) => Ok(Some(acquired)),
                Err(refused) => Box::pin(drive.run_on(refused)).await,
            }
        }
        Entered::Seat(seat) => Box::pin(AcquireLoop::new(core, request).run(seat)).await,
        Entered::Taken => Ok(None),
        Entered::Queued(turn) => {
            // Waiting and the attempt after it are boxed separately, to keep the waiter's future
            // small.
            let turn = Box::pin(queue(core, request, turn)).await;
            Box::pin(take_turn(core, request, turn)).await
        }
    }
}

/// Waits in the local queue. Returns `None` when the wait limit passes first.
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

/// Continues after the local queue.
async fn take_turn(
    core: &Arc<Core>,
    request: &Request,
    turn: Option<Turn>,
) -> Result<Option<Acquired>> {
    let drive = AcquireLoop::new(core, request);
    match turn {
        // This waiter has sent no request, but other requests may have shown that the store does
        // not answer.
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
struct AcquireLoop<'a> {
    core: &'a Arc<Core>,
    request: &'a Request,
    started: Tick,
    /// The current time, valid until the next `await`.
    now: Option<Tick>,
    failures: u32,
    /// When the first of the current series of failed attempts was sent.
    failing_since: Option<Tick>,
    /// The error reply to the last of them, if there was one.
    refusal: Option<Fault>,
    polling: bool,
    /// When the store answered busy, unless it gave another answer since. Decides at the wait
    /// limit.
    busy: Option<Tick>,
    /// Whether the log says that this acquire waits for its own client.
    warned: bool,
    /// How often the lock was busy in a row; determines the pause of a spinning waiter.
    spins: u32,
    /// The position in the store's queue, kept by the watchdog.
    kept: Option<Kept>,
}

/// The outcome of one round of the loop.
enum Step {
    Acquired(Acquired),
    /// With the claim whose queue position is still to be given up.
    GaveUp(Option<PendingAcquire>),
    Again(PendingAcquire, Seat),
}

/// An attempt that did not acquire the lock, and the state for the next one.
struct Refused {
    answer: Result<Attempt, Fault>,
    claim: PendingAcquire,
    seat: Seat,
    /// The count of wake-ups before the attempt, if there was a subscription.
    seen: Option<u64>,
    sent: Tick,
}

impl<'a> AcquireLoop<'a> {
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
        claim: PendingAcquire,
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
        let claim = PendingAcquire::new(self.core, self.request);
        claim.attempt(self.request, self.started)
    }

    /// Begins the lease if the grant arrived in time.
    fn judge(&mut self, mut refused: Refused) -> Result<Acquired, Box<Refused>> {
        let Ok(Attempt::Granted { token }) = refused.answer else {
            return Err(Box::new(refused));
        };
        let now = self.core.clock.now();
        refused.seat.taken(now);
        let Refused { claim, seat, seen, sent, .. } = refused;
        self.begin(claim, seat, token, sent, now).map_err(|mut seat| {
            if seat.alone {
                // The subscription and the queue position belong to the undone claim.
                (seat.subscription, self.kept) = (None, None);
            }
            // Granted, but the lease had expired when the answer arrived; the claim has undone it.
            let claim = PendingAcquire::new(self.core, self.request);
            Box::new(Refused { answer: Ok(Attempt::GRANTED), claim, seat, seen, sent })
        })
    }

    async fn run(mut self, seat: Seat) -> Result<Option<Acquired>> {
        let pause = seat.pause(self.started);
        if !pause.is_zero() {
            self.now = None;
            self.nap(pause).await;
        }
        let claim = PendingAcquire::new(self.core, self.request);
        self.rounds(claim, seat).await
    }

    async fn run_on(mut self, refused: Box<Refused>) -> Result<Option<Acquired>> {
        self.now = None;
        match self.refused(refused).await? {
            Step::Acquired(acquired) => Ok(Some(acquired)),
            Step::GaveUp(claim) => self.give_up(claim).await,
            Step::Again(claim, seat) => self.rounds(claim, seat).await,
        }
    }

    async fn rounds(
        &mut self,
        mut claim: PendingAcquire,
        mut seat: Seat,
    ) -> Result<Option<Acquired>> {
        loop {
            match self.round(claim, seat).await? {
                Step::Acquired(acquired) => return Ok(Some(acquired)),
                Step::GaveUp(claim) => return self.give_up(claim).await,
                Step::Again(same, still) => (claim, seat) = (same, still),
            }
        }
    }

    /// Makes one attempt and acts on its answer.
    async fn round(&mut self, claim: PendingAcquire, seat: Seat) -> Result<Step> {
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
                // The store did not answer, whatever it answered before.
                self.refusal = None;
                return Err(self.unreachable());
            }
            self.busy = None;
            self.failing_since.get_or_insert(sent);
            return Ok(Step::GaveUp(None));
        };
        match self.judge(Refused { answer, claim, seat, seen, sent }) {
            Ok(acquired) => Ok(Step::Acquired(acquired)),
            Err(refused) => self.refused(refused).await,
        }
    }

    /// Acts on an attempt that did not acquire the lock.
    async fn refused(&mut self, refused: Box<Refused>) -> Result<Step> {
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

    /// Subscribes or waits, because the lock is busy. Polls instead where many others listen.
    async fn busy(
        &mut self,
        ttl: Option<Ttl>,
        crowd: u64,
        claim: PendingAcquire,
        mut seat: Seat,
        seen: Option<u64>,
    ) -> Result<Step> {
        let now = self.core.clock.now();
        (self.busy, self.failures, self.refusal) = (Some(now), 0, None);
        seat.busy();
        if self.request.wait == Wait::Never || now >= self.request.wait.limit() {
            return Ok(Step::GaveUp(Some(claim)));
        }
        if !self.warned && now.since(self.started) >= SUSPICIOUS {
            self.warned = true;
            // A client may hold some permits and wait for others: nothing is wrong then.
            if self.request.seating() != Seating::Waiting {
                self.core.warn_waiting_for_itself(&self.request.resource);
            }
        }
        if let Some(spin) = self.request.spin {
            // Ends before the wait limit, so that there is a last try shortly before it.
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
            // About `CROWD` waiters stay, and not always the same ones.
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

    /// Queues behind the waiters of this client, and tries again at the front of the queue.
    async fn queue_up(&mut self, claim: PendingAcquire) -> Result<Step> {
        let (core, request) = (self.core, self.request);
        let offer = || Some(Offer::new(core, request));
        let seat = match LocalQueues::enter(core, &request.resource, offer) {
            Entered::Seat(seat) => seat,
            Entered::Queued(mut place) => {
                let turn = until(&core.clock, request.wait.limit(), place.wait()).await;
                match turn.or_else(|| place.failure().map(Turn::Failed)) {
                    Some(Turn::Seat(seat)) => seat,
                    Some(Turn::Failed(fault)) => {
                        return Err(core.error(fault, &request.resource, Phase::Acquire));
                    }
                    // Permits are held without a seat, so they are never handed off.
                    Some(Turn::Handed(..)) | None => {
                        self.busy = self.busy.filter(|_| !core.is_silent());
                        return Ok(Step::GaveUp(None));
                    }
                }
            }
            Entered::Taken => return Ok(Step::GaveUp(None)),
        };
        // After a wait that may have been long, an unanswered request is not repeated.
        let claim = if claim.doubtful { PendingAcquire::new(core, request) } else { claim };
        self.again(claim, seat)
    }

    /// Sleeps until a wake-up beyond `seen`, the end of `pause`, the wait limit or the end of the
    /// client.
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

    /// The longest sleep before the next attempt.
    fn pause(&self, ttl: Option<Ttl>) -> Duration {
        let recheck = match self.request.resource.kind {
            Kind::Mutex => jittered(POLL),
            Kind::Write => jittered(INTENT),
            _ => jittered(RECHECK),
        };
        match ttl {
            // The TTL of an existing key may read 0; the extra millisecond is also the shortest
            // sleep.
            Some(Ttl::Millis(left)) => recheck.min(Duration::from_millis(left + 1)),
            Some(Ttl::Forever) | None => recheck,
        }
    }

    /// Continues with the next attempt, unless the wait limit has passed. If the last busy answer
    /// is old, asks once more to find out whether the store still answers.
    fn again(&mut self, claim: PendingAcquire, seat: Seat) -> Result<Step> {
        if self.core.is_closed() {
            return Err(Error::Closed { lock: Some(self.request.resource.name.clone()) });
        }
        let now = self.core.clock.now();
        if now < self.request.wait.limit() {
            return Ok(Step::Again(claim, seat));
        }
        self.busy = self.busy.filter(|_| !self.core.is_silent());
        match self.busy {
            Some(at) if now.since(at) >= STALE => Ok(Step::Again(claim, seat)),
            _ => Ok(Step::GaveUp(Some(claim))),
        }
    }

    /// When to give up on a store that does not answer.
    fn patience(&self) -> Tick {
        let mut bears = self.core.options.unreachable_after;
        if self.request.resource.kind == Kind::Semaphore {
            // After that the store no longer recognises a repetition.
            bears = bears.min(RETRY_COUNTERS);
        }
        self.failing_since.map_or(Tick::NEVER, |since| since + bears)
    }

    async fn give_up(&mut self, claim: Option<PendingAcquire>) -> Result<Option<Acquired>> {
        self.kept = None;
        if let Some(claim) = claim {
            claim.leave().await;
        }
        if self.busy.is_some() { Ok(None) } else { Err(self.unserved()) }
    }

    /// Why the store has not served: its last error reply, if there was one.
    fn fault_so_far(&self) -> Fault {
        self.refusal.clone().unwrap_or_else(|| no_answer("the store does not answer"))
    }

    fn unserved(&self) -> Error {
        self.failed(self.fault_so_far())
    }

    /// The store has not served for too long: fails the waiters in the local queue, too.
    fn unreachable(&self) -> Error {
        let fault = self.fault_so_far();
        self.core.local_queues.fail(&self.request.resource, &fault);
        self.failed(fault)
    }

    fn failed(&self, fault: Fault) -> Error {
        let Resource { kind, name } = &self.request.resource;
        let since = self.failing_since.into_iter().chain(self.core.silent_since()).min();
        let silent = since.map(|since| self.core.clock.now().since(since));
        Error::from_fault(fault, Some((name, *kind)), Phase::Acquire, silent)
    }

    /// Retries after a grant that arrived after its lease had expired: the store is too slow for
    /// it.
    async fn came_late(&mut self, claim: PendingAcquire, seat: Seat) -> Result<Step> {
        let over = self.core.clock.now() >= self.patience();
        if over || self.request.wait == Wait::Never && self.failures > 3 {
            return Err(self.failed(no_answer("each grant arrived after its lease had ended")));
        }
        self.nap(self.core.backoff(self.failures)).await;
        self.failures += 1;
        self.again(claim, seat)
    }

    /// Retries after a temporary fault, for as long as the caller and the settings allow.
    async fn fault(&mut self, fault: Fault, claim: PendingAcquire, mut seat: Seat) -> Result<Step> {
        let resource = &self.request.resource;
        let over = self.core.clock.now() >= self.patience();
        if !fault.may_pass() || over || self.request.wait == Wait::Never {
            if over {
                // The waiters in the local queue have waited for the same store.
                self.core.local_queues.fail(resource, &fault);
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

    /// Subscribes. If that takes long, returns to the loop for the next attempt.
    async fn subscribe(
        &mut self,
        topic: Topic,
        claim: PendingAcquire,
        mut seat: Seat,
        pause: Duration,
    ) -> Result<Step> {
        let core = self.core;
        let patience = core.clock.now() + pause.min(core.options.response_timeout);
        let limit = self.request.wait.limit();
        let subscribing = core.backend.subscribe(topic);
        match until(&core.clock, patience.min(limit), subscribing).await {
            Some(Ok(subscription)) => seat.subscription = Some(subscription),
            Some(Err(fault)) if !fault.may_pass() => self.poll_instead(&fault),
            // Whether the store answers at all is decided by the next attempt.
            Some(Err(_)) | None => self.nap(core.backoff(self.failures)).await,
        }
        self.again(claim, seat)
    }

    /// Switches to polling, because no wake-up will arrive.
    fn poll_instead(&mut self, fault: &Fault) {
        self.polling |= self.core.polls_instead(fault);
    }

    /// Sleeps, at most until the wait limit.
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
    /// Logs at most one warning per second: ten thousand waiters would all log the same.
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

    /// Whether a waiter must poll after this failure to subscribe.
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
