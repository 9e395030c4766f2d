//! Guards for threads: see the async guards of the same names.

use std::time::{Duration, Instant};

use super::Client;
use super::forward::Outcome;
use crate::config::LeaseTime;
use crate::error::{LostReason, Result};
use crate::hold::Hold;
use crate::run::{Completed, Held, RunError, finished};
use crate::{LockName, OwnerId, PermitId, UpgradeError};

/// A guard type with the methods that every guard has.
macro_rules! guard {
    ($Guard:ident, $doc:literal) => {
        #[doc = $doc]
        #[doc = concat!("See [`crate::", stringify!($Guard), "`].")]
        ///
        /// Dropping it releases the lock in the background. If it is the last value that belongs to its client,
        /// dropping it waits for the release: see [`Client`].
        #[derive(Debug)]
        #[must_use = "if it is not kept, the lock is released at once"]
        pub struct $Guard {
            /// Dropped before the client, which carries the runtime that releases it.
            guard: crate::$Guard,
            client: Client,
        }

        impl Outcome for crate::$Guard {
            type Blocking = $Guard;

            fn on(self, client: &Client) -> $Guard {
                $Guard { guard: self, client: client.clone() }
            }
        }

        impl $Guard {
            /// Releases the lock. See [`crate::AnyGuard::release`].
            ///
            /// # Errors
            /// As there.
            pub fn release(self) -> Result<()> {
                let Self { client, guard } = self;
                client.wait(guard.release())
            }

            /// Gives up the guard but leaves the lock held for `span`. See [`crate::AnyGuard::leave_for`].
            ///
            /// # Errors
            /// As there.
            pub fn leave_for(self, span: Duration) -> Result<()> {
                let Self { client, guard } = self;
                client.wait(guard.leave_for(span))
            }

            /// Gives this guard a fixed lease of `span` from now. See [`crate::AnyGuard::extend`].
            ///
            /// # Errors
            /// As there.
            pub fn extend(&self, span: Duration) -> Result<()> {
                self.client.wait(self.guard.extend(span))
            }

            /// A view of the hold, without the right to release it.
            pub fn hold(&self) -> Hold {
                self.guard.hold()
            }

            /// The name of the lock, prefix included.
            pub fn name(&self) -> &LockName {
                self.guard.name()
            }

            /// The identity of the owner in the store.
            pub fn owner_id(&self) -> OwnerId {
                self.guard.owner_id()
            }

            /// How long the hold is still valid; zero once it is lost.
            pub fn remaining(&self) -> Duration {
                self.guard.remaining()
            }

            /// Whether the hold is no longer valid. No round trip.
            pub fn is_lost(&self) -> bool {
                self.guard.is_lost()
            }

            /// Waits for at most `span` for the hold to be lost; the reason, if it was.
            pub fn wait_lost(&self, span: Duration) -> Option<LostReason> {
                let lost = self.guard.lost();
                self.client.wait(async move { tokio::time::timeout(span, lost).await.ok() })
            }
        }
    };
}

/// Conversion into a guard of any kind.
macro_rules! any_guard {
    ($($Guard:ident)+) => {
        $(impl From<$Guard> for AnyGuard {
            fn from($Guard { guard, client }: $Guard) -> Self {
                Self { guard: guard.into(), client }
            }
        })+
    };
}

/// The methods of a guard whose thread can hold the lock more than once.
macro_rules! reentrant_guard {
    ($Guard:ident) => {
        impl $Guard {
            /// Re-enters the lock for the same owner.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Guard), "::reenter`].")]
            pub fn reenter(&self) -> Result<Self> {
                Ok(self.client.wait(self.guard.reenter())?.on(&self.client))
            }

            /// Re-enters with a lease of its own.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Guard), "::reenter`].")]
            pub fn reenter_for(&self, lease: impl Into<LeaseTime>) -> Result<Self> {
                Ok(self.client.wait(self.guard.reenter_for(lease))?.on(&self.client))
            }

            /// The number of guards of this owner.
            pub fn hold_count(&self) -> u32 {
                self.guard.hold_count()
            }
        }
    };
}

