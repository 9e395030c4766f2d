//! `RSemaphore`.

use std::time::Duration;

use super::super::{Pending, Worker};
use super::{Handle, Stress, count, flag, millis, nothing};

/// A semaphore whose permits are a number.
#[derive(Clone, Debug)]
pub struct Semaphore<'a>(Handle<'a>);

impl<'a> Semaphore<'a> {
    pub(in super::super) fn new(worker: Worker<'a>, name: &str) -> Self {
        Self(Handle::new(worker, "semaphore", name))
    }

    /// `trySetPermits(permits)`: whether there was no such semaphore.
    pub fn try_set_permits(&self, permits: i32) -> Pending<bool> {
        self.0.call("trySetPermits", &[&permits.to_string()], flag)
    }

    /// `addPermits(permits)`
    pub fn add_permits(&self, permits: i32) -> Pending<()> {
        self.0.call("addPermits", &[&permits.to_string()], nothing)
    }

    /// `acquire(permits)`
    pub fn acquire(&self, permits: i32) -> Pending<()> {
        self.0.call("acquire", &[&permits.to_string()], nothing)
    }

    /// `tryAcquire(permits)`
    pub fn try_acquire(&self, permits: i32) -> Pending<bool> {
        self.0.call("tryAcquire", &[&permits.to_string()], flag)
    }

    /// `tryAcquire(permits, waitTime)`
    pub fn try_acquire_for(&self, permits: i32, wait: Duration) -> Pending<bool> {
        self.0.call("tryAcquire", &[&permits.to_string(), &millis(wait)], flag)
    }

    /// `release(permits)`
    pub fn release(&self, permits: i32) -> Pending<()> {
        self.0.call("release", &[&permits.to_string()], nothing)
    }

    /// `drainPermits()`: how many there were.
    pub fn drain(&self) -> Pending<i64> {
        self.0.call("drainPermits", &[], count)
    }

    /// `availablePermits()`
    pub fn available(&self) -> Pending<i64> {
        self.0.call("availablePermits", &[], count)
    }

    /// `delete()`: whether it was there.
    pub fn delete(&self) -> Pending<bool> {
        self.0.call("delete", &[], flag)
    }

    /// As [`Lock::stress`](super::Lock::stress), with `acquire()` and `release()`.
    pub fn stress(&self, counter: &str, rounds: u32, threads: u32) -> Pending<Stress> {
        self.0.stress(counter, rounds, threads)
    }
}
