//! The acquire loop: try, subscribe, try, wait. All primitives that wait use it; a latch counts as
//! acquired when it is open.
//!
//! **No wake-up is lost.** The count of wake-ups is read before each attempt, and a sleep ends as soon
//! as the count has changed. The first attempt after a confirmed subscription covers the time before
//! it. A wake-up that never arrives costs one re-check, a few seconds at most.
//!
//! **Nothing is left behind.** In the store there is only the hold or queue position of an armed
//! [`PendingAcquire`], and a subscription. Both undo themselves when dropped, and the reaper completes
//! a request under way before it is undone.
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

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::OptionFuture;

use super::heartbeat::QueuePosition;
use super::local_queue::{Entered, Front, Grant, Handoff, LocalQueues, Served};
use super::pending_acquire::{Answered, PendingAcquire};
use super::terms::{Queueing, Request};
use super::{RETRY_COUNTERS, SUSPICIOUS, Tick, jittered, no_answer, until};
use crate::backend::{Attempt, Fault, Kind, Resource, Subscription, Ttl};
use crate::error::{Error, Phase, Result};
use crate::options::RECHECK;

/// At the wait limit, an answer older than this does not show that the store still answers: the
/// loop asks once more.
const STALE: Duration = Duration::from_millis(250);

/// Re-check interval of waiters that get no wake-ups: mutex waiters, because other Redlock clients
/// do not publish, and clients without the permission to subscribe.
const POLL: Duration = Duration::from_millis(100);

/// How many clients listen for the release of one lock. Waiters beyond them poll instead, so that a
/// release does not wake up all of them.
const CROWD: u64 = 16;

/// Re-check interval of waiters that do not subscribe because enough others do.
const CROWDED: Duration = Duration::from_millis(500);

/// About how many members of a crowd unsubscribe each time. Subscribers acquire the lock before
/// pollers, and must not keep it among themselves.
const LEAVING: u64 = 2;

/// How often a waiting writer renews its mark in the store, which expires after two seconds.
const INTENT: Duration = Duration::from_millis(1200);

/// A grant, and when it arrived; `None` if the lock is busy at the wait limit.
pub(super) type Outcome = Result<Option<(Grant, Tick)>>;

impl Request {
    /// Waits until a latch is open. Returns false when the wait limit passes first.
    pub(crate) async fn wait_until_open(mut self) -> Result<bool> {
        self.begin();
        self.core.ensure_open(&self.resource)?;
        let entered = LocalQueues::join(&self);
        Ok(self.wait_from(entered, self.core.clock.now()).await?.is_some())
    }

    /// Waits for the grant: first in the local queue, then in the loop.
    pub(super) async fn wait_from(&self, at: Entered, started: Tick) -> Outcome {
        match at {
            Entered::Front(front) => {
                Box::pin(AcquireLoop::new(self, front, started).run(None)).await
            }
            Entered::Occupied => Ok(None),
            Entered::Queued(position) => {
                // A drain may have failed the waiters just before this one queued.
                self.ensure_may_begin()?;
                // Boxed separately, to keep the waiter's future small.
                let served = Box::pin(position.serve(self)).await;
                Box::pin(self.wait_after_queue(served)).await
            }
        }
    }

    /// Continues after the local queue.
    async fn wait_after_queue(&self, served: Option<Served>) -> Outcome {
        let Self { core, resource, .. } = self;
        let now = core.clock.now();
        let front = match served {
            Some(Served::Front(front)) => {
                // A drain fails the waiters; this one was just served.
                self.ensure_may_begin()?;
                front
            }
            Some(Served::Granted(grant)) if self.is_in_time(grant.sent, now) => {
                return Ok(Some((grant, now)));
            }
            // Dropping the rest of a late grant undoes it.
            Some(Served::Granted(grant)) => grant.front,
            Some(Served::Failed(fault)) => return Err(core.error(fault, resource, self.phase())),
            // This waiter has sent no request, but other requests may have shown that the store does
            // not answer.
            None if core.is_silent(&resource.name) => {
                return Err(core.error(no_answer(), resource, self.phase()));
            }
            None => return Ok(None),
        };
        AcquireLoop::new(self, front, now).run(None).await
    }
}

