//! The server is unreachable for a while: what becomes of holds, releases, waiters and attempts, and how
//! often a client reconnects.

use std::time::Duration;

use lockkeeper::{Error, Kind, Phase};
use testkit::Stopwatch;
use tokio::time::Instant;

use crate::primitives::*;
use crate::support::*;

/// Long enough to tell it from a response timeout.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(1500);

/// The reaper repeats the release until it gets through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_dropped_during_an_outage_is_released_after_it() {
    each(&Primitive::ALL, async |primitive| {
        let set = Fixture::new(primitive, options()).await;
        let held = set.proxied().held().await;
        down(set.proxy());
        set.proxy().wait_for_refusals(1).await;
        drop(held);
        set.proxy().wait_for_refusals(3).await;
        assert!(!holds(set.server(), primitive).is_empty(), "nothing gets through yet");
        set.proxy().refuse(false);
        eventually(SOON, "released", || holds(set.server(), primitive).is_empty()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_during_an_outage_waits_for_its_end_and_is_done_once() {
    each(&Primitive::ALL, async |primitive| {
        let set = Fixture::new(primitive, options()).await;
        let held = set.proxied().held().await;
        down(set.proxy());
        let release = tokio::spawn(held.release());
        set.proxy().wait_for_refusals(3).await;
        set.proxy().refuse(false);
        within(SOON, "release", joined(release)).await.expect("it is still held");
        set.assert_nothing_stored();
    })
    .await;
}

/// A release behind one that is repeated for as long as the lease lasts does not wait that long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_behind_another_one_is_unconfirmed_in_time() {
    let set = Fixture::new(Primitive::Lock, options().unreachable_after(UNREACHABLE_AFTER)).await;
    let outer = set.rig.client.lock("nested").lease(LONG).lock().await.unwrap();
    let inner = outer.reenter().await.unwrap();
    set.proxy().black_hole(true);
    let first = tokio::spawn(inner.release());
    eventually(SOON, "the first release has begun", || outer.hold_count() == 1).await;
    let second = tokio::spawn(outer.release());
    for release in [first, second] {
        // Far below the lease.
        let answer = within(PATIENCE, "release", joined(release)).await;
        assert_unconfirmed(&answer);
    }
}

/// The release goes on in the background.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_without_an_answer_is_unconfirmed_and_goes_on() {
    each(&Primitive::ALL, async |primitive| {
        let set = Fixture::new(primitive, options().unreachable_after(UNREACHABLE_AFTER)).await;
        let held = set.proxied().held().await;
        set.proxy().black_hole(true);
        let answer = within(UNREACHABLE_AFTER + SOON, "release", held.release()).await;
        assert_unconfirmed(&answer);
        assert!(!holds(set.server(), primitive).is_empty(), "nothing got through");
        set.proxy().black_hole(false);
        set.proxy().cut();
        eventually(PATIENCE, "released", || holds(set.server(), primitive).is_empty()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_fails_when_the_server_stays_unreachable() {
    each(&Primitive::ALL, async |primitive| {
        let set = Fixture::new(primitive, options().unreachable_after(UNREACHABLE_AFTER)).await;
        let blocker = set.block().await;
        let waiter = tokio::spawn(set.proxied().acquire());
        waiting(set.server(), primitive).await;
        let started = Instant::now();
        down(set.proxy());
        let limit = UNREACHABLE_AFTER + RESPONSE + SOON;
        let answer = within(limit, "the waiter", joined(waiter)).await;
        assert_unreachable(&answer);
        // The span counts from the first request without an answer, which may have been sent before.
        let least = UNREACHABLE_AFTER - RESPONSE;
        assert!(started.elapsed() >= least, "{primitive:?} gave up after {:?}", started.elapsed());
        // Nothing is left of the attempt.
        blocker.release().await.expect("held");
        set.proxy().refuse(false);
        set.direct().assert_free_within(SOON).await;
        eventually(SOON, "nothing is left", || holds(set.server(), primitive).is_empty()).await;
    })
    .await;
}

/// The outage is longer than the time after which the server counts as unreachable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_dropped_during_a_long_outage_are_released_after_it() {
    let set = Fixture::new(Primitive::Semaphore, options().unreachable_after(ms(500))).await;
    let semaphore = set.rig.client.semaphore("a");
    assert_eq!(semaphore.add_permits(9).await.expect("answered"), 10);
    let mut permits = Vec::new();
    for _ in 0..5 {
        permits.push(semaphore.acquire(2).await.expect("free"));
    }
    assert_eq!(set.server().cli(&["GET", "a"]).text(), "0");
    down(set.proxy());
    set.proxy().wait_for_refusals(1).await;
    drop(permits);
    let started = Instant::now();
    while started.elapsed() < ms(2500) {
        set.proxy().wait_for_refusals(set.proxy().refused() + 1).await;
    }
    set.proxy().refuse(false);
    let back = || set.server().cli(&["GET", "a"]).text() == "10";
    eventually(SOON, "all are back", back).await;
}

/// So many that they do not go into one write, nor into ten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_attempts_during_an_outage_fail_within_one_response_timeout() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        rig.proxy.refuse(true);
        rig.proxy.cut();
        rig.proxy.wait_for_refusals(1).await;
        let attempts: Vec<_> = (0..5000)
            .map(|n| {
                let handle = rig.handle(&format!("a-{n}"));
                tokio::spawn(async move {
                    let started = Stopwatch::start();
                    assert_unreachable(&handle.try_lock().await);
                    started.elapsed()
                })
            })
            .collect();
        let mut longest = Duration::ZERO;
        for attempt in attempts {
            longest = longest.max(within(LONG, "an attempt", joined(attempt)).await);
        }
        assert!(longest < RESPONSE + SOON, "one of them took {longest:?}");
    })
    .await;
}

/// The second asks while the first still waits for a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_behind_another_has_its_own_response_timeout() {
    both(async |kind| {
        let response = Duration::from_secs(3);
        let rig = Rig::new(kind, options().response_timeout(response)).await;
        rig.proxy.refuse(true);
        rig.proxy.cut();
        rig.proxy.wait_for_refusals(1).await;
        let mut attempts = Vec::new();
        for name in ["a", "b", "c"] {
            let handle = rig.handle(name);
            attempts.push(tokio::spawn(async move {
                let started = Stopwatch::start();
                assert_unreachable(&handle.try_lock().await);
                started.elapsed()
            }));
            // The one before is on its way.
            tokio::time::sleep(ms(100)).await;
        }
        for attempt in attempts {
            let took = within(LONG, "an attempt", joined(attempt)).await;
            assert!(took < response + SOON, "it took {took:?}");
        }
    })
    .await;
}

