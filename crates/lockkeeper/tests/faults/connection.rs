//! Making connections, losing them, and not making too many.

use std::sync::Arc;

use lockkeeper::{Client, Error, Kind, Phase, RedisOptions, Severity};
use testkit::{FaultProxy, RedisServer, Stopwatch};
use tokio::time::Instant;

use crate::permissions::set_user;
use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_server_is_unreachable_at_once() {
    // Nothing listens on the port of tcpmux.
    for url in ["redis://u:s3cret@127.0.0.1:1", "redis+unix:///nowhere/redis.sock?pass=s3cret"] {
        let connecting = Client::connect_with(url, options());
        let error = within(SOON + SOON, "an answer", connecting).await.expect_err("no server");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
        let is_connect =
            matches!(error, Error::Unreachable { lock: None, phase: Phase::Connect, .. });
        assert!(is_connect, "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_and_does_not_answer_is_unreachable_after_the_connect_timeout() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port()).await;
    proxy.black_hole(true);
    let (started, url) = (Instant::now(), proxy.url());
    let connecting = Client::connect_with(&url, options().connect_timeout(ms(600)));
    let answer = within(ms(600) + SOON, "an answer", connecting).await;
    assert_unreachable(&answer);
    assert!(started.elapsed() >= ms(600), "it gave up too early");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_resets_is_unreachable_within_the_connect_timeout() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port()).await;
    proxy.refuse(true);
    let url = proxy.url();
    let connecting = Client::connect_with(&url, options());
    assert_unreachable(&within(SOON + SOON, "an answer", connecting).await);
}

/// 64 tasks that do nothing but ask, over two seconds without a server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_no_reconnect_storm() {
    let rig = Rig::new(Kind::Lock, options().retry_backoff(ms(20), ms(500))).await;
    // Holding something, so that the subscription connection takes part.
    let guard = taken(&rig.handle("held")).await;
    rig.proxy.wait_for_subscriber().await;
    rig.proxy.refuse(true);
    rig.proxy.cut();
    let end = Instant::now() + ms(2000);
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let handle = rig.handle(&format!("task-{n}"));
            tokio::spawn(async move {
                let mut failed = 0;
                while Instant::now() < end {
                    assert_unreachable(&handle.try_lock().await);
                    failed += 1;
                }
                failed
            })
        })
        .collect();
    let mut failed = 0;
    for task in tasks {
        failed += within(PATIENCE, "a task", joined(task)).await;
    }
    assert!(failed >= 64, "{failed}");
    // Two connections, each after pauses of 10 to 20 ms, 20 to 40 ms, … 250 to 500 ms, for as long
    // as the last attempt took: five to double up, then four a second.
    let refused = rig.proxy.refused();
    assert!((4..=36).contains(&refused), "{refused} attempts to connect");
    rig.proxy.refuse(false);
    let accepted = rig.proxy.accepted();
    for n in 0..64 {
        let handle = rig.handle(&format!("task-{n}"));
        let guard = within(SOON, "acquire", handle.lock()).await;
        guard.expect("reachable again").release().await.expect("held");
    }
    rig.assert_held("held", &guard, 1);
    let opened = rig.proxy.accepted() - accepted;
    assert!(opened <= 2, "{opened} connections to come back");
}

/// A server with an idle timeout, a load balancer, a restart at night: the server is there, and the
/// connection is not. That is nothing to fail for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_closed_while_idle_does_not_fail_the_next_attempt() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let idle = rig.proxy.connections()[0];
        rig.proxy.cut_connection(idle);
        // It finds out by itself, before anybody asks.
        rig.proxy.wait_for_connections(2).await;
        let answer = rig.handle("a").try_lock().await;
        assert!(matches!(answer, Ok(Some(_))), "{answer:?}");
    })
    .await;
}

