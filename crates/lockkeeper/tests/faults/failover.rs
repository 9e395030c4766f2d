//! Sentinels promote a replica: what a client that follows them does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant as StdInstant;

use lockkeeper::{Client, ClientOptions, Error, Kind, LostReason, RedisOptions};
use testkit::{History, Node, Replicated, Sentinels, Side, Stopwatch, Switch, awake_between};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::load::Load;
use crate::primitives::EXCLUSIVE;
use crate::support::*;

/// Runs what blocks beside the tasks of the test.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    joined(tokio::task::spawn_blocking(work)).await
}

async fn started() -> Arc<Sentinels> {
    blocking(|| Arc::new(Sentinels::start())).await
}

async fn proxied() -> Arc<Sentinels> {
    blocking(|| Arc::new(Replicated::builder().proxied().sentinels().start())).await
}

async fn failover(sentinels: &Arc<Sentinels>) -> Switch {
    let sentinels = Arc::clone(sentinels);
    blocking(move || sentinels.failover()).await
}

/// The node with this port.
fn node(sentinels: &Sentinels, port: u16) -> &Node {
    let nodes = sentinels.servers().nodes();
    nodes.iter().find(|node| node.port() == port).expect("a node has this port")
}

async fn connected(sentinels: &Sentinels, options: ClientOptions) -> Client {
    connect(&sentinels.url(), options).await
}

/// Counts the scripts and the acquires of mutexes that a primary runs, until two seconds after all sentinels have
/// announced another one.
fn counting(sentinels: &Arc<Sentinels>, primary: u16) -> JoinHandle<Vec<(StdInstant, u64)>> {
    let sentinels = Arc::clone(sentinels);
    tokio::task::spawn_blocking(move || {
        let (server, mut counts) = (node(&sentinels, primary).server(), Vec::new());
        let mut end = Instant::now() + 2 * PATIENCE;
        let mut is_primary = true;
        while Instant::now() < end {
            if is_primary && sentinels.servers().primary().port() != primary {
                is_primary = false;
                end = Instant::now() + ms(2000);
            }
            let count = ["evalsha", "set"].map(|command| server.commandstats(command));
            counts.push((StdInstant::now(), count.iter().sum()));
        }
        counts
    })
}

/// The old primary got no request after the first announcement. The sentinel that leads the failover announces
/// it about three seconds after the others.
#[track_caller]
fn assert_silent_after(switch: &Switch, counts: &[(StdInstant, u64)]) {
    let announced = *switch.announced.iter().min().expect("three sentinels");
    // The test may hear of it sooner than the client.
    let settled = counts.iter().filter(|(at, _)| *at > announced + ms(1000));
    let settled: Vec<_> = settled.map(|(_, count)| *count).collect();
    assert!(settled.len() > 10 && settled[0] > 10, "nothing was looked at");
    assert_eq!(settled.first(), settled.last(), "the old primary got requests");
}

/// A hold and a waiter survive an ordered failover. Nothing is sent to the old primary after the
/// announcement, although it takes writes for ten more seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_keeps_holds_and_waiters() {
    let sentinels = started().await;
    let old = sentinels.servers().primary().port();
    let client = connected(&sentinels, options()).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    let other = connected(&sentinels, options()).await;
    let waiter = tokio::spawn(lock_of(&other, Kind::Lock, "a").lock());
    let listening = || listeners(node(&sentinels, old).server(), "a") == 1;
    eventually(PATIENCE, "the waiter listens", listening).await;

    // Keeps asking, whichever server is the primary.
    let (asking, stop) = (client.lock("b"), Arc::new(AtomicBool::new(false)));
    let stopping = Arc::clone(&stop);
    let asker = tokio::spawn(async move {
        while !stopping.load(Ordering::Relaxed) {
            let _ = asking.is_locked().await;
        }
    });
    let counting = counting(&sentinels, old);
    let switch = failover(&sentinels).await;
    assert_ne!(switch.port, old);
    let counts = joined(counting).await;
    stop.store(true, Ordering::Relaxed);
    joined(asker).await;
    assert_silent_after(&switch, &counts);
    let new = node(&sentinels, switch.port).server();
    assert_held(new, Kind::Lock, "a", &guard, 1);
    let listening = || listeners(new, "a") == 1;
    eventually(PATIENCE, "the waiter listens to the new primary", listening).await;
    guard.release().await.expect("held on the new primary");
    let guard = within(SOON, "the waiter", joined(waiter)).await.expect("freed");
    assert_held(new, Kind::Lock, "a", &guard, 1);
}