/// The methods of a guard of the write side of a read/write lock.
macro_rules! write_guard {
    ($Guard:ident, $ReadGuard:ident) => {
        impl $Guard {
            /// Acquires the lock for reading, too.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Guard), "::read`].")]
            pub fn read(&self) -> Result<$ReadGuard> {
                Ok(self.client.wait(self.guard.read())?.on(&self.client))
            }

            /// Downgrades to a read guard. No other writer acquires the lock in between.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Guard), "::downgrade`].")]
            pub fn downgrade(self) -> Result<$ReadGuard> {
                let Self { client, guard } = self;
                Ok(client.wait(guard.downgrade())?.on(&client))
            }
        }
    };
}

/// The methods of a guard of the read side of a read/write lock.
macro_rules! read_guard {
    ($Guard:ident, $WriteGuard:ident) => {
        impl $Guard {
            /// Upgrades to a write guard if there is no other reader; otherwise gives the read guard back.
            ///
            /// # Errors
            /// See [`UpgradeError`], which has the read guard.
            pub fn try_upgrade(self) -> Result<$WriteGuard, UpgradeError<Self>> {
                let Self { client, guard } = self;
                match client.wait(guard.try_upgrade()) {
                    Ok(guard) => Ok($WriteGuard { guard, client }),
                    Err(error) => Err(error.map(|guard| Self { guard, client })),
                }
            }
        }
    };
}

/// The methods of a guard with a fencing token.
macro_rules! fenced_guard {
    ($Guard:ident) => {
        impl $Guard {
            #[doc = concat!("The fencing token: see [`crate::", stringify!($Guard), "::token`].")]
            pub fn token(&self) -> u64 {
                self.guard.token()
            }
        }
    };
}

guard!(AnyGuard, "A hold of any kind.");
any_guard!(LockGuard MutexGuard FencedGuard ReadGuard WriteGuard PermitsGuard);
any_guard!(FencedReadGuard FencedWriteGuard);

impl AnyGuard {
    /// The fencing token, if the lock issues tokens.
    pub fn token(&self) -> Option<u64> {
        self.guard.token()
    }

    /// The ids of the permits, if the guard is of a permit semaphore.
    pub fn permit_ids(&self) -> Vec<PermitId> {
        self.guard.permit_ids()
    }

    /// Runs `work` under it and releases it.
    pub(super) fn run<T>(
        self,
        started: Instant,
        work: impl FnOnce(Hold) -> T,
    ) -> Result<Completed<T>, RunError<T>> {
        let granted = Instant::now();
        let output = work(self.hold());
        let (waited, held) = (granted - started, granted.elapsed());
        let (lock, loss) = (self.name().clone(), self.guard.loss());
        finished(self.release(), lock, loss, Completed { output, waited, held })
    }
}

guard!(LockGuard, "A held lock: plain, fair or spin.");
reentrant_guard!(LockGuard);

guard!(MutexGuard, "A held mutex.");

guard!(FencedGuard, "A held lock with a fencing token.");
reentrant_guard!(FencedGuard);
fenced_guard!(FencedGuard);

guard!(ReadGuard, "A read/write lock held for reading.");
reentrant_guard!(ReadGuard);
read_guard!(ReadGuard, WriteGuard);

guard!(WriteGuard, "A read/write lock held for writing.");
reentrant_guard!(WriteGuard);
write_guard!(WriteGuard, ReadGuard);

guard!(FencedReadGuard, "A fenced read/write lock held for reading.");
reentrant_guard!(FencedReadGuard);
read_guard!(FencedReadGuard, FencedWriteGuard);

guard!(FencedWriteGuard, "A read/write lock held for writing, with a fencing token.");
reentrant_guard!(FencedWriteGuard);
write_guard!(FencedWriteGuard, FencedReadGuard);
fenced_guard!(FencedWriteGuard);

guard!(PermitsGuard, "Permits with ids and leases.");

impl PermitsGuard {
    /// The ids of the permits.
    pub fn permit_ids(&self) -> Vec<PermitId> {
        self.guard.permit_ids()
    }
}
