//! The part that all primitives share: the acquire loop, the leases, the watchdog, the reaper.
//!
//! The engine knows stores only as a [`Backend`]. The tasks of a client are the watchdog, the reaper,
//! and those of its connections: none per lock and none per request.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;

use crate::Owner;
use crate::backend::{Backend, ClientInfo, Fault, Fenced, Resource};
use crate::config::{ClientOptions, MAX_LEASE};
use crate::error::{Error, LostReason, Phase, Result};

pub(crate) mod acquire;
mod announcer;
pub(crate) mod counter;
mod home;
pub(crate) mod lease;
mod local_queue;
pub(crate) mod multi;
pub(crate) mod owners;
mod pending_acquire;
mod reaper;
mod registry;
pub(crate) mod release;
mod renewal;
pub(crate) mod request;
mod watchdog;

use crate::clock::Clock;
pub(crate) use crate::clock::Tick;
pub(crate) use lease::Lease;

pub(crate) use home::Home;
use local_queue::LocalQueues;
use owners::Owners;
use reaper::Reaper;
pub(crate) use reaper::Rescue;
use registry::Registry;

/// One client: the state that its handles, guards and tasks share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) id: Uuid,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: ClientOptions,
    pub(crate) clock: Clock,
    pub(crate) info: ClientInfo,
    pub(crate) home: Arc<Home>,
    local_queues: LocalQueues,
    owners: Owners,
    registry: Arc<Registry>,
    reaper: Reaper,
    closed: AtomicBool,
    /// Closed without a release in the store.
    abandoned: AtomicBool,
    closing: Notify,
    /// Since when the store has not answered (0: it answers), and when that was last noticed.
    silent_since: AtomicU64,
    last_failure: AtomicU64,
    polling_warned: AtomicBool,
    /// Locks that were left held.
    left: Mutex<Vec<announcer::Left>>,
    last_warned: Mutex<Option<Tick>>,
}

impl Core {
    /// Starts a client and its tasks. Must be called on the runtime that is to run these tasks.
    pub(crate) fn start(backend: Arc<dyn Backend>, options: ClientOptions) -> Arc<Self> {
        let clock = options.clock.clone().unwrap_or_else(Clock::system);
        let registry = Arc::new(Registry::new());
        let home = Arc::new(Home::here());
        let core = Arc::new(Self {
            id: Uuid::new_v4(),
            backend,
            clock,
            info: who(&options),
            home: Arc::clone(&home),
            local_queues: LocalQueues::default(),
            owners: Owners::default(),
            registry: Arc::clone(&registry),
            reaper: Reaper::start(home),
            closed: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            closing: Notify::new(),
            silent_since: AtomicU64::new(0),
            last_failure: AtomicU64::new(0),
            polling_warned: AtomicBool::new(false),
            left: Mutex::default(),
            last_warned: Mutex::new(None),
            options,
        });
        tokio::spawn(watchdog::run(registry, Arc::downgrade(&core)));
        core
    }

    /// How fencing tokens are issued.
    pub(crate) fn fencing(&self) -> Fenced {
        Fenced { ttl: self.options.token_ttl.map(|ttl| ttl.as_millis() as u64) }
    }

    pub(crate) fn ensure_open(&self, resource: &Resource) -> Result<()> {
        if self.is_closed() {
            return Err(Error::Closed { lock: Some(resource.name.clone()) });
        }
        Ok(())
    }

    /// Fails for an owner of another client: its number means nothing here.
    pub(crate) fn ensure_own(&self, owner: &Owner, resource: &Resource) -> Result<()> {
        if owner.client != self.id {
            let detail = "the owner was made by another client";
            return Err(Error::invalid(Some(&resource.name), detail));
        }
        Ok(())
    }

    pub(crate) fn owned(&self, resource: &Resource, owner: &Owner) -> Option<Arc<Lease>> {
        self.owners.lease(resource, owner)
    }

    /// Whether it was closed, or this is a forked child, in which it is closed as well.
    pub(crate) fn is_closed(&self) -> bool {
        self.was_closed() || self.home.is_forked()
    }

