//! Mutexes are used on after a panic: no panic leaves what they protect half-changed.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whatever has panicked while it was locked.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

pub(crate) fn unpoisoned<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
