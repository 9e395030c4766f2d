//! On one Redis Cluster: each version of Redisson beside clients that publish as it does, and both
//! versions beside clients that publish in both ways.
//!
//! Redisson 4.7 sends sharded messages there and 3.27 mostly plain ones, so neither wakes waiters of the
//! other; only ours, with `Wakeups::Both`, wake both and are woken by both.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lockkeeper::{
    AnyGuard, AnyLock, Client, ClientOptions, Fence, MultiGuard, MultiLock, RECHECK, RedisOptions,
    SemaphoreGuard, Wakeups,
};
use testkit::java::{JavaPeerBuilder, Lock, Pending, Permits, Semaphore, Worker};
use testkit::{Cli, Cluster, History, JavaPeer, Redisson, Shape};
use tokio::sync::OnceCell;

use crate::rw::waits;
use crate::support::*;

/// One test per fleet, from an `async fn` that takes the fleet.
macro_rules! on_fleets {
    ($($name:ident)+) => {
        $(mod $name {
            use crate::cluster::{BOTH, CLASSIC, SHARDED};

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn newest() {
                super::$name(SHARDED).await;
            }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn v3_27() {
                super::$name(CLASSIC).await;
            }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn both() {
                super::$name(BOTH).await;
            }
        })+
    };
}

on_fleets! {
    a_lock_is_handed_over
    a_fair_lock_is_handed_over
    a_fenced_lock_is_handed_over_with_a_greater_token
    a_spin_lock_is_handed_over
    a_writer_is_followed_by_a_writer
    a_reader_is_followed_by_a_writer_and_a_writer_by_readers
    a_semaphore_is_handed_over
    a_permit_is_handed_over
    a_multi_lock_across_slots_is_handed_over
    a_multi_lock_in_one_slot_is_handed_over
    a_latch_opens_for_all_waiters
    a_release_wakes_waiters_of_all_versions
    holds_and_owners_are_visible_from_the_other_side
}

/// The versions of Redisson at one lock, and how our clients notify waiters there.
#[derive(Clone, Copy)]
struct Fleet {
    versions: &'static [Redisson],
    wakeups: Wakeups,
}

const SHARDED: Fleet = Fleet { versions: &[Redisson::Newest], wakeups: Wakeups::Auto };
const CLASSIC: Fleet = Fleet { versions: &[Redisson::V3_27], wakeups: Wakeups::Classic };
const BOTH: Fleet =
    Fleet { versions: &[Redisson::Newest, Redisson::V3_27], wakeups: Wakeups::Both };

/// Half of what a waiter of ours sleeps at least before it tries again by itself, a writer.
const PROMPT: Duration = Duration::from_millis(500);

fn woken_by(wakeups: Wakeups) -> ClientOptions {
    ClientOptions::new().redis(RedisOptions::new().cluster_wakeups(wakeups))
}

impl Fleet {
    fn options(self) -> ClientOptions {
        woken_by(self.wakeups)
    }

    async fn client(self) -> Client {
        let wakeups = match self.wakeups {
            Wakeups::Classic => wakeups_of_v3_27().await,
            wakeups => wakeups,
        };
        connect(Cluster::shared(), woken_by(wakeups)).await
    }

    /// How many subscriptions a waiter of ours has.
    fn subscriptions(self) -> i64 {
        if self.wakeups == Wakeups::Both { 2 } else { 1 }
    }
}

/// The peer of a version, for all tests that leave the cluster as it is.
fn peer(redisson: Redisson) -> &'static JavaPeer {
    static PEERS: [OnceLock<JavaPeer>; 2] = [const { OnceLock::new() }; 2];
    let index = usize::from(redisson != Redisson::Newest);
    PEERS[index].get_or_init(|| start(JavaPeer::builder(redisson), Cluster::shared()))
}

fn start(peer: JavaPeerBuilder, cluster: &Cluster) -> JavaPeer {
    let urls: Vec<_> = (0..3).map(|shard| cluster.node(shard).url()).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    peer.start_cluster(&urls)
}

fn shard_of(name: &str) -> usize {
    static SHARDS: OnceLock<BTreeMap<u16, usize>> = OnceLock::new();
    SHARDS.get_or_init(|| Cluster::shared().slot_map())[&Cluster::slot_of(name)]
}

