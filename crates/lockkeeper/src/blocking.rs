//! The same locks for threads: no runtime in sight, and the calling thread is the owner.
//!
//! A client brings a thread of its own that carries the runtime, so that leases are renewed while
//! the caller computes or sleeps. As in Redisson, a [`Lock`] is re-entrant per thread.
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
//! there. Making a client does not panic, but blocks the task.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::config::ClientOptions;
use crate::error::{Error, LostReason, Result};
use crate::guard::Hold;
use crate::lock::{Holder, Remaining};
use crate::run::{Ran, RunError, finished};
use crate::{LockName, Owner, OwnerId};

/// A client for threads. Cloning it is cheap and gives the same client.
///
/// Handles and guards keep it alive. Dropping the last of them gives back what is left in the
/// background; [`shutdown`](Client::shutdown) waits for it.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    client: crate::Client,
    runtime: Handle,
    stop: Option<oneshot::Sender<crate::Client>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.client, f)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(self.client.clone());
        }
    }
}

impl Client {
    /// See [`crate::Client::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, ClientOptions::new())
    }

    /// See [`crate::Client::connect_with`].
    ///
    /// # Errors
    /// As there.
    pub fn connect_with(url: &str, options: ClientOptions) -> Result<Self> {
        let url = url.to_owned();
        Self::start(async move { crate::Client::connect_with(&url, options).await })
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
    /// client lives: leases must be renewed while nobody calls.
    fn start(open: impl Future<Output = Result<crate::Client>> + Send + 'static) -> Result<Self> {
        let no_thread = |error: std::io::Error| Error::Invalid {
            lock: None,
            detail: format!("no thread for the client's runtime: {error}"),
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<crate::Client>();
        let (opened, client) = std::sync::mpsc::channel();
        let carry = move || {
            runtime.block_on(async {
                let _ = opened.send(open.await);
                if let Ok(client) = stopped.await {
                    client.shutdown().await;
                }
            });
        };
        let builder = std::thread::Builder::new().name("lockkeeper".to_owned());
        builder.spawn(carry).map_err(no_thread)?;
        let client = client.recv().map_err(|_| Error::Closed { lock: None })??;
        let inner = Inner { client, runtime: handle, stop: Some(stop) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The re-entrant lock of this name.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        Lock { client: self.clone(), lock: self.inner.client.lock(name) }
    }

    /// The plain mutex of this name.
    pub fn mutex(&self, name: impl AsRef<[u8]>) -> Mutex {
        Mutex { client: self.clone(), lock: self.inner.client.mutex(name) }
    }

    /// See [`crate::Client::shutdown`].
    pub fn shutdown(&self) {
        self.wait(self.inner.client.shutdown());
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.inner.runtime.block_on(work)
    }

    fn thread(&self) -> Owner {
        self.inner.client.owner_numbered(thread_number())
    }

    fn guard(&self, guard: crate::Guard) -> Guard {
        Guard { client: self.clone(), guard }
    }
}

/// A number of the calling thread that no other thread of the process ever has.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

/// How a lock is to be acquired.
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    lease: Option<Duration>,
    renewed: Option<Duration>,
    wait: Option<Duration>,
}

/// The methods that every lock handle has; `$with` makes the async handle to ask.
macro_rules! blocking_lock {
    ($Type:ident, $Request:ident, $Async:ty, $with:expr) => {
        impl $Type {
            /// The name, prefix included.
            pub fn name(&self) -> &LockName {
                self.lock.name()
            }

            /// Waits until the lock is held; the watchdog keeps it for as long as the guard lives.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::lock`].")]
            pub fn lock(&self) -> Result<Guard> {
                self.request().lock()
            }

            /// One attempt; busy is `Ok(None)`.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::try_lock`].")]
            pub fn try_lock(&self) -> Result<Option<Guard>> {
                self.request().try_lock()
            }

            /// A request with a fixed lease: `lock.lease(d).lock()?`.
            pub fn lease(&self, span: Duration) -> $Request<'_> {
                self.request().lease(span)
            }

            /// A request with a lease of its own that the watchdog renews.
            pub fn renewed(&self, span: Duration) -> $Request<'_> {
                self.request().renewed(span)
            }

            /// A request that waits for at most so long: `lock.wait(d).try_lock()?`.
            pub fn wait(&self, span: Duration) -> $Request<'_> {
                self.request().wait(span)
            }

            fn request(&self) -> $Request<'_> {
                $Request { lock: self, settings: Settings::default() }
            }

            /// Waits for the lock, runs `work`, releases. Work on a thread cannot be stopped: look
            /// at [`Hold::is_lost`] in it.
            ///
            /// # Errors
            /// See [`RunError`].
            pub fn run<T>(&self, work: impl FnOnce(Hold) -> T) -> Result<Ran<T>, RunError<T>> {
                let started = Instant::now();
                let guard = self.lock().map_err(RunError::Acquire)?;
                guard.run(started, work)
            }

            /// Runs `work` under the lock if it is free, otherwise answers `Ok(None)` at once.
            ///
            /// # Errors
            /// See [`RunError`].
            pub fn try_run<T>(
                &self,
                work: impl FnOnce(Hold) -> T,
            ) -> Result<Option<Ran<T>>, RunError<T>> {
                let started = Instant::now();
                match self.try_lock().map_err(RunError::Acquire)? {
                    None => Ok(None),
                    Some(guard) => guard.run(started, work).map(Some),
                }
            }

            /// Whether anybody holds it, as the store says.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::is_locked`].")]
            pub fn is_locked(&self) -> Result<bool> {
                self.client.wait(self.lock.is_locked())
            }

            /// How long it stands if nobody renews it.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::is_locked`].")]
            pub fn remaining(&self) -> Result<Remaining> {
                self.client.wait(self.lock.remaining())
            }

            /// Who holds it.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::is_locked`].")]
            pub fn holder(&self) -> Result<Option<Holder>> {
                self.client.wait(self.lock.holder())
            }

            /// Takes the lock away from whoever holds it; true if anybody did.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::force_unlock`].")]
            pub fn force_unlock(&self) -> Result<bool> {
                self.client.wait(self.lock.force_unlock())
            }

            /// [`force_unlock`](Self::force_unlock) with a reason, which the holder gets to read.
            ///
            /// # Errors
            #[doc = concat!("See [`crate::", stringify!($Type), "::force_unlock`].")]
            pub fn force_unlock_because(&self, reason: impl Into<String>) -> Result<bool> {
                self.client.wait(self.lock.force_unlock_because(reason))
            }
        }

        impl $Request<'_> {
            #[doc = concat!("See [`", stringify!($Type), "::lease`].")]
            pub fn lease(mut self, span: Duration) -> Self {
                self.settings.lease = Some(span);
                self
            }

            #[doc = concat!("See [`", stringify!($Type), "::renewed`].")]
            pub fn renewed(mut self, span: Duration) -> Self {
                self.settings.renewed = Some(span);
                self
            }

            #[doc = concat!("See [`", stringify!($Type), "::wait`].")]
            pub fn wait(mut self, span: Duration) -> Self {
                self.settings.wait = Some(span);
                self
            }

            /// Waits until the lock is held.
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($Type), "::lock`]; [`Invalid`](Error::Invalid)")]
            /// with a wait limit, which goes with `try_lock`.
            pub fn lock(self) -> Result<Guard> {
                if self.settings.wait.is_some() {
                    let detail = "a wait limit goes with try_lock, not with lock";
                    return Err(Error::invalid(Some(self.lock.name()), detail));
                }
                let lock: $Async = $with(self.lock);
                let mut request = lock.lock();
                if let Some(span) = self.settings.lease {
                    request = request.lease(span);
                }
                if let Some(span) = self.settings.renewed {
                    request = request.renewed(span);
                }
                let client = &self.lock.client;
                Ok(client.guard(client.wait(request.into_future())?))
            }

            /// One attempt, or with a wait limit as many as fit; busy is `Ok(None)`.
            ///
            /// # Errors
            #[doc = concat!("See [`", stringify!($Type), "::try_lock`].")]
            pub fn try_lock(self) -> Result<Option<Guard>> {
                let lock: $Async = $with(self.lock);
                let mut request = lock.try_lock();
                if let Some(span) = self.settings.wait {
                    request = request.wait(span);
                }
                if let Some(span) = self.settings.lease {
                    request = request.lease(span);
                }
                if let Some(span) = self.settings.renewed {
                    request = request.renewed(span);
                }
                let client = &self.lock.client;
                Ok(client.wait(request.into_future())?.map(|guard| client.guard(guard)))
            }
        }
    };
}

