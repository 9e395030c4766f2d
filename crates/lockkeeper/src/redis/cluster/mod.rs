//! The shards of a cluster: which of them serves a slot, and how a change is noticed.
//!
//! **Nodes** are distinguished by their ids. An address may belong to a node of another cluster by now, so each
//! connection asks for the id of its node before it is used, and a redirection to an unknown address is
//! followed only once the node there has reported its id, and names nodes of this cluster.
//!
//! **Shards** are distinguished by the nodes in them: a promoted replica is a new primary of its shard, whose
//! lane and connections stay. A shard without slots ends after a while, and at once if its primary is a
//! replica of another one now: a redirection named the promoted replica before the client knew it, and made
//! it a shard of its own. Which of them leads to a server may change, so all share one list of connections
//! to kill, and one leads to a server only after all others have left it.
//!
//! **The slot map** comes from up to three nodes at once. An answer of an older epoch of the cluster never
//! replaces a newer one, and one that names no known node never counts, unless all answers are such for five
//! seconds: then the cluster was made anew. Answers that name no known node prove that only if they come from each
//! seed and each server that a shard is connected to: while the nodes of the cluster cannot be reached, the one that
//! has got the address of another answers alone. What
//! a redirection says outlasts all answers that name the owner before it, also those of a newer epoch: nodes
//! that voted for a new primary are of its epoch before they know that it has the slots. It does so for half
//! a second, or for two while the node that it named is connected. A redirection, one that outlasts a map, a
//! broken connection and a rejected request ask for a new map, at most ten times a second; so does a timer.
//! Nothing waits for it.
//!
//! **Redirections** show that a request did not run. Only such a request is sent again, to the node that
//! the redirection names, until its deadline and at most eight times. A request that may have run
//! is never repeated here. A request that waits for the connection to a node goes to another one as soon as
//! the slot map says so, which counts as a redirection.
//!
//! **An answer counts only if its shard and its primary still own the slot when the caller looks at it**,
//! as [`Primary`](super::primary::Primary) says for one server.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::cluster::slot_map::{Node, Range, SlotAnswer, SlotMap};
use super::connection::asker::Asker;
use super::connection::committer::AckTerms;
use super::connection::given_up::GivenUp;
use super::keys;
use super::server::Server;
use super::shard::Authority;
use super::shard::Shard;
use super::slot::{self, SLOTS};
use crate::backend::{Fault, Lane};
use crate::backend::{locked, unpoisoned};
use crate::options::ClientOptions;

mod leads;
mod redirects;
pub(super) mod refresh;
mod slot_map;

/// How long a redirection counts more than the word of a node that may not know of it yet.
const REMEMBERED: Duration = Duration::from_secs(2);

/// How long it does so without a connection to the node that it named: the time to connect.
const CONNECTS: Duration = Duration::from_millis(500);

/// How long all nodes must be of an earlier epoch, or of another cluster, before that is believed: the cluster
/// was made anew.
const EARLIER: Duration = Duration::from_secs(5);

/// How long a shard without slots keeps its connection: it may be about to get some.
const IDLE: Duration = Duration::from_secs(60);

/// The lane of slots that no shard serves.
const UNSERVED: Lane = Lane(u32::MAX);

pub(crate) struct Cluster {
    me: Weak<Cluster>,
    /// Of the client: a request may be polled in another one.
    runtime: Handle,
    seeds: Vec<Server>,
    options: ClientOptions,
    terms: Option<AckTerms>,
    /// The shard of each slot, plus one; 0 if none is known.
    owners: Box<[AtomicU16]>,
    shards: RwLock<Vec<Arc<Shard>>>,
    map: Mutex<Map>,
    /// One request at a time asks a node that is not known.
    meeting: tokio::sync::Mutex<()>,
    askers: Mutex<HashMap<String, Arc<Asker>>>,
    given_up: GivenUp,
    /// Counts the changes of owners.
    version: watch::Sender<u64>,
    suspected: Arc<Notify>,
    closed: AtomicBool,
    connected: Box<dyn Fn(Lane) + Send + Sync>,
}

