//! Wake-ups: who listens for what, inside one process.
//!
//! A wake-up is a hint. A [`Subscription`] counts them; a waiter reads the count *before* it tries
//! the lock and then sleeps until the count has moved, so that a hint between the two is never
//! slept through. What breaks a store's own subscription counts as a hint to everybody.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

use super::{Fault, Kind, Resource};
use crate::{LockName, OwnerId};

/// The subject of a subscription.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Topic {
    /// A lock or mutex of this name was released.
    Freed(LockName),
    /// It is this waiter's turn in the queue of a fair lock.
    Turn(LockName, OwnerId),
    /// A read/write lock of this name was released by its readers or its writer.
    Rw(LockName),
    /// Permits of a semaphore of this name were released.
    Permits(LockName),
    /// A latch of this name was opened (`0`), or created (`1`).
    Latch(LockName),
    /// A notice to one client.
    Notice(Uuid),
    /// The store has reconnected. This topic is local: the store publishes no such message.
    Reconnected,
}

impl Topic {
    /// Returns the topic that all waiters of a resource share; `None` for a fair lock, where each
    /// waiter has its own.
    pub(crate) fn told_of(resource: &Resource) -> Option<Topic> {
        let name = resource.name.clone();
        Some(match resource.kind {
            Kind::Lock | Kind::Mutex => Topic::Freed(name),
            Kind::Fair => return None,
            Kind::Read | Kind::Write => Topic::Rw(name),
            Kind::Semaphore | Kind::Permits => Topic::Permits(name),
            Kind::Latch => Topic::Latch(name),
        })
    }
}

/// How many unread messages of a notice topic are kept. Each names one force-released hold. A
/// client that misses more of them finds out at the next renewal.
const UNREAD_MAX: usize = 1024;

/// How many confirmations are remembered. A waiter reads its own as soon as it is scheduled.
#[cfg(any(feature = "redis", feature = "file"))]
const BASES: usize = 64;

/// Whether the messages of a topic arrive yet.
#[derive(Clone, Debug)]
enum State {
    Pending,
    Confirmed,
    /// Only a store behind a connection can fail to listen.
    #[cfg_attr(not(any(feature = "redis", feature = "file")), expect(dead_code))]
    Failed(Fault),
}

#[derive(Debug)]
struct Cell {
    inner: Mutex<CellInner>,
    changed: Notify,
}

#[derive(Debug)]
struct CellInner {
    state: State,
    seen: u64,
    /// The number of messages with the payload `0`.
    zeros: u64,
    /// `asked` counts the requests to listen, `heard` the confirmations of the store.
    #[cfg_attr(not(any(feature = "redis", feature = "file")), expect(dead_code))]
    asked: u64,
    heard: u64,
    /// The value of `zeros` at each of the last confirmations.
    bases: VecDeque<u64>,
    unread: VecDeque<Vec<u8>>,
    subscribers: usize,
}

type OnEdge = Box<dyn Fn(&Topic, Edge) + Send + Sync>;

/// The first subscriber of a topic joined, or the last one left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Edge {
    First,
    Last,
}

/// The subscriptions of one store in one process.
#[derive(Clone)]
pub(crate) struct Subscriptions {
    inner: Arc<HubInner>,
}

struct HubInner {
    topics: Mutex<HashMap<Topic, Arc<Cell>>>,
    /// Called under the lock of the table, so that a store sees edges in the order in which they
    /// happen.
    on_edge: OnEdge,
}

impl fmt::Debug for Subscriptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriptions").field("topics", &self.topic_count()).finish()
    }
}

impl Subscriptions {
    pub(crate) fn new(on_edge: impl Fn(&Topic, Edge) + Send + Sync + 'static) -> Self {
        Self {
            inner: Arc::new(HubInner {
                topics: Mutex::new(HashMap::new()),
                on_edge: Box::new(on_edge),
            }),
        }
    }

    fn topics(&self) -> std::sync::MutexGuard<'_, HashMap<Topic, Arc<Cell>>> {
        self.inner.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of topics with subscribers, except for [`Topic::Reconnected`].
    pub(crate) fn topic_count(&self) -> usize {
        self.topics().keys().filter(|topic| **topic != Topic::Reconnected).count()
    }

