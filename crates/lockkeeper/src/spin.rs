//! The lock whose waiters poll.

use crate::handle::Handle;
use crate::lock::{lock_methods, owner_methods};
use crate::options::Backoff;

/// The lock that never subscribes: its waiters poll, with pauses. Redisson's `RSpinLock`.
///
/// For very many names that are rarely and briefly contended, where a subscription for each would
/// cost more than a few tries. It is the same lock in the store as [`Lock`](crate::Lock). Unlike
/// Redisson's, its release notifies waiters for a `Lock` of that name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use std::time::Duration;
/// use lockkeeper::Backoff;
///
/// let client = lockkeeper::Client::memory();
/// let lock = client.spin_lock("seat:17").backoff(Backoff::constant(Duration::from_millis(5)));
/// lock.lock().await?.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SpinLock {
    handle: Handle,
}

lock_methods!(SpinLock, LockGuard);
owner_methods!(SpinLock);

impl SpinLock {
    /// The same lock with other pauses between the tries.
    #[must_use = "it is a new handle that has the pauses"]
    pub fn backoff(&self, backoff: Backoff) -> Self {
        let mut handle = self.handle.clone();
        handle.spin = Some(backoff);
        Self { handle }
    }
}
