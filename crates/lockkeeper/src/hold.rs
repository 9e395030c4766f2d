//! Holds: what all guards share, and the view of a hold for the work that runs under a lock.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::backend::{Holder, Kind, Resource, ensure_ttl};
use crate::carrier::{self, Carrier};
use crate::engine::acquire::Acquired;
use crate::engine::owners::twice;
use crate::engine::reenter::{extend, reenter};
use crate::engine::release::{self, Releasing, release_later};
use crate::engine::terms::Request;
use crate::engine::terms::{HoldId, TermSpec};
use crate::engine::{Lease, Tick, lease_millis};
use crate::error::{Error, LostReason, Phase, Result};
use crate::{LockName, OwnerId, PermitId};

/// A hold of any kind: what all guards have in common.
///
/// While [`is_lost`](Hold::is_lost) is false no other client holds the lock, except for those that share
/// it by its kind, provided the store keeps what it acknowledged: see the [guarantees](crate::manual::guarantees).
///
/// **Dropping a guard releases the lock in the background**: `drop` never blocks. It leaves the release to
/// the client's runtime. If the runtime ends first, as at the end of `main`, the lock stays held until its
/// lease expires. To be sure, and to know that the lock was still held, await
/// [`release`](AnyGuard::release), use [`run`](crate::Lock::run), or call
/// [`Client::shutdown`](crate::Client::shutdown) last:
///
/// ```
/// #[tokio::main]
/// async fn main() -> lockkeeper::Result<()> {
///     let client = lockkeeper::Client::memory();
///     let guard = client.lock("orders:42").lock().await?;
///     drop(guard); // released soon, if the program goes on
///     client.shutdown().await; // released now
///     Ok(())
/// }
/// ```
#[must_use = "if it is not kept, the lock is released at once"]
pub struct AnyGuard {
    hold: Hold,
    id: HoldId,
    live: bool,
    _carrier: Option<Arc<Carrier>>,
}

impl AnyGuard {
    pub(crate) fn new((lease, hold): Acquired) -> Self {
        let carrier = lease.core.carrier();
        Self { hold: Hold { lease }, id: hold, live: true, _carrier: carrier }
    }

    /// Releases the lock. The last guard of an owner frees it.
    ///
    /// # Errors
    /// - [`NotHeld`](Error::NotHeld): the lock was no longer held by this guard, so that the work done
    ///   meanwhile was not protected.
    /// - [`Unconfirmed`](Error::Unconfirmed): the store did not answer. The release is repeated in the
    ///   background until the lease expires. This error comes within
    ///   [`unreachable_after`](crate::ClientOptions::unreachable_after) of the first failure.
    /// - [`Closed`](Error::Closed): after [`Client::shutdown`](crate::Client::shutdown), which has released
    ///   the lock, after the end of the client's runtime, and in a forked child.
    ///
    /// After a loss by the local clock it still asks the store, and succeeds if the store still had the
    /// hold: no other client has held the lock then.
    ///
    /// # Cancel safety
    /// The release is done once this is called, even if the future is dropped before its first poll.
    pub fn release(mut self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.give_up(None)
    }

