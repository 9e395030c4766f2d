//! `RLock` and our `Lock` of one name are one lock.

use std::env;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockkeeper::{ClientOptions, Error, LockGuard, LostReason, Ttl};
use testkit::{ChildProcess, JavaPeer, RedisServer, Redisson};

use crate::support::*;

on_versions! { [newest v3_27 v3_14]
    a_holder_excludes_the_other_side
    a_release_wakes_the_waiter_on_the_other_side
    the_other_side_acquires_when_a_lease_expires
    a_java_lock_is_renewed_while_rust_waits_and_expires_after_its_process
    a_rust_lock_is_renewed_while_java_waits_and_expires_after_its_process
    a_release_without_a_hold_is_rejected
    holds_and_times_are_seen_from_the_other_side
    a_shorter_reentry_shortens_a_java_lease_and_not_ours
    a_force_release_by_rust_frees_a_java_lock_and_wakes_java
    a_force_release_by_java_frees_a_rust_lock_and_wakes_rust
    a_waiter_that_times_out_consumes_no_wake_up_of_the_other_side
    leave_for_excludes_java_until_it_expires
}

on_versions! { [newest]
    a_non_reentrant_lock_is_the_same_lock
}

/// The lease of watchdogs that are to be seen at work, on either side: renewed every two seconds.
const QUICK: Duration = Duration::from_secs(6);

/// Longer than a lease of a [`QUICK`] watchdog.
const BEYOND: Duration = Duration::from_secs(8);

fn quick() -> ClientOptions {
    ClientOptions::new().watchdog_timeout(QUICK)
}

/// When the server will end a lock, unless it is renewed.
fn ends(server: &RedisServer, name: &str) -> SystemTime {
    let millis = server.cli(&["PEXPIRETIME", name]).int();
    UNIX_EPOCH + ms(millis.try_into().expect("it has an end"))
}

/// The holder as stored: the only field and its value.
fn stored(name: &str) -> (String, String) {
    let hash = server().cli(&["HGETALL", name]);
    match hash.array() {
        [owner, count] => (owner.text().to_owned(), count.text().to_owned()),
        other => panic!("one owner is to hold {name}: {other:?}"),
    }
}

async fn a_holder_excludes_the_other_side(redisson: Redisson) {
    let Stage { client, name, one, two, .. } = Stage::new(redisson, "excludes").await;
    let (ours, theirs) = (client.lock(&name), one.lock(&name));

    let guard = ours.lock().await.unwrap();
    assert_eq!(stored(&name), (guard.owner_id().to_string(), "1".to_owned()));
    assert!(!theirs.try_lock().await.ok());
    let refused = theirs.try_lock_within(SHORT, None).await;
    // Java counts in whole milliseconds.
    assert!(refused.took() + ms(2) >= SHORT, "{:?}", refused.took());
    assert!(!refused.ok());
    assert!(!theirs.try_lock_within(SHORT, Some(LONG)).await.ok());
    assert!(theirs.is_locked().await.ok() && !theirs.is_held().await.ok());
    assert_eq!(stored(&name), (guard.owner_id().to_string(), "1".to_owned()));
    guard.release().await.unwrap();
    assert!(!theirs.is_locked().await.ok());

    assert!(theirs.try_lock().await.ok());
    assert_eq!(stored(&name), (one.owner(), "1".to_owned()));
    assert!(ours.try_lock().await.unwrap().is_none());
    assert!(ours.try_lock_for(IN_VAIN).await.unwrap().is_none());
    assert!(ours.is_locked().await.unwrap());
    assert!(!two.lock(&name).try_lock().await.ok());
    assert_eq!(stored(&name), (one.owner(), "1".to_owned()));
    theirs.unlock().await.ok();
    assert!(!ours.is_locked().await.unwrap());
    ours.try_lock().await.unwrap().expect("it is free").release().await.unwrap();
}

