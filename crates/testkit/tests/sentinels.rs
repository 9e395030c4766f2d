//! Sentinels announce a new primary: when asked to, when the old one is silent, when it is cut off.

mod common;

use testkit::{Flavour, Node, Replicated, Reply, Sentinels, Side};

fn accepts_writes(node: &Node) -> bool {
    node.server().cli(&["SET", "key", "value"]) == Reply::Status("OK".to_owned())
}

/// A field of what a sentinel says about another node.
fn field<'a>(node: &'a Reply, name: &str) -> &'a Reply {
    let mut pairs = node.array().chunks(2);
    &pairs.find(|pair| pair[0].text() == name).unwrap()[1]
}

fn config_epoch(sentinels: &Sentinels) -> i64 {
    let primary = sentinels.sentinels()[0].server().cli(&["SENTINEL", "MASTER", "mymaster"]);
    field(&primary, "config-epoch").int()
}

#[test]
fn a_failover_is_announced_by_all_and_the_new_primary_accepts_writes() {
    let sentinels = Replicated::builder()
        .password("of servers")
        .tls()
        .sentinels()
        .sentinel_password("of sentinels")
        .start();
    let hosts: Vec<_> =
        sentinels.sentinels().iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let url = sentinels.url();
    let expected = format!("rediss+sentinel://:of%20servers@{}/mymaster", hosts.join(","));
    assert_eq!(url, format!("{expected}?sentinel_password=of%20sentinels"));
    for sentinel in sentinels.sentinels() {
        let others = sentinel.server().cli(&["SENTINEL", "SENTINELS", "mymaster"]);
        let flags: Vec<_> =
            others.array().iter().map(|other| field(other, "flags").text()).collect();
        assert_eq!(flags, ["sentinel", "sentinel"], "not disconnected");
    }
    let old = sentinels.servers().primary().port();
    let switch = sentinels.failover();
    assert_ne!(switch.port, old);
    assert_eq!(switch.announced.len(), 3);
    let new = sentinels.await_primary(switch.port);
    assert_eq!(new.port(), sentinels.servers().primary().port());
    assert!(accepts_writes(new));
}

#[test]
fn a_paused_or_killed_primary_is_replaced() {
    let sentinels = Sentinels::start();
    let old = sentinels.servers().primary();
    let watch = sentinels.watch();
    old.server().pause();
    let switch = watch.wait();
    assert_ne!(switch.port, old.port());
    assert!(accepts_writes(sentinels.await_primary(switch.port)));
    // The sentinels would demote it only after seconds.
    old.server().resume();
    sentinels.servers().demote(old, sentinels.servers().primary());
    sentinels.servers().await_in_sync(2);

    assert_eq!(config_epoch(&sentinels), 1);
    sentinels.reset();
    assert_eq!(config_epoch(&sentinels), 0);
    let watch = sentinels.watch();
    sentinels.servers().primary().server().kill();
    let second = watch.wait();
    assert_ne!(second.port, switch.port);
}

/// Cuts the primary off from its peers until it is replaced. It is the first node.
fn replace_while_cut_off(flavour: Flavour) -> Sentinels {
    let sentinels = Replicated::builder().proxied().flavour(flavour).sentinels().start();
    let old = sentinels.servers().primary();
    let watch = sentinels.watch();
    sentinels.cut(old, Side::Peers);
    let switch = watch.wait();
    assert_ne!(switch.port, old.port());
    let new = sentinels.await_primary(switch.port);
    assert!(old.is_primary() && accepts_writes(new));
    let mut client = common::connect(old.port());
    assert_eq!(common::ask(&mut client, "SET key value").as_deref(), Some("+OK"));
    sentinels.heal(old, Side::Peers);
    sentinels
}

#[test]
fn a_primary_that_is_cut_off_from_its_peers_serves_its_clients_until_it_is_demoted() {
    let sentinels = replace_while_cut_off(Flavour::System);
    sentinels.await_demoted(&sentinels.servers().nodes()[0]);
}

#[test]
fn a_primary_of_redis_6_that_is_cut_off_from_its_peers_is_replaced() {
    replace_while_cut_off(Flavour::Redis62);
}

#[test]
fn a_primary_of_valkey_that_is_cut_off_from_its_peers_is_replaced() {
    replace_while_cut_off(Flavour::Valkey9);
}
