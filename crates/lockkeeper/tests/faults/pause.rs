//! The server is stopped for less than a lease, or for longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::LostReason;
use testkit::{History, RedisServer, Stopwatch};
use tokio::time::Instant;

use crate::primitives::{Fixture, LEASED, each};
use crate::support::*;

const LEASE: Duration = Duration::from_secs(7);

/// What is given up of a lease in these tests: enough for a machine that is slow to wake a task.
const DRIFT: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_stopped_past_the_lease_loses_the_lock_before_another_acquires_it() {
    both(async |kind| {
        let server = RedisServer::start();
        let options = options()
            .watchdog_timeout(LEASE)
            .response_timeout(ms(300))
            .unreachable_after(LONG)
            .drift(0.0, DRIFT);
        let history = History::new();
        let holder = connect(&server.url(), options.clone()).await;
        let guard = taken(&lock_of(&holder, kind, "a")).await;
        history.granted("a", "holder", None);
        let other = connect(&server.url(), options).await;
        let other = lock_of(&other, kind, "a");
        let waiter = tokio::spawn({
            let history = history.clone();
            async move {
                let guard = other.lock().await;
                history.granted("a", "waiter", None);
                guard
            }
        });
        eventually(PATIENCE, "listening", || listeners(&server, "a") == 1).await;
        // Just renewed, so that the end that the server knows stays what it is until it is stopped.
        let ends = || server.cli(&["PEXPIRETIME", "a"]).int().unsigned_abs();
        let before = ends();
        eventually(PATIENCE, "renewed", || ends() != before).await;
        let ends = UNIX_EPOCH + ms(ends());
        server.pause();
        // What it believes in ends as much earlier as it is to; then it has so long to say so.
        let (now, left) = (SystemTime::now(), guard.remaining());
        assert!(now + left + DRIFT <= ends + ms(2), "{left:?} left, and its end at {ends:?}");
        let reason = within(LEASE + SOON, "the loss", guard.lost()).await;
        let told = SystemTime::now();
        history.lost("a", "holder");
        assert_eq!(reason, LostReason::Unreachable);
        let ahead = ends.duration_since(told);
        assert!(ahead.is_ok(), "the lease had ended at the server: {ahead:?}");
        // Stopped until the lease has ended by everybody's clock.
        tokio::time::sleep(ends.duration_since(told).unwrap_or_default() + ms(100)).await;
        server.resume();
        let heir = within(PATIENCE, "the waiter", joined(waiter)).await;
        let heir = heir.expect("the lease has ended");
        history.assert_valid();
        assert_eq!(history.grants(), 2);
        // What was sent to the stopped server and ran afterwards has revived nothing.
        assert_not_held(&guard.release().await);
        assert_held(&server, kind, "a", &heir, 1);
    })
    .await;
}

/// The holder is notified before the lease ends at the server, and another client can acquire afterwards. The
/// test above is about locks and mutexes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_stopped_past_the_lease_loses_every_kind_of_hold_in_time() {
    each(&LEASED[3..], async |primitive| {
        let lease = ms(3000);
        let set = Fixture::new(primitive, options().watchdog_timeout(lease)).await;
        let held = set.proxied().held().await;
        let lost = held.guard().lost();
        let before = Stopwatch::start();
        set.server().pause();
        let reason = within(PATIENCE, "the loss", lost).await;
        let after = before.elapsed();
        set.server().resume();
        assert_eq!(reason, LostReason::Unreachable, "{primitive:?}");
        assert!(after < lease + SOON, "{primitive:?}: told after {after:?}");
        // The server counts time while it is stopped: the lease has ended there, too.
        set.direct().assert_free_within(SOON).await;
        drop(held);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_stopped_for_less_than_the_lease_loses_nothing() {
    both(async |kind| {
        let server = RedisServer::start();
        let short = options().watchdog_timeout(ms(9000)).response_timeout(ms(300));
        let holder = connect(&server.url(), short).await;
        let guard = taken(&lock_of(&holder, kind, "a")).await;
        let patient = options().response_timeout(PATIENCE);
        let other = lock_of(&connect(&server.url(), patient).await, kind, "a");
        assert!(other.try_lock().await.expect("reachable").is_none());
        server.pause();
        // Over the renewal that is due after 3 s, and several response timeouts.
        tokio::time::sleep(ms(3500)).await;
        assert!(!guard.is_lost());
        server.resume();
        // Without a renewal less than 5.5 s would be left.
        eventually(PATIENCE, "renewed", || pttl(&server, "a") > 6500).await;
        assert_held(&server, kind, "a", &guard, 1);
        let limited = other.try_lock_for(ms(1000)).await;
        assert!(limited.expect("reachable").is_none(), "two holders");
        guard.release().await.expect("it is held");
        assert_free(&server, kind, "a");
    })
    .await;
}

/// An acquire that a stopped server executes after it was given up is undone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_abandoned_while_the_server_was_stopped_leaves_nothing() {
    both(async |kind| {
        let server = RedisServer::start();
        let client = connect(&server.url(), options()).await;
        let handle = lock_of(&client, kind, "a");
        server.pause();
        let answer = within(SOON, "try_lock", async { handle.try_lock().await }).await;
        assert_unreachable(&answer);
        server.resume();
        let guard = within(SOON, "acquire", async { handle.lock().await }).await;
        let guard = guard.expect("free or undone");
        assert_held(&server, kind, "a", &guard, 1);
        guard.release().await.expect("it is held");
        eventually(SOON, "free", || stored(&server, kind, "a").is_empty()).await;
    })
    .await;
}

/// Many clients over stops of random length: never two holders at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusion_holds_over_stops_of_any_length() {
    both(async |kind| {
        let server = RedisServer::start();
        let options = options()
            .watchdog_timeout(ms(2000))
            .response_timeout(ms(200))
            .unreachable_after(LONG)
            // Whoever has lost it writes that down before another can have it, also on a machine that
            // stands still in between.
            .drift(0.0, ms(1000));
        let history = History::new();
        let (end, stop) = (Instant::now() + ms(10_000), Arc::new(AtomicBool::new(false)));
        let mut workers = Vec::new();
        for n in 0..4 {
            let client = connect(&server.url(), options.clone()).await;
            let handle = lock_of(&client, kind, "a");
            let (history, stop) = (history.clone(), Arc::clone(&stop));
            workers.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let guard = handle.lock().await.expect("the stops are short");
                    let holder = format!("{n}:{}", guard.owner_id());
                    history.granted("a", &holder, None);
                    // The work: short, or longer than any lease, and it heeds the loss.
                    let work = fastrand::u64(..if fastrand::u8(..4) == 0 { 2000 } else { 40 });
                    tokio::select! {
                        biased;
                        _ = guard.lost() => history.lost("a", &holder),
                        () = tokio::time::sleep(ms(work)) => history.released("a", &holder),
                    }
                    drop(guard.release().await);
                }
            }));
        }
        // A slow machine needs more of them for a few grants.
        let stops = async {
            while Instant::now() < end || history.grants() <= 3 {
                server.pause();
                tokio::time::sleep(ms(fastrand::u64(50..2500))).await;
                server.resume();
                tokio::time::sleep(ms(fastrand::u64(50..400))).await;
            }
        };
        within(LONG, "a few grants", stops).await;
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            within(PATIENCE, "a worker", joined(worker)).await;
        }
        history.assert_valid();
    })
    .await;
}
