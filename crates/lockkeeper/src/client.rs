//! The client: the connection to a store, from which locks are made.

#[cfg(feature = "redis")]
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, Kind};
use crate::carrier::Carrier;
use crate::engine::Core;
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::lock::{Lock, Mutex};
use crate::memory::Memory;
use crate::options::{Backoff, ClientOptions};
#[cfg(feature = "redis")]
use crate::redis::{Redis, quorum::Quorum, url::members};
#[cfg(feature = "redis")]
use crate::redis_options::Acknowledgement;
use crate::{
    CountDownLatch, FairLock, FencedLock, Inspector, Owner, PermitSemaphore, RwLock, Semaphore,
};

/// A connection to a store of locks. Cloning it is cheap and gives the same client.
///
/// It runs on the tokio runtime on which it was made: if that ends, every lock is lost
/// ([`Closed`](crate::LostReason::Closed)). Its futures work on any executor while that runtime
/// runs. Handles and guards keep it alive. Dropping the last of them releases the remaining locks
/// in the background, and the runtime may end before that is done; [`shutdown`](Client::shutdown)
/// waits for it.
///
/// One that was made by [`blocking`](crate::blocking) brings a runtime of its own, and its handles and guards are
/// for threads.
///
/// In a forked child it is closed: its guards are lost, its requests fail with
/// [`Closed`](Error::Closed), and dropping it does nothing. Make another one there.
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
    _carrier: Option<Arc<Carrier>>,
}

