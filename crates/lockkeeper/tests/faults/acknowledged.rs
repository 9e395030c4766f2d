//! Writes that replicas must acknowledge.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, ClientOptions, Error, Kind};
use testkit::{RedisServer, Replicated};

use crate::permissions::set_user;
use crate::support::*;

async fn replicated(replicas: usize) -> Arc<Replicated> {
    let starting = move || Arc::new(Replicated::builder().replicas(replicas).start());
    joined(tokio::task::spawn_blocking(starting)).await
}

/// How long a replica may take. One that was not stopped answers sooner, also on a machine that stands still
/// for a moment.
const TIMEOUT: Duration = Duration::from_secs(1);

fn by(replicas: u32) -> ClientOptions {
    acknowledged_by(replicas, TIMEOUT)
}

/// Answers `Unacknowledged`.
#[track_caller]
fn assert_unacknowledged<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Err(error @ Error::Unacknowledged { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// A replica stops during an acquire: one attempt fails and is undone, a wait goes on until the replica
/// is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_needs_its_replicas() {
    let servers = replicated(2).await;
    let (primary, replica) = (servers.primary().server(), servers.replicas()[0].server());
    let client = connect(&servers.primary().url(), by(2)).await;
    both_kinds(&client, async |lock, kind| {
        let guard = taken(&lock).await;
        for one in servers.replicas() {
            assert_eq!(stored(one.server(), kind, "a").len(), 1, "it is on every replica");
        }
        guard.release().await.expect("held");
        replica.pause();
        let said = assert_unacknowledged(within(PATIENCE, "one attempt", lock.try_lock()).await);
        assert!(said.contains("1 of 2 replicas"), "{said}");
        eventually(PATIENCE, "undone", || stored(primary, kind, "a").is_empty()).await;
        let waiter = tokio::spawn(lock.lock());
        eventually(PATIENCE, "it tries", || !stored(primary, kind, "a").is_empty()).await;
        replica.resume();
        let guard = within(PATIENCE, "the wait", joined(waiter)).await.expect("acknowledged");
        assert_held(primary, kind, "a", &guard, 1);
        guard.release().await.expect("held");
    })
    .await;
}

async fn both_kinds(client: &Client, scenario: impl AsyncFn(lockkeeper::AnyLock, Kind)) {
    for kind in KINDS {
        scenario(lock_of(client, kind, "a"), kind).await;
    }
}

/// Re-entry, extension, counters and permits are acknowledged; releases are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_changes_that_last_are_acknowledged() {
    let servers = replicated(1).await;
    let replica = servers.replicas()[0].server();
    let client = connect(&servers.primary().url(), by(1)).await;
    let lock = client.lock("lock");
    let guard = lock.lock().await.unwrap();
    let semaphore = client.semaphore("semaphore");
    semaphore.try_set_permits(2, None).await.unwrap();
    let permit = semaphore.acquire(1).await.unwrap();
    let latch = client.count_down_latch("latch");
    latch.try_set_count(2).await.unwrap();
    replica.pause();
    assert_unacknowledged(guard.reenter().await);
    assert_unacknowledged(guard.extend(LONG).await);
    assert_unacknowledged(semaphore.try_acquire(1).await);
    assert_unacknowledged(latch.count_down().await);
    within(PATIENCE, "release", guard.release()).await.expect("held");
    drop(permit);
    assert_free(servers.primary().server(), Kind::Lock, "lock");
}

/// The primary is restarted, without its data, between an answer and its acknowledgement: the new run
/// acknowledges nothing that it never had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_primary_acknowledges_nothing_from_before() {
    let servers = replicated(1).await;
    let primary = servers.primary().server();
    let client = connect(&servers.primary().url(), by(1)).await;
    let lock = client.lock("a");
    // Both connections are there, so that the first poll of the next acquire sends it.
    lock.lock().await.expect("acknowledged").release().await.expect("held");
    let mut acquire = Box::pin(lock.try_lock());
    start(&mut acquire).await;
    // Answered later on the same connection: the answer to the acquire has arrived, too.
    assert!(lock.is_locked().await.expect("answered"));
    let restarting = Arc::clone(&servers);
    let restarted = move || {
        restarting.primary().server().restart();
        restarting.await_in_sync(1);
    };
    joined(tokio::task::spawn_blocking(restarted)).await;
    let again = client.lock("b");
    let again = within(PATIENCE, "both connections are there again", again.lock()).await;
    again.expect("acknowledged").release().await.expect("held");
    let said = assert_unacknowledged(within(PATIENCE, "the acquire", acquire).await);
    assert!(said.contains("lost meanwhile"), "{said}");
    assert_free(primary, Kind::Lock, "a");
}

