//! Several locks as one.
//!
//! Redisson's grouped multi-lock is left out. Its fields depend on Java's serialisation, its deadlines
//! on the clocks of clients, and its unlock can remove a newer hold. The manual says so.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{FutureExt, join_all};

use crate::any::AnyLock;
use crate::backend::Kind;
use crate::carrier::Call;
use crate::engine::acquire::Acquired;
use crate::engine::multi::{Terms, acquire_all};
use crate::engine::terms::Request;
use crate::engine::terms::TermSpec;
use crate::handle::Handle;
use crate::hold::{AnyGuard, Hold};
use crate::options::{LeaseTime, MIN_WATCHDOG};
use crate::run::{Completed, HeldGuard, Loss, RunError, run};
use crate::{Error, LockName, LostReason, Result};

/// Several locks as one, of any kinds and on any clients: all are held, or none. Redisson's
/// `RedissonMultiLock`.
///
/// The locks are acquired in one order everywhere, whatever the order in which they are named, so two
/// that name the same locks never deadlock. An acquire holds the first of them while it waits for the next,
/// but at first not for longer than 1.5 s for one that the same holder keeps: it then releases all and starts anew.
/// Plain locks of one client are acquired in a single request if all are free. The loss of one is the loss
/// of all.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::{AnyLock, MultiLock};
///
/// let client = lockkeeper::Client::memory();
/// let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")]);
/// let guard = both.lock().await?;
/// assert!(client.lock("account:2").try_lock().await?.is_none());
/// guard.release().await?;
///
/// let mixed = MultiLock::new([
///     AnyLock::from(client.fair_lock("queue")),
///     client.rw_lock("prices").reader(),
/// ]);
/// mixed.lock().await?.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    members: Arc<[Handle]>,
    lease: Option<LeaseTime>,
}

impl MultiLock {
    /// Combines these locks. At least one, and none of them twice; otherwise an acquire fails with
    /// [`Invalid`](Error::Invalid).
    pub fn new<L: Into<AnyLock>>(members: impl IntoIterator<Item = L>) -> Self {
        let members = members.into_iter().map(|member| member.into().into_handle());
        let mut members: Vec<_> = members.collect();
        members.sort_by_cached_key(order);
        Self { members: members.into(), lease: None }
    }

    /// The same locks, to be acquired with this lease, from the moment when all are held. See
    /// [`Lock::lease`](crate::Lock::lease). A fixed lease below a second may last for up to a
    /// second: members are held for at least that long while waiting for others. A
    /// member must not have a lease of its own.
    #[must_use = "it is a new handle that has the lease"]
    pub fn lease(&self, lease: impl Into<LeaseTime>) -> Self {
        Self { lease: Some(lease.into()), ..self.clone() }
    }

