//! The re-entrant lock and the plain mutex: handles that build requests.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{BoxFuture, Change, Changed, ClientInfo, Kind, Resource, Ttl};
use crate::engine::Core;
use crate::engine::acquire::{Request, Wait, acquire};
use crate::error::{Error, Phase, Result};
use crate::guard::{Guard, Hold, term};
use crate::run::{Ran, RunError, run};
use crate::{LockName, Owner};

/// What the handles of all locks have in common.
#[derive(Clone)]
pub(crate) struct Handle {
    core: Arc<Core>,
    resource: Resource,
    owner: Option<Owner>,
}

impl Handle {
    pub(crate) fn new(core: &Arc<Core>, kind: Kind, name: &[u8]) -> Self {
        let name = LockName::new(&core.options.name_prefix, name);
        Self { core: Arc::clone(core), resource: Resource { kind, name }, owner: None }
    }

    fn request(&self) -> Settings {
        Settings { handle: self.clone(), lease: None, renewed: None }
    }

    /// Who holds it and for how long, as the store says.
    async fn inspect(&self) -> Result<crate::backend::Snapshot> {
        self.core.ensure_open(&self.resource)?;
        self.ensure_named()?;
        let snapshot = self.core.unbroken(self.core.backend.inspect(self.resource.clone())).await;
        snapshot.map_err(|fault| self.core.error(fault, &self.resource, Phase::Inspect))
    }

    fn ensure_named(&self) -> Result<()> {
        if self.resource.name.as_bytes().is_empty() {
            return Err(Error::invalid(None, "the name of a lock must not be empty"));
        }
        Ok(())
    }

    async fn holder(&self) -> Result<Option<Holder>> {
        let holder = self.inspect().await?.holders.into_iter().next();
        Ok(holder.map(|entry| Holder {
            id: LockName::from(&entry.id[..]).to_string(),
            hold_count: entry.count,
            client: entry.client,
        }))
    }

    async fn remaining(&self) -> Result<Remaining> {
        Ok(match self.inspect().await?.ttl {
            None => Remaining::Free,
            Some(Ttl::Millis(left)) => Remaining::For(Duration::from_millis(left)),
            Some(Ttl::Forever) => Remaining::Forever,
        })
    }

    async fn hold_count(&self, owner: &Owner) -> Result<u64> {
        self.core.ensure_own(owner, &self.resource)?;
        let Some(lease) = self.core.owned(&self.resource, owner) else {
            return Ok(0);
        };
        let id = lease.owner.to_string().into_bytes();
        let holders = self.inspect().await?.holders;
        Ok(holders.into_iter().find(|entry| entry.id == id).map_or(0, |entry| entry.count))
    }

    async fn force_unlock(&self, reason: String) -> Result<bool> {
        self.core.ensure_open(&self.resource)?;
        self.ensure_named()?;
        let by = self.core.info.clone();
        let change = Change::ForceUnlock { resource: self.resource.clone(), reason, by };
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

/// Who holds a lock.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Holder {
    /// The identity in the store: `<client uuid>:<number>` for lockkeeper and Redisson.
    pub id: String,
    /// How often it holds the lock.
    pub hold_count: u64,
    /// Host, process and program, where the holder is a lockkeeper client.
    pub client: Option<ClientInfo>,
}

/// How long a lock stands if nobody renews it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Remaining {
    /// Nobody holds it.
    Free,
    /// So long.
    For(Duration),
    /// It has no end: someone took its time to live away.
    Forever,
}

/// What is common to the requests.
#[derive(Debug)]
struct Settings {
    handle: Handle,
    lease: Option<Duration>,
    renewed: Option<Duration>,
}

impl Settings {
    /// What it comes to; checked before anything is sent.
    fn request(self, wait: Wait) -> Result<(Arc<Core>, Request)> {
        let Self { handle, lease, renewed } = self;
        handle.ensure_named()?;
        let default = handle.core.options.watchdog_timeout;
        let term = term(&handle.resource, lease, renewed, default)?;
        let Handle { core, resource, owner } = handle;
        Ok((core, Request { resource, term, wait, owner }))
    }
}

/// A request that waits until the lock is held: `.await` it, or [`run`](LockRequest::run).
#[derive(Debug)]
#[must_use = "does nothing unless awaited"]
pub struct LockRequest {
    settings: Settings,
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
        run(guard, started, work).await
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
            acquire(&core, &request).await?.map(Guard::new).ok_or(Error::Closed { lock: None })
        })
    }
}

/// A request that gives up: at once, or after [`wait`](TryLockRequest::wait). `.await` it, or
/// [`run`](TryLockRequest::run).
#[derive(Debug)]
#[must_use = "does nothing unless awaited"]
pub struct TryLockRequest {
    settings: Settings,
    wait: Option<Duration>,
}

impl TryLockRequest {
    /// Waits for at most so long; everything counts, connecting too.
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
            Some(guard) => run(guard, started, work).await.map(Some),
        }
    }
}

impl IntoFuture for TryLockRequest {
    type Output = Result<Option<Guard>>;
    type IntoFuture = BoxFuture<Result<Option<Guard>>>;

