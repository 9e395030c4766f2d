//! The loop: try, subscribe, try, wait — written once for everything that waits.
//!
//! Why no wake-up is lost: the count of wake-ups is read before each attempt, and a sleep ends as
//! soon as the count has moved. The first attempt after a subscription was confirmed covers the time
//! before it. A wake-up that never comes costs one re-check, a few seconds at most.
//!
//! Why nothing is left behind: the only things in the store are what an armed [`Claim`] stands for
//! and a subscription; both undo themselves when dropped, and a request under way is finished by
//! the reaper before its claim is judged.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use super::claim::{Attempting, Claim};
use super::gate::{Entered, Gates, Offer, Place, Seat, Turn};
use super::lease::{HoldId, Lease, TermSpec};
use super::{Core, Tick, jittered, until};
use crate::backend::{Attempt, Fault, Kind, Resource, Topic, Ttl};
use crate::config::RECHECK;
use crate::error::{Error, LostReason, Phase, Result};
use crate::{Owner, OwnerId};

/// The pause after a release that others elsewhere wait for, so that they get a chance.
const COURTESY: Duration = Duration::from_millis(1);

/// Re-check of those who are not told: mutex waiters, because others of the Redlock family do not
/// publish, and everybody without the right to subscribe.
const POLL: Duration = Duration::from_millis(100);

/// A task that waits this long for a lock that its own client holds is told to the log.
const SUSPICIOUS: Duration = Duration::from_secs(5);

/// How long a caller is ready to wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wait {
    /// One attempt.
    Never,
    /// Until then.
    Until(Tick),
    /// As long as it takes.
    Forever,
}

impl Wait {
    fn limit(self) -> Tick {
        match self {
            Wait::Until(limit) => limit,
            Wait::Never | Wait::Forever => Tick::NEVER,
        }
    }
}

/// What is to be acquired, and how.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) resource: Resource,
    pub(crate) term: TermSpec,
    pub(crate) wait: Wait,
    pub(crate) owner: Option<Owner>,
}

/// A hold that was acquired.
pub(crate) type Acquired = (Arc<Lease>, HoldId);

/// Acquires; nothing when the lock is busy and the caller's patience is at its end.
pub(crate) async fn acquire(core: &Arc<Core>, request: &Request) -> Result<Option<Acquired>> {
    core.ensure_open(&request.resource)?;
    let Resource { kind, name } = &request.resource;
    let span = tracing::debug_span!("acquire", lock = %name, %kind);
    match &request.owner {
        _ if !span.is_disabled() => Box::pin(acquire_by(core, request).instrument(span)).await,
        None => acquire_anew(core, request).await,
        Some(_) => Box::pin(acquire_by(core, request)).await,
    }
}

async fn acquire_by(core: &Arc<Core>, request: &Request) -> Result<Option<Acquired>> {
    match &request.owner {
        None => acquire_anew(core, request).await,
        Some(owner) => acquire_as(core, request, owner).await,
    }
}

/// For a named owner: re-enters what it has. One request at a time for an owner and a name.
async fn acquire_as(
    core: &Arc<Core>,
    request: &Request,
    owner: &Owner,
) -> Result<Option<Acquired>> {
    core.ensure_own(owner, &request.resource)?;
    // Declared first, so that it is dropped last: a slot in use is not tidied away.
    let _tidy = Tidy(core, &request.resource, owner);
    let slot = core.owners.turn(&request.resource, owner);
    let turn = match request.wait {
        Wait::Never => slot.try_lock().ok(),
        wait => until(&core.clock, wait.limit(), slot.lock()).await,
    };
    let Some(_turn) = turn else { return Ok(None) };
    if let Some(lease) = core.owners.lease(&request.resource, owner) {
        match reenter(core, lease, request.term, request.wait).await {
            // Given back while this waited for its turn: there is nothing to re-enter any more.
            Err(Error::Lost { reason: LostReason::Released, .. }) => {}
            outcome => return outcome.map(Some),
        }
    }
    acquire_anew(core, request).await
}