/// Fewer replicas than asked for, a server without the permission to wait, and an embedded store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_acknowledged_is_told() {
    let server = RedisServer::start();
    let client = connect(&server.url(), by(1)).await;
    let said = assert_unacknowledged(client.lock("a").try_lock().await);
    assert!(said.contains("0 of 1 replicas"), "{said}");
    eventually(PATIENCE, "undone", || stored(&server, Kind::Lock, "a").is_empty()).await;

    set_user(&server, &["~*", "&*", "+@all", "-wait"]);
    let url = server.url_with("u", "s3cret");
    let error = Client::connect_with(&url, by(1)).await.expect_err("WAIT is denied");
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    let error = Client::connect_with("memory:", by(1)).await.expect_err("no replicas");
    assert!(error.to_string().contains("no replicas"), "{error}");
    for wrong in [by(0), acknowledged_by(1, Duration::ZERO)] {
        let error = Client::connect_with(&server.url(), wrong).await.expect_err("no sense");
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    }
}

/// By default, a client that follows failovers waits for one replica as long as there is one, and for
/// none where the user may not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_default_needs_one_replica_if_there_is_any() {
    let servers = replicated(1).await;
    let (primary, replica) = (servers.primary().server(), servers.replicas()[0].server());
    let client = connect(&servers.url(), options()).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    assert_held(replica, Kind::Lock, "a", &guard, 1);
    replica.pause();
    assert_unacknowledged(lock_of(&client, Kind::Lock, "b").try_lock().await);
    // It is gone, and not late.
    let killed = Arc::clone(&servers);
    joined(tokio::task::spawn_blocking(move || killed.replicas()[0].server().kill())).await;
    let gone = || primary.info_field("replication", "connected_slaves") == "0";
    eventually(PATIENCE, "the primary has noticed", gone).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "b")).await;
    assert_held(primary, Kind::Lock, "b", &guard, 1);
}

/// The user may not wait for a while. Locks are acknowledged again once it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgement_comes_back_after_a_refusal() {
    let servers = replicated(1).await;
    let (primary, replica) = (servers.primary().server(), servers.replicas()[0].server());
    let may_wait = |rule: &str| primary.cli(&["ACL", "SETUSER", "default", rule]).ok();
    let strict = connect(&servers.url(), by(1)).await.lock("a");
    let default = connect(&servers.url(), options()).await.lock("b");
    may_wait("-wait");
    cut_all(primary);
    until("denied", async || matches!(strict.try_lock().await, Err(Error::Denied { .. }))).await;
    // Nothing waits for the replica any more.
    replica.pause();
    until("granted", async || matches!(default.try_lock().await, Ok(Some(_)))).await;
    may_wait("+wait");
    until("needed", async || matches!(default.try_lock().await, Err(Error::Unacknowledged { .. })))
        .await;
    replica.resume();
    until("acknowledged", async || matches!(strict.try_lock().await, Ok(Some(_)))).await;
    let guard = taken(&strict.into()).await;
    assert_held(replica, Kind::Lock, "a", &guard, 1);
}

async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let looking = async {
        while !condition().await {
            tokio::time::sleep(ms(5)).await;
        }
    };
    within(PATIENCE, what, looking).await;
}

