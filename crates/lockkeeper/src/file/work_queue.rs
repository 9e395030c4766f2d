//! What the thread of a file store is asked to do, and how it is woken for it.
//!
//! It sleeps in `poll(2)`, where another process can wake it up, too; so it is woken by a byte in a pipe.
//! At most one is written for each of its sleeps: while it is awake a request costs no system call.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::oneshot;

use super::db::Db;
use crate::backend::Fault;
use crate::backend::locked;
use crate::backend::subscriptions::Topic;
use crate::fork::Origin;

/// Work on the database, or on the reason why there is none.
pub(super) type Work = Box<dyn FnOnce(Result<&mut Db, Fault>) + Send>;

pub(super) enum Order {
    /// Do the work, unless the deadline has passed.
    Do(Instant, Work),
    /// Listen for this topic.
    Listen(Topic),
    /// Stop listening for this topic.
    Ignore(Topic),
    /// End. The sender is dropped when the thread has ended.
    Close(Option<oneshot::Sender<()>>),
}

#[derive(Debug)]
pub(super) struct WorkQueue {
    state: Mutex<QueueState>,
    bell: PipeWriter,
    /// The thread must end and not wait any more.
    closing: Arc<AtomicBool>,
    /// The process that runs the thread.
    origin: Origin,
}

#[derive(Default)]
struct QueueState {
    orders: VecDeque<Order>,
    asleep: bool,
    closed: bool,
}

impl std::fmt::Debug for QueueState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueState").field("orders", &self.orders.len()).finish_non_exhaustive()
    }
}

impl WorkQueue {
    /// Creates the work queue and the pipe that wakes up the thread.
    pub(super) fn new() -> io::Result<(Arc<Self>, PipeReader)> {
        let (rings, bell) = io::pipe()?;
        rustix::io::ioctl_fionbio(&rings, true)?;
        let (closing, origin) = (Arc::default(), Origin::here());
        Ok((Arc::new(Self { state: Mutex::default(), bell, closing, origin }), rings))
    }

    /// Queues an order; returns false if the thread has ended, or in a forked child, which has no
    /// such thread and must not touch the files of its parent.
    pub(super) fn push(&self, order: Order) -> bool {
        if self.origin.is_forked() {
            return false;
        }
        let ring = {
            let mut inner = locked(&self.state);
            if inner.closed {
                return false;
            }
            inner.orders.push_back(order);
            std::mem::take(&mut inner.asleep)
        };
        if ring {
            // The other end is open for as long as the thread runs.
            let _ = (&self.bell).write_all(b"!");
        }
        true
    }

    /// Asks the thread to end soon.
    pub(super) fn close(&self, done: Option<oneshot::Sender<()>>) {
        self.closing.store(true, Ordering::Release);
        self.push(Order::Close(done));
    }

    /// Returns the flag that [`close`](WorkQueue::close) sets.
    pub(super) fn closing(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.closing)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Accepts no more orders and drops the queued ones, which fails their callers.
    pub(super) fn shut(&self) {
        let orders = {
            let mut inner = locked(&self.state);
            inner.closed = true;
            std::mem::take(&mut inner.orders)
        };
        drop(orders);
    }

    pub(super) fn next(&self) -> Option<Order> {
        locked(&self.state).orders.pop_front()
    }

    /// Announces that the thread is about to sleep, so that an order wakes it up. False if there is
    /// one.
    pub(super) fn doze(&self) -> bool {
        let mut inner = locked(&self.state);
        inner.asleep = inner.orders.is_empty();
        inner.asleep
    }

    /// Records that the thread is awake. A byte that arrives later wakes it up once more, without
    /// effect.
    pub(super) fn wake(&self, rings: &mut PipeReader) {
        locked(&self.state).asleep = false;
        while rings.read(&mut [0; 16]).is_ok_and(|read| read == 16) {}
    }
}
