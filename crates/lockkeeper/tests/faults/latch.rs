//! A count-down latch: lost wake-ups, late messages, restarts and outages.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{CountDownLatch, Error, RECHECK, Result};
use testkit::{FaultProxy, RedisServer};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::primitives::*;
use crate::support::*;

const CHANNEL: &str = "redisson_countdownlatch__channel__{a}";

/// Long enough to tell it from a response timeout.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(1500);

fn latch_listeners(server: &RedisServer) -> i64 {
    server.cli(&["PUBSUB", "NUMSUB", CHANNEL]).array()[1].int()
}

/// A latch of count one. One client waits for it behind a proxy, another counts it down directly.
struct Waiting {
    server: Arc<RedisServer>,
    proxy: FaultProxy,
    latch: CountDownLatch,
    waiter: JoinHandle<Result<()>>,
}

impl Waiting {
    async fn new(server: RedisServer) -> Self {
        let proxy = FaultProxy::start(server.port()).await;
        let latch = connect(&server.url(), options()).await.count_down_latch("a");
        assert!(latch.try_set_count(1).await.expect("set"));
        let waits = connect(&proxy.url(), options()).await.count_down_latch("a");
        let hash = server.cli(&["SCRIPT", "LOAD", lua("COUNTER_INSPECT")]).ok();
        let checks = proxy.expect_delivery(hash.text().as_bytes());
        let waiter = tokio::spawn(async move { waits.wait().await });
        eventually(PATIENCE, "listening", || latch_listeners(&server) == 1).await;
        checks.wait_for(2).await;
        Self { server: Arc::new(server), proxy, latch, waiter }
    }

