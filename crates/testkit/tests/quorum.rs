//! Members of a quorum lose their data, their address, their role and their time.

mod common;

use common::eventually;
use testkit::{Quorum, RedisServer};

fn get(server: &RedisServer) -> Option<String> {
    let reply = server.cli(&["GET", "key"]).ok();
    (!reply.is_nil()).then(|| reply.text().to_owned())
}

fn set(server: &RedisServer, value: &str) {
    server.cli(&["SET", "key", value]).ok();
}

#[test]
fn members_know_nothing_of_each_other() {
    let quorum = Quorum::start(3);
    set(quorum.server(0), "a");
    assert_eq!(get(quorum.server(1)), None);
    let ports: Vec<_> = (0..3).map(|index| quorum.server(index).port()).collect();
    let urls: Vec<_> = ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect();
    assert_eq!(quorum.url(), format!("quorum:{}", urls.join(",")));
}

#[test]
fn a_member_restarts_empty_or_with_what_was_saved() {
    let quorum = Quorum::start(1);
    let server = quorum.server(0);
    set(server, "saved");
    quorum.save(0);
    set(server, "newer");
    quorum.restore(0);
    assert_eq!(get(server).as_deref(), Some("saved"));
    server.restart_empty();
    assert_eq!(get(server), None);
}

#[test]
fn a_replica_takes_over_the_address_of_a_member() {
    let quorum = Quorum::builder(1).proxied().start();
    set(quorum.server(0), "old");
    let replica = quorum.replica_of(0);
    replica.cli(&["REPLICAOF", "NO", "ONE"]).ok();
    set(quorum.server(0), "newer");
    let ask = || common::ask(&mut common::connect(quorum.node(0).port()), "STRLEN key");
    assert_eq!(ask().as_deref(), Some(":5"));
    quorum.lead_to(0, &replica);
    assert_eq!(ask().as_deref(), Some(":3"));
}

#[test]
fn a_member_that_was_a_replica_has_the_data_of_the_other() {
    let (quorum, other) = (Quorum::start(1), RedisServer::start());
    set(quorum.server(0), "own");
    let run = || quorum.server(0).info_field("server", "run_id");
    let before = run();
    quorum.replicate_for_a_while(0, &other);
    assert_eq!(get(quorum.server(0)), None);
    set(quorum.server(0), "again a primary");
    assert_eq!(run(), before);
}

#[test]
fn the_clock_of_a_member_is_moved_while_it_runs() {
    let quorum = Quorum::builder(2).movable_clocks().start();
    let (moved, other) = (quorum.server(0), quorum.server(1));
    for server in [moved, other] {
        server.cli(&["SET", "key", "value", "PX", "4000"]).ok();
    }
    moved.move_clock(-5);
    let left = moved.cli(&["PTTL", "key"]).int();
    assert!((7_000..=9_000).contains(&left), "{left}");
    moved.move_clock(5);
    eventually("its TTL is over", || get(moved).is_none());
    assert!(get(other).is_some());
    // As scripts see it, too, and after a restart.
    moved.restart_empty();
    let script = "return redis.call('TIME')[1]";
    let [ahead, now] = [moved, other].map(|server| server.cli(&["EVAL", script, "0"]).int());
    assert!((4..=6).contains(&(ahead - now)), "{ahead} {now}");
}
