//! Redis Cluster: locks of all shards, a failover, a migration, and what is reported of them.

use std::fs;

use testkit::{Cluster, Node, Reply, Shape};

use crate::choice::{configure, secret};
use crate::failover::{assert_holds, assert_no_secret, waiting, watch};
use crate::support::{Outcome, Scene, WAIT_LIMIT, eventually};

/// Runs `lockkeeper ARGS` to its end.
#[track_caller]
pub(crate) fn ran(scene: &Scene, args: &[&str]) -> Outcome {
    let mut command = scene.lockkeeper();
    command.args(args);
    scene.finish(command)
}

/// The finding of `doctor` on this subject that contains these words.
#[track_caller]
pub(crate) fn find(doctor: &Outcome, severity: &str, subject: &str, words: &str) -> String {
    let is_it = |line: &&str| {
        let mut columns = line.split_whitespace();
        columns.next() == Some(severity) && columns.next() == Some(subject) && line.contains(words)
    };
    let found = doctor.output.lines().find(is_it);
    found.unwrap_or_else(|| panic!("no {severity} {subject} {words:?}: {doctor:?}")).to_owned()
}

/// One password for all nodes, from a file. The primary of the lock's shard is killed.
#[test]
fn a_run_and_a_watch_follow_the_shard() {
    let cluster = Cluster::builder(Shape::Replicated).password("s3cret of nodes").start();
    let place = format!("redis+cluster://127.0.0.1:{}", cluster.node(0).port());
    let scene = Scene::at(&place);
    secret(&scene, "password", "s3cret of nodes\n");
    configure(&scene, "password_file = \"../../password\"");
    scene.gate("gate");
    let run = scene.start(&["-v", "job", "-c", &waiting()]);
    let child = scene.process("pid");
    for process in [run.pid(), run.guardian(), child] {
        assert_no_secret(process.number());
    }
    assert!(run.errors().contains(&format!("store {place} (LOCKKEEPER_URL)")), "{}", run.errors());
    let mut watch = watch(&scene, scene.lockkeeper());
    let shard = cluster.shard_of("job");
    assert_holds(cluster.primary(shard), "job");

    let new = cluster.fail_over_by_killing(shard);
    assert_holds(new, "job");
    // The seed may be the dead one: any other node leads to the shards.
    let hosts = cluster.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port()));
    let all = format!("redis+cluster://{}", hosts.collect::<Vec<_>>().join(","));
    let at_all = |args: &[&str]| ran(&scene, &[&["--url", &all], args].concat());
    at_all(&["inspect", "--quiet", "job"]).assert_code(0);
    at_all(&["run", "--no-wait", "job", "--", "true"]).assert_code(75);
    let names: Vec<_> = (0..3).map(|shard| cluster.name_on(shard)).collect();
    for name in &names {
        at_all(&["run", name, "--", "true"]).assert_quiet("");
    }
    scene.open_gate("gate");
    run.outcome().assert_code(0);
    watch.process.expect_line("gone job");
    watch.process.terminate();
    assert!(watch.process.wait(WAIT_LIMIT).is_some());
    assert!(!watch.errors().contains("s3cret"), "{}", watch.errors());
    assert_eq!(new.server().cli(&["EXISTS", "job"]).int(), 0);

    let with_password = cluster.url_of(&all["redis+cluster://".len()..]);
    let shown = ran(&scene, &["ls", "--url", &with_password]);
    shown.assert_says("--url contains a password");
    assert!(!shown.errors.contains("s3cret"), "{shown:?}");
    secret(&scene, "password", "s3cret of nobody\n");
    let denied = at_all(&["ls"]);
    denied.assert_code(77);
    assert!(!denied.errors.contains("s3cret"), "{denied:?}");
}

/// Creates locks of a Java client in a shard, several pages of them.
fn fill(cluster: &Cluster, shard: usize, count: usize) -> Vec<String> {
    let names = cluster.names_on(shard, count);
    let mut redis = cluster.primary(shard).server().connection();
    for name in &names {
        redis.cmd(&["HSET", name, "6e0c0000-0000-4000-8000-000000000000:1", "1"]).ok();
        redis.cmd(&["PEXPIRE", name, "600000"]).ok();
    }
    names
}

