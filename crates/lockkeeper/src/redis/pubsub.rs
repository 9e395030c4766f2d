//! Wake-ups: which channel carries which topic, and the connection for them.
//!
//! The connection is opened when the first topic is subscribed to, and closed when there has been none
//! for a while. A subscription counts only once the server has confirmed it. When the connection breaks,
//! or the primary changes, its subscribers are woken up, and again when it is back: messages in between
//! were missed. `cluster_pubsub.rs` says which connections a cluster has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use super::cluster::Cluster;
use super::connection::follower::Follower;
use super::connection::subscriber::{Event, Mode, Subscriber};
use super::error_reply::ErrorReply;
use super::keys;
use super::locked;
use super::primary::Primary;
use crate::backend::subscriptions::{Edge, Subscriptions, Topic};
use crate::backend::{Fault, Lane};
use crate::options::ClientOptions;

/// The interval of pings that check the subscription. Half of the longest sleep of a waiter.
const PING: Duration = Duration::from_millis(2500);

/// A topic to subscribe to, or to unsubscribe from.
pub(super) type Order = (Topic, Edge);

/// Creates a hub that sends its edges as orders.
pub(super) fn hub() -> (Subscriptions, mpsc::UnboundedReceiver<Order>) {
    let (orders, inbox) = mpsc::unbounded_channel();
    let hub = Subscriptions::new(move |topic, edge| drop(orders.send((topic.clone(), edge))));
    (hub, inbox)
}

/// The requests to listen that are not confirmed, by topic and connection. A topic that is served by two
/// connections is confirmed once both of them have confirmed it.
pub(super) type Pending = Arc<Mutex<HashMap<Topic, Vec<(ConnectionKey, u32)>>>>;

/// A connection: that of a shard of a cluster, or the one with plain subscriptions.
pub(super) type ConnectionKey = Option<Lane>;

fn outstanding(counts: &[(ConnectionKey, u32)]) -> u32 {
    counts.iter().map(|(_, count)| *count).max().unwrap_or(0)
}

pub(super) struct PubSub {
    pub(super) key: ConnectionKey,
    /// The server to listen to.
    pub(super) primary: Arc<Primary>,
    pub(super) options: ClientOptions,
    pub(super) hub: Subscriptions,
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
    /// Of all connections.
    pub(super) pending: Pending,
    /// Learns of slots that have moved.
    pub(super) cluster: Option<Arc<Cluster>>,
    /// The topics of each channel: the locks `a` and `{a}` publish on the same one.
    pub(super) channels: HashMap<Vec<u8>, Vec<Topic>>,
}

/// Listens at the primary until the hub is dropped.
pub(super) async fn run(
    primary: Arc<Primary>,
    options: ClientOptions,
    hub: Subscriptions,
    orders: mpsc::UnboundedReceiver<Order>,
    closing: Arc<Notify>,
) {
    let mut pubsub = PubSub {
        key: None,
        primary,
        options,
        hub,
        orders,
        pending: Arc::default(),
        cluster: None,
        channels: HashMap::new(),
    };
    tokio::select! {
        () = pubsub.serve() => {}
        () = closing.notified() => {}
    }
    close(&pubsub.hub);
}

/// No more wake-ups will arrive.
pub(super) fn close(hub: &Subscriptions) {
    for topic in hub.broken() {
        hub.fail(&topic, Fault::Closed);
    }
}

impl PubSub {
    pub(super) async fn serve(&mut self) {
        let (mode, options) = (self.mode(), self.options.clone());
        let mut follower = Follower::new(&self.primary, &options);
        let mut refusals = 0;
        loop {
            // Idle: no connection until there is a subscriber.
            if self.channels.is_empty() {
                let Some(order) = self.orders.recv().await else {
                    return;
                };
                self.note(order);
                continue;
            }
            let opened = follower.open(async |server, _| {
                Subscriber::open(&server, &options, mode).await?.at_primary(&server).await
            });
            match opened.await {
                Ok(subscriber) => {
                    refusals = 0;
                    let broken = self.listen(subscriber, &mut follower).await;
                    // Topics that have moved to another connection are none of this one.
                    self.drain();
                    self.broken();
                    let Err(fault) = broken else {
                        follower.rest();
                        continue;
                    };
                    tracing::debug!(%fault, "subscription connection broken");
                }
                Err(fault) => {
                    self.drain();
                    refusals = if fault.may_pass() { 0 } else { refusals + 1 };
                    if refusals > 0
                        && refusals >= self.any_node().map_or(1, |all| all.primaries().len())
                    {
                        self.refuse(&fault);
                    }
                }
            }
            if self.any_node().is_some() {
                // Another one may serve.
                self.primary.leave(follower.tried.epoch);
            }
        }
    }

