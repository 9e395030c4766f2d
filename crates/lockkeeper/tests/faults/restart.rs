//! The server restarts or the connection breaks, with the data of the server or without.

use std::sync::Arc;

use lockkeeper::{Client, Error, Kind, LostReason};
use testkit::RedisServer;

use crate::primitives::*;
use crate::support::*;

/// A server, and two clients of it.
async fn two(server: RedisServer, primitive: Primitive) -> (Arc<RedisServer>, Client, Client) {
    // However long a restart takes.
    let options = options().unreachable_after(LONG);
    let one = connect(&server.url(), options.clone()).await;
    let two = connect(&server.url(), options).await;
    set_up(&one, primitive, "a").await;
    (Arc::new(server), one, two)
}

/// The watchdog's own checks are 20 s apart: only the reconnection can reveal the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_learns_that_the_server_came_back_empty() {
    each(&Primitive::ALL, async |primitive| {
        let (server, client, other) = two(started().await, primitive).await;
        let renewed = Handle::new(&client, primitive, "a").held().await;
        if primitive == Primitive::Semaphore {
            restart(&server).await;
            // It has no lease; a semaphore that was deleted is not created again.
            assert_not_held(&within(PATIENCE, "release", renewed.release()).await);
            assert_eq!(server.cli(&["EXISTS", "a"]).int(), 0);
            return;
        }
        set_up(&client, primitive, "b").await;
        let fixed = Handle::new(&client, primitive, "b").leased(LONG).await;
        restart(&server).await;
        for (held, name) in [(renewed, "a"), (fixed, "b")] {
            assert_eq!(held.lost_soon().await, LostReason::Deleted, "{primitive:?}");
            assert!(held.guard().is_lost());
            if primitive == Primitive::Permits {
                assert_not_held(&held.release().await);
                continue;
            }
            let next = Handle::new(&other, primitive, name).held().await;
            assert_not_held(&held.release().await);
            assert!(!next.guard().is_lost());
            next.release().await.expect("the release of the lost hold did not touch it");
        }
        assert_eq!(holds(&server, primitive), Vec::<String>::new(), "{primitive:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_survives_a_restart_without_data() {
    each(&Primitive::ALL, async |primitive| {
        let (server, holder, client) = two(started().await, primitive).await;
        let held = Handle::new(&holder, primitive.exclusive(), "a").held().await;
        let waiter = tokio::spawn(Handle::new(&client, primitive, "a").acquire());
        waiting(&server, primitive).await;
        restart(&server).await;
        let answer = within(PATIENCE, "the waiter", joined(waiter)).await;
        if matches!(primitive, Primitive::Permits | Primitive::Semaphore) {
            // The semaphore does not exist any more.
            assert!(matches!(answer, Err(Error::Invalid { .. })), "{answer:?}");
        } else {
            let next = answer.expect("it is free: the server has no data");
            let reason = held.lost_soon().await;
            assert!(matches!(reason, LostReason::Deleted | LostReason::Taken), "{reason:?}");
            next.release().await.expect("held");
        }
        drop(held);
        eventually(SOON, "nothing is left", || holds(&server, primitive).is_empty()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_survives_a_restart_with_data() {
    each(&Primitive::ALL, async |primitive| {
        let (server, holder, client) = two(persistent().await, primitive).await;
        let held = Handle::new(&holder, primitive.exclusive(), "a").held().await;
        let waiter = tokio::spawn(Handle::new(&client, primitive, "a").acquire());
        waiting(&server, primitive).await;
        restart(&server).await;
        within(PATIENCE, "release", held.release()).await.expect("it was in the dump");
        let next = within(SOON, "the waiter", joined(waiter)).await.expect("freed");
        next.release().await.expect("held");
        assert_eq!(holds(&server, primitive), Vec::<String>::new(), "{primitive:?}");
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
async fn the_watchdog_renews_a_lock_after_an_outage_shorter_than_its_lease() {
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
