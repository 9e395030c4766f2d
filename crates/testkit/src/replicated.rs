//! A primary and its replicas.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::certificates::Certificates;
use crate::node::{Node, Side, Site};
use crate::process::eventually;
use crate::sentinels::SentinelsBuilder;
use crate::server::{Flavour, RedisServer, RedisServerBuilder};

/// Written and deleted to find out whether replicas are in sync.
const PROBE: &str = "testkit_probe";

/// Servers of which one is the primary and the others replicate from it.
///
/// A node keeps its role over a restart, as with a configuration file in production, but not its data.
#[derive(Debug)]
pub struct Replicated {
    nodes: Vec<Node>,
    /// The index of the node that was last seen to be promoted.
    primary: AtomicUsize,
}

impl Replicated {
    /// Starts a primary with two replicas; returns when they are in sync.
    ///
    /// # Panics
    ///
    /// If they cannot be started.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Servers with options.
    pub fn builder() -> ReplicatedBuilder {
        ReplicatedBuilder::default()
    }

    /// All nodes; the one that was the primary at first is the first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The primary: the node that was promoted last.
    pub fn primary(&self) -> &Node {
        &self.nodes[self.primary.load(Ordering::SeqCst)]
    }

    /// The other nodes.
    pub fn replicas(&self) -> Vec<&Node> {
        let primary = self.primary().port();
        self.nodes.iter().filter(|node| node.port() != primary).collect()
    }

    /// The URL of all nodes: `redis+replicated://…`.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(Node::host).collect();
        self.primary().server().url_of("+replicated", &hosts.join(","))
    }

    /// Makes a node a primary. The others are not changed: there may be two.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    #[track_caller]
    pub fn promote(&self, node: &Node) {
        node.replicate(None);
        self.promoted(node.port());
    }

    /// Makes a node a replica of another one.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    #[track_caller]
    pub fn demote(&self, node: &Node, to: &Node) {
        node.replicate(Some(to));
    }

    /// Cuts a node off from its clients or its peers, without notice to either. Connections stay open,
    /// also new ones, but nothing arrives.
    ///
    /// # Panics
    ///
    /// If the nodes were not started with `proxied()`.
    #[track_caller]
    pub fn cut(&self, node: &Node, side: Side) {
        node.separate(self.nodes.iter(), side, true);
    }

    /// Ends a [`cut`](Self::cut). The connections that it concerned are reset.
    ///
    /// # Panics
    ///
    /// If the nodes were not started with `proxied()`.
    #[track_caller]
    pub fn heal(&self, node: &Node, side: Side) {
        node.separate(self.nodes.iter(), side, false);
    }

    /// Returns when so many replicas have everything that the primary has.
    ///
    /// # Panics
    ///
    /// If they do not in time.
    #[track_caller]
    pub fn await_in_sync(&self, replicas: usize) {
        let mut cli = self.primary().server().connection();
        let count = replicas.to_string();
        eventually("the replicas are in sync", || {
            // `WAIT` is about the writes of its own connection.
            cli.cmd(&["SET", PROBE, "1"]).ok();
            cli.cmd(&["DEL", PROBE]).ok();
            cli.cmd(&["WAIT", &count, "50"]).int() >= i64::try_from(replicas).expect("a few")
        });
    }

    /// The node at this port became the primary.
    #[track_caller]
    pub(crate) fn promoted(&self, port: u16) -> &Node {
        let index = self.nodes.iter().position(|node| node.port() == port);
        let index = index.unwrap_or_else(|| panic!("no node has port {port}"));
        self.primary.store(index, Ordering::SeqCst);
        &self.nodes[index]
    }
}

/// Options of [`Replicated`].
#[derive(Clone, Debug)]
#[must_use = "nothing runs before start()"]
pub struct ReplicatedBuilder {
    replicas: usize,
    password: Option<String>,
    tls: bool,
    proxied: bool,
    flavour: Flavour,
}

impl Default for ReplicatedBuilder {
    fn default() -> Self {
        let flavour = Flavour::default();
        Self { replicas: 2, password: None, tls: false, proxied: false, flavour }
    }
}

impl ReplicatedBuilder {
    /// How many replicas there are, two by default.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Requires this password, also from replicas.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Speaks TLS only, also between the nodes. All have the certificates of the first one.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Puts a proxy in front of each node.
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Runs these servers, whatever the environment says.
    pub fn flavour(mut self, flavour: Flavour) -> Self {
        self.flavour = flavour;
        self
    }

    /// Adds three sentinels.
    pub fn sentinels(self) -> SentinelsBuilder {
        SentinelsBuilder::new(self)
    }

    /// Starts the servers; returns when the replicas are in sync.
    ///
    /// # Panics
    ///
    /// If they cannot be started.
    pub fn start(self) -> Replicated {
        let mut nodes: Vec<Node> = Vec::new();
        for index in 0..=self.replicas {
            let certificates = nodes.first().and_then(|node| node.server().shared_certificates());
            let site = self.site(1, index);
            let builder = self.server(self.password.as_deref(), certificates);
            let builder = builder.arg("--replica-announce-ip", "127.0.0.1");
            let builder = builder.arg("--replica-announce-port", site.port().to_string());
            // Or a replica waits five seconds for others to come.
            let builder = builder.arg("--repl-diskless-sync", "yes");
            let builder = builder.arg("--repl-diskless-sync-delay", "0");
            let builder = match &self.password {
                Some(password) => builder.arg("--masterauth", password),
                None => builder,
            };
            let node = site.start(builder.config_file(String::new()));
            if let Some(primary) = nodes.first() {
                node.replicate(Some(primary));
            }
            nodes.push(node);
        }
        let replicated = Replicated { nodes, primary: AtomicUsize::new(0) };
        replicated.await_in_sync(self.replicas);
        replicated
    }

    /// The address of the next node of a group.
    pub(crate) fn site(&self, group: u8, index: usize) -> Site {
        let number = u8::try_from(index + 1).expect("a few nodes");
        Site::new(self.proxied, Ipv4Addr::new(127, 0, group, number))
    }

    /// What servers and sentinels have in common. Certificates of its own if there are none.
    pub(crate) fn server(
        &self,
        password: Option<&str>,
        certificates: Option<&Certificates>,
    ) -> RedisServerBuilder {
        let builder = RedisServer::builder().flavour(self.flavour);
        let builder = match password {
            Some(password) => builder.password(password),
            None => builder,
        };
        match certificates {
            Some(certificates) => builder.certificates(certificates.clone()),
            None if self.tls => builder.tls(),
            None => builder,
        }
    }

    /// The password of the servers.
    pub(crate) fn password_of_servers(&self) -> Option<&str> {
        self.password.as_deref()
    }
}
