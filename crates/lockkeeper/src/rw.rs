//! The read/write lock.

use crate::backend::Kind;
use crate::holder::{Holder, Remaining};
use crate::lock::{Handle, LockRequest, TryLockRequest, fenced_methods};
use crate::{LockName, Member, Owner, Result};

/// Many readers or one writer: Redisson's `RReadWriteLock`.
///
/// - Readers share it; each has a lease of its own, and one that died stops blocking writers when
///   that lease ends.
/// - A writer may also read: [`Guard::read`](crate::Guard::read). [`Guard::downgrade`](crate::Guard::downgrade)
///   turns writing into reading without letting a writer in between.
/// - The only reader may become the writer: [`Guard::try_upgrade`](crate::Guard::try_upgrade). An
///   [`Owner`] that holds it for reading and asks to write gets an error, because it would wait for
///   itself; without an owner nobody can know.
/// - Writers are not starved: while one waits, new readers of lockkeeper wait behind it, and after
///   five seconds of that one batch of them is let in. Java's readers do not know of this.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let client = lockkeeper::Client::memory();
/// let prices = client.rw_lock("prices");
/// let (one, other) = (prices.read().await?, prices.read().await?);
/// assert!(prices.try_write().await?.is_none());
/// other.release().await?;
/// let writing = one.try_upgrade().await?.expect("it is the only reader");
/// writing.release().await?; // and reads on
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    handle: Handle,
}

fenced_methods!(RwLock);

impl RwLock {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// The name, prefix included.
    pub fn name(&self) -> &LockName {
        &self.handle.resource.name
    }

    /// Waits until it is held for reading.
    ///
    /// # Errors
    /// See [`Lock::lock`](crate::Lock::lock); [`WrongKind`](crate::Error::WrongKind) for a name that is
    /// in use as another kind of lock.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub fn read(&self) -> LockRequest {
        self.reading().lock()
    }

    /// One attempt to hold it for reading, or with [`wait`](TryLockRequest::wait) as many as fit.
    ///
    /// # Errors
    /// As [`read`](RwLock::read).
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    pub fn try_read(&self) -> TryLockRequest {
        self.reading().try_lock()
    }

    /// Waits until it is held for writing.
    ///
    /// # Errors
    /// As [`read`](RwLock::read); [`Invalid`](crate::Error::Invalid) for an owner that holds it for
    /// reading.
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    pub fn write(&self) -> LockRequest {
        self.writing().lock()
    }

    /// One attempt to hold it for writing, or with [`wait`](TryLockRequest::wait) as many as fit.
    ///
    /// # Errors
    /// As [`write`](RwLock::write).
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    pub fn try_write(&self) -> TryLockRequest {
        self.writing().try_lock()
    }

    /// The same lock in the name of `owner`: it re-enters what it holds, and reads what it writes.
    pub fn as_owner(&self, owner: &Owner) -> Self {
        Self { handle: self.handle.owned_by(owner) }
    }

    /// Its reading side, for a [`MultiLock`](crate::MultiLock).
    pub fn reader(&self) -> Member {
        Member(self.reading())
    }

    /// Its writing side, for a [`MultiLock`](crate::MultiLock).
    pub fn writer(&self) -> Member {
        Member(self.writing())
    }

    /// How often `owner` holds it for reading, as the store says.
    ///
    /// # Errors
    /// As [`holders`](RwLock::holders); [`Invalid`](crate::Error::Invalid) for an owner of another
    /// client.
    pub async fn read_count(&self, owner: &Owner) -> Result<u64> {
        self.reading().hold_count(owner).await
    }

    /// How often `owner` holds it for writing, as the store says.
    ///
    /// # Errors
    /// As [`read_count`](RwLock::read_count).
    pub async fn write_count(&self, owner: &Owner) -> Result<u64> {
        self.writing().hold_count(owner).await
    }

    /// Whether anybody reads.
    ///
    /// # Errors
    /// As [`holders`](RwLock::holders).
    pub async fn is_read_locked(&self) -> Result<bool> {
        Ok(self.handle.inspect().await?.holders.iter().any(|holder| holder.shared))
    }

    /// Whether anybody writes.
    ///
    /// # Errors
    /// As [`holders`](RwLock::holders).
    pub async fn is_write_locked(&self) -> Result<bool> {
        Ok(self.handle.inspect().await?.holders.iter().any(|holder| !holder.shared))
    }

    /// Who holds it: one writer, or readers, or a writer that reads.
    ///
    /// # Errors
    /// [`WrongKind`](crate::Error::WrongKind) if the name is in use for something else.
    pub async fn holders(&self) -> Result<Vec<Holder>> {
        self.handle.holders().await
    }

    /// How long it stands if nobody renews it.
    ///
    /// # Errors
    /// As [`holders`](RwLock::holders).
    pub async fn remaining(&self) -> Result<Remaining> {
        self.handle.remaining().await
    }

    /// Takes it away from whoever reads or writes; true if anybody did. See
    /// [`Lock::force_unlock`](crate::Lock::force_unlock).
    ///
    /// # Errors
    /// As there.
    pub async fn force_unlock(&self) -> Result<bool> {
        self.force_unlock_because("").await
    }

    /// [`force_unlock`](RwLock::force_unlock) with a reason, which the holders get to read.
    ///
    /// # Errors
    /// As [`force_unlock`](RwLock::force_unlock).
    pub async fn force_unlock_because(&self, reason: impl Into<String>) -> Result<bool> {
        self.handle.force_unlock(reason.into()).await
    }

    fn reading(&self) -> Handle {
        self.side(Kind::Read)
    }

    fn writing(&self) -> Handle {
        self.side(Kind::Write)
    }

    pub(crate) fn side(&self, kind: Kind) -> Handle {
        self.handle.side(kind)
    }
}
