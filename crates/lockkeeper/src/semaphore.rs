//! The semaphore: permits without owners.
//!
//! Held permits are a lease without an end. They use the same loop, undo and release as every other
//! hold, and a shutdown releases them.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::backend::CountChange;
use crate::engine::acquire::Acquired;
use crate::handle::Handle;
use crate::hold::{AnyGuard, FromAcquired};
use crate::lock::handle_methods;
use crate::{Error, LockName, Result};

/// The methods of both kinds of semaphores.
macro_rules! semaphore_methods {
    ($Type:ident, $Guard:ident) => {
        impl $Type {
            /// Waits until `permits` are held, all under one guard. Waiters of one client are served in the
            /// order of their arrival, so that a waiter for many permits is not overtaken by later ones for
            /// few. Between clients there is no order, and [`try_acquire`](Self::try_acquire) acquires free
            /// permits even if there are waiters.
            ///
            /// # Errors
            /// [`Invalid`](Error::Invalid) for no permits at all, and for a semaphore that was not set up;
            /// otherwise as [`Lock::lock`](crate::Lock::lock).
            ///
            /// # Cancel safety
            /// Dropping the future leaves nothing behind: permits that were granted after all are released.
            pub fn acquire(
                &self,
                permits: u32,
            ) -> impl Future<Output = Result<$Guard>> + Send + use<> {
                self.handle.lock(permits)
            }

            /// Makes one attempt. Too few free permits are `Ok(None)`.
            ///
            /// # Errors and cancel safety
            /// As [`acquire`](Self::acquire).
            pub fn try_acquire(
                &self,
                permits: u32,
            ) -> impl Future<Output = Result<Option<$Guard>>> + Send + use<> {
                self.handle.try_lock(permits, Duration::ZERO)
            }

            /// Waits for at most `wait`. See [`Lock::try_lock_for`](crate::Lock::try_lock_for).
            ///
            /// # Errors and cancel safety
            /// As [`acquire`](Self::acquire).
            pub fn try_acquire_for(
                &self,
                permits: u32,
                wait: Duration,
            ) -> impl Future<Output = Result<Option<$Guard>>> + Send + use<> {
                self.handle.try_lock(permits, wait)
            }

            /// Sets it up with this many permits. Returns false if it exists already, and leaves it
            /// unchanged.
            ///
            /// With a span it expires then, with all its permits. Do not set it up again while permits of
            /// the expired one are held: those of a [`Semaphore`](crate::Semaphore) cannot be distinguished
            /// from new ones.
            ///
            /// # Errors
            /// [`Invalid`](Error::Invalid) for 2⁵³ or more.
            pub async fn try_set_permits(
                &self,
                permits: u64,
                span: impl Into<Option<Duration>>,
            ) -> Result<bool> {
                self.handle.create(permits, span.into()).await
            }

            /// Adds permits, or with a negative number removes them, also below zero. Returns how many are
            /// free then. Its TTL does not change.
            ///
            /// # Errors
            /// [`Invalid`](Error::Invalid) for a semaphore that was not set up.
            pub async fn add_permits(&self, permits: i64) -> Result<i64> {
                self.handle.add(permits).await
            }

            /// The number of free permits: zero for a semaphore that was not set up, and below zero where
            /// more were removed than there are.
            ///
            /// # Errors
            /// [`WrongKind`](Error::WrongKind) if the name is in use for something else.
            pub async fn available(&self) -> Result<i64> {
                Ok(self.handle.inspect().await?.count.unwrap_or(0))
            }
        }
    };
}

pub(crate) use semaphore_methods;

/// A fixed number of permits for all processes together: Redisson's `RSemaphore`.
///
/// Permits have no owner and no lease, as in Redisson: the permits of a process that crashes are
/// lost for good, and no loss is signalled. Where that matters use a
/// [`PermitSemaphore`](crate::PermitSemaphore). They are also lost if the answer to an acquire is lost and
/// the store stays unreachable for longer than it remembers answers (a minute): it is then unknown whether
/// the permits were acquired. [`add_permits`](Semaphore::add_permits) replaces lost permits.
///
/// It must be set up once, by the first user:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let client = lockkeeper::Client::memory();
/// let workers = client.semaphore("workers");
/// workers.try_set_permits(3, None).await?;
///
/// let two = workers.acquire(2).await?;
/// assert!(workers.try_acquire(2).await?.is_none());
/// two.release().await?; // or drop it
/// assert_eq!(workers.available().await?, 3);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    handle: Handle,
}

handle_methods!(Semaphore);
semaphore_methods!(Semaphore, SemaphoreGuard);

impl Semaphore {
    /// Acquires all free permits, for good. Returns how many.
    ///
    /// # Errors
    /// As [`add_permits`](Semaphore::add_permits).
    pub async fn drain_permits(&self) -> Result<u64> {
        Ok(self.handle.change(CountChange::Drain).await?.number().unsigned_abs())
    }
}

/// Permits of a [`Semaphore`]. **Dropping it releases them in the background**: as for a
/// [guard](AnyGuard), wait for [`release`](SemaphoreGuard::release) or
/// [`Client::shutdown`](crate::Client::shutdown) before the program ends.
#[must_use = "if it is not kept, the permits are released at once"]
pub struct SemaphoreGuard(AnyGuard);

impl SemaphoreGuard {
    /// The number of permits.
    pub fn count(&self) -> u32 {
        self.0.lease().permits
    }

    /// The name of the semaphore, prefix included.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Releases the permits.
    ///
    /// # Errors
    /// [`NotHeld`](Error::NotHeld) if the semaphore has expired meanwhile: it is not created again.
    /// [`Unconfirmed`](Error::Unconfirmed) if the store did not answer for
    /// [`unreachable_after`](crate::ClientOptions::unreachable_after); the release is repeated in
    /// the background for twenty seconds.
    ///
    /// # Cancel safety
    /// The release is done once this is called, even if the future is dropped.
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.0.release()
    }

    /// Drops this value but keeps the permits acquired: release them with
    /// [`Semaphore::add_permits`], from any process.
    pub fn forget(self) {
        self.0.forget();
    }
}

impl FromAcquired for SemaphoreGuard {
    /// Not for a client that was shut down concurrently: it has released them.
    fn from_acquired(acquired: Acquired) -> Result<Self> {
        let (lease, _) = &acquired;
        if !lease.is_held() {
            return Err(Error::Closed { lock: Some(lease.resource.name.clone()) });
        }
        Ok(Self(AnyGuard::new(acquired)))
    }
}

impl fmt::Debug for SemaphoreGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphoreGuard")
            .field("semaphore", self.name())
            .field("count", &self.count())
            .finish_non_exhaustive()
    }
}
