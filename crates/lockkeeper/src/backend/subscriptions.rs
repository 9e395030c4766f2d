//! Wake-ups: the subscriptions inside one process.
//!
//! A wake-up is a hint. A [`Subscription`] counts them; a waiter reads the count *before* it tries
//! the lock and then sleeps until the count has moved, so that a hint between the two is never
//! slept through. The loss of a store's own subscription counts as a hint to all subscribers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use foldhash::HashMap;
use tokio::sync::Notify;
use uuid::Uuid;

use super::latch_openings::{Beginning, Openings};
use super::{Answer, Fault, Kind, Resource};
use crate::backend::locked;
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
    /// The store has reconnected; the message names the lane, and an empty one means all lanes. This
    /// topic is local: the store publishes no such message.
    Reconnected,
}

impl Topic {
    /// Returns the name of the lock that it concerns, if any.
    pub fn name(&self) -> Option<&LockName> {
        match self {
            Topic::Freed(name)
            | Topic::Turn(name, _)
            | Topic::Rw(name)
            | Topic::Permits(name)
            | Topic::Latch(name) => Some(name),
            Topic::Notice(_) | Topic::Reconnected => None,
        }
    }

    /// Returns the topic that all waiters of a resource share; `None` for a fair lock, where each
    /// waiter has its own.
    pub fn shared_by(resource: &Resource) -> Option<Topic> {
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

/// How many unread messages of a topic are kept. A notice names one force-released hold: a client
/// that misses more of them finds out at the next renewal. A client that misses a reconnection
/// checks all lanes.
const UNREAD_MAX: usize = 1024;

/// Whether the messages of a topic arrive yet.
#[derive(Clone, Debug)]
enum Listening {
    Pending,
    Confirmed,
    /// Only a store behind a connection can fail to listen.
    #[cfg_attr(not(any(feature = "redis", feature = "file")), expect(dead_code))]
    Failed(Fault),
}

#[derive(Debug)]
struct Cell {
    topic: Topic,
    inner: Mutex<CellState>,
    changed: Notify,
}

#[derive(Debug)]
struct CellState {
    state: Listening,
    seen: u64,
    /// Of a latch only.
    openings: Option<Openings>,
    unread: VecDeque<Vec<u8>>,
    subscribers: usize,
}

type OnEdge = Box<dyn Fn(&Topic, Edge) + Send + Sync>;

/// The first subscriber of a topic joined, or the last one left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Edge {
    /// The first subscriber: the store must listen.
    First,
    /// The last one has left.
    Last,
}

/// The subscriptions of one store in one process.
#[derive(Clone)]
pub struct Subscriptions {
    inner: Arc<Topics>,
}

struct Topics {
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
    /// Creates it for a store that is notified of edges.
    pub fn new(on_edge: impl Fn(&Topic, Edge) + Send + Sync + 'static) -> Self {
        Self { inner: Arc::new(Topics { topics: Mutex::default(), on_edge: Box::new(on_edge) }) }
    }

    /// Returns the number of topics with subscribers, except for [`Topic::Reconnected`].
    pub(crate) fn topic_count(&self) -> usize {
        locked(&self.inner.topics).keys().filter(|topic| **topic != Topic::Reconnected).count()
    }

    /// Returns the number of subscribers of `topic`.
    pub(crate) fn subscribers(&self, topic: &Topic) -> u64 {
        let cell = locked(&self.inner.topics).get(topic).cloned();
        cell.map_or(0, |cell| locked(&cell.inner).subscribers as u64)
    }

    /// Adds a subscriber; the store must still [`confirm`](Subscriptions::confirm) the topic.
    pub fn join(&self, topic: Topic) -> Subscription {
        let mut topics = locked(&self.inner.topics);
        let cell = topics.entry(topic.clone()).or_insert_with(|| {
            (self.inner.on_edge)(&topic, Edge::First);
            let inner = Mutex::new(CellState {
                state: Listening::Pending,
                seen: 0,
                openings: matches!(topic, Topic::Latch(_)).then(Openings::default),
                unread: VecDeque::new(),
                subscribers: 0,
            });
            Arc::new(Cell { topic, inner, changed: Notify::new() })
        });
        let mut inner = locked(&cell.inner);
        inner.subscribers += 1;
        let beginning = inner.openings.as_ref().map(|openings| Box::new(openings.now()));
        drop(inner);
        Subscription { hub: self.clone(), cell: Arc::clone(cell), beginning }
    }

    /// Records that the store listens on `topic` from now on.
    pub fn confirm(&self, topic: &Topic) {
        self.update(topic, |cell| {
            cell.state = Listening::Confirmed;
            cell.seen += 1;
        });
    }

    /// Delivers a message and returns the number of subscribers that it woke up.
    pub fn wake(&self, topic: &Topic, payload: &[u8]) -> u64 {
        let mut woken = 0;
        self.update(topic, |cell| {
            cell.seen += 1;
            cell.openings.iter_mut().for_each(|openings| openings.message(payload));
            woken = cell.subscribers as u64;
            let kept = matches!(topic, Topic::Notice(_) | Topic::Reconnected);
            if kept && cell.unread.len() < UNREAD_MAX {
                cell.unread.push_back(payload.to_vec());
            }
        });
        woken
    }

    fn update(&self, topic: &Topic, change: impl FnOnce(&mut CellState)) {
        let cell = locked(&self.inner.topics).get(topic).cloned();
        if let Some(cell) = cell {
            change(&mut locked(&cell.inner));
            cell.changed.notify_waiters();
        }
    }

