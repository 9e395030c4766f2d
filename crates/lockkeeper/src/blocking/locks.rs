//! Locks for threads.

use std::time::{Duration, Instant};

use super::guards::{
    AnyGuard, FencedGuard, FencedReadGuard, FencedWriteGuard, LockGuard, MutexGuard, ReadGuard,
    WriteGuard,
};
use super::{Client, PermitSemaphore};
use crate::config::{Backoff, LeaseTime};
use crate::hold::Hold;
use crate::holder::{Holder, Remaining};
use crate::run::{Completed, RunError};
use crate::{LockName, Result};

/// The methods that every lock handle has. `$owned` is the async handle that acquires.
macro_rules! lock_methods {
    ($Type:ident, $Guard:ident, $lock:ident => $owned:expr) => {
        impl $Type {
            /// The name, prefix included.
            pub fn name(&self) -> &LockName {
                self.inner.name()
            }

            /// The same lock, to be acquired with this lease: `lock.lease(d).lock()?`.
            #[doc = concat!("See [`crate::", stringify!($Type), "::lease`].")]
            #[must_use = "it is a new handle that has the lease"]
            pub fn lease(&self, lease: impl Into<LeaseTime>) -> Self {
                Self { inner: self.inner.lease(lease), client: self.client.clone() }
            }

            /// Waits until the lock is acquired. Without a [`lease`](Self::lease) the watchdog renews it for as
            /// long as the guard lives.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::lock`].")]
            pub fn lock(&self) -> Result<$Guard> {
                let guard = self.client.wait(self.owned().lock())?;
                Ok($Guard::new(&self.client, guard))
            }

            /// Makes one attempt. A busy lock is `Ok(None)`.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::try_lock`].")]
            pub fn try_lock(&self) -> Result<Option<$Guard>> {
                let guard = self.client.wait(self.owned().try_lock())?;
                Ok(guard.map(|guard| $Guard::new(&self.client, guard)))
            }

            /// Waits for the lock for at most `wait`. A lock that is still busy then is `Ok(None)`.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::try_lock_for`].")]
            pub fn try_lock_for(&self, wait: Duration) -> Result<Option<$Guard>> {
                let guard = self.client.wait(self.owned().try_lock_for(wait))?;
                Ok(guard.map(|guard| $Guard::new(&self.client, guard)))
            }

            /// Waits for the lock, runs `work`, releases. Work on a thread cannot be stopped: check
            /// [`Hold::is_lost`] in it.
            ///
            /// # Errors
            /// See [`RunError`].
            pub fn run<T>(
                &self,
                work: impl FnOnce(Hold) -> T,
            ) -> Result<Completed<T>, RunError<T>> {
                let started = Instant::now();
                AnyGuard::from(self.lock().map_err(RunError::Acquire)?).run(started, work)
            }

            /// Runs `work` under the lock if it is free. A busy lock is `Ok(None)`, at once.
            ///
            /// # Errors
            /// See [`RunError`].
            pub fn try_run<T>(
                &self,
                work: impl FnOnce(Hold) -> T,
            ) -> Result<Option<Completed<T>>, RunError<T>> {
                self.try_run_for(Duration::ZERO, work)
            }

            /// Waits for the lock for at most `wait`, then as [`try_run`](Self::try_run).
            ///
            /// # Errors
            /// See [`RunError`].
            pub fn try_run_for<T>(
                &self,
                wait: Duration,
                work: impl FnOnce(Hold) -> T,
            ) -> Result<Option<Completed<T>>, RunError<T>> {
                let started = Instant::now();
                match self.try_lock_for(wait).map_err(RunError::Acquire)? {
                    None => Ok(None),
                    Some(guard) => AnyGuard::from(guard).run(started, work).map(Some),
                }
            }

            fn owned(&self) -> crate::$Type {
                let $lock = self;
                $owned
            }

            /// Whether the lock is held, as the store says.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::is_locked`].")]
            pub fn is_locked(&self) -> Result<bool> {
                self.client.wait(self.inner.is_locked())
            }

            /// The remaining TTL of the key.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::is_locked`].")]
            pub fn remaining(&self) -> Result<Remaining> {
                self.client.wait(self.inner.remaining())
            }

            /// The holder, as the store says.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::is_locked`].")]
            pub fn holder(&self) -> Result<Option<Holder>> {
                self.client.wait(self.inner.holder())
            }

            /// Force-releases the lock; true if it was held.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::force_unlock`].")]
            pub fn force_unlock(&self) -> Result<bool> {
                self.client.wait(self.inner.force_unlock())
            }

            /// [`force_unlock`](Self::force_unlock) with a reason that is passed to the holder.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::force_unlock`].")]
            pub fn force_unlock_because(&self, reason: impl Into<String>) -> Result<bool> {
                self.client.wait(self.inner.force_unlock_because(reason))
            }
        }
    };
}

