//! Time that passes for one side only.

use lockkeeper::{Clock, Kind, LostReason};
use testkit::RedisServer;
use tokio::time::Instant;

use crate::support::*;

/// The machine was suspended: its boot clock went on, tokio's did not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_is_noticed_at_once_and_signalled_within_a_quarter_second() {
    both(async |kind| {
        let server = RedisServer::start();
        let clock = Clock::system();
        let client = connect(&server.url(), options().clock(clock.clone())).await;
        let renewed = taken(&lock_of(&client, kind, "renewed")).await;
        let fixed = lock_of(&client, kind, "fixed");
        let fixed = fixed.lease(LONG).lock().await.expect("free");
        let cases = [(renewed, LostReason::Unreachable), (fixed, LostReason::Expired)];
        watched(&server).await;
        // Polled before the jump, so that it is the signal that ends them and not their first look.
        let mut lost = cases.each_ref().map(|(guard, _)| Box::pin(guard.lost()));
        for lost in &mut lost {
            start(lost).await;
        }
        let told = lost.map(|lost| tokio::spawn(async move { (lost.await, Instant::now()) }));
        let jumped = Instant::now();
        clock.skip(LONG);
        assert!(cases.iter().all(|(guard, _)| guard.is_lost()));
        for (told, (guard, reason)) in told.into_iter().zip(&cases) {
            let (said, at) = within(PATIENCE, "the loss", joined(told)).await;
            assert_eq!(said, *reason);
            // The rule says 250 ms; the rest is for a machine with something else to do. The next
            // renewal would be in twenty seconds.
            assert!(at - jumped < ms(250) + SOON, "{:?}", at - jumped);
            assert!(guard.remaining().is_zero());
        }
    })
    .await;
}

/// Until the watchdog has seen what is held and has gone to sleep: it listens for notices then.
async fn watched(server: &RedisServer) {
    let channels = || server.cli(&["PUBSUB", "CHANNELS", "lockkeeper_notice:*"]);
    eventually(PATIENCE, "listening for notices", || !channels().array().is_empty()).await;
}

/// Less than the lease: nothing is lost, and the watchdog catches up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_by_less_than_the_lease_costs_a_renewal() {
    both(async |kind| {
        let server = RedisServer::start();
        let clock = Clock::system();
        let client = connect(&server.url(), options().clock(clock.clone())).await;
        let guard = taken(&lock_of(&client, kind, "a")).await;
        watched(&server).await;
        server.cli(&["PEXPIRE", "a", "40000"]);
        clock.skip(LONG / 2);
        eventually(SOON, "renewed", || pttl(&server, "a") > 50_000).await;
        assert_held(&server, kind, "a", &guard, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_lease_notices_a_deletion_within_a_tick() {
    both(async |kind| {
        let server = RedisServer::start();
        // Looked at every 200 ms.
        let client = connect(&server.url(), options().watchdog_timeout(ms(600))).await;
        let guard = lock_of(&client, kind, "a");
        let guard = guard.lease(LONG).lock().await.expect("free");
        assert_eq!(server.cli(&["DEL", "a"]).int(), 1);
        let reason = within(ms(200) + SOON, "the loss", guard.lost()).await;
        assert_eq!(reason, LostReason::Deleted);
        assert_not_held(&guard.release().await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_lease_notices_a_thief_within_a_tick() {
    both(async |kind| {
        let server = RedisServer::start();
        let client = connect(&server.url(), options().watchdog_timeout(ms(600))).await;
        let guard = lock_of(&client, kind, "a");
        let guard = guard.lease(LONG).lock().await.expect("free");
        server.cli(&["DEL", "a"]);
        let thief = lock_of(&connect(&server.url(), options()).await, kind, "a");
        let thief = taken(&thief).await;
        let reason = within(ms(200) + SOON, "the loss", guard.lost()).await;
        // Looked at between the two, it was deleted.
        assert!(matches!(reason, LostReason::Taken | LostReason::Deleted), "{reason:?}");
        assert_not_held(&guard.release().await);
        assert_held(&server, kind, "a", &thief, 1);
    })
    .await;
}

/// On one thread, so that its warnings can be collected.
#[tokio::test]
async fn a_fixed_lease_that_the_server_cut_short_is_cut_short_here() {
    for kind in KINDS {
        let (warnings, _collecting) = Warnings::collect();
        let server = RedisServer::start();
        let client = connect(&server.url(), options().watchdog_timeout(ms(600))).await;
        let guard = lock_of(&client, kind, "a");
        let guard = guard.lease(LONG).lock().await.expect("free");
        assert!(guard.remaining() > ms(50_000));
        server.cli(&["PEXPIRE", "a", "3000"]);
        eventually(SOON, "the new deadline", || guard.remaining() <= ms(3000)).await;
        assert!(warnings.containing("clock runs ahead") > 0, "{warnings:?}");
        let server_end = Instant::now() + ms(pttl(&server, "a").unsigned_abs());
        let reason = within(PATIENCE, "the loss", guard.lost()).await;
        assert!(Instant::now() < server_end + SOON, "told too late");
        // The check may still find it gone where the clock would have told in the same moment.
        assert!(matches!(reason, LostReason::Expired | LostReason::Deleted), "{reason:?}");
    }
}

#[tokio::test]
async fn a_renewed_lease_that_the_server_cut_short_is_renewed_with_a_warning() {
    for kind in KINDS {
        let (warnings, _collecting) = Warnings::collect();
        let server = RedisServer::start();
        let client = connect(&server.url(), options().watchdog_timeout(ms(3000))).await;
        let guard = taken(&lock_of(&client, kind, "a")).await;
        server.cli(&["PEXPIRE", "a", "1800"]);
        eventually(SOON, "renewed", || pttl(&server, "a") > 2000).await;
        eventually(SOON, "a warning", || warnings.containing("clock runs ahead") > 0).await;
        assert_held(&server, kind, "a", &guard, 1);
    }
}

/// A foreign field beside ours: somebody else believes to hold it, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_field_in_a_lock_is_a_loss() {
    let server = RedisServer::start();
    let client = connect(&server.url(), options().watchdog_timeout(ms(3000))).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    let foreign = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:7";
    server.cli(&["HSET", "a", foreign, "1"]);
    let reason = within(PATIENCE, "the loss", guard.lost()).await;
    assert_eq!(reason, LostReason::Taken);
    drop(guard);
    let theirs = || stored(&server, Kind::Lock, "a") == [(foreign.to_owned(), 1)];
    eventually(SOON, "only the other is left", theirs).await;
}
