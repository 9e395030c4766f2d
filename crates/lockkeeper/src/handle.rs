//! The state that all handles share: a name, a kind, and how it is acquired.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Change, Changed, CountChange, Kind, LockInfo, Resource};
use crate::carrier::Carrier;
use crate::engine::acquire::Acquired;
use crate::engine::terms::Request;
use crate::engine::terms::TermSpec;
use crate::engine::{Core, Tick, counter, lease_millis};
use crate::error::{Error, Phase, Result};
use crate::hold::{AnyGuard, FromAcquired, Hold};
use crate::options::{Backoff, LeaseTime};
use crate::run::{Completed, RunError, run};
use crate::{LockName, Owner};

/// Some stores count in doubles: beyond this they could not count by one.
const MAX_COUNT: u64 = (1 << 53) - 1;

/// The state that the handles of all locks share.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    pub(crate) _carrier: Option<Arc<Carrier>>,
    pub(crate) resource: Resource,
    pub(crate) owner: Option<Owner>,
    pub(crate) fenced: bool,
    pub(crate) reentrant: bool,
    pub(crate) lease: Option<LeaseTime>,
    pub(crate) spin: Option<Backoff>,
    /// The number of permits with which a semaphore is created.
    pub(crate) temporary: Option<u64>,
}

impl Handle {
    pub(crate) fn new(core: &Arc<Core>, kind: Kind, name: &[u8]) -> Self {
        let name = LockName::new(&core.options.name_prefix, name);
        Self {
            core: Arc::clone(core),
            _carrier: core.carrier(),
            resource: Resource { kind, name },
            owner: None,
            fenced: false,
            reentrant: true,
            lease: None,
            spin: None,
            temporary: None,
        }
    }

    /// The same name as another kind.
    pub(crate) fn side(&self, kind: Kind) -> Self {
        let name = self.resource.name.clone();
        Self { resource: Resource { kind, name }, ..self.clone() }
    }

    pub(crate) fn owned_by(&self, owner: &Owner) -> Self {
        Self { owner: Some(owner.clone()), ..self.clone() }
    }

    pub(crate) fn leased(&self, lease: LeaseTime) -> Self {
        Self { lease: Some(lease), ..self.clone() }
    }

    pub(crate) fn fenced(&self) -> Self {
        Self { fenced: true, ..self.clone() }
    }

    /// Waits until the lock is acquired.
    pub(crate) fn lock<G: FromAcquired>(
        &self,
        count: u32,
    ) -> impl Future<Output = Result<G>> + Send + use<G> {
        self.acquire(count, Duration::MAX, |acquired| granted(acquired).and_then(G::from_acquired))
    }

