//! Guards: one type for each kind of hold, each a thin layer over [`AnyGuard`].
//!
//! All deref to [`Hold`]. A kind has only those methods that change something for it: a mutex guard cannot be
//! re-entered, only a read guard can be upgraded. What a kind cannot do does not compile.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Kind;
use crate::engine::acquire::Acquired;
use crate::error::{Error, LostReason, Phase, Result};
use crate::hold::{AnyGuard, FromAcquired, Hold};

/// A guard type with the methods that every guard has.
macro_rules! guard {
    ($(#[$doc:meta])* $Guard:ident) => {
        $(#[$doc])*
        ///
        /// Dropping it releases the lock in the background: see [`AnyGuard`].
        #[derive(Debug)]
        #[must_use = "if it is not kept, the lock is released at once"]
        pub struct $Guard(AnyGuard);

        impl $Guard {
            /// Releases the lock. See [`AnyGuard::release`].
            ///
            /// # Errors
            /// As there: the truth about whether the lock was held to the end.
            ///
            /// # Cancel safety
            /// The release is done once this is called, even if the future is dropped.
            pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
                self.0.release()
            }

            /// Gives up the guard but leaves the lock held for `span` from now. See
            /// [`AnyGuard::leave_for`].
            ///
            /// # Errors
            /// As there.
            pub fn leave_for(
                self,
                span: Duration,
            ) -> impl Future<Output = Result<()>> + Send + 'static {
                self.0.leave_for(span)
            }

            /// Gives this guard a fixed lease of `span` from now. See [`AnyGuard::extend`].
            ///
            /// # Errors
            /// As there.
            pub async fn extend(&self, span: Duration) -> Result<()> {
                self.0.extend(span).await
            }
        }

        impl Deref for $Guard {
            type Target = Hold;

            fn deref(&self) -> &Hold {
                &self.0
            }
        }

        impl FromAcquired for $Guard {
            fn from_acquired(acquired: Acquired) -> Result<Self> {
                AnyGuard::from_acquired(acquired).map(Self)
            }
        }

        impl From<$Guard> for AnyGuard {
            fn from(guard: $Guard) -> Self {
                guard.0
            }
        }
    };
}

/// The methods of guards whose owners can hold the lock more than once.
macro_rules! reentrant {
    ($($Guard:ident)+) => {
        $(impl $Guard {
            /// Re-enters the lock for the same owner, with the client's renewed lease. Each guard is released
            /// on its own.
            ///
            /// # Errors
            /// [`Lost`](Error::Lost) if the lock was lost: a re-entry never acquires a lock that has
            /// vanished. [`Invalid`](Error::Invalid) if the lock was acquired by a `non_reentrant` handle.
            ///
            /// # Cancel safety
            /// A hold that was added after all is released.
            pub fn reenter(&self) -> impl Future<Output = Result<Self>> + Send + use<> {
                self.0.reentered()
            }
        })+
    };
}

reentrant!(LockGuard FencedGuard ReadGuard WriteGuard);

guard! {
    /// A held [`Lock`](crate::Lock) or [`FairLock`](crate::FairLock).
    LockGuard
}

guard! {
    /// A held [`Mutex`](crate::Mutex). It cannot be re-entered:
    ///
    /// ```compile_fail,E0599
    /// # async fn refused(client: lockkeeper::Client) -> lockkeeper::Result<()> {
    /// let guard = client.mutex("a").lock().await?;
    /// guard.reenter().await?;
    /// # Ok(()) }
    /// ```
    MutexGuard
}

guard! {
    /// A held [`FencedLock`](crate::FencedLock), with its token.
    FencedGuard
}

impl FencedGuard {
    /// The fencing token: greater than that of every earlier holder. Send it along with each change
    /// that the lock protects; see [`FencedLock`](crate::FencedLock).
    pub fn token(&self) -> u64 {
        self.0.token().expect("a fenced lock issues a token with each grant")
    }
}

guard! {
    /// An [`RwLock`](crate::RwLock) held for reading. Only a write guard can be downgraded:
    ///
    /// ```compile_fail,E0599
    /// # async fn refused(client: lockkeeper::Client) -> lockkeeper::Result<()> {
    /// let guard = client.rw_lock("a").read().await?;
    /// guard.downgrade().await?;
    /// # Ok(()) }
    /// ```
    ReadGuard
}