/// What is known beside the owners.
#[derive(Default)]
struct Map {
    epoch: Option<u64>,
    /// The nodes of each shard, the primary first.
    nodes: Vec<Vec<Node>>,
    /// As the last slot map has them.
    ranges: Vec<Range>,
    /// The ids of the nodes in the last slot map, and of those that redirections have named since, by address.
    ids: HashMap<(String, u16), String>,
    /// Since when each shard has had no slot, and nothing to do.
    idle: Vec<Option<Instant>>,
    /// When redirections have changed slots and shards lately, with the owners of the slot and the servers of the
    /// shard before.
    redirected_slots: HashMap<u16, (Instant, Vec<u16>)>,
    redirected_shards: HashMap<usize, (Instant, Vec<String>)>,
    /// Since when all answers are of an earlier epoch than the known one, or of another cluster.
    earlier: Option<Instant>,
}

impl Map {
    /// The node at this address, if it is known.
    fn node_at(&self, host: &str, port: u16) -> Option<Node> {
        let id = self.ids.get(&(host.to_owned(), port))?.clone();
        Some(Node { id, host: host.to_owned(), port })
    }

    /// Whether an answer names none of the known nodes.
    fn is_foreign(&self, answer: &SlotAnswer) -> bool {
        let known: HashSet<_> = self.ids.values().collect();
        !known.is_empty() && !answer.nodes().any(|node| known.contains(&node.id))
    }

    /// Whether a redirection to this shard counts more than a map that gives this slot to this owner.
    fn overrules_owner(&self, slot: u16, owner: u16, shard: &Shard) -> bool {
        let redirected = self.redirected_slots.get(&slot);
        redirected.is_some_and(|(at, before)| before.contains(&owner) && still_counts(*at, shard))
    }

    /// Whether a redirection counts more than a map that leads this shard to this server.
    fn overrules_lead(&self, index: usize, server: &Server, shard: &Shard) -> bool {
        let address = server.address.to_string();
        let redirected = self.redirected_shards.get(&index);
        redirected.is_some_and(|(at, before)| before.contains(&address) && still_counts(*at, shard))
    }
}

