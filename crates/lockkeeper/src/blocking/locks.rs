//! Everything that one can hold, for threads.

use std::time::Duration;

use super::{Client, Guard, Request};
use crate::backend::Kind;
use crate::config::Backoff;
use crate::guard::Hold;
use crate::holder::{Holder, Remaining};
use crate::lock::Handle;
use crate::run::{Ran, RunError};
use crate::{LockName, Result};

/// The methods that every lock handle has.
macro_rules! lock_methods {
    ($Type:ident) => {
        impl $Type {
            /// The name, prefix included.
            pub fn name(&self) -> &LockName {
                self.inner.name()
            }

            /// Waits until the lock is held; the watchdog keeps it for as long as the guard lives.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::lock`].")]
            pub fn lock(&self) -> Result<Guard> {
                self.request().lock()
            }

            /// One attempt; busy is `Ok(None)`.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::try_lock`].")]
            pub fn try_lock(&self) -> Result<Option<Guard>> {
                self.request().try_lock()
            }

            /// A request with a fixed lease: `lock.lease(d).lock()?`.
            pub fn lease(&self, span: Duration) -> Request {
                self.request().lease(span)
            }

            /// A request with a lease of its own that the watchdog renews.
            pub fn renewed(&self, span: Duration) -> Request {
                self.request().renewed(span)
            }

            /// A request that waits for at most so long: `lock.wait(d).try_lock()?`.
            pub fn wait(&self, span: Duration) -> Request {
                self.request().wait(span)
            }

            /// Waits for the lock, runs `work`, releases. Work on a thread cannot be stopped: look
            /// at [`Hold::is_lost`] in it.
            ///
            /// # Errors
            /// See [`RunError`].
            pub fn run<T>(&self, work: impl FnOnce(Hold) -> T) -> Result<Ran<T>, RunError<T>> {
                self.request().run(work)
            }

            /// Runs `work` under the lock if it is free, otherwise answers `Ok(None)` at once.
            ///
            /// # Errors
            /// See [`RunError`].
            pub fn try_run<T>(
                &self,
                work: impl FnOnce(Hold) -> T,
            ) -> Result<Option<Ran<T>>, RunError<T>> {
                self.request().try_run(work)
            }

            /// Whether anybody holds it, as the store says.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::is_locked`].")]
            pub fn is_locked(&self) -> Result<bool> {
                self.client.wait(self.inner.is_locked())
            }

            /// How long it stands if nobody renews it.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::is_locked`].")]
            pub fn remaining(&self) -> Result<Remaining> {
                self.client.wait(self.inner.remaining())
            }

            /// Who holds it.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::is_locked`].")]
            pub fn holder(&self) -> Result<Option<Holder>> {
                self.client.wait(self.inner.holder())
            }

            /// Takes the lock away from whoever holds it; true if anybody did.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::force_unlock`].")]
            pub fn force_unlock(&self) -> Result<bool> {
                self.client.wait(self.inner.force_unlock())
            }

            /// [`force_unlock`](Self::force_unlock) with a reason, which the holder gets to read.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::force_unlock`].")]
            pub fn force_unlock_because(&self, reason: impl Into<String>) -> Result<bool> {
                self.client.wait(self.inner.force_unlock_because(reason))
            }

            /// The async handle, in the name of nobody.
            pub(super) fn handle(&self) -> Handle {
                self.inner.clone().into_handle()
            }
        }
    };
}

/// The methods of what a thread can hold more than once.
macro_rules! owner_methods {
    ($Type:ident) => {
        impl $Type {
            fn request(&self) -> Request {
                Request::new(&self.client, self.client.by_thread(&self.handle()), 1)
            }

            /// How often the calling thread holds it, as the store says.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::hold_count`].")]
            pub fn hold_count(&self) -> Result<u64> {
                self.client.wait(self.inner.hold_count(&self.client.thread()))
            }

            /// Whether the calling thread holds it, as the store says.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::is_held_by`].")]
            pub fn is_held_by_this_thread(&self) -> Result<bool> {
                Ok(self.hold_count()? > 0)
            }
        }
    };
}

/// Variants of a lock that are made from it.
macro_rules! variant {
    ($Type:ident, $variant:ident) => {
        impl $Type {
            #[doc = concat!("See [`crate::", stringify!($Type), "::", stringify!($variant), "`].")]
            pub fn $variant(&self) -> Self {
                Self { client: self.client.clone(), inner: self.inner.$variant() }
            }
        }
    };
}

macro_rules! lock_type {
    ($Type:ident, $doc:literal) => {
        #[doc = $doc]
        #[doc = concat!("See [`crate::", stringify!($Type), "`].")]
        #[derive(Clone, Debug)]
        pub struct $Type {
            pub(super) client: Client,
            pub(super) inner: crate::$Type,
        }
    };
}

lock_type!(Lock, "The re-entrant lock; the calling thread is the owner.");
lock_methods!(Lock);
owner_methods!(Lock);
variant!(Lock, fenced);
variant!(Lock, non_reentrant);

