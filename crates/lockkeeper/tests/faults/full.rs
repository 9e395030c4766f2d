//! A server without free memory: holds are renewed and released, and new requests are rejected.

use lockkeeper::{AnyGuard, Client};
use testkit::RedisServer;
use tokio::time::Instant;

use crate::primitives::*;
use crate::refusals::fill;
use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_still_renews_and_releases() {
    each(&Primitive::ALL, async |primitive| {
        let set = Fixture::new(primitive, options().watchdog_timeout(ms(3000))).await;
        let held = set.proxied().held().await;
        let second = Handle::new(&set.rig.client, primitive, "b");
        set_up(&set.other, primitive, "b").await;
        let dropped = second.held().await;
        fill(set.server());
        assert_full(&set.other).await;
        if primitive.is_leased() {
            let renewals = set.proxy().expect_delivery(&set.rig.hash(primitive.renew_script()));
            // Well beyond the lease they had when the memory ran out.
            renewals.wait_for(4).await;
            assert!(!held.guard().is_lost() && !dropped.guard().is_lost());
            within(SOON, "extend", held.guard().extend(LONG)).await.expect("held");
            if primitive.is_reentrant() {
                let inner = within(SOON, "re-entry", held.guard().reenter()).await;
                let inner = inner.expect("a re-entry needs no memory to speak of");
                within(SOON, "its release", inner.release()).await.expect("held");
            }
        }
        within(SOON, "release", held.release()).await.expect("held");
        drop(dropped);
        let server = set.server();
        let released = || match primitive {
            Primitive::Permits | Primitive::Semaphore => server.cli(&["GET", "b"]).text() == "1",
            _ => server.cli(&["EXISTS", "b"]).int() == 0,
        };
        eventually(SOON, "the dropped guard is released", released).await;
        set.server().cli(&["CONFIG", "SET", "maxmemory", "0"]).ok();
        set.direct().assert_free_within(SOON).await;
    })
    .await;
}

/// The nested reader outlasts the writer: the TTL of the writer is renewed, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_still_renews_a_writer_that_reads() {
    let set = Fixture::new(Primitive::Write, options().watchdog_timeout(ms(3000))).await;
    let owner = set.rig.client.new_owner();
    let lock = set.rig.client.rw_lock("a").as_owner(&owner);
    let writer = lock.write().await.expect("free");
    let reader = lock.lease(LONG).read().await.expect("its owner writes");
    fill(set.server());
    let renewals = set.proxy().expect_delivery(&set.rig.hash(Primitive::Write.renew_script()));
    // Well beyond the lease it had when the memory ran out.
    renewals.wait_for(4).await;
    assert!(!writer.is_lost());
    let others = Handle::new(&set.other, Primitive::Read, "a");
    assert!(others.attempt().await.expect("reachable").is_none(), "it is written");
    assert!(!writer.is_lost());
    writer.release().await.expect("held");
    reader.release().await.expect("held");
    assert_eq!(pttl(set.server(), "a"), -2);
}

/// A new acquire is rejected, and the error says why.
async fn assert_full(client: &Client) {
    let said = assert_unreachable(&client.lock("new").try_lock().await);
    assert!(said.contains("OOM"), "{said}");
}

/// Requests that need no memory succeed: a count-down, the end of a wait, a downgrade.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_still_opens_latches_and_removes_waiters() {
    let server = started().await;
    let client = connect(&server.url(), options()).await;
    let other = connect(&server.url(), options()).await;
    let (opened, deleted) = (client.count_down_latch("l"), client.count_down_latch("m"));
    assert!(opened.try_set_count(2).await.expect("answered"));
    assert!(deleted.try_set_count(2).await.expect("answered"));
    let holder = other.fair_lock("f").lock().await.expect("free");
    let queued = tokio::spawn(client.fair_lock("f").lock());
    let reader = other.rw_lock("r").read().await.expect("free");
    let intends = tokio::spawn(client.rw_lock("r").write());
    let writing = client.rw_lock("w").write().await.expect("free");
    let reading = writing.read().await.expect("held");
    let exist = |key: &str| server.cli(&["EXISTS", key]).int() == 1;
    let both = || exist("redisson_lock_queue:{f}") && exist("lockkeeper_writers:{r}");
    eventually(PATIENCE, "they wait", both).await;
    fill(&server);
    assert_eq!(within(SOON, "down", opened.count_down()).await.expect("answered"), 1);
    assert_eq!(within(SOON, "down", opened.count_down()).await.expect("answered"), 0);
    assert!(within(SOON, "delete", deleted.delete()).await.expect("answered"));
    queued.abort();
    intends.abort();
    // The script would forget a waiting writer after two seconds.
    let gone = || !exist("redisson_lock_queue:{f}") && !exist("lockkeeper_writers:{r}");
    eventually(ms(1000), "they wait no longer", gone).await;
    within(SOON, "writing", writing.release()).await.expect("held");
    assert!(!reading.is_lost());
    for guard in [AnyGuard::from(holder), reader.into(), reading.into()] {
        within(SOON, "release", guard.release()).await.expect("held");
    }
    assert!(!exist("f") && !exist("r") && !exist("w"));
}

/// Renewals succeed all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_at_a_full_server_is_refused_though_renewals_succeed() {
    both(async |kind| {
        let server = RedisServer::start();
        // Renewed every second.
        let patience = ms(6000);
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

/// A release with a waiter in the same client is a handoff.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_still_hands_a_lock_off() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let handle = rig.handle("a");
        let handed = rig.proxy.expect_request(&rig.mark(Sent::HandOff));
        for _ in 0..100 {
            rig.server.cli(&["CONFIG", "SET", "maxmemory", "0"]).ok();
            // Before the acquire: a hold of more than 10 ms is released and not handed off.
            rig.server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).ok();
            let mut full = rig.server.connection();
            let first = taken(&handle).await;
            let mut second = Box::pin(handle.lock());
            start(&mut second).await;
            full.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
            let released = within(SOON, "release", first.release()).await;
            released.expect("held");
            if handed.count() == 0 {
                drop(second);
                continue;
            }
            let second = within(SOON, "the successor", second).await;
            let second = second.expect("passed on");
            rig.assert_held("a", &second, 1);
            within(SOON, "release", second.release()).await.expect("held");
            rig.assert_free("a");
            return;
        }
        panic!("nothing was ever handed over");
    })
    .await;
}