/// A name in a shard, made from one that no other name begins with.
fn name_on(shard: usize, of: impl fmt::Display) -> String {
    let mut names = (0..).map(|number| format!("{number}:{of}"));
    names.find(|name| shard_of(name) == shard).unwrap()
}

/// How many connections have subscribed to channels of names that begin with this.
fn listening(nodes: &mut [Cli], sharded: &str, name: &str) -> i64 {
    let of_node = |node: &mut Cli| {
        let pattern = format!("redisson_*{{{name}*");
        let channels = node.cmd(&["PUBSUB", &format!("{sharded}CHANNELS"), &pattern]).ok();
        let numbers = channels.array().iter().map(|channel| {
            let command = ["PUBSUB", &format!("{sharded}NUMSUB"), channel.text()];
            node.cmd(&command).array()[1].int()
        });
        numbers.sum::<i64>()
    };
    nodes.iter_mut().map(of_node).sum()
}

/// How Redisson 3.27 has decided to publish. It tries a sharded message when it starts, and whether that
/// succeeds depends on the node that it has chosen.
async fn wakeups_of_v3_27() -> Wakeups {
    static KNOWN: OnceCell<Wakeups> = OnceCell::const_new();
    let find_out = || async {
        let name = name_on(0, "how it listens");
        let client = connect(Cluster::shared(), BOTH.options()).await;
        let guard = client.lock(&name).lock().await.unwrap();
        let theirs = peer(Redisson::V3_27).on(&name).lock(&name);
        let waiter = theirs.lock();
        awaited(&name, 1).await;
        let nodes = Cluster::shared().nodes().iter();
        let mut nodes: Vec<_> = nodes.map(|node| node.server().connection()).collect();
        let is_sharded = listening(&mut nodes, "SHARD", &name) > 0;
        guard.release().await.unwrap();
        waiter.await.ok();
        theirs.unlock().await.ok();
        if is_sharded { Wakeups::Auto } else { Wakeups::Classic }
    };
    *KNOWN.get_or_init(find_out).await
}

/// Waits until this many connections, of all nodes, have subscribed to channels of names that begin with
/// this, and a moment longer: see [`listened_to`].
async fn awaited(name: &str, subscriptions: i64) {
    let mut nodes: Vec<_> =
        Cluster::shared().nodes().iter().map(|node| node.server().connection()).collect();
    let mut count = |sharded: &str| listening(&mut nodes, sharded, name);
    let what = format!("{subscriptions} subscriptions to channels of {name}");
    eventually(&what, || count("") + count("SHARD") == subscriptions).await;
    tokio::time::sleep(SHORT).await;
}

/// What is acquired and released here.
trait Ours {
    type Guard: Send + 'static;
    fn acquire(
        &self,
    ) -> impl Future<Output = lockkeeper::Result<Self::Guard>> + Send + 'static + use<Self>;
    fn release(guard: Self::Guard) -> impl Future<Output = lockkeeper::Result<()>> + Send;
}

macro_rules! ours {
    ($($Ours:ty, $Guard:ty, $acquire:ident($($permits:literal)?);)+) => {
        $(impl Ours for $Ours {
            type Guard = $Guard;
            fn acquire(
                &self,
            ) -> impl Future<Output = lockkeeper::Result<$Guard>> + Send + 'static + use<> {
                self.$acquire($($permits)?)
            }
            fn release(
                guard: $Guard,
            ) -> impl Future<Output = lockkeeper::Result<()>> + Send {
                guard.release()
            }
        })+
    };
}

ours! {
    AnyLock, AnyGuard, lock();
    MultiLock, MultiGuard, lock();
    lockkeeper::Semaphore, SemaphoreGuard, acquire(1);
}

/// What is acquired and released by Java.
trait Theirs {
    type Hold: 'static;
    fn acquire(&self) -> Pending<Self::Hold>;
    fn release(&self, hold: Self::Hold) -> Pending<()>;
}

impl Theirs for Lock<'_> {
    type Hold = ();
    fn acquire(&self) -> Pending<()> {
        self.lock()
    }
    fn release(&self, (): ()) -> Pending<()> {
        self.unlock()
    }
}

impl Theirs for Semaphore<'_> {
    type Hold = ();
    fn acquire(&self) -> Pending<()> {
        self.acquire(1)
    }
    fn release(&self, (): ()) -> Pending<()> {
        self.release(1)
    }
}

