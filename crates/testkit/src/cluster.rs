//! A Redis Cluster.
//!
//! The nodes start with a `nodes.conf` that names all of them, as if they had met before: meeting would
//! take seconds more than the two in which a primary that has just started refuses to serve.

mod migration;
mod slot;
mod view;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::FaultProxy;
use crate::node::{Node, Side};
use crate::port::{self, Reservation};
use crate::process::eventually;
use crate::server::{Flavour, RedisServer, RedisServerBuilder};
use migration::Migration;
use view::{Member, View};

/// How many shards there are.
const SHARDS: usize = 3;

/// A busy machine must not make nodes replace each other.
const NODE_TIMEOUT: Duration = Duration::from_secs(15);

/// While the death of a node is what the others shall find out.
const SHORT_NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// A node gives up an ordered failover after five seconds.
const FAILOVER_LIMIT: Duration = Duration::from_secs(6);

/// How many nodes there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shape {
    /// Three primaries.
    Primaries,
    /// Three primaries with one replica each.
    Replicated,
}

/// A cluster of three shards. The members of shard `i` are the nodes `i` (its primary at first) and `i + 3`.
///
/// One that is started later has higher epochs, and other node ids. A shard that is down does not make the others refuse requests. A node keeps its role, its epoch and its
/// slots over a restart, but not its data.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    /// Counts the clusters of this process.
    number: u32,
    flavour: Flavour,
    node_timeout: Duration,
    /// The slots that are being migrated.
    migrations: Mutex<BTreeMap<u16, Migration>>,
    _bus_ports: Vec<Reservation>,
}

