//! The server goes away while permits, readers, writers and the rest are held or waited for, and comes
//! back: with its data or without, in time or too late.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, CountDownLatch, Error, LostReason};
use testkit::{FaultProxy, RedisServer};
use tokio::time::Instant;

use crate::family::*;
use crate::support::*;

/// Long enough to tell it from a response timeout.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(1500);

fn down(proxy: &FaultProxy) {
    proxy.refuse(true);
    proxy.cut();
}

/// Starting a server takes a while, in which the runtime must go on.
async fn restart(server: &Arc<RedisServer>) {
    let server = Arc::clone(server);
    joined(tokio::task::spawn_blocking(move || server.restart())).await;
}

/// A server, and two clients of it.
async fn two(server: RedisServer, sort: Sort) -> (Arc<RedisServer>, Client, Client) {
    // However long a restart takes.
    let patient = options().unreachable_after(LONG);
    let one = connect(&server.url(), patient.clone()).await;
    let two = connect(&server.url(), patient).await;
    set_up(&one, sort, "a").await;
    (Arc::new(server), one, two)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_dropped_during_an_outage_is_given_back_after_it() {
    each(&Sort::ALL, async |sort| {
        let set = Set::new(sort, options()).await;
        let held = set.mine().taken().await;
        down(set.proxy());
        set.proxy().wait_for_refusals(1).await;
        drop(held);
        set.proxy().wait_for_refusals(3).await;
        assert!(!holds(set.server(), sort).is_empty(), "nothing gets through yet");
        set.proxy().refuse(false);
        eventually(SOON, "given back", || holds(set.server(), sort).is_empty()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_during_an_outage_waits_for_its_end_and_is_done_once() {
    each(&Sort::ALL, async |sort| {
        let set = Set::new(sort, options()).await;
        let held = set.mine().taken().await;
        down(set.proxy());
        let release = tokio::spawn(held.release());
        set.proxy().wait_for_refusals(3).await;
        set.proxy().refuse(false);
        within(SOON, "release", joined(release)).await.expect("it is still held");
        set.assert_nothing_stored();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_never_answered_is_unconfirmed_and_goes_on() {
    each(&Sort::ALL, async |sort| {
        let set = Set::new(sort, options().unreachable_after(UNREACHABLE_AFTER)).await;
        let held = set.mine().taken().await;
        set.proxy().black_hole(true);
        let answer = within(UNREACHABLE_AFTER + SOON, "release", held.release()).await;
        assert_unconfirmed(&answer);
        assert!(!holds(set.server(), sort).is_empty(), "nothing got through");
        set.proxy().black_hole(false);
        set.proxy().cut();
        eventually(PATIENCE, "given back", || holds(set.server(), sort).is_empty()).await;
    })
    .await;
}

/// The watchdog's own checks are 20 s apart: only the reconnection can be what told the holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_holder_learns_that_the_server_came_back_empty() {
    each(&Sort::ALL, async |sort| {
        let (server, client, _) = two(started().await, sort).await;
        let renewed = Thing::new(&client, sort, "a").taken().await;
        if sort == Sort::Semaphore {
            restart(&server).await;
            // It has no lease; a semaphore that is gone is not made anew.
            assert_not_held(&within(PATIENCE, "release", renewed.release()).await);
            assert_eq!(server.cli(&["EXISTS", "a"]).int(), 0);
            return;
        }
        set_up(&client, sort, "b").await;
        let fixed = Thing::new(&client, sort, "b").leased(LONG).await;
        restart(&server).await;
        for held in [renewed, fixed] {
            assert_eq!(held.lost_soon().await, LostReason::Deleted, "{sort:?}");
            assert!(held.guard().is_lost());
            assert_not_held(&held.release().await);
        }
        assert_eq!(holds(&server, sort), Vec::<String>::new(), "{sort:?}");
    })
    .await;
}

/// Readers share one lock, and one key of it is left: each is told of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_readers_learns_that_its_hold_is_gone() {
    let server = started().await;
    let quick = options().watchdog_timeout(ms(3000));
    let (one, two) =
        (connect(&server.url(), quick.clone()).await, connect(&server.url(), quick).await);
    let victim = one.rw_lock("a").read().await.expect("free");
    let other = two.rw_lock("a").read().await.expect("shared");
    assert_eq!(server.cli(&["HDEL", "a", &victim.owner_id().to_string()]).int(), 1);
    assert_eq!(within(PATIENCE, "the loss", victim.lost()).await, LostReason::Deleted);
    assert!(!other.is_lost());
    other.release().await.expect("held");
    assert_not_held(&victim.release().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_rides_out_a_restart_without_data() {
    each(&Sort::ALL, async |sort| {
        let (server, holder, client) = two(started().await, sort).await;
        let blocking = if sort == Sort::Read { Sort::Write } else { sort };
        let held = Thing::new(&holder, blocking, "a").taken().await;
        let waiter = tokio::spawn(Thing::new(&client, sort, "a").take());
        waiting(&server, sort).await;
        restart(&server).await;
        let answer = within(PATIENCE, "the waiter", joined(waiter)).await;
        if matches!(sort, Sort::Permits | Sort::Semaphore) {
            // The semaphore is gone, and nobody may wait for what was not set up.
            assert!(matches!(answer, Err(Error::Invalid { .. })), "{answer:?}");
        } else {
            let got = answer.expect("it is free: the server has forgotten everything");
            let reason = held.lost_soon().await;
            assert!(matches!(reason, LostReason::Deleted | LostReason::Taken), "{reason:?}");
            got.release().await.expect("held");
        }
        drop(held);
        let nothing = || holds(&server, sort).is_empty();
        eventually(SOON, "nothing is left", nothing).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_rides_out_a_restart_with_data() {
    each(&Sort::ALL, async |sort| {
        let server = persistent().await;
        let (server, holder, client) = two(server, sort).await;
        let blocking = if sort == Sort::Read { Sort::Write } else { sort };
        let held = Thing::new(&holder, blocking, "a").taken().await;
        let waiter = tokio::spawn(Thing::new(&client, sort, "a").take());
        waiting(&server, sort).await;
        restart(&server).await;
        within(PATIENCE, "release", held.release()).await.expect("it was in the dump");
        let got = within(SOON, "the waiter", joined(waiter)).await.expect("freed");
        got.release().await.expect("held");
        assert_eq!(holds(&server, sort), Vec::<String>::new(), "{sort:?}");
    })
    .await;
}

/// Until somebody waits for `a`.
async fn waiting(server: &RedisServer, sort: Sort) {
    if sort == Sort::Spin {
        let before = server.commandstats("evalsha");
        let spins = || server.commandstats("evalsha") >= before + 3;
        return eventually(PATIENCE, "spinning", spins).await;
    }
    eventually(PATIENCE, "listening", || listening(server, sort, "a") == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_is_told_when_the_server_stays_away() {
    each(&Sort::ALL, async |sort| {
        let set = Set::new(sort, options().unreachable_after(UNREACHABLE_AFTER)).await;
        let blocker = set.block().await;
        let waiter = tokio::spawn(set.mine().take());
        waiting(set.server(), sort).await;
        let started = Instant::now();
        down(set.proxy());
        let limit = UNREACHABLE_AFTER + RESPONSE + SOON;
        let answer = within(limit, "the waiter", joined(waiter)).await;
        assert_unreachable(&answer);
        // Silence counts from when the first request without an answer was sent, which may have been
        // a moment before.
        let least = UNREACHABLE_AFTER - RESPONSE;
        assert!(started.elapsed() >= least, "{sort:?} gave up after {:?}", started.elapsed());
        // Afterwards everything is as if it had never asked.
        blocker.release().await.expect("held");
        set.proxy().refuse(false);
        set.strangers().assert_free_within(SOON).await;
        eventually(SOON, "nothing is left", || holds(set.server(), sort).is_empty()).await;
    })
    .await;
}

/// A latch that two wait for: `away` happens, then it is looked at.
struct Latch {
    server: Arc<RedisServer>,
    latch: CountDownLatch,
    waiter: tokio::task::JoinHandle<lockkeeper::Result<()>>,
}

impl Latch {
    async fn new(server: RedisServer) -> Self {
        let latch = connect(&server.url(), options()).await.count_down_latch("a");
        assert!(latch.try_set_count(1).await.expect("told"));
        let waits = connect(&server.url(), options()).await.count_down_latch("a");
        let waiter = tokio::spawn(async move { waits.wait().await });
        let channel = "redisson_countdownlatch__channel__{a}";
        let listening = || server.cli(&["PUBSUB", "NUMSUB", channel]).array()[1].int() == 1;
        eventually(PATIENCE, "listening", listening).await;
        Self { server: Arc::new(server), latch, waiter }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_for_a_latch_ride_out_a_restart() {
    // Without data it is open.
    let empty = Latch::new(started().await).await;
    restart(&empty.server).await;
    within(SOON, "the waiter", joined(empty.waiter)).await.expect("it is open");
    // With data it is as closed as it was.
    let kept = Latch::new(persistent().await).await;
    restart(&kept.server).await;
    assert_eq!(kept.latch.count().await.expect("there"), 1);
    assert!(!kept.waiter.is_finished());
    assert_eq!(kept.latch.count_down().await.expect("there"), 0);
    within(SOON, "the waiter", joined(kept.waiter)).await.expect("opened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_for_a_latch_are_told_when_the_server_stays_away() {
    let server = started().await;
    let proxy = FaultProxy::start(server.port()).await;
    let patience = options().unreachable_after(UNREACHABLE_AFTER);
    let latch = connect(&proxy.url(), patience).await.count_down_latch("a");
    assert!(latch.try_set_count(1).await.expect("told"));
    let waits = latch.clone();
    let waiter = tokio::spawn(async move { waits.wait().await });
    proxy.wait_for_subscriber().await;
    let started = Instant::now();
    down(&proxy);
    let answer = within(UNREACHABLE_AFTER + RESPONSE + SOON, "the waiter", joined(waiter)).await;
    assert_unreachable(&answer);
    assert!(started.elapsed() >= UNREACHABLE_AFTER - RESPONSE, "it gave up early");
    // One with a limit of its own is told at that.
    let limited = within(SOON, "a limited wait", latch.wait_for(ms(300))).await;
    assert_unreachable(&limited);
    proxy.refuse(false);
    let late = within(PATIENCE, "a limited wait", latch.wait_for(ms(2000))).await;
    assert!(!late.expect("it answers in the end"));
}

/// A change of a counter is asked for again until it is answered, and then given up for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_a_counter_rides_out_an_outage_and_counts_once() {
    let server = started().await;
    let proxy = FaultProxy::start(server.port()).await;
    let client = connect(&proxy.url(), options().unreachable_after(UNREACHABLE_AFTER)).await;
    let latch = client.count_down_latch("a");
    assert!(latch.try_set_count(5).await.expect("told"));
    down(&proxy);
    let counts = latch.clone();
    let counting = tokio::spawn(async move { counts.count_down().await });
    proxy.wait_for_refusals(3).await;
    proxy.refuse(false);
    assert_eq!(within(SOON, "counting", joined(counting)).await.expect("told"), 4);
    // Nothing was sent, so that nothing can have happened; that is said.
    down(&proxy);
    let refused = within(UNREACHABLE_AFTER + SOON, "counting", latch.count_down()).await;
    assert!(
        matches!(refused, Err(Error::Unreachable { .. } | Error::Unconfirmed { .. })),
        "{refused:?}"
    );
    assert_eq!(server.cli(&["GET", "a"]).text(), "4");
    proxy.refuse(false);
    // Sent, and never answered: nobody can know.
    assert_eq!(within(PATIENCE, "counting", latch.count_down()).await.expect("told"), 3);
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

/// The server is down while a permit is dropped, for longer than a waiter bears, and then it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_dropped_long_before_the_server_is_back_are_given_back() {
    let rig = Set::new(Sort::Semaphore, options().unreachable_after(ms(500))).await;
    let semaphore = rig.rig.client.semaphore("a");
    assert_eq!(semaphore.add_permits(9).await.expect("told"), 10);
    let mut permits = Vec::new();
    for _ in 0..5 {
        permits.push(semaphore.acquire(2).await.expect("free"));
    }
    assert_eq!(rig.server().cli(&["GET", "a"]).text(), "0");
    down(rig.proxy());
    rig.proxy().wait_for_refusals(1).await;
    drop(permits);
    let started = Instant::now();
    while started.elapsed() < ms(2500) {
        rig.proxy().wait_for_refusals(rig.proxy().refused() + 1).await;
    }
    rig.proxy().refuse(false);
    let back = || rig.server().cli(&["GET", "a"]).text() == "10";
    eventually(SOON, "all are back", back).await;
}
