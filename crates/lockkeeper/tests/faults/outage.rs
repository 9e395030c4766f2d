//! An outage costs each caller its own time, and no more: not that of those who asked before, not
//! that of a release that hangs, and the server no storm of connections.

use std::time::Duration;

use lockkeeper::Kind;
use testkit::RedisServer;
use tokio::time::Instant;

use crate::refusals::fill;
use crate::support::*;

/// Long enough to tell it from a response timeout.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(1500);

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
                    let started = Instant::now();
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
                let started = Instant::now();
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

/// The release hangs, and with it the seat of those in the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_for_their_own_client_are_told_of_an_outage_in_time() {
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
        let told = async {
            for waiter in waiters {
                assert_unreachable(&joined(waiter).await);
            }
        };
        within(limit, "all who wait", told).await;
        let answer = within(limit, "the release", joined(release)).await;
        assert!(matches!(answer, Err(lockkeeper::Error::Unconfirmed { .. })), "{answer:?}");
        rig.proxy.black_hole(false);
        rig.proxy.cut();
        eventually(PATIENCE, "given back", || rig.stored("a").is_empty()).await;
    })
    .await;
}

/// The server takes nothing new but answers everything else: renewals succeed all the while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_at_a_full_server_is_told_though_other_requests_succeed() {
    both(async |kind| {
        let server = RedisServer::start();
        // Renewed every second.
        let patience = 4 * UNREACHABLE_AFTER;
        let busy = options().watchdog_timeout(ms(3000)).unreachable_after(patience);
        let rig = Rig::on(server, kind, busy).await;
        let held = taken(&rig.handle("held")).await;
        let renewals = rig.proxy.expect_delivery(&rig.mark(Sent::Renew));
        fill(&rig.server);
        let started = Instant::now();
        let answer = rig.handle("a").lock();
        let answer = within(patience + RESPONSE + SOON, "an answer", answer).await;
        assert_unreachable(&answer);
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("OOM"), "not that the store is silent: {error}");
        assert!(started.elapsed() >= patience, "it gave up early");
        assert!(renewals.count() >= 2, "nothing else was asked meanwhile");
        rig.assert_free("a");
        rig.server.cli(&["CONFIG", "SET", "maxmemory", "0"]).ok();
        drop(held);
    })
    .await;
}

/// Each connection is made, introduces itself, and is then cut: that is an outage as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_drops_every_connection_is_not_stormed() {
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
