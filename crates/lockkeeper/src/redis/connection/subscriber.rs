//! The connection that carries messages.
//!
//! A separate connection, although RESP3 would allow messages between replies: a message is then never
//! behind a large reply or a burst of requests, and the connection exists only while a client listens.
//!
//! Confirmations are matched with requests in order, as replies are. One that was not asked for, an
//! unsolicited unsubscription above all, ends the connection: its subscriptions are unknown then.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::handshake;
use super::socket::Wire;
use crate::backend::Fault;
use crate::options::ClientOptions;
use crate::redis::command::Command;
use crate::redis::resp::Value;
use crate::redis::role::Role;
use crate::redis::server::Server;

/// The bytes that may wait to be written before no more subscriptions should be made.
const OUT_MAX: usize = 1024 * 1024;

/// The commands to subscribe with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// `SUBSCRIBE`: a message reaches all subscribers.
    Plain,
    /// `SSUBSCRIBE`: a message reaches the subscribers of the shard that owns the channel.
    Sharded,
}

pub(crate) struct Subscriber {
    wire: Wire,
    mode: Mode,
    timeout: Duration,
    expected: VecDeque<Expected>,
}

/// A request without an answer.
struct Expected {
    request: SubscriberRequest,
    due: Instant,
}

enum SubscriberRequest {
    /// These channels are not confirmed.
    Subscribe(VecDeque<Vec<u8>>),
    Unsubscribe(VecDeque<Vec<u8>>),
    Ping,
}

#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Event {
    Message {
        channel: Vec<u8>,
        payload: Vec<u8>,
    },
    Subscribed(Vec<u8>),
    /// The server refuses to subscribe to these channels, at least to one of them.
    Rejected(Vec<Vec<u8>>, Fault),
}

impl Subscriber {
    pub(crate) async fn open(
        server: &Server,
        options: &ClientOptions,
        mode: Mode,
    ) -> Result<Self, Fault> {
        let mut wire = handshake::connect(server, options).await?;
        wire.exchange(&handshake::naming(options)).await?;
        wire.serve();
        Ok(Self { wire, mode, timeout: options.response_timeout, expected: VecDeque::new() })
    }

    /// Fails if the server says that it is a replica: a message published at the primary may not reach it.
    pub(crate) async fn at_primary(mut self, server: &Server) -> Result<Self, Fault> {
        let role = self.wire.exchange(&[Role::question()]).await?.pop();
        handshake::ensure_primary(&mut self.wire, role, server).await?;
        Ok(self)
    }

    /// Whether more requests may be made now: a server that stops reading must not use up memory.
    pub(crate) fn has_room(&self) -> bool {
        self.wire.unsent() < OUT_MAX
    }

    /// Asks for messages of these channels. Each is confirmed, or they are rejected together.
    pub(crate) fn subscribe(&mut self, channels: Vec<Vec<u8>>) {
        let verb = if self.mode == Mode::Plain { "SUBSCRIBE" } else { "SSUBSCRIBE" };
        self.ask(verb, channels, SubscriberRequest::Subscribe);
    }

    pub(crate) fn unsubscribe(&mut self, channels: Vec<Vec<u8>>) {
        let verb = if self.mode == Mode::Plain { "UNSUBSCRIBE" } else { "SUNSUBSCRIBE" };
        self.ask(verb, channels, SubscriberRequest::Unsubscribe);
    }

    fn ask(
        &mut self,
        verb: &str,
        channels: Vec<Vec<u8>>,
        request: fn(VecDeque<Vec<u8>>) -> SubscriberRequest,
    ) {
        // Channels of several slots do not fit into one command of a cluster.
        let size = if self.mode == Mode::Plain { channels.len() } else { 1 };
        for some in channels.chunks(size.max(1)) {
            let command = some.iter().fold(Command::plain(verb), Command::arg);
            self.send(&command, request(some.iter().cloned().collect()));
        }
    }

    /// Checks the connection: without an answer in time, it fails.
    pub(crate) fn ping(&mut self) {
        self.send(&Command::plain("PING"), SubscriberRequest::Ping);
    }

    fn send(&mut self, command: &Command, request: SubscriberRequest) {
        self.wire.send(command);
        self.expected.push_back(Expected { request, due: Instant::now() + self.timeout });
    }

    /// Waits for the next event; a fault ends the connection. May be dropped at any time.
    pub(crate) async fn event(&mut self) -> Result<Event, Fault> {
        loop {
            let reply = match self.expected.front() {
                None => self.wire.next().await?,
                Some(Expected { due, .. }) => {
                    let answer = timeout_at(*due, self.wire.next()).await;
                    let late = format!("no answer within {:?}", self.timeout);
                    answer.map_err(|_| Fault::silent(late))??
                }
            };
            if let Some(event) = self.understand(reply)? {
                return Ok(event);
            }
        }
    }

    fn understand(&mut self, reply: Value) -> Result<Option<Event>, Fault> {
        match reply {
            Value::Push(data) => self.received(data),
            // The form of messages in RESP2, and of the answer to a ping among them.
            Value::Array(data) if self.wire.is_resp2 => self.received(data),
            Value::Error(error) => match self.expected.pop_front() {
                Some(Expected { request: SubscriberRequest::Subscribe(channels), .. }) => {
                    Ok(Some(Event::Rejected(channels.into(), error.fault())))
                }
                Some(Expected { request: SubscriberRequest::Ping, .. }) => Ok(None),
                _ => Err(error.fault()),
            },
            Value::Status(_) => self.answered(),
            _ => Err(misfit()),
        }
    }

    /// The answer to a ping.
    fn answered(&mut self) -> Result<Option<Event>, Fault> {
        match self.expected.pop_front() {
            Some(Expected { request: SubscriberRequest::Ping, .. }) => Ok(None),
            _ => Err(misfit()),
        }
    }

    fn received(&mut self, data: Vec<Value>) -> Result<Option<Event>, Fault> {
        let mut data = data.into_iter();
        let Some(Value::Bulk(kind)) = data.next() else { return Err(misfit()) };
        match &kind[..] {
            b"pong" if self.wire.is_resp2 => self.answered(),
            b"message" | b"smessage" => match (data.next(), data.next()) {
                (Some(Value::Bulk(channel)), Some(Value::Bulk(payload))) => {
                    Ok(Some(Event::Message { channel, payload }))
                }
                _ => Err(misfit()),
            },
            b"subscribe" | b"ssubscribe" => {
                self.confirmed(data.next(), true).map(|channel| Some(Event::Subscribed(channel)))
            }
            b"unsubscribe" | b"sunsubscribe" => self.confirmed(data.next(), false).map(|_| None),
            // Of features that were not asked for.
            _ => Ok(None),
        }
    }

    /// Strikes off the first channel that is expected to be confirmed, if it is this one.
    fn confirmed(&mut self, channel: Option<Value>, subscribed: bool) -> Result<Vec<u8>, Fault> {
        let first = self.expected.front_mut().map(|expected| &mut expected.request);
        match (first, channel, subscribed) {
            (Some(SubscriberRequest::Subscribe(channels)), Some(Value::Bulk(channel)), true)
            | (Some(SubscriberRequest::Unsubscribe(channels)), Some(Value::Bulk(channel)), false)
                if channels.front() == Some(&channel) =>
            {
                channels.pop_front();
                if channels.is_empty() {
                    self.expected.pop_front();
                }
                Ok(channel)
            }
            _ => Err(misfit()),
        }
    }
}

fn misfit() -> Fault {
    Fault::silent("a message did not fit its request")
}
