//! The read/write lock.

use std::future::Future;
use std::time::Duration;

use crate::any::AnyLock;
use crate::backend::{Kind, LockInfo};
use crate::guard::{ReadGuard, WriteGuard};
use crate::handle::Handle;
use crate::lock::lease_methods;
use crate::{Owner, Result};

/// Many readers or one writer: Redisson's `RReadWriteLock`.
///
/// - Readers share the lock. Each has a lease of its own; a reader that died stops blocking writers when its
///   lease expires.
/// - A writer may also read: [`WriteGuard::read`]. [`WriteGuard::downgrade`] turns writing into reading
///   without letting another writer in between.
/// - The only reader may become the writer: [`ReadGuard::try_upgrade`]. An [`Owner`] that holds the lock for
///   reading and asks to write gets an error, because it would wait for itself; without an owner the client
///   cannot know.
/// - Writers are not starved: while one waits, new readers of lockkeeper wait behind it, and after
///   five seconds of that one batch of them is let in. Java's readers do not know of this.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = lockkeeper::Client::memory();
/// let prices = client.rw_lock("prices");
/// let (one, other) = (prices.read().await?, prices.read().await?);
/// assert!(prices.try_write().await?.is_none());
/// other.release().await?;
/// let writing = one.try_upgrade().await?; // it is the only reader
/// let reading = writing.downgrade().await?;
/// reading.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    handle: Handle,
}

lease_methods!(RwLock);

impl RwLock {
    /// The same lock in the name of `owner`: it re-enters the side that it holds, and may read what
    /// it writes.
    #[must_use = "it is a new handle that has the owner"]
    pub fn as_owner(&self, owner: &Owner) -> Self {
        Self { handle: self.handle.owned_by(owner) }
    }

    /// The same lock, whose write guards have a fencing [`token`](crate::Hold::token): see
    /// [`FencedLock`](crate::FencedLock). Readers have none.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// let client = lockkeeper::Client::memory();
    /// let writing = client.rw_lock("prices").fenced().write().await?;
    /// assert!(writing.token().is_some());
    /// # Ok(()) }
    /// ```
    #[must_use = "it is a new handle that issues tokens"]
    pub fn fenced(&self) -> Self {
        Self { handle: self.handle.fenced() }
    }

    /// Waits until the lock is acquired for reading.
    ///
    /// # Errors
    /// See [`Lock::lock`](crate::Lock::lock); [`WrongKind`](crate::Error::WrongKind) for a name that
    /// is in use as another kind of lock.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub fn read(&self) -> impl Future<Output = Result<ReadGuard>> + Send + use<> {
        self.side(Kind::Read).lock(1)
    }

    /// Makes one attempt to acquire the lock for reading. A busy lock is `Ok(None)`.
    ///
    /// # Errors and cancel safety
    /// As [`read`](Self::read).
    pub fn try_read(&self) -> impl Future<Output = Result<Option<ReadGuard>>> + Send + use<> {
        self.side(Kind::Read).try_lock(1, Duration::ZERO)
    }

    /// Waits for the read lock for at most `wait`. See
    /// [`Lock::try_lock_for`](crate::Lock::try_lock_for).
    ///
    /// # Errors and cancel safety
    /// As [`read`](Self::read).
    pub fn try_read_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<ReadGuard>>> + Send + use<> {
        self.side(Kind::Read).try_lock(1, wait)
    }

    /// Waits until the lock is acquired for writing.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Invalid`](crate::Error::Invalid) for an owner that holds it for
    /// reading.
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    pub fn write(&self) -> impl Future<Output = Result<WriteGuard>> + Send + use<> {
        self.side(Kind::Write).lock(1)
    }

    /// Makes one attempt to acquire the lock for writing. A busy lock is `Ok(None)`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    pub fn try_write(&self) -> impl Future<Output = Result<Option<WriteGuard>>> + Send + use<> {
        self.side(Kind::Write).try_lock(1, Duration::ZERO)
    }

    /// Waits for the write lock for at most `wait`. See
    /// [`Lock::try_lock_for`](crate::Lock::try_lock_for).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    pub fn try_write_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<WriteGuard>>> + Send + use<> {
        self.side(Kind::Write).try_lock(1, wait)
    }

    /// Its read side, as a lock of any kind.
    pub fn reader(&self) -> AnyLock {
        AnyLock::new(self.side(Kind::Read))
    }

    /// Its write side, as a lock of any kind.
    pub fn writer(&self) -> AnyLock {
        AnyLock::new(self.side(Kind::Write))
    }

    /// All that the store says of the lock: one writer, or readers, or a writer that reads, and the TTL.
    /// Whether one side is held, and how often by an owner, say [`reader`](Self::reader) and
    /// [`writer`](Self::writer).
    ///
    /// # Errors
    /// [`WrongKind`](crate::Error::WrongKind) if the name is in use for something else.
    pub async fn inspect(&self) -> Result<LockInfo> {
        self.handle.inspect().await
    }

    /// Force-releases the lock from readers and writer; true if it was held. See
    /// [`Lock::force_unlock`](crate::Lock::force_unlock).
    ///
    /// # Errors
    /// As there.
    pub async fn force_unlock(&self, reason: impl Into<String>) -> Result<bool> {
        self.handle.force_unlock(reason.into()).await
    }

    fn side(&self, kind: Kind) -> Handle {
        self.handle.side(kind)
    }
}
