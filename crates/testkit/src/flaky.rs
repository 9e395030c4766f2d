//! A store whose answers are lost, late or withheld, call by call.
//!
//! It stands between an engine and a real store. The next calls that concern a lock or a counter
//! (acquire, release, renew, changes of a counter, looks at a latch, and subscriptions to wake-ups)
//! pass one [`Gate`] each, in the order in which they are first polled; all others, and whatever
//! comes after the script has run out, go straight through.
//!
//! It also keeps books on the promise that an engine makes to a store: a future that was polled is
//! polled to its end.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::backend::{
    Acquire, Answer, Attempt, Backend, BoxFuture, Change, Changed, Fault, Kind, LockInfo, Release,
    Released, Renew, Renewed, Resource, Subscription, Topic,
};
use tokio::sync::watch;

use crate::lock;

/// What happens to one call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Gate {
    /// It goes through.
    Ok,
    /// It never reaches the store, and the caller is told so.
    ErrBefore,
    /// The store answers that it does not serve for the time being, as when it is out of memory.
    Refuse,
    /// The store does it, but fewer replicas than asked for acknowledge it.
    Unacknowledge,
    /// The store does it, but the answer is lost: the caller knows nothing.
    ErrAfter,
    /// Half of this passes before the store does it, and half before the caller hears of it.
    Slow(Duration),
    /// Nothing happens until [`Flaky::open`]; then it goes through.
    Never,
}

/// What a call asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verb {
    /// [`Backend::acquire`] of what nobody holds, or the owner itself.
    Acquire,
    /// [`Backend::acquire`] from another hold of the same client.
    HandOff,
    /// [`Backend::release`].
    Release,
    /// [`Backend::renew`].
    Renew,
    /// [`Backend::adjust`].
    Adjust,
    /// [`Backend::inspect`].
    Inspect,
    /// [`Backend::subscribe`] to the wake-ups of a lock or a counter.
    Subscribe,
    /// [`Backend::subscribe`] to what concerns a client as a whole.
    Listen,
}

const VERBS: usize = 8;

/// See the module. Clones and clients share the script and the books.
#[derive(Clone, Debug)]
pub struct Flaky {
    inner: Arc<dyn Backend>,
    books: Arc<Books>,
}

#[derive(Debug)]
struct Books {
    script: Mutex<VecDeque<Gate>>,
    /// How often the store was opened: a withheld call waits for the next time.
    opened: watch::Sender<u64>,
    calls: [AtomicU64; VERBS],
    outstanding: AtomicUsize,
    abandoned: Mutex<Vec<Verb>>,
}

impl Flaky {
    /// A decorator of `inner` without a script: everything goes through.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self {
            inner,
            books: Arc::new(Books {
                script: Mutex::default(),
                opened: watch::Sender::new(0),
                calls: Default::default(),
                outstanding: AtomicUsize::new(0),
                abandoned: Mutex::default(),
            }),
        }
    }

    /// Another store behind the same script and the same books.
    pub fn beside(&self, inner: Arc<dyn Backend>) -> Self {
        Self { inner, books: Arc::clone(&self.books) }
    }

    /// Itself as a store for [`Client::with_backend`](lockkeeper::Client::with_backend).
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.clone())
    }

    /// The gates of the next calls, in place of those that were left.
    pub fn script(&self, gates: impl IntoIterator<Item = Gate>) {
        *lock(&self.books.script) = gates.into_iter().collect();
    }

    /// Drops what is left of the script and lets go of every call that was withheld.
    pub fn open(&self) {
        lock(&self.books.script).clear();
        self.books.opened.send_modify(|times| *times += 1);
    }

    /// How many gates of the script were not reached.
    pub fn unreached(&self) -> usize {
        lock(&self.books.script).len()
    }

    /// How many calls of this kind were polled at least once.
    pub fn calls(&self, verb: Verb) -> u64 {
        self.books.calls[verb as usize].load(Ordering::SeqCst)
    }

    /// Calls that were polled and are not done.
    pub fn outstanding(&self) -> usize {
        self.books.outstanding.load(Ordering::SeqCst)
    }

    /// Calls that were polled and then dropped before they were done. Dropping a subscription
    /// undoes it, so that those are not counted.
    pub fn abandoned(&self) -> Vec<Verb> {
        lock(&self.books.abandoned).clone()
    }

    /// One call: `work` makes the request, `lost` the answer that stands for none.
    fn call<T: Send + 'static, W: Future<Output = T> + Send>(
        &self,
        verb: Verb,
        gated: bool,
        work: impl FnOnce(&dyn Backend) -> W + Send + 'static,
        lost: impl FnOnce(Fault) -> T + Send + 'static,
    ) -> BoxFuture<T> {
        let (inner, books) = (Arc::clone(&self.inner), Arc::clone(&self.books));
        Box::pin(async move {
            // Here and not before: a future that was never polled is no call.
            let entry = Entry::new(&books, verb);
            let gate = if gated { books.next() } else { Gate::Ok };
            let answer = pass(gate, &books, || work(&*inner), lost).await;
            entry.done();
            answer
        })
    }
}

