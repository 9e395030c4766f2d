//! Replicas follow their primary, roles change, nodes are cut off from one side or the other.

mod common;

use common::eventually;
use testkit::{FaultProxy, Node, Replicated, Side};

fn get(node: &Node, key: &str) -> Option<String> {
    let reply = node.server().cli(&["GET", key]).ok();
    (!reply.is_nil()).then(|| reply.text().to_owned())
}

/// How many replicas acknowledge a write within this many milliseconds.
fn acknowledged(primary: &Node, millis: &str) -> i64 {
    let mut cli = primary.server().connection();
    cli.cmd(&["INCR", "writes"]).ok();
    cli.cmd(&["WAIT", "2", millis]).int()
}

#[test]
fn replicas_in_sync_acknowledge_and_a_paused_one_does_not() {
    let servers = Replicated::start();
    let ports: Vec<_> =
        servers.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    assert_eq!(servers.url(), format!("redis+replicated://{}", ports.join(",")));
    assert_eq!(servers.primary().server().cli(&["DBSIZE"]).int(), 0);
    for replica in ["slave0", "slave1"] {
        let state = servers.primary().server().info_field("replication", replica);
        assert!(state.contains("state=online"), "{state}");
    }
    assert_eq!(acknowledged(servers.primary(), "10000"), 2);
    servers.replicas()[0].server().pause();
    assert_eq!(acknowledged(servers.primary(), "100"), 1);
    servers.replicas()[0].server().resume();
    servers.await_in_sync(2);
}

#[test]
fn a_promoted_node_accepts_writes_and_roles_outlast_a_restart() {
    let servers = Replicated::builder().replicas(1).password("p@ss word").tls().start();
    let [old, new] = servers.nodes() else { panic!("two nodes") };
    assert!(old.url().starts_with("rediss://:p%40ss%20word@127.0.0.1:"), "{}", old.url());
    assert!(new.server().cli(&["SET", "key", "value"]).error().starts_with("READONLY"));
    servers.promote(new);
    servers.demote(old, new);
    servers.await_in_sync(1);
    assert_eq!(servers.primary().port(), new.port());
    old.server().restart();
    assert!(new.is_primary() && !old.is_primary());
    new.server().cli(&["SET", "key", "value"]).ok();
    servers.await_in_sync(1);
    assert_eq!(get(old, "key").as_deref(), Some("value"));
}

#[test]
fn a_node_is_cut_off_from_its_clients_or_its_peers() {
    let servers = Replicated::builder().replicas(2).proxied().start();
    let (primary, replica) = (servers.primary(), servers.replicas()[0]);
    let reaches = |node: &Node| {
        let mut client = common::connect(node.port());
        common::ask(&mut client, "PING") == Some("+PONG".to_owned())
    };
    servers.cut(primary, Side::Clients);
    assert!(!reaches(primary) && reaches(replica));
    assert_eq!(acknowledged(primary, "10000"), 2);
    servers.heal(primary, Side::Clients);
    assert!(reaches(primary));

    servers.cut(replica, Side::Peers);
    assert!(reaches(primary) && reaches(replica));
    assert_eq!(acknowledged(primary, "100"), 1);
    servers.heal(replica, Side::Peers);
    servers.await_in_sync(2);

    servers.cut(primary, Side::Peers);
    assert!(reaches(primary));
    assert_eq!(acknowledged(primary, "100"), 0);
    servers.heal(primary, Side::Peers);
    servers.await_in_sync(2);
    let value = get(primary, "writes");
    assert_eq!(value.as_deref(), Some("3"));
    eventually("the replica has the writes that it missed", || get(replica, "writes") == value);
}

#[test]
fn a_moving_endpoint_leads_new_connections_to_another_server() {
    let servers = Replicated::builder().replicas(1).start();
    let [first, second] = servers.nodes() else { panic!("two nodes") };
    let endpoint = FaultProxy::start_blocking(first.port());
    let set = |client: &mut _| common::ask(client, "SET key value").unwrap_or_default();
    let mut old = common::connect(endpoint.port());
    assert_eq!(set(&mut old), "+OK");
    endpoint.redirect(second.port());
    let refusal = set(&mut common::connect(endpoint.port()));
    assert!(refusal.starts_with("-READONLY"), "{refusal}");
    assert_eq!(set(&mut old), "+OK");
    endpoint.cut();
    assert_eq!(set(&mut old), "");
}
