//! The re-entrant lock and the plain mutex: handles that build requests.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{BoxFuture, Change, Changed, Fenced, Kind, Resource};
use crate::config::Backoff;
use crate::engine::Core;
use crate::engine::acquire::acquire;
use crate::engine::lease::TermSpec;
use crate::engine::request::{Request, Wait};
use crate::error::{Error, Phase, Result};
use crate::guard::{Guard, Hold, term};
use crate::holder::{Holder, Remaining};
use crate::run::{Ran, RunError, run};
use crate::{LockName, Owner};

/// What the handles of all locks have in common.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    pub(crate) resource: Resource,
    pub(crate) owner: Option<Owner>,
    pub(crate) fenced: bool,
    pub(crate) reentrant: bool,
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

    /// A request that waits.
    pub(crate) fn lock(&self) -> LockRequest {
        LockRequest { settings: self.settings(1) }
    }

    /// A request that gives up.
    pub(crate) fn try_lock(&self) -> TryLockRequest {
        TryLockRequest { settings: self.settings(1), wait: None }
    }

    pub(crate) fn settings(&self, count: u32) -> Settings {
        Settings { handle: self.clone(), lease: None, renewed: None, count }
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

/// What is common to the requests.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) handle: Handle,
    pub(crate) lease: Option<Duration>,
    pub(crate) renewed: Option<Duration>,
    pub(crate) count: u32,
}

impl Settings {
    /// What it comes to; checked before anything is sent.
    pub(crate) fn request(self, wait: Wait) -> Result<(Arc<Core>, Request)> {
        let Self { handle, lease, renewed, count } = self;
        handle.ensure_named()?;
        if count == 0 {
            let detail = "at least one permit must be asked for";
            return Err(Error::invalid(Some(&handle.resource.name), detail));
        }
        let default = handle.core.options.watchdog_timeout;
        let term = match handle.resource.kind {
            Kind::Semaphore => TermSpec::ENDLESS,
            _ => term(&handle.resource, lease, renewed, default)?,
        };
        let fenced = handle.fencing();
        let Handle { core, resource, owner, reentrant, spin, temporary, .. } = handle;
        let request = Request {
            resource,
            term,
            wait,
            owner,
            count,
            fenced,
            reentrant,
            spin,
            beside: None,
            temporary,
        };
        Ok((core, request))
    }
}

/// A request that waits until the lock is held: `.await` it, or [`run`](LockRequest::run).
#[derive(Debug)]
#[must_use = "does nothing unless awaited"]
pub struct LockRequest {
    pub(crate) settings: Settings,
}

impl LockRequest {
    /// A fixed lease: the lock ends after it unless it is released before. The watchdog looks
    /// after it but never renews it.
    pub fn lease(mut self, span: Duration) -> Self {
        self.settings.lease = Some(span);
        self
    }

    /// A lease that the watchdog renews, for this request, instead of the client's default.
    pub fn renewed(mut self, span: Duration) -> Self {
        self.settings.renewed = Some(span);
        self
    }

    /// Acquires, runs `work`, releases; the work is dropped when the lock is lost.
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn run<T, W: Future<Output = T>>(
        self,
        work: impl FnOnce(Hold) -> W,
    ) -> Result<Ran<T>, RunError<T>> {
        let started = self.settings.handle.core.clock.now();
        let guard = self.await.map_err(RunError::Acquire)?;
        let hold = guard.hold();
        run(guard, started, || work(hold)).await
    }
}

impl IntoFuture for LockRequest {
    type Output = Result<Guard>;
    type IntoFuture = BoxFuture<Result<Guard>>;

    fn into_future(self) -> Self::IntoFuture {
        let request = self.settings.request(Wait::Forever);
        Box::pin(async move {
            let (core, request) = request?;
            // Waiting for ever ends with the lock or with an error.
            let acquired = core.anywhere(|| acquire(&core, &request)).await?;
            acquired.map(Guard::new).ok_or(Error::Closed { lock: None })
        })
    }
}

/// A request that gives up: at once, or after [`wait`](TryLockRequest::wait). `.await` it, or
/// [`run`](TryLockRequest::run).
#[derive(Debug)]
#[must_use = "does nothing unless awaited"]
pub struct TryLockRequest {
    pub(crate) settings: Settings,
    pub(crate) wait: Option<Duration>,
}

impl TryLockRequest {
    /// Waits for the lock for at most so long; everything counts, connecting too.
    ///
    /// A lock that is still busy then is `Ok(None)`. The limit does not cut a request that is under way:
    /// its answer decides, for at most one
    /// [response timeout](crate::ClientOptions::response_timeout). If no answer comes, or the store is
    /// already known not to answer, it is [`Unreachable`](crate::Error::Unreachable).
    pub fn wait(mut self, span: Duration) -> Self {
        self.wait = Some(span);
        self
    }

    /// See [`LockRequest::lease`].
    pub fn lease(mut self, span: Duration) -> Self {
        self.settings.lease = Some(span);
        self
    }

    /// See [`LockRequest::renewed`].
    pub fn renewed(mut self, span: Duration) -> Self {
        self.settings.renewed = Some(span);
        self
    }

    /// Acquires, runs `work`, releases; nothing if the lock is busy. The work is dropped when the
    /// lock is lost.
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn run<T, W: Future<Output = T>>(
        self,
        work: impl FnOnce(Hold) -> W,
    ) -> Result<Option<Ran<T>>, RunError<T>> {
        let started = self.settings.handle.core.clock.now();
        match self.await.map_err(RunError::Acquire)? {
            None => Ok(None),
            Some(guard) => {
                let hold = guard.hold();
                run(guard, started, || work(hold)).await.map(Some)
            }
        }
    }
}

