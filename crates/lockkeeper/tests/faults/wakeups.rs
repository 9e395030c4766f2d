//! Wake-ups get lost: a waiter finds out all the same, and does not send requests in a tight loop.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::{Acquire, Answer, Attempt, Backend, Ttl};
use lockkeeper::stores::Redis;
use lockkeeper::{Client, Kind, RECHECK, Result};
use testkit::{RedisServer, forward};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::primitives::*;
use crate::support::*;

/// A waiter behind a proxy for what another client holds.
struct Waiting {
    set: Fixture,
    blocker: Option<Held>,
    waiter: JoinHandle<Result<Held>>,
}

impl Waiting {
    async fn new(primitive: Primitive) -> Self {
        let set = Fixture::new(primitive, options()).await;
        let blocker = Some(set.block().await);
        let attempts = set.proxy().expect_delivery(&set.acquire_mark());
        let waiter = tokio::spawn(set.proxied().acquire());
        if primitive != Primitive::Spin {
            eventually(PATIENCE, "listening", || set.listeners() == 1).await;
        }
        // The second attempt follows the confirmation: after it the waiter sleeps.
        attempts.wait_for(2).await;
        Self { set, blocker, waiter }
    }

    async fn release(&mut self) {
        let blocker = self.blocker.take().expect("released once");
        blocker.release().await.expect("it is held");
    }

