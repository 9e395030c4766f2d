//! Making connections, losing them, and not making too many.

use std::future::IntoFuture;

use lockkeeper::{Client, Error, Kind};
use testkit::{FaultProxy, RedisServer};
use tokio::time::Instant;

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_port_is_unreachable_at_once() {
    // Nothing listens on the port of tcpmux.
    let url = "redis://127.0.0.1:1";
    let connecting = Client::connect_with(url, options());
    let answer = within(SOON + SOON, "an answer", connecting).await;
    assert_unreachable(&answer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_and_says_nothing_is_unreachable_after_the_connect_timeout() {
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
    let guard = rig.handle("held").taken().await;
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
        let guard = within(SOON, "acquire", handle.lock().into_future()).await;
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

/// Each of many cuts is answered by one connection for each that was cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_cost_a_connection_each() {
    let rig = Rig::new(Kind::Lock, options()).await;
    for round in 1..=10 {
        rig.proxy.cut();
        let guard = within(SOON, "acquire", rig.handle("a").lock().into_future()).await;
        guard.expect("reachable again").release().await.expect("held");
        // The command connection, and the one for wake-ups, if it was open.
        assert!(rig.proxy.accepted() <= 2 + 2 * round);
    }
    rig.assert_free("a");
}

/// Holding, waiting, many names at once: two connections, and both say whose they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_has_two_connections_that_say_whose_they_are() {
    let server = RedisServer::start();
    let other = connect(&server.url(), options().client_name("other")).await;
    let client = connect(&server.url(), options().client_name("checkout")).await;
    let mut busy = Vec::new();
    let mut waiters = Vec::new();
    let mut held = Vec::new();
    for n in 0..20 {
        let (busy_name, name) = (format!("busy-{n}"), format!("held-{n}"));
        busy.push(Handle::new(&other, Kind::Lock, &busy_name).taken().await);
        held.push(Handle::new(&client, Kind::Lock, &name).taken().await);
        let handle = Handle::new(&client, Kind::Lock, &busy_name);
        waiters.push(tokio::spawn(handle.lock().into_future()));
        eventually(PATIENCE, "listening", || listeners(&server, &busy_name) == 1).await;
    }
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
    let guard = Handle::new(&client, Kind::Lock, "a").taken().await;
    let waiting = Handle::new(&client, Kind::Lock, "a");
    let waiter = tokio::spawn(waiting.lock().into_future());
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
async fn a_shutdown_does_not_wait_for_a_server_that_is_gone() {
    let rig = Rig::new(Kind::Lock, options()).await;
    let guard = rig.handle("a").taken().await;
    rig.proxy.black_hole(true);
    within(2 * RESPONSE + SOON, "shutdown", rig.client.shutdown()).await;
    assert!(guard.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_does_what_a_port_does() {
    both(async |kind| {
        let server = RedisServer::builder().unix_socket().start();
        let client = connect(&server.url(), options()).await;
        let holder = Handle::new(&client, kind, "a").taken().await;
        let other = Handle::new(&connect(&server.url(), options()).await, kind, "a");
        let waiter = tokio::spawn(other.lock().into_future());
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_takes_a_password_and_a_database() {
    let server = RedisServer::builder().unix_socket().password("p@ss:w/rd").start();
    let url = format!("{}&db=3", server.url());
    let client = connect(&url, options()).await;
    let _guard = Handle::new(&client, Kind::Mutex, "a").taken().await;
    assert_eq!(exists_in(&server, 3, "a"), 1);
    let error = Client::connect_with(&server.url_with("", "wr0ng-s3cret"), options()).await;
    let error = error.expect_err("the password is wrong");
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("wr0ng-s3cret"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_number_is_kept_over_a_reconnect() {
    both(async |kind| {
        let server = RedisServer::start();
        let client = connect(&format!("{}/5", server.url()), options()).await;
        let handle = Handle::new(&client, kind, "a");
        handle.taken().await.release().await.expect("held");
        cut_all(&server);
        let guard = within(SOON, "acquire", handle.lock().into_future()).await;
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
