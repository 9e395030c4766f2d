//! What a holder has in its hands.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{BoxFuture, Kind, Resource};
use crate::config::MIN_WATCHDOG;
use crate::engine::acquire::Acquired;
use crate::engine::lease::{HoldId, TermSpec, reentrant};
use crate::engine::owners::{acquire_beside, reenter, twice};
use crate::engine::request::{Request, Wait};
use crate::engine::{Lease, lease_millis, release};
use crate::error::{Error, LostReason, Phase, Result};
use crate::{LockName, OwnerId, PermitId};

/// A lock that is held. One family for every kind of lock.
///
/// While [`is_lost`](Guard::is_lost) is false nobody else holds the lock, provided the store keeps
/// what it acknowledged: see the [guarantees](crate::manual::guarantees).
///
/// **Dropping it releases the lock in the background**: `drop` never blocks. It leaves the release to the
/// client's runtime. If that ends first, as at the end of `main`, the lock stays held until its lease ends. To
/// be sure, and to know that the lock was still held, wait for [`release`](Guard::release), use
/// [`run`](crate::Lock::run), or call [`Client::shutdown`](crate::Client::shutdown) last:
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
pub struct Guard {
    lease: Arc<Lease>,
    hold: HoldId,
    live: bool,
}

impl Guard {
    pub(crate) fn new((lease, hold): Acquired) -> Self {
        Self { lease, hold, live: true }
    }

    /// Gives the lock back; the last guard of an owner frees it.
    ///
    /// # Errors
    /// [`NotHeld`](Error::NotHeld) if it was not ours any more: the truth about what was done
    /// meanwhile. [`Unconfirmed`](Error::Unconfirmed) if the store did not answer: it is tried
    /// again in the background until the lease ends. That comes within
    /// [`unreachable_after`](crate::ClientOptions::unreachable_after) of the first failure.
    ///
    /// [`Closed`](Error::Closed) after [`Client::shutdown`](crate::Client::shutdown), which has released it,
    /// after the client's runtime has ended, and in a forked child.
    ///
    /// After a loss by the clock it still asks, and is Ok if the store still had it: nobody else has
    /// had the lock then.
    ///
    /// # Cancel safety
    /// Once called it is done, also when the future is dropped, even before its first poll.
    pub fn release(mut self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.live = false;
        release::release(Arc::clone(&self.lease), self.hold, None)
    }