/// The re-entrant lock; the calling thread is the owner. See [`crate::Lock`].
#[derive(Clone, Debug)]
pub struct Lock {
    client: Client,
    lock: crate::Lock,
}

/// A request for a [`Lock`].
#[derive(Clone, Copy, Debug)]
#[must_use = "does nothing until lock or try_lock is called"]
pub struct LockRequest<'a> {
    lock: &'a Lock,
    settings: Settings,
}

blocking_lock!(Lock, LockRequest, crate::Lock, |this: &Lock| {
    this.lock.as_owner(&this.client.thread())
});

impl Lock {
    /// How often the calling thread holds it, as the store says.
    ///
    /// # Errors
    /// See [`crate::Lock::hold_count`].
    pub fn hold_count(&self) -> Result<u64> {
        self.client.wait(self.lock.hold_count(&self.client.thread()))
    }

    /// Whether the calling thread holds it, as the store says.
    ///
    /// # Errors
    /// See [`crate::Lock::is_held_by`].
    pub fn is_held_by_this_thread(&self) -> Result<bool> {
        Ok(self.hold_count()? > 0)
    }
}

/// The plain mutex. Not re-entrant: a thread that locks it twice waits for itself. See
/// [`crate::Mutex`].
#[derive(Clone, Debug)]
pub struct Mutex {
    client: Client,
    lock: crate::Mutex,
}