    async fn opens(self, limit: Duration) {
        within(limit, "the waiter", joined(self.waiter)).await.expect("opened");
        let server = self.server;
        eventually(SOON, "no subscriber", || latch_listeners(&server) == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_subscription_was_cut_wakes_up_at_once() {
    let w = Waiting::new(started().await).await;
    w.proxy.cut_connection(w.proxy.wait_for_subscriber().await);
    assert_eq!(w.latch.count_down().await.expect("answered"), 0);
    w.opens(SOON).await;

    let w = Waiting::new(started().await).await;
    w.proxy.refuse(true);
    w.proxy.cut_connection(w.proxy.wait_for_subscriber().await);
    w.proxy.wait_for_refusals(2).await;
    assert_eq!(w.latch.count_down().await.expect("answered"), 0);
    w.proxy.refuse(false);
    w.opens(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_opened_without_a_message_is_found_within_the_recheck() {
    let (deleted, deaf) =
        (Waiting::new(started().await).await, Waiting::new(started().await).await);
    assert_eq!(deleted.server.cli(&["DEL", "a"]).int(), 1);
    deaf.proxy.black_hole_connection(deaf.proxy.wait_for_subscriber().await, true);
    assert_eq!(deaf.latch.count_down().await.expect("answered"), 0);
    let woken = within(RECHECK + SOON, "the waiter without messages", joined(deaf.waiter));
    tokio::join!(deleted.opens(RECHECK + SOON), async { woken.await.expect("opened") });
}

/// A latch opens and is set again, and the message of the opening is late. A client that begins to
/// wait only then receives the message beside a waiter that subscribed before the opening. The message
/// must not end the later wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_message_does_not_open_a_latch_that_was_set_again() {
    let server = started().await;
    let proxy = FaultProxy::start(server.port()).await;
    let ours = connect(&proxy.url(), options()).await.count_down_latch("a");
    let theirs = connect(&server.url(), options()).await.count_down_latch("a");
    assert!(theirs.try_set_count(1).await.unwrap());
    let checks = server.commandstats("get");
    let first = ours.clone();
    let first = tokio::spawn(async move { first.wait().await });
    eventually(PATIENCE, "the first waiter listens", || latch_listeners(&server) == 1).await;
    eventually(PATIENCE, "and has checked since", || server.commandstats("get") >= checks + 2)
        .await;
    // The message is delayed; what comes after it, except behind it, is not.
    proxy.delay(ms(700));
    assert_eq!(theirs.count_down().await.unwrap(), 0);
    assert!(theirs.try_set_count(1).await.unwrap());
    // Not before the proxy has seen the message, which was sent before the marker.
    let marker = proxy.expect_request(b"a marker");
    let mut connection = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    connection.write_all(b"ECHO a marker\r\n").unwrap();
    marker.wait().await;
    proxy.delay(Duration::ZERO);
    assert!(!ours.wait_for(ms(1500)).await.unwrap(), "it was closed all the time");
    assert_eq!(ours.count().await.unwrap(), 1);
    within(PATIENCE, "the first waiter", joined(first)).await.unwrap();
    // The next message counts.
    let second = ours.clone();
    let second = tokio::spawn(async move { second.wait().await });
    eventually(PATIENCE, "the second waiter listens", || latch_listeners(&server) == 1).await;
    assert_eq!(theirs.count_down().await.unwrap(), 0);
    within(PATIENCE, "the second waiter", joined(second)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_survives_a_restart_of_the_server() {
    // Without its data the latch is open.
    let empty = Waiting::new(started().await).await;
    restart(&empty.server).await;
    within(SOON, "the waiter", joined(empty.waiter)).await.expect("it is open");
    // With its data it is as closed as before.
    let kept = Waiting::new(persistent().await).await;
    restart(&kept.server).await;
    assert_eq!(kept.latch.count().await.expect("there"), 1);
    assert!(!kept.waiter.is_finished());
    assert_eq!(kept.latch.count_down().await.expect("there"), 0);
    within(SOON, "the waiter", joined(kept.waiter)).await.expect("opened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_fails_when_the_server_stays_unreachable() {
    let server = started().await;
    let proxy = FaultProxy::start(server.port()).await;
    let patience = options().unreachable_after(UNREACHABLE_AFTER);
    let latch = connect(&proxy.url(), patience).await.count_down_latch("a");
    assert!(latch.try_set_count(1).await.expect("answered"));
    let waits = latch.clone();
    let waiter = tokio::spawn(async move { waits.wait().await });
    proxy.wait_for_subscriber().await;
    let started = Instant::now();
    down(&proxy);
    let answer = within(UNREACHABLE_AFTER + RESPONSE + SOON, "the waiter", joined(waiter)).await;
    assert_unreachable(&answer);
    assert!(started.elapsed() >= UNREACHABLE_AFTER - RESPONSE, "it gave up early");
    // A wait with a limit ends at that limit.
    let limited = within(SOON, "a limited wait", latch.wait_for(ms(300))).await;
    assert_unreachable(&limited);
    proxy.refuse(false);
    let late = within(PATIENCE, "a limited wait", latch.wait_for(ms(2000))).await;
    assert!(!late.expect("it answers in the end"));
}

/// A change of a counter is repeated until it is answered or the server counts as unreachable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_down_during_an_outage_counts_once() {
    let server = started().await;
    let proxy = FaultProxy::start(server.port()).await;
    let client = connect(&proxy.url(), options().unreachable_after(UNREACHABLE_AFTER)).await;
    let latch = client.count_down_latch("a");
    assert!(latch.try_set_count(5).await.expect("answered"));
    down(&proxy);
    let counts = latch.clone();
    let counting = tokio::spawn(async move { counts.count_down().await });
    proxy.wait_for_refusals(3).await;
    proxy.refuse(false);
    assert_eq!(within(SOON, "counting", joined(counting)).await.expect("answered"), 4);
    // The request was not sent.
    down(&proxy);
    let refused = within(UNREACHABLE_AFTER + SOON, "counting", latch.count_down()).await;
    assert!(
        matches!(refused, Err(Error::Unreachable { .. } | Error::Unconfirmed { .. })),
        "{refused:?}"
    );
    assert_eq!(server.cli(&["GET", "a"]).text(), "4");
    proxy.refuse(false);
    // The request was sent and not answered: the outcome is unknown.
    assert_eq!(within(PATIENCE, "counting", latch.count_down()).await.expect("answered"), 3);
    proxy.drop_replies(true);
    let lost = within(UNREACHABLE_AFTER + SOON, "counting", latch.count_down()).await;
    assert_unconfirmed(&lost);
    assert_eq!(server.cli(&["GET", "a"]).text(), "2", "it was done, and done once");
    proxy.drop_replies(false);
    proxy.cut();
    let again = async {
        loop {
            if let Ok(count) = latch.count().await {
                return count;
            }
        }
    };
    assert_eq!(within(PATIENCE, "a look", again).await, 2);
}
