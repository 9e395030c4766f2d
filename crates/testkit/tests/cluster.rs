//! A cluster: it is up, slots migrate in steps, replicas take over, nodes restart and are cut off.

mod common;

use testkit::{Cluster, Flavour, Node, Shape};

/// What a node answers to a client.
fn get(node: &Node, key: &str) -> String {
    common::ask(&mut common::connect(node.port()), &format!("GET {key}")).unwrap_or_default()
}

fn set(node: &Node, key: &str) {
    node.server().cli(&["SET", key, "value"]).ok();
}

/// A failover of either kind, and a slot that moves key by key, in every server.
fn serves_fails_over_and_migrates(flavour: Flavour) {
    let cluster = Cluster::builder(Shape::Replicated).flavour(flavour).start();
    for shard in 0..3 {
        let name = cluster.name_on(shard);
        let slot = cluster.node(0).server().cli(&["CLUSTER", "KEYSLOT", &name]).int();
        assert_eq!(i64::from(Cluster::slot_of(&name)), slot);
        assert_eq!(cluster.owner_of(&name).port(), cluster.node(shard).port());
        set(cluster.node(shard), &name);
        let moved = format!("-MOVED {slot} 127.0.0.1:{}", cluster.node(shard).port());
        assert_eq!(get(cluster.node((shard + 1) % 3), &name), moved);
        assert_eq!(get(cluster.replica(shard), &name), moved);
    }
    assert_eq!(cluster.failover(0).port(), cluster.node(3).port());
    assert_eq!(cluster.fail_over_by_killing(1).port(), cluster.node(4).port());
    assert_eq!(get(cluster.node(4), &cluster.name_on(1)), "$5");
    cluster.restart(1);
    assert_eq!(cluster.primary(1).port(), cluster.node(4).port());
    assert_eq!(cluster.replica(1).port(), cluster.node(1).port());

    let slot = Cluster::slot_of(&cluster.name_on(2));
    let names = Cluster::names_in(slot, 3);
    let (source, target) = (cluster.primary(2), cluster.primary(0));
    names[..2].iter().for_each(|name| set(source, name));
    cluster.begin_migration(slot, 0);
    let ask = format!("-ASK {slot} 127.0.0.1:{}", target.port());
    assert_eq!([get(source, &names[0]), get(source, &names[2])], ["$5", &ask]);
    assert!(cluster.move_key(&names[0]) && !cluster.move_key(&names[2]));
    assert_eq!([get(source, &names[0]), get(source, &names[1])], [&ask, "$5"]);
    cluster.abort_migration(slot);
    assert_eq!([get(source, &names[0]), get(source, &names[2])], ["$5", "$-1"]);
    cluster.migrate(slot, 0);
    assert_eq!(get(target, &names[0]), "$5");
    assert!(get(source, &names[0]).starts_with("-MOVED"));
    assert_eq!(cluster.shard_of(&names[1]), 0);
}

#[test]
fn a_cluster_serves_fails_over_and_migrates() {
    serves_fails_over_and_migrates(Flavour::System);
}

#[test]
fn a_cluster_of_redis_6_serves_fails_over_and_migrates() {
    serves_fails_over_and_migrates(Flavour::Redis62);
}

#[test]
fn a_cluster_of_valkey_serves_fails_over_and_migrates() {
    serves_fails_over_and_migrates(Flavour::Valkey9);
}

#[test]
fn all_slots_move_to_the_next_shard_with_their_keys() {
    let cluster = Cluster::builder(Shape::Replicated).password("p@ss word").tls().start();
    let seed = format!("rediss+cluster://:p%40ss%20word@127.0.0.1:{}", cluster.node(0).port());
    assert_eq!(cluster.seed(0), seed);
    assert!(cluster.url().starts_with(&format!("{seed},127.0.0.1:")), "{}", cluster.url());
    let names = cluster.names_on(1, 300);
    names.iter().for_each(|name| set(cluster.node(1), name));
    let before = cluster.slot_map();
    assert_eq!(before.len(), 16_384);
    cluster.reshard_all(1);
    let next = |(slot, shard): (u16, usize)| (slot, (shard + 1) % 3);
    assert_eq!(cluster.slot_map(), before.into_iter().map(next).collect());
    let keys = [0, 1, 2].map(|index| cluster.node(index).server().cli(&["DBSIZE"]).int());
    assert_eq!(keys, [0, 0, 300]);
}

#[test]
fn a_node_is_cut_off_from_its_clients_only_paused_and_restarted() {
    let cluster = Cluster::builder(Shape::Replicated).proxied().start();
    let name = cluster.name_on(0);
    set(cluster.node(0), &name);
    let moved = format!("-MOVED {} 127.0.0.1:{}", Cluster::slot_of(&name), cluster.node(0).port());
    assert_eq!(get(cluster.node(1), &name), moved);
    cluster.cut(0);
    assert_eq!([get(cluster.node(0), &name), get(cluster.node(1), &name)], ["", &moved]);
    let mut cli = cluster.node(0).server().connection();
    cli.cmd(&["SET", &name, "another"]).ok();
    assert_eq!(cli.cmd(&["WAIT", "1", "5000"]).int(), 1, "its replica reaches it");
    cluster.heal(0);
    assert_eq!(get(cluster.node(0), &name), "$7");

    cluster.node(0).server().pause();
    assert_eq!(get(cluster.node(0), &name), "");
    cluster.await_agreement();
    cluster.node(0).server().resume();
    assert_eq!(get(cluster.node(0), &name), "$7");

    let cluster = Cluster::start(Shape::Primaries);
    set(cluster.node(0), &name);
    cluster.node(0).server().kill();
    cluster.restart(0);
    assert_eq!(get(cluster.node(0), &name), "$-1");
}
