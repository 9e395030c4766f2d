//! Scripts, rights and messages, on servers of their own.

use std::future::Future;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use lockkeeper::backend::redis::Redis;
use lockkeeper::backend::{Acquire, Attempt, Backend, Kind, Release, Resource};
use lockkeeper::{Client, ClientOptions, Error, LockName, MultiLock, OwnerId};
use testkit::{FaultProxy, RedisServer};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

/// What a test waits for at most where the time itself is not what is tested.
const PATIENCE: Duration = Duration::from_secs(15);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The outcome of `work`, which must come at all.
async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// Looks until `condition` holds. For what only the server knows.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        sleep(ms(5)).await;
    }
}

/// A client for a user who may do everything but this.
async fn without(server: &RedisServer, command: &str) -> Client {
    let denied = format!("-{command}");
    let user = ["ACL", "SETUSER", "u", "reset", "on", ">s3cret", "~*", "&*", "+@all", &denied];
    server.cli(&user).ok();
    Client::connect(&server.url_with("u", "s3cret")).await.expect("the server is there")
}

#[track_caller]
fn assert_denied<T: std::fmt::Debug>(answer: &Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Denied { .. })), "{answer:?}");
}

/// A latch is opened and closed again, and the message of that is late. Whoever begins to wait only
/// then hears it, beside one who has been listening all the time, and must not take it for an opening.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_message_does_not_open_a_latch_that_was_set_anew() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port()).await;
    let ours = Client::connect(&proxy.url()).await.expect("the server is there");
    let theirs = Client::connect(&server.url()).await.expect("the server is there");
    let (ours, theirs) = (ours.count_down_latch("it"), theirs.count_down_latch("it"));
    assert!(theirs.try_set_count(1).await.unwrap());
    let looks = server.commandstats("get");
    let first = ours.clone();
    let first = tokio::spawn(async move { first.wait().await });
    let channel = "redisson_countdownlatch__channel__{it}";
    let listeners = || server.cli(&["PUBSUB", "NUMSUB", channel]).array()[1].int();
    eventually("the first one listens", || listeners() == 1).await;
    eventually("and has looked since", || server.commandstats("get") >= looks + 2).await;
    // The message is under way for so long; what comes after it, except behind it, is not.
    proxy.delay(ms(700));
    assert_eq!(theirs.count_down().await.unwrap(), 0);
    assert!(theirs.try_set_count(1).await.unwrap());
    // Not before the proxy has seen the message, which was there before this.
    let marker = proxy.expect_request(b"a marker");
    let mut stranger = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    stranger.write_all(b"ECHO a marker\r\n").unwrap();
    marker.wait().await;
    proxy.delay(Duration::ZERO);
    assert!(!ours.wait_for(ms(1500)).await.unwrap(), "it has been closed all the time");
    assert_eq!(ours.count().await.unwrap(), 1);
    soon("the first one goes on", first).await.unwrap().unwrap();
    // The next message counts.
    let second = ours.clone();
    let second = tokio::spawn(async move { second.wait().await });
    eventually("the second one listens", || listeners() == 1).await;
    assert_eq!(theirs.count_down().await.unwrap(), 0);
    soon("the second one goes on", second).await.unwrap().unwrap();
}

/// Several locks in one script, which is stopped half-way: those that it has taken do not stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_lock_without_rights_is_denied_and_leaves_nothing() {
    let server = RedisServer::start();
    let all = Client::connect(&server.url()).await.expect("the server is there");
    for command in ["pexpire", "hset", "pttl"] {
        let client = without(&server, command).await;
        let members =
            |client: &Client| MultiLock::new(["a", "b", "c"].map(|name| client.lock(name)));
        assert_denied(&members(&client).try_lock().await);
        assert_denied(&members(&client).try_lock_for(ms(5_000)).await);
        let left = server.cli(&["EXISTS", "a", "b", "c"]).int();
        assert_eq!(left, 0, "without {command}");
        let guard = members(&all).try_lock().await.unwrap().expect("nobody has them");
        guard.release().await.unwrap();
    }
}

/// Permits are counted off, and then their ids cannot be written: so they are not counted off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_without_rights_are_denied_and_none_is_taken() {
    let server = RedisServer::start();
    let all = Client::connect(&server.url()).await.expect("the server is there");
    let semaphore = all.permit_semaphore("it");
    assert!(semaphore.try_set_permits(5).await.unwrap());
    for command in ["zadd", "incrby"] {
        let client = without(&server, command).await;
        for _ in 0..3 {
            assert_denied(&client.permit_semaphore("it").try_acquire(2).await);
        }
        assert_eq!(semaphore.available().await.unwrap(), 5, "without {command}");
        assert_eq!(semaphore.acquired().await.unwrap(), 0, "without {command}");
    }
}

/// Three hundred permits of a holder that died: all of them are free, not only the first hundred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_permits_that_have_ended_can_be_had_at_once() {
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.expect("the server is there");
    let semaphore = client.permit_semaphore("it");
    assert!(semaphore.try_set_permits(300).await.unwrap());
    std::mem::forget(semaphore.lease(ms(500)).acquire(300).await.unwrap());
    let start = Instant::now();
    while semaphore.available().await.unwrap() < 300 {
        assert!(start.elapsed() < PATIENCE, "they never end");
        sleep(ms(20)).await;
    }
    let guard = semaphore.try_acquire(200).await.unwrap().expect("300 are free");
    assert_eq!(semaphore.available().await.unwrap(), 100);
    guard.release().await.unwrap();
}

/// A reader reads on and on, a writer waits, and readers that have been patient come: one of them gets
/// in, and no other before the writer has. Time passes by the scores of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patient_readers_get_in_once_before_a_writer() {
    let server = RedisServer::start();
    let store = Redis::connect(&server.url(), &ClientOptions::new()).await.unwrap();
    let us = Uuid::from_u128(1);
    let of = |kind| Resource { kind, name: LockName::from("it") };
    let ask = async |kind, owner| {
        let request = Acquire { waits: true, ..Acquire::new(of(kind), owner, 60_000) };
        matches!(store.acquire(request).await.unwrap(), Attempt::Granted { .. })
    };
    let release = async |kind, owner| {
        store.release(Release::new(of(kind), owner)).await.unwrap();
    };
    let age = || {
        server.cli(&["ZINCRBY", "lockkeeper_patience:{it}", "-6000", "since"]).ok();
    };
    let [first, patient, next] = [(); 3].map(|()| OwnerId::fresh(us));
    let writer = OwnerId::fresh(us);
    for round in 0..2 {
        assert!(ask(Kind::Read, first).await, "round {round}");
        assert!(!ask(Kind::Write, writer).await);
        assert!(!ask(Kind::Read, patient).await, "it is behind the writer");
        age();
        assert!(ask(Kind::Read, patient).await, "it has waited for long enough");
        release(Kind::Read, first).await;
        // The batch is over.
        server.cli(&["ZREM", "lockkeeper_patience:{it}", "turn"]).ok();
        assert!(!ask(Kind::Write, writer).await, "there is a reader");
        assert!(!ask(Kind::Read, next).await);
        age();
        assert!(!ask(Kind::Read, next).await, "a second batch");
        release(Kind::Read, patient).await;
        assert!(ask(Kind::Write, writer).await, "nobody reads");
        release(Kind::Write, writer).await;
    }
}
