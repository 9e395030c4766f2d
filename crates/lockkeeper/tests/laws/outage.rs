//! A server that does not answer, does not serve, or does not permit: what the caller is told, and
//! when. Each law has a server of its own.

use std::time::Duration;

use lockkeeper::{AnyLock, Client, ClientOptions, Error, LostReason, Phase};
use testkit::RedisServer;
use tokio::time::{Instant, timeout};

use crate::store::{assert_is, eventually, poll_once};

const LONG: Duration = Duration::from_secs(30);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_secs(3);
/// Long enough for a server on a busy machine, short enough to wait for.
const TIMEOUT: Duration = Duration::from_secs(1);

fn impatient() -> ClientOptions {
    ClientOptions::new().response_timeout(TIMEOUT).connect_timeout(TIMEOUT)
}

/// A client, and a server that it has talked to.
async fn met(options: ClientOptions) -> (RedisServer, Client) {
    let server = RedisServer::start();
    let client = Client::connect_with(&server.url(), options).await.unwrap();
    client.lock("met").lock().await.unwrap().release().await.unwrap();
    client.mutex("met").lock().await.unwrap().release().await.unwrap();
    (server, client)
}

fn either(client: &Client, as_mutex: bool) -> AnyLock {
    match as_mutex {
        false => client.lock("it").into(),
        true => client.mutex("it").into(),
    }
}

#[tokio::test]
async fn try_lock_fails_within_the_response_timeout() {
    let (server, client) = met(impatient()).await;
    server.pause();
    for as_mutex in [false, true] {
        let start = Instant::now();
        let answer = either(&client, as_mutex).try_lock().await;
        let error = answer.unwrap_err();
        assert!(start.elapsed() < TIMEOUT + SLACK, "{:?}", start.elapsed());
        let said = error.to_string();
        assert_is!(error, Error::Unreachable { lock: Some(_), phase: Phase::Acquire, .. });
        assert!(said.contains("\"it\"") && said.contains("acquiring"), "{said}");
    }
    server.resume();
    // What was sent is undone: nothing stays held.
    let observer = Client::connect(&server.url()).await.unwrap();
    eventually("it is free", async || !observer.lock("it").is_locked().await.unwrap()).await;
}

#[tokio::test]
async fn inspecting_a_silent_server_is_unreachable() {
    let (server, client) = met(impatient()).await;
    server.pause();
    let start = Instant::now();
    let lock = client.lock("it");
    assert_is!(lock.is_locked().await, Err(Error::Unreachable { phase: Phase::Inspect, .. }));
    assert_is!(
        lock.force_unlock().await,
        Err(Error::Unreachable { phase: Phase::ForceUnlock, .. })
    );
    assert!(start.elapsed() < TIMEOUT * 4 + SLACK, "{:?}", start.elapsed());
    server.resume();
}

#[tokio::test]
async fn at_the_wait_limit_without_an_answer_it_is_unreachable() {
    let (server, client) = met(impatient()).await;
    server.pause();
    let limit = TIMEOUT * 3 / 2;
    let start = Instant::now();
    let answer = client.lock("it").try_lock_for(limit).await;
    let took = start.elapsed();
    assert_is!(answer, Err(Error::Unreachable { .. }));
    assert!(took >= limit.mul_f64(0.95) && took < limit + SLACK, "{took:?}");
    server.resume();
}