    /// Whether it was closed, without the check for a fork.
    fn was_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.local_queues.fail_all(&Fault::Closed);
            self.closing.notify_waiters();
        }
    }

    /// Ends it as the death of the process would: nothing more is sent, and locks stay held until
    /// their leases expire.
    pub(crate) fn abandon(&self) {
        if self.home.is_forked() {
            return;
        }
        self.abandoned.store(true, Ordering::Release);
        self.close();
        for lease in self.registry.all() {
            lease.lose(LostReason::Closed);
        }
        self.registry.stop();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Releases everything, waits for the confirmation for at most one response timeout, and closes
    /// the store. Does nothing in a forked child.
    pub(crate) async fn shutdown(self: &Arc<Self>) {
        if self.home.is_forked() {
            return;
        }
        self.close();
        if !self.is_abandoned() {
            for lease in self.registry.all() {
                lease.close();
            }
            let _ = tokio::time::timeout(self.options.response_timeout, self.settled()).await;
            self.registry.stop();
        }
        self.backend.close().await;
    }

    /// Resolves when nothing of this client is left in the store.
    async fn settled(&self) {
        // A pending acquire may still be granted, and is then released.
        self.local_queues.emptied().await;
        self.reaper.drained().await;
        self.registry.stop();
        let _ = self.backend.adjust(self.farewell()).await;
    }

    /// Records whether the store answers a request that was sent at `sent`. An error reply is an
    /// answer.
    fn note<T>(&self, sent: Tick, answer: &std::result::Result<T, Fault>) {
        let relaxed = Ordering::Relaxed;
        match answer {
            Err(Fault::Unreachable { .. }) => {
                let last = self.last_failure.swap(self.clock.now().as_nanos(), relaxed);
                let anew = sent.since(Tick::from_nanos(last)) > self.failures_apart();
                if anew || self.silent_since.load(relaxed) == 0 {
                    self.silent_since.store(sent.as_nanos().max(1), relaxed);
                }
            }
            _ if self.silent_since.load(relaxed) != 0 => self.answered(),
            _ => {}
        }
    }

    /// Records that the store answers.
    fn answered(&self) {
        self.silent_since.store(0, Ordering::Relaxed);
    }

    /// Since when the store has not answered, if the last request got no answer. A failure long
    /// ago, with no request since, says nothing about the present.
    fn silent_since(&self) -> Option<Tick> {
        let since = self.silent_since.load(Ordering::Relaxed);
        if since == 0 {
            return None;
        }
        let last = Tick::from_nanos(self.last_failure.load(Ordering::Relaxed));
        let known = self.clock.now().since(last) <= self.failures_apart();
        known.then_some(Tick::from_nanos(since))
    }

    /// The longest time between two failures of a repeated request.
    fn failures_apart(&self) -> Duration {
        self.options.response_timeout.saturating_add(self.options.max_backoff.saturating_mul(2))
    }

    fn silent_for(&self) -> Option<Duration> {
        self.silent_since().map(|since| self.clock.now().since(since))
    }

    /// Until when to wait for the answer to a request sent at `sent`, with the wait limit `limit`.
    /// The limit applies to the wait for a lock and cuts no round trip, unless the store is known
    /// not to answer.
    fn answer_by(&self, limit: Tick, sent: Tick) -> Tick {
        match self.is_silent() {
            true => limit,
            false => limit.max(sent + self.options.response_timeout),
        }
    }

    /// Whether the store has not answered for a response timeout. A connection that has just broken
    /// says nothing: the next answer may arrive at once.
    fn is_silent(&self) -> bool {
        self.silent_for().is_some_and(|silent| silent >= self.options.response_timeout)
    }

    /// Fails all waiters in local queues once the store has not answered for `unreachable_after`.
    /// The task that has the seat notices by itself.
    fn fail_all_waiters(&self) {
        if self.silent_for().is_some_and(|silent| silent >= self.options.unreachable_after) {
            self.local_queues.fail_all(&no_answer("the store does not answer"));
        }
    }

    /// The pause after a temporary fault.
    fn backoff(&self, failures: u32) -> Duration {
        self.options.backoff(failures)
    }

    /// The part of a lease that is not used, because clocks differ. At most half of it, so that
    /// even a lease of a few milliseconds can be held.
    pub(crate) fn drift(&self, ttl: u64) -> Duration {
        let lease = Duration::from_millis(ttl);
        let drift = lease.mul_f64(self.options.drift_ratio);
        drift.saturating_add(self.options.drift_fixed).min(lease / 2)
    }

    pub(crate) fn error(&self, fault: Fault, resource: &Resource, phase: Phase) -> Error {
        let silent = self.silent_for();
        Error::from_fault(fault, Some((&resource.name, resource.kind)), phase, silent)
    }

    /// Runs `op` to completion, even if the caller drops the future half-way.
    pub(crate) fn unbroken<T: Send + 'static>(
        &self,
        op: impl Future<Output = T> + Send + 'static,
    ) -> Rescue<T> {
        Rescue::new(Box::pin(op), self.reaper.clone())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.home.is_forked() {
            // The tasks and connections are the parent's: dropping them would touch state that both
            // share.
            std::mem::forget((Arc::clone(&self.backend), self.reaper.clone()));
            return;
        }
        self.registry.stop();
    }
}

/// How long an unanswered change of a counter is repeated: a third of the time for which the store
/// remembers it.
pub(crate) const RETRY_COUNTERS: Duration = Duration::from_secs(20);

/// How long to try to undo a change that may have been applied: a little less than the store
/// remembers it.
pub(crate) const UNDO_COUNTERS: Duration = Duration::from_secs(55);

/// The fault for a caller whose wait for an answer has ended.
fn no_answer(detail: &str) -> Fault {
    Fault::Unreachable { maybe_ran: true, detail: detail.to_owned() }
}

fn who(options: &ClientOptions) -> ClientInfo {
    let info = ClientInfo::of_this_process();
    let program = options.program.clone().unwrap_or(info.program);
    ClientInfo { program, ..info }
}

/// Returns a lease in whole milliseconds, rounded once: the wire and the deadline use the same
/// number.
pub(crate) fn lease_millis(resource: &Resource, lease: Duration) -> Result<u64> {
    if lease < Duration::from_millis(1) || lease > MAX_LEASE {
        let detail = format!("a lease must be between 1 ms and a century, not {lease:?}");
        return Err(Error::invalid(Some(&resource.name), detail));
    }
    Ok(lease.as_millis() as u64)
}

/// Returns a random duration between half of `span` and all of it.
fn jittered(span: Duration) -> Duration {
    span.mul_f64(0.5 + fastrand::f64() / 2.0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the outcome of `work`, or `None` when `limit` comes first. Reads the clock and sets a
/// timer only if the work is not done at its first poll: most of it is.
async fn until<T>(clock: &Clock, limit: Tick, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let first = std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
    if let Poll::Ready(done) = first {
        return Some(done);
    }
    match clock.instant(limit) {
        None => Some(work.await),
        Some(instant) => tokio::time::timeout_at(instant, work).await.ok(),
    }
}
