//! A primary, its replicas, and three sentinels that watch them.
//!
//! The sentinels start with a configuration that names all nodes, as if they had found each other before:
//! finding each other would take seconds.

mod config;
mod switch;

use std::time::{Duration, Instant};

pub use switch::{Switch, SwitchWatch};

use crate::node::{Node, Side, Site};
use crate::process::eventually;
use crate::replicated::{Replicated, ReplicatedBuilder};
use crate::{Reply, percent};
use config::{Config, MASTER};

/// How many sentinels there are; two of them agree on a failover.
const COUNT: usize = 3;

/// A busy machine must not make sentinels replace a primary.
const DOWN_AFTER: Duration = Duration::from_secs(15);

/// While the death of a primary is what they shall find out.
const SHORT_DOWN_AFTER: Duration = Duration::from_millis(500);

/// Servers and the three sentinels that watch them, under the name `mymaster`.
///
/// A sentinel keeps what it learnt over a restart.
#[derive(Debug)]
pub struct Sentinels {
    config: Config,
    password: Option<String>,
    // Before the servers, so that no sentinel sees one die.
    sentinels: Vec<Node>,
    replicated: Replicated,
}

impl Sentinels {
    /// Starts a primary, two replicas and three sentinels; returns when they are ready for a failover.
    ///
    /// # Panics
    ///
    /// If they cannot be started.
    pub fn start() -> Self {
        Replicated::builder().sentinels().start()
    }

    /// The servers. Their primary is the last that the sentinels were seen to agree on, by this value.
    pub fn servers(&self) -> &Replicated {
        &self.replicated
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Node] {
        &self.sentinels
    }

    /// The URL of the sentinels, with the passwords of the servers and of the sentinels:
    /// `redis+sentinel://…/mymaster`.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(Node::host).collect();
        let password = self.password.as_deref().map(percent::encoded);
        let query = password.map(|password| format!("?sentinel_password={password}"));
        let hosts = format!("{}/{MASTER}{}", hosts.join(","), query.unwrap_or_default());
        self.replicated.primary().server().url_of("+sentinel", &hosts)
    }

    /// Watches for the announcement of a new primary, by every sentinel that was not killed. From here on
    /// they take a server that is silent for half a second for dead.
    ///
    /// # Panics
    ///
    /// If one of them is paused.
    #[track_caller]
    pub fn watch(&self) -> SwitchWatch<'_> {
        let millis = SHORT_DOWN_AFTER.as_millis().to_string();
        for sentinel in self.running() {
            let set = ["SENTINEL", "SET", MASTER, "down-after-milliseconds", &millis];
            sentinel.server().cli(&set).ok();
        }
        SwitchWatch::new(&self.replicated, self.running())
    }

    /// Orders a failover; returns when all sentinels have announced the new primary. That takes a second
    /// for the others and more for the sentinel that leads it.
    ///
    /// # Panics
    ///
    /// If they refuse, or do not announce it in time.
    #[track_caller]
    pub fn failover(&self) -> Switch {
        let watch = SwitchWatch::new(&self.replicated, self.running());
        let leader = self.running().next().expect("a sentinel is running");
        leader.server().cli(&["SENTINEL", "FAILOVER", MASTER]).ok();
        watch.wait()
    }

    /// Returns when every sentinel that was not killed names the server at this port, and that server
    /// says that it is a primary.
    ///
    /// # Panics
    ///
    /// If that is not so in time, or one of them is paused.
    #[track_caller]
    pub fn await_primary(&self, port: u16) -> &Node {
        let node = self.replicated.promoted(port);
        eventually("the sentinels agree on the primary", || {
            self.running().all(|sentinel| named_by(sentinel) == port) && node.is_primary()
        });
        node
    }

    /// Makes the sentinels forget all failovers: they restart with epoch 0 and the primary of
    /// [`servers`](Self::servers). Returns when they are ready for a failover.
    ///
    /// # Panics
    ///
    /// If they cannot be started, or a server does not answer.
    #[track_caller]
    pub fn reset(&self) {
        // All first: one that runs would tell the others.
        self.sentinels.iter().for_each(|sentinel| sentinel.server().kill());
        for (index, sentinel) in self.sentinels.iter().enumerate() {
            sentinel.server().replace_config_file(&self.config.text(index, &self.replicated));
            sentinel.server().restart();
        }
        self.await_ready();
    }

    /// Cuts a server or a sentinel off from its clients or its peers, without notice to either.
    /// Connections stay open, also new ones, but nothing arrives.
    ///
    /// # Panics
    ///
    /// If the nodes were not started with `proxied()`.
    #[track_caller]
    pub fn cut(&self, node: &Node, side: Side) {
        node.separate(self.nodes(), side, true);
    }

    /// Ends a [`cut`](Self::cut). The connections that it concerned are reset.
    ///
    /// # Panics
    ///
    /// If the nodes were not started with `proxied()`.
    #[track_caller]
    pub fn heal(&self, node: &Node, side: Side) {
        node.separate(self.nodes(), side, false);
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.replicated.nodes().iter().chain(&self.sentinels)
    }

    fn running(&self) -> impl Iterator<Item = &Node> {
        self.sentinels.iter().filter(|sentinel| sentinel.server().is_running())
    }

    /// A failover needs sentinels that hear each other and replicas that they have asked for their state.
    #[track_caller]
    fn await_ready(&self) {
        let start = Instant::now();
        let replicas = self.replicated.nodes().len() - 1;
        eventually("the sentinels are ready for a failover", || {
            // What was heard before `start` is only assumed: it was read from the configuration.
            let since = start.elapsed();
            self.sentinels.iter().all(|sentinel| {
                let ask = |what| sentinel.server().cli(&["SENTINEL", what, MASTER]).ok();
                let (others, servers) = (ask("SENTINELS"), ask("SLAVES"));
                let count = |nodes: &Reply, flags| {
                    nodes.array().iter().filter(|node| is_heard(node, flags, since)).count()
                };
                is_heard(&ask("MASTER"), "master", since)
                    && count(&others, "sentinel") == COUNT - 1
                    && count(&servers, "slave") == replicas
                    && servers.array().iter().all(was_asked)
            })
        });
    }
}