/// The old primary stays up, and takes writes for ten more seconds. All replicas must acknowledge a grant: the
/// old primary has not enough of them once one was promoted, and the new one not before the old one follows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_demoted_under_load_is_replaced() {
    let sentinels = started().await;
    let old = sentinels.servers().primary().port();
    // A release that only the old primary has costs one lease.
    let acknowledged = acknowledged_by(2, ms(300)).watchdog_timeout(SOON);
    let clients = [
        connected(&sentinels, acknowledged.clone()).await,
        connected(&sentinels, acknowledged).await,
    ];
    let names: Vec<_> = (0..EXCLUSIVE.len()).map(|n| format!("name-{n}")).collect();
    let load = Load::start(&clients, EXCLUSIVE, &names, SOON).await;
    let counting = counting(&sentinels, old);
    let switch = failover(&sentinels).await;
    assert_ne!(switch.port, old);
    assert_silent_after(&switch, &joined(counting).await);
    load.goes_on(2 * PATIENCE).await;
    assert!(!node(&sentinels, old).is_primary(), "a replica that acknowledges");
    load.stop().await;
}

/// The primary dies under load. Every hold is either kept or lost before another client gets the lock,
/// and locking goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_dies_under_load_is_replaced() {
    let sentinels = started().await;
    let (history, stop) = (History::new(), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for n in 0..4 {
        let client = connected(&sentinels, options().watchdog_timeout(SOON)).await;
        let (history, stop) = (history.clone(), Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            let lock = client.fenced_lock("a");
            let holder = format!("client {n}");
            let mut last = None;
            while !stop.load(Ordering::Relaxed) {
                let Ok(guard) = lock.lock().await else { continue };
                history.granted("a", &holder, None);
                last = Some(Instant::now());
                tokio::task::yield_now().await;
                match guard.is_lost() {
                    true => history.lost("a", &holder),
                    false => history.released("a", &holder),
                }
                let _ = guard.release().await;
            }
            last
        }));
    }
    eventually(PATIENCE, "there is load", || history.grants() > 100).await;
    let ordering = Arc::clone(&sentinels);
    let switch = blocking(move || {
        let watch = ordering.watch();
        ordering.servers().primary().server().kill();
        watch.wait()
    })
    .await;
    let announced = Instant::from_std(*switch.announced.iter().min().expect("three sentinels"));
    let grants = history.grants();
    eventually(PATIENCE, "locking goes on", || history.grants() > grants + 100).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        let last = within(PATIENCE, "a task", joined(task)).await;
        assert!(last.is_some_and(|last| last > announced), "it has locked after the failover");
    }
    // One acknowledgement is no proof with two replicas, but none of them was cut off.
    history.assert_valid();
}

/// The host of the primary hangs: attempts to connect to it, for requests, acknowledgements and messages, are under
/// way when another primary is announced. They hold up neither locks nor wake-ups there, although they may take a
/// minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_hangs_is_left_at_once() {
    let sentinels = proxied().await;
    let hanging = sentinels.servers().primary();
    let holder = taken(&lock_of(&connected(&sentinels, options()).await, Kind::Lock, "held")).await;
    let client =
        connected(&sentinels, options().connect_timeout(LONG).unreachable_after(LONG)).await;
    taken(&lock_of(&client, Kind::Lock, "a")).await.release().await.expect("held");
    let waiter = tokio::spawn(client.lock("held").lock());
    eventually(PATIENCE, "the waiter listens", || listeners(hanging.server(), "held") == 1).await;
    let replicated = Arc::clone(&sentinels);
    blocking(move || replicated.servers().await_in_sync(2)).await;
    hanging.server().pause();
    hanging.proxy().cut();
    let next = tokio::spawn({
        let lock = client.lock("a");
        async move { (lock.lock().await, StdInstant::now()) }
    });
    let (switching, _watch) = (Arc::clone(&sentinels), Stopwatch::start());
    let switch = blocking(move || switching.watch().wait()).await;
    let (guard, at) = within(PATIENCE, "locking goes on", joined(next)).await;
    let announced = *switch.announced.iter().min().expect("three sentinels");
    let late = awake_between(announced, at);
    assert!(late < SOON, "{late:?} after the announcement");
    guard.expect("on the new primary").release().await.expect("held");
    let new = node(&sentinels, switch.port).server();
    eventually(SOON, "the waiter listens", || listeners(new, "held") == 1).await;
    holder.release().await.expect("held on the new primary");
    let _guard = within(SOON, "the waiter", joined(waiter)).await.expect("freed");
}