#[tokio::test]
async fn a_waiting_acquire_rides_out_an_outage() {
    let (server, client) = met(impatient()).await;
    server.pause();
    let mut waiting = client.lock("it").lock();
    assert!(timeout(TIMEOUT * 5 / 4, &mut waiting).await.is_err());
    server.resume();
    let guard = timeout(LONG, waiting).await.expect("it gets in").unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_waiting_acquire_ends_once_the_store_was_silent_for_too_long() {
    let span = TIMEOUT * 3 / 2;
    let (server, client) = met(impatient().unreachable_after(span)).await;
    let lock = client.lock("it");
    server.pause();
    let start = Instant::now();
    // The second waits in the queue behind the first.
    let (mut first, mut second) = (lock.lock(), lock.lock());
    assert!(poll_once(&mut first).is_pending());
    assert!(poll_once(&mut second).is_pending());
    let (first, second) = tokio::join!(first, second);
    let took = start.elapsed();
    assert!(took >= span.mul_f64(0.95) && took < span * 2 + SLACK, "{took:?}");
    match first.unwrap_err() {
        Error::Unreachable { silent_for: Some(silent), .. } => assert!(silent >= span / 2),
        other => panic!("expected to be told for how long, got {other:?}"),
    }
    assert_is!(second, Err(Error::Unreachable { .. }));
    server.resume();
}

#[tokio::test]
async fn a_server_that_is_read_only_is_ridden_out() {
    let (server, client) = met(impatient()).await;
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    server.cli(&["CONFIG", "SET", "replica-serve-stale-data", "yes"]).ok();
    for as_mutex in [false, true] {
        let error = either(&client, as_mutex).try_lock().await.unwrap_err();
        assert!(error.to_string().contains("READONLY"), "{error}");
        assert_is!(error, Error::Refused { lock: Some(_), .. });
    }
    let mut waiting = client.lock("it").lock();
    assert!(timeout(Duration::from_millis(300), &mut waiting).await.is_err());
    server.cli(&["REPLICAOF", "NO", "ONE"]).ok();
    let guard = timeout(LONG, waiting).await.expect("it gets in").unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_out_of_memory_says_so_and_takes_locks_back() {
    let (server, client) = met(impatient()).await;
    let held = client.lock("held").lock().await.unwrap();
    let inner = held.reenter().await.unwrap();
    let mutex = client.mutex("mutex").lock().await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    for as_mutex in [false, true] {
        let error = either(&client, as_mutex).try_lock().await.unwrap_err();
        assert!(error.to_string().contains("OOM"), "{error}");
        assert_is!(error, Error::Refused { .. });
    }
    // A waiter that times out says why, in the queue behind another as well.
    let span = Duration::from_millis(300);
    let patient = || client.lock("it").try_lock_for(span);
    let (first, second) = tokio::join!(patient(), patient());
    for answer in [first, second] {
        let error = answer.unwrap_err();
        assert!(error.to_string().contains("OOM"), "{error}");
        assert_is!(error, Error::Refused { .. });
    }
    inner.release().await.expect("a partial release needs no memory");
    held.release().await.expect("a release needs no memory");
    mutex.release().await.expect("a release needs no memory");
    let mut waiting = client.lock("it").lock();
    assert!(timeout(Duration::from_millis(200), &mut waiting).await.is_err());
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]).ok();
    let guard = timeout(LONG, waiting).await.expect("it gets in").unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_comes_back_empty_has_lost_the_lock() {
    let (server, client) = met(impatient()).await;
    let guard = client.lock("it").lock().await.unwrap();
    server.restart();
    let lost = timeout(LONG, guard.lost()).await.expect("it is told");
    assert_eq!(lost, LostReason::Deleted);
    let next = Client::connect(&server.url()).await.unwrap().lock("it").lock().await.unwrap();
    assert_is!(guard.release().await, Err(Error::NotHeld { .. }));
    assert!(!next.is_lost());
    next.release().await.unwrap();
}

/// The holder is told before the lease can end, though nobody answers.
#[tokio::test]
async fn renewals_without_an_answer_lose_the_lock_in_time() {
    let watchdog = TIMEOUT * 4;
    let (server, client) =
        met(impatient().watchdog_timeout(watchdog).drift(0.49, Duration::ZERO)).await;
    let guard = client.lock("it").lock().await.unwrap();
    server.pause();
    let start = Instant::now();
    assert_eq!(timeout(LONG, guard.lost()).await.expect("it is told"), LostReason::Unreachable);
    assert!(start.elapsed() < watchdog, "after the end at the server: {:?}", start.elapsed());
    server.resume();
}

#[tokio::test]
async fn a_waiter_whose_connections_are_cut_still_gets_the_lock() {
    let (server, holder) = met(impatient()).await;
    let waiter = Client::connect_with(&server.url(), impatient()).await.unwrap();
    let guard = holder.lock("it").lock().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.lock("it").lock().await });
    let listeners =
        || server.cli(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{it}"]).array()[1].int();
    eventually("it listens", async || listeners() == 1).await;
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).ok();
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).ok();
    let start = Instant::now();
    guard.release().await.expect("the release is told apart from a loss");
    let next = timeout(LONG, waiting).await.expect("it gets in").unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5) + SLACK, "{:?}", start.elapsed());
    next.release().await.unwrap();
}

fn user(server: &RedisServer, rights: &[&str]) -> String {
    let mut acl = vec!["ACL", "SETUSER", "ann", "reset", "on", ">pass"];
    acl.extend(rights);
    server.cli(&acl).ok();
    server.url_with("ann", "pass")
}

#[tokio::test]
async fn a_missing_permission_is_denied_at_once_and_named() {
    let server = RedisServer::start();
    let url = user(&server, &["~*", "&*", "+@all", "-evalsha", "-eval", "-set"]);
    let client = Client::connect(&url).await.unwrap();
    let start = Instant::now();
    for (answer, command) in [
        (client.lock("it").lock().await.map(drop), "eval"),
        (client.lock("it").try_lock_for(LONG).await.map(drop), "eval"),
        (client.mutex("it").lock().await.map(drop), "set"),
    ] {
        match answer.unwrap_err() {
            Error::Denied { lock: Some(_), phase: Phase::Acquire, detail } => {
                assert!(detail.to_lowercase().contains(command), "{detail}");
            }
            other => panic!("expected Denied, got {other:?}"),
        }
    }
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_key_out_of_bounds_is_denied() {
    let server = RedisServer::start();
    let url = user(&server, &["~mine:*", "~lockkeeper*", "&*", "+@all"]);
    let client = Client::connect(&url).await.unwrap();
    client.lock("mine:it").lock().await.unwrap().release().await.unwrap();
    assert_is!(client.lock("theirs").lock().await, Err(Error::Denied { .. }));
    assert_is!(client.mutex("theirs").lock().await, Err(Error::Denied { .. }));
}

/// Neither publishing nor subscribing is permitted: releases succeed, waiters look by themselves.
#[tokio::test]
async fn without_channels_waiters_poll() {
    let server = RedisServer::start();
    let url = user(&server, &["~*", "resetchannels", "+@all"]);
    let (a, b) = (Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap());
    for as_mutex in [false, true] {
        let guard = either(&a, as_mutex).lock().await.unwrap();
        let mut waiting = either(&b, as_mutex).lock();
        assert!(timeout(Duration::from_millis(250), &mut waiting).await.is_err());
        let start = Instant::now();
        guard.release().await.expect("a release never fails for want of a channel");
        let next = timeout(LONG, waiting).await.expect("it looks again").unwrap();
        assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
        next.release().await.unwrap();
    }
}
