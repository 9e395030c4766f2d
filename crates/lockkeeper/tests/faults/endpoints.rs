//! The primary changes without sentinels: behind one address, or among servers that a URL names.

use std::sync::Arc;

use lockkeeper::{Client, Error, Kind, RedisOptions, Severity};
use testkit::{FaultProxy, Node, RedisServer, Replicated, ReplicatedBuilder, Side};

use crate::permissions::set_user;
use crate::support::*;

async fn started(servers: ReplicatedBuilder) -> Arc<Replicated> {
    joined(tokio::task::spawn_blocking(|| Arc::new(servers.start()))).await
}

async fn replicated() -> Arc<Replicated> {
    started(Replicated::builder()).await
}

/// The first server is an old primary, back without replicas; the second is the primary, and the third
/// follows it.
async fn with_a_stale_primary() -> Arc<Replicated> {
    let servers = started(Replicated::builder().proxied()).await;
    let promoting = Arc::clone(&servers);
    let promote = move || {
        let [_, new, replica] = promoting.nodes() else { panic!("three servers") };
        promoting.promote(new);
        promoting.demote(replica, new);
        promoting.await_in_sync(1);
    };
    joined(tokio::task::spawn_blocking(promote)).await;
    servers
}

/// No client has locked anything there.
#[track_caller]
fn assert_unused(server: &RedisServer) {
    assert_eq!(server.commandstats("evalsha") + server.commandstats("eval"), 0);
}

/// Makes the first replica the primary, and the primary its replica, which serves reads on.
async fn swap(servers: &Arc<Replicated>) {
    let servers = Arc::clone(servers);
    let swapping = move || {
        let old = servers.primary();
        servers.promote(servers.replicas()[0]);
        for replica in servers.replicas() {
            servers.demote(replica, servers.primary());
        }
        assert!(!old.is_primary());
    };
    joined(tokio::task::spawn_blocking(swapping)).await;
}

/// The rights of users that may not ask for the role, in each of the possible ways.
const RIGHTS: [&[&str]; 4] = [
    &["~*", "&*", "+@all"],
    &["~*", "&*", "+@all", "-role"],
    &["~*", "&*", "+@all", "-info"],
    &["~*", "&*", "+@all", "-role", "-info"],
];

/// A load balancer or a name leads to another server after a failover, and the connections to the old
/// one, now a replica, stay open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_moves_is_followed() {
    let servers = replicated().await;
    for (n, rights) in RIGHTS.into_iter().enumerate() {
        let name = format!("lock-{n}");
        for node in servers.nodes() {
            set_user(node.server(), rights);
        }
        let old = servers.primary().server();
        let endpoint = FaultProxy::start(old.port()).await;
        let url = endpoint.url().replace("redis://", "redis://u:s3cret@");
        let client = connect(&url, options().watchdog_timeout(ms(3000))).await;
        let guard = taken(&lock_of(&client, Kind::Lock, &name)).await;
        let other = connect(&url, options()).await;
        let waiter = tokio::spawn(lock_of(&other, Kind::Lock, &name).lock());
        eventually(PATIENCE, "the waiter listens", || listeners(old, &name) == 1).await;
        servers.await_in_sync(2);

        swap(&servers).await;
        let new = servers.primary().server();
        endpoint.redirect(new.port());
        // The renewal finds out.
        let renewed =
            || old.info_field("replication", "role") == "slave" && pttl(new, &name) > 2500;
        eventually(PATIENCE, "renewed on the new primary", renewed).await;
        assert!(!guard.is_lost(), "{rights:?}");
        guard.release().await.expect("held");
        let guard = within(PATIENCE, "the waiter", joined(waiter)).await.expect("freed");
        assert_held(new, Kind::Lock, &name, &guard, 1);
        guard.release().await.expect("held");
    }
}

/// The id of the connection that has carried requests by script.
#[track_caller]
fn requests_of(server: &RedisServer) -> String {
    let list = server.cli(&["CLIENT", "LIST", "TYPE", "normal"]).ok();
    let line = list.text().lines().find(|line| line.contains(" cmd=eval"));
    let id = line.and_then(|line| line.strip_prefix("id=")?.split(' ').next());
    id.unwrap_or_else(|| panic!("no connection has called a script: {}", list.text())).to_owned()
}

