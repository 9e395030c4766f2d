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

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::heartbeat::QueuePosition;
use super::holds::HoldId;
use super::lease::{Lease, deadline};
use super::local_queue::{Entered, Front, Grant, Handoff, LocalQueues, Served};
use super::pending_acquire::PendingAcquire;
use super::request::{Queueing, Request, Wait};
use super::{Core, RETRY_COUNTERS, SUSPICIOUS, Tick, jittered, no_answer, until};
use crate::backend::{Attempt, Fault, Kind, Resource, Subscription, Ttl};
use crate::config::RECHECK;
use crate::error::{Error, Phase, Result};

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

/// An acquired hold.
pub(crate) type Acquired = (Arc<Lease>, HoldId);

/// Acquires for an owner that does not hold the lock yet.
pub(super) async fn acquire_anew(core: &Arc<Core>, request: &Request) -> Result<Option<Acquired>> {
    // One side of a lock beside the other is no new lock.
    if request.beside.is_none() {
        core.ensure_open(&request.resource)?;
    }
    let started = core.clock.now();
    acquire_entered(core, request, LocalQueues::join(core, request), started).await
}

/// The same from the local queue on.
pub(super) async fn acquire_entered(
    core: &Arc<Core>,
    request: &Request,
    entered: Entered,
    started: Tick,
) -> Result<Option<Acquired>> {
    let granted = granted(core, request, entered, started).await?;
    Ok(granted.map(|granted| begin(granted, request, started)))
}

/// Begins the lease of a grant.
pub(super) fn begin((grant, now): Granted, request: &Request, started: Tick) -> Acquired {
    let lease = Lease::begin(grant, request, now);
    tracing::debug!(lock = %lease.resource.name, owner = %lease.owner,
        waited = ?now.since(started), "acquired");
    (lease, 0)
}

/// Waits until a latch is open. Returns false when the wait limit passes first.
pub(crate) async fn wait_until_open(core: &Arc<Core>, request: &Request) -> Result<bool> {
    core.ensure_open(&request.resource)?;
    let entered = LocalQueues::join(core, request);
    Ok(granted(core, request, entered, core.clock.now()).await?.is_some())
}

/// A grant, and when it arrived.
pub(super) type Granted = (Grant, Tick);

/// `None` if the lock is busy at the wait limit.
pub(super) type Outcome = Result<Option<Granted>>;

/// Waits for the grant: first in the local queue, then in the loop.
async fn granted(core: &Arc<Core>, request: &Request, at: Entered, started: Tick) -> Outcome {
    match at {
        Entered::Front(front) => {
            Box::pin(AcquireLoop::new(core, request, front, started).run(None)).await
        }
        Entered::Occupied => Ok(None),
        Entered::Queued(position) => {
            // Boxed separately, to keep the waiter's future small.
            let served = Box::pin(position.serve(request)).await;
            Box::pin(after_queue(core, request, served)).await
        }
    }
}

/// Continues after the local queue.
async fn after_queue(core: &Arc<Core>, request: &Request, served: Option<Served>) -> Outcome {
    let now = core.clock.now();
    let front = match served {
        Some(Served::Front(front)) => {
            // A drain fails the waiters; this one was just served.
            if request.beside.is_none() {
                core.ensure_open(&request.resource)?;
            }
            front
        }
        Some(Served::Granted(grant)) if is_in_time(core, request, grant.sent, now) => {
            return Ok(Some((grant, now)));
        }
        // Dropping the rest of a late grant undoes it.
        Some(Served::Granted(grant)) => grant.front,
        Some(Served::Failed(fault)) => {
            return Err(core.error(fault, &request.resource, request.phase()));
        }
        // This waiter has sent no request, but other requests may have shown that the store does
        // not answer.
        None if core.is_silent(&request.resource.name) => {
            return Err(core.error(no_answer(), &request.resource, request.phase()));
        }
        None => return Ok(None),
    };
    AcquireLoop::new(core, request, front, now).run(None).await
}

/// Returns the token of a grant that arrived in time, and when it arrived.
pub(super) fn judge(
    core: &Core,
    request: &Request,
    front: &mut Front,
    answer: &Answer,
) -> Option<Judged> {
    let (Ok(Attempt::Granted { token }), sent) = answer else { return None };
    let now = core.clock.now();
    front.acquired(now);
    is_in_time(core, request, *sent, now).then_some((*token, now))
}