#[test]
fn locks_of_all_shards_are_listed_inspected_and_released() {
    let cluster = Cluster::start(Shape::Primaries);
    let scene = Scene::at(cluster.seed(0));
    let mut names: Vec<_> = (0..3).flat_map(|shard| fill(&cluster, shard, 1200)).collect();
    let listed = ran(&scene, &["ls", "--sort", "name"]);
    assert_eq!((listed.code, &listed.errors[..]), (Some(0), ""), "the list is complete");
    let mut found: Vec<_> =
        listed.output.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    found.sort_unstable();
    names.sort_unstable();
    assert_eq!(found, names);

    for shard in 0..3 {
        let name = cluster.name_on(shard);
        names.retain(|one| *one != name);
        let shown = ran(&scene, &["inspect", &name]);
        assert!(shown.output.contains("6e0c0000-"), "{shown:?}");
        let unlock = ran(&scene, &["unlock", "--yes", "--reason", "it is dead", &name]);
        unlock.assert_code(0);
        ran(&scene, &["inspect", "--quiet", &name]).assert_code(1);
        assert!(ran(&scene, &["inspect", &name]).output.contains("it is dead"));
    }
    let split = ran(&scene, &["run", "a}b", "--", "true"]);
    split.assert_code(64);
    split.assert_says("use \"a)b\"");

    // A slot moves while a list is read.
    let (moved, to) = (&cluster.names_on(0, 2)[1], 1);
    scene.ask(async |client| {
        let mut listing = client.inspector().list("*");
        assert!(listing.next().await.unwrap().is_some() && listing.is_complete());
        cluster.migrate(Cluster::slot_of(moved), to);
        while listing.next().await.unwrap().is_some() {}
        assert!(!listing.is_complete());
    });

    // A shard that does not answer, the one with the list of clients: the locks of the others are listed,
    // and the gap is reported.
    let shard = cluster.shard_of("lockkeeper_clients");
    let scene = Scene::at(cluster.url());
    let slots = cluster.slot_map();
    names.retain(|name| slots[&Cluster::slot_of(name)] != shard);
    cluster.node(shard).server().kill();
    let node = format!("127.0.0.1:{}", cluster.node(shard).port());
    let listed = ran(&scene, &["ls"]);
    listed.assert_code(69);
    listed.assert_says("the list is incomplete: ");
    listed.assert_says(&node);
    assert_eq!(listed.output.lines().count(), 1 + names.len());
    let listed = ran(&scene, &["ls", "--json"]);
    listed.assert_code(69);
    assert!(listed.output.ends_with("],\"complete\":false}\n"), "{listed:?}");
}

#[test]
fn wake_ups_travel_as_the_option_or_the_configuration_says() {
    let cluster = Cluster::start(Shape::Primaries);
    let scene = Scene::at(cluster.url());
    let channel = "redisson_lock__channel:{job}";
    scene.gate("gate");
    let holder = scene.start(&["job", "-c", &waiting()]);
    scene.process("pid");
    let lists = |verb: &str| {
        let mut channels = cluster.nodes().iter().flat_map(|node| {
            let reply = node.server().cli(&["PUBSUB", verb, channel]).ok();
            reply.array().iter().map(|name| name.text().to_owned()).collect::<Vec<_>>()
        });
        channels.any(|name| name == channel)
    };
    for (option, configured, plain, sharded) in [
        (&[][..], "", false, true),
        (&["--cluster-wakeups", "classic"], "", true, false),
        (&[], "cluster_wakeups = \"both\"", true, true),
        (&["--cluster-wakeups=auto"], "cluster_wakeups = \"both\"", false, true),
    ] {
        configure(&scene, configured);
        let waiter = scene.start(&[option, &["job", "--", "true"]].concat());
        eventually("its subscriptions", || {
            (lists("CHANNELS"), lists("SHARDCHANNELS")) == (plain, sharded)
        });
        waiter.process.terminate();
        eventually("their end", || !lists("CHANNELS") && !lists("SHARDCHANNELS"));
    }
    scene.open_gate("gate");
    holder.outcome().assert_quiet("");
    configure(&scene, "");
    ran(&scene, &["ls", "--cluster-wakeups", "all"]).assert_code(64);
}

