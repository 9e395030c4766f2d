//! Decorators of a store: one counts requests, one loses wake-ups, one opens a latch during the subscription.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockkeeper::backend::{
    Acquire, Answer, Attempt, Backend, Change, Changed, CountChange, Resource, Subscription, Topic,
};
use lockkeeper::{Client, Kind, LockName, OwnerId};
use testkit::forward;

/// Counts the requests to a store.
#[derive(Debug)]
pub(crate) struct Counting {
    pub(crate) acquires: AtomicU64,
    pub(crate) subscribes: AtomicU64,
    confirmed: Arc<AtomicU64>,
    announces: AtomicU64,
    ignores_announcements: AtomicBool,
    inner: Arc<dyn Backend>,
}

impl Counting {
    pub(crate) fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        let (acquires, subscribes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (announces, ignores_announcements) = (AtomicU64::new(0), AtomicBool::new(false));
        let confirmed = Arc::default();
        Arc::new(Self { acquires, subscribes, confirmed, announces, ignores_announcements, inner })
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

    /// How often the client announced itself.
    pub(crate) fn announces(&self) -> u64 {
        self.announces.load(Ordering::Relaxed)
    }

    /// From now on announcements are not answered.
    pub(crate) fn ignores_announcements(&self, on: bool) {
        self.ignores_announcements.store(on, Ordering::Relaxed);
    }
}

/// Subscribes to another topic: waiters are never woken.
#[derive(Debug)]
pub(crate) struct Deaf(pub(crate) Arc<dyn Backend>);

impl Backend for Counting {
    forward!(inner: capabilities release renew inspect list check close);

    fn acquire(&self, request: Acquire) -> Answer<Attempt> {
        self.acquires.fetch_add(1, Ordering::Relaxed);
        self.inner.acquire(request)
    }

    fn adjust(&self, change: Change) -> Answer<Changed> {
        if matches!(change, Change::Announce { .. }) {
            self.announces.fetch_add(1, Ordering::Relaxed);
            if self.ignores_announcements.load(Ordering::Relaxed) {
                return Box::pin(std::future::pending());
            }
        }
        self.inner.adjust(change)
    }

    fn subscribe(&self, topic: Topic) -> Answer<Subscription> {
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
    forward!(0: capabilities acquire release renew adjust inspect list check close);

    fn subscribe(&self, topic: Topic) -> Answer<Subscription> {
        self.0.subscribe(match topic {
            heard @ (Topic::Notice(_) | Topic::Reconnected) => heard,
            _ => Topic::Freed(LockName::from("nothing of this name is ever freed")),
        })
    }
}

/// A store in which a latch opens and is set again just after the subscription was confirmed, before the
/// waiter has run.
#[derive(Debug)]
pub(crate) struct Hasty(pub(crate) Arc<dyn Backend>);

impl Backend for Hasty {
    forward!(0: capabilities acquire release renew adjust inspect list check close);

    fn subscribe(&self, topic: Topic) -> Answer<Subscription> {
        let (store, name) = (
            Arc::clone(&self.0),
            match &topic {
                Topic::Latch(name) => Some(name.clone()),
                _ => None,
            },
        );
        let subscribing = store.subscribe(topic);
        Box::pin(async move {
            let subscription = subscribing.await?;
            if let Some(name) = name {
                let seen = subscription.seen();
                let create = CountChange::Create { count: 1, ttl: None };
                for change in [CountChange::Down, create] {
                    store.adjust(counted(&name, change)).await?;
                }
                // Until both messages have arrived.
                subscription.beyond(seen + 1).await;
            }
            Ok(subscription)
        })
    }
}

fn counted(name: &LockName, change: CountChange) -> Change {
    let id = OwnerId::fresh(Client::memory().id());
    let resource = Resource { kind: Kind::Latch, name: name.clone() };
    Change::Count { resource, id, change }
}