/// Whether a grant of a request sent at `sent` arrived before its lease expired.
pub(super) fn is_in_time(core: &Core, request: &Request, sent: Tick, now: Tick) -> bool {
    now < deadline(core, sent, request.term.ttl)
}

/// One acquire at the front of the local queue.
pub(super) struct AcquireLoop<'a> {
    core: &'a Arc<Core>,
    request: &'a Request,
    front: Front,
    /// `None` while a request is under way, whose future owns it.
    pub(super) pending: Option<PendingAcquire>,
    /// The count of wake-ups before the last attempt, if there was a subscription.
    seen: Option<u64>,
    started: Tick,
    /// The current time, valid until the next `await`.
    now: Option<Tick>,
    failures: u32,
    /// When the first of the current series of failed attempts was sent.
    failing_since: Option<Tick>,
    /// Why the last of them failed.
    refusal: Option<Fault>,
    polling: bool,
    /// When the store answered busy, unless it gave another answer since. Decides at the wait
    /// limit.
    busy: Option<Tick>,
    /// Whether the log says that this acquire waits for its own client.
    warned: bool,
    /// How often the lock was busy in a row; determines the pause of a spinning waiter.
    spins: u32,
    /// The position in the store's queue, kept by heartbeats.
    position: Option<QueuePosition>,
}

/// The answer to one attempt, and from when its TTL counts.
pub(super) type Answer = (Result<Attempt, Fault>, Tick);

/// The token of a grant in time, and when it arrived.
pub(super) type Judged = (Option<u64>, Tick);

/// The outcome of one round of the loop that did not acquire the lock.
enum Step {
    Again,
    GiveUp,
}

impl<'a> AcquireLoop<'a> {
    pub(super) fn new(
        core: &'a Arc<Core>,
        request: &'a Request,
        mut front: Front,
        now: Tick,
    ) -> Self {
        let mut pending = None;
        if request.resource.kind == Kind::Fair
            && request.wait != Wait::Never
            && let Some((owner, subscription)) = core.identities.take(&request.resource.name)
        {
            pending = Some(PendingAcquire::of(core, &request.resource, owner));
            front.subscription = Some(subscription);
        }
        Self {
            core,
            request,
            front,
            pending,
            seen: None,
            started: now,
            now: Some(now),
            failures: 0,
            failing_since: None,
            refusal: None,
            polling: false,
            busy: None,
            warned: false,
            spins: 0,
            position: None,
        }
    }

    /// Tries until the lock is granted, the wait limit passes or the store fails. `answer` is the
    /// answer to an attempt that was made already.
    pub(super) async fn run(mut self, mut answer: Option<Answer>) -> Outcome {
        let pause = self.front.pause(self.started);
        if answer.is_some() || !pause.is_zero() {
            self.now = None;
        }
        if answer.is_none() && !pause.is_zero() {
            self.nap(pause).await;
        }
        loop {
            let known = match answer.take() {
                None => self.attempt().await?,
                known => known,
            };
            let Some(answer) = known else { return self.give_up().await };
            if let Some((token, now)) = judge(self.core, self.request, &mut self.front, &answer) {
                return Ok(Some((self.grant(token, answer.1), now)));
            }
            match self.next(answer).await? {
                Step::Again => {}
                Step::GiveUp => return self.give_up().await,
            }
        }
    }

    /// Makes one attempt. Returns `None` if the wait limit passes before the answer arrives.
    async fn attempt(&mut self) -> Result<Option<Answer>> {
        let core = self.core;
        let sent = self.now.take().unwrap_or_else(|| core.clock.now());
        if self.was_opened() {
            return Ok(Some((Ok(Attempt::GRANTED), sent)));
        }
        let give_up_at = self.give_up_at();
        if sent >= give_up_at {
            return Err(self.unreachable());
        }
        let answer_by =
            core.answer_by(&self.request.resource.name, self.request.wait.limit(), sent);
        let answer = until(&core.clock, answer_by.min(give_up_at), self.send(sent)).await;
        if self.was_opened() {
            return Ok(Some((Ok(Attempt::GRANTED), sent)));
        }
        if answer.is_none() {
            if give_up_at < answer_by {
                // The store did not answer, whatever it answered before: if it had the time to.
                let had_time = core.clock.now().since(sent) >= core.options.response_timeout;
                self.refusal = self.refusal.take().filter(|_| !had_time);
                return Err(self.unreachable());
            }
            self.busy = None;
            self.failing_since.get_or_insert(sent);
        }
        Ok(answer)
    }