    /// Returns the number of subscribers of `topic`.
    pub(crate) fn subscribers(&self, topic: &Topic) -> u64 {
        let cell = self.topics().get(topic).cloned();
        cell.map_or(0, |cell| cell.lock().subscribers as u64)
    }

    /// Adds a subscriber; the store must still [`confirm`](Subscriptions::confirm) the topic.
    pub(crate) fn join(&self, topic: Topic) -> Subscription {
        let mut topics = self.topics();
        let cell = topics.entry(topic.clone()).or_insert_with(|| {
            (self.inner.on_edge)(&topic, Edge::First);
            Arc::new(Cell {
                inner: Mutex::new(CellInner {
                    state: State::Pending,
                    seen: 0,
                    zeros: 0,
                    asked: 0,
                    heard: 0,
                    bases: VecDeque::new(),
                    unread: VecDeque::new(),
                    subscribers: 0,
                }),
                changed: Notify::new(),
            })
        });
        let mut inner = cell.lock();
        inner.subscribers += 1;
        let zeros = inner.zeros;
        drop(inner);
        let latch = matches!(topic, Topic::Latch(_));
        let beginning = latch.then(|| Box::new(Beginning { zeros, after: None }));
        Subscription { hub: self.clone(), topic, cell: Arc::clone(cell), beginning }
    }

    /// Adds a subscriber that ignores messages published before it subscribed. The store is asked
    /// to listen again even if it does already, and its confirmation marks the beginning.
    #[cfg(any(feature = "redis", feature = "file"))]
    pub(crate) fn join_anew(&self, topic: Topic) -> Subscription {
        let mut subscription = self.join(topic);
        let topics = self.topics();
        let after = Some(subscription.cell.lock().asked + 1);
        subscription.beginning = Some(Box::new(Beginning { zeros: 0, after }));
        // A needless request to listen costs one command; a missing one would block the waiter.
        (self.inner.on_edge)(&subscription.topic, Edge::First);
        drop(topics);
        subscription
    }

    /// Counts a request to the store to listen on `topic`.
    #[cfg(any(feature = "redis", feature = "file"))]
    pub(crate) fn asking(&self, topic: &Topic) {
        self.update(topic, |cell| cell.asked += 1);
    }

    /// Counts a confirmation that the store listens on `topic`. Must be called in the order of the
    /// store's messages, whereas [`confirm`](Subscriptions::confirm) may come later.
    #[cfg(any(feature = "redis", feature = "file"))]
    pub(crate) fn heard(&self, topic: &Topic) {
        self.update(topic, |cell| {
            cell.heard += 1;
            cell.bases.push_back(cell.zeros);
            if cell.bases.len() > BASES {
                cell.bases.pop_front();
            }
        });
    }

    /// Records that the store listens on `topic` from now on.
    pub(crate) fn confirm(&self, topic: &Topic) {
        self.update(topic, |cell| {
            cell.state = State::Confirmed;
            cell.seen += 1;
        });
    }

    /// Records that the store cannot listen on `topic`.
    #[cfg(any(feature = "redis", feature = "file"))]
    pub(crate) fn fail(&self, topic: &Topic, fault: Fault) {
        self.update(topic, |cell| {
            cell.state = State::Failed(fault);
            cell.seen += 1;
        });
    }

    /// Delivers a message and returns the number of subscribers that it woke up.
    pub(crate) fn wake(&self, topic: &Topic, payload: &[u8]) -> u64 {
        let mut told = 0;
        self.update(topic, |cell| {
            cell.seen += 1;
            cell.zeros += u64::from(payload == b"0");
            told = cell.subscribers as u64;
            if matches!(topic, Topic::Notice(_)) && cell.unread.len() < UNREAD_MAX {
                cell.unread.push_back(payload.to_vec());
            }
        });
        told
    }

    fn update(&self, topic: &Topic, change: impl FnOnce(&mut CellInner)) {
        let cell = self.topics().get(topic).cloned();
        if let Some(cell) = cell {
            change(&mut cell.lock());
            cell.changed.notify_waiters();
        }
    }

