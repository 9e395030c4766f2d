//! Servers that know nothing of each other: the members of a quorum.

use std::net::Ipv4Addr;

use crate::node::{Node, Side, Site};
use crate::process::eventually;
use crate::server::{RedisServer, RedisServerBuilder};

/// Independent servers, each behind a proxy if asked for. Each can be asked, paused and killed as
/// [`Node::server`].
#[derive(Debug)]
pub struct Quorum {
    nodes: Vec<Node>,
}

impl Quorum {
    /// Starts so many members.
    ///
    /// # Panics
    ///
    /// If they cannot be started.
    pub fn start(members: usize) -> Self {
        Self::builder(members).start()
    }

    /// Members with options.
    pub fn builder(members: usize) -> QuorumBuilder {
        QuorumBuilder { members, proxied: false, movable_clocks: false, tls: false }
    }

    /// All members.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One member.
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// The server of a member.
    pub fn server(&self, index: usize) -> &RedisServer {
        self.nodes[index].server()
    }

    /// The URL of each member.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Node::url).collect()
    }

    /// The URL of all members: `quorum:redis://…,redis://…`.
    pub fn url(&self) -> String {
        format!("quorum:{}", self.urls().join(","))
    }

    /// Cuts a member off from all clients, without notice. Connections stay open, also new ones, but
    /// nothing arrives.
    ///
    /// # Panics
    ///
    /// If the members were not started with `proxied()`.
    #[track_caller]
    pub fn cut(&self, index: usize) {
        self.nodes[index].separate(self.nodes.iter(), Side::Clients, true);
    }

    /// Ends a [`cut`](Self::cut). Connections of clients are reset.
    ///
    /// # Panics
    ///
    /// If the members were not started with `proxied()`.
    #[track_caller]
    pub fn heal(&self, index: usize) {
        self.nodes[index].separate(self.nodes.iter(), Side::Clients, false);
    }

    /// Writes what a member has now to its disk, for [`restore`](Self::restore).
    ///
    /// # Panics
    ///
    /// If it does not answer.
    #[track_caller]
    pub fn save(&self, index: usize) {
        self.server(index).cli(&["SAVE"]).ok();
    }

    /// Kills a member and starts it with what was [saved](Self::save) last.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn restore(&self, index: usize) {
        self.server(index).kill();
        self.server(index).restart();
    }

    /// A new server that has all that a member has, and follows it until told otherwise.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    #[track_caller]
    pub fn replica_of(&self, index: usize) -> RedisServer {
        let replica = member().start();
        follow(&replica, self.server(index));
        replica
    }

    /// Makes a member a replica of another server, and a primary again once it has the other's data. Its
    /// connections stay open.
    ///
    /// # Panics
    ///
    /// If it does not answer, or does not get the data in time.
    #[track_caller]
    pub fn replicate_for_a_while(&self, index: usize, from: &RedisServer) {
        follow(self.server(index), from);
        self.server(index).cli(&["REPLICAOF", "NO", "ONE"]).ok();
    }

    /// Leads the address of a member to another server. Open connections are cut.
    ///
    /// # Panics
    ///
    /// If the members were not started with `proxied()`.
    #[track_caller]
    pub fn lead_to(&self, index: usize, server: &RedisServer) {
        let proxy = self.nodes[index].proxy();
        proxy.redirect(server.port());
        proxy.cut();
    }
}

/// Returns when `server` has what `from` has.
#[track_caller]
fn follow(server: &RedisServer, from: &RedisServer) {
    // Not five seconds later, when others may have come, and also from an address that is not 127.0.0.1.
    for (option, value) in [("repl-diskless-sync-delay", "0"), ("protected-mode", "no")] {
        from.cli(&["CONFIG", "SET", option, value]).ok();
    }
    server.cli(&["REPLICAOF", "127.0.0.1", &from.port().to_string()]).ok();
    let offset = |section: &str| server.info_field("replication", section);
    eventually("it has the data of the other", || {
        offset("master_link_status") == "up"
            && offset("slave_repl_offset") == from.info_field("replication", "master_repl_offset")
    });
}

/// It loses its data at a restart, unless they were saved.
fn member() -> RedisServerBuilder {
    RedisServer::builder().persistent(true)
}

/// Options of a [`Quorum`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing runs before start()"]
pub struct QuorumBuilder {
    members: usize,
    proxied: bool,
    movable_clocks: bool,
    tls: bool,
}

impl QuorumBuilder {
    /// Puts a proxy in front of each member.
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Lets the wall clock of each member be [moved](RedisServer::move_clock).
    pub fn movable_clocks(mut self) -> Self {
        self.movable_clocks = true;
        self
    }

    /// Speaks TLS only. Each member has certificates of its own.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts the members.
    ///
    /// # Panics
    ///
    /// If they cannot be started.
    pub fn start(self) -> Quorum {
        let node = |index| {
            let number = u8::try_from(index + 1).expect("a few members");
            let site = Site::new(self.proxied, Ipv4Addr::new(127, 0, 4, number));
            let builder = if self.movable_clocks { member().movable_clock() } else { member() };
            site.start(if self.tls { builder.tls() } else { builder })
        };
        Quorum { nodes: (0..self.members).map(node).collect() }
    }
}
