//! What makes a client one for threads: the thread that carries its runtime, and which waits count as the
//! caller's. The API is in `blocking.rs`.
//!
//! **The owner of an acquire** is decided by the number of the [`wait`] in which it is polled. The calling
//! thread is the owner, so two tasks on it must not pass for one owner: an acquire that is awaited in async code
//! fails, on any executor and also inside of a `wait`, where several tasks may be joined. It must be polled by a
//! `wait` that was called after it.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread, ThreadId};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::LockName;
use crate::backend::unpoisoned;
use crate::error::{Error, Result};
use crate::fork::Origin;

/// The thread that carries the runtime of a client. Dropping it ends the client, and waits for that.
#[derive(Debug)]
pub(crate) struct Carrier {
    pub(crate) origin: Origin,
    pub(crate) thread: ThreadId,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    /// Disconnected when the thread has ended. The mutex only lets threads share it.
    pub(crate) ended: Mutex<mpsc::Receiver<()>>,
    pub(crate) response_timeout: Duration,
}

impl Drop for Carrier {
    fn drop(&mut self) {
        let Some(stop) = self.stop.take() else { return };
        if self.origin.is_forked() {
            // The thread is the parent's: to drop this would touch what both share.
            return std::mem::forget(stop);
        }
        let _ = stop.send(());
        // The thread must not wait for itself.
        if thread::current().id() != self.thread {
            let ended = unpoisoned(self.ended.get_mut());
            let _ = ended.recv_timeout(self.response_timeout);
        }
    }
}

/// The call of an acquire, on a client for threads.
pub(crate) struct Call {
    /// Keeps the client alive until the acquire has ended.
    _carrier: Arc<Carrier>,
    within: u64,
}

impl Call {
    pub(crate) fn new(carrier: Arc<Carrier>) -> Self {
        Self { _carrier: carrier, within: WAITING.get().number }
    }

    /// Fails unless it is polled by a `wait` of its own.
    pub(crate) fn ensure_waited_for(&self, lock: &LockName) -> Result<()> {
        ensure_may_wait(Some(lock))?;
        let number = WAITING.get().number;
        if number != 0 && number != self.within {
            return Ok(());
        }
        let detail = "its owner is the calling thread, which async code may share: \
                      write .wait(), or make the client with Client::connect";
        Err(Error::invalid(Some(lock), detail))
    }
}

/// The innermost `wait` of a thread.
#[derive(Clone, Copy)]
struct Waiting {
    /// Zero outside of all.
    number: u64,
    in_async_code: bool,
}

thread_local! {
    static WAITING: Cell<Waiting> = const { Cell::new(Waiting { number: 0, in_async_code: false }) };
}

/// Ends a `wait`, also by a panic.
struct Restore(Waiting);

impl Drop for Restore {
    fn drop(&mut self) {
        WAITING.set(self.0);
    }
}

const ASYNC: &str = "wait() would block the async runtime of this thread: \
                     write .await, on a client made with Client::connect";

/// Fails in a `wait` that would block an async runtime.
pub(crate) fn ensure_may_wait(lock: Option<&LockName>) -> Result<()> {
    if WAITING.get().in_async_code { Err(Error::invalid(lock, ASYNC)) } else { Ok(()) }
}

/// Polls on the calling thread until it is ready. In async code it polls once, in which a request of ours fails.
pub(crate) fn wait<F: Future>(work: F) -> F::Output {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut work = pin!(work);
    let in_async_code = is_in_async_code();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let _restore = Restore(WAITING.replace(Waiting { number, in_async_code }));
    let signal = Arc::new(Signal { woken: AtomicBool::new(false), thread: thread::current() });
    let waker = Waker::from(Arc::clone(&signal));
    loop {
        match work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending if in_async_code => panic!("{ASYNC}"),
            Poll::Pending => signal.wait(),
        }
    }
}

/// Wakes one `wait`. A `wait` within it parks the same thread, so the token of the thread is not enough.
struct Signal {
    woken: AtomicBool,
    thread: Thread,
}

impl Signal {
    fn wait(&self) {
        while !self.woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Whether a runtime of tokio's polls the caller. Such a poll has a budget, which is used up here. There is none
/// where tokio lets a thread block: in `spawn_blocking`, `block_in_place`, and where a runtime was only entered.
pub(crate) fn is_in_async_code() -> bool {
    let is_used_up = |_| {
        let spent = pin!(tokio::task::consume_budget());
        spent.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    };
    tokio::runtime::Handle::try_current().is_ok() && (0..BUDGET).any(is_used_up)
}

/// More than the budget of a poll, which is 128.
const BUDGET: u32 = 1 << 10;

/// A number of the calling thread that no other thread of the process ever has.
pub(crate) fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}
