//! Wake-ups get lost: a waiter finds out all the same, and does not hammer the server meanwhile.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::redis::Redis;
use lockkeeper::backend::{
    Acquire, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, Fault, Finding, List,
    Page, Release, Released, Renew, Renewed, Resource, Snapshot, Subscription, Topic, Ttl,
};
use lockkeeper::{AnyGuard, Client, Kind, Result};
use testkit::RedisServer;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::*;

/// No waiter sleeps longer without looking again.
const RECHECK: Duration = Duration::from_secs(5);

/// A waiter behind a proxy for a lock that a stranger holds.
struct Waiting {
    rig: Rig,
    holder: Option<AnyGuard>,
    waiter: JoinHandle<Result<AnyGuard>>,
}

impl Waiting {
    async fn new(kind: Kind) -> Self {
        let rig = Rig::new(kind, options()).await;
        let holder = Some(taken(&rig.strangers("a").await).await);
        let attempts = rig.proxy.expect_delivery(&rig.mark(Sent::Acquire));
        let waiter = tokio::spawn(rig.handle("a").lock());
        eventually(PATIENCE, "listening", || listeners(&rig.server, "a") == 1).await;
        // The second attempt follows the confirmation: from here on it sleeps.
        attempts.wait_for(2).await;
        Self { rig, holder, waiter }
    }

    async fn release(&mut self) {
        let holder = self.holder.take().expect("released once");
        holder.release().await.expect("it is held");
    }

