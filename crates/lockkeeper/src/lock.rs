//! The re-entrant lock and the plain mutex: handles that build requests.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::any::{AnyGuard, Hold};
use crate::backend::{Change, Changed, Fenced, Kind, Resource};
use crate::config::{Backoff, LeaseTime, MIN_WATCHDOG};
use crate::engine::acquire::{Acquired, acquire};
use crate::engine::lease::TermSpec;
use crate::engine::request::{Request, Wait};
use crate::engine::{Core, lease_millis};
use crate::error::{Error, Phase, Result};
use crate::guard::FromAcquired;
use crate::holder::{Holder, Remaining};
use crate::run::{Completed, RunError, run};
use crate::{LockName, Owner};

/// What the handles of all locks have in common.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    pub(crate) resource: Resource,
    pub(crate) owner: Option<Owner>,
    pub(crate) fenced: bool,
    pub(crate) reentrant: bool,
    pub(crate) lease: Option<LeaseTime>,
    pub(crate) spin: Option<Backoff>,
    /// How many permits a semaphore is made with.
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

    /// Waits until it is held.
    pub(crate) fn lock<G: FromAcquired>(
        &self,
        count: u32,
    ) -> impl Future<Output = Result<G>> + Send + Unpin + use<G> {
        let acquired = self.acquired(count, Wait::Forever);
        Box::pin(async move {
            // Waiting without a limit ends with the lock or with an error.
            let acquired = acquired.await?.ok_or(Error::Closed { lock: None })?;
            Ok(G::from_acquired(acquired))
        })
    }

    /// One attempt, or as many as fit into `wait`.
    pub(crate) fn try_lock<G: FromAcquired>(
        &self,
        count: u32,
        wait: Option<Duration>,
    ) -> impl Future<Output = Result<Option<G>>> + Send + Unpin + use<G> {
        let acquired = self.acquired(count, Wait::within(&self.core, wait));
        Box::pin(async move { Ok(acquired.await?.map(G::from_acquired)) })
    }

    pub(crate) fn acquired(
        &self,
        count: u32,
        wait: Wait,
    ) -> impl Future<Output = Result<Option<Acquired>>> + Send + use<> {
        let (core, request) = (Arc::clone(&self.core), self.request(count, wait));
        async move {
            let request = request?;
            core.anywhere(|| acquire(&core, &request)).await
        }
    }

    /// What is to be acquired; checked before anything is sent.
    pub(crate) fn request(&self, count: u32, wait: Wait) -> Result<Request> {
        self.ensure_named()?;
        if count == 0 {
            let detail = "at least one permit must be acquired";
            return Err(Error::invalid(Some(&self.resource.name), detail));
        }
        let Self { core, resource, owner, reentrant, spin, temporary, lease, .. } = self;
        let term = match resource.kind {
            Kind::Semaphore => TermSpec::ENDLESS,
            _ => term(resource, *lease, core.options.watchdog_timeout)?,
        };
        Ok(Request {
            resource: resource.clone(),
            term,
            wait,
            owner: owner.clone(),
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

    /// The same if it is acquired within `wait`.
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

    /// How tokens are issued, if they are.
    pub(crate) fn fencing(&self) -> Option<Fenced> {
        let ttl = self.core.options.token_ttl.map(|ttl| ttl.as_millis() as u64);
        self.fenced.then_some(Fenced { ttl })
    }

    /// Who holds it and for how long, as the store says.
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

/// The lease that a request comes to; checked before anything is sent.
pub(crate) fn term(
    resource: &Resource,
    lease: Option<LeaseTime>,
    default: Duration,
) -> Result<TermSpec> {
    let (span, renewed) = match lease.unwrap_or(LeaseTime::Renewed(default)) {
        LeaseTime::Fixed(span) => (span, false),
        LeaseTime::Renewed(span) => (span, true),
    };
    if renewed && span < MIN_WATCHDOG {
        let detail = format!("a renewed lease must be at least {MIN_WATCHDOG:?}, not {span:?}");
        return Err(Error::invalid(Some(&resource.name), detail));
    }
    Ok(TermSpec { ttl: lease_millis(resource, span)?, renewed })
}

/// The methods that every lock handle has.
macro_rules! lock_methods {
    ($Type:ident, $Guard:ident) => {
        impl $Type {
            pub(crate) fn new(handle: $crate::lock::Handle) -> Self {
                Self { handle }
            }

            pub(crate) fn into_handle(self) -> $crate::lock::Handle {
                self.handle
            }

            /// The name, prefix included.
            pub fn name(&self) -> &$crate::LockName {
                &self.handle.resource.name
            }

            /// The same lock, to be acquired with this lease: a fixed one for a `Duration`, a renewed one for
            /// [`LeaseTime::Renewed`](crate::LeaseTime::Renewed). Without it the watchdog renews the lease for
            /// as long as the guard lives.
            pub fn lease(&self, lease: impl Into<$crate::LeaseTime>) -> Self {
                Self { handle: self.handle.leased(lease.into()) }
            }

            /// Waits until the lock is acquired.
            ///
            /// # Errors
            /// [`Unreachable`](crate::Error::Unreachable) once the store has not answered for
            /// [`unreachable_after`](crate::ClientOptions::unreachable_after);
            /// [`Denied`](crate::Error::Denied), [`WrongKind`](crate::Error::WrongKind) and
            /// [`Invalid`](crate::Error::Invalid) at once.
            ///
            /// # Cancel safety
            /// Dropping the future leaves nothing behind: no hold, no queue position, no subscription.
            pub fn lock(
                &self,
            ) -> impl std::future::Future<Output = $crate::Result<$crate::$Guard>>
            + Send + Unpin + use<> {
                self.handle.lock(1)
            }

            /// Makes one attempt to acquire the lock. A busy lock is `Ok(None)`.
            ///
            /// # Errors
            /// As [`lock`](Self::lock); `Unreachable` comes within the response timeout.
            ///
            /// # Cancel safety
            /// As [`lock`](Self::lock).
            pub fn try_lock(
                &self,
            ) -> impl std::future::Future<Output = $crate::Result<Option<$crate::$Guard>>>
            + Send + Unpin + use<> {
                self.handle.try_lock(1, None)
            }

            /// Waits for the lock for at most `wait`. Everything counts, connecting too. A lock that is
            /// still busy then is `Ok(None)`.
            ///
            /// The limit does not cut a request that is under way: its answer decides, for at most one
            /// [response timeout](crate::ClientOptions::response_timeout).
            ///
            /// # Errors
            /// As [`lock`](Self::lock); `Unreachable` if no answer comes by the wait limit, at most one
            /// response timeout after it.
            ///
            /// # Cancel safety
            /// As [`lock`](Self::lock).
            pub fn try_lock_for(
                &self,
                wait: std::time::Duration,
            ) -> impl std::future::Future<Output = $crate::Result<Option<$crate::$Guard>>>
            + Send + Unpin + use<> {
                self.handle.try_lock(1, Some(wait))
            }

            /// Waits for the lock, runs `work` under it and releases it. When the lock is lost, the work is
            /// dropped at its next await point; that stops no threads, spawned tasks or requests already
            /// sent.
            ///
            /// # Errors
            /// See [`RunError`](crate::RunError).
            pub async fn run<T, W: std::future::Future<Output = T>>(
                &self,
                work: impl FnOnce($crate::Hold) -> W,
            ) -> $crate::Result<$crate::Completed<T>, $crate::RunError<T>> {
                self.handle.run(1, work).await
            }

            /// Runs `work` under the lock if it is free. A busy lock is `Ok(None)`, at once.
            ///
            /// # Errors
            /// See [`RunError`](crate::RunError).
            pub async fn try_run<T, W: std::future::Future<Output = T>>(
                &self,
                work: impl FnOnce($crate::Hold) -> W,
            ) -> $crate::Result<Option<$crate::Completed<T>>, $crate::RunError<T>> {
                self.handle.try_run(None, work).await
            }

            /// Waits for the lock for at most `wait`, then as [`try_run`](Self::try_run).
            ///
            /// # Errors
            /// See [`RunError`](crate::RunError).
            pub async fn try_run_for<T, W: std::future::Future<Output = T>>(
                &self,
                wait: std::time::Duration,
                work: impl FnOnce($crate::Hold) -> W,
            ) -> $crate::Result<Option<$crate::Completed<T>>, $crate::RunError<T>> {
                self.handle.try_run(Some(wait), work).await
            }

            /// Whether the lock is held, as the store says.
            ///
            /// # Errors
            /// [`WrongKind`](crate::Error::WrongKind) if the name is in use for something else.
            pub async fn is_locked(&self) -> $crate::Result<bool> {
                Ok(!self.handle.inspect().await?.holders.is_empty())
            }

            /// The remaining TTL of the key.
            ///
            /// # Errors
            /// As [`is_locked`](Self::is_locked).
            pub async fn remaining(&self) -> $crate::Result<$crate::Remaining> {
                self.handle.remaining().await
            }

            /// The holder, as the store says.
            ///
            /// # Errors
            /// As [`is_locked`](Self::is_locked).
            pub async fn holder(&self) -> $crate::Result<Option<$crate::Holder>> {
                Ok(self.handle.holders().await?.into_iter().next())
            }

            /// Force-releases the lock; true if it was held. A holder that is a lockkeeper client is
            /// notified at once if it listens, and finds out at its next check otherwise.
            ///
            /// The request is sent once. If its answer is lost, the outcome is unknown.
            ///
            /// # Errors
            /// [`WrongKind`](crate::Error::WrongKind) if the name is in use for something else, which is
            /// then left alone.
            pub async fn force_unlock(&self) -> $crate::Result<bool> {
                self.handle.force_unlock(String::new()).await
            }

            /// [`force_unlock`](Self::force_unlock) with a reason that is passed to the holder.
            ///
            /// # Errors
            /// As [`force_unlock`](Self::force_unlock).
            pub async fn force_unlock_because(
                &self,
                reason: impl Into<String>,
            ) -> $crate::Result<bool> {
                self.handle.force_unlock(reason.into()).await
            }
        }
    };
}

/// The methods of what an owner can hold more than once.
macro_rules! owner_methods {
    ($Type:ident) => {
        impl $Type {
            /// The same lock in the name of `owner`: its acquires re-enter the lock if `owner` holds it.
            pub fn as_owner(&self, owner: &$crate::Owner) -> Self {
                Self { handle: self.handle.owned_by(owner) }
            }

            /// The hold count of `owner`, as the store says.
            ///
            /// # Errors
            /// As [`is_locked`](Self::is_locked); [`Invalid`](crate::Error::Invalid) for an owner of
            /// another client.
            pub async fn hold_count(&self, owner: &$crate::Owner) -> $crate::Result<u64> {
                self.handle.hold_count(owner).await
            }

            /// Whether `owner` holds it, as the store says.
            ///
            /// # Errors
            /// As [`hold_count`](Self::hold_count).
            pub async fn is_held_by(&self, owner: &$crate::Owner) -> $crate::Result<bool> {
                Ok(self.hold_count(owner).await? > 0)
            }
        }
    };
}

/// Locks whose owners may be held to one hold each.
macro_rules! reentrancy_methods {
    ($Type:ident) => {
        impl $Type {
            /// The same lock, but an owner that asks for it twice gets an
            /// [`Invalid`](crate::Error::Invalid) error at once instead of holding it twice. Decided
            /// here: in the store nothing differs.
            pub fn non_reentrant(&self) -> Self {
                let mut handle = self.handle.clone();
                handle.reentrant = false;
                Self { handle }
            }
        }
    };
}

/// Locks that can issue fencing tokens.
macro_rules! fenced_methods {
    ($Type:ident, $Fenced:ident) => {
        impl $Type {
            /// The same lock, issuing a [fencing token](crate::FencedLock) with each grant.
            pub fn fenced(&self) -> $crate::$Fenced {
                $crate::$Fenced::new(self.handle.fenced())
            }
        }
    };
}

pub(crate) use {fenced_methods, lock_methods, owner_methods, reentrancy_methods};

/// The re-entrant lock, Redisson's `RLock`: a hash `name → {owner → hold count}` with a time to live.
///
/// Ownership is a value, not a thread: every acquire has an owner of its own, so that two tasks
/// that share a handle exclude each other. To hold it more than once, use [`LockGuard::reenter`](crate::LockGuard::reenter) or
/// [`as_owner`](Lock::as_owner):
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let client = lockkeeper::Client::memory();
/// let (lock, owner) = (client.lock("orders:42"), client.new_owner());
/// let outer = lock.as_owner(&owner).lock().await?;
/// let inner = lock.as_owner(&owner).lock().await?;
/// assert_eq!(lock.hold_count(&owner).await?, 2);
/// # drop((outer, inner));
/// # Ok(()) }
/// ```
///
/// Without an owner:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let client = lockkeeper::Client::memory();
/// let lock = client.lock("orders:42");
/// let guard = lock.lock().await?;
/// assert!(lock.try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Lock {
    handle: Handle,
}

lock_methods!(Lock, LockGuard);
owner_methods!(Lock);
reentrancy_methods!(Lock);
fenced_methods!(Lock, FencedLock);

/// The plain lock of the Redlock family: `SET name id NX PX ms`. Not re-entrant, and about half the
/// work for the server.
///
/// Other libraries of that family may hold and free the same key; most of them tell nobody, so that
/// its waiters also look every 50 to 100 ms.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let client = lockkeeper::Client::memory();
/// let guard = client.mutex("nightly-report").lock().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    handle: Handle,
}

lock_methods!(Mutex, MutexGuard);
