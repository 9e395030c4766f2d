//! A file for the processes of one host: the model inside a SQLite database, one transaction for each
//! request.
//!
//! One thread a client does all of it, because SQLite blocks (`worker`). Its leases go by the time since
//! the machine was started (`time`), so that nobody's clock moves them; waiters in other processes are
//! told through the file (`wakes`) and woken by the kernel (`bell`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::wake::{Edge, Hub};
use super::{
    Acquire, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, Fault, Finding, List,
    Page, Release, Released, Renew, Renewed, Resource, Snapshot, Subscription, Topic, Ttl,
};
use crate::config::ClientOptions;
use crate::error::{Error, Phase, Result as ClientResult};
use db::{Db, OTHERS_WRITE};
use mailbox::{Mailbox, Order};
use place::Place;

#[cfg(test)]
mod agreement;
mod bell;
mod boot;
mod check;
mod chores;
mod db;
mod fault;
mod line;
mod list;
mod mailbox;
mod patience;
mod place;
mod requests;
mod rows;
mod time;
mod waiters;
mod wakes;
mod worker;

/// A file as a store.
#[derive(Clone, Debug)]
pub struct File {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    mailbox: Arc<Mailbox>,
    hub: Hub,
    /// The path, without symbolic links.
    identity: Arc<str>,
    response_timeout: Duration,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.mailbox.close(None);
    }
}

/// A store that nobody has got yet: whoever asked for it may be gone when it is open.
struct Unopened(Option<Arc<Mailbox>>);

impl Unopened {
    fn opened(mut self) -> Option<Arc<Mailbox>> {
        self.0.take()
    }
}

impl Drop for Unopened {
    fn drop(&mut self) {
        if let Some(mailbox) = self.0.take() {
            mailbox.close(None);
        }
    }
}

/// A database that is open in this process.
///
/// SQLite keeps what it knows of locks on files in the memory of the process. A forked child inherits that
/// knowledge without the locks, and mutexes that no thread of the child will unlock: a file that it opened
/// could hang, or be damaged.
struct InUse;

static USERS: Users = Users(AtomicU64::new(0));

/// A process id, and below it how many databases are open there: in one number, because threads may open
/// their first ones at the same time.
struct Users(AtomicU64);

impl Users {
    /// Counts one more; false if they are another process's.
    fn add(&self, pid: u32) -> bool {
        let one_more = |now: u64| match now as u32 {
            0 => Some(u64::from(pid) << 32 | 1),
            _ => ((now >> 32) as u32 == pid).then_some(now + 1),
        };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok()
    }

    fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl InUse {
    /// # Errors
    /// In a forked child whose parent had a file open when it forked.
    fn begin() -> Result<Self, Fault> {
        if !USERS.add(std::process::id()) {
            let detail = "this process was forked while its parent had a file of locks open, and SQLite \
                          does not work in such a child: start the child with exec, or close the client \
                          before the fork";
            return Err(Fault::Invalid { detail: detail.to_owned() });
        }
        Ok(Self)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        USERS.remove();
    }
}

/// When a waiter tries again that was kept from writing by others, in milliseconds.
const CROWDED: u64 = 200;

/// The thread answers in time even when others are in its way. This much later it is the disk that does
/// not answer.
const STUCK: Duration = Duration::from_millis(500);

impl File {
    /// Opens a file of locks, or makes it. `path` is what follows `file:` in a URL.
    ///
    /// # Errors
    /// See [`Client::connect_with`](crate::Client::connect_with).
    pub async fn open(path: &str, options: &ClientOptions) -> ClientResult<Self> {
        Self::start(path, options)
            .await
            .map_err(|fault| Error::from_fault(fault, None, Phase::Connect, None))
    }

