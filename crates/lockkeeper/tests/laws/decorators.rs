//! Stores between the engine and a real one: one that counts, one whose wake-ups never come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockkeeper::LockName;
use lockkeeper::backend::{
    Acquire, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, Fault, Finding, List,
    Page, Release, Released, Renew, Renewed, Resource, Snapshot, Subscription, Topic,
};

/// Counts what is asked of the store beside it.
#[derive(Debug)]
pub(crate) struct Counting {
    pub(crate) acquires: AtomicU64,
    pub(crate) subscribes: AtomicU64,
    confirmed: Arc<AtomicU64>,
    announces: AtomicU64,
    deaf_to_words: AtomicBool,
    inner: Arc<dyn Backend>,
}

impl Counting {
    pub(crate) fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        let (acquires, subscribes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (announces, deaf_to_words) = (AtomicU64::new(0), AtomicBool::new(false));
        let confirmed = Arc::default();
        Arc::new(Self { acquires, subscribes, confirmed, announces, deaf_to_words, inner })
    }

    pub(crate) fn acquires(&self) -> u64 {
        self.acquires.load(Ordering::Relaxed)
    }

    pub(crate) fn subscribes(&self) -> u64 {
        self.subscribes.load(Ordering::Relaxed)
    }

    /// How many subscriptions stand, or have stood.
    pub(crate) fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Relaxed)
    }

    /// How often the client said who it is and what it holds.
    pub(crate) fn announces(&self) -> u64 {
        self.announces.load(Ordering::Relaxed)
    }

    /// From now on nobody hears that, nor is it answered.
    pub(crate) fn deaf_to_words(&self, on: bool) {
        self.deaf_to_words.store(on, Ordering::Relaxed);
    }
}

/// Subscribes to something else than it was asked to: the waiters are never told.
#[derive(Debug)]
pub(crate) struct Deaf(pub(crate) Arc<dyn Backend>);

macro_rules! forward {
    ($inner:tt) => {
        fn capabilities(&self) -> Capabilities {
            self.$inner.capabilities()
        }
        fn release(&self, request: Release) -> BoxFuture<Result<Released, Fault>> {
            self.$inner.release(request)
        }
        fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
            self.$inner.renew(batch)
        }
        fn inspect(&self, resource: Resource) -> BoxFuture<Result<Snapshot, Fault>> {
            self.$inner.inspect(resource)
        }
        fn list(&self, request: List) -> BoxFuture<Result<Page, Fault>> {
            self.$inner.list(request)
        }
        fn check(&self) -> BoxFuture<Result<Vec<Finding>, Fault>> {
            self.$inner.check()
        }
        fn close(&self) -> BoxFuture<()> {
            self.$inner.close()
        }
    };
}

impl Backend for Counting {
    forward!(inner);

    fn acquire(&self, request: Acquire) -> BoxFuture<Result<Attempt, Fault>> {
        self.acquires.fetch_add(1, Ordering::Relaxed);
        self.inner.acquire(request)
    }

    fn adjust(&self, change: Change) -> BoxFuture<Result<Changed, Fault>> {
        if matches!(change, Change::Announce { .. }) {
            self.announces.fetch_add(1, Ordering::Relaxed);
            if self.deaf_to_words.load(Ordering::Relaxed) {
                return Box::pin(std::future::pending());
            }
        }
        self.inner.adjust(change)
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<Result<Subscription, Fault>> {
        if matches!(topic, Topic::Notice(_) | Topic::Reconnected) {
            return self.inner.subscribe(topic);
        }
        self.subscribes.fetch_add(1, Ordering::Relaxed);
        let (subscribing, confirmed) = (self.inner.subscribe(topic), Arc::clone(&self.confirmed));
        Box::pin(async move {
            let subscription = subscribing.await?;
            confirmed.fetch_add(1, Ordering::Relaxed);
            Ok(subscription)
        })
    }
}

impl Backend for Deaf {
    forward!(0);

    fn acquire(&self, request: Acquire) -> BoxFuture<Result<Attempt, Fault>> {
        self.0.acquire(request)
    }

    fn adjust(&self, change: Change) -> BoxFuture<Result<Changed, Fault>> {
        self.0.adjust(change)
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<Result<Subscription, Fault>> {
        self.0.subscribe(match topic {
            heard @ (Topic::Notice(_) | Topic::Reconnected) => heard,
            _ => Topic::Freed(LockName::from("nothing of this name is ever freed")),
        })
    }
}
