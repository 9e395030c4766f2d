//! The part that all primitives share: the acquire loop, the leases, the watchdog, the reaper.
//!
//! The engine knows stores only as a [`Backend`]. The tasks of a client are `tick.rs`, the reaper, and
//! those of its connections: none per lock and none per request.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use uuid::Uuid;

use crate::backend::locked as lock;
use crate::backend::{Backend, Capabilities, ClientInfo, Fault, Fenced, Kind, Lane, Resource};
use crate::carrier::{self, Call, Carrier};
use crate::error::{Error, LostReason, Phase, Result};
use crate::options::{ClientOptions, MAX_LEASE};
use crate::{LockName, Owner};

pub(crate) mod acquire;
mod announcer;
pub(crate) mod counter;
mod executor;
mod handoff;
mod heartbeat;
mod identities;
pub(crate) mod lease;
mod local_queue;
pub(crate) mod multi;
mod outage;
pub(crate) mod owners;
mod pending_acquire;
mod reaper;
pub(crate) mod reenter;
mod registry;
pub(crate) mod release;
mod retry;
pub(crate) mod terms;
mod tick;
mod wait;
mod watchdog;

pub(crate) use crate::clock::Tick;
use crate::clock::{Clock, nanos};
pub(crate) use lease::Lease;

use executor::Executor;
use heartbeat::Positions;
use identities::Identities;
use local_queue::LocalQueues;
use outage::Outages;
use owners::Owners;
use reaper::Reaper;
pub(crate) use reaper::RunToCompletion;
use registry::Registry;

/// A task that waits this long for a lock that its own client holds is logged.
const SUSPICIOUS: Duration = Duration::from_secs(5);

/// One client: the state that its handles, guards and tasks share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) id: Uuid,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: ClientOptions,
    pub(crate) clock: Clock,
    pub(crate) info: ClientInfo,
    pub(crate) executor: Arc<Executor>,
    /// Of a client for threads. Its handles and guards keep it alive, and the core does not: the carrier has the
    /// core.
    carrier: OnceLock<Weak<Carrier>>,
    local_queues: LocalQueues,
    owners: Owners,
    registry: Arc<Registry>,
    positions: Positions,
    identities: Identities,
    reaper: Reaper,
    /// It grants nothing new, and waits for its guards.
    draining: AtomicBool,
    closed: AtomicBool,
    /// Closed without a release in the store.
    abandoned: AtomicBool,
    closing: Notify,
    outages: Outages,
    polling_warned: AtomicBool,
    /// Locks that were left held.
    left: Mutex<Vec<announcer::Left>>,
    /// The store has, or may get, an announcement of this client.
    announced: AtomicBool,
    last_warned: Mutex<Option<Tick>>,
    /// For looks at why a hold is gone: few at a time, because a store that lost its data has lost all holds.
    lookups: Arc<Semaphore>,
    /// When the store began to listen for notices to this client, or the last one arrived.
    listens_since: AtomicU64,
}

impl Core {
    /// Starts a client and its tasks. Must be called on the runtime that is to run these tasks.
    pub(crate) fn start(backend: Arc<dyn Backend>, options: ClientOptions) -> Arc<Self> {
        let clock = options.clock.clone().unwrap_or_else(Clock::system);
        let registry = Arc::new(Registry::new());
        let executor = Arc::new(Executor::here());
        let core = Arc::new(Self {
            id: Uuid::new_v4(),
            backend,
            clock,
            info: client_info(&options),
            executor: Arc::clone(&executor),
            carrier: OnceLock::new(),
            local_queues: LocalQueues::default(),
            owners: Owners::default(),
            registry: Arc::clone(&registry),
            positions: Positions::default(),
            identities: Identities::default(),
            reaper: Reaper::start(executor),
            draining: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            closing: Notify::new(),
            outages: Outages::default(),
            polling_warned: AtomicBool::new(false),
            left: Mutex::default(),
            announced: AtomicBool::new(false),
            last_warned: Mutex::new(None),
            lookups: Arc::new(Semaphore::new(announcer::FEW)),
            listens_since: AtomicU64::new(0),
            options,
        });
        tokio::spawn(tick::run(registry, Arc::downgrade(&core)));
        core
    }