    /// Lets go of the guard but leaves the lock standing for `span` from now, then it frees itself.
    /// For a job that must not run again too soon, wherever.
    ///
    /// Who looks at the lock meanwhile sees which process left it and when
    /// ([`Holder::left`](crate::Holder::left)).
    ///
    /// # Errors
    /// As [`release`](Guard::release). A span that is no lease (below 1 ms, above a century) is
    /// [`Invalid`](Error::Invalid), and the lock is then released.
    ///
    /// # Cancel safety
    /// As [`release`](Guard::release).
    pub fn leave_for(
        mut self,
        span: Duration,
    ) -> impl Future<Output = Result<()>> + Send + 'static {
        let left = lease_millis(&self.lease.resource, span).map(|ttl| {
            self.live = false;
            release::release(Arc::clone(&self.lease), self.hold, Some(ttl))
        });
        async move { left?.await }
    }

    /// Holds the lock once more, for the same owner; each guard is released on its own.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if it was lost: a lock that has vanished is never taken anew by a
    /// re-entry. [`Invalid`](Error::Invalid) if this kind of lock is not re-entrant.
    ///
    /// # Cancel safety
    /// A hold that was added after all is taken off again.
    pub fn reenter(&self) -> Reenter {
        self.hold().reenter()
    }

    /// Gives this guard a fixed end `span` from now, or later where the store keeps the lock for longer
    /// already: that is never shortened. It is no longer renewed by the watchdog.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if it was lost, [`Unreachable`](Error::Unreachable) if the store did
    /// not answer; the guard is then as it was.
    ///
    /// # Cancel safety
    /// The end may or may not have been moved.
    pub async fn extend(&self, span: Duration) -> Result<()> {
        let ttl = lease_millis(&self.lease.resource, span)?;
        let spec = TermSpec { ttl, renewed: false };
        self.lease.core.unbroken(Arc::clone(&self.lease).extend(self.hold, spec)).await
    }

    /// Of a write lock: holds it for reading, too. Both are released on their own; if the write lock
    /// goes first, the readers that wait are let in. A write lock that is not released does not end
    /// by itself before the reads that are nested in it.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if it was lost; [`Unreachable`](Error::Unreachable) if the store did not
    /// answer for [`unreachable_after`](crate::ClientOptions::unreachable_after); [`Invalid`](Error::Invalid) if it is no write lock.
    ///
    /// # Cancel safety
    /// A hold that was added after all is taken off again.
    pub async fn read(&self) -> Result<Guard> {
        self.lease.core.anywhere(|| self.read_too()).await
    }

    async fn read_too(&self) -> Result<Guard> {
        // Bears with a store that does not answer, as a re-entry does.
        let core = &self.lease.core;
        let give_up = core.clock.now() + core.options.unreachable_after;
        let mut failures = 0;
        let acquired = loop {
            match self.other_side(Kind::Write, Kind::Read).await {
                Err(Error::Unreachable { .. }) if core.clock.now() < give_up => {
                    tokio::time::sleep(core.options.backoff(failures)).await;
                    failures += 1;
                }
                outcome => break outcome?,
            }
        };
        if let Some(acquired) = acquired {
            return Ok(Guard::new(acquired));
        }
        // Nobody but a stranger's write lock stands in the way of a writer that reads.
        self.lease.lose(LostReason::Taken);
        let (lock, phase, reason) = (self.name().clone(), Phase::Acquire, LostReason::Taken);
        Err(Error::Lost { lock, phase, reason })
    }

    /// Of a write lock: goes on reading, and lets other readers in. No writer comes in between.
    ///
    /// Other guards of the same owner that write keep the write lock until they are released.
    ///
    /// # Errors
    /// As [`read`](Guard::read), and as [`release`](Guard::release) for the write lock. This guard is
    /// gone then, as if it had been dropped.
    ///
    /// # Cancel safety
    /// Dropping the future gives up both.
    pub async fn downgrade(self) -> Result<Guard> {
        let reading = self.read().await?;
        self.release().await?;
        Ok(reading)
    }

    /// Of a read lock: writes beside reading, if it is the only reader; otherwise `Ok(None)` at once.
    /// When the write guard is released, this one reads on.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if it was lost; [`Invalid`](Error::Invalid) if it is no read lock.
    ///
    /// # Cancel safety
    /// A hold that was added after all is taken off again.
    pub async fn try_upgrade(&self) -> Result<Option<Guard>> {
        let core = &self.lease.core;
        let acquired = core.anywhere(|| self.other_side(Kind::Read, Kind::Write)).await?;
        Ok(acquired.map(Guard::new))
    }

    /// Acquires the other side of a read/write lock for the same owner, beside this hold.
    async fn other_side(&self, from: Kind, to: Kind) -> Result<Option<Acquired>> {
        let Lease { core, resource, owner, named, fenced, .. } = &*self.lease;
        if resource.kind != from {
            let detail = match from {
                Kind::Write => {
                    format!("to read on is for a write lock; this guard is of a {}", resource.kind)
                }
                _ => format!("to upgrade is for a read lock; this guard is of a {}", resource.kind),
            };
            return Err(Error::invalid(Some(&resource.name), detail));
        }
        self.lease.ensure_held(Phase::Acquire)?;
        let ttl = core.options.watchdog_timeout.as_millis() as u64;
        let request = Request {
            resource: Resource { kind: to, name: resource.name.clone() },
            term: TermSpec { ttl, renewed: true },
            wait: Wait::Never,
            owner: None,
            count: 1,
            fenced: *fenced,
            reentrant: self.lease.reentrant,
            spin: None,
            beside: Some(*owner),
            temporary: None,
        };
        acquire_beside(core, request, named.clone()).await
    }

    /// A view of the hold, without the right to release it.
    pub fn hold(&self) -> Hold {
        Hold { lease: Arc::clone(&self.lease) }
    }

    /// The name of the lock, prefix included.
    pub fn name(&self) -> &LockName {
        &self.lease.resource.name
    }

    /// The identity under which the store knows this hold.
    pub fn owner_id(&self) -> OwnerId {
        self.lease.owner
    }

    /// The token of a fenced lock: greater than that of every holder before. Pass it along with
    /// whatever is done under the lock; see [`FencedLock`](crate::FencedLock).
    pub fn token(&self) -> Option<u64> {
        self.lease.token()
    }

    /// The ids of the permits it stands for, if it is of a
    /// [`PermitSemaphore`](crate::PermitSemaphore).
    pub fn permit_ids(&self) -> Vec<PermitId> {
        self.hold().permit_ids()
    }

    /// How many guards of this owner there are.
    pub fn hold_count(&self) -> u32 {
        self.lease.hold_count()
    }

    /// Until when it is safe to act, by this process's clock, as an instant of tokio's. No round trip.
    pub fn deadline(&self) -> Instant {
        self.hold().deadline()
    }

    /// How long it is still safe to act; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.hold().remaining()
    }

    /// Whether the lock is no longer ours: by the clock, or because the store said so. No round
    /// trip.
    pub fn is_lost(&self) -> bool {
        !self.lease.is_held()
    }

    /// Resolves when the lock is no longer ours, with the reason: before its lease can end at the
    /// store while this process and the machine's clock run, and within a quarter of a second after a
    /// stopped process or a suspended machine goes on.
    ///
    /// The future owns what it needs; it outlives the guard and then says
    /// [`Released`](LostReason::Released).
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static {
        Arc::clone(&self.lease).lost()
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.live {
            release::release_later(Arc::clone(&self.lease), self.hold);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("Guard", &self.lease, f)
    }
}

