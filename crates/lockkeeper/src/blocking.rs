//! Locks for threads: without a runtime, and the calling thread is the owner.
//!
//! ```
//! use lockkeeper::blocking::{self, Wait};
//!
//! # fn main() -> lockkeeper::Result<()> {
//! let client = blocking::memory(); // or blocking::connect("redis://127.0.0.1:6379")?
//! let lock = client.lock("orders:42");
//! let guard = lock.lock().wait()?;
//! let again = lock.lock().wait()?; // the same thread: re-entered, as in Redisson
//! assert_eq!(lock.hold_count(&blocking::this_thread(&client)).wait()?, 2);
//! again.release().wait()?;
//! guard.release().wait()?;
//! # Ok(()) }
//! ```
//!
//! The [`Client`] is the same as in async code, and so are its handles and guards: [`wait`](Wait::wait) in place
//! of `.await`. A thread of its own carries the runtime, so that leases are renewed while the caller computes or
//! sleeps.
//!
//! **The owner** of [`Lock`](crate::Lock), [`FairLock`](crate::FairLock), [`FencedLock`](crate::FencedLock)
//! and [`RwLock`](crate::RwLock) is the thread that calls `lock`, `try_lock` or `run`,
//! unless the handle has another one ([`as_owner`](crate::Lock::as_owner)). [`this_thread`] names it for
//! `hold_count`. A guard may be released by another thread. A [`MultiLock`](crate::MultiLock) and
//! what is not reentrant is held by its guard: a thread that asks for it again waits.
//!
//! **Dropping the last handle or guard waits** until everything is released, for at most one
//! [response timeout](crate::ClientOptions::response_timeout): a program whose `main` drops its guards and clients
//! leaves no lock held. What is never dropped is not released at the end of the program: guards and clients in a
//! `static`, in a thread that is still running, or on the stack when [`std::process::exit`] is called. There, release
//! the guard or call [`Client::shutdown`].
//!
//! # Work under a lock
//! Work on a thread cannot be stopped when the lock is lost. Check [`Hold::is_lost`](crate::Hold::is_lost) in it,
//! which costs no request, or let another thread wait for the loss:
//!
//! ```
//! use lockkeeper::blocking::{self, Wait};
//!
//! # fn main() -> lockkeeper::Result<()> {
//! let lock = blocking::memory().lock("orders:42");
//! let ran = lock
//!     .run(async |hold| {
//!         let lost = hold.lost();
//!         std::thread::spawn(move || println!("stop: {}", lost.wait())); // at the latest when it is released
//!         (0..3).take_while(|_part| !hold.is_lost()).count()
//!     })
//!     .wait()?;
//! assert_eq!(ran.output, 3);
//! # Ok(()) }
//! ```
//!
//! To wait for a loss with a limit, send it over a channel and call
//! [`recv_timeout`](std::sync::mpsc::Receiver::recv_timeout).
//!
//! # Async code
//! Two tasks on one thread must not pass for one owner: **an acquire of a client made here fails with
//! [`Invalid`](Error::Invalid) where it is awaited**, also in an async block that is waited for. Write `.wait()`
//! there, as in `run(async |hold| work(&hold))` whose `work` acquires further locks. Everything else may be awaited.
//!
//! `wait` never blocks a tokio runtime that polls its caller: see [`Wait::wait`]. On the threads of
//! `tokio::task::spawn_blocking` it waits.

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::carrier::{self, Carrier};
use crate::error::{Error, Result};
use crate::fork::Origin;
use crate::options::ClientOptions;
use crate::{Client, Owner};

/// Opens a store, by any URL of [`Client::connect_with`], with the default settings.
///
/// # Errors
/// As [`connect_with`].
pub fn connect(url: impl AsRef<str>) -> Result<Client> {
    connect_with(url, ClientOptions::new())
}

/// Opens a store, by any URL of [`Client::connect_with`].
///
/// # Errors
/// As there; [`Invalid`](Error::Invalid) in async code, because it waits.
pub fn connect_with(url: impl AsRef<str>, options: ClientOptions) -> Result<Client> {
    if carrier::is_in_async_code() {
        let detail = "blocking::connect would block the async runtime of this thread: \
                      write Client::connect(…).await";
        return Err(Error::invalid(None, detail));
    }
    let url = url.as_ref().to_owned();
    start(async move { Client::connect_with(&url, options).await })
}

/// Makes a client on a new embedded store: for tests, examples, and locks within one process.
///
/// # Panics
/// If the operating system grants no thread.
pub fn memory() -> Client {
    start(async { Ok(Client::memory()) }).expect("an embedded store needs nothing but a thread")
}

/// The calling thread as an owner of locks of this client: `lock.hold_count(&this_thread(&client)).wait()?`.
pub fn this_thread(client: &Client) -> Owner {
    client.core().this_thread()
}

/// Waits for futures on a thread, without a runtime. The futures of this crate run on any thread; others may
/// need the runtime of their own.
pub trait Wait: Future {
    /// Waits until the future is ready, and returns its output. The thread sleeps meanwhile.
    ///
    /// # Panics
    /// In async code it never waits: a request of this crate then fails with [`Invalid`](Error::Invalid), and a
    /// future that is not ready at once panics, `lost()` and `shutdown()` for example. Both say to write `.await`.
    fn wait(self) -> Self::Output
    where
        Self: Sized,
    {
        carrier::wait(self)
    }
}

impl<F: Future> Wait for F {}

/// Opens the client on a thread of its own, which carries the runtime for as long as there is a client, handle,
/// guard or pending acquire: leases must be renewed while no method is called.
fn start(open: impl Future<Output = Result<Client>> + Send + 'static) -> Result<Client> {
    let no_thread = |error: io::Error| {
        Error::invalid(None, format!("no thread for the client's runtime: {error}"))
    };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
    let (stop, stopped) = oneshot::channel();
    let (opened, client) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let carry = move || {
        // Dropped last, when the connections are closed.
        let _end: mpsc::Sender<()> = end;
        let runtime = runtime;
        runtime.block_on(async {
            let client = open.await;
            let core = client.as_ref().ok().map(|client| Arc::clone(client.core()));
            let _ = opened.send(client);
            if let Some(core) = core
                && stopped.await.is_ok()
            {
                core.shutdown().await;
            }
        });
    };
    let thread = thread::Builder::new().name("lockkeeper".to_owned()).spawn(carry);
    let thread = thread.map_err(no_thread)?.thread().id();
    let client = client.recv().map_err(|_| Error::Closed { lock: None })??;
    let response_timeout = client.core().options.response_timeout;
    let (stop, ended) = (Some(stop), Mutex::new(ended));
    Ok(client.carried_by(Carrier { origin: Origin::here(), thread, stop, ended, response_timeout }))
}
