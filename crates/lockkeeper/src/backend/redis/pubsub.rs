//! The connection that carries wake-ups.
//!
//! Opened when the first topic is listened for, closed when there has been none for a while. A
//! subscription is confirmed by the server before anybody relies on it. When the connection breaks
//! everybody is woken, and again when it is back: whatever was said in between was missed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout};

use super::shape::Shape;
use super::{fault, keys};
use crate::backend::Fault;
use crate::backend::wake::{Edge, Subscriptions, Topic};
use crate::config::ClientOptions;

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

/// The topics of each channel: the locks `a` and `{a}` publish on the same one.
type Channels = Arc<Mutex<HashMap<Vec<u8>, Vec<Topic>>>>;

struct PubSub {
    client: Client,
    options: ClientOptions,
    hub: Subscriptions,
    orders: mpsc::UnboundedReceiver<Order>,
    channels: Channels,
}

/// Runs until the hub is dropped.
pub(super) async fn run(
    client: Client,
    options: ClientOptions,
    hub: Subscriptions,
    orders: mpsc::UnboundedReceiver<Order>,
    closing: Arc<Notify>,
) {
    let mut pubsub = PubSub { client, options, hub, orders, channels: Channels::default() };
    tokio::select! {
        () = pubsub.serve() => {}
        () = closing.notified() => {}
    }
    // No more wake-ups will arrive.
    for topic in pubsub.hub.broken() {
        pubsub.hub.fail(&topic, Fault::Closed);
    }
}

impl PubSub {
    async fn serve(&mut self) {
        let mut failures = 0;
        loop {
            // Idle: no connection until there is a subscriber.
            if self.channels().is_empty() {
                let Some(order) = self.orders.recv().await else {
                    return;
                };
                self.note(order);
                continue;
            }
            match self.connect().await {
                Ok((connection, broken)) => {
                    let since = Instant::now();
                    if self.listen(connection, broken).await.is_err() {
                        tracing::debug!("subscription connection broken");
                    }
                    self.hub.broken();
                    // A short-lived connection counts as a failure.
                    if since.elapsed() > self.options.max_backoff {
                        failures = 0;
                    }
                }
                Err(fault) if !fault.may_pass() => self.refuse(&fault),
                Err(_) => {}
            }
            self.drain();
            if !self.channels().is_empty() {
                tokio::time::sleep(self.options.backoff(failures)).await;
                failures += 1;
                self.drain();
            }
        }
    }

    fn channels(&self) -> std::sync::MutexGuard<'_, HashMap<Vec<u8>, Vec<Topic>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an order to the table. Returns the channel and whether to subscribe to it or to
    /// unsubscribe; `None` while another topic needs the subscription.
    fn note(&self, (topic, edge): Order) -> Option<(Vec<u8>, bool)> {
        let channel = keys::topic_channel(&topic)?;
        let mut channels = self.channels();
        let topics = channels.entry(channel.clone()).or_default();
        topics.retain(|other| *other != topic);
        if edge == Edge::First {
            topics.push(topic);
            return Some((channel, true));
        }
        if !topics.is_empty() {
            return None;
        }
        channels.remove(&channel);
        Some((channel, false))
    }

