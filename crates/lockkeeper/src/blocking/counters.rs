//! What is counted, for threads.

use std::time::Duration;

use super::{Client, PermitsGuard};
use crate::config::LeaseTime;
use crate::{LockName, PermitId, Remaining, Result};

macro_rules! counter_type {
    ($Type:ident, $doc:literal) => {
        #[doc = $doc]
        #[doc = concat!("See [`crate::", stringify!($Type), "`].")]
        #[derive(Clone, Debug)]
        pub struct $Type {
            pub(super) client: Client,
            pub(super) inner: crate::$Type,
        }

        impl $Type {
            /// The name, prefix included.
            pub fn name(&self) -> &LockName {
                self.inner.name()
            }
        }
    };
}

counter_type!(Semaphore, "Permits without owners.");

impl Semaphore {
    /// See [`crate::Semaphore::try_set_permits`].
    ///
    /// # Errors
    /// As there.
    pub fn try_set_permits(&self, permits: u64) -> Result<bool> {
        self.client.wait(self.inner.try_set_permits(permits))
    }

    /// See [`crate::Semaphore::try_set_permits_for`].
    ///
    /// # Errors
    /// As there.
    pub fn try_set_permits_for(&self, permits: u64, span: Duration) -> Result<bool> {
        self.client.wait(self.inner.try_set_permits_for(permits, span))
    }

    /// See [`crate::Semaphore::add_permits`].
    ///
    /// # Errors
    /// As there.
    pub fn add_permits(&self, permits: i64) -> Result<i64> {
        self.client.wait(self.inner.add_permits(permits))
    }

    /// See [`crate::Semaphore::drain_permits`].
    ///
    /// # Errors
    /// As there.
    pub fn drain_permits(&self) -> Result<u64> {
        self.client.wait(self.inner.drain_permits())
    }

    /// See [`crate::Semaphore::available`].
    ///
    /// # Errors
    /// As there.
    pub fn available(&self) -> Result<i64> {
        self.client.wait(self.inner.available())
    }

    /// See [`crate::Semaphore::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(&self, permits: u32) -> Result<()> {
        self.client.wait(self.inner.release(permits))
    }

    /// See [`crate::Semaphore::acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self, permits: u32) -> Result<Permit> {
        let permit = self.client.wait(self.inner.acquire(permits))?;
        Ok(Permit { permit, client: self.client.clone() })
    }

    /// See [`crate::Semaphore::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self, permits: u32) -> Result<Option<Permit>> {
        self.try_acquire_for(permits, Duration::ZERO)
    }

    /// See [`crate::Semaphore::try_acquire_for`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire_for(&self, permits: u32, wait: Duration) -> Result<Option<Permit>> {
        let permit = self.client.wait(self.inner.try_acquire_for(permits, wait))?;
        Ok(permit.map(|permit| Permit { permit, client: self.client.clone() }))
    }
}

/// Permits of a [`Semaphore`]. Dropping it releases them in the background, or waits for that if it is the
/// last that belongs to its client: see [`Client`]. See also [`crate::Permit`].
#[derive(Debug)]
#[must_use = "if it is not kept, the permits are given back at once"]
pub struct Permit {
    /// Before the client in the order of dropping, which carries the runtime that gives it back.
    permit: crate::Permit,
    client: Client,
}

impl Permit {
    /// How many permits these are.
    pub fn count(&self) -> u32 {
        self.permit.count()
    }

    /// See [`crate::Permit::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<()> {
        let Self { permit, client } = self;
        client.wait(permit.release())
    }

    /// See [`crate::Permit::forget`].
    pub fn forget(self) {
        self.permit.forget();
    }
}

counter_type!(PermitSemaphore, "Permits with ids and leases.");

impl PermitSemaphore {
    /// See [`crate::PermitSemaphore::temporary`].
    pub fn temporary(&self, permits: u64) -> Self {
        Self { inner: self.inner.temporary(permits), ..self.clone() }
    }

    /// See [`crate::PermitSemaphore::is_temporary`].
    ///
    /// # Errors
    /// As there.
    pub fn is_temporary(&self) -> Result<bool> {
        self.client.wait(self.inner.is_temporary())
    }

    /// The same semaphore, to be acquired with this lease. See [`crate::PermitSemaphore::lease`].
    pub fn lease(&self, lease: impl Into<LeaseTime>) -> Self {
        Self { inner: self.inner.lease(lease), ..self.clone() }
    }