fn debug(what: &str, lease: &Lease, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(what)
        .field("lock", &lease.resource.name)
        .field("owner", &lease.owner)
        .field("lost", &lease.lost_reason())
        .finish_non_exhaustive()
}

/// A view of a hold for the work that runs under it: everything a [`Guard`] tells, and no release.
#[derive(Clone)]
pub struct Hold {
    lease: Arc<Lease>,
}

impl Hold {
    /// The name of the lock, prefix included.
    pub fn name(&self) -> &LockName {
        &self.lease.resource.name
    }

    /// The identity under which the store knows this hold.
    pub fn owner_id(&self) -> OwnerId {
        self.lease.owner
    }

    /// See [`Guard::token`].
    pub fn token(&self) -> Option<u64> {
        self.lease.token()
    }

    /// See [`Guard::permit_ids`].
    pub fn permit_ids(&self) -> Vec<PermitId> {
        match self.lease.resource.kind {
            Kind::Permits => PermitId::of(self.lease.owner, self.lease.permits).collect(),
            _ => Vec::new(),
        }
    }

    /// See [`Guard::hold_count`].
    pub fn hold_count(&self) -> u32 {
        self.lease.hold_count()
    }

    /// See [`Guard::deadline`].
    pub fn deadline(&self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.remaining()).unwrap_or_else(|| now + Duration::from_secs(1 << 30))
    }

    /// See [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        match self.lease.lost_reason() {
            Some(_) => Duration::ZERO,
            None => self.lease.deadline().since(self.lease.core.clock.now()),
        }
    }

    /// See [`Guard::is_lost`].
    pub fn is_lost(&self) -> bool {
        !self.lease.is_held()
    }

    /// See [`Guard::lost`].
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static {
        Arc::clone(&self.lease).lost()
    }

    /// See [`Guard::reenter`].
    pub fn reenter(&self) -> Reenter {
        Reenter { lease: Arc::clone(&self.lease), lease_time: None, renewed: None }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("Hold", &self.lease, f)
    }
}

/// A request to hold a lock once more: `.await` it.
#[must_use = "does nothing unless awaited"]
pub struct Reenter {
    lease: Arc<Lease>,
    lease_time: Option<Duration>,
    renewed: Option<Duration>,
}

impl fmt::Debug for Reenter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("Reenter", &self.lease, f)
    }
}

impl Reenter {
    /// A fixed lease for this hold.
    pub fn lease(mut self, span: Duration) -> Self {
        self.lease_time = Some(span);
        self
    }

    /// A lease that the watchdog renews, other than the client's default.
    pub fn renewed(mut self, span: Duration) -> Self {
        self.renewed = Some(span);
        self
    }
}

impl IntoFuture for Reenter {
    type Output = Result<Guard>;
    type IntoFuture = BoxFuture<Result<Guard>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { lease, lease_time, renewed } = self;
            let core = Arc::clone(&lease.core);
            if !reentrant(lease.resource.kind) {
                let detail = format!("a {} is not re-entrant", lease.resource.kind);
                return Err(Error::invalid(Some(&lease.resource.name), detail));
            }
            if !lease.reentrant {
                return Err(twice(&lease.resource));
            }
            let default = core.options.watchdog_timeout;
            let term = term(&lease.resource, lease_time, renewed, default)?;
            let reentered =
                core.anywhere(|| reenter(&core, lease, term, Wait::Forever, None)).await?;
            Ok(Guard::new(reentered))
        })
    }
}

/// What a request's settings come to.
pub(crate) fn term(
    resource: &crate::backend::Resource,
    lease: Option<Duration>,
    renewed: Option<Duration>,
    default: Duration,
) -> Result<TermSpec> {
    match (lease, renewed) {
        (Some(_), Some(_)) => {
            let detail = "a lease is either fixed (lease) or renewed (renewed), not both";
            Err(Error::invalid(Some(&resource.name), detail))
        }
        (Some(span), None) => Ok(TermSpec { ttl: lease_millis(resource, span)?, renewed: false }),
        (None, Some(span)) if span < MIN_WATCHDOG => {
            let detail = format!("a renewed lease must be at least {MIN_WATCHDOG:?}, not {span:?}");
            Err(Error::invalid(Some(&resource.name), detail))
        }
        (None, renewed) => {
            let span = renewed.unwrap_or(default);
            Ok(TermSpec { ttl: lease_millis(resource, span)?, renewed: true })
        }
    }
}