/// A request is on its way to a server that is demoted, and later promoted again. When the client uses that
/// server again, it has revoked the old connection: the request never executes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_request_does_not_execute_on_a_server_that_is_promoted_again() {
    let servers = started(Replicated::builder().replicas(1)).await;
    let (first, second) = (servers.primary().server(), servers.replicas()[0].server());
    let endpoint = FaultProxy::start(first.port()).await;
    let client =
        connect(&endpoint.url(), options().redis(RedisOptions::new().keep_alive(LONG))).await;
    taken(&lock_of(&client, Kind::Lock, "a")).await.release().await.expect("held");
    let (late, id) = (endpoint.connections()[0], requests_of(first));

    // The connection leads to the first server still, but what is sent on it does not arrive.
    endpoint.hold_connection(late, true);
    servers.await_in_sync(1);
    swap(&servers).await;
    endpoint.redirect(second.port());
    let hash = first.cli(&["SCRIPT", "LOAD", lua("LOCK_ACQUIRE")]).ok();
    let sent = endpoint.expect_request(hash.text().as_bytes());
    assert_unreachable(&lock_of(&client, Kind::Lock, "a").try_lock().await);
    assert_eq!(sent.count(), 1);
    let guard = taken(&lock_of(&client, Kind::Lock, "b")).await;
    assert_held(second, Kind::Lock, "b", &guard, 1);
    guard.release().await.expect("held");

    servers.await_in_sync(1);
    swap(&servers).await;
    endpoint.redirect(first.port());
    let guard = taken(&lock_of(&client, Kind::Lock, "b")).await;
    assert_held(first, Kind::Lock, "b", &guard, 1);
    let left = first.cli(&["CLIENT", "LIST", "ID", &id]).ok();
    assert_eq!(left.text(), "", "the old connection was not revoked before the first request");
    endpoint.hold_connection(late, false);
    endpoint.wait_for_end(late).await;
    assert_free(first, Kind::Lock, "a");
}

/// The client finds the primary among several servers, and follows when it changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_among_replicas_is_found_and_followed() {
    let servers = replicated().await;
    let client = connect(&servers.url(), options()).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    swap(&servers).await;
    let new = servers.primary().server();
    let sent = || new.commandstats("evalsha") > 0;
    eventually(PATIENCE, "the client has followed", sent).await;
    assert_held(new, Kind::Lock, "a", &guard, 1);
    guard.release().await.expect("held");
    // The primary dies.
    let killing = Arc::clone(&servers);
    let promoting = move || {
        killing.primary().server().kill();
        killing.promote(killing.replicas()[0]);
    };
    joined(tokio::task::spawn_blocking(promoting)).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "b")).await;
    assert_held(servers.primary().server(), Kind::Lock, "b", &guard, 1);
}

/// A release between the promotion of a replica and the moment when the client learns of it is discarded
/// with the old primary: the lock stays busy until its lease expires, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_the_new_primary_missed_costs_at_most_a_lease() {
    let servers = replicated().await;
    let client = connect(&servers.url(), options()).await;
    let lock = client.lock("a").lease(ms(3000));
    let guard = lock.lock().await.expect("free");
    servers.await_in_sync(2);
    // The other replica still follows the old primary, and so does the client.
    servers.promote(servers.replicas()[0]);
    guard.release().await.expect("held on the old primary");
    let promoted = Arc::clone(&servers);
    let demoting = move || {
        for node in promoted.replicas() {
            promoted.demote(node, promoted.primary());
        }
    };
    joined(tokio::task::spawn_blocking(demoting)).await;
    let new = servers.primary().server();
    assert!(pttl(new, "a") > 0, "the new primary has not heard of the release");
    let guard = within(PATIENCE, "the lease expires", lock.lock()).await.expect("free again");
    assert_eq!(stored(new, Kind::Lock, "a").len(), 1);
    guard.release().await.expect("held");
}

/// Of two primaries the one with more replicas is used, and none if that decides nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_primaries_the_one_that_others_follow_is_used() {
    let servers = replicated().await;
    let first = servers.primary();
    // A second primary, without followers.
    servers.promote(servers.replicas()[0]);
    let client = connect(&servers.url(), unacknowledged()).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    assert_held(first.server(), Kind::Lock, "a", &guard, 1);
    drop((guard, client));
    // The last replica becomes a primary, too: nobody follows anybody.
    for node in servers.nodes() {
        servers.promote(node);
    }
    let short = options().connect_timeout(ms(300));
    let error = Client::connect_with(&servers.url(), short).await.expect_err("three primaries");
    let said = assert_unreachable::<()>(&Err(error));
    let named = |node: &&testkit::Node| said.contains(&node.port().to_string());
    let named = servers.nodes().iter().filter(named).count();
    assert!(said.contains("primaries") && named == 2, "{said}");
}

/// The error says what each server is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_server_is_a_primary() {
    let servers = replicated().await;
    let replicas: Vec<_> = servers.replicas().iter().map(|node| node.port()).collect();
    let url = format!("redis+replicated://127.0.0.1:{},127.0.0.1:{}", replicas[0], replicas[1]);
    let short = options().connect_timeout(ms(300));
    let error = Client::connect_with(&url, short).await.expect_err("no primary");
    let said = assert_unreachable::<()>(&Err(error));
    assert!(said.contains(&format!("127.0.0.1:{} is a replica", replicas[1])), "{said}");
}

