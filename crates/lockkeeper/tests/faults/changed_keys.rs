//! Another client changes or deletes the key of a lock that is held.

use lockkeeper::{Kind, LostReason};
use testkit::{RedisServer, Stopwatch};

use crate::support::*;

/// On one thread, so that its warnings can be collected.
#[tokio::test]
async fn a_fixed_lease_shortened_at_the_server_is_shortened_locally() {
    for kind in KINDS {
        let (warnings, _collecting) = Warnings::collect();
        let server = RedisServer::start();
        let client = connect(&server.url(), options().watchdog_timeout(ms(600))).await;
        let guard = lock_of(&client, kind, "a");
        let guard = guard.lease(LONG).lock().await.expect("free");
        assert!(guard.remaining() > ms(50_000));
        server.cli(&["PEXPIRE", "a", "6000"]);
        eventually(SOON, "the new deadline", || guard.remaining() <= ms(6000)).await;
        assert!(warnings.containing("clock runs ahead") > 0, "{warnings:?}");
        let (watch, left) = (Stopwatch::start(), ms(pttl(&server, "a").unsigned_abs()));
        let reason = within(PATIENCE, "the loss", guard.lost()).await;
        assert!(watch.elapsed() < left + SOON, "told too late");
        // The check may find the deletion at the same time as the clock.
        assert!(matches!(reason, LostReason::Expired | LostReason::Deleted), "{reason:?}");
    }
}

#[tokio::test]
async fn a_renewed_lease_shortened_at_the_server_is_renewed_with_a_warning() {
    for kind in KINDS {
        let (warnings, _collecting) = Warnings::collect();
        let server = RedisServer::start();
        let client = connect(&server.url(), options().watchdog_timeout(ms(9000))).await;
        let guard = taken(&lock_of(&client, kind, "a")).await;
        server.cli(&["PEXPIRE", "a", "5400"]);
        eventually(PATIENCE, "renewed", || pttl(&server, "a") > 6000).await;
        eventually(PATIENCE, "a warning", || warnings.containing("clock runs ahead") > 0).await;
        assert_held(&server, kind, "a", &guard, 1);
    }
}

/// A second owner in the hash: another client believes that it holds the lock, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_owner_in_the_hash_of_a_lock_is_a_loss() {
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

/// A check of a lock without a TTL only reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_of_a_lock_without_a_ttl_does_not_change_it() {
    both(async |kind| {
        // Looked at every 200 ms.
        let rig = Rig::new(kind, options().watchdog_timeout(ms(600))).await;
        let guard = rig.handle("a").lease(LONG).lock().await.expect("free");
        let owner = guard.owner_id().to_string();
        assert_eq!(rig.server.cli(&["PERSIST", "a"]).int(), 1);
        // The second is sent when the answer of the first is there.
        let looks = rig.proxy.expect_delivery(&rig.mark(Sent::Renew));
        looks.wait_for(2).await;
        assert_eq!(rig.stored("a"), [(owner, 1)], "{kind}: a look took it away");
        assert_eq!(pttl(&rig.server, "a"), -1, "{kind}: a look gave it an end");
        assert!(!guard.is_lost(), "{guard:?}");
        let rival = rig.direct_lock("a").await;
        assert!(rival.try_lock().await.expect("the server answers").is_none());
        guard.release().await.expect("held to the end");
        rig.assert_free("a");
    })
    .await;
}

/// A lock that is renewed gets its end back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_of_a_lock_without_a_ttl_sets_one() {
    both(async |kind| {
        let rig = Rig::new(kind, options().watchdog_timeout(ms(3000))).await;
        let guard = taken(&rig.handle("a")).await;
        assert_eq!(rig.server.cli(&["PERSIST", "a"]).int(), 1);
        eventually(PATIENCE, "an end", || pttl(&rig.server, "a") > 0).await;
        rig.assert_held("a", &guard, 1);
        guard.release().await.expect("held");
    })
    .await;
}