/// A firewall or a router has forgotten the connection: it stays open on both sides, and nothing passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_lost_silently_while_idle_does_not_fail_the_next_attempt() {
    both(async |kind| {
        let rig = Rig::new(kind, options().redis(RedisOptions::new().keep_alive(ms(300)))).await;
        let idle = rig.proxy.connections()[0];
        rig.proxy.black_hole_connection(idle, true);
        // The ping finds out, before the next request.
        rig.proxy.wait_for_connections(2).await;
        let answer = rig.handle("a").lock().await;
        rig.assert_held("a", &answer.expect("the server is there"), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_client_pings_once_per_period_and_keeps_its_connection() {
    let period = ms(200);
    let rig = Rig::new(
        Kind::Lock,
        options().redis(RedisOptions::new().keep_alive(period)).response_timeout(PATIENCE),
    )
    .await;
    let (pings, started) = (rig.proxy.expect_request(b"PING\r\n"), Instant::now());
    pings.wait_for(5).await;
    // The first may have been due just after the watch began.
    assert!(started.elapsed() >= 4 * period, "{:?}", started.elapsed());
    assert_eq!(rig.proxy.accepted(), 1, "it is in order");
    // One that holds or asks need not.
    let rig = Rig::new(Kind::Lock, options()).await;
    let pings = rig.proxy.expect_request(b"PING\r\n");
    taken(&rig.handle("a")).await.release().await.expect("held");
    assert_eq!(pings.count(), 0);
}

/// What waits for a connection counts its time from when it was asked for, and not anew from when it
/// was sent. That it got no answer in what was left says nothing about the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wait_for_a_connection_counts_against_the_response_timeout() {
    both(async |kind| {
        let response = ms(4000);
        let patient = options().response_timeout(response).connect_timeout(PATIENCE);
        let rig = Rig::new(kind, patient).await;
        rig.mark(Sent::Acquire);
        let mut cli = rig.server.connection();
        rig.proxy.refuse(true);
        rig.proxy.cut();
        rig.proxy.wait_for_refusals(1).await;
        let (started, watch) = (Instant::now(), Stopwatch::start());
        let attempt = tokio::spawn(rig.handle("a").try_lock());
        tokio::time::sleep_until(started + ms(3000)).await;
        // The server answers that it is there, and lets whatever would write wait.
        cli.cmd(&["CLIENT", "PAUSE", "60000", "WRITE"]).ok();
        let accepted = rig.proxy.accepted();
        rig.proxy.refuse(false);
        let answer = within(PATIENCE, "an answer", joined(attempt)).await;
        let (took, awake) = (started.elapsed(), watch.elapsed());
        cli.cmd(&["CLIENT", "UNPAUSE"]).ok();
        assert_unreachable(&answer);
        assert!(took >= response && awake < response + SOON, "{took:?}");
        // The attempt has been undone, and the connection still serves.
        let guard = within(SOON, "acquire", rig.handle("a").lock()).await;
        rig.assert_held("a", &guard.expect("it answers again"), 1);
        let opened = rig.proxy.accepted() - accepted;
        assert!(opened <= 2, "{opened} connections, for requests and for messages");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_at_maxclients_is_reported_until_it_accepts_again() {
    let server = RedisServer::start();
    let client = connect(&server.url(), options().response_timeout(ms(3000))).await;
    let mut cli = server.connection();
    cli.cmd(&["CONFIG", "SET", "maxclients", "1"]).ok();
    let answer = Client::connect_with(&server.url(), options()).await;
    let said = assert_unreachable(&answer);
    assert!(said.contains("raise maxclients"), "{said}");
    // One that was connected has to come back.
    cli.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).ok();
    let handle = lock_of(&client, Kind::Lock, "a");
    // The first attempt may be what finds out that there is no connection any more.
    assert_unreachable(&within(PATIENCE, "an attempt", handle.try_lock()).await);
    let answer = within(PATIENCE, "an attempt", handle.try_lock()).await;
    let said = assert_unreachable(&answer);
    assert!(said.contains("raise maxclients"), "{said}");
    let waiter = tokio::spawn(handle.lock());
    cli.cmd(&["CONFIG", "SET", "maxclients", "100"]).ok();
    let guard = within(PATIENCE, "the waiter", joined(waiter)).await;
    assert_held(&server, Kind::Lock, "a", &guard.expect("there is room"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_of_an_invalid_url_does_not_print_it() {
    for port in ["99999", "0", "x", "-1"] {
        let url = format!("redis://u:s3cret@127.0.0.1:{port}/2");
        let error = Client::connect_with(&url, options()).await.expect_err("no such port");
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("the port in the URL must be a number from 1 to 65535"), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
    // What stands there in place of a port is a password.
    let error = Client::connect_with("redis://u:s3cret", options()).await.expect_err("no host");
    assert!(!error.to_string().contains("s3cret"), "{error}");
    let server = RedisServer::builder().password("s3cret").start();
    let url = format!("{}/4711", server.url());
    let error = Client::connect_with(&url, options()).await.expect_err("no such database");
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    assert!(error.to_string().contains("check the number of the database"), "{error}");
    let url = format!("redis://127.0.0.1:{}", server.port());
    let error = Client::connect_with(&url, options()).await.expect_err("no password");
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("give it in the URL"), "{error}");
}

/// Holding, waiting, many names at once: two connections, and both say whose they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_has_two_named_connections() {
    let server = RedisServer::start();
    let other =
        connect(&server.url(), options().redis(RedisOptions::new().client_name("other"))).await;
    let client =
        connect(&server.url(), options().redis(RedisOptions::new().client_name("checkout"))).await;
    let mut busy = Vec::new();
    let mut waiters = Vec::new();
    let mut held = Vec::new();
    for n in 0..20 {
        let (busy_name, name) = (format!("busy-{n}"), format!("held-{n}"));
        busy.push(taken(&lock_of(&other, Kind::Lock, &busy_name)).await);
        held.push(taken(&lock_of(&client, Kind::Lock, &name)).await);
        let handle = lock_of(&client, Kind::Lock, &busy_name);
        waiters.push(tokio::spawn(handle.lock()));
        eventually(PATIENCE, "listening", || listeners(&server, &busy_name) == 1).await;
    }
    let plain = connect(&server.url(), options()).await;
    let list = server.cli(&["CLIENT", "LIST"]);
    assert!(list.text().contains(" name=lockkeeper "), "{}", list.text());
    plain.shutdown().await;
    eventually(SOON, "closed", || connections(&server) == 4).await;
    let list = server.cli(&["CLIENT", "LIST"]);
    let ours: Vec<_> =
        list.text().lines().filter(|line| line.contains(" addr=127.0.0.1:")).collect();
    assert_eq!(ours.len(), 4, "two for each client:\n{}", ours.join("\n"));
    for name in ["other", "checkout"] {
        let named = ours.iter().filter(|line| line.contains(&format!(" name={name} "))).count();
        assert_eq!(named, 2, "{name}:\n{}", ours.join("\n"));
    }
    // The library's name is shown from Redis 7.2 on.
    if list.text().contains(" lib-name=") {
        assert!(ours.iter().all(|line| line.contains("lib-name=lockkeeper")));
    }
    waiters.iter().for_each(|waiter| waiter.abort());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_closes_every_connection_and_leaves_nothing() {
    let server = RedisServer::start();
    let client = connect(&server.url(), options()).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    let waiting = lock_of(&client, Kind::Lock, "a");
    let waiter = tokio::spawn(waiting.lock());
    eventually(PATIENCE, "two connections", || connections(&server) == 2).await;
    client.shutdown().await;
    let answer = within(SOON, "the waiter", joined(waiter)).await;
    assert!(matches!(answer, Err(Error::Closed { .. })), "{answer:?}");
    assert!(guard.is_lost());
    eventually(SOON, "no connection", || connections(&server) == 0).await;
    assert_eq!(server.cli(&["DBSIZE"]).int(), 0);
}

/// Even then: a shutdown is bounded by the response timeout, twice, and some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_does_not_wait_for_an_unreachable_server() {
    let rig = Rig::new(Kind::Lock, options()).await;
    let guard = taken(&rig.handle("a")).await;
    rig.proxy.black_hole(true);
    within(2 * RESPONSE + SOON, "shutdown", rig.client.shutdown()).await;
    assert!(guard.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_serves_holders_and_waiters() {
    both(async |kind| {
        let server = RedisServer::builder().unix_socket().start();
        let client = connect(&server.url(), options()).await;
        let holder = taken(&lock_of(&client, kind, "a")).await;
        let other = lock_of(&connect(&server.url(), options()).await, kind, "a");
        let waiter = tokio::spawn(other.lock());
        eventually(PATIENCE, "listening", || listeners(&server, "a") == 1).await;
        // And comes back after a cut.
        server.cli(&["PEXPIRE", "a", "30000"]);
        cut_all(&server);
        eventually(SOON, "renewed", || pttl(&server, "a") > 45_000).await;
        assert_held(&server, kind, "a", &holder, 1);
        holder.release().await.expect("held");
        let guard = within(SOON, "the waiter", joined(waiter)).await;
        assert_held(&server, kind, "a", &guard.expect("freed"), 1);
    })
    .await;
}

/// A restarted server counts its clients from 1 again, and those of a socket all have its address: the
/// id of a connection that was lost is another client's now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_unix_socket_do_not_revoke_each_other_after_a_restart() {
    let server = Arc::new(RedisServer::builder().unix_socket().start());
    let mut clients = Vec::new();
    for _ in 0..8 {
        // A slow answer must not make one of them give its connection up.
        clients.push(connect(&server.url(), options().response_timeout(ms(3000))).await);
    }
    let again = Arc::clone(&server);
    joined(tokio::task::spawn_blocking(move || again.restart())).await;
    for (n, client) in clients.iter().enumerate() {
        let handle = lock_of(client, Kind::Lock, &format!("lock-{n}"));
        let guard = within(PATIENCE, "acquire", handle.lock()).await;
        guard.expect("reachable again").release().await.expect("held");
    }
    assert_eq!(kills(&server), 0, "there was nothing to kill");
    // The same server: what was given up is killed, and no connection of another client.
    let before = ids(&server);
    server.pause();
    let probe = lock_of(&clients[0], Kind::Lock, "a").try_lock().await;
    server.resume();
    assert_unreachable(&probe);
    let handle = lock_of(&clients[0], Kind::Lock, "b");
    let guard = within(PATIENCE, "acquire", handle.lock()).await;
    guard.expect("reachable again").release().await.expect("held");
    assert!(kills(&server) > 0);
    let after = ids(&server);
    assert_eq!(before.iter().filter(|id| !after.contains(id)).count(), 1, "{before:?} {after:?}");
    eventually(SOON, "undone", || stored(&server, Kind::Lock, "a").is_empty()).await;
}

/// The ids of the connections that carry requests.
fn ids(server: &RedisServer) -> Vec<String> {
    let list = server.cli(&["CLIENT", "LIST"]);
    let own = |line: &&str| line.contains(" name=lockkeeper ") && line.contains(" cmd=eval");
    let id = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    list.text().lines().filter(own).map(id).collect()
}

/// A client that may not ask which run of the server it is must not kill at a guess.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_a_unix_socket_without_info_revokes_no_connection() {
    let server = RedisServer::builder().unix_socket().start();
    set_user(&server, &["~*", "&*", "+@all", "-info"]);
    let client = connect(&server.url_with("u", "s3cret"), options()).await;
    server.pause();
    let probe = lock_of(&client, Kind::Lock, "a").try_lock().await;
    server.resume();
    assert_unreachable(&probe);
    let handle = lock_of(&client, Kind::Lock, "b");
    let guard = within(PATIENCE, "acquire", handle.lock()).await;
    guard.expect("reachable again").release().await.expect("held");
    assert_eq!(kills(&server), 0);
    let findings = client.check().await.expect("reachable").findings;
    let fencing = findings.iter().find(|finding| finding.subject == "lost requests");
    assert_eq!(fencing.expect("it is looked at").severity, Severity::Note, "{findings:?}");
}

/// How often a client has killed another connection.
fn kills(server: &RedisServer) -> u64 {
    server.commandstats("client|kill")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_url_has_a_password_and_a_database() {
    let server = RedisServer::builder().unix_socket().password("p@ss:w/rd").start();
    let url = format!("{}&db=3", server.url());
    let client = connect(&url, options()).await;
    let _guard = taken(&lock_of(&client, Kind::Mutex, "a")).await;
    assert_eq!(exists_in(&server, 3, "a"), 1);
    let error = Client::connect_with(&server.url_with("", "wr0ng-s3cret"), options()).await;
    let error = error.expect_err("the password is wrong");
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("wr0ng-s3cret"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnect_selects_the_same_database() {
    both(async |kind| {
        let server = RedisServer::start();
        let client = connect(&format!("{}/5", server.url()), options()).await;
        let handle = lock_of(&client, kind, "a");
        taken(&handle).await.release().await.expect("held");
        cut_all(&server);
        let guard = within(SOON, "acquire", handle.lock()).await;
        let guard = guard.expect("reachable again");
        assert_eq!((exists_in(&server, 5, "a"), exists_in(&server, 0, "a")), (1, 0));
        guard.release().await.expect("held");
        assert_eq!(exists_in(&server, 5, "a"), 0);
    })
    .await;
}

fn exists_in(server: &RedisServer, database: u32, key: &str) -> i64 {
    let mut cli = server.connection();
    cli.cmd(&["SELECT", &database.to_string()]).ok();
    cli.cmd(&["EXISTS", key]).int()
}

/// How many connections there are by way of the port.
fn connections(server: &RedisServer) -> usize {
    let list = server.cli(&["CLIENT", "LIST"]);
    let by_port = |line: &&str| line.contains(" addr=127.0.0.1:");
    list.text().lines().filter(by_port).count()
}

/// The request has left and its answer has not come when the client is shut down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_during_an_acquire_leaves_no_hold() {
    both(async |kind| {
        let rig = Rig::new(kind, options().response_timeout(LONG)).await;
        let mark = rig.mark(Sent::Acquire);
        let (sent, delivered) = (rig.proxy.expect_request(&mark), rig.proxy.expect_delivery(&mark));
        rig.proxy.delay(ms(200));
        let acquire = tokio::spawn(rig.handle("a").lock());
        sent.wait().await;
        within(PATIENCE, "shutdown", rig.client.shutdown()).await;
        delivered.wait().await;
        rig.assert_free("a");
        match within(SOON, "the acquire", joined(acquire)).await {
            Ok(guard) => assert!(guard.is_lost(), "{guard:?}"),
            Err(error) => assert!(matches!(error, lockkeeper::Error::Closed { .. }), "{error:?}"),
        }
        rig.assert_free("a");
    })
    .await;
}
