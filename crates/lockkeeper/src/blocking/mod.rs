//! The same locks for threads: without a runtime, and the calling thread is the owner.
//!
//! A client brings a thread of its own that carries the runtime, so that leases are renewed while
//! the caller computes or sleeps. As in Redisson, a [`Lock`] is reentrant per thread.
//!
//! ```
//! use lockkeeper::blocking::Client;
//!
//! # fn main() -> lockkeeper::Result<()> {
//! let client = Client::memory();
//! let lock = client.lock("orders:42");
//! let guard = lock.lock()?;
//! let again = lock.lock()?; // the same thread: re-entered
//! assert_eq!(lock.hold_count()?, 2);
//! again.release()?;
//! guard.release()?;
//! # Ok(()) }
//! ```
//!
//! # Panics
//! Everything that waits on a client panics when called from within an async task: use the async API
//! there. Making a client and dropping the last handle of one do not panic, but block the task.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::runtime::{Builder, Handle as Runtime};
use tokio::sync::oneshot;

use crate::Owner;
use crate::config::ClientOptions;
use crate::error::{Error, Result};

mod counters;
mod forward;
mod guards;
mod inspector;
mod locks;
mod multi;

pub use counters::{CountDownLatch, Permit, PermitSemaphore, Semaphore};
pub use guards::{
    AnyGuard, FencedGuard, FencedReadGuard, FencedWriteGuard, LockGuard, MutexGuard, PermitsGuard,
    ReadGuard, WriteGuard,
};
pub use inspector::{Inspector, Listing, Watch};
pub use locks::{AnyLock, FairLock, FencedLock, FencedRwLock, Lock, Mutex, RwLock, SpinLock};
pub use multi::{MultiGuard, MultiLock};

/// A client for threads. Cloning it is cheap and gives the same client.
///
/// Handles and guards keep it alive. **Dropping the last of them waits** until everything is released,
/// for at most one [response timeout](ClientOptions::response_timeout): a program whose `main` drops its
/// guards and clients leaves no lock held. What is never dropped is not released at the end of the
/// program: guards and clients in a `static`, in a thread that is still running, or on the stack when
/// [`std::process::exit`] is called. There, call [`release`](LockGuard::release) or
/// [`shutdown`](Client::shutdown).
///
/// In a forked child the client is closed: its guards are lost, its requests fail with
/// [`Closed`](Error::Closed), and dropping it does nothing. Make another one there.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    client: crate::Client,
    runtime: Runtime,
    /// The thread that carries the runtime.
    carrier: ThreadId,
    stop: Option<oneshot::Sender<crate::Client>>,
    /// Disconnected when the carrier has ended. The mutex only lets threads share it.
    ended: std::sync::Mutex<mpsc::Receiver<()>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.client, f)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(stop) = self.stop.take() else { return };
        let core = self.client.core();
        if core.home.is_forked() {
            // The carrier is the parent's: to drop this would touch what both share.
            return std::mem::forget(stop);
        }
        let _ = stop.send(self.client.clone());
        // The carrier must not wait for itself.
        if thread::current().id() != self.carrier {
            let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = ended.recv_timeout(core.options.response_timeout);
        }
    }
}