    /// Whether a message said that the latch was opened. It may be closed again before the next look,
    /// so the message suffices.
    fn was_opened(&self) -> bool {
        self.front.subscription.as_ref().is_some_and(Subscription::was_opened)
    }

    /// Sends one request. If the future is dropped, the request is completed and undone.
    async fn send(&mut self, sent: Tick) -> Answer {
        self.seen = self.front.subscription.as_ref().map(Subscription::seen);
        let new = || PendingAcquire::new(self.core, self.request);
        let keeps = |_: &_| self.core.keeps_identities(&self.request.resource.name);
        let pending = self.pending.take().filter(keeps).unwrap_or_else(new);
        let (answer, pending) = pending.attempt(self.request, sent).await;
        self.pending = Some(pending);
        answer
    }

    fn grant(self, token: Option<u64>, sent: Tick) -> Grant {
        let new = || PendingAcquire::new(self.core, self.request);
        Grant { pending: self.pending.unwrap_or_else(new), front: self.front, token, sent }
    }

    /// Acts on an attempt that did not acquire the lock.
    async fn next(&mut self, (answer, sent): Answer) -> Result<Step> {
        match &answer {
            Ok(Attempt::Busy { ttl, listeners }) => return self.busy(*ttl, *listeners).await,
            Ok(Attempt::Gone) => return self.busy(None, 0).await,
            // It serves.
            Err(fault) if fault.is_moving() => self.failing_since = None,
            _ => drop(self.failing_since.get_or_insert(sent)),
        }
        self.busy = None;
        match answer {
            Err(fault) => self.failed(fault).await,
            Ok(_) => self.granted_late().await,
        }
    }