/// Runs when the acquire of a named owner ends, also by being dropped.
struct Tidy<'a>(&'a Arc<Core>, &'a Resource, &'a Owner);

impl Drop for Tidy<'_> {
    fn drop(&mut self) {
        self.0.owners.tidy(self.1, self.2);
    }
}

/// Adds a hold to a lease. Unbroken: when the caller walks away, the hold is taken off again.
pub(crate) async fn reenter(
    core: &Arc<Core>,
    lease: Arc<Lease>,
    term: TermSpec,
    wait: Wait,
) -> Result<Acquired> {
    let now = core.clock.now();
    let give_up = match wait {
        Wait::Never => now,
        Wait::Until(limit) => limit.min(now + core.options.unreachable_after),
        Wait::Forever => now + core.options.unreachable_after,
    };
    let resource = lease.resource.clone();
    let work = async move {
        let hold = Arc::clone(&lease).reenter(term, give_up).await?;
        Ok(Undo(Some((lease, hold))))
    };
    match until(&core.clock, wait.limit(), core.unbroken(work)).await {
        Some(outcome) => outcome.map(Undo::keep),
        None => {
            let detail = "no answer within the wait limit".to_owned();
            let fault = Fault::Unreachable { maybe_ran: true, detail };
            Err(core.error(fault, &resource, Phase::Reenter))
        }
    }
}

/// A hold on the way to its guard.
struct Undo(Option<Acquired>);

impl Undo {
    fn keep(mut self) -> Acquired {
        self.0.take().expect("taken once, here")
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some((lease, hold)) = self.0.take() {
            super::release::release_later(lease, hold);
        }
    }
}

async fn acquire_anew(core: &Arc<Core>, request: &Request) -> Result<Option<Acquired>> {
    let offer = || match request.wait {
        Wait::Never => None,
        _ => Some(Offer { owner: OwnerId::fresh(core.id), ttl: request.term.ttl }),
    };
    match Gates::enter(core, &request.resource, offer) {
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
        core.warn_waiting_for_itself(&request.resource);
        given = until(&core.clock, limit, turn.wait()).await;
    }
    given
}

