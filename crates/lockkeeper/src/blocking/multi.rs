//! Several locks as one, for threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::forward::waiting;
use super::{AnyLock, Client};
use crate::config::LeaseTime;
use crate::error::{Error, LostReason};
use crate::hold::Hold;
use crate::run::{Completed, Held, RunError, finished};
use crate::{LockName, Result};

/// Several locks as one, of any kinds: all are held, or none. See [`crate::MultiLock`].
///
/// Held by the guard, not by the thread: the same thread that asks for one of them again waits.
#[derive(Clone, Debug)]
pub struct MultiLock {
    inner: crate::MultiLock,
    client: Client,
    /// Of the members.
    clients: Arc<[Client]>,
}

impl MultiLock {
    /// These locks as one. `client` carries the waiting; the members may be of others.
    pub fn new<L: Into<AnyLock>>(client: &Client, members: impl IntoIterator<Item = L>) -> Self {
        let members = members.into_iter().map(Into::into);
        let (members, clients): (Vec<_>, Vec<_>) =
            members.map(|AnyLock { inner, client }| (inner, client)).unzip();
        let inner = crate::MultiLock::new(members);
        Self { inner, client: client.clone(), clients: clients.into() }
    }

    /// The names of the locks, in the order in which they are acquired.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.inner.names()
    }

    /// The same locks, to be acquired with this lease: `multi.lease(d).lock()?`. See
    /// [`crate::MultiLock::lease`].
    pub fn lease(&self, lease: impl Into<LeaseTime>) -> Self {
        Self { inner: self.inner.lease(lease), ..self.clone() }
    }

    /// Waits until all are acquired.
    ///
    /// # Errors
    /// See [`crate::MultiLock::lock`].
    pub fn lock(&self) -> Result<MultiGuard> {
        Ok(self.guard(self.client.wait(self.inner.lock())?))
    }

    /// Makes one attempt. If one of the locks is busy it is `Ok(None)`.
    ///
    /// # Errors
    /// See [`crate::MultiLock::try_lock`].
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        let guard = self.client.wait(self.inner.try_lock())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Waits for at most `wait`. See [`crate::MultiLock::try_lock_for`].
    ///
    /// # Errors
    /// As there.
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>> {
        let guard = self.client.wait(self.inner.try_lock_for(wait))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Waits for all, runs `work`, releases. Work on a thread cannot be stopped: look at
    /// [`Hold::is_lost`] in it.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run<T>(&self, work: impl FnOnce(Vec<Hold>) -> T) -> Result<Completed<T>, RunError<T>> {
        let started = Instant::now();
        let guard = self.lock().map_err(RunError::Acquire)?;
        let granted = Instant::now();
        let output = work(guard.members().iter().map(crate::AnyGuard::hold).collect());
        let (waited, held) = (granted - started, granted.elapsed());
        let (lock, loss) = (guard.guard.lock().clone(), guard.guard.loss());
        finished(guard.release(), lock, loss, Completed { output, waited, held })
    }

    fn guard(&self, guard: crate::MultiGuard) -> MultiGuard {
        let clients = Arc::clone(&self.clients);
        MultiGuard { guard, client: self.client.clone(), _clients: clients }
    }
}

waiting! { MultiLock, multi => multi.inner; {
    /// Whether any of the locks is held, as the stores say.
    fn is_locked() -> bool;
    /// Force-releases all of the locks; true if any was held.
    fn force_unlock() -> bool;
} }

/// All locks of a [`MultiLock`], held. Dropping it releases them in the background, or waits for that if it
/// is the last that belongs to its client: see [`Client`]. See also [`crate::MultiGuard`].
#[derive(Debug)]
#[must_use = "if it is not kept, the locks are released at once"]
pub struct MultiGuard {
    /// Before the clients in the order of dropping, which carry the runtimes that release it.
    guard: crate::MultiGuard,
    client: Client,
    _clients: Arc<[Client]>,
}

impl MultiGuard {
    /// See [`crate::MultiGuard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<(), Error> {
        let Self { guard, client, _clients } = self;
        client.wait(guard.release())
    }

    /// The guards of the members, with their tokens, in the order of [`MultiLock::names`].
    pub fn members(&self) -> &[crate::AnyGuard] {
        self.guard.members()
    }

    /// See [`crate::MultiGuard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// See [`crate::MultiGuard::is_lost`].
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// Waits for at most `span` for one of them to be lost: which, and why.
    pub fn wait_lost(&self, span: Duration) -> Option<(LockName, LostReason)> {
        let lost = self.guard.lost();
        self.client.wait(async move { tokio::time::timeout(span, lost).await.ok() })
    }
}