impl Cluster {
    /// Finds the slots for the first time. `connected` is called whenever the connection to a shard is
    /// there.
    pub(super) async fn open(
        seeds: Vec<Server>,
        options: &ClientOptions,
        terms: Option<AckTerms>,
        connected: impl Fn(Lane) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, Fault> {
        let cluster = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            runtime: Handle::current(),
            seeds,
            options: options.clone(),
            terms,
            owners: (0..SLOTS).map(|_| AtomicU16::new(0)).collect(),
            shards: RwLock::default(),
            map: Mutex::default(),
            meeting: tokio::sync::Mutex::default(),
            askers: Mutex::default(),
            given_up: GivenUp::default(),
            version: watch::Sender::new(0),
            suspected: Arc::default(),
            closed: AtomicBool::new(false),
            connected: Box::new(connected),
        });
        cluster.find_first().await?;
        Ok(cluster)
    }

    pub(super) fn identity(&self) -> String {
        let mut names: Vec<_> = self.seeds.iter().map(|one| one.address.to_string()).collect();
        names.sort();
        names.join(",")
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        locked(&self.map)
    }

    /// Applies the newest of these answers.
    fn apply(&self, mut answers: Vec<SlotAnswer>) {
        let mut map = self.map();
        let is_foreign = answers.iter().all(|answer| map.is_foreign(answer));
        if !is_foreign || !self.have_all_answered(&answers) {
            answers.retain(|answer| !map.is_foreign(answer));
        }
        let Some(newest) = SlotMap::newest(answers) else {
            // What one node said a while ago is not what all say.
            map.earlier = None;
            return;
        };
        if newest.epoch >= map.epoch && !is_foreign {
            map.earlier = None;
        } else if map.earlier.get_or_insert_with(Instant::now).elapsed() < EARLIER {
            self.suspect();
            return;
        } else {
            tracing::warn!(
                "all nodes are of an earlier epoch or of another cluster: it was made anew"
            );
        }
        map.epoch = newest.epoch;
        map.redirected_slots.retain(|_, (at, _)| at.elapsed() < REMEMBERED);
        map.redirected_shards.retain(|_, (at, _)| at.elapsed() < REMEMBERED);
        let nodes = newest.ranges.iter().flat_map(Range::nodes);
        map.ids = nodes.map(|node| ((node.host.clone(), node.port), node.id.clone())).collect();
        let (owners, servers) = self.assign(&mut map, &newest);
        let shards = self.shards();
        let (mut has_changed, mut is_overruled) = (false, false);
        for (slot, owner) in owners.into_iter().enumerate() {
            let current = index(self.owners[slot].load(Ordering::Relaxed));
            let owner = number(owner);
            if current.is_some_and(|n| map.overrules_owner(slot as u16, owner, &shards[n])) {
                is_overruled = true;
            } else {
                has_changed |= self.owners[slot].swap(owner, Ordering::Relaxed) != owner;
            }
        }
        self.park(&mut map, &newest);
        is_overruled |= self.lead(&map, &servers);
        map.ranges = newest.ranges;
        drop(map);
        if has_changed {
            self.version.send_modify(|version| *version += 1);
        }
        if is_overruled {
            self.suspect();
        }
    }

    /// Whether there is an answer of each seed, and of each server that a shard is connected to.
    fn have_all_answered(&self, answers: &[SlotAnswer]) -> bool {
        let connected = self.shards().into_iter().filter(|shard| shard.connection.is_live());
        let connected = connected.filter_map(|shard| shard.primary.server());
        let mut servers = self.seeds.iter().cloned().chain(connected);
        servers.all(|server| {
            answers.iter().any(|answer| server.address.host() == Some((&answer.host, answer.port)))
        })
    }

    fn has_slots(&self, shards: usize) -> Vec<bool> {
        let mut has_slots = vec![false; shards];
        for owner in &self.owners {
            let index = index(owner.load(Ordering::Relaxed));
            if let Some(has_slots) = index.and_then(|index| has_slots.get_mut(index)) {
                *has_slots = true;
            }
        }
        has_slots
    }

    pub(crate) fn shards(&self) -> Vec<Arc<Shard>> {
        unpoisoned(self.shards.read()).clone()
    }

    fn shard(&self, index: usize) -> Arc<Shard> {
        Arc::clone(&unpoisoned(self.shards.read())[index])
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Shard>> {
        let owner = self.owners[usize::from(slot)].load(Ordering::Relaxed);
        index(owner).map(|index| self.shard(index))
    }

    /// The id of the primary of each shard with slots, in order.
    pub(crate) fn primaries(&self) -> Vec<(String, Arc<Shard>)> {
        let map = self.map();
        let shards = self.shards();
        let has_slots = self.has_slots(shards.len());
        let mut primaries: Vec<_> = shards
            .into_iter()
            .zip(&map.nodes)
            .filter(|(shard, _)| has_slots[shard.lane.0 as usize])
            .filter_map(|(shard, nodes)| Some((nodes.first()?.id.clone(), shard)))
            .collect();
        primaries.sort_by(|(a, _), (b, _)| a.cmp(b));
        primaries
    }

    pub(crate) fn replicas(&self, shard: &Shard) -> usize {
        self.map().nodes.get(shard.lane.0 as usize).map_or(0, |nodes| nodes.len().saturating_sub(1))
    }

    /// The number of slots that no known shard serves.
    pub(crate) fn uncovered(&self) -> usize {
        let known: HashSet<_> = self.primaries().iter().map(|(_, shard)| shard.lane.0).collect();
        let is_known = |index| known.contains(&(index as u32));
        let owners = self.owners.iter().map(|owner| index(owner.load(Ordering::Relaxed)));
        owners.filter(|owner| !owner.is_some_and(is_known)).count()
    }

    /// Whether a node is one of the cluster, as far as is known.
    pub(crate) fn knows(&self, server: &Server) -> bool {
        let host = server.address.host();
        host.is_some_and(|(host, port)| self.map().node_at(host, port).is_some())
    }

    /// Watches the number of changes of owners.
    pub(crate) fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Whether all shards can revoke lost requests.
    pub(super) fn revokes_lost_requests(&self) -> bool {
        let shards = unpoisoned(self.shards.read());
        shards.iter().all(|shard| shard.connection.revokes_lost_requests())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.shards().iter().for_each(|shard| shard.close());
    }

    pub(crate) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// The `rejected`th key that is in a slot of the shard.
    fn commit_key(&self, lane: Lane, rejected: usize) -> Option<Vec<u8>> {
        let is_own = |slot: &u16| {
            let owner = self.owners[usize::from(*slot)].load(Ordering::Relaxed);
            index(owner) == Some(lane.0 as usize)
        };
        let slot = (0..SLOTS).filter(is_own).nth(rejected)?;
        Some(keys::commit(slot::number_in(slot)))
    }

    /// Which server answers for a key now.
    pub(super) fn authority(&self, key: &[u8]) -> Authority {
        match self.owner(slot::of(key)) {
            Some(shard) => Authority { lane: shard.lane, epoch: shard.primary.epoch() },
            None => Authority { lane: UNSERVED, epoch: 0 },
        }
    }
}

