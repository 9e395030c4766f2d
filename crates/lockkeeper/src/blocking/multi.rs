//! Several locks as one, for threads.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use super::{Client, FairLock, FencedLock, Lock, Mutex, RwLock, SpinLock};
use crate::error::{Error, LostReason};
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
        Ok(self.guard(self.client.wait(self.inner.lock().into_future())?))
    }

    /// The same with a fixed lease.
    ///
    /// # Errors
    /// See [`crate::MultiLock::lock`].
    pub fn lock_for(&self, lease: Duration) -> Result<MultiGuard> {
        Ok(self.guard(self.client.wait(self.inner.lock().lease(lease).into_future())?))
    }

    /// One attempt; if one of them is busy it is `Ok(None)`.
    ///
    /// # Errors
    /// See [`crate::MultiLock::try_lock`].
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.try_lock_within(Duration::ZERO)
    }

    /// Waits for at most `span`.
    ///
    /// # Errors
    /// See [`crate::MultiLock::try_lock`].
    pub fn try_lock_within(&self, span: Duration) -> Result<Option<MultiGuard>> {
        let guard = self.client.wait(self.inner.try_lock().wait(span).into_future())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    fn guard(&self, guard: crate::MultiGuard) -> MultiGuard {
        let clients = Arc::clone(&self.clients);
        MultiGuard { guard, client: self.client.clone(), _clients: clients }
    }
}

/// All locks of a [`MultiLock`], held. Dropping it releases them in the background. See
/// [`crate::MultiGuard`].
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