    async fn gets_in(self, limit: Duration) {
        let guard = within(limit, "the waiter", joined(self.waiter)).await;
        self.rig.assert_held("a", &guard.expect("it was freed"), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_subscription_was_cut_gets_the_lock_at_once() {
    both(async |kind| {
        let mut w = Waiting::new(kind).await;
        let subscriber = w.rig.proxy.wait_for_subscriber().await;
        w.rig.proxy.cut_connection(subscriber);
        w.release().await;
        w.gets_in(SOON).await;
    })
    .await;
}

/// All of them listening would all be woken by each release, and all but one for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_clients_that_wait_a_few_listen_and_all_get_the_lock() {
    let server = RedisServer::start();
    let holder = connect(&server.url(), options()).await;
    let guard = holder.lock("a").lock().await.expect("it is free");
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..48 {
        let client = connect(&server.url(), options()).await;
        waiting.spawn(async move {
            let guard = client.lock("a").lock().await.expect("it is released");
            guard.release().await.expect("it is held");
        });
    }
    eventually(PATIENCE, "a crowd listens", || listeners(&server, "a") >= 16).await;
    eventually(PATIENCE, "the others look by themselves", || listeners(&server, "a") <= 16).await;
    guard.release().await.expect("it is held");
    while let Some(waiter) = within(PATIENCE, "each has its turn", waiting.join_next()).await {
        waiter.expect("it got the lock");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_freed_between_two_subscriptions_is_found_at_the_second() {
    both(async |kind| {
        let mut w = Waiting::new(kind).await;
        let subscriber = w.rig.proxy.wait_for_subscriber().await;
        w.rig.proxy.refuse(true);
        w.rig.proxy.cut_connection(subscriber);
        // It was woken by the break, has looked, found it busy, and cannot subscribe again.
        w.rig.proxy.wait_for_refusals(2).await;
        assert_eq!(listeners(&w.rig.server, "a"), 0);
        w.release().await;
        w.rig.proxy.refuse(false);
        w.gets_in(SOON).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_subscription_the_server_killed_gets_the_lock_at_once() {
    both(async |kind| {
        let mut w = Waiting::new(kind).await;
        let killed = w.rig.server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert!(killed.int() >= 1, "{killed:?}");
        w.release().await;
        w.gets_in(SOON).await;
    })
    .await;
}

/// The stranger, too, has a subscription for notices: only the waiter's is swallowed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_subscription_is_a_black_hole_gets_the_lock_within_the_recheck() {
    both(async |kind| {
        let mut w = Waiting::new(kind).await;
        let subscriber = w.rig.proxy.wait_for_subscriber().await;
        w.rig.proxy.black_hole_connection(subscriber, true);
        w.release().await;
        w.gets_in(RECHECK + SOON).await;
    })
    .await;
}

/// The ping finds out: a second black hole in a row does not cost a second re-check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_is_a_black_hole_is_replaced() {
    let mut w = Waiting::new(Kind::Lock).await;
    let subscriber = w.rig.proxy.wait_for_subscriber().await;
    w.rig.proxy.black_hole_connection(subscriber, true);
    let accepted = w.rig.proxy.accepted();
    w.rig.proxy.wait_for_connections(accepted + 1).await;
    let replaced = channel("a");
    // The server still counts the one that it does not know to be dead.
    eventually(SOON, &replaced, || listeners(&w.rig.server, "a") == 2).await;
    w.release().await;
    w.gets_in(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_freed_without_a_word_is_found_within_the_recheck() {
    both(async |kind| {
        let w = Waiting::new(kind).await;
        assert_eq!(w.rig.server.cli(&["DEL", "a"]).int(), 1);
        w.gets_in(RECHECK + SOON).await;
    })
    .await;
}

/// Not one wake-up for all: each waiter of a client that lost its subscription is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_behind_a_cut_subscription_is_served() {
    both(async |kind| {
        let mut w = Waiting::new(kind).await;
        let others: Vec<_> = (0..20)
            .map(|_| {
                let handle = w.rig.handle("a");
                tokio::spawn(async move { handle.lock().await?.release().await })
            })
            .collect();
        let subscriber = w.rig.proxy.wait_for_subscriber().await;
        w.rig.proxy.cut_connection(subscriber);
        w.release().await;
        let first = within(SOON, "the first", joined(w.waiter)).await;
        first.expect("freed").release().await.expect("held");
        for other in others {
            within(SOON, "one behind", joined(other)).await.expect("freed");
        }
        w.rig.assert_free("a");
        let gone = || listeners(&w.rig.server, "a") == 0;
        eventually(SOON, "nobody listens", gone).await;
    })
    .await;
}

/// Attempts that the server saw of a waiter for a lock that never ends, over two seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_an_end_is_not_asked_for_all_the_time() {
    both(async |kind| {
        let w = Waiting::new(kind).await;
        assert_eq!(w.rig.server.cli(&["PERSIST", "a"]).int(), 1);
        let subscriber = w.rig.proxy.wait_for_subscriber().await;
        // Woken once, it reads the endless time to live.
        w.rig.proxy.cut_connection(subscriber);
        eventually(SOON, "listening", || listeners(&w.rig.server, "a") == 1).await;
        let attempts = w.rig.proxy.expect_request(&w.rig.mark(Sent::Acquire));
        let started = Instant::now();
        tokio::time::sleep(ms(2000)).await;
        // A mutex is looked at every 50 to 100 ms, a lock every 2.5 to 5 s.
        let shortest = if kind == Kind::Mutex { 50 } else { 2500 };
        let most = started.elapsed().as_millis() as usize / shortest + 3;
        assert!(attempts.count() <= most, "{}", attempts.count());
        assert!(!w.waiter.is_finished());
        w.waiter.abort();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_to_live_that_reads_zero_is_not_asked_for_all_the_time() {
    let server = RedisServer::start();
    let stranger = connect(&server.url(), options()).await;
    let _holder = taken(&lock_of(&stranger, Kind::Lock, "a")).await;
    let redis = Redis::connect(&server.url(), &options()).await.expect("there");
    let client = Client::with_backend(Arc::new(ReadsZero(redis)), options()).expect("valid");
    let lock = client.lock("a");
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually(PATIENCE, "listening", || listeners(&server, "a") == 1).await;
    let (before, started) = (server.commandstats("evalsha"), Instant::now());
    tokio::time::sleep(ms(1000)).await;
    let calls = u128::from(server.commandstats("evalsha") - before);
    // No sleep is shorter than a millisecond.
    let most = started.elapsed().as_millis() + 10;
    assert!((10..=most).contains(&calls), "{calls} calls in {most} ms");
    waiter.abort();
}

/// A store whose locks always end within a millisecond, as it says.
#[derive(Debug)]
struct ReadsZero(Redis);

impl Backend for ReadsZero {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn acquire(&self, request: Acquire) -> BoxFuture<Result<Attempt, Fault>> {
        let answer = self.0.acquire(request);
        Box::pin(async move {
            answer.await.map(|attempt| match attempt {
                Attempt::Busy(_) => Attempt::Busy(Some(Ttl::Millis(0))),
                other => other,
            })
        })
    }

    fn release(&self, request: Release) -> BoxFuture<Result<Released, Fault>> {
        self.0.release(request)
    }

    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        self.0.renew(batch)
    }

    fn adjust(&self, change: Change) -> BoxFuture<Result<Changed, Fault>> {
        self.0.adjust(change)
    }

    fn inspect(&self, resource: Resource) -> BoxFuture<Result<Snapshot, Fault>> {
        self.0.inspect(resource)
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<Result<Subscription, Fault>> {
        self.0.subscribe(topic)
    }

    fn list(&self, request: List) -> BoxFuture<Result<Page, Fault>> {
        self.0.list(request)
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Fault>> {
        self.0.check()
    }

    fn close(&self) -> BoxFuture<()> {
        self.0.close()
    }
}