impl Client {
    /// Opens a store with the default settings. See [`connect_with`](Client::connect_with).
    ///
    /// # Errors
    /// As [`connect_with`](Client::connect_with).
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::connect_with(url, ClientOptions::new()).await
    }

    /// Opens a store. In a URL of Redis servers, users, passwords and the name of a master are percent-encoded; a
    /// password can be given [beside the URL](crate::RedisOptions::password), as it is.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `memory:` | a new embedded store |
    /// | `memory:NAME` | an embedded store that is shared within the process; it ends, with all that is in it, when its last client was dropped |
    /// | `file:PATH`, `file:///PATH` | a file for the processes of this host (feature `file`); the path is taken as it is written |
    /// | `redis://[user:password@]host[:port][/db]` | a Redis server |
    /// | `rediss://…` | the same over TLS (feature `tls`) |
    /// | `redis+sentinel://[user:password@]host[:port],host[:port]/MASTER-NAME[/db]` | the primary that these sentinels know, followed through failovers; `?sentinel_user=U&sentinel_password=P` log in to the sentinels, `sentinel_tls=no` is for sentinels without TLS |
    /// | `redis+replicated://[user:password@]host[:port],host[:port][/db]` | the primary among these servers, found by their roles |
    /// | `redis+cluster://[user:password@]host[:port],host[:port]` | the Redis Cluster that has these nodes, and others; one that answers is enough: see [the manual](crate::manual::cluster) |
    /// | `quorum:redis://…,redis://…,redis://…` | independent Redis servers of which a majority decides: at least three, see [the manual](crate::manual::quorum) |
    /// | `redis+unix:///path[?db=N&user=U&pass=P]` | a Redis server on a Unix socket |
    ///
    /// # Errors
    /// [`Unreachable`](Error::Unreachable) if the server cannot be reached within the connect
    /// timeout, [`Denied`](Error::Denied) for a wrong password or a file that may not be written,
    /// [`Invalid`](Error::Invalid) for a URL or a setting that makes no sense, a file that is no
    /// place for locks, or a call outside of a tokio runtime. The password never appears in an error.
    pub async fn connect_with(url: impl AsRef<str>, options: ClientOptions) -> Result<Self> {
        let url = url.as_ref();
        Self::ready(&options)?;
        // A word without a colon is no scheme, and may be a password.
        let (scheme, rest) = url.split_once(':').unwrap_or_default();
        #[cfg(feature = "redis")]
        if matches!(options.redis.acknowledgement, Acknowledgement::By(..)) {
            let which = match scheme {
                "memory" | "file" => "an embedded store has",
                "quorum" => "members of a quorum have",
                _ => "",
            };
            if !which.is_empty() {
                let detail = format!("{which} no replicas that could acknowledge");
                return Err(Error::invalid(None, detail));
            }
        }
        // Boxed to keep the caller's future small.
        let backend: Arc<dyn Backend> = match scheme {
            "memory" => match rest.trim_start_matches("//") {
                "" => Memory::new(),
                name => Memory::named(name),
            },
            #[cfg(all(feature = "file", unix))]
            "file" => Arc::new(Box::pin(crate::file::File::open(rest, &options)).await?),
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
            | "redis+replicated" | "rediss+replicated" | "redis+cluster" | "rediss+cluster" => {
                Arc::new(Box::pin(Redis::connect(url, &options)).await?)
            }
            #[cfg(feature = "redis")]
            "quorum" => Arc::new(Box::pin(Quorum::connect(&members(rest), &options)).await?),
            _ => return Err(unknown(scheme)),
        };
        Ok(Self::on(backend, options))
    }

    /// Makes a client on a new embedded store: for tests, examples, and locks within one process.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn memory() -> Self {
        Self::on(Memory::new(), ClientOptions::new())
    }

    /// Makes a client on a custom store. See [`backend`](crate::backend).
    ///
    /// # Errors
    /// [`Invalid`](Error::Invalid) for a setting that makes no sense.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    #[cfg(feature = "unstable-backend")]
    pub fn with_backend(backend: Arc<dyn Backend>, options: ClientOptions) -> Result<Self> {
        options.validate()?;
        Ok(Self::on(backend, options))
    }

    /// Whether a client can be made with these settings, here.
    fn ready(options: &ClientOptions) -> Result<()> {
        options.validate()?;
        if tokio::runtime::Handle::try_current().is_ok() {
            return Ok(());
        }
        let detail = "a client is made on a tokio runtime, which carries its tasks; its futures then \
                      work on any executor";
        Err(Error::invalid(None, detail))
    }

    fn on(backend: Arc<dyn Backend>, options: ClientOptions) -> Self {
        Self { core: Core::start(backend, options), _carrier: None }
    }

    /// The reentrant lock of this name.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        Lock::new(self.handle(Kind::Lock, name.as_ref()))
    }

    /// The plain mutex of this name.
    pub fn mutex(&self, name: impl AsRef<[u8]>) -> Mutex {
        Mutex::new(self.handle(Kind::Mutex, name.as_ref()))
    }

    /// The fair lock of this name.
    pub fn fair_lock(&self, name: impl AsRef<[u8]>) -> FairLock {
        FairLock::new(self.handle(Kind::Fair, name.as_ref()))
    }

    /// The read/write lock of this name.
    pub fn rw_lock(&self, name: impl AsRef<[u8]>) -> RwLock {
        RwLock::new(self.handle(Kind::Write, name.as_ref()))
    }

    /// The lock of this name that issues fencing tokens.
    pub fn fenced_lock(&self, name: impl AsRef<[u8]>) -> FencedLock {
        let handle = self.handle(Kind::Lock, name.as_ref());
        FencedLock::new(Handle { fenced: true, ..handle })
    }

    /// The lock of this name whose waiters poll, as Redisson's `RSpinLock`: see [`Lock::polling`].
    pub fn spin_lock(&self, name: impl AsRef<[u8]>) -> Lock {
        self.lock(name).polling(Backoff::default())
    }

    /// The semaphore of this name.
    pub fn semaphore(&self, name: impl AsRef<[u8]>) -> Semaphore {
        Semaphore::new(self.handle(Kind::Semaphore, name.as_ref()))
    }

    /// The semaphore of this name whose permits have ids and leases.
    pub fn permit_semaphore(&self, name: impl AsRef<[u8]>) -> PermitSemaphore {
        PermitSemaphore::new(self.handle(Kind::Permits, name.as_ref()))
    }

    /// The count-down latch of this name.
    pub fn count_down_latch(&self, name: impl AsRef<[u8]>) -> CountDownLatch {
        CountDownLatch::new(self.handle(Kind::Latch, name.as_ref()))
    }

    /// Returns an inspector, which lists the locks of the store and their holders.
    pub fn inspector(&self) -> Inspector {
        Inspector::new(&self.core)
    }

    fn handle(&self, kind: Kind, name: &[u8]) -> Handle {
        Handle::new(&self.core, kind, name)
    }

    /// Makes a new owner, for which locks are reentrant: see [`Lock::as_owner`].
    pub fn new_owner(&self) -> Owner {
        Owner { client: self.core.id, number: fastrand::u64(..) }
    }

    /// The first part of the owner ids of this client in the store. For tests, as `backend`.
    #[cfg(feature = "unstable-backend")]
    #[doc(hidden)]
    pub fn id(&self) -> uuid::Uuid {
        self.core.id
    }

    /// How long this client's quorum still grants nothing, because it is used for the first time, or because too
    /// many members may have lost their data: see [the manual](crate::manual::quorum). `None` if a majority grants
    /// locks or too few members can be reached, and on every other store.
    pub fn quarantine(&self) -> Option<Duration> {
        #[cfg(feature = "redis")]
        if !self.core.is_closed() {
            let store: &dyn Any = &*self.core.backend;
            return store.downcast_ref::<Quorum>()?.quarantine();
        }
        None
    }

    /// Releases every lock, waits for the confirmation (for at most one response timeout), and
    /// closes the connections. Remaining guards are lost, and their release fails with
    /// [`Closed`](Error::Closed), as pending acquires do. Permits of a [`Semaphore`] are released,
    /// too, though the store does not record their holders.
    ///
    /// It ends work that is under way. To let it finish, use [`drain`](Client::drain).
    pub async fn shutdown(&self) {
        let work = async {
            self.core.shutdown().await;
            Ok(())
        };
        // Fails only if the runtime has ended, and the client with it.
        let _ = self.core.anywhere(work).await;
    }

    /// Shuts down once the locks that are held are released: acquires nothing more, waits for the guards, for
    /// at most `limit`, then does what [`shutdown`](Client::shutdown) does. Returns whether every guard was
    /// released, or lost, within `limit`.
    ///
    /// From the first poll on, every acquire fails with [`Closed`](Error::Closed), those that wait at once,
    /// and so does waiting for a latch. The guards are unaffected: they are renewed, and can be re-entered,
    /// extended, upgraded, downgraded and released; semaphores and latches can be changed.
    ///
    /// For a program that gets a signal to end. The limit is less than the time after which the program is
    /// killed (30 s in Kubernetes, 90 s under systemd), by at least one
    /// [response timeout](crate::ClientOptions::response_timeout).
    ///
    /// # Cancel safety
    /// If the future is dropped, the client acquires nothing more, and its guards remain. Drain it again, or
    /// shut it down.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn serve(client: lockkeeper::Client) {}
    /// # #[cfg(unix)]
    /// #[tokio::main]
    /// async fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     use std::time::Duration;
    ///     use tokio::signal::unix::{SignalKind, signal};
    ///
    ///     let client = lockkeeper::Client::connect("redis://127.0.0.1").await?;
    ///     let mut terminate = signal(SignalKind::terminate())?;
    ///     let service = tokio::spawn(serve(client.clone())); // its loop ends with `Error::Closed`
    ///     terminate.recv().await;
    ///     if !client.drain(Duration::from_secs(20)).await {
    ///         eprintln!("some work has lost its lock");
    ///     }
    ///     service.await?;
    ///     Ok(())
    /// }
    /// # #[cfg(not(unix))]
    /// # fn main() {}
    /// ```
    pub async fn drain(&self, limit: Duration) -> bool {
        let work = async { Ok(self.core.drain(limit).await) };
        // Fails only if the runtime has ended, and every lease with it.
        self.core.anywhere(work).await.unwrap_or(false)
    }

    /// Ends the client at once without a request to the store, as the death of the process would:
    /// guards are lost ([`Closed`](crate::LostReason::Closed)), and their locks stay held in the
    /// store until the leases expire, or for ever where there is no lease, as for a [`Semaphore`].
    ///
    /// For programs that must stop work that may outlast the release of its lock, or that cannot
    /// wait for a store that does not answer. Otherwise use [`shutdown`](Client::shutdown).
    pub fn abandon(&self) {
        self.core.abandon();
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Makes it one for threads.
    pub(crate) fn carried_by(self, carrier: Carrier) -> Self {
        let carrier = Arc::new(carrier);
        self.core.carry(&carrier);
        Self { _carrier: Some(carrier), ..self }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.core.id)
            .field("store", &self.core.backend)
            .finish_non_exhaustive()
    }
}

