//! Everything the controls change and the tasks obey.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::matcher::Matcher;
use super::watch::{Stage, Watch};

/// A connection through the proxy; ordered by acceptance.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnId(usize);

impl ConnId {
    pub(super) fn nth(index: usize) -> Self {
        Self(index)
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Where new connections lead, on 127.0.0.1.
    pub(super) upstream_port: u16,
    pub(super) refuse: bool,
    pub(super) delay: Duration,
    pub(super) black_hole: bool,
    /// Connections from these addresses are black holes.
    pub(super) separated: BTreeSet<IpAddr>,
    pub(super) drop_replies: bool,
    /// Armed until the first match.
    pub(super) drop_reply_once: Option<Matcher>,
    /// Armed until the first match, and what is then sent.
    pub(super) stray_once: Option<(Matcher, Vec<u8>)>,
    /// The open ones.
    pub(super) connections: BTreeMap<ConnId, Connection>,
    pub(super) accepted: usize,
    pub(super) refused: usize,
    pub(super) swallowed_replies: usize,
    pub(super) watches: BTreeMap<u64, Watch>,
    pub(super) next_watch: u64,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) source: IpAddr,
    pub(super) cut: bool,
    pub(super) black_hole: bool,
    pub(super) hold_requests: bool,
    /// The single fault has struck: swallow replies, reset the client when the server has closed.
    pub(super) doomed: bool,
    /// Sent to the client before the next reply.
    pub(super) stray: Vec<u8>,
    pub(super) subscriber: bool,
    subscribe: Matcher,
}

impl Connection {
    fn new(source: IpAddr) -> Self {
        Self {
            source,
            cut: false,
            black_hole: false,
            hold_requests: false,
            doomed: false,
            stray: Vec::new(),
            subscriber: false,
            // With the line end: the word inside a script or a key does not count.
            subscribe: Matcher::new(b"SUBSCRIBE\r\n"),
        }
    }
}

impl State {
    pub(super) fn open(&mut self, source: IpAddr) -> ConnId {
        let id = ConnId::nth(self.accepted);
        self.accepted += 1;
        self.connections.insert(id, Connection::new(source));
        id
    }

    pub(super) fn close(&mut self, id: ConnId) {
        self.connections.remove(&id);
        self.watches.values_mut().for_each(|watch| watch.forget(id));
        if let Some(matcher) = &mut self.drop_reply_once {
            matcher.forget(id);
        }
        if let Some((matcher, _)) = &mut self.stray_once {
            matcher.forget(id);
        }
    }

    /// A connection that has just ended cannot be changed any more, and needs not.
    pub(super) fn with(&mut self, id: ConnId, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.connections.get_mut(&id) {
            change(connection);
        }
    }

    pub(super) fn subscribers(&self) -> Vec<ConnId> {
        let subscribers = self.connections.iter().filter(|(_, connection)| connection.subscriber);
        subscribers.map(|(id, _)| *id).collect()
    }

    pub(super) fn is_cut(&self, id: ConnId) -> bool {
        self.any(id, |connection| connection.cut)
    }

    pub(super) fn is_doomed(&self, id: ConnId) -> bool {
        self.any(id, |connection| connection.doomed)
    }

    pub(super) fn is_black_hole(&self, id: ConnId) -> bool {
        let separated = |connection: &Connection| self.separated.contains(&connection.source);
        self.black_hole || self.any(id, |connection| connection.black_hole || separated(connection))
    }

    pub(super) fn holds_requests(&self, id: ConnId) -> bool {
        self.any(id, |connection| connection.hold_requests)
    }

    pub(super) fn drops_replies(&self, id: ConnId) -> bool {
        self.drop_replies || self.is_doomed(id)
    }

    /// A request has come from the client. Returns whether anybody waiting should look.
    pub(super) fn arrived(&mut self, id: ConnId, bytes: &[u8]) -> bool {
        let mut news = self.observe(Stage::Arrived, id, bytes);
        self.with(id, |connection| {
            if connection.subscribe.feed(id, bytes) > 0 && !connection.subscriber {
                connection.subscriber = true;
                news = true;
            }
        });
        news
    }

    /// A request has gone to the server. Returns whether anybody waiting should look.
    pub(super) fn delivered(&mut self, id: ConnId, bytes: &[u8]) -> bool {
        self.observe(Stage::Delivered, id, bytes)
    }

    /// The stray reply is due if these bytes, which are about to be delivered, ask for it.
    pub(super) fn go_astray(&mut self, id: ConnId, bytes: &[u8]) {
        let due = |(matcher, _): &mut (Matcher, Vec<u8>)| matcher.feed(id, bytes) > 0;
        if let Some((_, stray)) = self.stray_once.take_if(due) {
            self.with(id, |connection| connection.stray = stray);
        }
    }

    /// What the client gets in place of a reply.
    pub(super) fn with_stray(&mut self, id: ConnId, reply: Vec<u8>) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.with(id, |connection| bytes = std::mem::take(&mut connection.stray));
        bytes.extend(reply);
        bytes
    }

    /// Whether the single fault strikes with these bytes, which are about to be delivered.
    pub(super) fn strike(&mut self, id: ConnId, bytes: &[u8]) -> bool {
        let strikes =
            self.drop_reply_once.as_mut().is_some_and(|matcher| matcher.feed(id, bytes) > 0);
        if strikes {
            self.drop_reply_once = None;
            self.with(id, |connection| connection.doomed = true);
        }
        strikes
    }

    fn any(&self, id: ConnId, property: impl FnOnce(&Connection) -> bool) -> bool {
        self.connections.get(&id).is_some_and(property)
    }

    fn observe(&mut self, stage: Stage, id: ConnId, bytes: &[u8]) -> bool {
        let counts = self.watches.values_mut().map(|watch| watch.observe(stage, id, bytes));
        counts.fold(false, |news, count| news | (count > 0))
    }
}
