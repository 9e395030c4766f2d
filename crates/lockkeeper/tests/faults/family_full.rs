//! A server that is full, and users who may not do everything: what is held is kept and given back.

use lockkeeper::{AnyGuard, Client, Error};
use testkit::RedisServer;
use tokio::time::Instant;

use crate::family::*;
use crate::refusals::fill;
use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_still_renews_and_gives_back() {
    each(&Sort::ALL, async |sort| {
        let set = Set::new(sort, options().watchdog_timeout(ms(3000))).await;
        let held = set.mine().taken().await;
        let other = Thing::new(&set.rig.client, sort, "b");
        set_up(&set.stranger, sort, "b").await;
        let dropped = other.taken().await;
        fill(set.server());
        // It is full: whoever wants something new is told so.
        set_up_refused(&set.stranger).await;
        if sort.is_leased() {
            let renewals = set.proxy().expect_delivery(&set.rig.hash(sort.renewal()));
            // Well beyond the lease they had when the memory ran out.
            renewals.wait_for(4).await;
            assert!(!held.guard().is_lost() && !dropped.guard().is_lost());
            within(SOON, "extend", held.guard().extend(LONG)).await.expect("held");
            if !matches!(sort, Sort::Permits) {
                let inner = within(SOON, "re-entry", held.guard().reenter()).await;
                let inner = inner.expect("a re-entry needs no memory to speak of");
                within(SOON, "its release", inner.release()).await.expect("held");
            }
        }
        within(SOON, "release", held.release()).await.expect("held");
        drop(dropped);
        set.server().cli(&["CONFIG", "SET", "maxmemory", "0"]).ok();
        set.strangers().assert_free_within(SOON).await;
        Thing::new(&set.stranger, sort, "b").assert_free_within(SOON).await;
    })
    .await;
}

/// Where a reader nested in it outlasts it, the writer's own end is renewed, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_still_renews_a_writer_that_reads() {
    let set = Set::new(Sort::Write, options().watchdog_timeout(ms(3000))).await;
    let owner = set.rig.client.new_owner();
    let lock = set.rig.client.rw_lock("a").as_owner(&owner);
    let writer = lock.write().await.expect("free");
    let reader = lock.lease(LONG).read().await.expect("its owner writes");
    fill(set.server());
    let renewals = set.proxy().expect_delivery(&set.rig.hash(Sort::Write.renewal()));
    // Well beyond the lease it had when the memory ran out.
    renewals.wait_for(4).await;
    assert!(!writer.is_lost());
    let others = Thing::new(&set.stranger, Sort::Read, "a");
    assert!(others.attempt().await.expect("reachable").is_none(), "it is written");
    assert!(!writer.is_lost());
    writer.release().await.expect("held");
    reader.release().await.expect("held");
    assert_eq!(pttl(set.server(), "a"), -2);
}

async fn set_up_refused(client: &Client) {
    let said = assert_unreachable(&client.lock("new").try_lock().await);
    assert!(said.contains("OOM"), "{said}");
}

/// What only gives back is done: counting down, giving up a place, going from writing to reading.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_still_opens_latches_and_lets_waiters_go() {
    let server = started().await;
    let client = connect(&server.url(), options()).await;
    let stranger = connect(&server.url(), options()).await;
    let (opened, deleted) = (client.count_down_latch("l"), client.count_down_latch("m"));
    assert!(opened.try_set_count(2).await.expect("told"));
    assert!(deleted.try_set_count(2).await.expect("told"));
    let holder = stranger.fair_lock("f").lock().await.expect("free");
    let queued = tokio::spawn(client.fair_lock("f").lock());
    let reader = stranger.rw_lock("r").read().await.expect("free");
    let intends = tokio::spawn(client.rw_lock("r").write());
    let writing = client.rw_lock("w").write().await.expect("free");
    let reading = writing.read().await.expect("held");
    let exist = |key: &str| server.cli(&["EXISTS", key]).int() == 1;
    let both = || exist("redisson_lock_queue:{f}") && exist("lockkeeper_writers:{r}");
    eventually(PATIENCE, "they wait", both).await;
    fill(&server);
    assert_eq!(within(SOON, "down", opened.count_down()).await.expect("told"), 1);
    assert_eq!(within(SOON, "down", opened.count_down()).await.expect("told"), 0);
    assert!(within(SOON, "delete", deleted.delete()).await.expect("told"));
    queued.abort();
    intends.abort();
    // The word of a writer that waits would be forgotten after two seconds.
    let gone = || !exist("redisson_lock_queue:{f}") && !exist("lockkeeper_writers:{r}");
    eventually(ms(1000), "they wait no longer", gone).await;
    within(SOON, "writing", writing.release()).await.expect("held");
    assert!(!reading.is_lost());
    for guard in [AnyGuard::from(holder), reader.into(), reading.into()] {
        within(SOON, "release", guard.release()).await.expect("held");
    }
    assert!(!exist("f") && !exist("r") && !exist("w"));
}

