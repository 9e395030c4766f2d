//! `RCountDownLatch`.

use std::time::Duration;

use super::super::{Pending, Worker};
use super::{Handle, count, flag, millis, nothing};

/// A latch.
#[derive(Clone, Debug)]
pub struct Latch<'a>(Handle<'a>);

impl<'a> Latch<'a> {
    pub(in super::super) fn new(worker: Worker<'a>, name: &str) -> Self {
        Self(Handle::new(worker, "latch", name))
    }

    /// `trySetCount(count)`: whether there was no latch.
    pub fn try_set_count(&self, count: u64) -> Pending<bool> {
        self.0.call("trySetCount", &[&count.to_string()], flag)
    }

    /// `countDown()`
    pub fn count_down(&self) -> Pending<()> {
        self.0.call("countDown", &[], nothing)
    }

    /// `getCount()`
    pub fn count(&self) -> Pending<i64> {
        self.0.call("getCount", &[], count)
    }

    /// `await()`
    pub fn wait(&self) -> Pending<()> {
        self.0.call("await", &[], nothing)
    }

    /// `await(time)`: whether the count came down to zero.
    pub fn wait_within(&self, wait: Duration) -> Pending<bool> {
        self.0.call("await", &[&millis(wait)], flag)
    }

    /// `delete()`: whether it was there.
    pub fn delete(&self) -> Pending<bool> {
        self.0.call("delete", &[], flag)
    }
}