    fn drain(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            self.note(order);
        }
    }

    /// Fails all pending subscriptions with the reason.
    fn refuse(&self, fault: &Fault) {
        let topics: Vec<_> = self.channels().values().flatten().cloned().collect();
        for topic in topics {
            self.hub.fail(&topic, fault.clone());
        }
    }

    async fn connect(&self) -> Result<(MultiplexedConnection, Arc<Notify>), Fault> {
        let broken = Arc::new(Notify::new());
        let (hub, channels, signal) = (self.hub.clone(), self.channels.clone(), broken.clone());
        let receive = move |push: PushInfo| -> Result<(), ()> {
            match push.kind {
                PushKind::Message => deliver(&hub, &channels, &push.data),
                PushKind::Subscribe => heard(&hub, &channels, &push.data),
                // Also an unrequested unsubscription, which is found by comparing it with the
                // table.
                PushKind::Unsubscribe if is_wanted(&channels, &push.data) => signal.notify_one(),
                PushKind::Disconnection => signal.notify_one(),
                _ => {}
            }
            Ok(())
        };
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(Some(self.options.response_timeout))
            .set_push_sender(receive);
        let connecting = async {
            let mut connection =
                self.client.get_multiplexed_async_connection_with_config(&config).await?;
            let mut who = redis::pipe();
            super::say_who(&mut who, &self.options);
            connection.send_packed_commands(&who, 0, who.len()).await?;
            Ok(connection)
        };
        let connection = timeout(self.options.connect_timeout, connecting).await;
        let unreachable =
            || Fault::Unreachable { maybe_ran: false, detail: "not connected in time".to_owned() };
        let connection = connection.map_err(|_| unreachable())?;
        Ok((connection.map_err(|error| fault::of_connection(&error, false))?, broken))
    }

    /// Subscribes to all channels of the table, then follows orders until the connection fails or
    /// no subscriber is left.
    async fn listen(
        &mut self,
        mut connection: MultiplexedConnection,
        broken: Arc<Notify>,
    ) -> Result<(), Fault> {
        self.drain();
        let all: Vec<_> = self.channels().keys().cloned().collect();
        self.subscribe(&mut connection, all).await?;
        loop {
            let order = tokio::select! {
                order = self.orders.recv() => order,
                () = broken.notified() => return Err(gone("disconnected")),
                () = tokio::time::sleep(PING) => {
                    if self.channels().is_empty() {
                        return Ok(());
                    }
                    self.ping(&mut connection).await?;
                    continue;
                }
            };
            let Some(order) = order else { return Ok(()) };
            self.follow(&mut connection, order).await?;
        }
    }

    async fn ping(&self, connection: &mut MultiplexedConnection) -> Result<(), Fault> {
        let reply = connection.send_packed_command(&redis::cmd("PING")).await;
        let reply = reply.map_err(|error| fault::of_connection(&error, false))?;
        if Shape::Status.fits(&reply) {
            Ok(())
        } else {
            Err(gone("a reply did not fit its request"))
        }
    }

    /// Executes all pending orders with at most two commands. The last order for a channel counts.
    async fn follow(
        &mut self,
        connection: &mut MultiplexedConnection,
        first: Order,
    ) -> Result<(), Fault> {
        let mut last = HashMap::new();
        let mut next = Some(first);
        while let Some(order) = next {
            last.extend(self.note(order));
            next = self.orders.try_recv().ok();
        }
        let (wanted, unwanted): (Vec<_>, Vec<_>) = last.into_iter().partition(|(_, on)| *on);
        let names = |list: Vec<(Vec<u8>, bool)>| list.into_iter().map(|(name, _)| name);
        let unwanted: Vec<_> = names(unwanted).collect();
        if !unwanted.is_empty() {
            let answer = connection.unsubscribe(unwanted).await;
            answer.map_err(|error| fault::of_connection(&error, false))?;
        }
        self.subscribe(connection, names(wanted).collect()).await
    }

    /// Subscribes with one command; one by one if that is rejected, so that a single forbidden
    /// channel does not affect the others.
    async fn subscribe(
        &self,
        connection: &mut MultiplexedConnection,
        channels: Vec<Vec<u8>>,
    ) -> Result<(), Fault> {
        if channels.is_empty() {
            return Ok(());
        }
        for channel in &channels {
            self.of_channel(channel, |topic| self.hub.asking(topic));
        }
        if connection.subscribe(&channels).await.is_ok() {
            for channel in &channels {
                self.of_channel(channel, |topic| self.hub.confirm(topic));
            }
            return Ok(());
        }
        for channel in &channels {
            match connection.subscribe(channel).await {
                Ok(()) => self.of_channel(channel, |topic| self.hub.confirm(topic)),
                Err(error) => match fault::of_connection(&error, false) {
                    fault if fault.may_pass() => return Err(fault),
                    fault => {
                        self.of_channel(channel, |topic| self.hub.fail(topic, fault.clone()));
                    }
                },
            }
        }
        Ok(())
    }

    fn of_channel(&self, channel: &[u8], act: impl FnMut(&Topic)) {
        topics_of(&self.channels, Some(channel)).iter().for_each(act);
    }
}

fn gone(detail: &str) -> Fault {
    Fault::Unreachable { maybe_ran: false, detail: detail.to_owned() }
}

fn bytes(value: Option<&Value>) -> Option<&[u8]> {
    match value {
        Some(Value::BulkString(bytes)) => Some(bytes),
        Some(Value::SimpleString(text)) => Some(text.as_bytes()),
        _ => None,
    }
}

fn topics_of(channels: &Channels, channel: Option<&[u8]>) -> Vec<Topic> {
    let channels = channels.lock().unwrap_or_else(PoisonError::into_inner);
    channel.and_then(|channel| channels.get(channel)).cloned().unwrap_or_default()
}

fn is_wanted(channels: &Channels, data: &[Value]) -> bool {
    !topics_of(channels, bytes(data.first())).is_empty()
}

fn heard(hub: &Subscriptions, channels: &Channels, data: &[Value]) {
    for topic in topics_of(channels, bytes(data.first())) {
        hub.heard(&topic);
    }
}

fn deliver(hub: &Subscriptions, channels: &Channels, data: &[Value]) {
    for topic in topics_of(channels, bytes(data.first())) {
        hub.wake(&topic, bytes(data.get(1)).unwrap_or_default());
    }
}