    fn into_future(self) -> Self::IntoFuture {
        let wait = match self.wait {
            None | Some(Duration::ZERO) => Wait::Never,
            Some(span) => Wait::Until(self.settings.handle.core.clock.now() + span),
        };
        let request = self.settings.request(wait);
        Box::pin(async move {
            let (core, request) = request?;
            Ok(acquire(&core, &request).await?.map(Guard::new))
        })
    }
}

/// The methods that every lock handle has.
macro_rules! lock_methods {
    ($Type:ident) => {
        impl $Type {
            pub(crate) fn new(handle: Handle) -> Self {
                Self { handle }
            }

            /// The name, prefix included.
            pub fn name(&self) -> &LockName {
                &self.handle.resource.name
            }

            /// Waits until the lock is held. Without a [`lease`](LockRequest::lease) the watchdog
            /// keeps it for as long as the guard lives.
            ///
            /// # Errors
            /// [`Unreachable`](Error::Unreachable) once the store has not answered for
            /// [`unreachable_after`](crate::ClientOptions::unreachable_after);
            /// [`Denied`](Error::Denied), [`WrongKind`](Error::WrongKind) and
            /// [`Invalid`](Error::Invalid) at once.
            ///
            /// # Cancel safety
            /// Dropping the future leaves nothing behind: no hold, no place in a queue, no
            /// subscription.
            pub fn lock(&self) -> LockRequest {
                LockRequest { settings: self.handle.request() }
            }

            /// One attempt, or with [`wait`](TryLockRequest::wait) as many as fit. Busy is
            /// `Ok(None)`.
            ///
            /// # Errors
            /// As [`lock`](Self::lock); without `wait`, `Unreachable` comes within the response
            /// timeout.
            ///
            /// # Cancel safety
            /// As [`lock`](Self::lock).
            pub fn try_lock(&self) -> TryLockRequest {
                TryLockRequest { settings: self.handle.request(), wait: None }
            }

            /// Waits for the lock, runs `work` under it and releases it. When the lock is lost the
            /// work is dropped at its next await point; it cannot stop threads, spawned tasks or
            /// requests already sent.
            ///
            /// # Errors
            /// See [`RunError`].
            pub async fn run<T, W: Future<Output = T>>(
                &self,
                work: impl FnOnce(Hold) -> W,
            ) -> Result<Ran<T>, RunError<T>> {
                self.lock().run(work).await
            }

            /// Runs `work` under the lock if it is free, otherwise answers `Ok(None)` at once.
            ///
            /// # Errors
            /// See [`RunError`].
            pub async fn try_run<T, W: Future<Output = T>>(
                &self,
                work: impl FnOnce(Hold) -> W,
            ) -> Result<Option<Ran<T>>, RunError<T>> {
                self.try_lock().run(work).await
            }

            /// Whether anybody holds it, as the store says.
            ///
            /// # Errors
            /// [`WrongKind`](Error::WrongKind) if the name is in use for something else.
            pub async fn is_locked(&self) -> Result<bool> {
                Ok(!self.handle.inspect().await?.holders.is_empty())
            }

            /// How long it stands if nobody renews it.
            ///
            /// # Errors
            /// As [`is_locked`](Self::is_locked).
            pub async fn remaining(&self) -> Result<Remaining> {
                self.handle.remaining().await
            }

            /// Who holds it.
            ///
            /// # Errors
            /// As [`is_locked`](Self::is_locked).
            pub async fn holder(&self) -> Result<Option<Holder>> {
                self.handle.holder().await
            }

            /// Takes the lock away from whoever holds it; true if anybody did. A holder that is a
            /// lockkeeper client is told at once, if it listens; at its next check otherwise.
            ///
            /// It is sent once: if its answer is lost, whether it took effect is not known.
            ///
            /// # Errors
            /// [`WrongKind`](Error::WrongKind) if the name is in use for something else, which is
            /// then left alone.
            pub async fn force_unlock(&self) -> Result<bool> {
                self.handle.force_unlock(String::new()).await
            }

            /// [`force_unlock`](Self::force_unlock) with a reason, which the holder gets to read.
            ///
            /// # Errors
            /// As [`force_unlock`](Self::force_unlock).
            pub async fn force_unlock_because(&self, reason: impl Into<String>) -> Result<bool> {
                self.handle.force_unlock(reason.into()).await
            }
        }
    };
}

/// The re-entrant lock, Redisson's `RLock`: a hash `name → {owner → hold count}` with a time to live.
///
/// Ownership is a value, not a thread: every acquire has an owner of its own, so that two tasks
/// that share a handle exclude each other. To hold it more than once, use [`Guard::reenter`] or
/// [`as_owner`](Lock::as_owner).
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

impl Lock {
    /// The same lock in the name of `owner`: its acquires re-enter what it holds already.
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
    pub fn as_owner(&self, owner: &Owner) -> Lock {
        let mut handle = self.handle.clone();
        handle.owner = Some(owner.clone());
        Lock { handle }
    }

    /// How often `owner` holds it, as the store says.
    ///
    /// # Errors
    /// As [`is_locked`](Lock::is_locked); [`Invalid`](Error::Invalid) for an owner of another client.
    pub async fn hold_count(&self, owner: &Owner) -> Result<u64> {
        self.handle.hold_count(owner).await
    }

    /// Whether `owner` holds it, as the store says.
    ///
    /// # Errors
    /// As [`is_locked`](Lock::is_locked).
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool> {
        Ok(self.hold_count(owner).await? > 0)
    }
}

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