/// Replicas have lost their links, and sentinels know of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_client_needs_the_replicas_that_sentinels_know() {
    let sentinels = started().await;
    let servers = sentinels.servers();
    for replica in servers.replicas() {
        replica.server().cli(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    }
    let primary = servers.primary().server();
    let gone = || primary.info_field("replication", "connected_slaves") == "0";
    eventually(PATIENCE, "they are gone", gone).await;
    let client = connected(&sentinels, options()).await;
    let answer = client.lock("a").try_lock().await;
    assert!(matches!(answer, Err(Error::Unacknowledged { .. })), "{answer:?}");
}

/// The answer to an acquire is on its way when the failover is announced: it does not count, although
/// it is a grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_under_way_across_the_failover_does_not_count() {
    let sentinels = proxied().await;
    let old = sentinels.servers().primary().port();
    let client = connected(&sentinels, unacknowledged().response_timeout(LONG)).await;
    // The script is known, and the connection is there.
    taken(&lock_of(&client, Kind::Lock, "b")).await.release().await.expect("held");
    let server = node(&sentinels, old).server();
    let hash = server.cli(&["SCRIPT", "LOAD", lua("LOCK_ACQUIRE")]).ok();
    let proxy = node(&sentinels, old).proxy();
    proxy.drop_replies_once_after_request_matching(hash.text().as_bytes());
    let acquire = tokio::spawn(lock_of(&client, Kind::Lock, "a").lock());
    eventually(PATIENCE, "granted", || !stored(server, Kind::Lock, "a").is_empty()).await;

    let switch = failover(&sentinels).await;
    let guard = within(PATIENCE, "acquire", joined(acquire)).await.expect("by the new primary");
    assert_held(node(&sentinels, switch.port).server(), Kind::Lock, "a", &guard, 1);
}

/// A replica that never got the lock is promoted: the holder is told, and the lock is not silently
/// acquired again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_the_new_primary_does_not_have_is_lost() {
    let sentinels = proxied().await;
    let servers = sentinels.servers();
    let client = connected(&sentinels, unacknowledged()).await;
    for replica in servers.replicas() {
        // They keep the link and get nothing more.
        replica.server().cli(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    }
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    let old = servers.primary();
    assert_held(old.server(), Kind::Lock, "a", &guard, 1);
    // A new primary by hand: the sentinels do not promote a replica without a link.
    let killed = Arc::clone(&sentinels);
    blocking(move || killed.servers().primary().server().kill()).await;
    servers.promote(servers.replicas()[0]);
    for sentinel in sentinels.sentinels() {
        let port = servers.primary().port().to_string();
        let monitor = ["SENTINEL", "MONITOR", "mymaster", "127.0.0.1", &port, "2"];
        sentinel.server().cli(&["SENTINEL", "REMOVE", "mymaster"]).ok();
        sentinel.server().cli(&monitor).ok();
    }
    let reason = within(PATIENCE, "the loss", guard.lost()).await;
    assert_eq!(reason, LostReason::Deleted);
    assert_free(servers.primary().server(), Kind::Lock, "a");
}