impl Theirs for Permits<'_> {
    type Hold = String;
    fn acquire(&self) -> Pending<String> {
        self.acquire()
    }
    fn release(&self, id: String) -> Pending<()> {
        self.release(&id)
    }
}

/// Whether waiters subscribe.
#[derive(Clone, Copy)]
enum Waiting {
    Subscribed,
    /// And our client stays subscribed, for its next waiter.
    KeepsSubscribed,
    Polling,
}

impl Waiting {
    /// The subscriptions of a waiter, and those that its client keeps after that.
    fn subscriptions(self, one: i64) -> (i64, i64) {
        match self {
            Self::Subscribed => (one, 0),
            Self::KeepsSubscribed => (one, one),
            Self::Polling => (0, 0),
        }
    }
}

/// On each shard and beside each version: Java's release wakes us, and ours wakes Java.
async fn handed_over<O: Ours, T: Theirs>(
    fleet: Fleet,
    kind: &str,
    waiting: Waiting,
    ours: impl Fn(&Client, &str) -> O,
    theirs: impl Fn(&Worker<'static>, &str) -> T,
) {
    let (here, kept) = waiting.subscriptions(fleet.subscriptions());
    let (there, _) = waiting.subscriptions(1);
    for version in fleet.versions {
        let of = format!("{kind}:{:?}:{}", fleet.wakeups, version.profile());
        let worker = peer(*version).on(&of);
        let (mut to_rust, mut to_java) = (Handovers::default(), Handovers::default());
        // The first round of a JVM is spent on loading classes, and says nothing.
        for (round, shard) in [0, 0, 1, 2].into_iter().enumerate() {
            let name = name_on(shard, &of);
            let client = fleet.client().await;
            let (ours, theirs) = (ours(&client, &name), theirs(&worker, &name));
            let hold = theirs.acquire().await.ok();
            let waiter = waits(ours.acquire());
            awaited(&name, here).await;
            assert!(!waiter.is_finished(), "Java holds it");
            let release = theirs.release(hold).await;
            let (guard, granted) = joined(waiter).await;

            awaited(&name, kept).await;
            let waiter = theirs.acquire();
            awaited(&name, kept + there).await;
            assert!(waiter.is_pending(), "we hold it");
            let released = Instant::now();
            O::release(guard).await.unwrap();
            let grant = waiter.await;
            if round > 0 {
                to_rust.record(release.started, granted);
                to_java.record(released, grant.ended);
            }
            release.ok();
            theirs.release(grant.ok()).await.ok();
            drop((client, ours));
            awaited(&name, 0).await;
        }
        assert!(to_rust.median() < PROMPT && to_java.median() < PROMPT, "not told");
        to_rust.show(&format!("{of}: Java to Rust"));
        to_java.show(&format!("{of}: Rust to Java"));
    }
}

/// A kind of lock, on either side.
type Kind =
    (&'static str, fn(&Client, &str) -> AnyLock, fn(&Worker<'static>, &str) -> Lock<'static>);

const LOCK: Kind = ("lock", |client, name| client.lock(name).into(), Worker::lock);
const FAIR: Kind = ("fair", |client, name| client.fair_lock(name).into(), Worker::fair);
const FENCED: Kind = ("fenced", |client, name| client.fenced_lock(name).into(), Worker::fenced);
const SPIN: Kind = ("spin", |client, name| client.spin_lock(name).into(), Worker::spin);
const WRITE: Kind = ("write", |client, name| client.rw_lock(name).writer(), Worker::write);

async fn lock_is_handed_over(fleet: Fleet, (kind, ours, theirs): Kind, waiting: Waiting) {
    handed_over(fleet, kind, waiting, ours, theirs).await;
}

async fn a_lock_is_handed_over(fleet: Fleet) {
    lock_is_handed_over(fleet, LOCK, Waiting::Subscribed).await;
}

async fn a_fair_lock_is_handed_over(fleet: Fleet) {
    lock_is_handed_over(fleet, FAIR, Waiting::KeepsSubscribed).await;
}

async fn a_fenced_lock_is_handed_over_with_a_greater_token(fleet: Fleet) {
    lock_is_handed_over(fleet, FENCED, Waiting::Subscribed).await;
    let client = fleet.client().await;
    for shard in 0..3 {
        let name = name_on(shard, format!("tokens:{:?}", fleet.wakeups));
        let fence = Fence::new();
        for version in fleet.versions.iter().chain(fleet.versions) {
            let theirs = peer(*version).on(&name).fenced(&name);
            fence.admit(theirs.lock_and_get_token().await.ok()).unwrap();
            theirs.unlock().await.ok();
            let guard = client.fenced_lock(&name).lock().await.unwrap();
            fence.admit(guard.token()).unwrap();
            assert_eq!(theirs.token().await.ok(), Some(guard.token()));
            guard.release().await.unwrap();
        }
    }
}

async fn a_spin_lock_is_handed_over(fleet: Fleet) {
    lock_is_handed_over(fleet, SPIN, Waiting::Polling).await;
}

async fn a_writer_is_followed_by_a_writer(fleet: Fleet) {
    lock_is_handed_over(fleet, WRITE, Waiting::Subscribed).await;
}

async fn a_reader_is_followed_by_a_writer_and_a_writer_by_readers(fleet: Fleet) {
    let reader = |client: &Client, name: &str| client.rw_lock(name).reader();
    handed_over(fleet, "our reader", Waiting::Subscribed, reader, Worker::write).await;
    let writer = |client: &Client, name: &str| client.rw_lock(name).writer();
    handed_over(fleet, "our writer", Waiting::Subscribed, writer, Worker::read).await;
}

async fn a_semaphore_is_handed_over(fleet: Fleet) {
    let ours = |client: &Client, name: &str| client.semaphore(name);
    let theirs = |worker: &Worker<'static>, name: &str| {
        let semaphore = worker.semaphore(name);
        semaphore.try_set_permits(1).ok();
        assert_eq!(semaphore.available().ok(), 1, "as often as it was released");
        semaphore
    };
    handed_over(fleet, "semaphore", Waiting::Subscribed, ours, theirs).await;
}

