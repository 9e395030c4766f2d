//! Wake-ups of a quorum: each topic is subscribed to on all members.
//!
//! A subscription counts once a majority has confirmed it. A release reaches a majority, so at least one of
//! these members publishes it.
//!
//! **A waiter is woken when a majority has published**, not at the first message: then it would find a
//! lock that is released at some members only, and split the vote. A message that no majority follows, for
//! a member that is away, wakes it a little later. The messages of one member are counted; the one that
//! the majority has reached already is late, and wakes no waiter a second time.
//!
//! **After a member has reconnected, all holds are renewed**, which repairs them there. Not more often than
//! ten times in a longest lease: one member that comes and goes must not make all others renew all the time.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::QuorumInner;
use crate::backend::subscriptions::Edge;
use crate::backend::{Backend, Fault, Lane, Topic};
use crate::redis::pubsub::Order;

/// How long a message of too few members waits for the others.
const OTHERS: Duration = Duration::from_millis(10);

/// How long to wait before a member is asked again to listen.
const AGAIN: Duration = Duration::from_millis(500);

/// Listens for each topic that has subscribers.
pub(super) async fn run(inner: Weak<QuorumInner>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut listening: HashMap<Topic, JoinSet<()>> = HashMap::new();
    while let Some((topic, edge)) = orders.recv().await {
        match edge {
            Edge::First => {
                let mut tasks = JoinSet::new();
                tasks.spawn(listen(Weak::clone(&inner), topic.clone()));
                listening.insert(topic, tasks);
            }
            // Ends its task.
            Edge::Last => drop(listening.remove(&topic)),
        }
    }
}

/// What one member says about a topic.
enum Event {
    Confirmed,
    Broken,
    Message(Vec<u8>),
    Failed(Fault),
}

async fn listen(inner: Weak<QuorumInner>, topic: Topic) {
    let (events, mut inbox) = mpsc::unbounded_channel();
    let mut members = JoinSet::new();
    let Some(mut state) = inner.upgrade().map(|inner| {
        for index in 0..inner.members.len() {
            members.spawn(follow(Weak::clone(&inner.me), index, topic.clone(), events.clone()));
        }
        TopicState::new(&inner)
    }) else {
        return;
    };
    drop(events);
    loop {
        let event = tokio::select! {
            event = inbox.recv() => event,
            () = state.due() => None,
        };
        let Some(inner) = inner.upgrade() else { return };
        match event {
            Some((member, event)) => state.event(&inner, &topic, member, event),
            None if state.due.is_some() => state.wake(&inner, &topic),
            // All members are closed.
            None => return inner.hub.fail(&topic, Fault::Closed),
        }
    }
}