    /// Waits, because the lock is busy: by spinning, in a queue, by polling, or for a wake-up.
    async fn busy(&mut self, ttl: Option<Ttl>, listeners: u64) -> Result<Step> {
        let now = self.core.clock.now();
        (self.busy, self.failing_since, self.failures, self.refusal) = (Some(now), None, 0, None);
        self.front.busy();
        if self.request.wait == Wait::Never || now >= self.request.wait.limit() {
            return Ok(Step::GiveUp);
        }
        self.warn_if_suspicious(now);
        if let Some(spin) = self.request.spin {
            // Ends before the wait limit, so that there is a last try shortly before it.
            let left = self.request.wait.limit().since(now);
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
        match self.seen {
            None if self.polling => self.nap(jittered(POLL)).await,
            None if listeners >= CROWD => self.nap(self.pause(ttl).min(jittered(CROWDED))).await,
            // About `CROWD` waiters stay, and not always the same ones.
            Some(_) if listeners >= CROWD && fastrand::u64(..listeners + LEAVING) >= CROWD => {
                self.front.subscription = None;
                self.nap(self.pause(ttl).min(jittered(CROWDED))).await;
            }
            None => self.subscribe(self.pause(ttl)).await,
            Some(seen) => {
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
            self.core.warn_waiting_for_itself(&self.request.resource);
        }
    }

    /// Starts the heartbeats of a waiter in the store's queue.
    fn keep_position(&mut self, now: Tick) {
        if let Some(pending) = &self.pending
            && self.request.resource.kind == Kind::Fair
            && self.position.is_none()
        {
            let resource = &self.request.resource;
            self.position = Some(QueuePosition::keep(self.core, resource, pending.owner, now));
        }
    }

    /// Queues behind the waiters of this client, and tries again at the front of the queue.
    async fn queue_up(&mut self) -> Result<Step> {
        let (core, request) = (self.core, self.request);
        let handoff = || Some(Handoff::new(core, request));
        self.front = match LocalQueues::enter(core, &request.resource, handoff) {
            Entered::Front(front) => front,
            Entered::Queued(mut position) => {
                let served = until(&core.clock, request.wait.limit(), position.wait()).await;
                match served.or_else(|| position.failure().map(Served::Failed)) {
                    Some(Served::Front(front)) => front,
                    Some(Served::Failed(fault)) => {
                        return Err(core.error(fault, &request.resource, Phase::Acquire));
                    }
                    // Permits are held without a front, so they are never handed off.
                    Some(Served::Granted(_)) | None => {
                        self.busy = self.busy.filter(|_| !core.is_silent(&request.resource.name));
                        return Ok(Step::GiveUp);
                    }
                }
            }
            Entered::Occupied => return Ok(Step::GiveUp),
        };
        // After a wait that may have been long, an unanswered request is not repeated.
        self.pending = self.pending.take().filter(|pending| !pending.indeterminate);
        self.again()
    }

    /// Sleeps until a wake-up beyond `seen`, the end of `pause`, the wait limit or the end of the
    /// client.
    async fn sleep(&self, seen: u64, pause: Duration) {
        let Some(subscription) = &self.front.subscription else { return };
        let core = self.core;
        let wake = (core.clock.now() + pause).min(self.request.wait.limit());
        let mut closing = std::pin::pin!(core.closing.notified());
        closing.as_mut().enable();
        let due = async {
            match &self.position {
                Some(position) => position.due().await,
                None => std::future::pending().await,
            }
        };
        if core.is_open() {
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
    fn again(&mut self) -> Result<Step> {
        if !self.core.is_open() {
            return Err(Error::Closed { lock: Some(self.request.resource.name.clone()) });
        }
        let now = self.core.clock.now();
        if now < self.request.wait.limit() || self.was_opened() {
            return Ok(Step::Again);
        }
        self.busy = self.busy.filter(|_| !self.core.is_silent(&self.request.resource.name));
        match self.busy {
            Some(at) if now.since(at) >= STALE => Ok(Step::Again),
            _ => Ok(Step::GiveUp),
        }
    }

    /// When to give up on a store that does not answer.
    fn give_up_at(&self) -> Tick {
        let mut after = self.core.options.unreachable_after;
        if self.request.resource.kind == Kind::Semaphore {
            // After that the store no longer recognises a repetition.
            after = after.min(RETRY_COUNTERS);
        }
        self.failing_since.map_or(Tick::NEVER, |since| since + after)
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
        self.refusal.clone().unwrap_or_else(no_answer)
    }

    /// The store has not served for too long: fails the waiters in the local queue, too.
    fn unreachable(&self) -> Error {
        let fault = self.fault_so_far();
        self.core.local_queues.fail(&self.request.resource, &fault);
        self.error(fault)
    }

    fn error(&self, fault: Fault) -> Error {
        let Resource { kind, name } = &self.request.resource;
        let since = self.failing_since.into_iter().chain(self.core.silent_since(name)).min();
        let silent = since.map(|since| self.core.clock.now().since(since));
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
        let over = self.core.clock.now() >= self.give_up_at();
        if over || self.request.wait == Wait::Never && self.failures > 3 {
            let detail = "each grant arrived after its lease had ended".into();
            return Err(self.error(Fault::Unreachable { maybe_ran: true, detail }));
        }
        self.back_off().await
    }

    /// Retries after a temporary fault, for as long as the caller and the settings allow.
    async fn failed(&mut self, fault: Fault) -> Result<Step> {
        let resource = &self.request.resource;
        let over = self.core.clock.now() >= self.give_up_at();
        if !fault.may_pass() || over || self.request.wait == Wait::Never {
            if over {
                // The waiters in the local queue have waited for the same store.
                self.core.local_queues.fail(resource, &fault);
            }
            return Err(self.error(fault));
        }
        tracing::debug!(lock = %resource.name, %fault, "the store does not serve; waiting on");
        self.front.failed(&fault);
        self.refusal = Some(fault);
        self.back_off().await
    }

    async fn back_off(&mut self) -> Result<Step> {
        self.nap(self.core.options.backoff(self.failures)).await;
        self.failures += 1;
        self.again()
    }

    /// Subscribes. If that takes long, returns to the loop for the next attempt.
    async fn subscribe(&mut self, pause: Duration) {
        let core = self.core;
        let Some(pending) = &self.pending else { return };
        let subscribing = core.backend.subscribe(self.request.topic(pending.owner));
        let longest = core.clock.now() + pause.min(core.options.response_timeout);
        let limit = self.request.wait.limit();
        match until(&core.clock, longest.min(limit), subscribing).await {
            Some(Ok(subscription)) => self.front.subscription = Some(subscription),
            Some(Err(fault)) if !fault.may_pass() => self.poll_instead(&fault),
            // Whether the store answers at all is decided by the next attempt.
            Some(Err(_)) | None => self.nap(core.options.backoff(self.failures)).await,
        }
    }

    /// Switches to polling, because no wake-up will arrive.
    fn poll_instead(&mut self, fault: &Fault) {
        if *fault == Fault::Closed {
            return;
        }
        self.polling = true;
        if !self.core.polling_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(%fault, "cannot subscribe to wake-ups: waiting by polling instead");
        }
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
