//! The state that all handles share: a name, a kind, and how it is acquired.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Change, Changed, Fenced, Kind, Resource};
use crate::config::{Backoff, LeaseTime};
use crate::engine::Core;
use crate::engine::acquire::Acquired;
use crate::engine::owners::acquire;
use crate::engine::request::{Request, TermSpec, Wait};
use crate::error::{Error, Phase, Result};
use crate::guard::FromAcquired;
use crate::hold::{AnyGuard, Hold};
use crate::holder::{Holder, Remaining};
use crate::run::{Completed, RunError, run};
use crate::{LockName, Owner};

/// The state that the handles of all locks share.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
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
    ) -> impl Future<Output = Result<G>> + Send + Unpin + use<G> {
        let acquired = self.acquired(count, |_| Wait::Forever);
        Box::pin(async move {
            // Waiting without a limit ends with the lock or with an error.
            let acquired = acquired.await?.ok_or(Error::Closed { lock: None })?;
            Ok(G::from_acquired(acquired))
        })
    }

    /// Makes one attempt, or waits for at most `wait`.
    pub(crate) fn try_lock<G: FromAcquired>(
        &self,
        count: u32,
        wait: Option<Duration>,
    ) -> impl Future<Output = Result<Option<G>>> + Send + Unpin + use<G> {
        let acquired = self.acquired(count, move |core| Wait::within(core, wait));
        Box::pin(async move { Ok(acquired.await?.map(G::from_acquired)) })
    }

    /// Acquires. The wait limit counts from the first poll.
    pub(crate) fn acquired<W: FnOnce(&Core) -> Wait + Send>(
        &self,
        count: u32,
        wait: W,
    ) -> impl Future<Output = Result<Option<Acquired>>> + Send + use<W> {
        let handle = self.clone();
        async move {
            let core = &handle.core;
            let request = handle.request(count, wait(core))?;
            core.anywhere(|| acquire(core, &request)).await
        }
    }

    /// Builds and checks the request, before it is sent.
    pub(crate) fn request(&self, count: u32, wait: Wait) -> Result<Request> {
        self.ensure_named()?;
        if count == 0 {
            let detail = "at least one permit must be acquired";
            return Err(Error::invalid(Some(&self.resource.name), detail));
        }
        let Self { core, resource, owner, reentrant, spin, temporary, lease, .. } = self;
        let term = match resource.kind {
            Kind::Semaphore => TermSpec::ENDLESS,
            _ => TermSpec::new(resource, *lease, core.options.watchdog_timeout)?,
        };
        Ok(Request {
            resource: resource.clone(),
            term,
            wait,
            // Only kinds that are reentrant have named owners.
            owner: owner.clone().filter(|_| crate::engine::lease::reentrant(resource.kind)),
            count,
            fenced: self.fencing(),
            reentrant: *reentrant,
            spin: *spin,
            beside: None,
            temporary: *temporary,
        })
    }

    /// Acquires, runs `work`, releases.
    pub(crate) async fn run<T, W: Future<Output = T>>(
        &self,
        count: u32,
        work: impl FnOnce(Hold) -> W,
    ) -> Result<Completed<T>, RunError<T>> {
        let started = self.core.clock.now();
        let guard: AnyGuard = self.lock(count).await.map_err(RunError::Acquire)?;
        let hold = guard.hold();
        run(guard, started, || work(hold)).await
    }

    /// Acquires within `wait`, runs `work`, releases.
    pub(crate) async fn try_run<T, W: Future<Output = T>>(
        &self,
        wait: Option<Duration>,
        work: impl FnOnce(Hold) -> W,
    ) -> Result<Option<Completed<T>>, RunError<T>> {
        let started = self.core.clock.now();
        let guard: Option<AnyGuard> = self.try_lock(1, wait).await.map_err(RunError::Acquire)?;
        let Some(guard) = guard else { return Ok(None) };
        let hold = guard.hold();
        run(guard, started, || work(hold)).await.map(Some)
    }

    /// How tokens are issued, if at all.
    pub(crate) fn fencing(&self) -> Option<Fenced> {
        self.fenced.then(|| self.core.fencing())
    }

    /// The holders and their remaining TTL, as the store says.
    pub(crate) async fn inspect(&self) -> Result<crate::backend::Snapshot> {
        self.core.ensure_open(&self.resource)?;
        self.ensure_named()?;
        let snapshot = self.core.unbroken(self.core.backend.inspect(self.resource.clone())).await;
        snapshot.map_err(|fault| self.core.error(fault, &self.resource, Phase::Inspect))
    }

    pub(crate) fn ensure_named(&self) -> Result<()> {
        if self.resource.name.as_bytes().is_empty() {
            return Err(Error::invalid(None, "the name of a lock must not be empty"));
        }
        Ok(())
    }

    pub(crate) async fn holders(&self) -> Result<Vec<Holder>> {
        Ok(self.inspect().await?.holders.into_iter().map(Holder::from).collect())
    }

    pub(crate) async fn remaining(&self) -> Result<Remaining> {
        Ok(self.inspect().await?.ttl.into())
    }

    pub(crate) async fn hold_count(&self, owner: &Owner) -> Result<u64> {
        self.core.ensure_own(owner, &self.resource)?;
        let Some(lease) = self.core.owned(&self.resource, owner) else {
            return Ok(0);
        };
        let id = lease.owner.to_string().into_bytes();
        let holders = self.inspect().await?.holders;
        Ok(holders.into_iter().find(|entry| entry.id == id).map_or(0, |entry| entry.count))
    }

    pub(crate) async fn force_unlock(&self, reason: String) -> Result<bool> {
        self.core.ensure_open(&self.resource)?;
        self.ensure_named()?;
        let by = self.core.info.clone();
        let resource = self.resource.clone();
        let change = Change::ForceUnlock { resource, reason, by, from: None };
        let changed = self.core.unbroken(self.core.backend.adjust(change)).await;
        let changed =
            changed.map_err(|fault| self.core.error(fault, &self.resource, Phase::ForceUnlock))?;
        Ok(changed == Changed::Done)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.resource.name, f)
    }
}