    fn leave(&self, cell: &Cell) {
        let mut topics = locked(&self.inner.topics);
        let mut inner = locked(&cell.inner);
        inner.subscribers -= 1;
        if inner.subscribers == 0 {
            topics.remove(&cell.topic);
            (self.inner.on_edge)(&cell.topic, Edge::Last);
        }
    }
}

/// For stores behind a connection.
#[cfg(any(feature = "redis", feature = "file", feature = "unstable-backend"))]
impl Subscriptions {
    /// Adds a subscriber that ignores messages published before it subscribed. The store is asked
    /// to listen again even if it does already, and its confirmation marks the beginning.
    pub fn join_anew(&self, topic: Topic) -> Subscription {
        let mut subscription = self.join(topic);
        let topics = locked(&self.inner.topics);
        let beginning = locked(&subscription.cell.inner).openings.as_ref().map(Openings::next);
        subscription.beginning = beginning.map(Box::new);
        // A needless request to listen costs one command; a missing one would block the waiter.
        (self.inner.on_edge)(&subscription.cell.topic, Edge::First);
        drop(topics);
        subscription
    }

    /// Subscribes. The answer comes when the store has confirmed it.
    pub fn subscribe(&self, topic: Topic) -> Answer<Subscription> {
        let subscription = match topic {
            // A `0` published earlier must not open the latch.
            Topic::Latch(_) => self.join_anew(topic),
            // A local topic: there is no confirmation by the store to wait for.
            Topic::Reconnected => {
                let subscription = self.join(topic);
                self.confirm(&Topic::Reconnected);
                subscription
            }
            _ => self.join(topic),
        };
        Box::pin(subscription.confirmed())
    }

    /// Counts a request to the store to listen on `topic`.
    pub fn requested(&self, topic: &Topic) {
        self.update(topic, |cell| cell.openings.iter_mut().for_each(Openings::requested));
    }

    /// Counts a confirmation that the store listens on `topic`. Must be called in the order of the
    /// store's messages, whereas [`confirm`](Subscriptions::confirm) may come later.
    pub fn confirmed(&self, topic: &Topic) {
        self.update(topic, |cell| cell.openings.iter_mut().for_each(Openings::confirmed));
    }

    /// Records that the store cannot listen on `topic`.
    pub(crate) fn fail(&self, topic: &Topic, fault: Fault) {
        self.update(topic, |cell| {
            cell.state = Listening::Failed(fault);
            cell.seen += 1;
        });
    }

    /// Wakes up all subscribers because messages may have been missed. Returns the topics that must
    /// be subscribed again.
    pub(crate) fn broken(&self) -> Vec<Topic> {
        let topics: Vec<_> = locked(&self.inner.topics).keys().cloned().collect();
        topics.iter().for_each(|topic| self.broken_of(topic));
        topics
    }

    /// The same for one topic.
    pub fn broken_of(&self, topic: &Topic) {
        self.update(topic, |cell| {
            cell.seen += 1;
            cell.state = Listening::Pending;
            cell.openings.iter_mut().for_each(Openings::broken);
        });
    }
}

impl Cell {
    /// Waits until `look` returns a value. Registers before it looks, so that a change between the
    /// look and the sleep is not lost.
    async fn wait<T>(&self, mut look: impl FnMut(&mut CellState) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = look(&mut locked(&self.inner)) {
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
    cell: Arc<Cell>,
    /// Set only for a latch, where the content of messages matters.
    beginning: Option<Box<Beginning>>,
}

impl Subscription {
    /// Resolves when messages arrive, or with the reason why they cannot.
    pub async fn confirmed(mut self) -> Result<Self, Fault> {
        let beginning = &mut self.beginning;
        let outcome = self.cell.wait(|inner| match &inner.state {
            Listening::Failed(fault) => Some(Err(fault.clone())),
            Listening::Pending => None,
            Listening::Confirmed => match (&inner.openings, beginning.as_deref_mut()) {
                (Some(openings), Some(beginning)) => {
                    openings.has_begun(beginning).then_some(Ok(()))
                }
                _ => Some(Ok(())),
            },
        });
        outcome.await?;
        Ok(self)
    }

    /// Returns why no more wake-ups will arrive, if the subscription failed.
    pub fn failure(&self) -> Option<Fault> {
        match &locked(&self.cell.inner).state {
            Listening::Failed(fault) => Some(fault.clone()),
            Listening::Pending | Listening::Confirmed => None,
        }
    }

    /// Whether messages arrive at present.
    pub(crate) fn is_confirmed(&self) -> bool {
        matches!(locked(&self.cell.inner).state, Listening::Confirmed)
    }

    /// Returns the number of wake-ups so far. Read it before trying the lock.
    pub fn seen(&self) -> u64 {
        locked(&self.cell.inner).seen
    }

    /// Waits until there have been more than `seen` wake-ups, and returns their number.
    pub async fn beyond(&self, seen: u64) -> u64 {
        self.cell.wait(|inner| (inner.seen > seen).then_some(inner.seen)).await
    }

    /// Whether the latch was opened since this subscription began.
    pub fn was_opened(&self) -> bool {
        match (&locked(&self.cell.inner).openings, &self.beginning) {
            (Some(openings), Some(beginning)) => openings.opened_since(beginning),
            _ => false,
        }
    }

    /// Returns the number of wake-ups so far and the unread messages. There may be fewer messages
    /// than wake-ups.
    pub(crate) fn unread(&self) -> (u64, VecDeque<Vec<u8>>) {
        let mut inner = locked(&self.cell.inner);
        (inner.seen, std::mem::take(&mut inner.unread))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.leave(&self.cell);
    }
}
