//! Requests that a node sends elsewhere run once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, ClientOptions, Error, Kind, RedisOptions};
use testkit::{Cli, Cluster, RedisServer, Reply, RequestWatch, Shape};
use tokio::time::Instant;

use super::{connected, on, primaries, started};
use crate::support::*;

/// The lease, of which a third is the time between two renewals.
const LEASE: Duration = Duration::from_secs(9);

/// A second run of the same request follows within this; the next renewal does not, also if this one was late.
const AT_ONCE: f64 = 0.25;

/// Seconds at which a node extended the TTL of each of these keys, as `MONITOR` shows them:
/// `1700000000.123456 [0 lua] "PEXPIRE" "key" "3000"`.
fn renewed(monitor: &mut Cli, names: &[String], times: &mut BTreeMap<String, Vec<f64>>) {
    while let Some(Reply::Status(line)) = monitor.next_reply(ms(5)) {
        let words: Vec<_> = line.split(' ').collect();
        let [time, _, _, command, key, ..] = words[..] else { continue };
        let key = key.trim_matches('"');
        if command.eq_ignore_ascii_case("\"pexpire\"") && names.iter().any(|name| name == key) {
            times.entry(key.to_owned()).or_default().push(time.parse().expect("seconds"));
        }
    }
}

/// One batch of renewals has locks that did not move, that have moved, that are asked for elsewhere, and
/// readers that no node can serve. Each is renewed once a round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_renewal_of_a_redirected_batch_runs_once() {
    const EACH: usize = 5;
    let cluster = primaries().await;
    let client = connected(&cluster, options().watchdog_timeout(LEASE)).await;
    let names = cluster.names_on(0, 4 * EACH);
    let mut guards = Vec::new();
    for (at, name) in names.iter().enumerate() {
        guards.push(match at < 3 * EACH {
            true => taken(&lock_of(&client, Kind::Lock, name)).await,
            false => taken(&client.rw_lock(name).reader()).await,
        });
    }
    let mut monitors: Vec<_> =
        (0..3).map(|shard| cluster.node(shard).server().connection()).collect();
    for monitor in &mut monitors {
        monitor.cmd(&["MONITOR"]).ok();
    }
    let moving = names.clone();
    on(&cluster, move |cluster| {
        for (at, name) in moving.iter().enumerate() {
            let slot = Cluster::slot_of(name);
            match at / EACH {
                0 => {}
                1 => cluster.migrate(slot, 1),
                _ => {
                    cluster.begin_migration(slot, 1);
                    assert!(cluster.move_key(name));
                }
            }
        }
    })
    .await;
    let mut times = BTreeMap::new();
    let enough = |times: &BTreeMap<String, Vec<f64>>| {
        let count = |name: &String| times.get(name).map_or(0, Vec::len);
        names[..3 * EACH].iter().all(|name| count(name) >= 3)
    };
    eventually(2 * PATIENCE, "three rounds of renewals", || {
        monitors.iter_mut().for_each(|monitor| renewed(monitor, &names, &mut times));
        enough(&times)
    })
    .await;
    for (name, times) in &mut times {
        times.sort_by(f64::total_cmp);
        let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let short = pauses.iter().any(|pause| *pause < AT_ONCE);
        let group = names.iter().position(|one| one == name).map(|at| at / EACH);
        assert!(!short, "{name} of group {group:?} was renewed twice in a round: {pauses:?}");
    }
    let lost: Vec<_> = guards.iter().filter(|guard| guard.is_lost()).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

/// Nodes behind proxies that count the acquires of a lock in the first shard, and a client that has a
/// connection to each of them.
struct Watched {
    cluster: Arc<Cluster>,
    client: Client,
    name: String,
    /// What only an acquire contains.
    hash: Vec<u8>,
    acquires: Vec<RequestWatch>,
}

impl Watched {
    async fn new(options: ClientOptions) -> Self {
        let cluster = started(Cluster::builder(Shape::Primaries).proxied()).await;
        let client = connected(&cluster, options.redis(RedisOptions::new().unacknowledged())).await;
        let name = cluster.names_on(0, 2).remove(1);
        for shard in 0..3 {
            let lock = lock_of(&client, Kind::Lock, &cluster.name_on(shard));
            taken(&lock).await.release().await.expect("held");
        }
        let load = ["SCRIPT", "LOAD", lua("LOCK_ACQUIRE")];
        let hash = cluster.node(0).server().cli(&load).ok().text().as_bytes().to_vec();
        let nodes = cluster.nodes().iter();
        let acquires = nodes.map(|node| node.proxy().expect_request(&hash)).collect();
        Self { cluster, client, name, hash, acquires }
    }

    /// The first node names the second one as the owner of the slot, and the others name the first one.
    fn close_the_circle(&self) {
        let id = self.cluster.node(1).server().cli(&["CLUSTER", "MYID"]).ok();
        let slot = Cluster::slot_of(&self.name).to_string();
        let set = ["CLUSTER", "SETSLOT", &slot, "NODE", id.text()];
        self.cluster.node(0).server().cli(&set).ok();
    }

    /// How many acquires each node got.
    fn acquires(&self) -> Vec<usize> {
        self.acquires.iter().map(RequestWatch::count).collect()
    }

    /// How many of them were executed, on all nodes.
    fn executed(&self) -> u64 {
        self.cluster.nodes().iter().map(|node| node.server().commandstats("evalsha")).sum()
    }