lock_type!(FairLock, "The fair lock; the calling thread is the owner.");
lock_methods!(FairLock);
owner_methods!(FairLock);
variant!(FairLock, fenced);
variant!(FairLock, non_reentrant);

impl FairLock {
    /// See [`crate::FairLock::waiting`].
    ///
    /// # Errors
    /// As there.
    pub fn waiting(&self) -> Result<usize> {
        self.client.wait(self.inner.waiting())
    }
}

lock_type!(FencedLock, "The lock that issues tokens; the calling thread is the owner.");
lock_methods!(FencedLock);
owner_methods!(FencedLock);

lock_type!(SpinLock, "The lock that never subscribes; the calling thread is the owner.");
lock_methods!(SpinLock);
owner_methods!(SpinLock);

impl SpinLock {
    /// See [`crate::SpinLock::backoff`].
    pub fn backoff(&self, backoff: Backoff) -> Self {
        Self { client: self.client.clone(), inner: self.inner.backoff(backoff) }
    }
}

lock_type!(
    Mutex,
    "The plain mutex. Not re-entrant: a thread that locks it twice waits for itself."
);
lock_methods!(Mutex);

impl Mutex {
    fn request(&self) -> Request {
        Request::new(&self.client, self.handle(), 1)
    }
}

lock_type!(RwLock, "The read/write lock; the calling thread is the owner.");
variant!(RwLock, fenced);

impl RwLock {
    /// The name, prefix included.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// Waits until it is held for reading.
    ///
    /// # Errors
    /// See [`crate::RwLock::read`].
    pub fn read(&self) -> Result<Guard> {
        self.reading().lock()
    }

    /// One attempt to hold it for reading.
    ///
    /// # Errors
    /// See [`crate::RwLock::try_read`].
    pub fn try_read(&self) -> Result<Option<Guard>> {
        self.reading().try_lock()
    }

    /// Waits until it is held for writing. A thread that reads gets an error: it would wait for
    /// itself.
    ///
    /// # Errors
    /// See [`crate::RwLock::write`].
    pub fn write(&self) -> Result<Guard> {
        self.writing().lock()
    }

    /// One attempt to hold it for writing.
    ///
    /// # Errors
    /// See [`crate::RwLock::try_write`].
    pub fn try_write(&self) -> Result<Option<Guard>> {
        self.writing().try_lock()
    }

    /// A request to read, to be given a lease or a wait limit.
    pub fn reading(&self) -> Request {
        Request::new(&self.client, self.client.by_thread(&self.inner.side(Kind::Read)), 1)
    }

    /// A request to write, to be given a lease or a wait limit.
    pub fn writing(&self) -> Request {
        Request::new(&self.client, self.client.by_thread(&self.inner.side(Kind::Write)), 1)
    }

    /// How often the calling thread reads, as the store says.
    ///
    /// # Errors
    /// See [`crate::RwLock::read_count`].
    pub fn read_count(&self) -> Result<u64> {
        self.client.wait(self.inner.read_count(&self.client.thread()))
    }

    /// How often the calling thread writes, as the store says.
    ///
    /// # Errors
    /// See [`crate::RwLock::write_count`].
    pub fn write_count(&self) -> Result<u64> {
        self.client.wait(self.inner.write_count(&self.client.thread()))
    }

    /// Whether anybody reads.
    ///
    /// # Errors
    /// See [`crate::RwLock::holders`].
    pub fn is_read_locked(&self) -> Result<bool> {
        self.client.wait(self.inner.is_read_locked())
    }

    /// Whether anybody writes.
    ///
    /// # Errors
    /// See [`crate::RwLock::holders`].
    pub fn is_write_locked(&self) -> Result<bool> {
        self.client.wait(self.inner.is_write_locked())
    }

    /// Who holds it.
    ///
    /// # Errors
    /// See [`crate::RwLock::holders`].
    pub fn holders(&self) -> Result<Vec<Holder>> {
        self.client.wait(self.inner.holders())
    }

    /// How long it stands if nobody renews it.
    ///
    /// # Errors
    /// See [`crate::RwLock::holders`].
    pub fn remaining(&self) -> Result<Remaining> {
        self.client.wait(self.inner.remaining())
    }

    /// Takes it away from whoever reads or writes; true if anybody did.
    ///
    /// # Errors
    /// See [`crate::RwLock::force_unlock`].
    pub fn force_unlock(&self) -> Result<bool> {
        self.client.wait(self.inner.force_unlock())
    }

    /// [`force_unlock`](RwLock::force_unlock) with a reason, which the holders get to read.
    ///
    /// # Errors
    /// See [`crate::RwLock::force_unlock`].
    pub fn force_unlock_because(&self, reason: impl Into<String>) -> Result<bool> {
        self.client.wait(self.inner.force_unlock_because(reason))
    }
}