/// Whether a sentinel got an answer of a node within this time, and sees nothing wrong with it.
fn is_heard(node: &Reply, flags: &str, within: Duration) -> bool {
    field(node, "flags") == flags && millis(node, "last-ok-ping-reply") < within
}

/// Whether a sentinel knows the state of a replica. If not, the time since is 0 or, in Redis 6, decades.
fn was_asked(replica: &Reply) -> bool {
    let since = millis(replica, "info-refresh");
    !since.is_zero() && since < Duration::from_secs(3600)
}

#[track_caller]
fn millis(node: &Reply, name: &str) -> Duration {
    Duration::from_millis(field(node, name).parse().expect("a number of milliseconds"))
}

/// A field of what a sentinel says about a node.
#[track_caller]
fn field<'a>(node: &'a Reply, name: &str) -> &'a str {
    let pair = node.array().chunks(2).find(|pair| pair[0].text() == name);
    pair.unwrap_or_else(|| panic!("no field {name} in {node:?}"))[1].text()
}

/// The port of the primary, as a sentinel sees it.
#[track_caller]
fn named_by(sentinel: &Node) -> u16 {
    let address = sentinel.server().cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]).ok();
    address.array()[1].text().parse().expect("a port")
}

/// Options of [`Sentinels`].
#[derive(Debug)]
#[must_use = "nothing runs before start()"]
pub struct SentinelsBuilder {
    servers: ReplicatedBuilder,
    password: Option<String>,
    down_after: Duration,
}

impl SentinelsBuilder {
    pub(crate) fn new(servers: ReplicatedBuilder) -> Self {
        Self { servers, password: None, down_after: DOWN_AFTER }
    }

    /// Requires this password of the clients of sentinels; that of the servers may be another one.
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// How long a server is silent before a sentinel takes it for dead, 15 s by default, until
    /// [`watch`](Sentinels::watch) is called.
    pub fn down_after(mut self, down_after: Duration) -> Self {
        self.down_after = down_after;
        self
    }

    /// Starts the servers and the sentinels; returns when they are ready for a failover.
    ///
    /// # Panics
    ///
    /// If they cannot be started.
    pub fn start(self) -> Sentinels {
        let Self { servers, password, down_after } = self;
        let sites: Vec<Site> = (0..COUNT).map(|index| servers.site(2, index)).collect();
        let config = Config {
            ports: sites.iter().map(Site::port).collect(),
            password: servers.password_of_servers().map(str::to_owned),
            down_after,
        };
        let replicated = servers.clone().start();
        let certificates = replicated.primary().server().shared_certificates();
        let start = |(index, site): (usize, Site)| {
            let builder = servers.server(password.as_deref(), certificates);
            site.start(builder.sentinel().config_file(config.text(index, &replicated)))
        };
        let sentinels = sites.into_iter().enumerate().map(start).collect();
        let sentinels = Sentinels { config, password, sentinels, replicated };
        sentinels.await_ready();
        sentinels
    }
}
