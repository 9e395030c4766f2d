//! Guards: one type for each kind of hold, each a thin layer over [`AnyGuard`].
//!
//! A kind has only the methods that make sense for it: a mutex guard cannot be re-entered, only a read
//! guard can be upgraded, only a fenced guard has a token. What a kind cannot do does not compile.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::Kind;
use crate::engine::acquire::Acquired;
use crate::error::{Error, LostReason, Phase, Result};
use crate::hold::{AnyGuard, FromAcquired, Hold, debug};
use crate::options::LeaseTime;
use crate::{LockName, OwnerId, PermitId};

/// A guard type with the methods that every guard has.
macro_rules! guard {
    ($(#[$doc:meta])* $Guard:ident) => {
        $(#[$doc])*
        ///
        /// Dropping it releases the lock in the background: see [`AnyGuard`].
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

            /// A view of the hold, without the right to release it.
            pub fn hold(&self) -> Hold {
                self.0.hold()
            }

            /// The name of the lock, prefix included.
            pub fn name(&self) -> &LockName {
                self.0.name()
            }

            /// The identity of the owner in the store.
            pub fn owner_id(&self) -> OwnerId {
                self.0.owner_id()
            }

            /// Until when the hold is valid, by this process's clock. See [`Hold::deadline`].
            pub fn deadline(&self) -> Instant {
                self.0.deadline()
            }

            /// How long the hold is still valid; zero once it is lost.
            pub fn remaining(&self) -> Duration {
                self.0.remaining()
            }

            /// Whether the hold is no longer valid. No round trip.
            pub fn is_lost(&self) -> bool {
                self.0.is_lost()
            }

            /// Resolves when the hold is no longer valid, with the reason. See [`Hold::lost`].
            pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static {
                self.0.lost()
            }
        }

        impl FromAcquired for $Guard {
            fn from_acquired(acquired: Acquired) -> Self {
                Self(AnyGuard::new(acquired))
            }
        }

        impl AsRef<AnyGuard> for $Guard {
            fn as_ref(&self) -> &AnyGuard {
                &self.0
            }
        }

        impl From<$Guard> for AnyGuard {
            fn from(guard: $Guard) -> Self {
                guard.0
            }
        }

        impl fmt::Debug for $Guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                debug(stringify!($Guard), self.0.lease(), f)
            }
        }
    };
}

/// The methods of a guard whose owner can hold the lock more than once.
macro_rules! reentrant_guard {
    ($Guard:ident) => {
        impl $Guard {
            /// Re-enters the lock for the same owner. Each guard is released on its own.
            ///
            /// # Errors
            /// [`Lost`](Error::Lost) if the lock was lost: a re-entry never acquires a lock that has
            /// vanished. [`Invalid`](Error::Invalid) if the lock was acquired by a `non_reentrant` handle.
            ///
            /// # Cancel safety
            /// A hold that was added after all is released.
            pub fn reenter(&self) -> impl Future<Output = Result<Self>> + Send + use<> {
                self.0.reenter_with(None)
            }

            /// Re-enters with a lease of its own instead of the client's renewed lease.
            ///
            /// # Errors and cancel safety
            /// As [`reenter`](Self::reenter).
            pub fn reenter_for<L: Into<LeaseTime>>(
                &self,
                lease: L,
            ) -> impl Future<Output = Result<Self>> + Send + use<L> {
                self.0.reenter_with(Some(lease.into()))
            }

            /// The number of guards of this owner.
            pub fn hold_count(&self) -> u32 {
                self.0.hold_count()
            }
        }
    };
}