async fn a_permit_is_handed_over(fleet: Fleet) {
    let ours = |client: &Client, name: &str| AnyLock::from(client.permit_semaphore(name));
    let theirs = |worker: &Worker<'static>, name: &str| {
        let permits = worker.permits(name);
        permits.try_set_permits(1).ok();
        assert_eq!((permits.available().ok(), permits.acquired().ok()), (1, 0));
        permits
    };
    handed_over(fleet, "permits", Waiting::Subscribed, ours, theirs).await;
}

/// Java acquires backwards: ours are acquired in the order of their names.
async fn multi_lock_is_handed_over(fleet: Fleet, kind: &str, members: fn(&str) -> [String; 3]) {
    let ours = |client: &Client, name: &str| {
        MultiLock::new(members(name).iter().map(|name| client.lock(name)))
    };
    let theirs = |worker: &Worker<'static>, name: &str| {
        let mut members = members(name);
        members.sort();
        let [a, b, c] = &members;
        worker.multi(&[c, b, a])
    };
    handed_over(fleet, kind, Waiting::Subscribed, ours, theirs).await;
}

async fn a_multi_lock_across_slots_is_handed_over(fleet: Fleet) {
    let members = |name: &str| {
        [0, 1, 2].map(|shard| {
            let mut names = (0..).map(|number| format!("{name}:{number}"));
            names.find(|name| shard_of(name) == shard).unwrap()
        })
    };
    multi_lock_is_handed_over(fleet, "multi", members).await;
}

async fn a_multi_lock_in_one_slot_is_handed_over(fleet: Fleet) {
    let members = |name: &str| ["a", "b", "c"].map(|member| format!("{{{name}}}:{member}"));
    multi_lock_is_handed_over(fleet, "multi of one slot", members).await;
}