    /// Makes it one for threads, before it is used.
    pub(crate) fn carry(&self, carrier: &Arc<Carrier>) {
        let _ = self.carrier.set(Arc::downgrade(carrier));
    }

    /// What each client, handle and guard of a client for threads must have.
    pub(crate) fn carrier(&self) -> Option<Arc<Carrier>> {
        self.carrier.get()?.upgrade()
    }

    /// Notes the call of an acquire, if the calling thread is to be its owner.
    pub(crate) fn call(&self) -> Option<Call> {
        self.carrier().map(Call::new)
    }

    pub(crate) fn this_thread(&self) -> Owner {
        Owner { client: self.id, number: carrier::thread_number() }
    }

    /// The part of the store that serves this name at present.
    fn lane(&self, name: &LockName) -> Lane {
        self.backend.capabilities(name).lane
    }

    /// Records whether the lane of `name` answers a request that was sent at `sent`.
    fn note<T>(&self, name: &LockName, sent: Tick, answer: &std::result::Result<T, Fault>) {
        // While all lanes answer, an answer says nothing new.
        if answer.is_err() || self.outages.any.load(Ordering::Relaxed) {
            self.note_outage(name, sent, answer.as_ref().err());
        }
    }

    /// Whether a part of the store may have a hold that the store as a whole has lost. It keeps other
    /// clients out, and must not be released before the guards know of the loss.
    fn leaves_remains(&self, name: &LockName) -> bool {
        !self.backend.capabilities(name).keeps_identities
    }

    /// Whether each request of the watchdog restores the TTL of the holds, so that the one that was
    /// found says nothing. For a reader, the renewal of a Java reader sets the lock to its own 30 s, and before
    /// 4.4.0 the leases of all its readers. Of several members, one that was away when the lease was extended has
    /// the old end.
    fn restores_ttl(&self, resource: &Resource) -> bool {
        resource.kind == Kind::Read || self.leaves_remains(&resource.name)
    }

    /// Whether an unanswered request about this name can be revoked.
    fn revokes_lost_requests(&self, name: &LockName) -> bool {
        self.backend.capabilities(name).revokes_lost_requests
    }

    /// Splits `all` into lanes, and each lane into groups that share a request. Keeps the order within a
    /// group.
    fn by_lane<T>(&self, all: Vec<T>, about: impl Fn(&T) -> &Resource) -> Vec<Vec<Vec<T>>> {
        let mut lanes = BTreeMap::<Lane, BTreeMap<_, Vec<T>>>::new();
        for one in all {
            let Resource { kind, name } = about(&one);
            let Capabilities { lane, group, .. } = self.backend.capabilities(name);
            lanes.entry(lane).or_default().entry((group, *kind)).or_default().push(one);
        }
        lanes.into_values().map(|groups| groups.into_values().collect()).collect()
    }

    /// How fencing tokens are issued.
    pub(crate) fn fencing(&self) -> Fenced {
        Fenced { ttl: self.options.token_ttl.map(|ttl| ttl.as_millis() as u64) }
    }

    /// Fails for a client that acquires nothing more.
    pub(crate) fn ensure_open(&self, resource: &Resource) -> Result<()> {
        self.ensure(self.is_open(), resource)
    }

    /// Fails for a closed client. One that is drained still serves its guards.
    pub(crate) fn ensure_not_closed(&self, resource: &Resource) -> Result<()> {
        self.ensure(!self.is_closed(), resource)
    }

    fn ensure(&self, serves: bool, resource: &Resource) -> Result<()> {
        carrier::ensure_may_wait(Some(&resource.name))?;
        let closed = || Error::Closed { lock: Some(resource.name.clone()) };
        serves.then_some(()).ok_or_else(closed)
    }