    /// Releases it. Adds the process of the current holder to the error.
    fn give_up(
        &mut self,
        left_for: Option<u64>,
    ) -> impl Future<Output = Result<()>> + Send + 'static + use<> {
        self.live = false;
        let mut releasing = Releasing::new(Arc::clone(&self.lease), self.id, left_for);
        self.lease.core.anywhere(async move {
            match releasing.run().await {
                Err(Error::NotHeld { lock, phase, holder: Some(holder) }) => {
                    let holder = Some(Box::pin(described(&releasing.lease, holder)).await);
                    Err(Error::NotHeld { lock, phase, holder })
                }
                released => released,
            }
        })
    }

    /// Gives up the guard but leaves the lock held for `span` from now; then it expires. For a job that
    /// must not run again too soon, on any host.
    ///
    /// An inspection meanwhile shows which process left the lock and when
    /// ([`Holder::left`](crate::Holder::left)).
    ///
    /// # Errors
    /// As [`release`](AnyGuard::release). A span that is no lease (below 1 ms, above a century, above the
    /// [longest](crate::ClientOptions::longest_lease) of a quorum) is [`Invalid`](Error::Invalid), and the lock is
    /// then released.
    ///
    /// # Cancel safety
    /// As [`release`](AnyGuard::release).
    pub fn leave_for(
        mut self,
        span: Duration,
    ) -> impl Future<Output = Result<()>> + Send + 'static {
        let left = self.left_millis(span).map(|ttl| self.give_up(Some(ttl)));
        async move { left?.await }
    }

    /// Checks the span before the guard is given up: it is part of the TTL that the remaining guards need.
    fn left_millis(&self, span: Duration) -> Result<u64> {
        let Lease { core, resource, .. } = &*self.lease;
        let ttl = lease_millis(resource, span)?;
        let longest = core.backend.capabilities(&resource.name).longest_lease;
        let fits = ensure_ttl(ttl, longest);
        fits.map(|()| ttl).map_err(|fault| core.error(fault, resource, Phase::Release))
    }

    /// Gives this guard a fixed lease of `span` from now. The key's TTL in the store is never shortened.
    /// The watchdog no longer renews this guard.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if the lock was lost, [`Unreachable`](Error::Unreachable) if the store did
    /// not answer; the guard is then unchanged.
    ///
    /// # Cancel safety
    /// The lease may or may not have been changed.
    pub async fn extend(&self, span: Duration) -> Result<()> {
        let ttl = lease_millis(&self.lease.resource, span)?;
        carrier::ensure_may_wait(Some(self.name()))?;
        let spec = TermSpec { ttl, renewed: false };
        self.lease.core.run_to_completion(extend(Arc::clone(&self.lease), self.id, spec)).await
    }

    /// Re-enters the lock for the same owner, with the client's renewed lease. Each guard is released on its
    /// own.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if the lock was lost: a re-entry never acquires a lock that has vanished.
    /// [`Invalid`](Error::Invalid) if this kind of lock is not reentrant, or its handle was
    /// `non_reentrant`.
    ///
    /// # Cancel safety
    /// A hold that was added after all is released.
    pub fn reenter(&self) -> impl Future<Output = Result<AnyGuard>> + Send + use<> {
        self.reentered()
    }

    pub(crate) fn reentered<G: FromAcquired>(
        &self,
    ) -> impl Future<Output = Result<G>> + Send + use<G> {
        let lease = Arc::clone(&self.lease);
        Box::pin(async move {
            let core = Arc::clone(&lease.core);
            carrier::ensure_may_wait(Some(&lease.resource.name))?;
            if !lease.resource.kind.is_reentrant() {
                let detail = format!("a {} is not reentrant", lease.resource.kind);
                return Err(Error::invalid(Some(&lease.resource.name), detail));
            }
            if !lease.reentrant {
                return Err(twice(&lease.resource));
            }
            let term = TermSpec::renewed(&core.options);
            let wait = (Duration::MAX, Tick::NEVER);
            G::from_acquired(core.anywhere(reenter(lease, term, None, wait)).await?)
        })
    }

    /// Acquires the read side of a write lock for the same owner.
    pub(crate) async fn read_too(&self) -> Result<AnyGuard> {
        // Retries on a store that does not answer, as a re-entry does.
        let core = &self.lease.core;
        let give_up = core.clock.now() + core.options.unreachable_after;
        let mut failures = 0;
        let acquired = loop {
            match self.other_side(Kind::Read).await {
                Err(error) if error.may_pass() && core.clock.now() < give_up => {
                    tokio::time::sleep(core.options.backoff(failures)).await;
                    failures += 1;
                }
                outcome => break outcome?,
            }
        };
        if let Some(acquired) = acquired {
            return Ok(AnyGuard::new(acquired));
        }
        // Only the write lock of another owner prevents a writer from reading.
        self.lease.lose(LostReason::Taken);
        let (lock, phase, reason) = (self.name().clone(), Phase::Acquire, LostReason::Taken);
        Err(Error::Lost { lock, phase, reason })
    }

    /// Acquires the other side of a read/write lock for the same owner, beside this hold.
    pub(crate) async fn other_side(&self, kind: Kind) -> Result<Option<Acquired>> {
        let Lease { core, resource, owner, named, .. } = &*self.lease;
        self.lease.ensure_held(Phase::Acquire)?;
        let request = Request {
            core: Arc::clone(core),
            resource: Resource { kind, name: resource.name.clone() },
            term: TermSpec::renewed(&core.options),
            wait: Duration::ZERO,
            limit: Tick::NEVER,
            owner: named.clone(),
            count: 1,
            fenced: self.lease.fenced.load(Ordering::Relaxed).then(|| core.fencing()),
            reentrant: self.lease.reentrant,
            spin: None,
            beside: Some(*owner),
            temporary: None,
        };
        request.acquire_beside().await
    }

    /// Keeps it held in the store, without a holder.
    pub(crate) fn forget(mut self) {
        self.live = false;
        release::forget(&self.lease);
    }

    /// The same hold without the duty to release it.
    pub(crate) fn released(&self) -> Self {
        Self { hold: self.hold.clone(), id: self.id, live: false, _carrier: self._carrier.clone() }
    }
}