/// Only the way of this client to the primary is cut. The replica still has a link to it: `ROLE` says it, or
/// `INFO`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_its_replica_reaches_is_never_overruled() {
    let running = [RIGHTS[0], RIGHTS[1]].map(|rights| tokio::spawn(is_never_overruled(rights)));
    for task in running {
        joined(task).await;
    }
}

async fn is_never_overruled(rights: &[&str]) {
    let servers = with_a_stale_primary().await;
    let [stale, primary, _] = servers.nodes() else { panic!("three servers") };
    servers.nodes().iter().for_each(|node| set_user(node.server(), rights));
    let url = servers.url().replace("://", "://u:s3cret@");
    let client = connect(&url, options()).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    servers.cut(primary, Side::Clients);
    let mut waiting = Box::pin(lock_of(&client, Kind::Lock, "b").try_lock_for(ms(8000)));
    start(&mut waiting).await;
    let error = Client::connect_with(&url, options()).await.expect_err("cut off");
    let said = assert_unreachable::<()>(&Err(error));
    let reason = format!("127.0.0.1:{} does not answer, and", primary.port());
    assert!(said.contains(&reason), "{said}");
    // Longer than a server may be silent that no replica reaches.
    let waited = waiting.await;
    assert!(!matches!(waited, Ok(Some(_))), "{waited:?}");
    assert_unused(stale.server());
    servers.heal(primary, Side::Clients);
    let other = taken(&lock_of(&client, Kind::Lock, "b")).await;
    assert_held(primary.server(), Kind::Lock, "b", &other, 1);
    assert_held(primary.server(), Kind::Lock, "a", &guard, 1);
    assert_unused(stale.server());
}

/// The replica does not answer one of the questions. The time for which a server may be silent counts from the
/// last answer which proves that it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_is_not_overruled_because_its_replica_misses_one_question() {
    let running = [false, true].map(|is_natted| tokio::spawn(misses_one_question(is_natted)));
    for task in running {
        joined(task).await;
    }
}

async fn misses_one_question(is_natted: bool) {
    let servers = with_a_stale_primary().await;
    let [stale, primary, replica] = servers.nodes() else { panic!("three servers") };
    let elsewhere = FaultProxy::start(primary.server().port()).await;
    if is_natted {
        replicate(replica, &elsewhere);
        servers.await_in_sync(1);
    }
    let options = unacknowledged().connect_timeout(ms(500));
    let client = connect(&servers.url(), options).await;
    servers.cut(primary, Side::Clients);
    let mut waiting = Box::pin(lock_of(&client, Kind::Lock, "a").try_lock_for(ms(9000)));
    start(&mut waiting).await;
    // Longer than a server may be silent that no replica reaches.
    assert!(tokio::time::timeout(ms(6000), &mut waiting).await.is_err());
    replica.proxy().refuse(true);
    replica.proxy().cut();
    replica.proxy().wait_for_refusals(1).await;
    replica.proxy().refuse(false);
    let waited = waiting.await;
    assert!(!matches!(waited, Ok(Some(_))), "{waited:?}");
    assert_unused(stale.server());
}

/// Stops this thread, and all tasks of its runtime, as a process is stopped. A server counts the time.
fn stop_until_expired(server: &RedisServer, millis: &str) {
    server.cli(&["SET", "stopped", "1", "PX", millis]).ok();
    while server.cli(&["EXISTS", "stopped"]).int() == 1 {
        std::thread::sleep(ms(5));
    }
}

/// The client is stopped when the old primary has answered and the replica has not. The next
/// question does not reach that either.
#[tokio::test]
async fn a_primary_is_not_overruled_because_the_client_was_stopped() {
    let servers = with_a_stale_primary().await;
    let [stale, primary, replica] = servers.nodes() else { panic!("three servers") };
    let client = connect(&servers.url(), unacknowledged().unreachable_after(LONG)).await;
    taken(&lock_of(&client, Kind::Lock, "a")).await.release().await.expect("held");
    servers.cut(primary, Side::Clients);
    let waiting = tokio::spawn(lock_of(&client, Kind::Lock, "a").lock());
    let proxy = replica.proxy();
    let asks = || proxy.expect_request(b"ROLE");
    asks().wait().await;
    let asked = asks();
    proxy.connections().into_iter().for_each(|id| proxy.hold_connection(id, true));
    asked.wait().await;
    // Its answers come after that to the question.
    connect(&stale.proxy().url(), unacknowledged()).await.shutdown().await;
    let refused = proxy.refused();
    proxy.refuse(true);
    // Longer than a server may be silent that no replica reaches.
    stop_until_expired(primary.server(), "6000");
    proxy.wait_for_refusals(refused + 1).await;
    proxy.refuse(false);
    asks().wait_for(2).await;
    assert_unused(stale.server());
    servers.heal(primary, Side::Clients);
    let guard = within(PATIENCE, "the lock", joined(waiting)).await.expect("free");
    assert_held(primary.server(), Kind::Lock, "a", &guard, 1);
}

