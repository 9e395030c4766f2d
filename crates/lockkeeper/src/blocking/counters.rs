//! Semaphores and latches for threads.

use std::time::Duration;

use super::forward::{Outcome, handle, named, variants, waiting};
use super::{Client, PermitsGuard};
use crate::config::LeaseTime;
use crate::{LockName, PermitId, Remaining, Result};

named!(Semaphore PermitSemaphore CountDownLatch);

handle! {
    /// Permits without owners.
    Semaphore
}

waiting! { Semaphore, semaphore => semaphore.inner; {
    fn acquire(permits: u32) -> Permit;
    fn try_acquire(permits: u32) -> Option<Permit>;
    fn try_acquire_for(permits: u32, wait: Duration) -> Option<Permit>;
    fn release(permits: u32) -> ();
    fn try_set_permits(permits: u64) -> bool;
    fn try_set_permits_for(permits: u64, span: Duration) -> bool;
    fn add_permits(permits: i64) -> i64;
    fn drain_permits() -> u64;
    fn available() -> i64;
} }

/// Permits of a [`Semaphore`]. Dropping it releases them in the background, or waits for that if it is the
/// last that belongs to its client: see [`Client`]. See also [`crate::Permit`].
#[derive(Debug)]
#[must_use = "if it is not kept, the permits are released at once"]
pub struct Permit {
    /// Before the client in the order of dropping, which carries the runtime that gives it back.
    permit: crate::Permit,
    client: Client,
}

impl Outcome for crate::Permit {
    type Blocking = Permit;

    fn on(self, client: &Client) -> Permit {
        Permit { permit: self, client: client.clone() }
    }
}

impl Permit {
    /// How many permits these are.
    pub fn count(&self) -> u32 {
        self.permit.count()
    }

    /// The name of the semaphore, prefix included.
    pub fn name(&self) -> &LockName {
        self.permit.name()
    }

    /// Releases the permits. See [`crate::Permit::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<()> {
        let Self { permit, client } = self;
        client.wait(permit.release())
    }

    /// Drops this value but keeps the permits acquired. See [`crate::Permit::forget`].
    pub fn forget(self) {
        self.permit.forget();
    }
}

handle! {
    /// Permits with ids and leases.
    PermitSemaphore
}

variants! { PermitSemaphore {
    /// The same semaphore, to be acquired with this lease.
    fn lease(lease: impl Into<LeaseTime>) -> PermitSemaphore;
    /// The same semaphore, set up by an acquire if there is none.
    fn temporary(permits: u64) -> PermitSemaphore;
} }

waiting! { PermitSemaphore, semaphore => semaphore.inner; {
    fn is_temporary() -> bool;
    fn acquire(permits: u32) -> PermitsGuard;
    fn try_acquire(permits: u32) -> Option<PermitsGuard>;
    fn try_acquire_for(permits: u32, wait: Duration) -> Option<PermitsGuard>;
    fn release(ids: &[PermitId]) -> bool;
    fn update_lease(id: PermitId, span: Duration) -> bool;
    fn remaining(id: PermitId) -> Remaining;
    fn try_set_permits(permits: u64) -> bool;
    fn try_set_permits_for(permits: u64, span: Duration) -> bool;
    fn set_permits(permits: u64) -> ();
    fn add_permits(permits: i64) -> i64;
    fn available() -> i64;
    fn acquired() -> u64;
    fn permits() -> i64;
} }

handle! {
    /// Opens when it was counted down to zero.
    CountDownLatch
}

waiting! { CountDownLatch, latch => latch.inner; {
    fn try_set_count(count: u64) -> bool;
    fn count_down() -> u64;
    fn count() -> u64;
    fn wait() -> ();
    fn wait_for(span: Duration) -> bool;
    fn delete() -> bool;
} }