/// One acquire at the front of the local queue.
pub(super) struct AcquireLoop<'a> {
    request: &'a Request,
    front: Front,
    /// `None` while a request is under way, whose future owns it.
    pending: Option<PendingAcquire>,
    wakes: Wakes,
    started: Tick,
    /// When the store answered busy, unless it gave another answer since. Decides at the wait
    /// limit.
    busy: Option<Tick>,
    failures: Failures,
    /// Whether the log says that this acquire waits for its own client.
    warned: bool,
    /// How often the lock was busy in a row; determines the pause of a spinning waiter.
    spins: u32,
    /// The position in the store's queue, kept by heartbeats.
    position: Option<QueuePosition>,
}

/// How a waiter learns that another attempt is worthwhile.
enum Wakes {
    /// Not yet.
    None,
    /// By wake-ups: their count before the last attempt.
    Subscribed(u64),
    /// It cannot subscribe.
    Polling,
}

/// The failed attempts since the last busy answer.
#[derive(Default)]
struct Failures {
    /// When the first of those was sent for which the store does not serve.
    since: Option<Tick>,
    tries: u32,
    /// Why the last one failed.
    last: Option<Fault>,
}

/// The outcome of one round of the loop that did not acquire the lock.
enum Step {
    Again,
    GiveUp,
}

impl<'a> AcquireLoop<'a> {
    pub(super) fn new(request: &'a Request, mut front: Front, started: Tick) -> Self {
        let Request { core, resource, .. } = request;
        let mut pending = None;
        if resource.kind == Kind::Fair
            && request.waits()
            && let Some((owner, subscription)) = core.identities.take(&resource.name)
        {
            pending = Some(PendingAcquire::of(core, resource, owner));
            front.subscription = Some(subscription);
        }
        Self {
            request,
            front,
            pending,
            wakes: Wakes::None,
            started,
            busy: None,
            failures: Failures::default(),
            warned: false,
            spins: 0,
            position: None,
        }
    }

    /// Tries until the lock is granted, the wait limit passes or the store fails. The first attempt may
    /// have been made already.
    pub(super) async fn run(mut self, first: Option<(Answered, PendingAcquire)>) -> Outcome {
        let (mut answer, pending) = first.unzip();
        self.pending = pending.or(self.pending);
        let pause = self.front.pause(self.started);
        if answer.is_none() && !pause.is_zero() {
            self.nap(pause).await;
        }
        loop {
            let known = match answer.take() {
                None => self.attempt().await?,
                known => known,
            };
            let Some(answer) = known else { return self.give_up().await };
            if let Some((token, now)) = self.request.judge(&mut self.front, &answer) {
                return Ok(Some((self.grant(token, answer.1), now)));
            }
            match self.next(answer).await? {
                Step::Again => {}
                Step::GiveUp => return self.give_up().await,
            }
        }
    }

    /// Makes one attempt. Returns `None` if the wait limit passes before the answer arrives.
    async fn attempt(&mut self) -> Result<Option<Answered>> {
        let core = &self.request.core;
        let sent = core.clock.now();
        if self.was_opened() {
            return Ok(Some((Ok(Attempt::GRANTED), sent)));
        }
        let give_up_at = self.give_up_at();
        if sent >= give_up_at {
            return Err(self.unreachable());
        }
        let answer_by = core.answer_by(&self.request.resource.name, self.request.limit, sent);
        let answer = until(&core.clock, answer_by.min(give_up_at), self.send(sent)).await;
        if self.was_opened() {
            return Ok(Some((Ok(Attempt::GRANTED), sent)));
        }
        if answer.is_none() {
            if give_up_at < answer_by {
                // The store did not answer, whatever it answered before: if it had the time to.
                let had_time = core.clock.now().since(sent) >= core.options.response_timeout;
                self.failures.last.take_if(|_| had_time);
                return Err(self.unreachable());
            }
            self.busy = None;
            self.failures.since.get_or_insert(sent);
        }
        Ok(answer)
    }

