//! Whoever has gone leaves nothing at the server: neither an ear nor a hold.

use crate::support::*;

/// A thousand wait behind one of their own client until their limits; then nobody listens, though
/// the lock is held on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_that_gave_up_leave_nobody_listening() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let stranger = taken(&rig.strangers("a").await).await;
        let handle = rig.handle("a");
        let first = tokio::spawn(handle.lock());
        eventually(PATIENCE, "listening", || listeners(&rig.server, "a") == 1).await;
        let mut waiters = Vec::new();
        for _ in 0..1000 {
            let mut waiter = Box::pin(handle.try_lock_for(ms(3000)));
            start(&mut waiter).await;
            waiters.push(waiter);
        }
        stranger.release().await.expect("held");
        let guard = within(SOON, "the first", joined(first)).await.expect("freed");
        for waiter in waiters {
            let answer = within(PATIENCE, "a limited wait", waiter).await;
            assert!(answer.expect("the server answers").is_none());
        }
        eventually(SOON, "nobody listens", || listeners(&rig.server, "a") == 0).await;
        rig.assert_held("a", &guard, 1);
        guard.release().await.expect("held");
        rig.assert_free("a");
    })
    .await;
}

/// The same by walking away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_walked_away_leave_nobody_listening() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let stranger = taken(&rig.strangers("a").await).await;
        let handle = rig.handle("a");
        let first = tokio::spawn(handle.lock());
        eventually(PATIENCE, "listening", || listeners(&rig.server, "a") == 1).await;
        let mut waiters = Vec::new();
        for _ in 0..100 {
            let mut waiter = Box::pin(handle.lock());
            start(&mut waiter).await;
            waiters.push(waiter);
        }
        stranger.release().await.expect("held");
        let guard = within(SOON, "the first", joined(first)).await.expect("freed");
        assert_eq!(listeners(&rig.server, "a"), 1, "for those who still wait");
        drop(waiters);
        eventually(SOON, "nobody listens", || listeners(&rig.server, "a") == 0).await;
        rig.assert_held("a", &guard, 1);
        guard.release().await.expect("held");
    })
    .await;
}

/// The request has left and its answer has not come when the client is shut down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_with_an_acquire_under_way_leaves_no_hold() {
    both(async |kind| {
        let rig = Rig::new(kind, options().response_timeout(LONG)).await;
        let mark = rig.mark(Sent::Acquire);
        let (sent, delivered) = (rig.proxy.expect_request(&mark), rig.proxy.expect_delivery(&mark));
        rig.proxy.delay(ms(200));
        let acquire = tokio::spawn(rig.handle("a").lock());
        sent.wait().await;
        within(PATIENCE, "shutdown", rig.client.shutdown()).await;
        delivered.wait().await;
        rig.assert_free("a");
        match within(SOON, "the acquire", joined(acquire)).await {
            Ok(guard) => assert!(guard.is_lost(), "{guard:?}"),
            Err(error) => assert!(matches!(error, lockkeeper::Error::Closed { .. }), "{error:?}"),
        }
        rig.assert_free("a");
    })
    .await;
}