/// Whether what a redirection to this shard said then still counts.
fn still_counts(at: Instant, shard: &Shard) -> bool {
    at.elapsed() < CONNECTS || shard.connection.is_live()
}

/// The number of an owner in the table.
fn number(owner: Option<usize>) -> u16 {
    owner.map_or(0, |index| index as u16 + 1)
}

fn index(number: u16) -> Option<usize> {
    usize::from(number).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use testkit::Shape;

    use super::*;
    use crate::redis::cluster::slot_map::Range;
    use crate::redis::url::{self, Topology};

    async fn opened() -> (testkit::Cluster, Arc<Cluster>) {
        let servers = testkit::Cluster::start(Shape::Replicated);
        let options = ClientOptions::new();
        let Ok(Topology::Cluster(seeds)) = url::parse(&servers.url(), &options) else {
            panic!("{}", servers.url());
        };
        let cluster = Cluster::open(seeds, &options, None, |_| {}).await.unwrap();
        (servers, cluster)
    }

    fn range(first: u16, last: u16, primary: &Node) -> Range {
        Range { first, last, primary: primary.clone(), replicas: Vec::new() }
    }

    /// The slots as a node knows them.
    fn answer(by: &Node, epoch: Option<u64>, ranges: Vec<Range>) -> SlotAnswer {
        let (host, port) = (by.host.clone(), by.port);
        SlotAnswer { id: None, host, port, epoch, is_cut_off: false, ranges }
    }

    fn node(servers: &testkit::Cluster, index: usize) -> Node {
        let node = servers.node(index);
        let id = node.server().cli(&["CLUSTER", "MYID"]).ok().text().to_owned();
        Node { id, host: "127.0.0.1".to_owned(), port: node.port() }
    }

    async fn refreshed(cluster: &Cluster, condition: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !condition() {
            assert!(Instant::now() < until, "{:?}", cluster.shards());
            cluster.refresh().await;
        }
    }

    /// A node that took part in an election may report the new epoch with the old primary.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_redirection_outlasts_an_old_map_of_a_new_epoch() {
        let (servers, cluster) = opened().await;
        let slot = testkit::Cluster::slot_of(&servers.name_on(0));
        let shard = cluster.owner(slot).unwrap();
        let [primary, replica, other] = [0, 3, 1].map(|index| node(&servers, index));
        let mut known = cluster.map();
        let sibling = node(&servers, 4);
        known.nodes[shard.lane.0 as usize] = vec![primary.clone(), replica.clone(), sibling];
        let epoch = known.epoch.map(|epoch| epoch + 1);
        drop(known);
        cluster.moved(slot, &replica);
        let promoted = replica.server(&cluster.seeds[0]);
        let has_replicas = || shard.primary.watch().borrow().has_replicas;
        assert!(shard.primary.is(&promoted) && has_replicas());
        let range = Range { replicas: vec![replica.clone()], ..range(0, SLOTS - 1, &primary) };
        let answer = |epoch, ranges| answer(&other, epoch, ranges);
        let age = |at: Instant| {
            cluster.map().redirected_shards.values_mut().for_each(|(then, _)| *then = at)
        };
        age(Instant::now() + Duration::from_secs(60));
        cluster.apply(vec![answer(epoch, vec![range.clone()])]);
        assert_eq!(cluster.map().epoch, epoch);
        assert!(shard.primary.is(&promoted), "{:?}", shard.primary);
        assert_eq!(cluster.owner(slot).unwrap().lane, shard.lane);
        // Not for long without a connection, and a replica is not connected to.
        age(Instant::now() - CONNECTS);
        cluster.apply(vec![answer(epoch, vec![range.clone()])]);
        assert!(!shard.primary.is(&promoted) && has_replicas(), "{:?}", shard.primary);
        // The old primary is none of them.
        cluster.moved(slot, &replica);
        assert!(shard.primary.is(&promoted) && !has_replicas());
        // A third node is no old one: the redirection is older.
        cluster.moved(slot, &node(&servers, 3));
        age(Instant::now() + Duration::from_secs(60));
        let range = Range { primary: other.clone(), ..range };
        cluster.apply(vec![answer(epoch, vec![range])]);
        let owner = cluster.owner(slot).unwrap();
        assert!(owner.primary.is(&other.server(&cluster.seeds[0])), "{owner:?}");
    }

    /// Whatever its epoch. One that names a known node counts at once.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_map_without_known_nodes_counts_if_all_answers_are_such_for_a_while() {
        let (servers, cluster) = opened().await;
        let known = cluster.map().epoch;
        let answer = |index, id: Option<&str>| {
            let by = node(&servers, index);
            let primary = Node { id: id.unwrap_or(&by.id).to_owned(), ..by.clone() };
            let epoch = known.map(|epoch| if id.is_some() { epoch + 9 } else { epoch });
            answer(&by, epoch, vec![range(0, SLOTS - 1, &primary)])
        };
        let foreign = || [0, 1, 2].map(|index| answer(index, Some("foreign"))).to_vec();
        let aged = || cluster.map().earlier = Some(Instant::now() - EARLIER);
        let owner = || cluster.owner(0).unwrap().primary.server().unwrap().node.unwrap();
        let id = owner();
        let is_kept = || (owner(), cluster.map().epoch) == (id.clone(), known);
        cluster.apply(foreign());
        assert!(is_kept());
        aged();
        cluster.apply(vec![answer(0, Some("foreign")), answer(0, None)]);
        assert!(is_kept());
        assert_eq!(cluster.map().earlier, None);
        // The other seeds may be of the known cluster still.
        aged();
        cluster.apply(foreign()[..2].to_vec());
        assert!(is_kept());
        assert_eq!(cluster.map().earlier, None);
        aged();
        cluster.apply(Vec::new());
        assert_eq!(cluster.map().earlier, None);
        cluster.apply(foreign());
        aged();
        cluster.apply(foreign());
        assert_eq!(owner(), "foreign");
    }

    /// Nodes that redirections have named and that never got a slot.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_shard_without_slots_ends_and_makes_room_for_another() {
        let (_servers, cluster) = opened().await;
        let (slot, count) = (0, cluster.shards().len());
        let primary = cluster.map().nodes[cluster.owner(slot).unwrap().lane.0 as usize][0].clone();
        for n in 0..3 {
            let gone = Node { id: format!("gone-{n}"), host: "127.0.0.1".to_owned(), port: 1 };
            cluster.moved(slot, &gone);
            let shard = cluster.owner(slot).unwrap();
            assert_eq!((shard.lane, cluster.shards().len()), (Lane(count as u32), count + 1));
            assert!(cluster.commit_key(shard.lane, 0).is_some());
            cluster.moved(slot, &primary);
            assert_eq!(cluster.commit_key(shard.lane, 0), None);
            let index = shard.lane.0 as usize;
            cluster.map().idle[index] = Some(Instant::now() - 2 * IDLE);
            refreshed(&cluster, || shard.primary.server().is_none()).await;
        }
    }

    /// A redirection may name a node by another address than the map does.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_node_with_two_addresses_is_one_shard() {
        let (servers, cluster) = opened().await;
        let slot = testkit::Cluster::slot_of(&servers.name_on(0));
        let shard = cluster.owner(slot).unwrap();
        let (count, before) = (cluster.shards().len(), shard.primary.epoch());
        let due = Instant::now() + Duration::from_secs(10);
        let known = node(&servers, 0);
        let renamed = cluster.node_at("localhost", known.port, due).await.unwrap();
        assert_eq!(renamed, Node { host: "localhost".to_owned(), ..known });
        cluster.moved(slot, &renamed);
        let owner = cluster.owner(slot).unwrap();
        assert_eq!((owner.lane, cluster.shards().len()), (shard.lane, count));
        assert_eq!(shard.primary.epoch(), before, "it is connected to that node");
    }

    /// A redirection has led a shard to its replica. The map leads another shard there.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_shard_leads_to_a_server_and_others_leave_it_before() {
        let (servers, cluster) = opened().await;
        let slot = testkit::Cluster::slot_of(&servers.name_on(0));
        let first = cluster.owner(slot).unwrap();
        let [primary, replica] = [0, 3].map(|index| node(&servers, index));
        cluster.map().nodes[first.lane.0 as usize] = vec![primary.clone(), replica.clone()];
        cluster.moved(slot, &replica);
        let led = replica.server(&cluster.seeds[0]);
        assert!(first.primary.is(&led));
        let ranges = vec![range(0, slot, &primary), range(slot + 1, SLOTS - 1, &replica)];
        let epoch = cluster.map().epoch;
        cluster.apply(vec![answer(&node(&servers, 1), epoch, ranges)]);
        assert!(first.primary.is(&primary.server(&cluster.seeds[0])), "{first:?}");
        let second = cluster.owner(slot + 1).unwrap();
        assert!(second.primary.is(&led) && second.lane != first.lane, "{second:?}");
    }

    /// Nodes do not list a replica that has just started. So a redirection may name a node that is not known
    /// to be a replica.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_promoted_replica_that_was_unknown_takes_the_place_of_its_shard() {
        let (servers, cluster) = opened().await;
        let slot = testkit::Cluster::slot_of(&servers.name_on(0));
        let owner = || cluster.owner(slot).unwrap();
        let old = owner();
        let promoted = node(&servers, 3);
        let [first, second] =
            [&node(&servers, 0), &promoted].map(|node| node.server(&cluster.seeds[0]));
        assert!(old.primary.is(&first));
        cluster.map().nodes[old.lane.0 as usize].truncate(1);
        servers.failover(0);
        cluster.map().ids.remove(&(promoted.host.clone(), promoted.port));
        let due = Instant::now() + Duration::from_secs(10);
        let found = cluster.node_at(&promoted.host, promoted.port, due).await;
        assert_eq!(found, Ok(promoted.clone()));
        cluster.moved(slot, &promoted);
        let new = owner();
        assert!(new.lane != old.lane && new.primary.is(&second));
        refreshed(&cluster, || old.primary.server().is_none()).await;
        // All of its slots stay with the new one when the old server is promoted again.
        servers.failover(0);
        refreshed(&cluster, || new.primary.is(&first)).await;
        assert_eq!(owner().lane, new.lane);
        assert!(old.primary.server().is_none());
    }
}
