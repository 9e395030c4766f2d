//! Several locks as one, for threads.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Client, FairLock, FencedLock, Lock, Mutex, RwLock, SpinLock};
use crate::error::{Error, LostReason};
use crate::guard::Hold;
use crate::run::{Held, Ran, RunError, finished};
use crate::{LockName, Result};

/// A lock as part of a [`MultiLock`]: made from any handle by `into()`, and by [`RwLock::reader`] and
/// [`RwLock::writer`]. It keeps its client alive.
#[derive(Clone, Debug)]
pub struct Member {
    member: crate::Member,
    client: Client,
}

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
    pub fn new<M: Into<Member>>(client: &Client, members: impl IntoIterator<Item = M>) -> Self {
        let members = members.into_iter().map(Into::into);
        let (members, clients): (Vec<_>, Vec<_>) =
            members.map(|Member { member, client }| (member, client)).unzip();
        let inner = crate::MultiLock::new(members);
        Self { inner, client: client.clone(), clients: clients.into() }
    }

    /// The names of the locks, in the order in which they are taken.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.inner.names()
    }

    /// Waits until all are held.
    ///
    /// # Errors
    /// See [`crate::MultiLock::lock`].
    pub fn lock(&self) -> Result<MultiGuard> {
        self.request().lock()
    }

    /// One attempt; if one of them is busy it is `Ok(None)`.
    ///
    /// # Errors
    /// See [`crate::MultiLock::try_lock`].
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.request().try_lock()
    }

    /// A request with a fixed lease: `multi.lease(d).lock()?`.
    pub fn lease(&self, span: Duration) -> MultiRequest<'_> {
        self.request().lease(span)
    }

    /// A request that waits for at most so long: `multi.wait(d).try_lock()?`.
    pub fn wait(&self, span: Duration) -> MultiRequest<'_> {
        self.request().wait(span)
    }

    /// Waits for all, runs `work`, releases. Work on a thread cannot be stopped: look at
    /// [`Hold::is_lost`] in it.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run<T>(&self, work: impl FnOnce(Vec<Hold>) -> T) -> Result<Ran<T>, RunError<T>> {
        let started = Instant::now();
        let guard = self.lock().map_err(RunError::Acquire)?;
        let granted = Instant::now();
        let output = work(guard.members().iter().map(crate::Guard::hold).collect());
        let (waited, held) = (granted - started, granted.elapsed());
        let reason = guard.guard.lost_reason();
        finished(guard.release(), reason, Ran { output, waited, held })
    }

    fn request(&self) -> MultiRequest<'_> {
        MultiRequest { multi: self, lease: None, wait: None }
    }

    fn guard(&self, guard: crate::MultiGuard) -> MultiGuard {
        let clients = Arc::clone(&self.clients);
        MultiGuard { guard, client: self.client.clone(), _clients: clients }
    }
}

/// A request for a [`MultiLock`] with settings of its own.
#[derive(Clone, Copy, Debug)]
#[must_use = "does nothing until lock or try_lock is called"]
pub struct MultiRequest<'a> {
    multi: &'a MultiLock,
    lease: Option<Duration>,
    wait: Option<Duration>,
}

impl MultiRequest<'_> {
    /// A fixed lease for all of them. See [`crate::MultiLockRequest::lease`].
    pub fn lease(mut self, span: Duration) -> Self {
        self.lease = Some(span);
        self
    }

    /// Waits for at most so long; goes with [`try_lock`](MultiRequest::try_lock).
    pub fn wait(mut self, span: Duration) -> Self {
        self.wait = Some(span);
        self
    }

    /// Waits until all are held.
    ///
    /// # Errors
    /// See [`crate::MultiLock::lock`]; [`Invalid`](Error::Invalid) with a wait limit, which goes with
    /// `try_lock`.
    pub fn lock(self) -> Result<MultiGuard> {
        if self.wait.is_some() {
            return Err(Error::invalid(None, "a wait limit goes with try_lock, not with lock"));
        }
        let mut request = self.multi.inner.lock();
        if let Some(span) = self.lease {
            request = request.lease(span);
        }
        Ok(self.multi.guard(self.multi.client.wait(request.into_future())?))
    }

    /// One attempt, or with a wait limit as many as fit; if one is busy it is `Ok(None)`.
    ///
    /// # Errors
    /// See [`crate::MultiLock::try_lock`].
    pub fn try_lock(self) -> Result<Option<MultiGuard>> {
        let mut request = self.multi.inner.try_lock().wait(self.wait.unwrap_or_default());
        if let Some(span) = self.lease {
            request = request.lease(span);
        }
        let guard = self.multi.client.wait(request.into_future())?;
        Ok(guard.map(|guard| self.multi.guard(guard)))
    }
}

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
    pub fn members(&self) -> &[crate::Guard] {
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

macro_rules! member {
    ($($Type:ident)+) => {
        $(impl From<$Type> for Member {
            fn from(lock: $Type) -> Self {
                Self { member: crate::Member(lock.handle()), client: lock.client }
            }
        })+
    };
}

member!(Lock FairLock FencedLock Mutex SpinLock);

impl RwLock {
    /// See [`crate::RwLock::reader`].
    pub fn reader(&self) -> Member {
        Member { member: self.inner.reader(), client: self.client.clone() }
    }

    /// See [`crate::RwLock::writer`].
    pub fn writer(&self) -> Member {
        Member { member: self.inner.writer(), client: self.client.clone() }
    }
}
