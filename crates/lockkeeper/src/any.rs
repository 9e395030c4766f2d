//! Locks of any kind, for code that does not depend on the kind: [`MultiLock`](crate::MultiLock), the
//! command line, tests.

use crate::handle::Handle;
use crate::lock::{lock_methods, owner_methods};
use crate::{FairLock, FencedLock, Lock, Mutex, PermitSemaphore};

/// A lock of any kind: made from a handle of a lock or a permit semaphore by `into()`, and from an
/// [`RwLock`](crate::RwLock) by [`reader`](crate::RwLock::reader) and [`writer`](crate::RwLock::writer).
///
/// A permit semaphore is acquired by one permit; its holders are not listed here, and it cannot be
/// force-released. An owner counts only for kinds that are reentrant. A side of a read/write lock
/// [is locked](AnyLock::is_locked) if that side is held.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::AnyLock;
///
/// let client = lockkeeper::Client::memory();
/// let locks: [AnyLock; 3] =
///     [client.lock("a").into(), client.mutex("b").into(), client.rw_lock("c").writer()];
/// for lock in &locks {
///     lock.lock().await?.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct AnyLock {
    handle: Handle,
}

lock_methods!(AnyLock, AnyGuard);
owner_methods!(AnyLock);

/// A permit semaphore is acquired by one permit.
macro_rules! any_lock {
    ($($Lock:ident)+) => {
        $(impl From<$Lock> for AnyLock {
            fn from(lock: $Lock) -> Self {
                Self::new(lock.into_handle())
            }
        })+
    };
}

any_lock!(Lock FairLock FencedLock Mutex PermitSemaphore);
