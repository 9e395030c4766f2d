//! `RLock`, and `RFencedLock`.

use std::time::Duration;

use super::super::{Pending, Worker};
use super::{Handle, Stress, borrowed, count, flag, millis, nothing, optional_token, times, token};

/// A lock of any kind.
#[derive(Clone, Debug)]
pub struct Lock<'a>(Handle<'a>);

impl<'a> Lock<'a> {
    /// Several names are encoded one by one and joined by commas.
    pub(in super::super) fn new(worker: Worker<'a>, kind: &'static str, names: String) -> Self {
        Self(Handle { worker, kind, name: names })
    }

    /// `lock()`: until the unlock, kept alive by the watchdog.
    pub fn lock(&self) -> Pending<()> {
        self.0.call("lock", &[], nothing)
    }

    /// `lock(leaseTime)`
    pub fn lock_for(&self, lease: Duration) -> Pending<()> {
        self.0.call("lock", &[&millis(lease)], nothing)
    }

    /// `lockInterruptibly()`, which [`Worker::interrupt`] ends.
    pub fn lock_interruptibly(&self) -> Pending<()> {
        self.0.call("lockInterruptibly", &[], nothing)
    }

    /// `tryLock()`
    pub fn try_lock(&self) -> Pending<bool> {
        self.0.call("tryLock", &[], flag)
    }

    /// `tryLock(waitTime)` or `tryLock(waitTime, leaseTime)`
    pub fn try_lock_within(&self, wait: Duration, lease: Option<Duration>) -> Pending<bool> {
        self.0.call("tryLock", &borrowed(&times(wait, lease)), flag)
    }

    /// `unlock()`
    pub fn unlock(&self) -> Pending<()> {
        self.0.call("unlock", &[], nothing)
    }

    /// `forceUnlock()`: whether it was locked.
    pub fn force_unlock(&self) -> Pending<bool> {
        self.0.call("forceUnlock", &[], flag)
    }

    /// `isLocked()`: by anybody.
    pub fn is_locked(&self) -> Pending<bool> {
        self.0.call("isLocked", &[], flag)
    }

    /// `isHeldByCurrentThread()`
    pub fn is_held(&self) -> Pending<bool> {
        self.0.call("isHeldByCurrentThread", &[], flag)
    }

    /// `getHoldCount()`: of this worker.
    pub fn hold_count(&self) -> Pending<i64> {
        self.0.call("getHoldCount", &[], count)
    }

    /// `remainTimeToLive()`: milliseconds; -2 when it is not locked, -1 when it never ends.
    pub fn remaining(&self) -> Pending<i64> {
        self.0.call("remainTimeToLive", &[], count)
    }

    /// `lockAndGetToken()` of a fenced lock.
    pub fn lock_and_get_token(&self) -> Pending<u64> {
        self.0.call("lockAndGetToken", &[], token)
    }

    /// `tryLockAndGetToken(waitTime)` or `(waitTime, leaseTime)` of a fenced lock.
    pub fn try_lock_and_get_token_within(
        &self,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Pending<Option<u64>> {
        self.0.call("tryLockAndGetToken", &borrowed(&times(wait, lease)), optional_token)
    }

    /// `getToken()` of a fenced lock: the last one given to anybody.
    pub fn token(&self) -> Pending<Option<u64>> {
        self.0.call("getToken", &[], optional_token)
    }

    /// So many rounds on each of so many new threads: lock, `GET` the counter, `SET` it one higher,
    /// unlock.
    pub fn stress(&self, counter: &str, rounds: u32, threads: u32) -> Pending<Stress> {
        self.0.stress(counter, rounds, threads)
    }
}