    /// Whether a message said that the latch was opened. It may be closed again before the next look,
    /// so the message suffices.
    fn was_opened(&self) -> bool {
        self.front.subscription.as_ref().is_some_and(Subscription::was_opened)
    }

    /// Sends one request. If the future is dropped, the request is completed and undone.
    async fn send(&mut self, sent: Tick) -> Answered {
        match &self.front.subscription {
            Some(subscription) => self.wakes = Wakes::Subscribed(subscription.seen()),
            None if matches!(self.wakes, Wakes::Polling) => {}
            None => self.wakes = Wakes::None,
        }
        let new = || PendingAcquire::new(self.request);
        let keeps = |_: &_| !self.request.core.leaves_remains(&self.request.resource.name);
        let pending = self.pending.take().filter(keeps).unwrap_or_else(new);
        let (answer, pending) = pending.attempt(self.request, sent).await;
        self.pending = Some(pending);
        answer
    }

    fn grant(self, token: Option<u64>, sent: Tick) -> Grant {
        let new = || PendingAcquire::new(self.request);
        Grant { pending: self.pending.unwrap_or_else(new), front: self.front, token, sent }
    }

    /// Acts on an attempt that did not acquire the lock.
    async fn next(&mut self, (answer, sent): Answered) -> Result<Step> {
        match &answer {
            Ok(Attempt::Busy { ttl, listeners }) => return self.busy(*ttl, *listeners).await,
            Ok(Attempt::Gone) => return self.busy(None, 0).await,
            // It serves.
            Err(fault) if fault.is_moving() => self.failures.since = None,
            _ => drop(self.failures.since.get_or_insert(sent)),
        }
        self.busy = None;
        match answer {
            Err(fault) => self.failed(fault).await,
            Ok(_) => self.granted_late().await,
        }
    }

    /// Waits, because the lock is busy: by spinning, in a queue, by polling, or for a wake-up.
    async fn busy(&mut self, ttl: Option<Ttl>, listeners: u64) -> Result<Step> {
        let now = self.request.core.clock.now();
        (self.busy, self.failures) = (Some(now), Failures::default());
        self.front.busy();
        if !self.request.waits() || now >= self.request.limit {
            return Ok(Step::GiveUp);
        }
        self.warn_if_suspicious(now);
        if let Some(spin) = self.request.spin {
            // Ends before the wait limit, so that there is a last try shortly before it.
            let left = self.request.limit.since(now);
            self.nap(spin.pause(self.spins).min(left - left / 4)).await;
            self.spins += 1;
            return self.again();
        }
        self.keep_position(now);
        if self.front.unqueued && self.request.queueing() == Queueing::Waiting {
            return self.queue_up().await;
        }
        self.sleep_while_busy(ttl, listeners).await;
        self.again()
    }

    /// Subscribes, or sleeps until the next attempt. Polls instead where many others listen.
    async fn sleep_while_busy(&mut self, ttl: Option<Ttl>, listeners: u64) {
        match self.wakes {
            Wakes::Polling => self.nap(jittered(POLL)).await,
            Wakes::None if listeners >= CROWD => {
                self.nap(self.pause(ttl).min(jittered(CROWDED))).await
            }
            // About `CROWD` waiters stay, and not always the same ones.
            Wakes::Subscribed(_)
                if listeners >= CROWD && fastrand::u64(..listeners + LEAVING) >= CROWD =>
            {
                self.front.subscription = None;
                self.nap(self.pause(ttl).min(jittered(CROWDED))).await;
            }
            Wakes::None => self.subscribe(self.pause(ttl)).await,
            Wakes::Subscribed(seen) => {
                tracing::trace!(lock = %self.request.resource.name, most = ?self.pause(ttl), "waiting");
                self.sleep(seen, self.pause(ttl)).await;
                let failure = self.front.subscription.as_ref().and_then(Subscription::failure);
                if let Some(fault) = failure {
                    self.front.subscription = None;
                    self.poll_instead(&fault);
                }
            }
        }
    }