async fn pass<T, W: Future<Output = T>>(
    gate: Gate,
    books: &Books,
    work: impl FnOnce() -> W,
    lost: impl FnOnce(Fault) -> T,
) -> T {
    match gate {
        Gate::Ok => work().await,
        Gate::ErrBefore => lost(unreachable(false)),
        Gate::Refuse => lost(Fault::Refused { detail: "the store is full".into() }),
        Gate::Unacknowledge => {
            drop(work().await);
            lost(Fault::Unacknowledged { detail: "0 of 1 replicas".into() })
        }
        Gate::ErrAfter => {
            drop(work().await);
            lost(unreachable(true))
        }
        Gate::Slow(span) => {
            tokio::time::sleep(span / 2).await;
            let answer = work().await;
            tokio::time::sleep(span / 2).await;
            answer
        }
        Gate::Never => {
            let mut opened = books.opened.subscribe();
            // The sender is in the same books, so that it is there.
            let _ = opened.changed().await;
            work().await
        }
    }
}

fn unreachable(maybe_ran: bool) -> Fault {
    Fault::Unreachable { maybe_ran, detail: "the gate was shut".into() }
}

impl Books {
    fn next(&self) -> Gate {
        lock(&self.script).pop_front().unwrap_or(Gate::Ok)
    }
}

/// One call in the books, from its first poll on.
struct Entry<'a> {
    books: &'a Books,
    verb: Verb,
    done: bool,
}

impl<'a> Entry<'a> {
    fn new(books: &'a Books, verb: Verb) -> Self {
        books.calls[verb as usize].fetch_add(1, Ordering::SeqCst);
        books.outstanding.fetch_add(1, Ordering::SeqCst);
        Self { books, verb, done: false }
    }

    fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.books.outstanding.fetch_sub(1, Ordering::SeqCst);
        if !self.done && !matches!(self.verb, Verb::Subscribe | Verb::Listen) {
            lock(&self.books.abandoned).push(self.verb);
        }
    }
}

impl Backend for Flaky {
    crate::forward!(inner: capabilities list check close);

    fn acquire(&self, request: Acquire) -> Answer<Attempt> {
        let verb = match request.from {
            None => Verb::Acquire,
            Some(_) => Verb::HandOff,
        };
        self.call(verb, true, |store| store.acquire(request), Err)
    }

    fn release(&self, request: Release) -> Answer<Released> {
        self.call(Verb::Release, true, |store| store.release(request), Err)
    }

    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        let length = batch.len();
        let lost = move |fault| vec![Err(fault); length];
        self.call(Verb::Renew, true, |store| store.renew(batch), lost)
    }

    fn adjust(&self, change: Change) -> Answer<Changed> {
        let gated = matches!(change, Change::Count { .. } | Change::Permits { .. });
        self.call(Verb::Adjust, gated, |store| store.adjust(change), Err)
    }

    fn inspect(&self, resource: Resource) -> Answer<LockInfo> {
        // Whoever waits for a latch looks at it; anything else is looked at by tests.
        let gated = resource.kind == Kind::Latch;
        self.call(Verb::Inspect, gated, |store| store.inspect(resource), Err)
    }

    fn subscribe(&self, topic: Topic) -> Answer<Subscription> {
        let gated = !matches!(topic, Topic::Notice(_) | Topic::Reconnected);
        let verb = if gated { Verb::Subscribe } else { Verb::Listen };
        self.call(verb, gated, |store| store.subscribe(topic), Err)
    }
}