/// Both ways, several times: a waiter may be quick enough once to need no wake-up.
async fn a_release_wakes_the_waiter_on_the_other_side(redisson: Redisson) {
    const ROUNDS: usize = 10;
    let stage = Stage::new(redisson, "wakes").await;
    let Stage { client, name, one, .. } = &stage;
    let channel = lock_channel(name);
    let (ours, theirs) = (client.lock(name), one.lock(name));
    let (mut to_rust, mut to_java) = (Handovers::default(), Handovers::default());
    theirs.lock().await.ok();
    for round in 0..=ROUNDS {
        listened_to(server(), &channel, 0).await;
        let waiter = tokio::spawn({
            let ours = ours.clone();
            async move { (ours.lock().await.unwrap(), Instant::now()) }
        });
        listened_to(server(), &channel, 1).await;
        let release = theirs.unlock().await;
        let (guard, granted) = joined(waiter).await;

        listened_to(server(), &channel, 0).await;
        let waiter = theirs.lock();
        listened_to(server(), &channel, 1).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        let grant = waiter.await;
        // The first round of a JVM is spent on loading classes, and says nothing.
        if round > 0 {
            to_rust.record(release.started, granted);
            to_java.record(released, grant.ended);
        }
        release.ok();
        grant.ok();
    }
    theirs.unlock().await.ok();
    to_rust.show(&format!("{}: Java's unlock to Rust's lock", redisson.profile()));
    to_java.show(&format!("{}: Rust's release to Java's lock", redisson.profile()));
}

async fn the_other_side_acquires_when_a_lease_expires(redisson: Redisson) {
    const LEASE: Duration = Duration::from_secs(3);
    let Stage { client, name, one, two, .. } = Stage::new(redisson, "lease").await;
    let ours = client.lock(&name);

    one.lock(&name).lock_for(LEASE).await.ok();
    let end = ends(server(), &name);
    let guard = within(PATIENCE, "Java's lease ends", ours.lease(LEASE).lock()).await.unwrap();
    assert_had_after(end, SystemTime::now());
    assert!(one.lock(&name).unlock().await.err().is_not_owner());

    let end = ends(server(), &name);
    let grant = two.lock(&name).lock().await;
    assert_had_after(end, grant.wall);
    grant.ok();
    assert!(guard.is_lost());
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert_not_held(guard, &two.owner()).await;
    assert!(two.lock(&name).is_held().await.ok());
    two.lock(&name).unlock().await.ok();
}

/// The release of a lock that Java has now says so and changes nothing.
async fn assert_not_held(guard: LockGuard, owner: &str) {
    match guard.release().await {
        Err(Error::NotHeld { holder, .. }) => assert_eq!(holder.unwrap().id, owner),
        other => panic!("expected NotHeld, got {other:?}"),
    }
}

async fn a_java_lock_is_renewed_while_rust_waits_and_expires_after_its_process(redisson: Redisson) {
    let server = RedisServer::start();
    let peer = JavaPeer::builder(redisson).watchdog(QUICK).start(&server.url());
    let lock = connect(&server, ClientOptions::new()).await.lock("x");
    let one = peer.on("one");
    one.lock("x").lock().await.ok();
    let owner = one.owner();
    assert!(lock.try_lock_for(BEYOND).await.unwrap().is_none(), "it was not renewed");
    assert_eq!(lock.inspect().await.unwrap().holders.remove(0).id, owner);

    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { (lock.lock().await.unwrap(), SystemTime::now()) }
    });
    listened_to(&server, &lock_channel("x"), 1).await;
    peer.kill();
    let end = ends(&server, "x");
    let (guard, granted) = joined(waiter).await;
    assert_had_after(end, granted);
    assert_eq!(lock.inspect().await.unwrap().holders.remove(0).id, guard.owner_id().to_string());
}

/// Set in a process that is to hold a lock until it is killed: the URL of the server.
const HOLD: &str = "INTEROP_HOLD";