    async fn start(path: &str, options: &ClientOptions) -> Result<Self, Fault> {
        let path = Place::parse(path)?;
        let no_thread = |error: std::io::Error| Fault::Server {
            detail: format!("the thread of the file store cannot be started: {error}"),
        };
        let (mailbox, rings) = Mailbox::new().map_err(no_thread)?;
        let orders = Arc::clone(&mailbox);
        let hub = Hub::new(move |topic, edge| {
            let topic = topic.clone();
            orders.push(match edge {
                Edge::First => Order::Listen(topic),
                Edge::Last => Order::Ignore(topic),
            });
        });
        let (opened, opening) = oneshot::channel();
        let limit = Instant::now() + options.connect_timeout;
        let work = (Arc::clone(&mailbox), rings);
        let listeners = hub.clone();
        let path = (path, options.read_only);
        thread::Builder::new()
            .name("lockkeeper-file".to_owned())
            .spawn(move || worker::run(work, listeners, path, limit, opened))
            .map_err(no_thread)?;
        let unopened = Unopened(Some(mailbox));
        let opened = timeout(options.connect_timeout + STUCK, opening).await;
        let path = opened.map_err(|_| stuck(false))?.map_err(|_| Fault::Closed)??;
        let inner = Inner {
            mailbox: unopened.opened().ok_or(Fault::Closed)?,
            hub,
            identity: format!("file:{}", path.display()).into(),
            response_timeout: options.response_timeout,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Has the thread do something, and waits for its answer.
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Db) -> Result<T, Fault> + Send + 'static,
    ) -> BoxFuture<Result<T, Fault>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            let work = Box::new(move |db: Result<&mut Db, Fault>| {
                // Nobody may be there any more to hear it.
                let _ = answer.send(db.and_then(work));
            });
            let patience = inner.response_timeout;
            if !inner.mailbox.push(Order::Do(Instant::now() + patience, work)) {
                return Err(Fault::Closed);
            }
            match timeout(patience + STUCK, answered).await {
                Ok(answered) => answered.unwrap_or(Err(Fault::Closed)),
                Err(_) => Err(stuck(true)),
            }
        })
    }
}

fn stuck(maybe_ran: bool) -> Fault {
    Fault::Unreachable { maybe_ran, detail: "the disk does not answer".to_owned() }
}

impl Backend for File {
    fn capabilities(&self) -> Capabilities {
        // One thread does one request after the other: an earlier one is over when a later is answered.
        Capabilities::new(true, Arc::clone(&self.inner.identity)).taking_together().advising(
            "let the user write to the file, to those beside it (-wal, -shm) and to their directory",
        )
    }

    fn acquire(&self, request: Acquire) -> BoxFuture<Result<Attempt, Fault>> {
        let waits = request.waits;
        let asked = self.ask(move |db| db.acquire(&request));
        Box::pin(async move {
            match asked.await {
                // It was not this client's turn to write, but others write: a waiter waits on.
                Err(Fault::Refused { detail }) if waits && detail == OTHERS_WRITE => {
                    Ok(Attempt::Busy(Some(Ttl::Millis(CROWDED))))
                }
                answer => answer,
            }
        })
    }

    fn release(&self, request: Release) -> BoxFuture<Result<Released, Fault>> {
        self.ask(move |db| db.release(&request))
    }

    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        let count = batch.len();
        let asked = self.ask(move |db| Ok(db.renew(&batch)));
        Box::pin(async move { asked.await.unwrap_or_else(|fault| vec![Err(fault); count]) })
    }

    fn adjust(&self, change: Change) -> BoxFuture<Result<Changed, Fault>> {
        self.ask(move |db| db.adjust(&change))
    }

    fn inspect(&self, resource: Resource) -> BoxFuture<Result<Snapshot, Fault>> {
        self.ask(move |db| db.inspect(&resource))
    }

    fn list(&self, request: List) -> BoxFuture<Result<Page, Fault>> {
        self.ask(move |db| db.list(&request))
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Fault>> {
        self.ask(Db::check)
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<Result<Subscription, Fault>> {
        let hub = &self.inner.hub;
        let subscription = match topic {
            // A `0` that was said before must not open it.
            Topic::Latch(_) => hub.join_anew(topic.clone()),
            _ => hub.join(topic.clone()),
        };
        if self.inner.mailbox.is_closing() {
            return Box::pin(std::future::ready(Err(Fault::Closed)));
        }
        if topic == Topic::Reconnected {
            // Not of the file's making, so there is nothing to wait for.
            hub.confirm(&topic);
        }
        Box::pin(subscription.confirmed())
    }

    fn close(&self) -> BoxFuture<()> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let (done, ended) = oneshot::channel();
            inner.mailbox.close(Some(done));
            // Resolves when it is dropped.
            let _ = timeout(inner.response_timeout, ended).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_of_another_process_counts_until_it_is_closed() {
        let users = Users(AtomicU64::new(0));
        assert!(users.add(1) && users.add(1));
        users.remove();
        assert!(!users.add(2));
        users.remove();
        assert!(users.add(2) && !users.add(1));
    }

    #[test]
    fn threads_that_open_their_first_at_once_are_one_process() {
        let rounds: Vec<_> = (0..200_000).map(|_| Users(AtomicU64::new(0))).collect();
        let arrived = AtomicU64::new(0);
        let refused = || {
            let refused = (2..).step_by(2).zip(&rounds).filter(|(both, users)| {
                arrived.fetch_add(1, Ordering::AcqRel);
                while arrived.load(Ordering::Acquire) < *both {
                    thread::yield_now();
                }
                !users.add(1)
            });
            refused.count()
        };
        let refused = thread::scope(|scope| {
            let other = scope.spawn(refused);
            refused() + other.join().expect("it has ended")
        });
        assert_eq!(refused, 0);
    }
}
