//! A file for the processes of one host: the model inside a SQLite database, one transaction for each
//! request.
//!
//! One thread per client does all of it, because SQLite blocks (`worker`). Leases count by the time since
//! the machine was started (`time`), so that no setting of a clock moves them. Waiters in other processes
//! get messages through the file (`wakes`), and the kernel wakes them up (`pipe`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::LockName;
use crate::backend::subscriptions::{Edge, Subscriptions};
use crate::backend::{
    Acquire, Answer, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, Fault, Finding,
    List, LockInfo, Page, Release, Released, Renew, Renewed, Resource, Subscription, Topic, Ttl,
};
use crate::error::{Error, Phase, Result as ClientResult};
use crate::options::ClientOptions;
use db::{Db, OTHERS_WRITE};
use path::Location;
use work_queue::{Order, WorkQueue};

#[cfg(test)]
#[path = "../../tests/file/agreement.rs"]
mod agreement;
mod boot;
mod busy_handler;
mod check;
mod db;
mod fault;
mod list;
mod path;
mod pipe;
mod requests;
mod rows;
mod session;
mod sweep;
mod time;
mod waiters;
mod wakes;
mod work_queue;
mod worker;
mod write_queue;

/// A file as a store.
#[derive(Clone, Debug)]
pub struct File {
    inner: Arc<FileInner>,
}

#[derive(Debug)]
struct FileInner {
    orders: Orders,
    hub: Subscriptions,
    /// The path, without symbolic links.
    identity: Arc<str>,
    response_timeout: Duration,
}

/// The queue of a thread, which ends when this is dropped: with the client, or if the caller is cancelled
/// while the store is being opened.
#[derive(Debug)]
struct Orders(Arc<WorkQueue>);

impl Drop for Orders {
    fn drop(&mut self) {
        self.0.close(None);
    }
}

/// A database that is open in this process.
///
/// SQLite keeps the state of its file locks in the memory of the process. A forked child inherits
/// that state without the locks, and mutexes that no thread of the child will unlock. A file that
/// it opened could block forever, or be damaged.
struct InUse;

/// The number of files that a process has open: the process id in the upper half, the number in the
/// lower, because both must change atomically.
static USERS: AtomicU64 = AtomicU64::new(0);

impl InUse {
    /// # Errors
    /// Fails in a forked child whose parent had a file open when it forked.
    fn begin() -> Result<Self, Fault> {
        if !count_in(&USERS, std::process::id()) {
            let detail = "this process was forked while its parent had a file of locks open, and SQLite \
                          does not work in such a child: start the child with exec, or close the client \
                          before the fork";
            return Err(Fault::invalid(detail.to_owned()));
        }
        Ok(Self)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        USERS.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Counts a file. Returns false if the files belong to another process.
fn count_in(users: &AtomicU64, pid: u32) -> bool {
    let counted = users.fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| {
        let (process, count) = (users >> 32, users & u64::from(u32::MAX));
        let own = process == u64::from(pid);
        (own || count == 0).then(|| (u64::from(pid) << 32) + count + 1)
    });
    counted.is_ok()
}

/// When a waiter tries again that could not write because others did, in milliseconds.
const CROWDED: u64 = 200;

/// The thread answers in time even if other processes block it. After this much more time, the disk
/// does not respond.
const STUCK: Duration = Duration::from_millis(500);

impl File {
    /// Opens a file of locks, or creates it. `path` is the part after `file:` in a URL.
    ///
    /// # Errors
    /// See [`Client::connect_with`](crate::Client::connect_with).
    pub async fn open(path: &str, options: &ClientOptions) -> ClientResult<Self> {
        Self::start(path, options)
            .await
            .map_err(|fault| Error::from_fault(fault, None, Phase::Connect, None))
    }