impl Cluster {
    /// Starts a cluster; returns when every node says that it is up and all replicas are in sync.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn start(shape: Shape) -> Self {
        Self::builder(shape).start()
    }

    /// A cluster with options.
    pub fn builder(shape: Shape) -> ClusterBuilder {
        ClusterBuilder {
            shape,
            password: None,
            tls: false,
            proxied: false,
            flavour: Flavour::default(),
            node_timeout: NODE_TIMEOUT,
        }
    }

    /// The cluster, with replicas, that all tests of this process share. They leave it as it is.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(Shape::Replicated))
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node.
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// The URL with one node of each shard: `redis+cluster://…`.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.nodes[..SHARDS].iter().map(Node::host).collect();
        self.url_of(&hosts.join(","))
    }

    /// The URL with one node only.
    pub fn seed(&self, index: usize) -> String {
        self.url_of(&self.nodes[index].host())
    }

    /// The URL with these hosts, separated by commas.
    pub fn url_of(&self, hosts: &str) -> String {
        self.nodes[0].server().url_of("+cluster", hosts)
    }

    /// The primary of a shard: of its nodes that answer, the primary with the highest epoch.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[track_caller]
    pub fn primary(&self, shard: usize) -> &Node {
        &self.nodes[self.primary_index(shard)]
    }

    /// The replica of a shard.
    ///
    /// # Panics
    ///
    /// If it does not answer, or there is none.
    #[track_caller]
    pub fn replica(&self, shard: usize) -> &Node {
        &self.nodes[self.replica_index(shard)]
    }

    /// The slot of a key.
    pub fn slot_of(key: &str) -> u16 {
        slot::of_key(key)
    }

    /// The shard of a slot.
    ///
    /// # Panics
    ///
    /// If no shard has it.
    #[track_caller]
    pub fn shard_of_slot(&self, slot: u16) -> usize {
        let has = |shard: &usize| self.slots_of(*shard).any(|of| of == slot);
        (0..SHARDS).find(has).unwrap_or_else(|| panic!("no shard has slot {slot}"))
    }

    /// The shard of a key.
    ///
    /// # Panics
    ///
    /// If no shard has its slot.
    #[track_caller]
    pub fn shard_of(&self, key: &str) -> usize {
        self.shard_of_slot(slot::of_key(key))
    }

    /// The primary of the shard of a key.
    ///
    /// # Panics
    ///
    /// If no shard has its slot.
    #[track_caller]
    pub fn owner_of(&self, key: &str) -> &Node {
        self.primary(self.shard_of(key))
    }

    /// The shard of each slot.
    ///
    /// # Panics
    ///
    /// If a shard has no primary.
    #[track_caller]
    pub fn slot_map(&self) -> BTreeMap<u16, usize> {
        let of = |shard| self.slots_of(shard).map(move |slot| (slot, shard));
        (0..SHARDS).flat_map(of).collect()
    }

    /// A lock name in a shard.
    #[track_caller]
    pub fn name_on(&self, shard: usize) -> String {
        self.names_on(shard, 1).remove(0)
    }

    /// Lock names in a shard, in many slots.
    #[track_caller]
    pub fn names_on(&self, shard: usize, count: usize) -> Vec<String> {
        let map = self.slot_map();
        names(|slot| map[&slot] == shard).take(count).collect()
    }

    /// Makes the replica of a shard its primary, in an orderly way; returns when all nodes agree.
    ///
    /// # Panics
    ///
    /// If it does not become the primary in time.
    #[track_caller]
    pub fn failover(&self, shard: usize) -> &Node {
        self.await_agreement();
        let replica = self.replica_index(shard);
        let mut ordered: Option<Instant> = None;
        eventually("the replica takes over", || {
            if ordered.is_none_or(|at| at.elapsed() > FAILOVER_LIMIT) {
                self.nodes[replica].server().cli(&["CLUSTER", "FAILOVER"]).ok();
                ordered = Some(Instant::now());
            }
            self.primary_index(shard) == replica
        });
        self.await_owners();
        &self.nodes[replica]
    }

    /// Kills the primary of a shard; returns when its replica is the primary and all nodes agree, with the
    /// node timeout short meanwhile.
    ///
    /// # Panics
    ///
    /// If it does not become the primary in time.
    #[track_caller]
    pub fn fail_over_by_killing(&self, shard: usize) -> &Node {
        let replica = self.replica_index(shard);
        self.set_node_timeout(SHORT_NODE_TIMEOUT);
        self.primary(shard).server().kill();
        let primary = || view::of(&self.nodes[replica])[&replica].replicates.is_none();
        eventually("the replica takes over", primary);
        self.set_node_timeout(self.node_timeout);
        self.await_owners();
        &self.nodes[replica]
    }

    /// Starts a killed node again; returns when all nodes agree.
    ///
    /// # Panics
    ///
    /// If it cannot be started, or they do not agree in time.
    #[track_caller]
    pub fn restart(&self, index: usize) {
        self.nodes[index].server().restart();
        self.await_agreement();
    }

    /// Cuts a node off from its clients, without notice. Connections stay open, also new ones, but nothing
    /// arrives. The other nodes still reach it.
    ///
    /// # Panics
    ///
    /// If the nodes were not started with `proxied()`.
    #[track_caller]
    pub fn cut(&self, index: usize) {
        self.nodes[index].separate(self.nodes.iter(), Side::Clients, true);
    }

    /// Ends a [`cut`](Self::cut). Connections of clients are reset.
    ///
    /// # Panics
    ///
    /// If the nodes were not started with `proxied()`.
    #[track_caller]
    pub fn heal(&self, index: usize) {
        self.nodes[index].separate(self.nodes.iter(), Side::Clients, false);
    }

    /// Returns when all nodes that answer serve requests and agree on roles and slots, and replicas have a
    /// link to their primaries.
    ///
    /// # Panics
    ///
    /// If that is not so in time.
    #[track_caller]
    pub fn await_agreement(&self) {
        eventually("the nodes agree, the replicas have a link", || {
            self.is_agreed(|_| true) && self.answering().all(|index| self.is_linked(index))
        });
    }

    /// The same, whatever replicas do: the role of a former primary spreads slowly.
    #[track_caller]
    fn await_owners(&self) {
        eventually("the nodes agree on the owners", || {
            self.is_agreed(|member| !member.slots.is_empty())
        });
    }

    /// Whether all nodes that answer serve requests, and agree on those of them that are asked for.
    #[track_caller]
    fn is_agreed(&self, asked: impl Fn(&Member) -> bool) -> bool {
        let views = self.answering().map(|index| {
            let mut view = view::of(&self.nodes[index]);
            view.retain(|index, of| self.nodes[*index].server().is_answering() && asked(of));
            view
        });
        let views: Vec<View> = views.collect();
        views.iter().all(|view| *view == views[0])
            && views[0].values().all(|member| member.well)
            && self.answering().all(|index| self.is_serving(index))
    }

    fn answering(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|index| self.nodes[*index].server().is_answering())
    }

    #[track_caller]
    fn is_serving(&self, index: usize) -> bool {
        let info = self.nodes[index].server().cli(&["CLUSTER", "INFO"]).ok();
        info.text().contains("cluster_state:ok")
    }

    /// Whether it is a primary, a replica with a link, or one whose primary cannot have links.
    #[track_caller]
    fn is_linked(&self, index: usize) -> bool {
        let node = &self.nodes[index];
        let primary = view::of(node).remove(&index).and_then(|own| own.replicates);
        primary.is_none_or(|of| {
            !self.nodes[of].server().is_answering()
                || node.server().info_field("replication", "master_link_status") == "up"
        })
    }

    #[track_caller]
    fn primary_index(&self, shard: usize) -> usize {
        let answering = self.answering().filter(|index| index % SHARDS == shard);
        let own = answering.map(|index| (index, view::of(&self.nodes[index]).remove(&index)));
        let own = own.filter_map(|(index, own)| Some((index, own?)));
        let primaries = own.filter(|(_, own)| own.replicates.is_none());
        let newest = primaries.max_by_key(|(_, own)| own.epoch);
        newest.unwrap_or_else(|| panic!("shard {shard} has no primary")).0
    }

    #[track_caller]
    fn replica_index(&self, shard: usize) -> usize {
        let primary = self.primary_index(shard);
        let replica = [shard, shard + SHARDS].into_iter().find(|index| *index != primary);
        let replica = replica.filter(|index| *index < self.nodes.len());
        replica.expect("only a cluster started with Shape::Replicated has replicas")
    }

    #[track_caller]
    fn slots_of(&self, shard: usize) -> impl Iterator<Item = u16> + use<> {
        let index = self.primary_index(shard);
        let own = view::of(&self.nodes[index]).remove(&index).expect("a node knows itself");
        own.all_slots().collect::<Vec<_>>().into_iter()
    }

    fn set_node_timeout(&self, timeout: Duration) {
        let millis = timeout.as_millis().to_string();
        for node in self.nodes.iter().filter(|node| node.server().is_answering()) {
            node.server().cli(&["CONFIG", "SET", "cluster-node-timeout", &millis]).ok();
        }
    }
}