    fn warn_if_suspicious(&mut self, now: Tick) {
        if self.warned || now.since(self.started) < SUSPICIOUS {
            return;
        }
        self.warned = true;
        // A client may hold some permits and wait for others: nothing is wrong then.
        if self.request.queueing() != Queueing::Waiting {
            self.request.core.warn_waiting_for_itself(&self.request.resource);
        }
    }

    /// Starts the heartbeats of a waiter in the store's queue.
    fn keep_position(&mut self, now: Tick) {
        if let Some(pending) = &self.pending
            && self.request.resource.kind == Kind::Fair
            && self.position.is_none()
        {
            let resource = &self.request.resource;
            self.position =
                Some(QueuePosition::keep(&self.request.core, resource, pending.owner, now));
        }
    }

    /// Queues behind the waiters of this client, and tries again at the front of the queue.
    async fn queue_up(&mut self) -> Result<Step> {
        let (core, request) = (&self.request.core, self.request);
        let handoff = || Some(Handoff::new(request));
        self.front = match LocalQueues::enter(core, &request.resource, handoff) {
            Entered::Front(front) => front,
            Entered::Queued(position) => match Box::pin(position.serve(request)).await {
                Some(Served::Front(front)) => front,
                Some(Served::Failed(fault)) => {
                    return Err(core.error(fault, &request.resource, Phase::Acquire));
                }
                // Permits are held without a front, so they are never handed off.
                Some(Served::Granted(_)) | None => {
                    self.busy = self.busy.filter(|_| !core.is_silent(&request.resource.name));
                    return Ok(Step::GiveUp);
                }
            },
            Entered::Occupied => return Ok(Step::GiveUp),
        };
        // After a wait that may have been long, an unanswered request is not repeated.
        self.pending = self.pending.take().filter(|pending| !pending.is_indeterminate());
        self.again()
    }