/// A replica in its first synchronisation has nothing, and `ROLE` does not list it: it is a replica all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_in_its_first_synchronisation_is_needed() {
    let primary = RedisServer::builder().arg("--repl-diskless-sync", "yes");
    let (primary, replica) =
        (primary.arg("--repl-diskless-sync-delay", "1000").start(), RedisServer::start());
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).ok();
    let waits = || primary.info_field("replication", "connected_slaves") == "1";
    eventually(PATIENCE, "the replica waits", waits).await;
    assert!(primary.info_field("replication", "slave0").contains("wait_bgsave"));
    let hosts = [&primary, &replica].map(|server| format!("127.0.0.1:{}", server.port()));
    let url = format!("redis+replicated://{}", hosts.join(","));
    let lock = lock_of(&connect(&url, options()).await, Kind::Lock, "a");
    let said = assert_unacknowledged(within(PATIENCE, "one attempt", lock.try_lock()).await);
    assert!(said.contains("0 of 1 replicas"), "{said}");
    primary.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).ok();
    let guard = taken(&lock).await;
    assert_held(&replica, Kind::Lock, "a", &guard, 1);
}

/// The connection breaks at the moment in which the last replica dies, which may have been promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_connection_remembers_that_there_was_a_replica() {
    let servers = replicated(1).await;
    let primary = servers.primary().server();
    let client = connect(&servers.url(), options()).await;
    taken(&lock_of(&client, Kind::Lock, "a")).await.release().await.expect("held");
    let killed = Arc::clone(&servers);
    joined(tokio::task::spawn_blocking(move || killed.replicas()[0].server().kill())).await;
    let gone = || primary.info_field("replication", "connected_slaves") == "0";
    eventually(PATIENCE, "the primary has noticed", gone).await;
    let acquire = tokio::spawn(client.lock("b").try_lock());
    let waiting = || {
        let list = primary.cli(&["CLIENT", "LIST"]).ok();
        let waiting = list.text().lines().find(|line| line.contains("cmd=wait"))?;
        Some(waiting.split(['=', ' ']).nth(1).expect("an id").to_owned())
    };
    eventually(PATIENCE, "it waits for the replica", || waiting().is_some()).await;
    let id = waiting().expect("it waits for a second");
    primary.cli(&["CLIENT", "KILL", "ID", &id]).ok();
    let said = assert_unacknowledged(joined(acquire).await);
    assert!(said.contains("broke"), "{said}");
    assert_unacknowledged(client.lock("c").try_lock().await);
    let guard = taken(&lock_of(&client, Kind::Lock, "c")).await;
    assert_held(primary, Kind::Lock, "c", &guard, 1);
}

/// The other replica has not been told yet of the one that is promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_server_needs_its_replicas_for_a_while() {
    let servers = replicated(2).await;
    let client = connect(&servers.url(), options()).await;
    let lock = lock_of(&client, Kind::Lock, "a");
    taken(&lock).await.release().await.expect("held");
    let promoting = Arc::clone(&servers);
    let promote = move || {
        promoting.primary().server().kill();
        promoting.promote(promoting.replicas()[0]);
    };
    joined(tokio::task::spawn_blocking(promote)).await;
    let first_answer = async {
        loop {
            match lock.try_lock().await {
                Err(Error::Unreachable { .. }) => {}
                answer => return answer,
            }
        }
    };
    assert_unacknowledged(within(PATIENCE, "the new primary", first_answer).await);
    let guard = taken(&lock).await;
    assert_held(servers.primary().server(), Kind::Lock, "a", &guard, 1);
}

/// Each time that acknowledgement ends, there is one warning. On one thread, so that it can be collected.
#[tokio::test]
async fn locks_without_acknowledgement_are_warned_of_once() {
    let (warnings, _collecting) = Warnings::collect();
    let warned = || warnings.containing("not acknowledged by replicas");
    let servers = replicated(1).await;
    let replica = servers.replicas()[0].server();
    replica.kill();
    let gone = || servers.primary().server().info_field("replication", "connected_slaves") == "0";
    eventually(PATIENCE, "the primary has noticed", gone).await;
    let client = connect(&servers.url(), options()).await;
    let lock = lock_of(&client, Kind::Lock, "a");
    for round in 1..=2 {
        for _ in 0..3 {
            taken(&lock).await.release().await.expect("held");
        }
        assert_eq!(warned(), round, "without a replica");
        replica.restart();
        servers.await_in_sync(1);
        taken(&lock).await.release().await.expect("held");
        assert_eq!(warned(), round, "with one");
        replica.kill();
    }
}