    /// The names of the locks, in the order in which they are acquired.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.members.iter().map(|member| &member.resource.name)
    }

    /// Waits until all are acquired.
    ///
    /// # Errors
    /// As [`Lock::lock`](crate::Lock::lock), of any member; then none is held.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind, however many were held by then.
    pub fn lock(&self) -> impl Future<Output = Result<MultiGuard>> + Send + use<> {
        // Waiting without a limit ends with the locks or with an error.
        self.try_lock_for(Duration::MAX).map(|held| held?.ok_or(Error::Closed { lock: None }))
    }

    /// Makes one attempt. If one of the locks is busy it is `Ok(None)`, and none is held.
    ///
    /// # Errors and cancel safety
    /// As [`lock`](MultiLock::lock).
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<MultiGuard>>> + Send + use<> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Waits for at most `wait`, for all of them together. See
    /// [`Lock::try_lock_for`](crate::Lock::try_lock_for).
    ///
    /// # Errors and cancel safety
    /// As [`lock`](MultiLock::lock).
    pub fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<MultiGuard>>> + Send + use<> {
        let (multi, call) = (self.clone(), self.call());
        Box::pin(async move { multi.acquire(call, wait).await })
    }

    /// Waits for all, runs `work` under them and releases them. When one is lost the work is dropped at
    /// its next await point.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run<T, W: Future<Output = T>>(
        &self,
        work: impl FnOnce(Vec<Hold>) -> W,
    ) -> impl Future<Output = Result<Completed<T>, RunError<T>>> {
        let ran = self.try_run_for(Duration::MAX, work);
        async move { ran.await?.ok_or(RunError::Acquire(Error::Closed { lock: None })) }
    }

    /// Waits for at most `wait`, not at all if that is zero, then as [`run`](MultiLock::run). If one of the
    /// locks is still busy then it is `Ok(None)`.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn try_run_for<T, W: Future<Output = T>>(
        &self,
        wait: Duration,
        work: impl FnOnce(Vec<Hold>) -> W,
    ) -> impl Future<Output = Result<Option<Completed<T>>, RunError<T>>> {
        let locking = self.try_lock_for(wait);
        async move {
            let first = self.members.first().ok_or_else(|| RunError::Acquire(no_member()))?;
            let core = &first.core;
            let started = core.clock.now();
            let Some(guard) = locking.await.map_err(RunError::Acquire)? else { return Ok(None) };
            let holds = guard.guards.iter().map(|guard| Hold::clone(guard)).collect();
            run(guard, core, started, || work(holds)).await.map(Some)
        }
    }

    /// Whether any of the locks is held, as the stores say.
    ///
    /// # Errors
    /// As [`Lock::is_locked`](crate::Lock::is_locked), of any member.
    pub async fn is_locked(&self) -> Result<bool> {
        for member in self.members.iter() {
            if member.is_locked().await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Force-releases all of the locks, one after the other; true if any was held. See
    /// [`Lock::force_unlock`](crate::Lock::force_unlock).
    ///
    /// # Errors
    /// As there, of any member: the members before it are force-released then.
    pub async fn force_unlock(&self, reason: impl Into<String>) -> Result<bool> {
        let reason = reason.into();
        if let Some(permits) = self.members.iter().find(|m| m.resource.kind == Kind::Permits) {
            let detail = "permits are released by their ids, not by force";
            return Err(Error::invalid(Some(&permits.resource.name), detail));
        }
        let mut held = false;
        for member in self.members.iter() {
            held |= member.force_unlock(reason.clone()).await?;
        }
        Ok(held)
    }

    /// Builds and checks the requests, before one is sent.
    fn parts(&self) -> Result<(Vec<Request>, Terms)> {
        let first = self.members.first().ok_or_else(no_member)?;
        if let Some(leased) = self.members.iter().find(|member| member.lease.is_some()) {
            let detail = "a lease is given to the multi-lock, not to one of its members";
            return Err(Error::invalid(Some(&leased.resource.name), detail));
        }
        for pair in self.members.windows(2) {
            let ((store, name, _), (other, same, _)) = (order(&pair[0]), order(&pair[1]));
            if store == other && name == same {
                let detail = "a multi-lock names each lock once: this one would wait for itself";
                return Err(Error::invalid(Some(&name), detail));
            }
        }
        let default = first.core.options.watchdog_timeout;
        let held = TermSpec::new(&first.resource, self.lease, default)?;
        let part = |member: &Handle| member.request(1, Duration::ZERO);
        let parts = self.members.iter().map(part).collect::<Result<_>>()?;
        let assembling = if held.renewed {
            held
        } else {
            // A lease must not expire before the last member is held, and a short one must be renewed in
            // time.
            let shortest = MIN_WATCHDOG.max(ASSEMBLING).as_millis() as u64;
            TermSpec { ttl: held.ttl.max(shortest), renewed: true }
        };
        Ok((parts, Terms { assembling, held }))
    }

    /// The members have no owner, also on clients for threads, but are waited for alike.
    fn call(&self) -> Option<Call> {
        self.members.iter().find_map(|member| member.core.call())
    }

    async fn acquire(&self, call: Option<Call>, wait: Duration) -> Result<Option<MultiGuard>> {
        let (parts, terms) = self.parts()?;
        if let Some(call) = call {
            call.ensure_waited_for(&self.members[0].resource.name)?;
        }
        let acquired = parts[0].core.anywhere(acquire_all(&parts, terms, wait)).await?;
        Ok(acquired.map(MultiGuard::new))
    }
}

/// The shortest lease of a member while waiting for the others.
const ASSEMBLING: Duration = Duration::from_secs(1);

fn no_member() -> Error {
    Error::invalid(None, "a multi-lock has at least one member")
}

/// By store, then by name: the same order in every process.
fn order(member: &Handle) -> (Arc<str>, LockName, Kind) {
    let identity = member.core.backend.capabilities(&member.resource.name).identity;
    (identity, member.resource.name.clone(), member.resource.kind)
}

/// All locks of a [`MultiLock`], held. Dropping it releases them in the background: see [`AnyGuard`].
#[must_use = "if it is not kept, the locks are released at once"]
pub struct MultiGuard {
    /// In the order in which they were acquired.
    guards: Vec<AnyGuard>,
}

impl MultiGuard {
    fn new(acquired: Vec<Acquired>) -> Self {
        Self { guards: acquired.into_iter().map(AnyGuard::new).collect() }
    }

    /// The guards of the members, in the order of [`MultiLock::names`].
    pub fn members(&self) -> &[AnyGuard] {
        &self.guards
    }

    /// Releases all of them, concurrently.
    ///
    /// # Errors
    /// The first of their errors, see [`AnyGuard::release`]; all are tried.
    ///
    /// # Cancel safety
    /// The release is done once this is called, even if the future is dropped.
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        // Calling it starts a release; polling it sends the request.
        let releases = join_all(self.guards.into_iter().map(AnyGuard::release));
        async move { releases.await.into_iter().collect() }
    }

    /// How long all holds are still valid; zero once one of them is lost.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(|guard| guard.remaining()).min().unwrap_or_default()
    }

    /// Whether one of them is lost, which means that all are.
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(|guard| guard.is_lost())
    }

    /// Resolves when one of them is lost, with its name and the reason.
    pub fn lost(&self) -> impl Future<Output = (LockName, LostReason)> + Send + 'static {
        let mut watched: Vec<_> = self
            .guards
            .iter()
            .map(|guard| (guard.name().clone(), Box::pin(guard.lost())))
            .collect();
        std::future::poll_fn(move |cx| {
            for (name, lost) in &mut watched {
                if let Poll::Ready(reason) = lost.as_mut().poll(cx) {
                    return Poll::Ready((name.clone(), reason));
                }
            }
            Poll::Pending
        })
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MultiGuard").field(&self.guards).finish()
    }
}

impl HeldGuard for MultiGuard {
    fn loss(&self) -> Option<Loss> {
        self.guards.iter().find_map(HeldGuard::loss)
    }

    fn lost_later(&self) -> impl Future<Output = Loss> + Send + 'static {
        self.lost()
    }

    fn release_it(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.release()
    }
}
