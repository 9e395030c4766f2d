//! What the thread of a file store is asked to do, and how it is woken for it.
//!
//! It sleeps in `poll(2)`, where it can hear of other processes, too; so it is woken by a byte in a pipe.
//! At most one is written for each of its sleeps: while it is awake a request costs no system call.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use super::db::Db;
use crate::backend::Fault;
use crate::backend::wake::Topic;

/// Work on the database, or on why there is none.
pub(super) type Work = Box<dyn FnOnce(Result<&mut Db, Fault>) + Send>;

/// What the thread may be asked for.
pub(super) enum Order {
    /// Do it, unless the deadline has passed.
    Do(Instant, Work),
    /// Somebody listens for this.
    Listen(Topic),
    /// Nobody listens for it any more.
    Ignore(Topic),
    /// Come to an end. What this carries is dropped then.
    Close(Option<oneshot::Sender<()>>),
}

#[derive(Debug)]
pub(super) struct Mailbox {
    inner: Mutex<Inner>,
    bell: PipeWriter,
    /// The thread is to end, and must not wait for anything any more.
    closing: AtomicBool,
    /// The process that has the thread.
    pid: u32,
}

#[derive(Default)]
struct Inner {
    orders: VecDeque<Order>,
    asleep: bool,
    closed: bool,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("orders", &self.orders.len()).finish_non_exhaustive()
    }
}

impl Mailbox {
    /// The mailbox, and where its bell rings.
    pub(super) fn new() -> io::Result<(Arc<Self>, PipeReader)> {
        let (rings, bell) = io::pipe()?;
        rustix::io::ioctl_fionbio(&rings, true)?;
        let (closing, pid) = (AtomicBool::new(false), std::process::id());
        Ok((Arc::new(Self { inner: Mutex::default(), bell, closing, pid }), rings))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands an order over; false if nobody takes orders any more, as in a forked process: that has no
    /// such thread, and must not touch what its parent has open.
    pub(super) fn push(&self, order: Order) -> bool {
        if self.pid != std::process::id() {
            return false;
        }
        let ring = {
            let mut inner = self.lock();
            if inner.closed {
                return false;
            }
            inner.orders.push_back(order);
            std::mem::take(&mut inner.asleep)
        };
        if ring {
            // The other end is there for as long as the thread is.
            let _ = (&self.bell).write_all(b"!");
        }
        true
    }

    /// Asks the thread to end soon.
    pub(super) fn close(&self, done: Option<oneshot::Sender<()>>) {
        self.closing.store(true, Ordering::Release);
        self.push(Order::Close(done));
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// No more orders; what is there is dropped, and whoever waits for it learns that.
    pub(super) fn shut(&self) {
        let orders = {
            let mut inner = self.lock();
            inner.closed = true;
            std::mem::take(&mut inner.orders)
        };
        drop(orders);
    }

    /// The next order.
    pub(super) fn next(&self) -> Option<Order> {
        self.lock().orders.pop_front()
    }

    /// The thread is about to sleep: from now on an order rings the bell. False if there is one.
    pub(super) fn doze(&self) -> bool {
        let mut inner = self.lock();
        inner.asleep = inner.orders.is_empty();
        inner.asleep
    }

    /// The thread is awake again, whatever woke it. A ring that comes only now wakes it once more, for
    /// nothing.
    pub(super) fn wake(&self, rings: &mut PipeReader) {
        self.lock().asleep = false;
        while rings.read(&mut [0; 16]).is_ok_and(|read| read == 16) {}
    }
}