/// The waiters of a version are woken by it and by us; ours by every version.
async fn a_latch_opens_for_all_waiters(fleet: Fleet) {
    let client = fleet.client().await;
    for shard in 0..3 {
        let name = name_on(shard, format!("latch:{:?}", fleet.wakeups));
        let latch = client.count_down_latch(&name);
        for opener in [None].into_iter().chain(fleet.versions.iter().map(Some)) {
            let waiting: Vec<_> = opener.map_or(fleet.versions.to_vec(), |version| vec![*version]);
            assert!(latch.try_set_count(2).await.unwrap());
            let java: Vec<_> = waiting.iter().map(|version| peer(*version).on(&name)).collect();
            java[0].latch(&name).count_down().await.ok();
            assert_eq!(latch.count().await.unwrap(), 1);
            let there: Vec<_> = java.iter().map(|worker| worker.latch(&name).wait()).collect();
            let here = waits({
                let latch = latch.clone();
                async move { latch.wait().await }
            });
            awaited(&name, there.len() as i64 + fleet.subscriptions()).await;
            assert!(!here.is_finished() && there.iter().all(Pending::is_pending));
            match opener {
                None => assert_eq!(latch.count_down().await.unwrap(), 0),
                Some(version) => peer(*version).on("opener").latch(&name).count_down().await.ok(),
            }
            within(SOON, "ours goes on", joined(here)).await;
            for waits in there {
                within(SOON, "Java goes on", waits).await.ok();
            }
            awaited(&name, 0).await;
        }
    }
}

async fn a_release_wakes_waiters_of_all_versions(fleet: Fleet) {
    let (client, other) = (fleet.client().await, fleet.client().await);
    for shard in 0..3 {
        let name = name_on(shard, format!("readers:{:?}", fleet.wakeups));
        let writer = client.rw_lock(&name).write().await.unwrap();
        let java: Vec<_> =
            fleet.versions.iter().map(|version| peer(*version).on(&name).read(&name)).collect();
        let there: Vec<_> = java.iter().map(Lock::lock).collect();
        let here = waits(other.rw_lock(&name).read());
        awaited(&name, there.len() as i64 + fleet.subscriptions()).await;
        assert!(!here.is_finished() && there.iter().all(Pending::is_pending));
        writer.release().await.unwrap();
        let (reader, _) = within(SOON, "ours reads", joined(here)).await;
        for waits in there {
            within(SOON, "Java reads", waits).await.ok();
        }
        assert_eq!(client.rw_lock(&name).inspect().await.unwrap().holders.len(), 1 + java.len());
        reader.release().await.unwrap();
        for reader in java {
            reader.unlock().await.ok();
        }
        assert!(client.rw_lock(&name).inspect().await.unwrap().holders.is_empty());
    }
}

async fn holds_and_owners_are_visible_from_the_other_side(fleet: Fleet) {
    let client = fleet.client().await;
    for (index, (kind, ours, theirs)) in [LOCK, FAIR, FENCED, SPIN, WRITE].into_iter().enumerate() {
        for version in fleet.versions {
            let of = format!("holds of {kind}:{:?}:{}", fleet.wakeups, version.profile());
            let (worker, name) = (peer(*version).on(&of), name_on(index % 3, &of));
            let (ours, theirs) = (ours(&client, &name), theirs(&worker, &name));
            let held = async || {
                let holder = ours.inspect().await.unwrap().holders.pop()?;
                Some((holder.id, holder.hold_count))
            };
            theirs.lock().await.ok();
            theirs.lock().await.ok();
            assert_eq!(held().await, Some((worker.owner(), 2)), "{kind}");
            assert!(ours.try_lock().await.unwrap().is_none());
            theirs.unlock().await.ok();
            assert_eq!(held().await, Some((worker.owner(), 1)), "{kind}");
            theirs.unlock().await.ok();

            let guard = ours.lock().await.unwrap();
            let again = guard.reenter().await.unwrap();
            assert_eq!(held().await, Some((guard.owner_id().to_string(), 2)), "{kind}");
            assert!(theirs.is_locked().await.ok() && !theirs.is_held().await.ok());
            assert_eq!(theirs.hold_count().await.ok(), 0, "Java's own");
            guard.release().await.unwrap();
            assert!(!theirs.try_lock().await.ok());
            assert!(theirs.unlock().await.err().is_not_owner());
            again.release().await.unwrap();
            assert!(!theirs.is_locked().await.ok());
            assert_eq!(held().await, None);
        }
    }
}

/// Java's message is not received; nothing else is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_listens_in_the_wrong_way_acquires_by_its_recheck() {
    let client = connect(Cluster::shared(), CLASSIC.options()).await;
    let name = name_on(1, "wrong way");
    let theirs = peer(Redisson::Newest).on(&name).lock(&name);
    theirs.lock().await.ok();
    let asked = Instant::now();
    let waiter = waits(client.lock(&name).lock());
    awaited(&name, 1).await;
    let release = theirs.unlock().await;
    let (guard, granted) = joined(waiter).await;
    assert!(granted - asked > RECHECK / 2, "it was told");
    assert!(granted - release.started < RECHECK + SOON);
    release.ok();
    guard.release().await.unwrap();
}