#[test]
fn doctor_reports_slots_and_replicas() {
    let cluster = Cluster::start(Shape::Replicated);
    let scene = Scene::at(cluster.url());
    let doctor = || ran(&scene, &["doctor"]);
    let whole = doctor();
    find(&whole, "fine", "slots", "each slot has a primary");
    for shard in 0..3 {
        let node = format!("127.0.0.1:{}: 1 replica", cluster.node(shard).port());
        find(&whole, "note", "replication", &node);
    }
    assert!(!whole.output.contains("being moved"), "{whole:?}");

    let slot = Cluster::slot_of("job");
    let from = cluster.shard_of_slot(slot);
    cluster.begin_migration(slot, (from + 1) % 3);
    let moving = find(&doctor(), "note", "slots", &format!("moved: 1, {slot} first"));
    assert!(moving.contains(&format!("127.0.0.1:{}", cluster.node(from).port())), "{moving}");
    cluster.abort_migration(slot);

    // A node does not name a replica that has no data yet.
    let primary = cluster.node(0);
    primary.server().cli(&["SET", &cluster.name_on(0), "1", "EX", "60"]).ok();
    let names_replica = |range: &Reply| {
        let nodes = &range.array()[2..];
        nodes[0].array()[1].int() != i64::from(primary.port()) || nodes.len() == 2
    };
    eventually("all nodes name the replica", || {
        let ranges = |node: &Node| node.server().cli(&["CLUSTER", "SLOTS"]).ok();
        cluster.nodes().iter().all(|node| ranges(node).array().iter().all(names_replica))
    });
    let away = cluster.replica(0);
    away.server().kill();
    eventually("its end", || primary.server().info_field("replication", "connected_slaves") == "0");
    let words = format!("127.0.0.1:{}: 0 of 1 replica connected", primary.port());
    find(&doctor(), "note", "replication", &words);

    let owner = cluster.owner_of("job");
    owner.server().cli(&["CLUSTER", "DELSLOTS", &slot.to_string()]).ok();
    eventually("a slot without a primary", || {
        let others = cluster.nodes().iter();
        for node in others.filter(|node| ![owner.port(), away.port()].contains(&node.port())) {
            // An error if it knows already.
            node.server().cli(&["CLUSTER", "DELSLOTS", &slot.to_string()]);
        }
        let doctor = doctor();
        doctor.code == Some(1) && doctor.output.contains("1 of 16384 slots have no primary")
    });
    let listed = ran(&scene, &["ls"]);
    listed.assert_code(69);
    listed.assert_says("the list is incomplete: ");
    listed.assert_says("1 of 16384 slots have no primary");
}

#[test]
fn doctor_reports_a_primary_without_replica() {
    let cluster = Cluster::start(Shape::Primaries);
    let scene = Scene::at(cluster.url());
    let doctor = ran(&scene, &["doctor"]);
    for node in cluster.nodes() {
        let words = format!("127.0.0.1:{}: no replica", node.port());
        find(&doctor, "note", "replication", &words);
    }
}

#[test]
fn nodes_may_use_tls() {
    let cluster = Cluster::builder(Shape::Primaries).tls().start();
    let scene = Scene::at(cluster.seed(0));
    assert!(scene.url().starts_with("rediss+cluster://"), "{}", scene.url());
    // Its authority is not known.
    scene.run(&["job", "--", "true"]).assert_code(69);
    fs::write(scene.path("ca.pem"), cluster.node(0).server().ca_pem()).unwrap();
    configure(&scene, "tls_ca = \"../../ca.pem\"");
    for shard in 0..3 {
        scene.run(&[&cluster.name_on(shard), "--", "true"]).assert_quiet("");
    }
}
