//! The count-down latch.

use std::time::Duration;

use crate::backend::{Changed, CountChange};
use crate::handle::Handle;
use crate::lock::handle_methods;
use crate::{Error, Result};

/// A latch that opens when it was counted down to zero: Redisson's `RCountDownLatch`.
///
/// A latch that was never set is open. Counting down is safe to repeat: a lost answer never counts
/// twice.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let client = lockkeeper::Client::memory();
/// let ready = client.count_down_latch("shards-ready");
/// ready.try_set_count(2).await?;
/// for _ in 0..2 {
///     let ready = ready.clone();
///     tokio::spawn(async move { ready.count_down().await });
/// }
/// ready.wait().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct CountDownLatch {
    handle: Handle,
}

handle_methods!(CountDownLatch);

impl CountDownLatch {
    /// Closes an open latch with this count. Returns false if it is closed already, and leaves it
    /// unchanged.
    ///
    /// # Errors
    /// [`Invalid`](Error::Invalid) for zero, and for 2⁵³ or more.
    pub async fn try_set_count(&self, count: u64) -> Result<bool> {
        if count == 0 {
            let detail = "a latch counts down from at least 1; one that is not set is open";
            return Err(Error::invalid(Some(self.name()), detail));
        }
        self.handle.create(count, None).await
    }

    /// Counts down by one and returns the remaining count. An open latch stays open.
    ///
    /// # Errors
    /// [`Unconfirmed`](Error::Unconfirmed) if no answer came.
    ///
    /// # Cancel safety
    /// The count is done once the future was polled, even if it is dropped.
    pub async fn count_down(&self) -> Result<u64> {
        Ok(self.handle.change(CountChange::Down).await?.number().unsigned_abs())
    }

    /// The remaining count; zero when it is open.
    ///
    /// # Errors
    /// [`WrongKind`](Error::WrongKind) if the name is in use for something else.
    pub async fn count(&self) -> Result<u64> {
        let count = self.handle.inspect().await?.count.unwrap_or(0);
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Waits until it is open. Once it has opened every waiter continues, even if it is closed
    /// again at once.
    ///
    /// # Errors
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn wait(&self) -> Result<()> {
        self.wait_for(Duration::MAX).await.map(drop)
    }

    /// Waits until it is open for at most `span`. Returns false if it did not open by then.
    ///
    /// # Errors
    /// As [`wait`](CountDownLatch::wait); [`Unreachable`](Error::Unreachable) if the store did not
    /// answer at the end, at most one response timeout after it.
    pub async fn wait_for(&self, span: Duration) -> Result<bool> {
        let request = self.handle.request(1, span)?;
        self.handle.core.anywhere(request.wait_until_open()).await
    }

    /// Removes it and wakes its waiters up. Returns false if it was open.
    ///
    /// # Errors
    /// As [`count_down`](CountDownLatch::count_down).
    pub async fn delete(&self) -> Result<bool> {
        Ok(self.handle.change(CountChange::Delete).await? == Changed::Done)
    }
}