/// A request for a [`Mutex`].
#[derive(Clone, Copy, Debug)]
#[must_use = "does nothing until lock or try_lock is called"]
pub struct MutexRequest<'a> {
    lock: &'a Mutex,
    settings: Settings,
}

blocking_lock!(Mutex, MutexRequest, crate::Mutex, |this: &Mutex| this.lock.clone());

/// A lock that is held. Dropping it releases the lock in the background. See [`crate::Guard`].
#[derive(Debug)]
#[must_use = "if it is not kept, the lock is released at once"]
pub struct Guard {
    /// After the guard in the order of dropping: it carries the runtime that releases it.
    guard: crate::Guard,
    client: Client,
}

impl Guard {
    /// See [`crate::Guard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<()> {
        let Self { client, guard } = self;
        client.wait(guard.release())
    }

    /// See [`crate::Guard::leave_for`].
    ///
    /// # Errors
    /// As there.
    pub fn leave_for(self, span: Duration) -> Result<()> {
        let Self { client, guard } = self;
        client.wait(guard.leave_for(span))
    }

    /// See [`crate::Guard::reenter`].
    ///
    /// # Errors
    /// As there.
    pub fn reenter(&self) -> Result<Guard> {
        let guard = self.client.wait(self.guard.reenter().into_future())?;
        Ok(self.client.guard(guard))
    }

    /// See [`crate::Guard::extend`].
    ///
    /// # Errors
    /// As there.
    pub fn extend(&self, span: Duration) -> Result<()> {
        self.client.wait(self.guard.extend(span))
    }

    fn run<T>(self, started: Instant, work: impl FnOnce(Hold) -> T) -> Result<Ran<T>, RunError<T>> {
        let granted = Instant::now();
        let output = work(self.hold());
        let (waited, held) = (granted - started, granted.elapsed());
        let reason = self.guard.lease().lost_reason();
        finished(self.release(), reason, Ran { output, waited, held })
    }

    /// See [`crate::Guard::hold`].
    pub fn hold(&self) -> Hold {
        self.guard.hold()
    }

    /// The name of the lock, prefix included.
    pub fn name(&self) -> &LockName {
        self.guard.name()
    }

    /// See [`crate::Guard::owner_id`].
    pub fn owner_id(&self) -> OwnerId {
        self.guard.owner_id()
    }

    /// See [`crate::Guard::hold_count`].
    pub fn hold_count(&self) -> u32 {
        self.guard.hold_count()
    }

    /// See [`crate::Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// See [`crate::Guard::is_lost`].
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// Waits for at most `span` for the lock to be lost; the reason, if it was.
    pub fn wait_lost(&self, span: Duration) -> Option<LostReason> {
        let lost = self.guard.lost();
        self.client.wait(async move { tokio::time::timeout(span, lost).await.ok() })
    }
}
