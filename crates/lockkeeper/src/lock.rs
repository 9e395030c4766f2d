//! The reentrant lock and the plain mutex, and the methods that handles of every kind have.

use crate::handle::Handle;
use crate::options::Backoff;

/// The methods that every handle has.
macro_rules! handle_methods {
    ($Type:ident) => {
        impl $Type {
            pub(crate) fn new(handle: $crate::handle::Handle) -> Self {
                Self { handle }
            }

            /// The name, prefix included.
            pub fn name(&self) -> &$crate::LockName {
                &self.handle.resource.name
            }
        }
    };
}

/// The methods of handles whose holds have leases.
macro_rules! lease_methods {
    ($Type:ident) => {
        $crate::lock::handle_methods!($Type);

        impl $Type {
            /// The same handle, to be acquired with this lease: a fixed one for a `Duration`, a renewed one for
            /// [`LeaseTime::Renewed`](crate::LeaseTime::Renewed). Without it the watchdog renews the lease for
            /// as long as the guard lives.
            #[must_use = "it is a new handle that has the lease"]
            pub fn lease(&self, lease: impl Into<$crate::LeaseTime>) -> Self {
                Self { handle: self.handle.leased(lease.into()) }
            }
        }
    };
}

/// The methods that every lock handle has.
macro_rules! lock_methods {
    ($Type:ident, $Guard:ident) => {
        $crate::lock::lease_methods!($Type);

        impl $Type {
            pub(crate) fn into_handle(self) -> $crate::handle::Handle {
                self.handle
            }

            /// Waits until the lock is acquired.
            ///
            /// # Errors
            /// [`Unreachable`](crate::Error::Unreachable) or [`Refused`](crate::Error::Refused) once the store has
            /// not answered or not served for [`unreachable_after`](crate::ClientOptions::unreachable_after);
            /// [`Denied`](crate::Error::Denied), [`WrongKind`](crate::Error::WrongKind) and
            /// [`Invalid`](crate::Error::Invalid) at once.
            ///
            /// # Cancel safety
            /// Dropping the future leaves nothing behind: no hold, no queue position, no subscription.
            pub fn lock(
                &self,
            ) -> impl std::future::Future<Output = $crate::Result<$crate::$Guard>>
            + Send + use<> {
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
            + Send + use<> {
                self.handle.try_lock(1, std::time::Duration::ZERO)
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
            + Send + use<> {
                self.handle.try_lock(1, wait)
            }

            /// Waits for the lock, runs `work` under it and releases it. When the lock is lost, the work is
            /// dropped at its next await point; that stops no threads, spawned tasks or requests already
            /// sent.
            ///
            /// # Errors
            /// See [`RunError`](crate::RunError).
            pub fn run<T, W: std::future::Future<Output = T>>(
                &self,
                work: impl FnOnce($crate::Hold) -> W,
            ) -> impl std::future::Future<
                Output = $crate::Result<$crate::Completed<T>, $crate::RunError<T>>,
            > {
                self.handle.run(1, work)
            }

            /// Waits for the lock for at most `wait`, not at all if that is zero, then as [`run`](Self::run). A
            /// lock that is still busy then is `Ok(None)`.
            ///
            /// # Errors
            /// See [`RunError`](crate::RunError).
            pub fn try_run_for<T, W: std::future::Future<Output = T>>(
                &self,
                wait: std::time::Duration,
                work: impl FnOnce($crate::Hold) -> W,
            ) -> impl std::future::Future<
                Output = $crate::Result<Option<$crate::Completed<T>>, $crate::RunError<T>>,
            > {
                self.handle.try_run(1, wait, work)
            }

            /// Whether the lock is held, as the store says.
            ///
            /// # Errors
            /// [`WrongKind`](crate::Error::WrongKind) if the name is in use for something else.
            pub async fn is_locked(&self) -> $crate::Result<bool> {
                self.handle.is_locked().await
            }

            /// All that the store says of the lock: its holders, waiters and TTL.
            ///
            /// # Errors
            /// As [`is_locked`](Self::is_locked).
            pub async fn inspect(&self) -> $crate::Result<$crate::LockInfo> {
                self.handle.inspect().await
            }

            /// Force-releases the lock; true if it was held. A holder that is a lockkeeper client receives
            /// the reason, which may be empty: at once if it listens, and otherwise at its next check.
            ///
            /// The request is sent once. If its answer is lost, the outcome is unknown.
            ///
            /// # Errors
            /// [`WrongKind`](crate::Error::WrongKind) if the name is in use for something else, which is
            /// then left alone.
            pub async fn force_unlock(&self, reason: impl Into<String>) -> $crate::Result<bool> {
                self.handle.force_unlock(reason.into()).await
            }
        }
    };
}

/// The methods of locks that an owner can hold more than once.
macro_rules! owner_methods {
    ($Type:ident) => {
        impl $Type {
            /// The same lock in the name of `owner`: its acquires re-enter the lock if `owner` holds it.
            #[must_use = "it is a new handle that has the owner"]
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
        }
    };
}

/// The options of locks that an owner can hold more than once, and that can issue fencing tokens.
macro_rules! option_methods {
    ($Type:ident) => {
        impl $Type {
            /// The same lock, but an owner that asks for it twice gets an
            /// [`Invalid`](crate::Error::Invalid) error at once instead of holding it twice. Decided
            /// here: in the store nothing differs.
            #[must_use = "it is a new handle that is not reentrant"]
            pub fn non_reentrant(&self) -> Self {
                Self { handle: $crate::handle::Handle { reentrant: false, ..self.handle.clone() } }
            }

            /// The same lock, issuing a [fencing token](crate::FencedLock) with each grant.
            #[must_use = "it is a new handle that issues tokens"]
            pub fn fenced(&self) -> $crate::FencedLock {
                $crate::FencedLock::new(self.handle.fenced())
            }
        }
    };
}

pub(crate) use {handle_methods, lease_methods, lock_methods, option_methods, owner_methods};

/// The reentrant lock, Redisson's `RLock`: a hash `name → {owner → hold count}` with a TTL.
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
option_methods!(Lock);

impl Lock {
    /// The same lock, whose waiters never subscribe: they poll, with these pauses. Redisson's `RSpinLock`.
    ///
    /// For very many names that are rarely and briefly contended, where a subscription for each would
    /// cost more than a few tries. Unlike Redisson's, its release notifies waiters that have subscribed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// use std::time::Duration;
    /// use lockkeeper::Backoff;
    ///
    /// let client = lockkeeper::Client::memory();
    /// let lock = client.lock("seat:17").polling(Backoff::constant(Duration::from_millis(5)));
    /// lock.lock().await?.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use = "it is a new handle whose waiters poll"]
    pub fn polling(&self, pauses: Backoff) -> Self {
        Self { handle: Handle { spin: Some(pauses), ..self.handle.clone() } }
    }
}

/// The plain lock of the Redlock family: `SET name id NX PX ms`. Not reentrant, and less work for the
/// server.
///
/// Other libraries of that family may hold and release the same key. Most of them do not publish a
/// release, so waiters also poll every 50 to 100 ms.
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