async fn a_rust_lock_is_renewed_while_java_waits_and_expires_after_its_process(redisson: Redisson) {
    const TEST: &str = "a_rust_lock_is_renewed_while_java_waits_and_expires_after_its_process";
    let name = format!("process:{}", redisson.profile());
    if let Ok(url) = env::var(HOLD) {
        let client = lockkeeper::Client::connect_with(&url, quick()).await.unwrap();
        let _guard = client.lock(&name).lock().await.unwrap();
        println!("\nheld");
        tokio::task::spawn_blocking(|| io::stdin().read_line(&mut String::new()))
            .await
            .unwrap()
            .unwrap();
        return;
    }
    let peer = peer(redisson);
    let version = match redisson {
        Redisson::Newest => "newest",
        Redisson::V3_27 => "v3_27",
        Redisson::V3_14 => "v3_14",
    };
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--nocapture", "--exact", &format!("lock::{TEST}::{version}")]);
    command.env(HOLD, server().url());
    let holder = ChildProcess::from_command(command);
    holder.expect_line("held");
    let lock = peer.on(&name).lock(&name);
    let refused = lock.try_lock_within(BEYOND, None).await;
    assert!(!refused.ok(), "it was not renewed");

    let waiter = lock.lock();
    listened_to(server(), &lock_channel(&name), 1).await;
    holder.kill();
    let end = ends(server(), &name);
    let grant = waiter.await;
    assert_had_after(end, grant.wall);
    grant.ok();
    lock.unlock().await.ok();
}

async fn a_release_without_a_hold_is_rejected(redisson: Redisson) {
    let stage = Stage::with(redisson, "not owner", quick()).await;
    let Stage { client, name, one, .. } = &stage;
    let (ours, theirs) = (client.lock(name), one.lock(name));

    assert!(theirs.unlock().await.err().is_not_owner(), "nobody holds it");
    let guard = ours.lock().await.unwrap();
    assert!(theirs.unlock().await.err().is_not_owner());
    assert_eq!(stored(name), (guard.owner_id().to_string(), "1".to_owned()));
    guard.release().await.unwrap();

    let guard = ours.lease(LONG).lock().await.unwrap();
    server().cli(&["DEL", name]).ok();
    theirs.lock().await.ok();
    assert_not_held(guard, &one.owner()).await;
    assert_eq!(stored(name), (one.owner(), "1".to_owned()));
    theirs.unlock().await.ok();
}

async fn holds_and_times_are_seen_from_the_other_side(redisson: Redisson) {
    let Stage { client, name, one, .. } = Stage::new(redisson, "seen").await;
    let (ours, theirs) = (client.lock(&name), one.lock(&name));
    assert_eq!(ours.inspect().await.unwrap().ttl, None);
    assert_eq!(theirs.remaining().await.ok(), -2);

    for count in 1..=3 {
        theirs.lock().await.ok();
        let holder = ours.inspect().await.unwrap().holders.remove(0);
        assert_eq!((holder.id, holder.hold_count), (one.owner(), count));
        assert!(!holder.shared && holder.client.is_none());
    }
    assert_remaining(ours.inspect().await.unwrap().ttl, ms(20_000), ms(30_000));
    theirs.unlock().await.ok();
    theirs.lock_for(LONG).await.ok();
    assert_remaining(ours.inspect().await.unwrap().ttl, ms(50_000), LONG);
    for count in (0..3).rev() {
        theirs.unlock().await.ok();
        let holder = ours.inspect().await.unwrap().holders.pop();
        assert_eq!(holder.map_or(0, |holder| holder.hold_count), count);
    }

    let owner = client.new_owner();
    let first = ours.as_owner(&owner).lock().await.unwrap();
    let second = ours.as_owner(&owner).lock().await.unwrap();
    let third = first.reenter().await.unwrap();
    assert_eq!(stored(&name), (first.owner_id().to_string(), "3".to_owned()));
    assert!(theirs.is_locked().await.ok() && !theirs.is_held().await.ok());
    assert_eq!(theirs.hold_count().await.ok(), 0, "Java's own");
    let left = theirs.remaining().await.ok();
    assert!((20_000..=30_000).contains(&left), "{left}");
    for guard in [second, first] {
        guard.release().await.unwrap();
        assert!(theirs.is_locked().await.ok() && !theirs.try_lock().await.ok());
    }
    third.release().await.unwrap();
    assert_eq!(theirs.remaining().await.ok(), -2);

    let leased = ours.lease(LONG).lock().await.unwrap();
    let left = theirs.remaining().await.ok();
    assert!((50_000..=60_000).contains(&left), "{left}");
    leased.release().await.unwrap();
}

