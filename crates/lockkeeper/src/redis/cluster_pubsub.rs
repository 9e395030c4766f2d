//! Wake-ups in a cluster: which connection carries which topic.
//!
//! - One connection per shard, with sharded subscriptions, for the topics whose channel is in a slot of the
//!   shard.
//! - One connection to any node, with plain subscriptions, for notices to this client, for latches whose
//!   name has a brace, and for all topics where wake-ups are published to all nodes.
//!
//! A topic whose slot moves is subscribed to at its new shard, and its waiters are woken up: they try
//! again once that is confirmed.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::cluster::Cluster;
use super::command::Wakes;
use super::primary::Primary;
use super::pubsub::{self, ConnectionKey, Order, Pending, PubSub};
use super::{keys, slot};
use crate::backend::subscriptions::{Edge, Subscriptions, Topic};
use crate::options::ClientOptions;

struct TopicRouter {
    cluster: Arc<Cluster>,
    wakes: Wakes,
    options: ClientOptions,
    hub: Subscriptions,
    pending: Pending,
    connections: HashMap<ConnectionKey, mpsc::UnboundedSender<Order>>,
    /// Aborted when dropped.
    tasks: JoinSet<()>,
    /// Where each topic is subscribed to.
    routed: HashMap<Topic, Vec<ConnectionKey>>,
}

/// Runs until the client is closed.
pub(super) async fn run(
    cluster: Arc<Cluster>,
    wakes: Wakes,
    options: ClientOptions,
    hub: Subscriptions,
    mut orders: mpsc::UnboundedReceiver<Order>,
    closing: Arc<Notify>,
) {
    let mut versions = cluster.versions();
    let mut found = TopicRouter {
        cluster,
        wakes,
        options,
        hub,
        pending: Arc::default(),
        connections: HashMap::new(),
        tasks: JoinSet::new(),
        routed: HashMap::new(),
    };
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some((topic, edge)) => found.follow(topic, edge),
                None => break,
            },
            Ok(()) = versions.changed() => found.move_topics(),
            () = closing.notified() => break,
        }
    }
    pubsub::close(&found.hub);
}

impl TopicRouter {
    fn follow(&mut self, topic: Topic, edge: Edge) {
        if edge == Edge::Last {
            for key in self.routed.remove(&topic).unwrap_or_default() {
                self.order(key, topic.clone(), edge);
            }
            return;
        }
        // Asked again where it is, or for the first time where it belongs.
        let found = match self.routed.get(&topic) {
            Some(found) => found.clone(),
            None => self.keys_of(&topic),
        };
        for key in &found {
            self.order(*key, topic.clone(), edge);
        }
        self.routed.insert(topic, found);
    }

    /// Where a topic belongs now; nowhere if no shard serves its slot.
    fn keys_of(&self, topic: &Topic) -> Vec<ConnectionKey> {
        let Some(channel) = keys::topic_channel(topic) else { return Vec::new() };
        let wakes = match topic {
            Topic::Notice(_) => Wakes::Classic,
            Topic::Latch(name) => self.wakes.of_latch(name),
            _ => self.wakes,
        };
        let shard = || self.cluster.owner(slot::of(&channel)).map(|shard| Some(shard.lane));
        match wakes {
            Wakes::Plain | Wakes::Classic | Wakes::Silent => vec![None],
            Wakes::Sharded => shard().into_iter().collect(),
            Wakes::Both => shard().into_iter().chain([None]).collect(),
        }
    }

    fn move_topics(&mut self) {
        let routed: Vec<_> = self.routed.keys().cloned().collect();
        for topic in routed {
            let found = self.keys_of(&topic);
            let old = self.routed.insert(topic.clone(), found.clone()).unwrap_or_default();
            if found == old {
                continue;
            }
            for key in old.iter().filter(|key| !found.contains(key)) {
                self.order(*key, topic.clone(), Edge::Last);
            }
            self.hub.broken_of(&topic);
            for key in found.iter().filter(|key| !old.contains(key)) {
                self.order(*key, topic.clone(), Edge::First);
            }
        }
    }

    fn order(&mut self, key: ConnectionKey, topic: Topic, edge: Edge) {
        let connection = self.connections.entry(key).or_insert_with(|| {
            let (orders, inbox) = mpsc::unbounded_channel();
            let shard = key.and_then(|lane| {
                self.cluster.shards().into_iter().find(|shard| shard.lane == lane)
            });
            let primary = match shard {
                Some(shard) => Arc::clone(&shard.primary),
                None => {
                    let primary = Primary::unknown();
                    let (cluster, options) = (Arc::clone(&self.cluster), self.options.clone());
                    self.tasks.spawn(lead_to_any(cluster, Arc::clone(&primary), options));
                    primary
                }
            };
            let mut pubsub = PubSub {
                key,
                primary,
                options: self.options.clone(),
                hub: self.hub.clone(),
                orders: inbox,
                pending: Arc::clone(&self.pending),
                cluster: Some(Arc::clone(&self.cluster)),
                channels: HashMap::new(),
            };
            self.tasks.spawn(async move { pubsub.serve().await });
            orders
        });
        // Fails when the runtime ends.
        let _ = connection.send((topic, edge));
    }
}

/// Leads to any node of the cluster, and to the next one once that was left: it has failed, or is none of the
/// cluster any more.
async fn lead_to_any(cluster: Arc<Cluster>, node: Arc<Primary>, options: ClientOptions) {
    let mut versions = cluster.versions();
    let (mut next, mut failures) = (fastrand::usize(..1 << 16), 0);
    loop {
        let since = Instant::now();
        let nodes = cluster.primaries().into_iter().filter_map(|(_, shard)| shard.primary.server());
        let nodes: Vec<_> = nodes.collect();
        next += 1;
        nodes.get(next % nodes.len().max(1)).inspect(|server| node.lead_to(server, false));
        while node.server().is_some_and(|server| cluster.knows(&server)) {
            tokio::select! {
                () = node.suspected() => {}
                _ = versions.changed() => {}
            }
        }
        node.park();
        failures = if since.elapsed() > options.max_backoff { 0 } else { failures + 1 };
        sleep(options.backoff(failures)).await;
    }
}