    /// Wakes up all subscribers because messages may have been missed. Returns the topics that must
    /// be subscribed again.
    #[cfg(any(feature = "redis", feature = "file"))]
    pub(crate) fn broken(&self) -> Vec<Topic> {
        let topics: Vec<_> = self.topics().iter().map(|(t, c)| (t.clone(), c.clone())).collect();
        for (_, cell) in &topics {
            {
                let mut inner = cell.lock();
                inner.seen += 1;
                inner.state = State::Pending;
                // Pending confirmations will not arrive.
                let (asked, zeros) = (inner.asked, inner.zeros);
                (inner.heard, inner.bases) = (asked, VecDeque::from([zeros]));
            }
            cell.changed.notify_waiters();
        }
        topics.into_iter().map(|(topic, _)| topic).collect()
    }

    fn leave(&self, topic: &Topic, cell: &Arc<Cell>) {
        let mut topics = self.topics();
        let mut inner = cell.lock();
        inner.subscribers -= 1;
        if inner.subscribers == 0 {
            topics.remove(topic);
            (self.inner.on_edge)(topic, Edge::Last);
        }
    }
}

impl CellInner {
    /// Returns `zeros` at the `nth` confirmation, or at the oldest one that is still remembered.
    fn base(&self, nth: u64) -> Option<u64> {
        let first = self.heard + 1 - self.bases.len() as u64;
        self.bases.get(nth.saturating_sub(first) as usize).copied()
    }
}

impl Cell {
    fn lock(&self) -> std::sync::MutexGuard<'_, CellInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `look` returns a value. Registers before it looks, so that a change between the
    /// look and the sleep is not lost.
    async fn wait<T>(&self, mut look: impl FnMut(&mut CellInner) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = look(&mut self.lock()) {
                return found;
            }
            changed.await;
        }
    }
}

/// Receives the wake-ups of one topic until it is dropped.
#[derive(Debug)]
pub struct Subscription {
    hub: Subscriptions,
    topic: Topic,
    cell: Arc<Cell>,
    /// Set only for a latch, where the content of messages matters.
    beginning: Option<Box<Beginning>>,
}

/// The point from which on the content of messages counts.
#[derive(Debug)]
struct Beginning {
    /// The number of `0` messages before it.
    zeros: u64,
    /// The number of confirmations after which it begins.
    after: Option<u64>,
}

impl Subscription {
    /// Resolves when messages arrive, or with the reason why they cannot.
    pub(crate) async fn confirmed(mut self) -> Result<Self, Fault> {
        let after = self.beginning.as_ref().and_then(|beginning| beginning.after);
        let outcome = self.cell.wait(|inner| match &inner.state {
            State::Failed(fault) => Some(Err(fault.clone())),
            State::Pending => None,
            State::Confirmed if after.is_some_and(|after| inner.heard < after) => None,
            State::Confirmed => Some(Ok(after.and_then(|after| inner.base(after)))),
        });
        if let (Some(base), Some(beginning)) = (outcome.await?, &mut self.beginning) {
            beginning.zeros = base;
        }
        Ok(self)
    }

    /// Returns why no more wake-ups will arrive, if the subscription failed.
    pub fn failure(&self) -> Option<Fault> {
        match &self.cell.lock().state {
            State::Failed(fault) => Some(fault.clone()),
            State::Pending | State::Confirmed => None,
        }
    }

    /// Returns the number of wake-ups so far. Read it before trying the lock.
    pub fn seen(&self) -> u64 {
        self.cell.lock().seen
    }

    /// Waits until there have been more than `seen` wake-ups, and returns their number.
    pub async fn beyond(&self, seen: u64) -> u64 {
        self.cell.wait(|inner| (inner.seen > seen).then_some(inner.seen)).await
    }

    /// Whether a `0` message arrived since this subscription began: the latch was opened.
    pub fn said_zero(&self) -> bool {
        let zeros = self.cell.lock().zeros;
        self.beginning.as_ref().is_some_and(|beginning| zeros > beginning.zeros)
    }

    /// Waits for the next message of a notice topic.
    pub async fn message(&self) -> Vec<u8> {
        self.cell.wait(|inner| inner.unread.pop_front()).await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.leave(&self.topic, &self.cell);
    }
}
