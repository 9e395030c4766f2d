//! The permit semaphore: permits with ids and leases.

use std::future::Future;
use std::time::Duration;

use crate::backend::{Change, Changed, CountChange, Fault, PermitChange, Renew, Renewed, Ttl};
use crate::engine::{counter, lease_millis};
use crate::error::Phase;
use crate::guard::PermitGuard;
use crate::handle::Handle;
use crate::hold::Hold;
use crate::lock::lease_methods;
use crate::run::{Completed, RunError};
use crate::semaphore::semaphore_methods;
use crate::{Error, OwnerId, PermitId, Result};

/// A fixed number of permits for all processes together, each with an id and a lease: Redisson's
/// `RPermitExpirableSemaphore`.
///
/// A permit whose holder died is free when its lease expires, and a holder is notified of a loss:
/// permits are held by a [`PermitGuard`], renewed by the watchdog unless a lease was given.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let client = lockkeeper::Client::memory();
/// let licences = client.permit_semaphore("licences");
/// licences.try_set_permits(2, None).await?;
///
/// let guard = licences.acquire(1).await?;
/// assert_eq!((licences.available().await?, licences.acquired().await?), (1, 1));
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PermitSemaphore {
    handle: Handle,
}

lease_methods!(PermitSemaphore);
semaphore_methods!(PermitSemaphore, PermitGuard);

impl PermitSemaphore {
    pub(crate) fn into_handle(self) -> Handle {
        self.handle
    }

    /// Returns a handle whose acquires set the semaphore up with `permits` if there is none. It is
    /// removed when its last permit is released or expires.
    ///
    /// If such a semaphore exists with another number, an acquire by this handle counts by its own:
    /// it succeeds if at most `permits` are then acquired in all, and only then changes the number.
    /// So two handles with different numbers can be used at the same time. A semaphore that was set
    /// up in another way, by a Redisson client for example, keeps its number and is never removed.
    ///
    /// While a temporary semaphore exists, [`try_set_permits`](PermitSemaphore::try_set_permits)
    /// leaves it unchanged, and [`set_permits`](PermitSemaphore::set_permits) makes it permanent.
    /// Redisson clients can use it, but do not extend its lifetime.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// let client = lockkeeper::Client::memory();
    /// let slots = client.permit_semaphore("slots").temporary(2);
    /// let guard = slots.acquire(1).await?;
    /// assert_eq!(slots.permits().await?, 2);
    /// guard.release().await?;
    /// assert_eq!(slots.permits().await?, 0, "it is gone");
    /// # Ok(()) }
    /// ```
    #[must_use = "it is a new handle that makes the semaphore"]
    pub fn temporary(&self, permits: u64) -> Self {
        Self { handle: Handle { temporary: Some(permits), ..self.handle.clone() } }
    }

    /// Whether the semaphore exists and is removed with its last permit: see
    /// [`temporary`](PermitSemaphore::temporary).
    ///
    /// # Errors
    /// As [`available`](PermitSemaphore::available).
    pub async fn is_temporary(&self) -> Result<bool> {
        Ok(self.handle.inspect().await?.temporary)
    }

    /// Waits for `permits`, runs `work` and releases them. When they are lost, the work is dropped at its
    /// next await point.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run<T, W: Future<Output = T>>(
        &self,
        permits: u32,
        work: impl FnOnce(Hold) -> W,
    ) -> impl Future<Output = Result<Completed<T>, RunError<T>>> {
        self.handle.run(permits, work)
    }

    /// Releases permits by their ids, also those of other holders: all of them, or none and `false`
    /// if one of them is no longer acquired.
    ///
    /// # Errors
    /// [`Invalid`](Error::Invalid) for no id at all; [`Unconfirmed`](Error::Unconfirmed) if no
    /// answer came.
    pub async fn release(&self, ids: &[PermitId]) -> Result<bool> {
        self.change_by_id(ids, PermitChange::Release).await
    }

    /// Lets a permit expire `span` from now, which may shorten its lease. Returns false if it is no
    /// longer acquired. If you hold its guard, use
    /// [`PermitGuard::extend`](crate::PermitGuard::extend).
    ///
    /// # Errors
    /// As [`release`](PermitSemaphore::release).
    pub async fn extend(&self, id: PermitId, span: Duration) -> Result<bool> {
        let ttl = lease_millis(&self.handle.resource, span)?;
        self.change_by_id(&[id], PermitChange::Lease(ttl)).await
    }

    /// Remaining lease of a permit, as the store says: of any holder, in Java too.
    /// `None` if it was released or has expired, [`Forever`](Ttl::Forever) if it has no end. A guard answers for its own permits without a
    /// request: [`Hold::remaining`].
    ///
    /// # Errors
    /// As [`available`](PermitSemaphore::available).
    pub async fn remaining(&self, id: PermitId) -> Result<Option<Ttl>> {
        let Handle { core, resource, .. } = &self.handle;
        self.handle.ensure_usable()?;
        // A renewal without a TTL only reads.
        let look = Renew::new(resource.clone(), id.as_owner(), None);
        let answer = core.run_to_completion(core.backend.renew(vec![look])).await.pop();
        match answer.unwrap_or(Err(Fault::Closed)) {
            Ok(Renewed::Held(ttl)) => Ok(Some(ttl)),
            Ok(_) => Ok(None),
            Err(fault) => Err(core.error(fault, resource, Phase::Inspect)),
        }
    }

    /// Sets the total number of permits, free and acquired; sets the semaphore up if necessary.
    ///
    /// # Errors
    /// As [`try_set_permits`](PermitSemaphore::try_set_permits).
    pub async fn set_permits(&self, permits: u64) -> Result<()> {
        self.handle.ensure_countable(permits)?;
        self.handle.change(CountChange::Resize(permits)).await.map(drop)
    }

    /// The number of acquired permits.
    ///
    /// # Errors
    /// As [`available`](PermitSemaphore::available).
    pub async fn acquired(&self) -> Result<u64> {
        Ok(self.handle.inspect().await?.taken)
    }

    /// The total number of permits, free and acquired.
    ///
    /// # Errors
    /// As [`available`](PermitSemaphore::available).
    pub async fn permits(&self) -> Result<i64> {
        let snapshot = self.handle.inspect().await?;
        Ok(snapshot.count.map_or(0, |free| free.saturating_add_unsigned(snapshot.taken)))
    }

    async fn change_by_id(&self, ids: &[PermitId], change: PermitChange) -> Result<bool> {
        self.handle.ensure_named()?;
        if ids.is_empty() {
            return Err(Error::invalid(Some(self.name()), "at least one permit must be named"));
        }
        let resource = self.handle.resource.clone();
        let (id, ids) = (OwnerId::fresh(self.handle.core.id), ids.to_vec());
        let request = Change::Permits { resource: resource.clone(), id, ids, change };
        let changed = counter::insist(&self.handle.core, &resource, request).await?;
        Ok(changed == Changed::Done)
    }
}
