//! Several locks as one.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{BoxFuture, Kind};
use crate::config::MIN_WATCHDOG;
use crate::engine::acquire::Acquired;
use crate::engine::lease::TermSpec;
use crate::engine::multi::{Part, Terms, acquire_all, side_by_side};
use crate::engine::request::Wait;
use crate::engine::{Core, Tick};
use crate::guard::{Guard, Hold, term};
use crate::lock::{Handle, Lock, Mutex};
use crate::run::{Held, Ran, RunError, run};
use crate::{Error, LockName, LostReason, Result};

/// A lock as part of a [`MultiLock`]: made from any handle by `into()`, and by
/// [`RwLock::reader`](crate::RwLock::reader) and [`RwLock::writer`](crate::RwLock::writer).
#[derive(Clone, Debug)]
pub struct Member(pub(crate) Handle);

impl From<Lock> for Member {
    fn from(lock: Lock) -> Self {
        Self(lock.into_handle())
    }
}

impl From<Mutex> for Member {
    fn from(mutex: Mutex) -> Self {
        Self(mutex.into_handle())
    }
}

/// Several locks as one, of any kinds and on any clients: all are held, or none. Redisson's
/// `RedissonMultiLock`.
///
/// Whatever the order in which they are named, they are taken in the same order everywhere; and
/// nobody holds some of them and waits for the others for longer than a moment, so that two that name
/// the same locks never wait for each other for ever. Plain locks of one client are taken in a single
/// request. Losing one is losing all.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::{Member, MultiLock};
///
/// let client = lockkeeper::Client::memory();
/// let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")]);
/// let guard = both.lock().await?;
/// assert!(client.lock("account:2").try_lock().await?.is_none());
/// guard.release().await?;
///
/// let mixed = MultiLock::new([
///     Member::from(client.fair_lock("queue")),
///     client.rw_lock("prices").reader(),
/// ]);
/// mixed.lock().await?.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    members: Arc<[Handle]>,
}

impl MultiLock {
    /// These locks as one. At least one, and none of them twice: that is an
    /// [`Invalid`](Error::Invalid) error when it is to be acquired.
    pub fn new<M: Into<Member>>(members: impl IntoIterator<Item = M>) -> Self {
        let mut members: Vec<_> = members.into_iter().map(|member| member.into().0).collect();
        members.sort_by_cached_key(order);
        Self { members: members.into() }
    }

    /// The names of the locks, in the order in which they are taken.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.members.iter().map(|member| &member.resource.name)
    }

    /// Waits until all are held.
    ///
    /// # Errors
    /// As [`Lock::lock`], of any member; then none is held.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind, however many were held by then.
    pub fn lock(&self) -> MultiLockRequest {
        MultiLockRequest { members: Arc::clone(&self.members), lease: None, renewed: None }
    }

    /// One attempt, or with [`wait`](TryMultiLockRequest::wait) as many as fit. If one is busy it is
    /// `Ok(None)`, and none is held.
    ///
    /// # Errors
    /// As [`lock`](MultiLock::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](MultiLock::lock).
    pub fn try_lock(&self) -> TryMultiLockRequest {
        TryMultiLockRequest { request: self.lock(), wait: None }
    }

    /// Waits for all, runs `work` under them and releases them. When one is lost the work is dropped at
    /// its next await point.
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn run<T, W: Future<Output = T>>(
        &self,
        work: impl FnOnce(Vec<Hold>) -> W,
    ) -> Result<Ran<T>, RunError<T>> {
        self.lock().run(work).await
    }

    /// Runs `work` if all are free, otherwise answers `Ok(None)` at once.
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn try_run<T, W: Future<Output = T>>(
        &self,
        work: impl FnOnce(Vec<Hold>) -> W,
    ) -> Result<Option<Ran<T>>, RunError<T>> {
        self.try_lock().run(work).await
    }
}

fn started(members: &[Handle]) -> Result<Tick> {
    members.first().map(|member| member.core.clock.now()).ok_or_else(no_member)
}

fn no_member() -> Error {
    Error::invalid(None, "a multi-lock has at least one member")
}

/// By store, then by name: the same for everybody.
fn order(member: &Handle) -> (Arc<str>, LockName, Kind) {
    let identity = member.core.backend.capabilities().identity;
    (identity, member.resource.name.clone(), member.resource.kind)
}

/// A request for all members that waits: `.await` it.
#[derive(Debug)]
#[must_use = "does nothing unless awaited"]
pub struct MultiLockRequest {
    members: Arc<[Handle]>,
    lease: Option<Duration>,
    renewed: Option<Duration>,
}

impl MultiLockRequest {
    /// A fixed lease for all of them, from the moment when all are held. One below a second may last
    /// for up to a second: that is how long members are held at least while others are waited for.
    pub fn lease(mut self, span: Duration) -> Self {
        self.lease = Some(span);
        self
    }

    /// A lease that the watchdog renews, instead of the clients' default.
    pub fn renewed(mut self, span: Duration) -> Self {
        self.renewed = Some(span);
        self
    }

    /// Acquires, runs `work`, releases; the work is dropped when one of them is lost.
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn run<T, W: Future<Output = T>>(
        self,
        work: impl FnOnce(Vec<Hold>) -> W,
    ) -> Result<Ran<T>, RunError<T>> {
        let started = started(&self.members).map_err(RunError::Acquire)?;
        let guard = self.await.map_err(RunError::Acquire)?;
        let holds = guard.holds();
        run(guard, started, || work(holds)).await
    }