async fn with_user(rights: &[&str]) -> (RedisServer, String) {
    let server = started().await;
    let mut command = vec!["ACL", "SETUSER", "u", "reset", "on", ">p", "~*"];
    command.extend(rights);
    server.cli(&command).ok();
    let url = server.url_with("u", "p");
    (server, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_channels_everything_works_and_its_waiters_poll() {
    each(&Sort::ALL, async |sort| {
        let (server, url) = with_user(&["+@all", "resetchannels"]).await;
        let (one, two) = (connect(&url, options()).await, connect(&url, options()).await);
        set_up(&one, sort, "a").await;
        for _ in 0..2 {
            let blocked = if sort == Sort::Read { Sort::Write } else { sort };
            let held = Thing::new(&one, blocked, "a").taken().await;
            let asked = || server.commandstats("evalsha") + server.commandstats("eval");
            let (before, started) = (asked(), Instant::now());
            let waiter = tokio::spawn(Thing::new(&two, sort, "a").take());
            eventually(PATIENCE, "polling", || asked() >= before + 10).await;
            // Every 50 to 100 ms, but for who spins.
            assert!(started.elapsed() > ms(200) || sort == Sort::Spin, "{sort:?} hammers");
            held.release().await.expect("it needs no channel");
            let held = within(SOON, "the waiter", joined(waiter)).await.expect("freed");
            held.release().await.expect("held");
            assert_eq!(holds(&server, sort), Vec::<String>::new(), "{sort:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_channels_a_latch_is_waited_for_by_looking() {
    let (server, url) = with_user(&["+@all", "resetchannels"]).await;
    let (one, two) = (connect(&url, options()).await, connect(&url, options()).await);
    let (latch, waits) = (one.count_down_latch("a"), two.count_down_latch("a"));
    assert!(latch.try_set_count(1).await.expect("told"));
    let asked = || server.commandstats("evalsha") + server.commandstats("eval");
    let (before, started) = (asked(), Instant::now());
    let waiter = tokio::spawn(async move { waits.wait().await });
    eventually(PATIENCE, "polling", || asked() >= before + 10).await;
    assert!(started.elapsed() > ms(200), "it hammers");
    assert_eq!(latch.count_down().await.expect("it needs no channel"), 0);
    within(SOON, "the waiter", joined(waiter)).await.expect("opened");
}

/// A lock without an end must not stay, nor half of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_command_inside_a_script_it_is_denied_and_nothing_is_left() {
    for command in ["-pexpire", "-hset"] {
        each(&Sort::ALL, move |sort| async move {
            let (server, url) = with_user(&["&*", "+@all", command]).await;
            let stranger = connect(&server.url(), options()).await;
            set_up(&stranger, sort, "a").await;
            let client = connect(&url, options()).await;
            let answer = Thing::new(&client, sort, "a").attempt().await;
            // Permits with ids need neither of them.
            if sort != Sort::Permits {
                assert!(matches!(answer, Err(Error::Denied { .. })), "{sort:?}: {answer:?}");
            } else if let Ok(Some(held)) = answer {
                held.release().await.expect("held");
            }
            assert_eq!(holds(&server, sort), Vec::<String>::new(), "{sort:?} {command}");
        })
        .await;
    }
}
