//! Wake-ups get lost: whoever waits finds out all the same, whatever it waits for.

use std::time::Duration;

use lockkeeper::{CountDownLatch, Kind, Result};
use testkit::{FaultProxy, RedisServer};
use tokio::task::JoinHandle;

use crate::family::*;
use crate::support::*;

/// No waiter sleeps longer without looking again.
const RECHECK: Duration = Duration::from_secs(5);

/// All who are told: whoever spins is not.
const TOLD: [Sort; 6] =
    [Sort::Fair, Sort::Fenced, Sort::Read, Sort::Write, Sort::Permits, Sort::Semaphore];

/// A waiter behind a proxy for what a stranger holds.
struct Waiting {
    set: Set,
    blocker: Option<Held>,
    waiter: JoinHandle<Result<Held>>,
}

impl Waiting {
    async fn new(sort: Sort) -> Self {
        let set = Set::new(sort, options()).await;
        let blocker = Some(set.block().await);
        let attempts = set.proxy().expect_delivery(&set.rig.hash(sort.scripts().0));
        let waiter = tokio::spawn(set.mine().take());
        if sort != Sort::Spin {
            eventually(PATIENCE, "listening", || set.listeners() == 1).await;
        }
        // The second attempt follows the confirmation: from here on it sleeps.
        attempts.wait_for(2).await;
        Self { set, blocker, waiter }
    }

    async fn release(&mut self) {
        let blocker = self.blocker.take().expect("released once");
        blocker.release().await.expect("it is held");
    }