/// The release hangs, and the local queue behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_behind_their_own_client_fail_in_time_during_an_outage() {
    both(async |kind| {
        let patience = options().unreachable_after(UNREACHABLE_AFTER);
        let rig = Rig::new(kind, patience).await;
        let handle = rig.handle("a");
        let guard = handle.lease(LONG).lock().await.expect("free");
        let mut waiters = Vec::new();
        for _ in 0..8 {
            let mut waiter = Box::pin(handle.lock());
            start(&mut waiter).await;
            waiters.push(tokio::spawn(waiter));
        }
        rig.proxy.black_hole(true);
        let release = tokio::spawn(guard.release());
        // The first request fails after a response timeout; silence counts from when it was sent.
        let limit = UNREACHABLE_AFTER + 2 * RESPONSE + SOON;
        let failing = async {
            for waiter in waiters {
                assert_unreachable(&joined(waiter).await);
            }
        };
        within(limit, "the waiters", failing).await;
        let answer = within(limit, "the release", joined(release)).await;
        assert!(matches!(answer, Err(lockkeeper::Error::Unconfirmed { .. })), "{answer:?}");
        rig.proxy.black_hole(false);
        rig.proxy.cut();
        eventually(PATIENCE, "given back", || rig.stored("a").is_empty()).await;
    })
    .await;
}

/// Each connection is made, introduces itself, and is then cut: that is an outage as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_drops_every_connection_sees_few_reconnects() {
    let (min, max) = (ms(20), ms(200));
    let rig = Rig::new(Kind::Lock, options().retry_backoff(min, max)).await;
    // Holding something, so that the subscription connection takes part.
    let guard = taken(&rig.handle("held")).await;
    rig.proxy.wait_for_subscriber().await;
    let (started, before) = (Instant::now(), rig.proxy.accepted());
    while started.elapsed() < ms(3000) {
        rig.proxy.cut();
        // The life of a connection; long enough to be taken for one.
        tokio::time::sleep(ms(5)).await;
    }
    let (span, opened) = (started.elapsed(), rig.proxy.accepted() - before);
    // Two connections, each after pauses of 10 ms and more, 20, 40, 80, then 100 ms at the least.
    let most = 2 * (5 + span.as_millis() / 100);
    assert!(opened as u128 <= most, "{opened} connections in {span:?}, {most} at most");
    // Once it keeps its connections, everything is as before.
    let again = within(SOON, "acquire", rig.handle("a").lock()).await;
    again.expect("reachable again").release().await.expect("held");
    rig.assert_held("held", &guard, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspection_and_force_release_without_an_answer_are_unreachable() {
    let rig = Rig::new(Kind::Lock, options()).await;
    rig.proxy.black_hole(true);
    let lock = rig.handle("a");
    let answer = within(RESPONSE + SOON, "is_locked", lock.is_locked()).await;
    let is_inspect = matches!(answer, Err(Error::Unreachable { phase: Phase::Inspect, .. }));
    assert!(is_inspect, "{answer:?}");
    let answer = within(RESPONSE + SOON, "force_unlock", lock.force_unlock("")).await;
    let is_force = matches!(answer, Err(Error::Unreachable { phase: Phase::ForceUnlock, .. }));
    assert!(is_force, "{answer:?}");
}
