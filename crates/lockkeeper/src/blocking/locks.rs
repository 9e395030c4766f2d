//! Locks for threads.

use std::time::{Duration, Instant};

use super::forward::{handle, named, variants, waiting};
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

/// The methods that every lock handle has. `$inner` is the async handle that acquires.
macro_rules! lock_methods {
    ($Type:ident, $Guard:ident, $lock:ident => $inner:expr) => {
        named!($Type);

        variants! { $Type {
            /// The same lock, to be acquired with this lease: `lock.lease(d).lock()?`.
            fn lease(lease: impl Into<LeaseTime>) -> $Type;
        } }

        waiting! { $Type, $lock => $inner; {
            /// Waits until the lock is acquired. Without a [`lease`](Self::lease) the watchdog renews it for as
            /// long as the guard lives.
            fn lock() -> $Guard;
            /// Makes one attempt. A busy lock is `Ok(None)`.
            fn try_lock() -> Option<$Guard>;
            /// Waits for the lock for at most `wait`. A lock that is still busy then is `Ok(None)`.
            fn try_lock_for(wait: Duration) -> Option<$Guard>;
            /// Whether the lock is held, as the store says.
            fn is_locked() -> bool;
            /// The remaining TTL of the key.
            fn remaining() -> Remaining;
            /// The holder, as the store says.
            fn holder() -> Option<Holder>;
            /// Force-releases the lock; true if it was held.
            fn force_unlock() -> bool;
            /// [`force_unlock`](Self::force_unlock) with a reason that is passed to the holder.
            fn force_unlock_because(reason: impl Into<String>) -> bool;
        } }

        impl $Type {
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
                let started = Instant::now();
                let guard = self.try_lock().map_err(RunError::Acquire)?;
                guard.map(|guard| AnyGuard::from(guard).run(started, work)).transpose()
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
                let guard = self.try_lock_for(wait).map_err(RunError::Acquire)?;
                guard.map(|guard| AnyGuard::from(guard).run(started, work)).transpose()
            }
        }
    };
}

/// Locks whose owner is the calling thread.
macro_rules! owned_by_threads {
    ($($Type:ident)+) => {
        $(impl $Type {
            fn owned(&self) -> crate::$Type {
                self.inner.as_owner(&self.client.thread())
            }
        })+
    };
}

/// Locks that a thread can hold more than once.
macro_rules! owner_methods {
    ($($Type:ident)+) => {
        $(impl $Type {
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
        })+
    };
}

owned_by_threads!(Lock FairLock FencedLock SpinLock RwLock FencedRwLock);
owner_methods!(Lock FairLock FencedLock SpinLock);

handle! {
    /// The reentrant lock; the calling thread is the owner.
    Lock
}
lock_methods!(Lock, LockGuard, lock => lock.owned());
variants! { Lock {
    fn fenced() -> FencedLock;
    fn non_reentrant() -> Lock;
} }

handle! {
    /// The fair lock; the calling thread is the owner.
    FairLock
}
lock_methods!(FairLock, LockGuard, lock => lock.owned());
variants! { FairLock {
    fn fenced() -> FencedLock;
    fn non_reentrant() -> FairLock;
} }
waiting! { FairLock, lock => lock.inner; {
    fn waiting() -> usize;
} }

handle! {
    /// The lock that issues tokens; the calling thread is the owner.
    FencedLock
}
lock_methods!(FencedLock, FencedGuard, lock => lock.owned());

handle! {
    /// The lock that never subscribes; the calling thread is the owner.
    SpinLock
}
lock_methods!(SpinLock, LockGuard, lock => lock.owned());
variants! { SpinLock {
    fn backoff(backoff: Backoff) -> SpinLock;
} }

handle! {
    /// The plain mutex. Not reentrant: a thread that locks it twice waits for itself.
    Mutex
}
lock_methods!(Mutex, MutexGuard, lock => lock.inner);

handle! {
    /// A lock of any kind. It is acquired in the name of its guard, not of the calling thread: a thread that
    /// holds the lock already waits for itself.
    AnyLock
}
lock_methods!(AnyLock, AnyGuard, lock => lock.inner);

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

/// The methods of a read/write lock, by the types of its guards.
macro_rules! rw_methods {
    ($Type:ident, $ReadGuard:ident, $WriteGuard:ident) => {
        named!($Type);

        variants! { $Type {
            /// The same lock, to be acquired with this lease: `lock.lease(d).write()?`.
            fn lease(lease: impl Into<LeaseTime>) -> $Type;
            /// Its read side, as a lock of any kind, which is not owned by the calling thread.
            fn reader() -> AnyLock;
            /// Its write side, as a lock of any kind, which is not owned by the calling thread.
            fn writer() -> AnyLock;
        } }

        waiting! { $Type, lock => lock.owned(); {
            /// Waits until the lock is acquired for reading.
            fn read() -> $ReadGuard;
            /// Makes one attempt to acquire the lock for reading.
            fn try_read() -> Option<$ReadGuard>;
            /// Waits for the read lock for at most `wait`.
            fn try_read_for(wait: Duration) -> Option<$ReadGuard>;
            /// Waits until the lock is acquired for writing. A thread that reads gets an error: it would wait
            /// for itself.
            fn write() -> $WriteGuard;
            /// Makes one attempt to acquire the lock for writing.
            fn try_write() -> Option<$WriteGuard>;
            /// Waits for the write lock for at most `wait`.
            fn try_write_for(wait: Duration) -> Option<$WriteGuard>;
            /// Whether it is held for reading.
            fn is_read_locked() -> bool;
            /// Whether it is held for writing.
            fn is_write_locked() -> bool;
            /// The holders, as the store says.
            fn holders() -> Vec<Holder>;
            /// The remaining TTL of the key.
            fn remaining() -> Remaining;
            /// Force-releases the lock from readers and writer; true if it was held.
            fn force_unlock() -> bool;
            /// [`force_unlock`](Self::force_unlock) with a reason that is passed to the holders.
            fn force_unlock_because(reason: impl Into<String>) -> bool;
        } }

        impl $Type {
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
        }
    };
}

handle! {
    /// The read/write lock; the calling thread is the owner.
    RwLock
}
rw_methods!(RwLock, ReadGuard, WriteGuard);
variants! { RwLock {
    fn fenced() -> FencedRwLock;
} }

handle! {
    /// The read/write lock that issues fencing tokens to writers.
    FencedRwLock
}
rw_methods!(FencedRwLock, FencedReadGuard, FencedWriteGuard);