/// What comes after the queue.
async fn take_turn(
    core: &Arc<Core>,
    request: &Request,
    turn: Option<Turn>,
) -> Result<Option<Acquired>> {
    let drive = Drive::new(core, request);
    match turn {
        // Nobody asked the store in this waiter's name; whether it answers is known all the same.
        None if !core.silent_for().is_zero() => {
            Err(drive.no_answer("no answer within the wait limit"))
        }
        None => Ok(None),
        Some(Turn::Seat(seat)) => drive.run(seat).await,
        Some(Turn::Handed(seat, claim, sent)) => {
            match drive.begin(claim, seat, sent, core.clock.now()) {
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
    polling: bool,
    /// The last thing the store said was "busy": what decides at the wait limit.
    busy: bool,
}

/// What one round of the loop came to.
enum Round {
    Acquired(Acquired),
    GaveUp,
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
            polling: false,
            busy: false,
        }
    }

    fn begin(&self, claim: Claim, seat: Seat, sent: Tick, now: Tick) -> Result<Acquired, Seat> {
        let (term, owner) = (self.request.term, self.request.owner.clone());
        let lease = Lease::begin(claim, seat, self.core, term, (sent, now), owner)?;
        tracing::debug!(lock = %lease.resource.name, owner = %lease.owner,
            waited = ?now.since(self.started), "acquired");
        Ok((lease, 0))
    }

    fn first_attempt(&self) -> Attempting {
        let claim = Claim::new(self.core, &self.request.resource);
        claim.attempt(self.request.term.ttl, self.started)
    }

    /// Grants what was granted in time.
    fn judge(&mut self, mut refused: Refused) -> Result<Acquired, Box<Refused>> {
        if refused.answer != Ok(Attempt::Granted) {
            return Err(Box::new(refused));
        }
        let now = self.core.clock.now();
        refused.seat.taken(now);
        let Refused { claim, seat, seen, sent, .. } = refused;
        self.begin(claim, seat, sent, now).map_err(|seat| {
            // Granted, but the answer took so long that the lease is over; the claim has undone it.
            let claim = Claim::new(self.core, &self.request.resource);
            Box::new(Refused { answer: Ok(Attempt::Granted), claim, seat, seen, sent })
        })
    }

    async fn run(mut self, mut seat: Seat) -> Result<Option<Acquired>> {
        if std::mem::take(&mut seat.pause) {
            self.now = None;
            self.nap(COURTESY).await;
        }
        let claim = Claim::new(self.core, &self.request.resource);
        self.rounds(claim, seat).await
    }

    async fn run_on(mut self, refused: Box<Refused>) -> Result<Option<Acquired>> {
        self.now = None;
        match self.refused(refused).await? {
            Round::Acquired(acquired) => Ok(Some(acquired)),
            Round::GaveUp => self.give_up(),
            Round::Again(claim, seat) => self.rounds(claim, seat).await,
        }
    }

    async fn rounds(&mut self, mut claim: Claim, mut seat: Seat) -> Result<Option<Acquired>> {
        loop {
            match self.round(claim, seat).await? {
                Round::Acquired(acquired) => return Ok(Some(acquired)),
                Round::GaveUp => return self.give_up(),
                Round::Again(same, still) => (claim, seat) = (same, still),
            }
        }
    }

    /// One attempt, and what follows from its answer.
    async fn round(&mut self, claim: Claim, seat: Seat) -> Result<Round> {
        let core = self.core;
        let limit = self.request.wait.limit();
        let seen = seat.subscription.as_ref().map(|subscription| subscription.seen());
        let sent = self.now.take().unwrap_or_else(|| core.clock.now());
        let attempt = claim.attempt(self.request.term.ttl, sent);
        let patience = self.patience();
        let Some((answer, sent, claim)) = until(&core.clock, limit.min(patience), attempt).await
        else {
            return if patience < limit { Err(self.unreachable()) } else { Ok(Round::GaveUp) };
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
            Ok(Attempt::Busy(_) | Attempt::Gone) => self.failing_since = None,
            _ => drop(self.failing_since.get_or_insert(sent)),
        }
        match answer {
            Ok(Attempt::Granted) => self.came_late(claim, seat).await,
            Ok(Attempt::Busy(ttl)) => self.busy(ttl, claim, seat, seen).await,
            Ok(Attempt::Gone) => self.busy(None, claim, seat, seen).await,
            Err(fault) => self.fault(fault, claim, seat).await,
        }
    }

    /// Somebody else has it: subscribe, or wait.
    async fn busy(
        &mut self,
        ttl: Option<Ttl>,
        claim: Claim,
        mut seat: Seat,
        seen: Option<u64>,
    ) -> Result<Round> {
        (self.busy, self.failures) = (true, 0);
        if self.request.wait == Wait::Never {
            return Ok(Round::GaveUp);
        }
        match seen {
            None if self.polling => self.nap(jittered(POLL)).await,
            None => return self.subscribe(claim, seat, self.pause(ttl)).await,
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

    /// Until a wake-up beyond `seen`, the end of `pause`, the wait limit or the client's end.
    async fn sleep(&self, seat: &Seat, seen: u64, pause: Duration) {
        let Some(subscription) = &seat.subscription else {
            return;
        };
        let core = self.core;
        let wake = (core.clock.now() + pause).min(self.request.wait.limit());
        let mut closing = std::pin::pin!(core.closing.notified());
        closing.as_mut().enable();
        if !core.is_closed() {
            tokio::select! {
                _ = until(&core.clock, wake, subscription.beyond(seen)) => {}
                () = closing => {}
            }
        }
    }

    /// How long to sleep at most before the next attempt.
    fn pause(&self, ttl: Option<Ttl>) -> Duration {
        let recheck = match self.request.resource.kind {
            Kind::Mutex => jittered(POLL),
            Kind::Lock => jittered(RECHECK),
        };
        match ttl {
            // A living key may read 0; the extra millisecond is also the shortest sleep.
            Some(Ttl::Millis(left)) => recheck.min(Duration::from_millis(left + 1)),
            Some(Ttl::Forever) | None => recheck,
        }
    }

    /// On to the next attempt, unless the wait is over.
    fn again(&self, claim: Claim, seat: Seat) -> Result<Round> {
        if self.core.is_closed() {
            return Err(Error::Closed { lock: Some(self.request.resource.name.clone()) });
        }
        if self.core.clock.now() >= self.request.wait.limit() {
            return Ok(Round::GaveUp);
        }
        Ok(Round::Again(claim, seat))
    }

    /// Until when to bear with a store that does not answer.
    fn patience(&self) -> Tick {
        let bears = self.core.options.unreachable_after;
        self.failing_since.map_or(Tick::NEVER, |since| since + bears)
    }

    fn give_up(&self) -> Result<Option<Acquired>> {
        if self.busy { Ok(None) } else { Err(self.no_answer("no answer within the wait limit")) }
    }

    fn no_answer(&self, detail: &str) -> Error {
        let fault = Fault::Unreachable { maybe_ran: true, detail: detail.to_owned() };
        self.core.error(fault, &self.request.resource, Phase::Acquire)
    }

    /// The store has been silent for too long: for those behind in the queue, too.
    fn unreachable(&self) -> Error {
        let detail = "the store does not answer".to_owned();
        let fault = Fault::Unreachable { maybe_ran: true, detail };
        self.core.gates.fail(&self.request.resource, &fault);
        self.core.error(fault, &self.request.resource, Phase::Acquire)
    }

    /// Granted each time, but each time after the lease had ended: the store is too slow for it.
    async fn came_late(&mut self, claim: Claim, seat: Seat) -> Result<Round> {
        let over = self.core.clock.now() >= self.patience();
        if over || self.request.wait == Wait::Never && self.failures > 3 {
            return Err(self.no_answer("each grant arrived after its lease had ended"));
        }
        self.nap(self.core.backoff(self.failures)).await;
        self.failures += 1;
        self.again(claim, seat)
    }

    /// Rides out what may pass, for as long as the caller and the settings allow.
    async fn fault(&mut self, fault: Fault, claim: Claim, seat: Seat) -> Result<Round> {
        let resource = &self.request.resource;
        let over = self.core.clock.now() >= self.patience();
        if !fault.may_pass() || over || self.request.wait == Wait::Never {
            if over {
                // Those behind have waited for the same store.
                self.core.gates.fail(resource, &fault);
            }
            return Err(self.core.error(fault, resource, Phase::Acquire));
        }
        self.busy = false;
        tracing::debug!(lock = %resource.name, ?fault, "the store does not answer; waiting on");
        self.nap(self.core.backoff(self.failures)).await;
        self.failures += 1;
        self.again(claim, seat)
    }

    /// Subscribes, but looks again in time if that takes long.
    async fn subscribe(&mut self, claim: Claim, mut seat: Seat, pause: Duration) -> Result<Round> {
        let core = self.core;
        let topic = Topic::Freed(self.request.resource.name.clone());
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
        if *fault != Fault::Closed {
            self.polling = true;
            self.core.warn_polling(fault);
        }
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
        let held = || self.registry.all().iter().any(|lease| lease.resource == *resource);
        let now = self.clock.now();
        let mut last = super::lock(&self.last_warned);
        if last.is_none_or(|last| now.since(last) >= Duration::from_secs(1)) && held() {
            *last = Some(now);
            tracing::warn!(lock = %resource.name, waited = ?SUSPICIOUS,
                "waiting for a lock that this client holds itself");
        }
    }

    fn warn_polling(&self, fault: &Fault) {
        if !self.polling_warned.swap(true, std::sync::atomic::Ordering::Relaxed) {
            tracing::warn!(?fault, "cannot subscribe to wake-ups: waiting by polling instead");
        }
    }
}