fn unknown(scheme: &str) -> Error {
    let is_of_redis = scheme == "quorum" || scheme.starts_with("redis");
    let needs = match scheme {
        "file" if cfg!(not(unix)) => Some("a Unix system"),
        "file" => Some("the feature \"file\" of lockkeeper"),
        _ => (is_of_redis && cfg!(not(feature = "redis")))
            .then_some("the feature \"redis\" of lockkeeper"),
    };
    if let Some(needs) = needs {
        return Error::invalid(None, format!("a URL with {scheme}: needs {needs}"));
    }
    let known = "memory:, file:, redis://, rediss://, redis+unix://, redis+sentinel://, \
                 redis+replicated://, redis+cluster:// and quorum:";
    // Only a certain scheme: anything else may contain a password.
    let plain = scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let what = if plain && !scheme.is_empty() { format!(" \"{scheme}:\"") } else { String::new() };
    let advice = match meant(&scheme.to_ascii_lowercase()) {
        Some(meant) => format!("did you mean {meant}://"),
        None => format!(
            "write redis://HOST:PORT for a server or file:PATH for a file; known are {known}"
        ),
    };
    Error::invalid(None, format!("unknown store{what}; {advice}"))
}

/// The scheme that was probably meant.
fn meant(scheme: &str) -> Option<String> {
    let kinds = [
        ("sentinel", "+sentinel"),
        ("cluster", "+cluster"),
        ("replica", "+replicated"),
        ("unix", "+unix"),
        ("socket", "+unix"),
    ];
    let found = kinds.iter().find(|(word, _)| scheme.contains(word)).map(|(_, kind)| *kind);
    let is_redis = ["redis", "valkey"].iter().any(|name| scheme.starts_with(name));
    let kind = found.or(is_redis.then_some(""))?;
    let is_tls = ["rediss", "valkeys"].iter().any(|name| scheme.starts_with(name));
    let tls = if is_tls && kind != "+unix" { "s" } else { "" };
    Some(format!("redis{tls}{kind}"))
}
