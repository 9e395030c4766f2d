//! `RPermitExpirableSemaphore`.

use std::time::Duration;

use super::super::{Pending, Worker};
use super::{
    Handle, Stress, borrowed, count, flag, millis, nothing, optional_text, text, texts, times,
};
use crate::percent;

/// A semaphore whose permits have an id (in hex) and a lease.
#[derive(Clone, Debug)]
pub struct Permits<'a>(Handle<'a>);

impl<'a> Permits<'a> {
    pub(in super::super) fn new(worker: Worker<'a>, name: &str) -> Self {
        Self(Handle::new(worker, "permits", name))
    }

    /// `trySetPermits(permits)`: whether there was no such semaphore.
    pub fn try_set_permits(&self, permits: i32) -> Pending<bool> {
        self.0.call("trySetPermits", &[&permits.to_string()], flag)
    }

    /// `setPermits(permits)`; not in 3.14.
    pub fn set_permits(&self, permits: i32) -> Pending<()> {
        self.0.call("setPermits", &[&permits.to_string()], nothing)
    }

    /// `addPermits(permits)`
    pub fn add_permits(&self, permits: i32) -> Pending<()> {
        self.0.call("addPermits", &[&permits.to_string()], nothing)
    }

    /// `acquire()`: a permit that never ends.
    pub fn acquire(&self) -> Pending<String> {
        self.0.call("acquire", &[], text)
    }

    /// `acquire(leaseTime)`
    pub fn acquire_for(&self, lease: Duration) -> Pending<String> {
        self.0.call("acquire", &[&millis(lease)], text)
    }

    /// `acquire(permits)` or `acquire(permits, leaseTime)`; not in 3.14.
    pub fn acquire_many(&self, permits: i32, lease: Option<Duration>) -> Pending<Vec<String>> {
        let args: Vec<_> = [Some(permits.to_string()), lease.map(millis)].into();
        let args: Vec<_> = args.into_iter().flatten().collect();
        self.0.call("acquireMany", &borrowed(&args), texts)
    }

    /// `tryAcquire()`
    pub fn try_acquire(&self) -> Pending<Option<String>> {
        self.0.call("tryAcquire", &[], optional_text)
    }

    /// `tryAcquire(waitTime)` or `tryAcquire(waitTime, leaseTime)`
    pub fn try_acquire_for(
        &self,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Pending<Option<String>> {
        self.0.call("tryAcquire", &borrowed(&times(wait, lease)), optional_text)
    }

    /// `tryAcquire(permits)`; not in 3.14.
    pub fn try_acquire_many(&self, permits: i32) -> Pending<Vec<String>> {
        self.0.call("tryAcquireMany", &[&permits.to_string()], texts)
    }

    /// `release(permitId)`, which throws when there is no such permit.
    pub fn release(&self, id: &str) -> Pending<()> {
        self.0.call("release", &[&percent::encoded(id)], nothing)
    }

    /// `release(permitsIds)`; not in 3.14.
    pub fn release_many(&self, ids: &[impl AsRef<str>]) -> Pending<()> {
        self.0.call("releaseMany", &[&joined(ids)], nothing)
    }

    /// `tryRelease(permitId)`
    pub fn try_release(&self, id: &str) -> Pending<bool> {
        self.0.call("tryRelease", &[&percent::encoded(id)], flag)
    }

    /// `tryRelease(permitsIds)`: how many; not in 3.14.
    pub fn try_release_many(&self, ids: &[impl AsRef<str>]) -> Pending<i64> {
        self.0.call("tryReleaseMany", &[&joined(ids)], count)
    }

    /// `updateLeaseTime(permitId, leaseTime)`: whether there is such a permit.
    pub fn update_lease(&self, id: &str, lease: Duration) -> Pending<bool> {
        self.0.call("updateLeaseTime", &[&percent::encoded(id), &millis(lease)], flag)
    }

    /// `getLeaseTime(permitId)`: milliseconds; only in the newest.
    pub fn lease(&self, id: &str) -> Pending<i64> {
        self.0.call("getLeaseTime", &[&percent::encoded(id)], count)
    }

    /// `availablePermits()`
    pub fn available(&self) -> Pending<i64> {
        self.0.call("availablePermits", &[], count)
    }

    /// `getPermits()`: how many there are in all; not in 3.14.
    pub fn permits(&self) -> Pending<i64> {
        self.0.call("getPermits", &[], count)
    }

    /// `acquiredPermits()`; not in 3.14.
    pub fn acquired(&self) -> Pending<i64> {
        self.0.call("acquiredPermits", &[], count)
    }

    /// `delete()`: whether it was there.
    pub fn delete(&self) -> Pending<bool> {
        self.0.call("delete", &[], flag)
    }

    /// As [`Lock::stress`](super::Lock::stress), with `acquire()` and `release(permitId)`.
    pub fn stress(&self, counter: &str, rounds: u32, threads: u32) -> Pending<Stress> {
        self.0.stress(counter, rounds, threads)
    }
}

fn joined(ids: &[impl AsRef<str>]) -> String {
    ids.iter().map(|id| percent::encoded(id.as_ref())).collect::<Vec<_>>().join(",")
}