    /// Waits for at most `wait`; zero makes one attempt.
    pub(crate) fn try_lock<G: FromAcquired>(
        &self,
        count: u32,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<G>>> + Send + use<G> {
        self.acquire(count, wait, |acquired| acquired?.map(G::from_acquired).transpose())
    }

    /// Acquires, and converts the outcome. The wait limit counts from the first poll. On a client for threads,
    /// the thread that calls this is the owner, unless the handle has one.
    pub(crate) fn acquire<T>(
        &self,
        count: u32,
        wait: Duration,
        then: fn(Result<Option<Acquired>>) -> Result<T>,
    ) -> impl Future<Output = Result<T>> + Send + use<T> {
        let Self { core, resource, owner, .. } = self;
        let (mut request, call) = (self.request(count, wait), core.call());
        if let Ok(request) = &mut request
            && call.is_some()
            && owner.is_none()
            && resource.kind.is_reentrant()
        {
            request.owner = Some(core.this_thread());
        }
        core.anywhere(async move {
            // In place: each copy of a request counts.
            let request = match &mut request {
                Ok(request) => request,
                Err(error) => return Err(std::mem::replace(error, Error::Closed { lock: None })),
            };
            if let Some(call) = &call {
                call.ensure_waited_for(&request.resource.name)?;
            }
            then(request.acquire().await)
        })
    }

    /// Builds and checks the request, before it is sent.
    pub(crate) fn request(&self, count: u32, wait: Duration) -> Result<Request> {
        self.ensure_named()?;
        if count == 0 {
            let detail = "at least one permit must be acquired";
            return Err(Error::invalid(Some(&self.resource.name), detail));
        }
        let Self { core, resource, owner, reentrant, spin, temporary, lease, .. } = self;
        let term = match resource.kind {
            Kind::Semaphore | Kind::Latch => TermSpec::ENDLESS,
            _ => TermSpec::new(resource, *lease, core.options.watchdog_timeout)?,
        };
        Ok(Request {
            core: Arc::clone(core),
            resource: resource.clone(),
            term,
            wait,
            limit: Tick::NEVER,
            // Only kinds that are reentrant have named owners.
            owner: owner.clone().filter(|_| resource.kind.is_reentrant()),
            count,
            fenced: self.fenced.then(|| core.fencing()),
            reentrant: *reentrant,
            spin: *spin,
            beside: None,
            temporary: *temporary,
        })
    }

    /// Acquires, runs `work`, releases. Not an `async fn`, as [`try_run`](Self::try_run): the caller is the owner.
    pub(crate) fn run<T, W: Future<Output = T>>(
        &self,
        count: u32,
        work: impl FnOnce(Hold) -> W,
    ) -> impl Future<Output = Result<Completed<T>, RunError<T>>> {
        let ran = self.try_run(count, Duration::MAX, work);
        async move { ran.await?.ok_or(RunError::Acquire(Error::Closed { lock: None })) }
    }

    /// Acquires within `wait`, runs `work`, releases.
    pub(crate) fn try_run<T, W: Future<Output = T>>(
        &self,
        count: u32,
        wait: Duration,
        work: impl FnOnce(Hold) -> W,
    ) -> impl Future<Output = Result<Option<Completed<T>>, RunError<T>>> {
        let locking = Box::pin(self.try_lock::<AnyGuard>(count, wait));
        async move {
            let started = self.core.clock.now();
            let guard = locking.await.map_err(RunError::Acquire)?;
            let Some(guard) = guard else { return Ok(None) };
            let hold = Hold::clone(&guard);
            run(guard, &self.core, started, || work(hold)).await.map(Some)
        }
    }

    /// The holders and their remaining TTL, as the store says.
    pub(crate) async fn inspect(&self) -> Result<LockInfo> {
        self.ensure_usable()?;
        let Self { core, resource, .. } = self;
        let found = core.run_to_completion(core.backend.inspect(resource.clone())).await;
        let lock = found.map_err(|fault| core.error(fault, resource, Phase::Inspect))?;
        Ok(LockInfo { name: resource.name.without(&core.options.name_prefix), ..lock })
    }

    /// Fails for a closed client, and for an empty name.
    pub(crate) fn ensure_usable(&self) -> Result<()> {
        self.core.ensure_not_closed(&self.resource)?;
        self.ensure_named()
    }

    pub(crate) fn ensure_named(&self) -> Result<()> {
        if self.resource.name.as_bytes().is_empty() {
            return Err(Error::invalid(None, "the name of a lock must not be empty"));
        }
        Ok(())
    }

    /// Whether it is held: of a read/write lock, this side.
    pub(crate) async fn is_locked(&self) -> Result<bool> {
        let lock = self.inspect().await?;
        Ok(match self.resource.kind {
            Kind::Read => lock.holders.iter().any(|holder| holder.shared),
            Kind::Write => lock.holders.iter().any(|holder| !holder.shared),
            _ => lock.is_held(),
        })
    }

    pub(crate) async fn hold_count(&self, owner: &Owner) -> Result<u64> {
        self.core.ensure_own(owner, &self.resource)?;
        let Some(lease) = self.core.owned(&self.resource, owner) else {
            return Ok(0);
        };
        let id = lease.owner.to_string();
        let holders = self.inspect().await?.holders;
        Ok(holders.into_iter().find(|entry| entry.id == id).map_or(0, |entry| entry.hold_count))
    }

    pub(crate) async fn force_unlock(&self, reason: String) -> Result<bool> {
        Ok(self.force_unlock_from(None, reason).await? == Changed::Done)
    }

    /// Force-releases it, if given only from these holders.
    pub(crate) async fn force_unlock_from(
        &self,
        from: Option<Vec<Vec<u8>>>,
        reason: String,
    ) -> Result<Changed> {
        let Self { core, resource, .. } = self;
        self.ensure_usable()?;
        let (resource, by) = (resource.clone(), core.info.clone());
        let change = Change::ForceUnlock { resource, reason, by, from };
        let changed = core.run_to_completion(core.backend.adjust(change)).await;
        changed.map_err(|fault| core.error(fault, &self.resource, Phase::ForceUnlock))
    }

    /// Changes a counter.
    pub(crate) async fn change(&self, change: CountChange) -> Result<Changed> {
        self.ensure_named()?;
        counter::change(&self.core, &self.resource, change).await
    }

    /// Creates a counter; false if there is one.
    pub(crate) async fn create(&self, count: u64, span: Option<Duration>) -> Result<bool> {
        let ttl = span.map(|span| lease_millis(&self.resource, span)).transpose()?;
        self.ensure_countable(count)?;
        Ok(self.change(CountChange::Create { count, ttl }).await? == Changed::Done)
    }

    /// Adds permits. Returns how many are free then.
    pub(crate) async fn add(&self, permits: i64) -> Result<i64> {
        self.ensure_countable(permits.unsigned_abs())?;
        self.change(CountChange::Add(permits)).await.map(Changed::number)
    }

    pub(crate) fn ensure_countable(&self, count: u64) -> Result<()> {
        if count > MAX_COUNT {
            let detail = format!("a count must be below 2^53, not {count}");
            return Err(Error::invalid(Some(&self.resource.name), detail));
        }
        Ok(())
    }
}

/// Waiting without a limit ends with the lock or with an error.
fn granted(acquired: Result<Option<Acquired>>) -> Result<Acquired> {
    acquired?.ok_or(Error::Closed { lock: None })
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.resource.name, f)
    }
}