impl Client {
    /// See [`crate::Client::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::connect_with(url, ClientOptions::new())
    }

    /// See [`crate::Client::connect_with`].
    ///
    /// # Errors
    /// As there.
    pub fn connect_with(url: impl AsRef<str>, options: ClientOptions) -> Result<Self> {
        let url = url.as_ref().to_owned();
        Self::start(async move { crate::Client::connect_with(&url, options).await })
    }

    /// See [`crate::Client::quorum`].
    ///
    /// # Errors
    /// As there.
    pub fn quorum<M: AsRef<str>>(members: impl IntoIterator<Item = M>) -> Result<Self> {
        Self::quorum_with(members, ClientOptions::new())
    }

    /// See [`crate::Client::quorum_with`].
    ///
    /// # Errors
    /// As there.
    pub fn quorum_with<M: AsRef<str>>(
        members: impl IntoIterator<Item = M>,
        options: ClientOptions,
    ) -> Result<Self> {
        let members: Vec<_> = members.into_iter().map(|one| one.as_ref().to_owned()).collect();
        Self::start(async move { crate::Client::quorum_with(members, options).await })
    }

    /// A client on a new embedded store. See [`crate::Client::memory`].
    ///
    /// # Panics
    /// If the operating system grants no thread.
    pub fn memory() -> Self {
        let client = Self::start(async { Ok(crate::Client::memory()) });
        client.expect("an embedded store needs nothing but a thread")
    }

    /// Opens the client on a thread of its own, which carries the runtime for as long as the
    /// client lives: leases must be renewed while no method is called.
    fn start(open: impl Future<Output = Result<crate::Client>> + Send + 'static) -> Result<Self> {
        let no_thread = |error: std::io::Error| Error::Invalid {
            lock: None,
            detail: format!("no thread for the client's runtime: {error}"),
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<crate::Client>();
        let (opened, client) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let carry = move || {
            // Dropped last, when the connections are closed.
            let _end: mpsc::Sender<()> = end;
            let runtime = runtime;
            runtime.block_on(async {
                let _ = opened.send(open.await);
                if let Ok(client) = stopped.await {
                    client.shutdown().await;
                }
            });
        };
        let builder = thread::Builder::new().name("lockkeeper".to_owned());
        let carrier = builder.spawn(carry).map_err(no_thread)?.thread().id();
        let client = client.recv().map_err(|_| Error::Closed { lock: None })??;
        let (stop, ended) = (Some(stop), std::sync::Mutex::new(ended));
        let inner = Inner { client, runtime: handle, carrier, stop, ended };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Lists and inspects the locks of the store.
    pub fn inspector(&self) -> Inspector {
        Inspector::new(self, self.inner.client.inspector())
    }

    /// Looks for risks to locks on this store.
    ///
    /// # Errors
    /// See [`crate::Client::check`].
    pub fn check(&self) -> Result<crate::Report> {
        self.wait(self.inner.client.check())
    }

    /// See [`crate::Client::shutdown`].
    pub fn shutdown(&self) {
        self.wait(self.inner.client.shutdown());
    }

    /// Acquires nothing more, waits for the guards of all threads, for at most `limit`, and shuts down. See
    /// [`crate::Client::drain`].
    pub fn drain(&self, limit: Duration) -> bool {
        self.wait(self.inner.client.drain(limit))
    }

    /// See [`crate::Client::abandon`].
    pub fn abandon(&self) {
        self.inner.client.abandon();
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.inner.runtime.block_on(work)
    }

    fn thread(&self) -> Owner {
        self.inner.client.owner_numbered(thread_number())
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $method:ident: $Type:ident;)+) => {
        impl Client {
            $($(#[$doc])*
            pub fn $method(&self, name: impl AsRef<[u8]>) -> $Type {
                $Type::new(self, self.inner.client.$method(name))
            })+
        }
    };
}

handles! {
    /// The reentrant lock of this name.
    lock: Lock;
    /// The plain mutex of this name.
    mutex: Mutex;
    /// The fair lock of this name.
    fair_lock: FairLock;
    /// The lock of this name that issues tokens.
    fenced_lock: FencedLock;
    /// The lock of this name whose waiters poll.
    spin_lock: SpinLock;
    /// The read/write lock of this name.
    rw_lock: RwLock;
    /// The semaphore of this name.
    semaphore: Semaphore;
    /// The semaphore of this name whose permits have ids and leases.
    permit_semaphore: PermitSemaphore;
    /// The count-down latch of this name.
    count_down_latch: CountDownLatch;
}

/// A number of the calling thread that no other thread of the process ever has.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}