/// One that contends for a lock. The counter in another shard is guarded by this lock only.
struct Contender {
    id: String,
    name: String,
    counter: String,
    connection: Cli,
    history: History,
    rounds: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

impl Contender {
    fn goes_on(&self) -> bool {
        !self.ends.load(Ordering::Acquire)
    }

    fn holds(&mut self) {
        self.history.granted(&self.name, &self.id, None);
        increment(&mut self.connection, &self.counter);
        self.rounds.fetch_add(1, Ordering::Release);
        self.history.released(&self.name, &self.id);
    }

    async fn ours(mut self, client: Client) {
        let lock = client.lock(&self.name);
        while self.goes_on() {
            let guard = lock.lock().await.unwrap();
            self.holds();
            guard.release().await.unwrap();
        }
    }

    /// Redisson throws if its `WAIT` or its subscription meets the change. Then the thread may hold the
    /// lock, and more than once.
    async fn java(mut self, worker: Worker<'static>) {
        let lock = worker.lock(&self.name);
        while self.goes_on() {
            if lock.lock().await.result.is_ok() {
                self.holds();
            }
            while lock.is_held().await.result.unwrap_or(true) {
                drop(lock.unlock().await);
            }
        }
    }
}

/// Two clients of ours and a thread of each version contend for a lock while its shard fails over and while
/// its slot moves. Ours acquire it again at once. Waiters of Redisson may have to wait until the lease ends:
/// 4.7 does not subscribe again after a migration, and both throw if their `WAIT` meets a failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_exclusive_during_a_failover_and_a_migration() {
    const LEASE: Duration = Duration::from_secs(5);
    let cluster: &Cluster = Box::leak(Box::new(Cluster::start(Shape::Replicated)));
    let (name, counter) = (cluster.name_on(0), cluster.name_on(2));
    let guarded = || cluster.owner_of(&counter).server().connection();
    let (history, ends) = (History::new(), Arc::<AtomicBool>::default());
    let (mut rounds, mut tasks) = (Vec::new(), Vec::new());
    let mut contender = |id: &str| {
        let own = Arc::<AtomicU64>::default();
        rounds.push(own.clone());
        Contender {
            id: id.to_owned(),
            name: name.clone(),
            counter: counter.clone(),
            connection: guarded(),
            history: history.clone(),
            rounds: own,
            ends: ends.clone(),
        }
    };
    let options = BOTH.options().watchdog_timeout(LEASE).response_timeout(ms(1_000));
    for id in ["one of ours", "another of ours"] {
        let client = connect(cluster, options.clone()).await;
        tasks.push(tokio::spawn(contender(id).ours(client)));
    }
    for version in BOTH.versions {
        let peer = start(JavaPeer::builder(*version).watchdog(LEASE), cluster);
        let worker = Box::leak(Box::new(peer)).on("contender");
        tasks.push(tokio::spawn(contender(version.profile()).java(worker)));
    }
    let counts =
        || -> Vec<_> { rounds.iter().map(|rounds| rounds.load(Ordering::Acquire)).collect() };
    // Twice: an acquire may have begun before.
    let acquired_again = async |contenders: usize| {
        let (start, before) = (Instant::now(), counts());
        let again =
            || counts().iter().zip(&before).take(contenders).all(|(now, before)| *now > before + 1);
        eventually("all acquire it again", again).await;
        println!("{before:?}, then {:?} within {:.1?}", counts(), start.elapsed());
    };
    acquired_again(4).await;
    tokio::task::block_in_place(|| cluster.failover(0));
    acquired_again(2).await;
    tokio::task::block_in_place(|| cluster.migrate(Cluster::slot_of(&name), 1));
    acquired_again(2).await;
    ends.store(true, Ordering::Release);
    for task in tasks {
        joined(task).await;
    }
    history.assert_valid();
    let counted = guarded().cmd(&["GET", &counter]).text().to_owned();
    assert_eq!(counted, counts().iter().sum::<u64>().to_string());
    assert_eq!(cluster.owner_of(&name).server().cli(&["EXISTS", &name]).int(), 0);
}
