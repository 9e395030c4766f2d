//! Announcements of a new primary.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::node::Node;
use crate::replicated::Replicated;

const CHANNEL: &str = "+switch-master";

/// A failover has ended within this, or the test has failed. Two elections may fail before.
const LIMIT: Duration = Duration::from_secs(30);

/// A new primary, as the sentinels announced it.
#[derive(Clone, Debug)]
pub struct Switch {
    /// The port of the new primary.
    pub port: u16,
    /// When each sentinel announced it, in the order of the sentinels, without killed ones.
    pub announced: Vec<Instant>,
}

/// Subscriptions to all sentinels.
#[derive(Debug)]
pub struct SwitchWatch<'a> {
    servers: &'a Replicated,
    listeners: Vec<JoinHandle<Option<(u16, Instant)>>>,
}

impl<'a> SwitchWatch<'a> {
    #[track_caller]
    pub(super) fn new<'s>(
        servers: &'a Replicated,
        sentinels: impl Iterator<Item = &'s Node>,
    ) -> Self {
        let listen = |sentinel: &Node| {
            let mut cli = sentinel.server().connection();
            cli.subscribe(&[CHANNEL]);
            // A thread each, so that the times are true.
            thread::spawn(move || {
                cli.next_message(LIMIT).map(|(_, text)| (port(&text), Instant::now()))
            })
        };
        Self { servers, listeners: sentinels.map(listen).collect() }
    }

    /// Returns when all sentinels have announced a new primary.
    ///
    /// # Panics
    ///
    /// If they do not in time, or announce different ones.
    #[track_caller]
    pub fn wait(self) -> Switch {
        let listeners = self.listeners.into_iter();
        let heard: Option<Vec<_>> =
            listeners.map(|listener| listener.join().expect("the sentinel lives")).collect();
        let heard =
            heard.unwrap_or_else(|| panic!("a sentinel announced no new primary within {LIMIT:?}"));
        let (ports, announced): (Vec<_>, _) = heard.into_iter().unzip();
        let port = ports[0];
        assert!(ports.iter().all(|other| *other == port), "sentinels announced {ports:?}");
        self.servers.promoted(port);
        Switch { port, announced }
    }
}

/// `<name> <old host> <old port> <new host> <new port>`
fn port(text: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(text);
    let port = text.split(' ').nth(4).and_then(|port| port.parse().ok());
    port.unwrap_or_else(|| panic!("not an announcement: {text}"))
}