    async fn acquires(self, limit: Duration) {
        let held = within(limit, "the waiter", joined(self.waiter)).await.expect("it was freed");
        held.release().await.expect("held");
        self.set.assert_nothing_stored();
        let set = self.set;
        eventually(SOON, "no subscriber", || set.listeners() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_subscription_was_cut_acquires_at_once() {
    each(SUBSCRIBING, async |primitive| {
        let mut w = Waiting::new(primitive).await;
        let subscriber = w.set.proxy().wait_for_subscriber().await;
        w.set.proxy().cut_connection(subscriber);
        w.release().await;
        w.acquires(SOON).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_between_two_subscriptions_is_found_at_the_second() {
    each(SUBSCRIBING, async |primitive| {
        let mut w = Waiting::new(primitive).await;
        let subscriber = w.set.proxy().wait_for_subscriber().await;
        w.set.proxy().refuse(true);
        w.set.proxy().cut_connection(subscriber);
        // The break woke the waiter, which tried, found it busy, and cannot subscribe again.
        w.set.proxy().wait_for_refusals(2).await;
        assert_eq!(w.set.listeners(), 0);
        w.release().await;
        w.set.proxy().refuse(false);
        w.acquires(SOON).await;
    })
    .await;
}

/// The other client has a subscription for notices, too: only the waiter's is swallowed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_subscription_receives_nothing_acquires_within_the_recheck() {
    each(SUBSCRIBING, async |primitive| {
        let mut w = Waiting::new(primitive).await;
        let subscriber = w.set.proxy().wait_for_subscriber().await;
        w.set.proxy().black_hole_connection(subscriber, true);
        w.release().await;
        let held = within(RECHECK + SOON, "the waiter", joined(w.waiter)).await;
        held.expect("it was freed").release().await.expect("held");
        w.set.assert_nothing_stored();
    })
    .await;
}

/// The ping finds out: the next release is found without a second re-check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_receives_nothing_is_replaced() {
    let mut w = Waiting::new(Primitive::Lock).await;
    let subscriber = w.set.proxy().wait_for_subscriber().await;
    w.set.proxy().black_hole_connection(subscriber, true);
    let accepted = w.set.proxy().accepted();
    w.set.proxy().wait_for_connections(accepted + 1).await;
    // The server still counts the old one.
    eventually(SOON, "replaced", || listeners(w.set.server(), "a") == 2).await;
    w.release().await;
    let held = within(SOON, "the waiter", joined(w.waiter)).await;
    held.expect("it was freed").release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_deleted_without_a_message_is_found_within_the_recheck() {
    each(&Primitive::ALL, async |primitive| {
        let w = Waiting::new(primitive).await;
        let server = w.set.server();
        match primitive {
            Primitive::Permits => {
                server.cli(&["DEL", "{a}:timeout"]).ok();
                server.cli(&["SET", "a", "1"]).ok();
            }
            Primitive::Semaphore => drop(server.cli(&["SET", "a", "1"]).ok()),
            _ => assert_eq!(server.cli(&["DEL", "a"]).int(), 1),
        }
        w.acquires(RECHECK + SOON).await;
    })
    .await;
}

/// One wake-up is not enough: each waiter of a client that lost its subscription is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_behind_a_cut_subscription_is_served() {
    each(SUBSCRIBING, async |primitive| {
        let mut w = Waiting::new(primitive).await;
        let others: Vec<_> = (0..10)
            .map(|_| {
                let handle = w.set.proxied();
                tokio::spawn(async move { handle.acquire().await?.release().await })
            })
            .collect();
        let subscriber = w.set.proxy().wait_for_subscriber().await;
        w.set.proxy().cut_connection(subscriber);
        w.release().await;
        let first = within(SOON, "the first", joined(w.waiter)).await.expect("freed");
        first.release().await.expect("held");
        for other in others {
            within(SOON + SOON, "one behind", joined(other)).await.expect("freed");
        }
        w.set.assert_nothing_stored();
        eventually(SOON, "no subscriber", || w.set.listeners() == 0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_without_a_ttl_is_not_polled_in_a_tight_loop() {
    each(SUBSCRIBING, async |primitive| {
        let w = Waiting::new(primitive).await;
        w.set.server().cli(&["PERSIST", "a"]).ok();
        let subscriber = w.set.proxy().wait_for_subscriber().await;
        // Woken once, the waiter reads that there is no TTL.
        w.set.proxy().cut_connection(subscriber);
        eventually(SOON, "listening", || w.set.listeners() == 1).await;
        let attempts = w.set.proxy().expect_request(&w.set.acquire_mark());
        let started = Instant::now();
        tokio::time::sleep(ms(2000)).await;
        // A mutex is tried every 50 to 100 ms. A writer announces every 0.6 to 1.2 s that it waits.
        // Every other waiter tries every 2.5 to 5 s.
        let shortest = match primitive {
            Primitive::Mutex => 50,
            Primitive::Write => 600,
            _ => 2500,
        };
        let most = started.elapsed().as_millis() as usize / shortest + 3;
        assert!(attempts.count() <= most, "{primitive:?}: {}", attempts.count());
        assert!(!w.waiter.is_finished());
        w.waiter.abort();
    })
    .await;
}

/// The names `a` and `{a}` differ, and their channel is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_names_that_share_a_channel_wake_each_their_own_waiters() {
    each(&[Primitive::Fenced, Primitive::Write, Primitive::Semaphore], async |primitive| {
        for names in [["a", "{a}"], ["{a}", "a"]] {
            let rig = Rig::on(started().await, Kind::Lock, options()).await;
            let other = rig.direct_client().await;
            let script = primitive.acquire_script().expect("it has a script");
            let attempts = rig.proxy.expect_delivery(&rig.hash(script));
            let mut waiting = Vec::new();
            for (nth, name) in names.into_iter().enumerate() {
                set_up(&other, primitive, name).await;
                let blocker = Handle::new(&other, primitive, name).held().await;
                let waiter = tokio::spawn(Handle::new(&rig.client, primitive, name).acquire());
                // The second attempt of each follows the confirmation: after it the waiter sleeps.
                attempts.wait_for(2 * (nth + 1)).await;
                waiting.push((blocker, waiter));
            }
            // The first that leaves does not end the subscription of the other.
            for (blocker, waiter) in waiting {
                blocker.release().await.expect("it is held");
                let held = within(SOON, "the waiter", joined(waiter)).await;
                held.expect("it was freed").release().await.expect("held");
            }
            eventually(SOON, "no subscriber", || listening(&rig.server, primitive, "a") == 0).await;
        }
    })
    .await;
}

/// If all of them subscribed, each release would wake all for one grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_of_many_waiting_clients_subscribe_and_all_acquire() {
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
async fn a_ttl_of_zero_is_not_polled_in_a_tight_loop() {
    let server = RedisServer::start();
    let other = connect(&server.url(), options()).await;
    let _holder = taken(&lock_of(&other, Kind::Lock, "a")).await;
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
    forward!(0: capabilities release renew adjust inspect subscribe list check close);

    fn acquire(&self, request: Acquire) -> Answer<Attempt> {
        let answer = self.0.acquire(request);
        Box::pin(async move {
            answer.await.map(|attempt| match attempt {
                Attempt::Busy { listeners, .. } => {
                    Attempt::Busy { ttl: Some(Ttl::For(Duration::ZERO)), listeners }
                }
                other => other,
            })
        })
    }
}

/// A thousand tasks queue behind one of their own client until their wait limits, or are cancelled. Then the
/// subscription ends, though the lock is still held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_time_out_or_are_cancelled_leave_no_subscription() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let holder = taken(&rig.direct_lock("a").await).await;
        let handle = rig.handle("a");
        let first = tokio::spawn(handle.lock());
        eventually(PATIENCE, "listening", || listeners(&rig.server, "a") == 1).await;
        let (mut timed, mut cancelled) = (Vec::new(), Vec::new());
        for _ in 0..500 {
            timed.push(Box::pin(handle.try_lock_for(ms(3000))));
            start(timed.last_mut().expect("pushed")).await;
            cancelled.push(Box::pin(handle.lock()));
            start(cancelled.last_mut().expect("pushed")).await;
        }
        holder.release().await.expect("held");
        let guard = within(SOON, "the first", joined(first)).await.expect("freed");
        for waiter in timed {
            let answer = within(PATIENCE, "a limited wait", waiter).await;
            assert!(answer.expect("the server answers").is_none());
        }
        assert_eq!(listeners(&rig.server, "a"), 1, "for those who still wait");
        drop(cancelled);
        eventually(SOON, "no subscriber is left", || listeners(&rig.server, "a") == 0).await;
        rig.assert_held("a", &guard, 1);
        guard.release().await.expect("held");
        rig.assert_free("a");
    })
    .await;
}