impl IntoFuture for TryLockRequest {
    type Output = Result<Option<Guard>>;
    type IntoFuture = BoxFuture<Result<Option<Guard>>>;

    fn into_future(self) -> Self::IntoFuture {
        let wait = Wait::within(&self.settings.handle.core, self.wait);
        let request = self.settings.request(wait);
        Box::pin(async move {
            let (core, request) = request?;
            Ok(core.anywhere(|| acquire(&core, &request)).await?.map(Guard::new))
        })
    }
}

/// The methods that every lock handle has.
macro_rules! lock_methods {
    ($Type:ident) => {
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

            /// Waits until the lock is held. Without a [`lease`](crate::LockRequest::lease) the watchdog
            /// keeps it for as long as the guard lives.
            ///
            /// # Errors
            /// [`Unreachable`](crate::Error::Unreachable) once the store has not answered for
            /// [`unreachable_after`](crate::ClientOptions::unreachable_after);
            /// [`Denied`](crate::Error::Denied), [`WrongKind`](crate::Error::WrongKind) and
            /// [`Invalid`](crate::Error::Invalid) at once.
            ///
            /// # Cancel safety
            /// Dropping the future leaves nothing behind: no hold, no place in a queue, no
            /// subscription.
            pub fn lock(&self) -> $crate::LockRequest {
                self.handle.lock()
            }

            /// One attempt, or with [`wait`](crate::TryLockRequest::wait) as many as fit. Busy is
            /// `Ok(None)`.
            ///
            /// # Errors
            /// As [`lock`](Self::lock); `Unreachable` comes within the response timeout without
            /// `wait`, and otherwise at the wait limit or at most one response timeout after it.
            ///
            /// # Cancel safety
            /// As [`lock`](Self::lock).
            pub fn try_lock(&self) -> $crate::TryLockRequest {
                self.handle.try_lock()
            }

            /// Waits for the lock, runs `work` under it and releases it. When the lock is lost the
            /// work is dropped at its next await point; it cannot stop threads, spawned tasks or
            /// requests already sent.
            ///
            /// # Errors
            /// See [`RunError`](crate::RunError).
            pub async fn run<T, W: std::future::Future<Output = T>>(
                &self,
                work: impl FnOnce($crate::Hold) -> W,
            ) -> $crate::Result<$crate::Ran<T>, $crate::RunError<T>> {
                self.lock().run(work).await
            }

            /// Runs `work` under the lock if it is free, otherwise answers `Ok(None)` at once.
            ///
            /// # Errors
            /// See [`RunError`](crate::RunError).
            pub async fn try_run<T, W: std::future::Future<Output = T>>(
                &self,
                work: impl FnOnce($crate::Hold) -> W,
            ) -> $crate::Result<Option<$crate::Ran<T>>, $crate::RunError<T>> {
                self.try_lock().run(work).await
            }

            /// Whether anybody holds it, as the store says.
            ///
            /// # Errors
            /// [`WrongKind`](crate::Error::WrongKind) if the name is in use for something else.
            pub async fn is_locked(&self) -> $crate::Result<bool> {
                Ok(!self.handle.inspect().await?.holders.is_empty())
            }

            /// How long it stands if nobody renews it.
            ///
            /// # Errors
            /// As [`is_locked`](Self::is_locked).
            pub async fn remaining(&self) -> $crate::Result<$crate::Remaining> {
                self.handle.remaining().await
            }

            /// Who holds it.
            ///
            /// # Errors
            /// As [`is_locked`](Self::is_locked).
            pub async fn holder(&self) -> $crate::Result<Option<$crate::Holder>> {
                Ok(self.handle.holders().await?.into_iter().next())
            }

            /// Takes the lock away from whoever holds it; true if anybody did. A holder that is a
            /// lockkeeper client is told at once, if it listens; at its next check otherwise.
            ///
            /// It is sent once: if its answer is lost, whether it took effect is not known.
            ///
            /// # Errors
            /// [`WrongKind`](crate::Error::WrongKind) if the name is in use for something else, which is
            /// then left alone.
            pub async fn force_unlock(&self) -> $crate::Result<bool> {
                self.handle.force_unlock(String::new()).await
            }

            /// [`force_unlock`](Self::force_unlock) with a reason, which the holder gets to read.
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
            /// The same lock in the name of `owner`: its acquires re-enter what it holds already.
            pub fn as_owner(&self, owner: &$crate::Owner) -> Self {
                Self { handle: self.handle.owned_by(owner) }
            }

            /// How often `owner` holds it, as the store says.
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

/// Locks that issue tokens on request.
macro_rules! fenced_methods {
    ($Type:ident) => {
        impl $Type {
            /// The same lock, but each guard has a [`token`](crate::Guard::token) that is greater
            /// than all before it: see [`FencedLock`](crate::FencedLock).
            pub fn fenced(&self) -> Self {
                let mut handle = self.handle.clone();
                handle.fenced = true;
                Self { handle }
            }
        }
    };
}

pub(crate) use {fenced_methods, lock_methods, owner_methods, reentrancy_methods};

/// The re-entrant lock, Redisson's `RLock`: a hash `name → {owner → hold count}` with a time to live.
///
/// Ownership is a value, not a thread: every acquire has an owner of its own, so that two tasks
/// that share a handle exclude each other. To hold it more than once, use [`Guard::reenter`] or
/// [`as_owner`](Lock::as_owner):
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let client = lockkeeper::Client::memory();
/// let (lock, owner) = (client.lock("orders:42"), client.owner());
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

lock_methods!(Lock);
owner_methods!(Lock);
reentrancy_methods!(Lock);
fenced_methods!(Lock);

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

lock_methods!(Mutex);