async fn a_shorter_reentry_shortens_a_java_lease_and_not_ours(redisson: Redisson) {
    let Stage { client, name, one, .. } = Stage::new(redisson, "shorter").await;
    let (ours, theirs) = (client.lock(&name), one.lock(&name));
    theirs.lock_for(LONG).await.ok();
    theirs.lock_for(LONG / 2).await.ok();
    assert_remaining(ours.inspect().await.unwrap().ttl, LONG / 4, LONG / 2);
    theirs.unlock().await.ok();
    theirs.unlock().await.ok();

    let ours = ours.as_owner(&client.new_owner());
    let guard = ours.lease(LONG).lock().await.unwrap();
    let again = ours.lease(LONG / 2).lock().await.unwrap();
    let left = theirs.remaining().await.ok();
    assert!((30_001..=60_000).contains(&left), "{left}");
    again.release().await.unwrap();
    guard.release().await.unwrap();
}

#[track_caller]
fn assert_remaining(remaining: Option<Ttl>, least: Duration, most: Duration) {
    match remaining {
        Some(Ttl::For(left)) if (least..=most).contains(&left) => {}
        other => panic!("expected {least:?} to {most:?}, got {other:?}"),
    }
}

async fn a_force_release_by_rust_frees_a_java_lock_and_wakes_java(redisson: Redisson) {
    let Stage { client, name, one, two, .. } = Stage::new(redisson, "forced by rust").await;
    let ours = client.lock(&name);
    assert!(!ours.force_unlock("").await.unwrap(), "nobody held it");
    one.lock(&name).lock().await.ok();
    one.lock(&name).lock().await.ok();
    let waiter = two.lock(&name).lock();
    listened_to(server(), &lock_channel(&name), 1).await;
    let forced = Instant::now();
    assert!(ours.force_unlock("maintenance").await.unwrap());
    let grant = waiter.await;
    let took = awake_between(forced, grant.ended);
    assert!(took < SOON, "{took:?}");
    grant.ok();
    assert!(!one.lock(&name).is_held().await.ok());
    assert!(one.lock(&name).unlock().await.err().is_not_owner());
    two.lock(&name).unlock().await.ok();
}

async fn a_force_release_by_java_frees_a_rust_lock_and_wakes_rust(redisson: Redisson) {
    let stage = Stage::with(redisson, "forced by java", quick()).await;
    let Stage { client, name, one, .. } = &stage;
    let theirs = one.lock(name);
    assert!(!theirs.force_unlock().await.ok(), "nobody held it");

    // Its holder finds out when it looks, which it does as often as it renews.
    let guard = client.lock(name).lock().await.unwrap();
    assert!(theirs.force_unlock().await.ok());
    assert!(!theirs.is_locked().await.ok());
    let lost = within(PATIENCE, "the holder is told", guard.lost()).await;
    assert_eq!(lost, LostReason::Deleted);
    assert!(matches!(guard.release().await, Err(Error::NotHeld { .. })));

    // With another client: local waiters send no requests.
    let guard = client.lock(name).lock().await.unwrap();
    let other = connect(server(), ClientOptions::new()).await.lock(name);
    let waiter = tokio::spawn(async move { (other.lock().await.unwrap(), Instant::now()) });
    listened_to(server(), &lock_channel(name), 1).await;
    let forced = theirs.force_unlock().await;
    let (heir, granted) = joined(waiter).await;
    let took = awake_between(forced.started, granted);
    assert!(took < SOON, "{took:?}");
    assert!(forced.ok());
    let lost = within(PATIENCE, "the holder is told", guard.lost()).await;
    assert_eq!(lost, LostReason::Taken);
    heir.release().await.unwrap();
}