/// The methods of what a thread can hold more than once.
macro_rules! owner_methods {
    ($Type:ident) => {
        impl $Type {
            /// The hold count of the calling thread, as the store says.
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
    ($Type:ident, $variant:ident => $Variant:ident) => {
        impl $Type {
            #[doc = concat!("See [`crate::", stringify!($Type), "::", stringify!($variant), "`].")]
            pub fn $variant(&self) -> $Variant {
                $Variant { client: self.client.clone(), inner: self.inner.$variant() }
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
lock_methods!(Lock, LockGuard, lock => lock.inner.as_owner(&lock.client.thread()));
owner_methods!(Lock);
variant!(Lock, fenced => FencedLock);
variant!(Lock, non_reentrant => Lock);

lock_type!(FairLock, "The fair lock; the calling thread is the owner.");
lock_methods!(FairLock, LockGuard, lock => lock.inner.as_owner(&lock.client.thread()));
owner_methods!(FairLock);
variant!(FairLock, fenced => FencedLock);
variant!(FairLock, non_reentrant => FairLock);

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
lock_methods!(FencedLock, FencedGuard, lock => lock.inner.as_owner(&lock.client.thread()));
owner_methods!(FencedLock);

lock_type!(SpinLock, "The lock that never subscribes; the calling thread is the owner.");
lock_methods!(SpinLock, LockGuard, lock => lock.inner.as_owner(&lock.client.thread()));
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
lock_methods!(Mutex, MutexGuard, lock => lock.inner.clone());

/// The methods of a read/write lock, by the types of its guards.
macro_rules! rw_methods {
    ($Type:ident, $ReadGuard:ident, $WriteGuard:ident) => {
        impl $Type {
            /// The name, prefix included.
            pub fn name(&self) -> &LockName {
                self.inner.name()
            }

            /// The same lock, to be acquired with this lease: `lock.lease(d).write()?`.
            #[must_use = "it is a new handle that has the lease"]
            pub fn lease(&self, lease: impl Into<LeaseTime>) -> Self {
                Self { inner: self.inner.lease(lease), client: self.client.clone() }
            }

            /// Waits until the lock is acquired for reading.
            ///
            /// # Errors
            /// See [`crate::RwLock::read`].
            pub fn read(&self) -> Result<$ReadGuard> {
                Ok(self.reading(self.client.wait(self.owned().read())?))
            }

            /// Makes one attempt to acquire the lock for reading.
            ///
            /// # Errors
            /// See [`crate::RwLock::try_read`].
            pub fn try_read(&self) -> Result<Option<$ReadGuard>> {
                let guard = self.client.wait(self.owned().try_read())?;
                Ok(guard.map(|guard| self.reading(guard)))
            }

            /// Waits for the read lock for at most `wait`.
            ///
            /// # Errors
            /// See [`crate::RwLock::try_read_for`].
            pub fn try_read_for(&self, wait: Duration) -> Result<Option<$ReadGuard>> {
                let guard = self.client.wait(self.owned().try_read_for(wait))?;
                Ok(guard.map(|guard| self.reading(guard)))
            }

            /// Waits until the lock is acquired for writing. A thread that reads gets an error: it would wait
            /// for itself.
            ///
            /// # Errors
            /// See [`crate::RwLock::write`].
            pub fn write(&self) -> Result<$WriteGuard> {
                Ok(self.writing(self.client.wait(self.owned().write())?))
            }

            /// Makes one attempt to acquire the lock for writing.
            ///
            /// # Errors
            /// See [`crate::RwLock::try_write`].
            pub fn try_write(&self) -> Result<Option<$WriteGuard>> {
                let guard = self.client.wait(self.owned().try_write())?;
                Ok(guard.map(|guard| self.writing(guard)))
            }

            /// Waits for the write lock for at most `wait`.
            ///
            /// # Errors
            /// See [`crate::RwLock::try_write_for`].
            pub fn try_write_for(&self, wait: Duration) -> Result<Option<$WriteGuard>> {
                let guard = self.client.wait(self.owned().try_write_for(wait))?;
                Ok(guard.map(|guard| self.writing(guard)))
            }

            /// Its read side, as a lock of any kind, which is not owned by the calling thread.
            pub fn reader(&self) -> AnyLock {
                AnyLock::new(&self.client, self.inner.reader())
            }

            /// Its write side, as a lock of any kind, which is not owned by the calling thread.
            pub fn writer(&self) -> AnyLock {
                AnyLock::new(&self.client, self.inner.writer())
            }

            /// The read hold count of the calling thread, as the store says.
            ///
            /// # Errors
            /// See [`crate::RwLock::read_count`].
            pub fn read_count(&self) -> Result<u64> {
                self.client.wait(self.inner.read_count(&self.client.thread()))
            }

            /// The write hold count of the calling thread, as the store says.
            ///
            /// # Errors
            /// See [`crate::RwLock::write_count`].
            pub fn write_count(&self) -> Result<u64> {
                self.client.wait(self.inner.write_count(&self.client.thread()))
            }

            /// Whether the calling thread holds it, for reading or writing.
            ///
            /// # Errors
            /// See [`crate::RwLock::is_held_by`].
            pub fn is_held_by_this_thread(&self) -> Result<bool> {
                self.client.wait(self.inner.is_held_by(&self.client.thread()))
            }

            /// Whether it is held for reading.
            ///
            /// # Errors
            /// See [`crate::RwLock::holders`].
            pub fn is_read_locked(&self) -> Result<bool> {
                self.client.wait(self.inner.is_read_locked())
            }

            /// Whether it is held for writing.
            ///
            /// # Errors
            /// See [`crate::RwLock::holders`].
            pub fn is_write_locked(&self) -> Result<bool> {
                self.client.wait(self.inner.is_write_locked())
            }

            /// The holders, as the store says.
            ///
            /// # Errors
            /// See [`crate::RwLock::holders`].
            pub fn holders(&self) -> Result<Vec<Holder>> {
                self.client.wait(self.inner.holders())
            }

            /// The remaining TTL of the key.
            ///
            /// # Errors
            /// See [`crate::RwLock::holders`].
            pub fn remaining(&self) -> Result<Remaining> {
                self.client.wait(self.inner.remaining())
            }

            /// Force-releases the lock from readers and writer; true if it was held.
            ///
            /// # Errors
            /// See [`crate::RwLock::force_unlock`].
            pub fn force_unlock(&self) -> Result<bool> {
                self.client.wait(self.inner.force_unlock())
            }

            /// [`force_unlock`](Self::force_unlock) with a reason that is passed to the holders.
            ///
            /// # Errors
            /// See [`crate::RwLock::force_unlock`].
            pub fn force_unlock_because(&self, reason: impl Into<String>) -> Result<bool> {
                self.client.wait(self.inner.force_unlock_because(reason))
            }

            fn owned(&self) -> crate::$Type {
                self.inner.as_owner(&self.client.thread())
            }

            fn reading(&self, guard: crate::$ReadGuard) -> $ReadGuard {
                $ReadGuard::new(&self.client, guard)
            }

            fn writing(&self, guard: crate::$WriteGuard) -> $WriteGuard {
                $WriteGuard::new(&self.client, guard)
            }
        }
    };
}

lock_type!(RwLock, "The read/write lock; the calling thread is the owner.");
rw_methods!(RwLock, ReadGuard, WriteGuard);
variant!(RwLock, fenced => FencedRwLock);

lock_type!(FencedRwLock, "The read/write lock that issues fencing tokens to writers.");
rw_methods!(FencedRwLock, FencedReadGuard, FencedWriteGuard);

lock_type!(
    AnyLock,
    "A lock of any kind. It is acquired in the name of its guard, not of the calling thread: a thread that \
     holds the lock already waits for itself."
);
lock_methods!(AnyLock, AnyGuard, lock => lock.inner.clone());

impl AnyLock {
    fn new(client: &Client, inner: crate::AnyLock) -> Self {
        Self { inner, client: client.clone() }
    }
}

macro_rules! any_lock {
    ($($Lock:ident)+) => {
        $(impl From<$Lock> for AnyLock {
            fn from($Lock { inner, client }: $Lock) -> Self {
                Self { inner: inner.into(), client }
            }
        })+
    };
}

any_lock!(Lock FairLock FencedLock Mutex SpinLock PermitSemaphore);