    /// The cluster, if any of its nodes will do.
    fn any_node(&self) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref().filter(|_| self.key.is_none())
    }

    fn mode(&self) -> Mode {
        if self.key.is_some() { Mode::Sharded } else { Mode::Plain }
    }

    /// No confirmation of this connection is expected.
    fn forget(&self, topic: &Topic) {
        let mut pending = locked(&self.pending);
        if let Some(counts) = pending.get_mut(topic) {
            counts.retain(|(key, _)| *key != self.key);
            if counts.is_empty() {
                pending.remove(topic);
            }
        }
    }

    /// Its subscribers may have missed messages.
    fn broken(&self) {
        for topic in self.channels.values().flatten() {
            self.forget(topic);
            self.hub.broken_of(topic);
        }
    }

    /// The server is asked to listen on this topic.
    fn requested(&self, topic: &Topic) {
        let mut pending = locked(&self.pending);
        let counts = pending.entry(topic.clone()).or_default();
        let before = outstanding(counts);
        match counts.iter_mut().find(|(key, _)| *key == self.key) {
            Some((_, count)) => *count += 1,
            None => counts.push((self.key, 1)),
        }
        if outstanding(counts) > before {
            self.hub.requested(topic);
        }
    }

    /// The server listens on this topic.
    fn confirmed(&self, topic: &Topic) {
        let mut pending = locked(&self.pending);
        let Some(counts) = pending.get_mut(topic) else { return };
        let before = outstanding(counts);
        for (key, count) in counts.iter_mut() {
            if *key == self.key {
                *count -= 1;
            }
        }
        counts.retain(|(_, count)| *count > 0);
        let now = outstanding(counts);
        if now == 0 {
            pending.remove(topic);
        }
        drop(pending);
        if now < before {
            self.hub.confirmed(topic);
            self.hub.confirm(topic);
        }
    }

    /// Applies an order to the table. Returns the channel and whether to subscribe to it or to
    /// unsubscribe; `None` while another topic needs the subscription.
    fn note(&mut self, (topic, edge): Order) -> Option<(Vec<u8>, bool)> {
        let channel = keys::topic_channel(&topic)?;
        let topics = self.channels.entry(channel.clone()).or_default();
        topics.retain(|other| *other != topic);
        if edge == Edge::First {
            topics.push(topic);
            return Some((channel, true));
        }
        if !topics.is_empty() {
            return None;
        }
        self.channels.remove(&channel);
        self.forget(&topic);
        Some((channel, false))
    }

    fn drain(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            self.note(order);
        }
    }

    /// Fails all pending subscriptions with the reason.
    fn refuse(&self, fault: &Fault) {
        for topic in self.channels.values().flatten() {
            self.hub.fail(topic, fault.clone());
        }
    }

    /// Subscribes to all channels of the table, then follows orders and delivers messages until the
    /// connection fails or no subscriber is left.
    async fn listen(
        &mut self,
        mut subscriber: Subscriber,
        follower: &mut Follower,
    ) -> Result<(), Fault> {
        self.drain();
        self.subscribe(&mut subscriber, self.channels.keys().cloned().collect());
        loop {
            tokio::select! {
                event = subscriber.event() => self.deliver(&mut subscriber, event?)?,
                order = self.orders.recv(), if subscriber.has_room() => match order {
                    Some(order) => self.follow(&mut subscriber, order),
                    None => return Ok(()),
                },
                () = follower.changed() => return Ok(()),
                () = tokio::time::sleep(PING) => {
                    if self.channels.is_empty() {
                        return Ok(());
                    }
                    subscriber.ping();
                }
            }
        }
    }

    /// Executes all pending orders with at most two commands. The last order for a channel counts.
    fn follow(&mut self, subscriber: &mut Subscriber, first: Order) {
        let mut last = HashMap::new();
        let mut next = Some(first);
        while let Some(order) = next {
            last.extend(self.note(order));
            next = self.orders.try_recv().ok();
        }
        let (wanted, unwanted): (Vec<_>, Vec<_>) = last.into_iter().partition(|(_, on)| *on);
        let names = |list: Vec<(Vec<u8>, bool)>| list.into_iter().map(|(name, _)| name).collect();
        subscriber.unsubscribe(names(unwanted));
        self.subscribe(subscriber, names(wanted));
    }

    fn subscribe(&self, subscriber: &mut Subscriber, channels: Vec<Vec<u8>>) {
        for channel in &channels {
            self.topics(channel).iter().for_each(|topic| self.requested(topic));
        }
        subscriber.subscribe(channels);
    }

    fn deliver(&self, subscriber: &mut Subscriber, event: Event) -> Result<(), Fault> {
        match event {
            Event::Message { channel, payload } => {
                for topic in self.topics(&channel) {
                    self.hub.wake(topic, &payload);
                }
            }
            Event::Subscribed(channel) => {
                self.topics(&channel).iter().for_each(|topic| self.confirmed(topic));
            }
            Event::Rejected(_, fault) if fault.may_pass() || self.record_redirect(&fault) => {
                return Err(fault);
            }
            // No server can publish there.
            Event::Rejected(channels, fault)
                if self.mode() == Mode::Sharded
                    && ErrorReply::behind(&fault).is_some_and(ErrorReply::is_unknown_command) =>
            {
                channels
                    .iter()
                    .flat_map(|channel| self.topics(channel))
                    .for_each(|t| self.confirmed(t));
            }
            Event::Rejected(channels, fault) => match &channels[..] {
                [channel] => {
                    for topic in self.topics(channel) {
                        self.hub.fail(topic, fault.clone());
                    }
                }
                // One by one, so that a single forbidden channel does not affect the others.
                _ => {
                    let wanted = |one: &Vec<u8>| self.channels.contains_key(one);
                    let wanted = channels.into_iter().filter(wanted);
                    wanted.for_each(|one| subscriber.subscribe(vec![one]));
                }
            },
        }
        Ok(())
    }

    /// The slot of a channel has moved: its topics move to another connection, and the others of this one
    /// start anew.
    fn record_redirect(&self, fault: &Fault) -> bool {
        let (Some(error), Some(cluster)) = (ErrorReply::behind(fault), &self.cluster) else {
            return false;
        };
        let server = self.primary.server();
        let host = server.as_ref().and_then(|server| server.address.host());
        cluster.record_redirect(error, host.map_or("", |(host, _)| host))
    }

    fn topics(&self, channel: &[u8]) -> &[Topic] {
        self.channels.get(channel).map_or(&[], Vec::as_slice)
    }
}