/// Names without braces in the slots that `wanted` says.
fn names(wanted: impl Fn(u16) -> bool) -> impl Iterator<Item = String> {
    (0..).map(|n| format!("name-{n}")).filter(move |name| wanted(slot::of_key(name)))
}

/// Options of a [`Cluster`].
#[derive(Clone, Debug)]
#[must_use = "nothing runs before start()"]
pub struct ClusterBuilder {
    shape: Shape,
    password: Option<String>,
    tls: bool,
    proxied: bool,
    flavour: Flavour,
    node_timeout: Duration,
}

impl ClusterBuilder {
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

    /// Puts a proxy in front of each node; it is the proxy's address that the nodes announce.
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Runs these servers, whatever the environment says.
    pub fn flavour(mut self, flavour: Flavour) -> Self {
        self.flavour = flavour;
        self
    }

    /// How long a node is silent before the others take it for dead, 15 s by default.
    pub fn node_timeout(mut self, node_timeout: Duration) -> Self {
        self.node_timeout = node_timeout;
        self
    }

    /// Starts the cluster; returns when every node says that it is up and all replicas are in sync.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn start(self) -> Cluster {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let count = if self.shape == Shape::Replicated { 2 * SHARDS } else { SHARDS };
        let sites: Vec<_> = (0..count).map(|index| Site::new(self.proxied, index)).collect();
        let ports: Vec<_> = sites.iter().map(|site| (site.port(), site.bus.port())).collect();
        let mut sites = sites.into_iter().enumerate();
        let builder = |index, site: &Site, first: Option<&Node>| {
            let file = view::file(number, index, &ports, SHARDS, self.flavour);
            self.server(site, first).file("nodes.conf", file)
        };
        let mut started = Vec::new();
        for (index, site) in sites.by_ref().take(1) {
            let server = builder(index, &site, None);
            started.push(site.start(server));
        }
        let first = &started[0].0;
        let others = thread::scope(|scope| {
            let start = |(index, site): (usize, Site)| {
                let server = builder(index, &site, Some(first));
                scope.spawn(move || site.start(server))
            };
            let starting: Vec<_> = sites.map(start).collect();
            let joined = starting.into_iter().map(thread::ScopedJoinHandle::join);
            joined
                .collect::<Result<Vec<_>, _>>()
                .unwrap_or_else(|error| std::panic::resume_unwind(error))
        });
        started.extend(others);
        let (nodes, bus_ports) = started.into_iter().unzip();
        let cluster = Cluster {
            nodes,
            number,
            flavour: self.flavour,
            node_timeout: self.node_timeout,
            migrations: Mutex::default(),
            _bus_ports: bus_ports,
        };
        cluster.await_agreement();
        cluster
    }

    fn server(&self, site: &Site, first: Option<&Node>) -> RedisServerBuilder {
        let builder = RedisServer::builder().flavour(self.flavour);
        let builder = match first.and_then(|first| first.server().shared_certificates()) {
            Some(certificates) => builder.certificates(certificates.clone()),
            None if self.tls => builder.tls(),
            None => builder,
        };
        let builder = match &self.password {
            Some(password) => builder.password(password).arg("--masterauth", password),
            None => builder,
        };
        let announced =
            if self.tls { "--cluster-announce-tls-port" } else { "--cluster-announce-port" };
        let millis = self.node_timeout.as_millis().to_string();
        let builder = builder
            .arg("--cluster-enabled", "yes")
            .arg("--cluster-config-file", "nodes.conf")
            .arg("--cluster-node-timeout", millis)
            .arg("--cluster-require-full-coverage", "no")
            // Replicas stay in their shards.
            .arg("--cluster-migration-barrier", "100")
            .arg("--cluster-announce-ip", "127.0.0.1")
            .arg(announced, site.port().to_string())
            .arg("--cluster-announce-bus-port", site.bus.port().to_string());
        // Or a replica waits five seconds for others to come.
        builder.arg("--repl-diskless-sync", "yes").arg("--repl-diskless-sync-delay", "0")
    }
}

/// The addresses of a node that has not been started.
#[derive(Debug)]
struct Site {
    own: Reservation,
    bus: Reservation,
    proxy: Option<(FaultProxy, Ipv4Addr)>,
}

impl Site {
    fn new(proxied: bool, index: usize) -> Self {
        let (own, bus) = port::reserve_with_bus();
        let number = u8::try_from(index + 1).expect("a few nodes");
        let proxy = || (FaultProxy::start_blocking(own.port()), Ipv4Addr::new(127, 0, 3, number));
        Self { proxy: proxied.then(proxy), own, bus }
    }

    /// The port for clients.
    fn port(&self) -> u16 {
        self.proxy.as_ref().map_or_else(|| self.own.port(), |(proxy, _)| proxy.port())
    }

    fn start(self, builder: RedisServerBuilder) -> (Node, Reservation) {
        let source = self.proxy.as_ref().map(|(_, source)| *source);
        let server = builder.reserved_port(self.own).source(source).start();
        (Node::new(server, self.proxy), self.bus)
    }
}
