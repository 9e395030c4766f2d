//! Fencing: tokens that grow, and the check where they are used.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Result;
use crate::handle::Handle;
use crate::lock::{lock_methods, owner_methods};

/// The lock whose guards have a [`token`](crate::FencedGuard::token): Redisson's `RFencedLock`.
///
/// A token issued later is greater, also after the store has lost its data, provided that the clock
/// of the server that took over is not behind the old one's by more than the time since the last
/// token. It is issued in the same step as the lock, and re-entries share it.
///
/// A lock cannot stop a request that was sent before the lock was lost. The receiver of the request
/// can, if it comes with the token: see [`Fence`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::Fence;
///
/// let client = lockkeeper::Client::memory();
/// let lock = client.fenced_lock("ledger");
/// let fence = Fence::new(); // where the ledger is kept
///
/// let first = lock.lock().await?;
/// let old = first.token();
/// first.release().await?;
/// let second = lock.lock().await?;
/// let new = second.token();
///
/// assert!(fence.admit(new).is_ok());
/// assert!(fence.admit(old).is_err(), "a request of the first holder that was under way");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FencedLock {
    handle: Handle,
}

lock_methods!(FencedLock, FencedGuard);
owner_methods!(FencedLock);

/// The check at the resource: admits a token unless a greater one was admitted before.
///
/// Use it where the work takes effect, in the process that owns the resource: the same token may
/// come any number of times, a lower one is rejected. Admit and change under one local mutex, so
/// that no newer token is admitted in between. Where the resource is a database or Redis, let it
/// check the token in the same step as the change; the [manual](crate::manual::fencing) shows how.
#[derive(Debug, Default)]
pub struct Fence {
    highest: AtomicU64,
}

impl Fence {
    /// Makes a fence that has admitted no token.
    pub const fn new() -> Self {
        Self::starting_at(0)
    }

    /// Makes a fence that has admitted `token`: one that was kept over a restart.
    pub const fn starting_at(token: u64) -> Self {
        Self { highest: AtomicU64::new(token) }
    }

    /// Admits `token`, unless a greater one was admitted before.
    ///
    /// # Errors
    /// [`StaleTokenError`] with the greater one.
    pub fn admit(&self, token: u64) -> Result<(), StaleTokenError> {
        let highest = self.highest.fetch_max(token, Ordering::AcqRel);
        if highest > token { Err(StaleTokenError { token, highest }) } else { Ok(()) }
    }

    /// The greatest admitted token: store it where it survives a restart.
    pub fn highest(&self) -> u64 {
        self.highest.load(Ordering::Acquire)
    }
}

/// A token was rejected: its holder has lost the lock since.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("token {token} is stale: {highest} was admitted before")]
#[non_exhaustive]
pub struct StaleTokenError {
    /// The rejected token.
    pub token: u64,
    /// The greatest admitted token.
    pub highest: u64,
}