async fn a_waiter_that_times_out_consumes_no_wake_up_of_the_other_side(redisson: Redisson) {
    let Stage { client, name, one, two, .. } = Stage::new(redisson, "gives up").await;
    let channel = lock_channel(&name);
    let ours = client.lock(&name);

    one.lock(&name).lock().await.ok();
    let given_up = tokio::spawn({
        let ours = ours.clone();
        async move { ours.lock().await }
    });
    let waiter = two.lock(&name).lock();
    listened_to(server(), &channel, 2).await;
    given_up.abort();
    listened_to(server(), &channel, 1).await;
    let release = one.lock(&name).unlock().await;
    let grant = waiter.await;
    assert!(awake_between(release.started, grant.ended) < SOON);
    release.ok();
    grant.ok();

    // Two holds, now: the other thread waits and is interrupted.
    let given_up = one.lock(&name).lock_interruptibly();
    let waiter = tokio::spawn(async move { (ours.lock().await.unwrap(), Instant::now()) });
    listened_to(server(), &channel, 2).await;
    one.interrupt();
    assert!(given_up.await.err().is_interrupted());
    let release = two.lock(&name).unlock().await;
    let (guard, granted) = joined(waiter).await;
    assert!(awake_between(release.started, granted) < SOON);
    release.ok();
    guard.release().await.unwrap();
}

async fn leave_for_excludes_java_until_it_expires(redisson: Redisson) {
    let Stage { client, name, one, .. } = Stage::new(redisson, "left").await;
    let guard = client.lock(&name).lock().await.unwrap();
    guard.leave_for(ms(2_000)).await.unwrap();
    let end = ends(server(), &name);
    assert!(!one.lock(&name).try_lock().await.ok());
    let grant = one.lock(&name).lock().await;
    assert_had_after(end, grant.wall);
    grant.ok();
    one.lock(&name).unlock().await.ok();
}

async fn a_non_reentrant_lock_is_the_same_lock(redisson: Redisson) {
    let Stage { client, name, one, .. } = Stage::new(redisson, "non-reentrant").await;
    let channel = lock_channel(&name);
    let (ours, theirs) = (client.lock(&name).non_reentrant(), one.non_reentrant(&name));
    let owner = client.new_owner();

    theirs.lock().await.ok();
    let waiter = tokio::spawn({
        let ours = ours.as_owner(&owner);
        async move { (ours.lock().await.unwrap(), Instant::now()) }
    });
    listened_to(server(), &channel, 1).await;
    let release = theirs.unlock().await;
    let (guard, granted) = joined(waiter).await;
    assert!(awake_between(release.started, granted) < SOON);
    release.ok();
    assert_eq!(stored(&name), (guard.owner_id().to_string(), "1".to_owned()));

    let twice = ours.as_owner(&owner).lock().await;
    assert!(matches!(twice, Err(Error::Invalid { .. })), "{twice:?}");
    assert!(!theirs.try_lock().await.ok());
    listened_to(server(), &channel, 0).await;
    let waiter = theirs.lock();
    listened_to(server(), &channel, 1).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let grant = waiter.await;
    assert!(awake_between(released, grant.ended) < SOON);
    grant.ok();
    assert!(theirs.try_lock().await.err().message().contains("non-reentrant"));
    assert!(ours.try_lock().await.unwrap().is_none());
    theirs.unlock().await.ok();
    assert!(!client.lock(&name).is_locked().await.unwrap());
}