/// Replicas name their primary and have no link to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_client_needs_the_replicas_that_name_the_primary() {
    let servers = started(Replicated::builder().password("s3cret")).await;
    for replica in servers.replicas() {
        replica.server().cli(&["CONFIG", "SET", "masterauth", "wrong"]).ok();
    }
    let primary = servers.primary().server();
    primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]).ok();
    let gone = || primary.info_field("replication", "connected_slaves") == "0";
    eventually(PATIENCE, "they are gone", gone).await;
    let client = connect(&servers.url(), options()).await;
    let answer = client.lock("a").try_lock().await;
    assert!(matches!(answer, Err(Error::Unacknowledged { .. })), "{answer:?}");
}

/// Replicates from the server behind a proxy, by a name that is not in the URL.
#[track_caller]
fn replicate(replica: &Node, from: &FaultProxy) {
    replica.server().cli(&["REPLICAOF", "localhost", &from.port().to_string()]).ok();
}

/// Replicas name their primary by an address that is not in the URL, as with NAT. It dies and stays away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_is_followed_whatever_the_others_call_it() {
    let servers = replicated().await;
    let [old, promoted, replica] = servers.nodes() else { panic!("three servers") };
    let [first, second] =
        [FaultProxy::start(old.port()).await, FaultProxy::start(promoted.port()).await];
    replicate(promoted, &first);
    replicate(replica, &first);
    servers.await_in_sync(2);
    let client = connect(&servers.url(), options()).await;
    taken(&lock_of(&client, Kind::Lock, "a")).await.release().await.expect("held");
    old.server().kill();
    servers.promote(promoted);
    replicate(replica, &second);
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    assert_held(promoted.server(), Kind::Lock, "a", &guard, 1);
}

/// The primary and its replica are far away, and the stale one is near.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_without_followers_is_not_used_before_the_others_have_answered() {
    let servers = with_a_stale_primary().await;
    let [stale, primary, replica] = servers.nodes() else { panic!("three servers") };
    for far in [primary, replica] {
        far.proxy().delay(ms(200));
    }
    let patient = unacknowledged().connect_timeout(PATIENCE);
    let client = connect(&servers.url(), patient.response_timeout(PATIENCE)).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    assert_held(primary.server(), Kind::Lock, "a", &guard, 1);
    assert_unused(stale.server());
}

/// Both stall together for longer than the client waits between two questions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_stalls_with_its_replica_is_followed_on() {
    let servers = with_a_stale_primary().await;
    let [stale, primary, replica] = servers.nodes() else { panic!("three servers") };
    // It asks every second, and waits for one more at most.
    let short = options().connect_timeout(ms(300)).response_timeout(PATIENCE);
    let client = connect(&servers.url(), short).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    for node in [replica, primary] {
        node.server().pause();
    }
    tokio::time::sleep(ms(2500)).await;
    for node in [primary, replica] {
        node.server().resume();
    }
    let other = taken(&lock_of(&client, Kind::Lock, "b")).await;
    assert_held(primary.server(), Kind::Lock, "b", &other, 1);
    assert_held(primary.server(), Kind::Lock, "a", &guard, 1);
    assert_unused(stale.server());
}

/// A replica names its primary otherwise than the URL does: it counts if both names lead to one address. One of a
/// server that is not in the URL is reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_names_its_primary_otherwise_counts_or_is_reported() {
    let servers = replicated().await;
    let [old, primary, replica] = servers.nodes() else { panic!("three servers") };
    servers.promote(primary);
    let follow = |host: &str, port: u16| {
        replica.server().cli(&["REPLICAOF", host, &port.to_string()]).ok();
    };
    follow("localhost", primary.port());
    let client = connect(&servers.url(), unacknowledged()).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    assert_held(primary.server(), Kind::Lock, "a", &guard, 1);
    let elsewhere = RedisServer::start();
    servers.demote(old, primary);
    for (port, is_reported) in [(primary.port(), false), (elsewhere.port(), true)] {
        follow("localhost", port);
        let report = within(PATIENCE, "the report", client.check()).await.expect("it answers");
        let subject = format!("server 127.0.0.1:{}", replica.port());
        let found = report.findings.iter().find(|finding| finding.subject == subject);
        let says = format!("replicates from localhost:{port}, which is no server of the URL");
        let is_said = found.is_some_and(|found| {
            found.severity == Severity::Danger && found.detail.contains(&says)
        });
        assert_eq!(is_said, is_reported, "{report:#?}");
    }
}