    /// What it comes to; checked before anything is sent.
    fn parts(&self) -> Result<(Vec<Part>, Terms)> {
        let first = self.members.first().ok_or_else(no_member)?;
        for pair in self.members.windows(2) {
            let ((store, name, _), (other, same, _)) = (order(&pair[0]), order(&pair[1]));
            if store == other && name == same {
                let detail = "a multi-lock names each lock once: this one would wait for itself";
                return Err(Error::invalid(Some(&name), detail));
            }
        }
        let default = first.core.options.watchdog_timeout;
        let held = term(&first.resource, self.lease, self.renewed, default)?;
        let part = |member: &Handle| member.settings(1).request(Wait::Never);
        let parts = self.members.iter().map(part).collect::<Result<_>>()?;
        let assembling = if held.renewed {
            held
        } else {
            // A lease must not end before the last member is there, and one that is short must be
            // renewed in time.
            let shortest = MIN_WATCHDOG.max(ASSEMBLING).as_millis() as u64;
            TermSpec { ttl: held.ttl.max(shortest), renewed: true }
        };
        Ok((parts, Terms { assembling, held }))
    }

    async fn acquire(self, wait: impl Fn(&Core) -> Wait) -> Result<Option<MultiGuard>> {
        let (parts, terms) = self.parts()?;
        let core = &parts[0].0;
        let wait = wait(core);
        let acquired = core.anywhere(|| acquire_all(&parts, terms, wait)).await?;
        Ok(acquired.map(MultiGuard::new))
    }
}

/// The shortest lease of a member that waits for the others.
const ASSEMBLING: Duration = Duration::from_secs(1);

impl IntoFuture for MultiLockRequest {
    type Output = Result<MultiGuard>;
    type IntoFuture = BoxFuture<Result<MultiGuard>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            // Waiting for ever ends with the locks or with an error.
            self.acquire(|_| Wait::Forever).await?.ok_or(Error::Closed { lock: None })
        })
    }
}

/// A request for all members that gives up: at once, or after [`wait`](TryMultiLockRequest::wait).
#[derive(Debug)]
#[must_use = "does nothing unless awaited"]
pub struct TryMultiLockRequest {
    request: MultiLockRequest,
    wait: Option<Duration>,
}

impl TryMultiLockRequest {
    /// Waits for at most so long, for all of them together.
    pub fn wait(mut self, span: Duration) -> Self {
        self.wait = Some(span);
        self
    }

    /// See [`MultiLockRequest::lease`].
    pub fn lease(mut self, span: Duration) -> Self {
        self.request = self.request.lease(span);
        self
    }

    /// See [`MultiLockRequest::renewed`].
    pub fn renewed(mut self, span: Duration) -> Self {
        self.request = self.request.renewed(span);
        self
    }

    /// Acquires, runs `work`, releases; nothing if one of them is busy.
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn run<T, W: Future<Output = T>>(
        self,
        work: impl FnOnce(Vec<Hold>) -> W,
    ) -> Result<Option<Ran<T>>, RunError<T>> {
        let started = started(&self.request.members).map_err(RunError::Acquire)?;
        match self.await.map_err(RunError::Acquire)? {
            None => Ok(None),
            Some(guard) => {
                let holds = guard.holds();
                run(guard, started, || work(holds)).await.map(Some)
            }
        }
    }
}

impl IntoFuture for TryMultiLockRequest {
    type Output = Result<Option<MultiGuard>>;
    type IntoFuture = BoxFuture<Result<Option<MultiGuard>>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { request, wait } = self;
        Box::pin(request.acquire(move |core| Wait::within(core, wait)))
    }
}

/// All locks of a [`MultiLock`], held. Dropping it releases them in the background: see [`Guard`].
#[must_use = "if it is not kept, the locks are released at once"]
pub struct MultiGuard {
    /// In the order in which they were taken.
    guards: Vec<Guard>,
}

impl MultiGuard {
    fn new(acquired: Vec<Acquired>) -> Self {
        Self { guards: acquired.into_iter().map(Guard::new).collect() }
    }

    /// The guards of the members, in the order of [`MultiLock::names`].
    pub fn members(&self) -> &[Guard] {
        &self.guards
    }

    /// Gives all of them back, at once.
    ///
    /// # Errors
    /// The first of their errors, see [`Guard::release`]; all are tried.
    ///
    /// # Cancel safety
    /// Once called it is done, also when the future is dropped.
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        // Each is begun by being called, and sent by being polled.
        let releases = self.guards.into_iter().map(|guard| Box::pin(guard.release()) as _);
        let releases = side_by_side(releases.collect());
        async move { releases.await.into_iter().collect() }
    }

    /// Until when it is safe to act: the earliest of the members' deadlines.
    pub fn deadline(&self) -> Instant {
        let deadlines = self.guards.iter().map(Guard::deadline);
        deadlines.min().unwrap_or_else(Instant::now)
    }

    /// How long it is still safe to act; zero once one of them is lost.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Whether one of them is lost, which is losing all.
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(Guard::is_lost)
    }

    /// Resolves when one of them is lost, with which and why.
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

    fn holds(&self) -> Vec<Hold> {
        self.guards.iter().map(Guard::hold).collect()
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MultiGuard").field(&self.guards).finish()
    }
}

impl Held for MultiGuard {
    fn lost_reason(&self) -> Option<LostReason> {
        self.guards.iter().find_map(|guard| guard.lease().lost_reason())
    }

    fn lost_later(&self) -> impl Future<Output = LostReason> + Send + 'static {
        let lost = self.lost();
        async move { lost.await.1 }
    }

    /// When the last of them was there, by the clock of the first, as far as it can be told.
    fn granted(&self) -> (Tick, Tick) {
        let lease = self.guards[0].lease();
        let now = lease.core.clock.now();
        let held = |guard: &Guard| guard.lease().core.clock.now().since(guard.lease().granted);
        let held = self.guards.iter().map(held).min().unwrap_or_default();
        (now.minus(held), now)
    }

    fn give_back(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.release()
    }
}