/// Follows a topic on one member.
async fn follow(
    inner: Weak<QuorumInner>,
    index: usize,
    topic: Topic,
    events: mpsc::UnboundedSender<(usize, Event)>,
) {
    let send = |event| events.send((index, event)).is_ok();
    loop {
        let Some(member) = inner.upgrade().map(|inner| inner.members[index].clone()) else {
            return;
        };
        let subscription = match member.subscribe(topic.clone()).await {
            Ok(subscription) => subscription,
            Err(Fault::Closed) => return,
            Err(fault) => {
                send(Event::Failed(fault));
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        drop(member);
        // Before the confirmation is sent: what follows is a message.
        let (mut seen, _) = subscription.unread();
        let mut is_confirmed = send(Event::Confirmed);
        while subscription.failure().is_none() {
            seen = subscription.beyond(seen).await;
            let was_confirmed = std::mem::replace(&mut is_confirmed, subscription.is_confirmed());
            let event = match (was_confirmed, is_confirmed) {
                (true, true) => None,
                (_, true) => Some(Event::Confirmed),
                (_, false) => Some(Event::Broken),
            };
            let (_, messages) = subscription.unread();
            let messages = match topic {
                Topic::Notice(_) | Topic::Reconnected => Vec::from(messages),
                _ if event.is_none() => vec![Vec::new()],
                _ => Vec::new(),
            };
            let mut events = event.into_iter().chain(messages.into_iter().map(Event::Message));
            if !events.all(&send) {
                return;
            }
        }
        send(Event::Broken);
        tokio::time::sleep(AGAIN).await;
    }
}

/// The confirmations and messages of the members about one topic.
struct TopicState {
    majority: usize,
    confirmed: Vec<bool>,
    failed: Vec<Option<Fault>>,
    /// How many messages each has sent.
    counts: Vec<u64>,
    /// The number that a majority has reached.
    reached: u64,
    /// When to wake up for a message that no majority has followed.
    due: Option<Instant>,
    is_confirmed: bool,
    /// When the last wake-up was.
    woken: Option<Instant>,
}

impl TopicState {
    fn new(inner: &QuorumInner) -> Self {
        let count = inner.members.len();
        Self {
            majority: inner.majority,
            confirmed: vec![false; count],
            failed: vec![None; count],
            counts: vec![0; count],
            reached: 0,
            due: None,
            is_confirmed: false,
            woken: None,
        }
    }

    async fn due(&self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    fn event(&mut self, inner: &QuorumInner, topic: &Topic, member: usize, event: Event) {
        match event {
            Event::Confirmed => {
                (self.confirmed[member], self.failed[member]) = (true, None);
                // What it has missed is not waited for, but looked for.
                self.counts[member] = self.counts[member].max(self.reached);
                if topic.name().is_some() {
                    self.due.get_or_insert(Instant::now() + OTHERS);
                }
            }
            Event::Broken => {
                self.confirmed[member] = false;
                // What it has counted may stand for messages that no other member has sent.
                (self.counts, self.reached) = (vec![0; self.counts.len()], 0);
            }
            Event::Failed(fault) => self.failed[member] = Some(fault),
            // A minority says nothing about the store.
            Event::Message(_) if *topic == Topic::Reconnected => {
                let up = (0..inner.members.len()).filter(|member| inner.is_up(*member)).count();
                let pace = inner.longest_lease / 10;
                let due = self.woken.map_or_else(Instant::now, |woken| woken + pace);
                if up >= self.majority {
                    self.due.get_or_insert(due);
                }
            }
            Event::Message(message) if matches!(topic, Topic::Notice(_)) => {
                inner.hub.wake(topic, &message);
            }
            Event::Message(_) => return self.message(inner, topic, member),
        }
        self.confirm(inner, topic);
    }

    fn message(&mut self, inner: &QuorumInner, topic: &Topic, member: usize) {
        self.counts[member] += 1;
        if self.reached_by_majority() > self.reached {
            self.wake(inner, topic);
        } else if self.counts[member] > self.reached {
            self.due.get_or_insert(Instant::now() + OTHERS);
        }
    }

    fn reached_by_majority(&self) -> u64 {
        let mut counts = self.counts.clone();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        counts[self.majority - 1]
    }

    fn wake(&mut self, inner: &QuorumInner, topic: &Topic) {
        (self.reached, self.due) = (self.reached_by_majority().max(self.reached), None);
        // One that is ahead has sent messages that the others did not send.
        self.counts.iter_mut().for_each(|count| *count = self.reached.min(*count));
        self.woken = Some(Instant::now());
        match topic {
            Topic::Reconnected => inner.hub.wake(topic, &Lane::default().message()),
            _ => inner.hub.wake(topic, b"0"),
        };
    }

    /// Confirms the topic while a majority listens.
    fn confirm(&mut self, inner: &QuorumInner, topic: &Topic) {
        let listening = self.confirmed.iter().filter(|confirmed| **confirmed).count();
        let lasting = |fault: &&Option<Fault>| fault.as_ref().is_some_and(|f| !f.may_pass());
        let refused = self.failed.iter().filter(lasting).count();
        if (listening >= self.majority) != self.is_confirmed {
            self.is_confirmed = !self.is_confirmed;
            match self.is_confirmed {
                true => inner.hub.confirm(topic),
                false => inner.hub.broken_of(topic),
            }
        } else if self.confirmed.len() - refused < self.majority {
            let fault = self.failed.iter().flatten().find(|fault| !fault.may_pass());
            fault.into_iter().for_each(|fault| inner.hub.fail(topic, fault.clone()));
        }
    }
}