    async fn try_lock(&self) -> Error {
        let attempt = lock_of(&self.client, Kind::Lock, &self.name).try_lock();
        within(LONG, "an attempt", attempt).await.expect_err("no node answers it")
    }
}

/// Two nodes send a request to each other. It is redirected eight times, and executed by neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirections_in_a_circle_end_after_eight() {
    let watched = Watched::new(options().response_timeout(LONG)).await;
    watched.close_the_circle();
    let before = watched.executed();
    let error = watched.try_lock().await;
    let slot = Cluster::slot_of(&watched.name);
    let said = format!("redirected more than 8 times for slot {slot}");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains(&said), "{error}");
    assert_eq!(watched.acquires(), [5, 4, 0]);
    assert_eq!(watched.executed(), before);
}

/// The nodes of a circle answer slowly: the deadline of the request ends it before the eighth redirection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirections_end_at_the_deadline_of_the_request() {
    // Each way: a redirection takes a second, and eight of them take much longer than the deadline.
    const DELAY: Duration = Duration::from_millis(500);
    let watched = Watched::new(options().response_timeout(ms(2500))).await;
    watched.close_the_circle();
    for node in watched.cluster.nodes() {
        node.proxy().delay(DELAY);
    }
    let started = Instant::now();
    let error = watched.try_lock().await;
    let took = started.elapsed();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("no answer within 2.5s"), "{error}");
    assert!(took < 6 * DELAY + SOON, "{took:?}");
    let acquires = watched.acquires();
    assert!((2..=4).contains(&acquires.iter().sum::<usize>()), "{acquires:?}");
}

/// The node that a redirection names executes the request, and its answer is lost. The request is not
/// sent again, to neither node, but undone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirected_request_without_an_answer_is_not_repeated() {
    let watched = Watched::new(options()).await;
    let slot = Cluster::slot_of(&watched.name);
    on(&watched.cluster, move |cluster| cluster.migrate(slot, 1)).await;
    let target = watched.cluster.node(1);
    target.proxy().drop_replies_once_after_request_matching(&watched.hash);
    let error = watched.try_lock().await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let free = || stored(target.server(), Kind::Lock, &watched.name).is_empty();
    eventually(PATIENCE, "the acquire is undone", free).await;
    assert_eq!(watched.acquires(), [1, 1, 0]);
}

/// The node of a slot cannot be reached, and the slot moves to another node: a request that waits for the
/// first goes to the second, long before its deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_not_sent_follows_its_slot() {
    for options in [options(), unacknowledged()].map(|options| options.response_timeout(LONG)) {
        let cluster = started(Cluster::builder(Shape::Primaries).proxied()).await;
        let client = connected(&cluster, options).await;
        let name = cluster.name_on(0);
        let lock = lock_of(&client, Kind::Lock, &name);
        taken(&lock).await.release().await.expect("held");
        down(cluster.node(0).proxy());
        cluster.node(0).proxy().wait_for_refusals(1).await;
        let mut acquire = Box::pin(lock.lock());
        start(&mut acquire).await;
        let slot = Cluster::slot_of(&name);
        on(&cluster, move |cluster| cluster.migrate(slot, 1)).await;
        let guard = within(PATIENCE, "acquire", acquire).await.expect("the new node is there");
        assert_held(cluster.node(1).server(), Kind::Lock, &name, &guard, 1);
    }
}

/// How often scripts have set the TTL of a key, as `MONITOR` shows it, until now.
fn runs(monitor: &mut Cli, server: &RedisServer, name: &str) -> usize {
    const END: &str = "all-before-this-has-run";
    server.cli(&["ECHO", END]).ok();
    let mut runs = 0;
    loop {
        let line = monitor.next_reply(PATIENCE).expect("MONITOR shows all that runs");
        let words: Vec<_> = line.text().split(' ').collect();
        match words[..] {
            [.., end] if end.contains(END) => return runs,
            [_, _, "lua]", command, key, ..] if key.trim_matches('"') == name => {
                runs += usize::from(command.eq_ignore_ascii_case("\"pexpire\""));
            }
            _ => {}
        }
    }
}

/// `ASKING` holds for one command. A call by a hash that the node does not know would use it up, and the
/// call by text after it would be sent back to the source of the migration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_the_asked_node_does_not_know_runs_there_once() {
    let cluster = primaries().await;
    let client = connected(&cluster, unacknowledged()).await;
    let name = cluster.name_on(0);
    let _listening = listening_client(&client).await;
    let (lock, owner) = (client.lock(&name), client.new_owner());
    let outer = lock.as_owner(&owner).lock().await.expect("free");
    let moving = name.clone();
    on(&cluster, move |cluster| {
        cluster.begin_migration(Cluster::slot_of(&moving), 1);
        assert!(cluster.move_key(&moving));
    })
    .await;
    let target = cluster.node(1).server();
    let mut monitor = target.connection();
    monitor.cmd(&["MONITOR"]).ok();
    let mut inner = Vec::new();
    for count in [2, 3] {
        target.cli(&["SCRIPT", "FLUSH"]).ok();
        let entered = within(PATIENCE, "re-entry", lock.as_owner(&owner).lock()).await;
        inner.push(entered.expect("the target of the migration serves it"));
        assert_eq!(runs(&mut monitor, target, &name), 1);
        let mut cli = target.connection();
        cli.cmd(&["ASKING"]).ok();
        let stored = cli.cmd(&["HGET", &name, &outer.owner_id().to_string()]).ok();
        assert_eq!(stored.text(), count.to_string());
    }
}