impl ReadGuard {
    /// Upgrades to a write guard if there is no other reader; otherwise gives the read guard back. It
    /// waits for no reader, but for the answers of the store. The write guard has the client's
    /// renewed lease, whatever lease this guard has.
    ///
    /// # Errors
    /// See [`UpgradeError`], which has the read guard.
    ///
    /// # Cancel safety
    /// Dropping the future releases both.
    pub async fn try_upgrade(self) -> Result<WriteGuard, UpgradeError> {
        let core = Arc::clone(&self.0.lease().core);
        match core.anywhere(self.0.other_side(Kind::Write)).await {
            Ok(Some(acquired)) => {
                let writing = WriteGuard(AnyGuard::new(acquired));
                match upgraded(self.0).await {
                    Ok(()) => Ok(writing),
                    Err((guard, error)) => {
                        // Another writer may have been there in between.
                        let _ = writing.release().await;
                        Err(UpgradeError { guard: Self(guard), error: Some(error) })
                    }
                }
            }
            Ok(None) => Err(UpgradeError { guard: self, error: None }),
            Err(error) => Err(UpgradeError { guard: self, error: Some(error) }),
        }
    }
}

/// Releases the read hold beside which the write lock was granted. If it did not exist any more, the lock was
/// not held without a gap, and the guard is lost. An unconfirmed release is repeated in the background.
async fn upgraded(reading: AnyGuard) -> Result<(), (AnyGuard, Error)> {
    let (lost, released) = (reading.is_lost(), reading.released());
    match reading.release().await {
        Ok(()) => return Ok(()),
        Err(Error::NotHeld { .. }) => {}
        Err(_) if lost => {}
        Err(_) => return Ok(()),
    }
    released.lease().lose(LostReason::Deleted);
    let reason = released.lease().lost_reason().unwrap_or(LostReason::Deleted);
    let (lock, phase) = (released.name().clone(), Phase::Acquire);
    Err((released, Error::Lost { lock, phase, reason }))
}

guard! {
    /// An [`RwLock`](crate::RwLock) held for writing, with a [`token`](Hold::token) if the lock is
    /// [fenced](crate::RwLock::fenced). Only a read guard can be upgraded:
    ///
    /// ```compile_fail,E0599
    /// # async fn refused(client: lockkeeper::Client) -> lockkeeper::Result<()> {
    /// let guard = client.rw_lock("a").write().await?;
    /// guard.try_upgrade().await?;
    /// # Ok(()) }
    /// ```
    WriteGuard
}

impl WriteGuard {
    /// Acquires the lock for reading, too. Both guards are released on their own; if the write guard
    /// is released first, waiting readers acquire the lock. A write lock that is not released does
    /// not expire before the reads that are nested in it.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if the lock was lost; [`Unreachable`](Error::Unreachable) if the store
    /// did not answer for [`unreachable_after`](crate::ClientOptions::unreachable_after).
    ///
    /// # Cancel safety
    /// A hold that was added after all is released.
    pub async fn read(&self) -> Result<ReadGuard> {
        let core = &self.0.lease().core;
        core.anywhere(self.0.read_too()).await.map(ReadGuard)
    }

    /// Downgrades to a read guard. No other writer acquires the lock in between. The read guard has the
    /// client's renewed lease, whatever lease this guard has.
    ///
    /// Other write guards of the same owner keep the write lock until they are released.
    ///
    /// # Errors
    /// As [`read`](Self::read), and as [`release`](Self::release) for the write lock. The guard is
    /// then released.
    ///
    /// # Cancel safety
    /// Dropping the future releases both.
    pub async fn downgrade(self) -> Result<ReadGuard> {
        let reading = self.read().await?;
        self.release().await?;
        Ok(reading)
    }
}

guard! {
    /// Permits of a [`PermitSemaphore`](crate::PermitSemaphore).
    PermitGuard
}

/// Why a read guard was not upgraded. It has the read guard: [`into_guard`](UpgradeError::into_guard).
#[derive(Debug)]
pub struct UpgradeError {
    guard: ReadGuard,
    error: Option<Error>,
}

impl UpgradeError {
    /// The read guard, as it was before.
    pub fn into_guard(self) -> ReadGuard {
        self.guard
    }

    /// The error of the store, or the loss of the read lock; `None` if other readers hold the lock.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }
}

impl fmt::Display for UpgradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.error {
            Some(_) => "the read lock was not upgraded",
            None => "the read lock was not upgraded: it has other holders",
        })
    }
}

impl std::error::Error for UpgradeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.as_ref().map(|error| error as _)
    }
}
