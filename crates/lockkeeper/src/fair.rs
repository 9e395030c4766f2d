//! The fair lock.

use crate::handle::Handle;
use crate::lock::{lock_methods, option_methods, owner_methods};

/// The lock that is granted in the order of the requests, across processes: Redisson's `RFairLock`,
/// with Java's waiters in the same queue.
///
/// A waiter that gives up, is dropped or dies leaves the queue: at once where it can send a
/// request, otherwise after three seconds. The cost of a dead Java waiter and other differences of
/// a mixed queue are in the [manual](crate::manual::choosing).
///
/// A client that queues again within a second of a release that the store has confirmed may use the owner
/// id of that hold again. Its grants still have different tokens: tell them apart by these.
///
/// [`try_lock`](FairLock::try_lock) without a wait acquires a free lock only if there are no
/// waiters.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let client = lockkeeper::Client::memory();
/// let lock = client.fair_lock("printer");
/// let first = lock.lock().await?;
/// let second = tokio::spawn(lock.lock());
/// while lock.inspect().await?.queue.is_empty() {
///     tokio::task::yield_now().await;
/// }
/// first.release().await?;
/// assert!(lock.try_lock().await?.is_none(), "it is the second one's turn");
/// second.await.expect("it did not panic")?.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FairLock {
    handle: Handle,
}

lock_methods!(FairLock, LockGuard);
owner_methods!(FairLock);
option_methods!(FairLock);