    /// Sleeps until a wake-up beyond `seen`, the end of `pause`, the wait limit or the end of the
    /// client.
    async fn sleep(&self, seen: u64, pause: Duration) {
        let Some(subscription) = &self.front.subscription else { return };
        let core = &self.request.core;
        let wake = (core.clock.now() + pause).min(self.request.limit);
        let mut closing = std::pin::pin!(core.closing.notified());
        closing.as_mut().enable();
        let due = OptionFuture::from(self.position.as_ref().map(QueuePosition::due));
        if core.is_open() {
            tokio::select! {
                biased;
                _ = until(&core.clock, wake, subscription.beyond(seen)) => {}
                Some(()) = due => {}
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
            Some(Ttl::For(left)) => recheck.min(left + Duration::from_millis(1)),
            Some(Ttl::Forever) | None => recheck,
        }
    }

    /// Continues with the next attempt, unless the wait limit has passed. If the last busy answer
    /// is old, asks once more to find out whether the store still answers.
    fn again(&mut self) -> Result<Step> {
        if !self.request.core.is_open() {
            return Err(Error::Closed { lock: Some(self.request.resource.name.clone()) });
        }
        let now = self.request.core.clock.now();
        if now < self.request.limit || self.was_opened() {
            return Ok(Step::Again);
        }
        self.busy = self.busy.filter(|_| !self.request.core.is_silent(&self.request.resource.name));
        match self.busy {
            Some(at) if now.since(at) >= STALE => Ok(Step::Again),
            _ => Ok(Step::GiveUp),
        }
    }

    /// When to give up on a store that does not answer.
    fn give_up_at(&self) -> Tick {
        let mut after = self.request.core.options.unreachable_after;
        if self.request.resource.kind == Kind::Semaphore {
            // After that the store no longer recognises a repetition.
            after = after.min(RETRY_COUNTERS);
        }
        self.failures.since.map_or(Tick::NEVER, |since| since + after)
    }

    async fn give_up(mut self) -> Outcome {
        let outcome =
            if self.busy.is_some() { Ok(None) } else { Err(self.error(self.fault_so_far())) };
        let pending = self.pending.take();
        // The next local waiter gets the front now.
        drop(self);
        if let Some(pending) = pending {
            pending.leave().await;
        }
        outcome
    }

    /// Why the store has not served: its last error reply, if there was one.
    fn fault_so_far(&self) -> Fault {
        self.failures.last.clone().unwrap_or_else(no_answer)
    }

    /// The store has not served for too long: fails the waiters in the local queue, too.
    fn unreachable(&self) -> Error {
        let fault = self.fault_so_far();
        self.request.core.local_queues.fail(&self.request.resource, &fault);
        self.error(fault)
    }

    fn error(&self, fault: Fault) -> Error {
        let Resource { kind, name } = &self.request.resource;
        let since =
            self.failures.since.into_iter().chain(self.request.core.silent_since(name)).min();
        let silent = since.map(|since| self.request.core.clock.now().since(since));
        Error::from_fault(fault, Some((name, *kind)), self.request.phase(), silent)
    }

    /// Retries after a grant that arrived after its lease had expired: the store is too slow for
    /// it.
    async fn granted_late(&mut self) -> Result<Step> {
        // Dropping it undoes the grant.
        self.pending = None;
        if self.front.unqueued {
            // The subscription and the queue position belong to the undone request.
            (self.front.subscription, self.position) = (None, None);
        }
        let over = self.request.core.clock.now() >= self.give_up_at();
        if over || !self.request.waits() && self.failures.tries > 3 {
            let detail = "each grant arrived after its lease had ended".into();
            return Err(self.error(Fault::Unreachable { maybe_ran: true, detail }));
        }
        self.back_off().await
    }

    /// Retries after a temporary fault, for as long as the caller and the settings allow.
    async fn failed(&mut self, fault: Fault) -> Result<Step> {
        let resource = &self.request.resource;
        let over = self.request.core.clock.now() >= self.give_up_at();
        if !fault.may_pass() || over || !self.request.waits() {
            if over {
                // The waiters in the local queue have waited for the same store.
                self.request.core.local_queues.fail(resource, &fault);
            }
            return Err(self.error(fault));
        }
        tracing::debug!(lock = %resource.name, %fault, "the store does not serve; waiting on");
        self.front.failed(&fault);
        self.failures.last = Some(fault);
        self.back_off().await
    }

    async fn back_off(&mut self) -> Result<Step> {
        self.nap(self.request.core.options.backoff(self.failures.tries)).await;
        self.failures.tries += 1;
        self.again()
    }

    /// Subscribes. If that takes long, returns to the loop for the next attempt.
    async fn subscribe(&mut self, pause: Duration) {
        let core = &self.request.core;
        let Some(pending) = &self.pending else { return };
        let subscribing = core.backend.subscribe(self.request.topic(pending.owner));
        let longest = core.clock.now() + pause.min(core.options.response_timeout);
        let limit = self.request.limit;
        match until(&core.clock, longest.min(limit), subscribing).await {
            Some(Ok(subscription)) => self.front.subscription = Some(subscription),
            Some(Err(fault)) if !fault.may_pass() => self.poll_instead(&fault),
            // Whether the store answers at all is decided by the next attempt.
            Some(Err(_)) | None => self.nap(core.options.backoff(self.failures.tries)).await,
        }
    }

    /// Switches to polling, because no wake-up will arrive.
    fn poll_instead(&mut self, fault: &Fault) {
        if *fault == Fault::Closed {
            return;
        }
        self.wakes = Wakes::Polling;
        if !self.request.core.polling_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(%fault, "cannot subscribe to wake-ups: waiting by polling instead");
        }
    }

    /// Sleeps, at most until the wait limit.
    async fn nap(&self, span: Duration) {
        let wake = (self.request.core.clock.now() + span).min(self.request.limit);
        if let Some(instant) = self.request.core.clock.instant(wake) {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(instant) => {}
                () = self.request.core.closing.notified() => {}
            }
        }
    }
}
