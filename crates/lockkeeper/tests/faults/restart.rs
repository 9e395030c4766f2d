//! The server goes away and comes back, with its data or without.

use std::sync::Arc;

use lockkeeper::{Kind, LostReason};
use testkit::RedisServer;

use crate::support::*;

/// The watchdog's own checks are 20 s apart: only the reconnection can be what told the holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_learns_that_the_server_came_back_empty() {
    both(async |kind| {
        let server = Arc::new(RedisServer::start());
        let client = connect(&server.url(), options()).await;
        let renewed = taken(&lock_of(&client, kind, "renewed")).await;
        let fixed = lock_of(&client, kind, "fixed");
        let fixed = fixed.lease(LONG).lock().await.expect("free");
        restart(&server).await;
        for (guard, name) in [(renewed, "renewed"), (fixed, "fixed")] {
            let reason = within(SOON, "the loss", guard.lost()).await;
            assert_eq!(reason, LostReason::Deleted, "{name}");
            assert!(guard.is_lost());
            let other = lock_of(&connect(&server.url(), options()).await, kind, name);
            let heir = other.try_lock().await.expect("reachable");
            let heir = heir.expect("it is free: the server has forgotten everything");
            assert_not_held(&guard.release().await);
            assert_held(&server, kind, name, &heir, 1);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_rides_out_a_restart_and_gets_in() {
    both(async |kind| {
        let server = Arc::new(RedisServer::start());
        let holder = connect(&server.url(), options()).await;
        let holder = taken(&lock_of(&holder, kind, "a")).await;
        let client = connect(&server.url(), options()).await;
        let handle = lock_of(&client, kind, "a");
        let waiter = tokio::spawn(async move { handle.lock().await });
        eventually(PATIENCE, "listening", || listeners(&server, "a") == 1).await;
        restart(&server).await;
        // The server came back empty: the waiter is the first who asks, and the holder is told.
        let guard = within(SOON, "the waiter", joined(waiter)).await;
        assert_held(&server, kind, "a", &guard.expect("free"), 1);
        let reason = within(SOON, "the loss", holder.lost()).await;
        assert!(matches!(reason, LostReason::Deleted | LostReason::Taken), "{reason:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_survives_a_restart_with_data_and_is_renewed_at_once() {
    both(async |kind| {
        let server = Arc::new(RedisServer::builder().persistent(true).start());
        let client = connect(&server.url(), options()).await;
        let guard = taken(&lock_of(&client, kind, "a")).await;
        // Less than is due, so that a renewal shows. The next regular one is 20 s away.
        server.cli(&["PEXPIRE", "a", "30000"]);
        restart(&server).await;
        eventually(SOON, "renewed", || pttl(&server, "a") > 45_000).await;
        assert_held(&server, kind, "a", &guard, 1);
        guard.release().await.expect("it is held");
    })
    .await;
}

/// The connection for wake-ups takes its time; meanwhile the other one is lost and made again. Several
/// at once, because it also depends on which of the client's tasks runs first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnect_right_after_the_first_acquire_is_not_missed() {
    for _ in 0..2 {
        let running: Vec<_> =
            (0..4).flat_map(|_| KINDS.map(reconnect_early)).map(tokio::spawn).collect();
        for task in running {
            joined(task).await;
        }
    }
}

async fn reconnect_early(kind: Kind) {
    let patient = options().response_timeout(PATIENCE).connect_timeout(PATIENCE);
    let rig = Rig::new(kind, patient).await;
    rig.mark(Sent::Acquire);
    let first = rig.proxy.connections()[0];
    let second = rig.proxy.accepted() + 1;
    rig.proxy.delay(ms(500));
    let guard = taken(&rig.handle("a")).await;
    rig.proxy.wait_for_connections(second).await;
    // Its first words are on their way for half a second; what comes now is fast.
    rig.proxy.delay(ms(0));
    rig.server.cli(&["PEXPIRE", "a", "30000"]);
    rig.proxy.cut_connection(first);
    eventually(SOON, "renewed", || pttl(&rig.server, "a") > 45_000).await;
    rig.assert_held("a", &guard, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watchdog_carries_a_lock_over_an_outage_shorter_than_its_lease() {
    both(async |kind| {
        let rig = Rig::new(kind, options().watchdog_timeout(ms(6000))).await;
        let guard = taken(&rig.handle("a")).await;
        rig.proxy.refuse(true);
        rig.proxy.cut();
        // Beyond the next renewal, which is due after 2 s.
        tokio::time::sleep(ms(2500)).await;
        rig.assert_held("a", &guard, 1);
        let before = pttl(&rig.server, "a");
        rig.proxy.refuse(false);
        eventually(SOON, "renewed", || pttl(&rig.server, "a") > before + 1000).await;
        rig.assert_held("a", &guard, 1);
        guard.release().await.expect("it is held");
    })
    .await;
}

/// A guard whose release cannot get through: the reaper goes on until it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_dropped_during_an_outage_is_given_back_after_it() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let guard = taken(&rig.handle("a")).await;
        rig.proxy.refuse(true);
        rig.proxy.cut();
        rig.proxy.wait_for_refusals(1).await;
        drop(guard);
        rig.proxy.wait_for_refusals(3).await;
        assert_eq!(rig.stored("a").len(), 1, "nothing gets through yet");
        rig.proxy.refuse(false);
        eventually(SOON, "given back", || rig.stored("a").is_empty()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_during_an_outage_waits_for_its_end() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let guard = taken(&rig.handle("a")).await;
        rig.proxy.refuse(true);
        rig.proxy.cut();
        let release = tokio::spawn(guard.release());
        rig.proxy.wait_for_refusals(3).await;
        rig.proxy.refuse(false);
        within(SOON, "release", joined(release)).await.expect("it is still held");
        rig.assert_free("a");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_holds_are_all_renewed_after_a_reconnect() {
    let rig = Rig::new(Kind::Lock, options()).await;
    let names: Vec<_> = (0..300).map(|n| format!("many-{n}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(taken(&rig.handle(name)).await);
        rig.server.cli(&["PEXPIRE", name, "30000"]);
    }
    rig.proxy.cut();
    eventually(SOON, "all renewed", || names.iter().all(|name| pttl(&rig.server, name) > 45_000))
        .await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
}

/// Starting a server takes a while, in which the runtime must go on.
async fn restart(server: &Arc<RedisServer>) {
    let server = Arc::clone(server);
    joined(tokio::task::spawn_blocking(move || server.restart())).await;
}