    async fn start(path: &str, options: &ClientOptions) -> Result<Self, Fault> {
        let path = Location::parse(path)?;
        let no_thread = |error: std::io::Error| Fault::Server {
            detail: format!("the thread of the file store cannot be started: {error}").into(),
        };
        let (work_queue, rings) = WorkQueue::new().map_err(no_thread)?;
        let orders = Orders(Arc::clone(&work_queue));
        let edges = Arc::clone(&work_queue);
        let hub = Subscriptions::new(move |topic, edge| {
            let topic = topic.clone();
            edges.push(match edge {
                Edge::First => Order::Listen(topic),
                Edge::Last => Order::Ignore(topic),
            });
        });
        let (opened, opening) = oneshot::channel();
        let limit = Instant::now() + options.connect_timeout;
        let work = (work_queue, rings);
        let listeners = hub.clone();
        let path = (path, options.read_only);
        thread::Builder::new()
            .name("lockkeeper-file".to_owned())
            .spawn(move || worker::run(work, listeners, path, limit, opened))
            .map_err(no_thread)?;
        let opened = timeout(options.connect_timeout + STUCK, opening).await;
        let path = opened.map_err(|_| stuck(false))?.map_err(|_| Fault::Closed)??;
        let inner = FileInner {
            orders,
            hub,
            identity: format!("file:{}", path.display()).into(),
            response_timeout: options.response_timeout,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Sends work to the thread and waits for its answer.
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Db) -> Result<T, Fault> + Send + 'static,
    ) -> Answer<T> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            let work = Box::new(move |db: Result<&mut Db, Fault>| {
                // The caller may have been cancelled.
                let _ = answer.send(db.and_then(work));
            });
            let limit = inner.response_timeout;
            if !inner.orders.0.push(Order::Do(Instant::now() + limit, work)) {
                return Err(Fault::Closed);
            }
            match timeout(limit + STUCK, answered).await {
                Ok(answered) => answered.unwrap_or(Err(Fault::Closed)),
                Err(_) => Err(stuck(true)),
            }
        })
    }
}

fn stuck(maybe_ran: bool) -> Fault {
    Fault::Unreachable { maybe_ran, detail: "the disk does not answer".into() }
}

impl Backend for File {
    fn capabilities(&self, _name: &LockName) -> Capabilities {
        // One thread executes requests in order: an earlier one has ended when a later one is
        // answered.
        Capabilities {
            takes_together: true,
            permission_advice: "let the user write to the file, to those beside it (-wal, -shm) and to \
                                their directory",
            ..Capabilities::new(true, Arc::clone(&self.inner.identity))
        }
    }

    fn acquire(&self, request: Acquire) -> Answer<Attempt> {
        let waits = request.waits;
        let asked = self.ask(move |db| db.acquire(&request));
        Box::pin(async move {
            match asked.await {
                // Other processes were writing: the waiter keeps waiting.
                Err(Fault::Refused { detail }) if waits && *detail == *OTHERS_WRITE => {
                    Ok(Attempt::busy(Some(Ttl::millis(CROWDED))))
                }
                answer => answer,
            }
        })
    }

    fn release(&self, request: Release) -> Answer<Released> {
        self.ask(move |db| db.release(&request))
    }

    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        let count = batch.len();
        let asked = self.ask(move |db| Ok(db.renew(&batch)));
        Box::pin(async move { asked.await.unwrap_or_else(|fault| vec![Err(fault); count]) })
    }

    fn adjust(&self, change: Change) -> Answer<Changed> {
        self.ask(move |db| db.adjust(&change))
    }

    fn inspect(&self, resource: Resource) -> Answer<LockInfo> {
        self.ask(move |db| db.inspect(&resource))
    }

    fn list(&self, request: List) -> Answer<Page> {
        self.ask(move |db| db.list(&request))
    }

    fn check(&self) -> Answer<Vec<Finding>> {
        self.ask(Db::check)
    }

    fn subscribe(&self, topic: Topic) -> Answer<Subscription> {
        let subscription = self.inner.hub.subscribe(topic);
        match self.inner.orders.0.is_closing() {
            true => Box::pin(std::future::ready(Err(Fault::Closed))),
            false => subscription,
        }
    }

    fn close(&self) -> BoxFuture<()> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let (done, ended) = oneshot::channel();
            inner.orders.0.close(Some(done));
            // Resolves when the sender is dropped.
            let _ = timeout(inner.response_timeout, ended).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn threads_that_begin_at_once_are_one_process() {
        for _ in 0..500 {
            let (users, together) = (AtomicU64::new(0), Barrier::new(4));
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        together.wait();
                        assert!(count_in(&users, 7));
                    });
                }
            });
            assert!(!count_in(&users, 8), "a child of it, with files open");
            users.fetch_sub(4, Ordering::AcqRel);
            assert!(count_in(&users, 8), "a child of it, with none");
        }
    }
}