/// Adds the process of a holder, which the answer to a release does not have.
async fn described(lease: &Lease, holder: Box<Holder>) -> Box<Holder> {
    let answer =
        lease.core.run_to_completion(lease.core.backend.inspect(lease.resource.clone())).await;
    let holders = answer.map_or(Vec::new(), |lock| lock.holders);
    let found = holders.into_iter().find(|found| found.id == holder.id);
    found.map_or(holder, Box::new)
}

impl Deref for AnyGuard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

/// A guard that an acquire can return.
pub(crate) trait FromAcquired: Sized + Send + 'static {
    fn from_acquired(acquired: Acquired) -> Result<Self>;
}

impl FromAcquired for AnyGuard {
    fn from_acquired(acquired: Acquired) -> Result<Self> {
        Ok(Self::new(acquired))
    }
}

impl Drop for AnyGuard {
    fn drop(&mut self) {
        if self.live {
            release_later(Arc::clone(&self.lease), self.id);
        }
    }
}

impl fmt::Debug for AnyGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("AnyGuard", &self.lease, f)
    }
}

pub(crate) fn debug(what: &str, lease: &Lease, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(what)
        .field("lock", &lease.resource.name)
        .field("owner", &lease.owner)
        .field("lost", &lease.lost_reason())
        .finish_non_exhaustive()
}

/// A view of a hold for the work that runs under it, without the right to release it: `Hold::clone(&guard)`.
#[derive(Clone)]
pub struct Hold {
    lease: Arc<Lease>,
}

impl Hold {
    /// The name of the lock, prefix included.
    pub fn name(&self) -> &LockName {
        &self.lease.resource.name
    }

    /// The identity of the owner in the store.
    pub fn owner_id(&self) -> OwnerId {
        self.lease.owner
    }

    /// The fencing token, if the lock issues tokens: see [`FencedLock`](crate::FencedLock).
    pub fn token(&self) -> Option<u64> {
        self.lease.token()
    }

    /// The ids of the permits, if it is a hold of a [`PermitSemaphore`](crate::PermitSemaphore).
    pub fn permit_ids(&self) -> Vec<PermitId> {
        match self.lease.resource.kind {
            Kind::Permits => PermitId::of(self.lease.owner, self.lease.permits).collect(),
            _ => Vec::new(),
        }
    }

    /// The number of guards of this owner.
    pub fn hold_count(&self) -> u32 {
        self.lease.hold_count()
    }

    /// How long the hold is still valid; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        match self.lease.lost_reason() {
            Some(_) => Duration::ZERO,
            None => self.lease.deadline().since(self.lease.core.clock.now()),
        }
    }

    /// Whether the hold is no longer valid: by the clock, or because the store said so. No round trip.
    pub fn is_lost(&self) -> bool {
        !self.lease.is_held()
    }

    /// Resolves when the hold is no longer valid, with the reason: before the lease can expire in the
    /// store while this process and the machine's clock run, and within a quarter of a second after a
    /// stopped process or a suspended machine continues.
    ///
    /// The future owns what it needs. It outlives the guard and then resolves to
    /// [`Released`](LostReason::Released).
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static {
        Arc::clone(&self.lease).lost()
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("Hold", &self.lease, f)
    }
}