    /// Whether it acquires locks: it is neither closed nor drained.
    fn is_open(&self) -> bool {
        !self.draining.load(Ordering::Acquire) && !self.is_closed()
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
        self.was_closed() || self.executor.is_forked()
    }

    /// Whether it was closed, without the check for a fork.
    fn was_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.fail_waiters();
            self.identities.clear();
        }
    }

    fn fail_waiters(&self) {
        self.local_queues.fail_all(&Fault::Closed, |_| true);
        self.closing.notify_waiters();
    }

    /// Acquires nothing more, waits until nothing is held, for at most `limit`, and shuts down. Returns
    /// whether nothing was held then.
    pub(crate) async fn drain(self: &Arc<Self>, limit: Duration) -> bool {
        if self.executor.is_forked() {
            return true;
        }
        self.draining.store(true, Ordering::Release);
        self.fail_waiters();
        let released = async {
            // A request under way may still be granted.
            self.local_queues.emptied().await;
            self.registry.emptied().await;
        };
        let released = tokio::time::timeout(limit, released).await;
        self.shutdown().await;
        released.is_ok()
    }

    /// Ends it as the death of the process would: nothing more is sent, and locks stay held until
    /// their leases expire.
    pub(crate) fn abandon(&self) {
        if self.executor.is_forked() {
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
        if self.executor.is_forked() {
            return;
        }
        self.close();
        if !self.is_abandoned() {
            for lease in self.registry.all() {
                lease.lose(LostReason::Closed);
            }
            let _ = tokio::time::timeout(self.options.response_timeout, self.settled()).await;
            self.registry.stop();
        }
        self.backend.close().await;
    }

    /// Logs at most one warning per second: ten thousand waiters would all log the same.
    fn warn_waiting_for_itself(&self, resource: &Resource) {
        let now = self.clock.now();
        let mut last = lock(&self.last_warned);
        if last.is_none_or(|last| now.since(last) >= Duration::from_secs(1))
            && self.registry.holds(resource)
        {
            *last = Some(now);
            tracing::warn!(lock = %resource.name, waited = ?SUSPICIOUS,
                "waiting for a lock that this client holds itself");
        }
    }

    /// Resolves when nothing of this client is left in the store.
    async fn settled(&self) {
        // A pending acquire may still be granted, and is then released.
        self.local_queues.emptied().await;
        self.reaper.drained().await;
        self.registry.stop();
        if self.announced.load(Ordering::Relaxed) {
            let _ = self.backend.adjust(self.withdrawal()).await;
        }
    }

    /// The part of a lease that is not used, because clocks differ. At most half of it, so that
    /// even a lease of a few milliseconds can be held.
    pub(crate) fn drift(&self, ttl: u64) -> Duration {
        // In nanoseconds, which is much cheaper than a `Duration`: every acquire needs it twice.
        let drift = (ttl as f64 * 1e6 * self.options.drift_ratio) as u64;
        let drift = drift.saturating_add(nanos(self.options.drift_fixed));
        Duration::from_nanos(drift.min(ttl.saturating_mul(500_000)))
    }

    pub(crate) fn error(&self, fault: Fault, resource: &Resource, phase: Phase) -> Error {
        let silent = self.silent_for(&resource.name);
        Error::from_fault(fault, Some((&resource.name, resource.kind)), phase, silent)
    }

    /// Runs `op` to completion, even if the caller drops the future half-way.
    pub(crate) fn run_to_completion<T: Send + 'static>(
        &self,
        op: impl Future<Output = T> + Send + 'static,
    ) -> RunToCompletion<T> {
        RunToCompletion::new(Box::pin(op), self.reaper.clone())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.executor.is_forked() {
            // The tasks and connections are the parent's: dropping them would touch state that both
            // share.
            std::mem::forget((Arc::clone(&self.backend), self.reaper.clone()));
            self.identities.forget();
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
fn no_answer() -> Fault {
    Fault::unanswered("the store does not answer")
}

fn client_info(options: &ClientOptions) -> ClientInfo {
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