/// A client that is cut off from the primary together with everybody but that primary keeps locking on
/// it. Without acknowledgement two clients then hold the lock; with acknowledgement by every replica
/// that can be promoted, never.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_around_a_partition_overlap_only_without_acknowledgement() {
    for acknowledged in [false, true] {
        let sentinels = proxied().await;
        let all = acknowledged_by(2, ms(300)).unreachable_after(SOON);
        let of = |on| if on { all.clone() } else { unacknowledged() };
        // Its sentinels do not reach it, either.
        let inside = connect(&sentinels.url(), of(acknowledged)).await;
        let old = sentinels.servers().primary();
        for sentinel in sentinels.sentinels() {
            sentinels.cut(sentinel, Side::Clients);
        }
        let cutting = Arc::clone(&sentinels);
        let switch = blocking(move || {
            let watch = cutting.watch();
            cutting.cut(cutting.servers().primary(), Side::Peers);
            watch.wait()
        })
        .await;
        let held = lock_of(&inside, Kind::Lock, "a").try_lock().await;
        let count = || stored(old.server(), Kind::Lock, "a").len();
        eventually(PATIENCE, "held, or undone", || count() == usize::from(!acknowledged)).await;
        let url = node(&sentinels, switch.port).url();
        let outside = connect(&url, options()).await;
        let other = lock_of(&outside, Kind::Lock, "a").try_lock().await.expect("it is there");
        assert!(other.is_some(), "the new primary does not know the first hold");
        match held {
            Ok(Some(guard)) => assert!(!acknowledged && !guard.is_lost(), "two holders"),
            Err(Error::Unacknowledged { .. }) => assert!(acknowledged),
            held => panic!("{held:?}"),
        }
    }
}

/// Sentinels die, come back, and are reset: the client follows the next failover all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_may_come_and_go() {
    let sentinels = started().await;
    let old = sentinels.servers().primary().port();
    let client = connected(&sentinels, options()).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    let restarting = Arc::clone(&sentinels);
    let switch = blocking(move || {
        for sentinel in restarting.sentinels() {
            sentinel.server().restart();
        }
        restarting.sentinels()[0].server().kill();
        let watch = restarting.watch();
        restarting.servers().primary().server().kill();
        watch.wait()
    })
    .await;
    let new = node(&sentinels, switch.port).server();
    let client_is_there = || new.commandstats("evalsha") > 0;
    eventually(PATIENCE, "the client has followed", client_is_there).await;
    assert_held(new, Kind::Lock, "a", &guard, 1);
    guard.release().await.expect("held");

    // Epochs begin anew.
    let reset = Arc::clone(&sentinels);
    blocking(move || {
        let died = reset.servers().replicas().into_iter().find(|node| node.port() == old);
        died.expect("it is no primary").server().restart();
        reset.reset();
    })
    .await;
    let guard = taken(&lock_of(&client, Kind::Lock, "b")).await;
    guard.release().await.expect("held");
    let switch = failover(&sentinels).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "c")).await;
    assert_held(node(&sentinels, switch.port).server(), Kind::Lock, "c", &guard, 1);
}

/// Passwords of servers and sentinels, and a database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_and_sentinels_have_their_own_passwords() {
    let servers = Replicated::builder().password("of servers");
    let sentinels =
        blocking(move || Arc::new(servers.sentinels().sentinel_password("of sentinels").start()))
            .await;
    let client = connected(&sentinels, options()).await;
    let guard = taken(&lock_of(&client, Kind::Mutex, "a")).await;
    let switch = failover(&sentinels).await;
    assert_held(node(&sentinels, switch.port).server(), Kind::Mutex, "a", &guard, 1);
    // A wrong one is told at once, and not shown.
    let wrong = sentinels.url().replace("sentinel_password=", "sentinel_password=wrong");
    let error = Client::connect_with(&wrong, options()).await.expect_err("a wrong password");
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    let unknown = sentinels.url().replace("/mymaster", "/another");
    let error = Client::connect_with(&unknown, options()).await.expect_err("another name");
    assert!(error.to_string().contains("another"), "{error}");
}

/// Servers and sentinels speak TLS only.
#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_over_tls_are_followed() {
    let servers = Replicated::builder().tls();
    let sentinels = blocking(move || Arc::new(servers.sentinels().start())).await;
    let server = sentinels.servers().primary().server();
    let trusting = RedisOptions::new().tls_ca(server.ca_pem());
    let trusting = trusting.tls_identity(server.client_cert_pem(), server.client_key_pem());
    let client = connected(&sentinels, options().redis(trusting)).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    let switch = failover(&sentinels).await;
    let new = node(&sentinels, switch.port).server();
    eventually(PATIENCE, "the client has followed", || new.commandstats("evalsha") > 0).await;
    assert_held(new, Kind::Lock, "a", &guard, 1);
    guard.release().await.expect("held");
}