    async fn gets_in(self, limit: Duration) {
        let held = within(limit, "the waiter", joined(self.waiter)).await.expect("it was freed");
        held.release().await.expect("held");
        self.set.assert_nothing_stored();
        let set = self.set;
        eventually(SOON, "nobody listens", || set.listeners() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_subscription_was_cut_gets_in_at_once() {
    each(&TOLD, async |sort| {
        let mut w = Waiting::new(sort).await;
        let subscriber = w.set.proxy().wait_for_subscriber().await;
        w.set.proxy().cut_connection(subscriber);
        w.release().await;
        w.gets_in(SOON).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_freed_between_two_subscriptions_is_found_at_the_second() {
    each(&TOLD, async |sort| {
        let mut w = Waiting::new(sort).await;
        let subscriber = w.set.proxy().wait_for_subscriber().await;
        w.set.proxy().refuse(true);
        w.set.proxy().cut_connection(subscriber);
        // It was woken by the break, has looked, found it busy, and cannot subscribe again.
        w.set.proxy().wait_for_refusals(2).await;
        assert_eq!(w.set.listeners(), 0);
        w.release().await;
        w.set.proxy().refuse(false);
        w.gets_in(SOON).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_subscription_is_a_black_hole_gets_in_within_the_recheck() {
    each(&TOLD, async |sort| {
        let mut w = Waiting::new(sort).await;
        let subscriber = w.set.proxy().wait_for_subscriber().await;
        w.set.proxy().black_hole_connection(subscriber, true);
        w.release().await;
        let held = within(RECHECK + SOON, "the waiter", joined(w.waiter)).await;
        held.expect("it was freed").release().await.expect("held");
        w.set.assert_nothing_stored();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_freed_without_a_word_is_found_within_the_recheck() {
    each(&Sort::ALL, async |sort| {
        let w = Waiting::new(sort).await;
        let server = w.set.server();
        match sort {
            Sort::Permits => {
                server.cli(&["DEL", "{a}:timeout"]).ok();
                server.cli(&["SET", "a", "1"]).ok();
            }
            Sort::Semaphore => drop(server.cli(&["SET", "a", "1"]).ok()),
            _ => assert_eq!(server.cli(&["DEL", "a"]).int(), 1),
        }
        w.gets_in(RECHECK + SOON).await;
    })
    .await;
}

/// Not one wake-up for all: each of a client that lost its subscription is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_behind_a_cut_subscription_is_served() {
    each(&TOLD, async |sort| {
        let mut w = Waiting::new(sort).await;
        let others: Vec<_> = (0..10)
            .map(|_| {
                let thing = w.set.mine();
                tokio::spawn(async move { thing.take().await?.release().await })
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
        eventually(SOON, "nobody listens", || w.set.listeners() == 0).await;
    })
    .await;
}

/// Nobody hammers the server while it waits for what has no end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_ends_is_not_asked_for_all_the_time() {
    each(&TOLD, async |sort| {
        let w = Waiting::new(sort).await;
        w.set.server().cli(&["PERSIST", "a"]).ok();
        let subscriber = w.set.proxy().wait_for_subscriber().await;
        // Woken once, it reads the endless time to live.
        w.set.proxy().cut_connection(subscriber);
        eventually(SOON, "listening", || w.set.listeners() == 1).await;
        let attempts = w.set.proxy().expect_request(&w.set.rig.hash(sort.scripts().0));
        let started = tokio::time::Instant::now();
        tokio::time::sleep(ms(2000)).await;
        // A writer says every 0.6 to 1.2 s that it waits, everybody else looks every 2.5 to 5 s.
        let shortest = if sort == Sort::Write { 600 } else { 2500 };
        let most = started.elapsed().as_millis() as usize / shortest + 3;
        assert!(attempts.count() <= most, "{sort:?}: {}", attempts.count());
        assert!(!w.waiter.is_finished());
        w.waiter.abort();
    })
    .await;
}

/// One who waits for a latch behind a proxy, and one who counts it down past it.
struct Latch {
    server: RedisServer,
    proxy: FaultProxy,
    latch: CountDownLatch,
    waiter: JoinHandle<Result<()>>,
}

impl Latch {
    async fn new() -> Self {
        let server = started().await;
        let proxy = FaultProxy::start(server.port()).await;
        let latch = connect(&server.url(), options()).await.count_down_latch("a");
        assert!(latch.try_set_count(1).await.expect("told"));
        let waits = connect(&proxy.url(), options()).await.count_down_latch("a");
        let hash = server.cli(&["SCRIPT", "LOAD", lua("COUNTER_INSPECT")]).ok();
        let looks = proxy.expect_delivery(hash.text().as_bytes());
        let waiter = tokio::spawn(async move { waits.wait().await });
        eventually(PATIENCE, "listening", || latch_listeners(&server) == 1).await;
        looks.wait_for(2).await;
        Self { server, proxy, latch, waiter }
    }

    async fn opens(self, limit: Duration) {
        within(limit, "the waiter", joined(self.waiter)).await.expect("opened");
        let server = self.server;
        eventually(SOON, "nobody listens", || latch_listeners(&server) == 0).await;
    }
}

fn latch_listeners(server: &RedisServer) -> i64 {
    let channel = "redisson_countdownlatch__channel__{a}";
    server.cli(&["PUBSUB", "NUMSUB", channel]).array()[1].int()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_whose_subscription_was_cut_lets_its_waiter_go_at_once() {
    let w = Latch::new().await;
    w.proxy.cut_connection(w.proxy.wait_for_subscriber().await);
    assert_eq!(w.latch.count_down().await.expect("told"), 0);
    w.opens(SOON).await;

    let w = Latch::new().await;
    w.proxy.refuse(true);
    w.proxy.cut_connection(w.proxy.wait_for_subscriber().await);
    w.proxy.wait_for_refusals(2).await;
    assert_eq!(w.latch.count_down().await.expect("told"), 0);
    w.proxy.refuse(false);
    w.opens(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_opened_without_a_word_is_found_within_the_recheck() {
    let (silent, deaf) = tokio::join!(Latch::new(), Latch::new());
    assert_eq!(silent.server.cli(&["DEL", "a"]).int(), 1);
    deaf.proxy.black_hole_connection(deaf.proxy.wait_for_subscriber().await, true);
    assert_eq!(deaf.latch.count_down().await.expect("told"), 0);
    let heard = within(RECHECK + SOON, "the deaf one", joined(deaf.waiter));
    tokio::join!(silent.opens(RECHECK + SOON), async { heard.await.expect("opened") });
}

/// Set anew before the waiter looks: what it heard is enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_reopened_at_once_lets_its_waiter_go_all_the_same() {
    for _ in 0..20 {
        let w = Latch::new().await;
        let both = "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], '0') \
                    redis.call('SET', KEYS[1], 1) redis.call('PUBLISH', ARGV[1], '1')";
        let channel = "redisson_countdownlatch__channel__{a}";
        w.server.cli(&["EVAL", both, "1", "a", channel]).ok();
        w.opens(SOON).await;
    }
}

/// The names `a` and `{a}` are two, and their channel is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_names_that_share_a_channel_wake_each_their_own_waiters() {
    each(&[Sort::Fenced, Sort::Write, Sort::Semaphore], async |sort| {
        for names in [["a", "{a}"], ["{a}", "a"]] {
            let rig = Rig::on(started().await, Kind::Lock, options()).await;
            let stranger = rig.stranger().await;
            let attempts = rig.proxy.expect_delivery(&rig.hash(sort.scripts().0));
            let mut waiting = Vec::new();
            for (nth, name) in names.into_iter().enumerate() {
                set_up(&stranger, sort, name).await;
                let blocker = Thing::new(&stranger, sort, name).taken().await;
                let waiter = tokio::spawn(Thing::new(&rig.client, sort, name).take());
                // The second attempt of each follows the confirmation: from here on it sleeps.
                attempts.wait_for(2 * (nth + 1)).await;
                waiting.push((blocker, waiter));
            }
            // The first that leaves takes nothing from the other.
            for (blocker, waiter) in waiting {
                blocker.release().await.expect("it is held");
                let held = within(SOON, "the waiter", joined(waiter)).await;
                held.expect("it was freed").release().await.expect("held");
            }
            eventually(SOON, "nobody listens", || listening(&rig.server, sort, "a") == 0).await;
        }
    })
    .await;
}