    /// See [`crate::PermitSemaphore::acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self, permits: u32) -> Result<PermitsGuard> {
        let guard = self.client.wait(self.inner.acquire(permits))?;
        Ok(PermitsGuard::new(&self.client, guard))
    }

    /// See [`crate::PermitSemaphore::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self, permits: u32) -> Result<Option<PermitsGuard>> {
        self.try_acquire_for(permits, Duration::ZERO)
    }

    /// See [`crate::PermitSemaphore::try_acquire_for`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire_for(&self, permits: u32, wait: Duration) -> Result<Option<PermitsGuard>> {
        let guard = self.client.wait(self.inner.try_acquire_for(permits, wait))?;
        Ok(guard.map(|guard| PermitsGuard::new(&self.client, guard)))
    }

    /// See [`crate::PermitSemaphore::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(&self, ids: &[PermitId]) -> Result<bool> {
        self.client.wait(self.inner.release(ids))
    }

    /// See [`crate::PermitSemaphore::update_lease`].
    ///
    /// # Errors
    /// As there.
    pub fn update_lease(&self, id: PermitId, span: Duration) -> Result<bool> {
        self.client.wait(self.inner.update_lease(id, span))
    }

    /// See [`crate::PermitSemaphore::remaining`].
    ///
    /// # Errors
    /// As there.
    pub fn remaining(&self, id: PermitId) -> Result<Remaining> {
        self.client.wait(self.inner.remaining(id))
    }

    /// See [`crate::PermitSemaphore::try_set_permits`].
    ///
    /// # Errors
    /// As there.
    pub fn try_set_permits(&self, permits: u64) -> Result<bool> {
        self.client.wait(self.inner.try_set_permits(permits))
    }

    /// See [`crate::PermitSemaphore::try_set_permits_for`].
    ///
    /// # Errors
    /// As there.
    pub fn try_set_permits_for(&self, permits: u64, span: Duration) -> Result<bool> {
        self.client.wait(self.inner.try_set_permits_for(permits, span))
    }

    /// See [`crate::PermitSemaphore::set_permits`].
    ///
    /// # Errors
    /// As there.
    pub fn set_permits(&self, permits: u64) -> Result<()> {
        self.client.wait(self.inner.set_permits(permits))
    }

    /// See [`crate::PermitSemaphore::add_permits`].
    ///
    /// # Errors
    /// As there.
    pub fn add_permits(&self, permits: i64) -> Result<i64> {
        self.client.wait(self.inner.add_permits(permits))
    }

    /// See [`crate::PermitSemaphore::available`].
    ///
    /// # Errors
    /// As there.
    pub fn available(&self) -> Result<i64> {
        self.client.wait(self.inner.available())
    }

    /// See [`crate::PermitSemaphore::acquired`].
    ///
    /// # Errors
    /// As there.
    pub fn acquired(&self) -> Result<u64> {
        self.client.wait(self.inner.acquired())
    }

    /// See [`crate::PermitSemaphore::permits`].
    ///
    /// # Errors
    /// As there.
    pub fn permits(&self) -> Result<i64> {
        self.client.wait(self.inner.permits())
    }
}

counter_type!(CountDownLatch, "Opens when it was counted down to zero.");

impl CountDownLatch {
    /// See [`crate::CountDownLatch::try_set_count`].
    ///
    /// # Errors
    /// As there.
    pub fn try_set_count(&self, count: u64) -> Result<bool> {
        self.client.wait(self.inner.try_set_count(count))
    }

    /// See [`crate::CountDownLatch::count_down`].
    ///
    /// # Errors
    /// As there.
    pub fn count_down(&self) -> Result<u64> {
        self.client.wait(self.inner.count_down())
    }

    /// See [`crate::CountDownLatch::count`].
    ///
    /// # Errors
    /// As there.
    pub fn count(&self) -> Result<u64> {
        self.client.wait(self.inner.count())
    }

    /// See [`crate::CountDownLatch::wait`].
    ///
    /// # Errors
    /// As there.
    pub fn wait(&self) -> Result<()> {
        self.client.wait(self.inner.wait())
    }

    /// See [`crate::CountDownLatch::wait_for`].
    ///
    /// # Errors
    /// As there.
    pub fn wait_for(&self, span: Duration) -> Result<bool> {
        self.client.wait(self.inner.wait_for(span))
    }

    /// See [`crate::CountDownLatch::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete(&self) -> Result<bool> {
        self.client.wait(self.inner.delete())
    }
}
