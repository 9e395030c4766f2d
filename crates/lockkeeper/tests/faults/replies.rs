//! A request is executed and its reply is lost: the client repeats it, and it counts once.

use lockkeeper::{Error, Kind};

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_attempt_whose_reply_is_lost_fails_and_is_undone() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        rig.lose_reply(Sent::Acquire);
        let executed = match kind {
            Kind::Mutex => "set",
            _ => "hset",
        };
        let answer = within(SOON, "try_lock", rig.handle("a").try_lock()).await;
        assert_unreachable(&answer);
        assert_eq!(rig.server.commandstats(executed), 1, "it was granted");
        eventually(SOON, "undone", || rig.stored("a").is_empty()).await;
        let guard = rig.handle("a").try_lock().await.expect("reachable again");
        assert!(guard.is_some(), "a hold was left over");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_lease_whose_checks_reply_is_lost_stays_held() {
    both(async |kind| {
        let rig = Rig::new(kind, options().watchdog_timeout(ms(600))).await;
        let guard = rig.handle("a").lease(LONG).lock().await.expect("free");
        let checks = rig.proxy.expect_delivery(&rig.mark(Sent::Renew));
        rig.lose_reply(Sent::Renew);
        checks.wait_for(4).await;
        assert!(rig.proxy.swallowed_replies() >= 1);
        rig.assert_held("a", &guard, 1);
        assert!(guard.remaining() > LONG / 2, "a lost check costs nothing");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_found_done_after_the_deadline_is_unconfirmed() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let guard = rig.handle("a").lease(ms(1000)).lock().await.expect("free");
        let deadline = tokio::time::Instant::now() + guard.remaining();
        rig.lose_reply(Sent::Release);
        // The repetition cannot get through before the lease has ended.
        rig.proxy.refuse(true);
        let release = tokio::spawn(guard.release());
        eventually(SOON, "released", || rig.stored("a").is_empty()).await;
        tokio::time::sleep_until(deadline).await;
        rig.proxy.refuse(false);
        let answer = within(PATIENCE, "release", joined(release)).await;
        assert!(matches!(answer, Err(Error::Unconfirmed { .. })), "{answer:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_finds_nothing_at_its_first_answer_is_not_held() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let guard = taken(&rig.handle("a")).await;
        rig.server.cli(&["DEL", "a"]);
        assert_not_held(&guard.release().await);
        // Also when it took an outage in which the release was not sent at all.
        let guard = taken(&rig.handle("a")).await;
        rig.proxy.refuse(true);
        rig.proxy.cut();
        // This request finds that there is no connection.
        assert_unreachable(&rig.handle("probe").try_lock().await);
        let release = tokio::spawn(guard.release());
        rig.server.cli(&["DEL", "a"]);
        rig.proxy.refuse(false);
        assert_not_held(&within(PATIENCE, "release", joined(release)).await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_whose_reply_is_lost_can_be_repeated() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let guard = rig.handle("a").lease(ms(20_000)).lock().await.expect("free");
        rig.lose_reply(Sent::Renew);
        let lost = within(SOON, "extend", guard.extend(LONG)).await;
        if lost.is_err() {
            assert_unreachable(&lost);
            // Nothing is promised, so nothing may be relied upon.
            assert!(guard.remaining() <= ms(20_000));
        }
        within(SOON, "extend", guard.extend(LONG)).await.expect("reachable again");
        assert!(rig.proxy.swallowed_replies() >= 1);
        assert!(guard.remaining() > LONG / 2);
        rig.assert_held("a", &guard, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_whose_reply_is_lost_is_repeated() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let holder = taken(&rig.direct_lock("a").await).await;
        rig.proxy.drop_replies_once_after_request_matching(channel("a").as_bytes());
        let waiter = tokio::spawn(rig.handle("a").lock());
        rig.proxy.wait_for_swallowed_replies(1).await;
        eventually(PATIENCE, "listening", || listeners(&rig.server, "a") == 1).await;
        holder.release().await.expect("it is held");
        let guard = within(SOON, "the waiter", joined(waiter)).await;
        rig.assert_held("a", &guard.expect("free"), 1);
    })
    .await;
}

/// Connecting is a request, too: the answer to the first words on a new connection is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_whose_reply_is_lost_is_repeated() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let guard = taken(&rig.handle("a")).await;
        rig.proxy.drop_replies_once_after_request_matching(b"SETNAME");
        rig.proxy.cut();
        within(SOON + SOON, "release", guard.release()).await.expect("it is held");
        assert!(rig.proxy.swallowed_replies() >= 1);
        rig.assert_free("a");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_flush_between_any_two_requests_has_no_effect() {
    both(async |kind| {
        let rig = Rig::new(kind, options().watchdog_timeout(ms(3000))).await;
        let flush = || rig.server.cli(&["SCRIPT", "FLUSH"]).ok();
        let handle = rig.handle("a");
        for _ in 0..20 {
            flush();
            let guard = taken(&handle).await;
            flush();
            assert!(handle.is_locked().await.expect("asked"));
            if kind == Kind::Lock {
                flush();
                let inner = guard.reenter().await.expect("held");
                flush();
                inner.release().await.expect("held");
            }
            let mut heir = Box::pin(handle.lock());
            start(&mut heir).await;
            flush();
            guard.release().await.expect("held");
            flush();
            let heir = within(SOON, "the heir", heir).await.expect("passed on");
            rig.assert_held("a", &heir, 1);
            flush();
            heir.release().await.expect("held");
            rig.assert_free("a");
        }
        // And under the watchdog: no renewal finds its script.
        let guard = taken(&handle).await;
        let renewals = rig.proxy.expect_request(b"renews or checks many");
        eventually(PATIENCE, "renewed by the whole text", || {
            flush();
            renewals.count() >= 4
        })
        .await;
        rig.assert_held("a", &guard, 1);
        flush();
        assert!(handle.force_unlock("").await.expect("forced"));
    })
    .await;
}

/// One reply too many, and each request gets the answer of the one before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misplaced_replies_are_not_accepted() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let mark = rig.mark(Sent::Acquire);
        let other = rig.direct_client().await;
        let name = |n: usize| format!("lock-{n}");
        // Every other one is busy.
        let mut theirs = Vec::new();
        for n in (0..8).step_by(2) {
            theirs.push(taken(&lock_of(&other, kind, &name(n))).await);
        }
        // What waits for a connection leaves in one write.
        rig.proxy.refuse(true);
        rig.proxy.cut();
        rig.proxy.wait_for_refusals(1).await;
        rig.proxy.stray_reply_once_after_request_matching(&mark, b"*0\r\n");
        let mut attempts = Vec::new();
        for n in 0..8 {
            let mut attempt = Box::pin(rig.handle(&name(n)).try_lock());
            start(&mut attempt).await;
            attempts.push(tokio::spawn(attempt));
        }
        let accepted = rig.proxy.accepted();
        rig.proxy.refuse(false);
        for (n, attempt) in attempts.into_iter().enumerate() {
            match within(PATIENCE, "an attempt", joined(attempt)).await {
                // Too late for it, and asked for again on the next connection.
                Ok(guard) => assert_eq!(guard.is_some(), n % 2 == 1, "lock-{n}"),
                answer => drop(assert_unreachable(&answer)),
            }
        }
        // And nothing is left of them.
        for n in 0..8 {
            let free = || rig.stored(&name(n)).len() == (n + 1) % 2;
            eventually(PATIENCE, "undone", free).await;
            let guard = rig.handle(&name(n)).try_lock().await.expect("reachable again");
            assert_eq!(guard.is_some(), n % 2 == 1, "lock-{n}");
        }
        assert!(rig.proxy.accepted() >= accepted + 2, "the connection was given up");
        assert!(theirs.iter().all(|guard| !guard.is_lost()));
    })
    .await;
}

/// A renewal that gets the answer to another one does not say that the lock is held, nor that it is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_with_the_wrong_reply_is_repeated() {
    both(async |kind| {
        for stray in [&b"*2\r\n:-2\r\n:-2\r\n"[..], b":-2\r\n", b"+OK\r\n"] {
            let rig = Rig::new(kind, options().watchdog_timeout(ms(3000))).await;
            let guard = taken(&rig.handle("a")).await;
            let mark = rig.mark(Sent::Renew);
            let renewals = rig.proxy.expect_delivery(&mark);
            rig.proxy.stray_reply_once_after_request_matching(&mark, stray);
            let accepted = rig.proxy.accepted();
            renewals.wait_for(3).await;
            assert!(rig.proxy.accepted() > accepted, "the connection was given up");
            rig.assert_held("a", &guard, 1);
            guard.release().await.expect("it is held");
            rig.assert_free("a");
        }
    })
    .await;
}