/// The methods of a guard of the write side of a read/write lock.
macro_rules! write_guard {
    ($Guard:ident, $ReadGuard:ident, $fenced:literal) => {
        impl $Guard {
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
            pub async fn read(&self) -> Result<$ReadGuard> {
                let core = &self.0.lease().core;
                core.anywhere(self.0.read_too($fenced)).await.map($ReadGuard)
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
            pub async fn downgrade(self) -> Result<$ReadGuard> {
                let reading = self.read().await?;
                self.release().await?;
                Ok(reading)
            }
        }
    };
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

/// The methods of a guard of the read side of a read/write lock.
macro_rules! read_guard {
    ($Guard:ident, $WriteGuard:ident, $fenced:literal) => {
        impl $Guard {
            /// Upgrades to a write guard if there is no other reader; otherwise gives the read guard back. It
            /// waits for no reader, but for the answers of the store. The write guard has the client's
            /// renewed lease, whatever lease this guard has.
            ///
            /// # Errors
            /// See [`UpgradeError`], which has the read guard.
            ///
            /// # Cancel safety
            /// Dropping the future releases both.
            pub async fn try_upgrade(self) -> Result<$WriteGuard, UpgradeError<Self>> {
                let core = Arc::clone(&self.0.lease().core);
                match core.anywhere(self.0.other_side(Kind::Write, $fenced)).await {
                    Ok(Some(acquired)) => {
                        let writing = $WriteGuard::from_acquired(acquired);
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
    };
}

/// The methods of a guard with a fencing token.
macro_rules! fenced_guard {
    ($Guard:ident) => {
        impl $Guard {
            /// The fencing token: greater than that of every earlier holder. Send it along with each change
            /// that the lock protects; see [`FencedLock`](crate::FencedLock).
            pub fn token(&self) -> u64 {
                self.0.token().expect("a fenced lock issues a token with each grant")
            }
        }
    };
}

guard! {
    /// A held [`Lock`](crate::Lock), [`FairLock`](crate::FairLock) or [`SpinLock`](crate::SpinLock). It has no fencing
    /// token:
    ///
    /// ```compile_fail,E0599
    /// # async fn refused(client: lockkeeper::Client) -> lockkeeper::Result<()> {
    /// let guard = client.lock("a").lock().await?;
    /// guard.token();
    /// # Ok(()) }
    /// ```
    LockGuard
}
reentrant_guard!(LockGuard);

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
reentrant_guard!(FencedGuard);
fenced_guard!(FencedGuard);

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
reentrant_guard!(ReadGuard);
read_guard!(ReadGuard, WriteGuard, false);

guard! {
    /// An [`RwLock`](crate::RwLock) held for writing. Only a read guard can be upgraded:
    ///
    /// ```compile_fail,E0599
    /// # async fn refused(client: lockkeeper::Client) -> lockkeeper::Result<()> {
    /// let guard = client.rw_lock("a").write().await?;
    /// guard.try_upgrade().await?;
    /// # Ok(()) }
    /// ```
    WriteGuard
}
reentrant_guard!(WriteGuard);
write_guard!(WriteGuard, ReadGuard, false);

guard! {
    /// A [`FencedRwLock`](crate::FencedRwLock) held for reading. Readers have no token.
    FencedReadGuard
}
reentrant_guard!(FencedReadGuard);
read_guard!(FencedReadGuard, FencedWriteGuard, true);

guard! {
    /// A [`FencedRwLock`](crate::FencedRwLock) held for writing, with its token.
    FencedWriteGuard
}
reentrant_guard!(FencedWriteGuard);
write_guard!(FencedWriteGuard, FencedReadGuard, true);
fenced_guard!(FencedWriteGuard);

guard! {
    /// Permits of a [`PermitSemaphore`](crate::PermitSemaphore).
    PermitsGuard
}

impl PermitsGuard {
    /// The ids of the permits.
    pub fn permit_ids(&self) -> Vec<PermitId> {
        self.0.permit_ids()
    }
}

/// Why a read guard was not upgraded. It has the read guard: [`into_guard`](UpgradeError::into_guard).
#[derive(Debug)]
pub struct UpgradeError<G> {
    guard: G,
    error: Option<Error>,
}

impl<G> UpgradeError<G> {
    /// The read guard, as it was before.
    pub fn into_guard(self) -> G {
        self.guard
    }

    /// Whether other readers hold the lock. Otherwise the store failed, or the read lock was lost.
    pub fn is_busy(&self) -> bool {
        self.error.is_none()
    }

    /// The error of the store, unless other readers hold the lock.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }
}

impl<G> fmt::Display for UpgradeError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.error {
            Some(_) => "the read lock was not upgraded",
            None => "the read lock was not upgraded: it has other holders",
        })
    }
}

impl<G: fmt::Debug> std::error::Error for UpgradeError<G> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.as_ref().map(|error| error as _)
    }
}
