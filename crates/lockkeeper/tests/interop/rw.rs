//! The read/write lock.
//!
//! Redisson publishes when the last reader or the writer leaves, so waiters of either side are told within
//! milliseconds. It says nothing when a writer goes on as a reader: there ours find out within the
//! re-check bound of five seconds, and Java's when the lease ends. Ours do say it.

use std::time::{Duration, Instant};

use lockkeeper::{ClientOptions, Error, LostReason, Ttl};
use testkit::java::{Answer, Lock};
use testkit::{JavaPeer, RedisServer, Redisson, Stopwatch};
use tokio::task::JoinHandle;

use crate::killed_process::killed_process;
use crate::support::*;

on_versions! { [newest v3_27]
    readers_share_and_a_writer_excludes_on_both_sides
    holds_are_visible_from_the_other_side
    a_downgrade_wakes_our_readers_and_java_readers_recheck
    who_writes_may_read
    our_waiting_writer_blocks_only_our_readers
    a_force_release_is_detected_on_the_other_side
    one_name_is_one_kind_to_us_and_not_to_java
    a_lease_that_expires_frees_the_lock
    our_dead_reader_expires_while_java_reads
    a_hold_without_a_lease_is_renewed_until_its_process_dies
    nothing_is_lost_under_stress
}

on_versions! { [newest v3_27]
    our_reader_outlives_a_java_reader
}

on_versions! { [v3_27]
    our_reader_detects_a_ttl_shortened_by_a_java_renewal
}

/// The longest re-check interval of our waiters.
const RECHECK: Duration = Duration::from_secs(5);

fn channel(name: &str) -> String {
    format!("redisson_rwlock:{{{name}}}")
}

fn exists(name: &str) -> bool {
    server().cli(&["EXISTS", name]).int() == 1
}

/// When the lock ends by itself: not before this.
fn end(server: &RedisServer, name: &str) -> Instant {
    let asked = Instant::now();
    let left = server.cli(&["PTTL", name]).int();
    asked + Duration::from_millis(left.try_into().expect("it has an end"))
}

/// Waits in the background, and says since when it has the lock.
pub(crate) fn waits<G: Send + 'static>(
    request: impl Future<Output = lockkeeper::Result<G>> + Send + 'static,
) -> JoinHandle<(G, Instant)> {
    tokio::spawn(async move { (request.await.unwrap(), Instant::now()) })
}

fn ended<T>(answer: Answer<T>) -> Instant {
    let ended = answer.ended;
    answer.ok();
    ended
}

/// When it began.
async fn java_unlocks(lock: &Lock<'_>) -> Instant {
    let answer = lock.unlock().await;
    let begun = answer.started;
    answer.ok();
    begun
}

async fn readers_share_and_a_writer_excludes_on_both_sides(redisson: Redisson) {
    let stage = Stage::new(redisson, "rw, exclusion").await;
    let (lock, name) = (stage.client.rw_lock(&stage.name), stage.name.as_str());
    let (read, write) = (stage.one.read(name), stage.one.write(name));

    let reader = lock.lease(LONG).read().await.unwrap();
    read.lock().ok();
    assert!(stage.two.read(name).try_lock().ok());
    let third = lock.try_read().await.unwrap().expect("readers share");
    assert!(lock.try_write().await.unwrap().is_none());
    assert!(!write.try_lock().ok());
    // The remaining readers block writers.
    reader.release().await.unwrap();
    read.unlock().ok();
    assert!(lock.try_write().await.unwrap().is_none());
    third.release().await.unwrap();
    assert!(lock.try_write().await.unwrap().is_none(), "Java still reads");
    stage.two.read(name).unlock().ok();
    assert!(!exists(name));

    let reader = lock.lease(LONG).read().await.unwrap();
    read.lock().ok();
    read.unlock().ok();
    assert!(!write.try_lock().ok(), "ours still reads");
    assert!(!write.try_lock_within(SHORT, Some(LONG)).ok());
    reader.release().await.unwrap();

    let writer = lock.lease(LONG).write().await.unwrap();
    assert!(!read.try_lock().ok() && !write.try_lock().ok());
    assert!(read.unlock().err().is_not_owner());
    assert!(write.unlock().err().is_not_owner());
    writer.release().await.unwrap();
    write.lock().ok();
    assert!(lock.try_read().await.unwrap().is_none());
    assert!(lock.try_write_for(IN_VAIN).await.unwrap().is_none());
    assert!(stage.two.write(name).unlock().err().is_not_owner());
    write.unlock().ok();
    assert!(lock.try_write().await.unwrap().is_some());
}

async fn holds_are_visible_from_the_other_side(redisson: Redisson) {
    let stage = Stage::new(redisson, "rw, counts").await;
    let (lock, name) = (stage.client.rw_lock(&stage.name), stage.name.as_str());
    let (read, write) = (stage.one.read(name), stage.one.write(name));

    let owner = stage.client.new_owner();
    let reader = lock.as_owner(&owner).lease(LONG).read().await.unwrap();
    let again = lock.as_owner(&owner).lease(LONG).read().await.unwrap();
    assert!(read.is_locked().ok() && !write.is_locked().ok() && !read.is_held().ok());
    assert_eq!(read.hold_count().ok(), 0);
    assert!((30_001..=60_000).contains(&read.remaining().ok()));
    assert_eq!(server().cli(&["HGET", name, &reader.owner_id().to_string()]).int(), 2);
    read.lock_for(ms(10_000)).ok();
    read.lock_for(ms(10_000)).ok();
    assert!((30_001..=60_000).contains(&read.remaining().ok()), "the longest counts");
    let mut holders = lock.inspect().await.unwrap().holders;
    holders.sort_by_key(|holder| holder.id != stage.one.owner());
    assert_eq!(holders.len(), 2);
    assert!(holders.iter().all(|holder| holder.shared && holder.hold_count == 2));
    assert_eq!(holders[0].id, stage.one.owner());
    assert_eq!(holders[1].id, reader.owner_id().to_string());
    assert!(lock.reader().is_locked().await.unwrap() && !lock.writer().is_locked().await.unwrap());
    // What is left to live is what the last of them has.
    again.release().await.unwrap();
    reader.release().await.unwrap();
    let Some(Ttl::For(left)) = lock.inspect().await.unwrap().ttl else { panic!("it has an end") };
    assert!(left > ms(1_000) && left <= ms(10_000), "{left:?}");
    read.unlock().ok();
    read.unlock().ok();

    let writer = lock.lease(LONG).write().await.unwrap();
    assert!(write.is_locked().ok() && !read.is_locked().ok() && !write.is_held().ok());
    assert!((30_001..=60_000).contains(&write.remaining().ok()));
    writer.release().await.unwrap();
    write.lock_for(LONG).ok();
    assert!(lock.writer().is_locked().await.unwrap() && !lock.reader().is_locked().await.unwrap());
    let [holder] = &lock.inspect().await.unwrap().holders[..] else { panic!("one holds it") };
    assert_eq!((&holder.id, holder.hold_count, holder.shared), (&stage.one.owner(), 1, false));
    write.unlock().ok();
    assert!(!exists(name));
}

async fn a_downgrade_wakes_our_readers_and_java_readers_recheck(redisson: Redisson) {
    let stage = Stage::new(redisson, "rw, downgrade").await;
    let (lock, name) = (stage.client.rw_lock(&stage.name), stage.name.as_str());
    let (read, write) = (stage.one.read(name), stage.one.write(name));

    let writer = lock.lease(LONG).write().await.unwrap();
    let java = read.lock();
    listened_to(server(), &channel(name), 1).await;
    assert!(java.answer_within(SHORT).is_none());
    let released = Instant::now();
    let reader = writer.downgrade().await.unwrap();
    let granted = ended(java.await);
    assert!(awake_between(released, granted) < SOON);
    assert!(!stage.two.write(name).try_lock().ok(), "both read");
    reader.release().await.unwrap();
    read.unlock().ok();

    // Redisson publishes nothing.
    write.lock_for(LONG).ok();
    read.lock_for(LONG).ok();
    let ours = waits(lock.read());
    listened_to(server(), &channel(name), 1).await;
    let released = java_unlocks(&write).await;
    let (guard, granted) = joined(ours).await;
    let took = awake_between(released, granted);
    println!("{name}: found out after {took:.1?}");
    assert!(took < RECHECK + SOON, "{took:?}");
    guard.release().await.unwrap();
    read.unlock().ok();
    assert!(!exists(name));
}

async fn who_writes_may_read(redisson: Redisson) {
    let stage = Stage::new(redisson, "rw, nested").await;
    let (lock, name) = (stage.client.rw_lock(&stage.name), stage.name.as_str());
    let (read, write) = (stage.one.read(name), stage.one.write(name));

    let writer = lock.lease(LONG).write().await.unwrap();
    let nested = writer.read().await.unwrap();
    assert!(!read.try_lock().ok(), "it still writes");
    writer.release().await.unwrap();
    assert!(read.try_lock().ok(), "it only reads");
    assert!(!stage.two.write(name).try_lock().ok());
    read.unlock().ok();
    nested.release().await.unwrap();
    assert!(!exists(name));

    write.lock().ok();
    read.lock().ok();
    assert!(lock.try_read().await.unwrap().is_none(), "it still writes");
    assert_eq!(lock.inspect().await.unwrap().holders.len(), 2);
    write.unlock().ok();
    let reader = lock.try_read().await.unwrap().expect("it only reads");
    let refused = reader.try_upgrade().await.unwrap_err();
    assert!(refused.error().is_none(), "Java reads, too");
    let reader = refused.into_guard();
    assert!(lock.try_write().await.unwrap().is_none());
    read.unlock().ok();
    let upgraded = reader.try_upgrade().await.expect("the only reader");
    assert!(!read.try_lock().ok());
    upgraded.downgrade().await.unwrap().release().await.unwrap();
    assert!(!exists(name));
}

async fn our_waiting_writer_blocks_only_our_readers(redisson: Redisson) {
    let stage = Stage::new(redisson, "rw, preference").await;
    let (lock, name) = (stage.client.rw_lock(&stage.name), stage.name.as_str());
    let other = connect(server(), ClientOptions::new()).await.rw_lock(name);
    let (one, two) = (stage.one.read(name), stage.two.read(name));
    one.lock().ok();
    let writer = waits(lock.write());
    listened_to(server(), &channel(name), 1).await;
    assert!(other.try_read().await.unwrap().is_none());
    assert!(two.try_lock().ok(), "Java's readers do not know of it");
    one.unlock().ok();
    assert!(!writer.is_finished());
    two.unlock().ok();
    within(SOON, "the writer", joined(writer)).await.0.release().await.unwrap();
}

async fn a_force_release_is_detected_on_the_other_side(redisson: Redisson) {
    let options = ClientOptions::new().watchdog_timeout(ms(4_000));
    let stage = Stage::with(redisson, "rw, force", options).await;
    let (lock, name) = (stage.client.rw_lock(&stage.name), stage.name.as_str());
    let (read, write) = (stage.one.read(name), stage.one.write(name));

    // Java's readers and ours are thrown out together, by either side.
    let reader = lock.read().await.unwrap();
    read.lock().ok();
    let java = stage.two.write(name).lock();
    listened_to(server(), &channel(name), 1).await;
    assert!(java.answer_within(SHORT).is_none());
    assert!(!write.force_unlock().ok(), "nobody writes");
    let forced = Instant::now();
    assert!(read.force_unlock().ok());
    assert!(awake_between(forced, ended(java.await)) < SOON);
    // By a check before or after Java's writer acquires the lock.
    let reason = within(PATIENCE, "it is noticed", reader.lost()).await;
    assert!(matches!(reason, LostReason::Deleted | LostReason::Taken), "{reason}");
    let refused = reader.release().await.unwrap_err();
    assert!(matches!(refused, Error::Lost { .. } | Error::NotHeld { .. }), "{refused}");
    assert!(read.unlock().err().is_not_owner());

    let ours = waits(lock.read());
    listened_to(server(), &channel(name), 1).await;
    tokio::time::sleep(SHORT).await;
    assert!(!ours.is_finished());
    let forced = Instant::now();
    assert!(lock.force_unlock("").await.unwrap());
    let (guard, granted) = joined(ours).await;
    assert!(awake_between(forced, granted) < SOON);
    assert!(stage.two.write(name).unlock().err().is_not_owner());
    guard.release().await.unwrap();

    let writer = lock.write().await.unwrap();
    assert!(!read.force_unlock().ok(), "nobody reads");
    assert!(write.force_unlock().ok());
    assert_eq!(within(PATIENCE, "it is noticed", writer.lost()).await, LostReason::Deleted);
    assert!(!exists(name));
}

/// Redisson's read/write lock takes a name on which a plain lock is held; two then hold it.
async fn one_name_is_one_kind_to_us_and_not_to_java(redisson: Redisson) {
    let stage = Stage::new(redisson, "rw, kinds").await;
    let (lock, name) = (stage.client.rw_lock(&stage.name), stage.name.as_str());
    let wrong = |error: Error| assert!(matches!(error, Error::WrongKind { .. }), "{error}");
    stage.one.lock(name).lock().ok();
    wrong(lock.try_read().await.unwrap_err());
    wrong(lock.try_write().await.unwrap_err());
    wrong(lock.write().await.unwrap_err());
    assert!(stage.two.write(name).try_lock().ok(), "Redisson has learnt to refuse it");
    assert!(stage.one.lock(name).is_held().ok());
    server().cli(&["DEL", name]).ok();

    stage.two.read(name).lock().ok();
    wrong(stage.client.lock(name).try_lock().await.unwrap_err());
    wrong(stage.client.fair_lock(name).try_lock().await.unwrap_err());
    assert!(!stage.one.lock(name).try_lock().ok());
    stage.two.read(name).unlock().ok();
    assert!(stage.client.lock(name).try_lock().await.unwrap().is_some());
}

async fn a_lease_that_expires_frees_the_lock(redisson: Redisson) {
    let stage = Stage::new(redisson, "rw, lease").await;
    let (lock, name, lease) = (stage.client.rw_lock(&stage.name), stage.name.as_str(), ms(3_000));

    for side in [lock.reader(), lock.writer()] {
        let guard = side.lease(lease).lock().await.unwrap();
        let ends = end(server(), name);
        let granted = ended(stage.one.write(name).lock().await);
        assert!(granted + ms(50) >= ends, "before its end");
        assert!(awake_between(ends, granted) < SOON, "long after its end");
        assert_eq!(guard.lost().await, LostReason::Expired);
        stage.one.write(name).unlock().ok();
    }
    for java in [stage.one.read(name), stage.one.write(name)] {
        java.lock_for(lease).ok();
        let ends = end(server(), name);
        let (guard, granted) = joined(waits(lock.write())).await;
        assert!(granted + ms(50) >= ends, "before its end");
        assert!(awake_between(ends, granted) < SOON, "long after its end");
        assert!(java.unlock().err().is_not_owner());
        guard.release().await.unwrap();
    }
    // A reader whose time is over does not stand in our way while others read on.
    stage.one.read(name).lock_for(lease).ok();
    let mut reader = lock.lease(LONG).read().await.unwrap();
    let began = Stopwatch::start();
    let writer = loop {
        match reader.try_upgrade().await {
            Ok(writer) => break writer,
            Err(refused) => reader = refused.into_guard(),
        }
        assert!(began.elapsed() < lease + SOON, "the only living reader becomes the writer");
    };
    writer.release().await.unwrap();
}

/// A server and a peer with a quick watchdog, one of whose threads reads `x`.
fn redisson_reads(redisson: Redisson, watchdog: Duration) -> (RedisServer, JavaPeer) {
    let server = RedisServer::start();
    let peer = JavaPeer::builder(redisson).watchdog(watchdog).start(&server.url());
    peer.on("one").read("x").lock().ok();
    (server, peer)
}

/// The renewal of a reader of Java's sets the end of the lock, whoever else reads. Ours looks after its
/// readers every 0.7 s here, as it does every ten seconds by default beside Java's 30 s.
async fn our_reader_outlives_a_java_reader(redisson: Redisson) {
    let (name, watchdog, lease) = ("x", ms(2_000), ms(10_000));
    let (server, peer) = redisson_reads(redisson, watchdog);
    let lock =
        connect(&server, ClientOptions::new().watchdog_timeout(watchdog)).await.rw_lock(name);
    let begun = Instant::now();
    let reader = lock.lease(lease).read().await.unwrap();
    let left = || server.cli(&["PTTL", name]).int();
    // A renewal of Java's may have come since.
    eventually("it has our lease", || left() > 4_000).await;
    eventually("Java cuts it short", || left() <= 2_000).await;
    eventually("ours puts it right", || left() > 2_000).await;
    eventually("Java cuts it short again", || left() <= 2_000).await;
    peer.kill();
    let (_writer, granted) = joined(waits(lock.write())).await;
    let took = granted - begun;
    assert!(reader.is_lost(), "two hold it");
    assert!(took >= lease, "{took:?}");
    assert!(awake_between(begun + lease, granted) < SOON, "{took:?}");
}

/// Redisson before 4.4 renews all readers, also ours, and to its own time. That may be less than ours
/// were promised; then they are told.
async fn our_reader_detects_a_ttl_shortened_by_a_java_renewal(redisson: Redisson) {
    let (name, watchdog) = ("x", ms(2_000));
    let (server, peer) = redisson_reads(redisson, watchdog);
    let lock =
        connect(&server, ClientOptions::new().watchdog_timeout(watchdog)).await.rw_lock(name);
    let reader = lock.lease(ms(4_000)).read().await.unwrap();
    eventually("Java cuts it short", || server.cli(&["PTTL", name]).int() <= 2_000).await;
    peer.kill();
    let (_writer, granted) = joined(waits(lock.write())).await;
    let lost = Instant::now();
    assert!(reader.is_lost() && awake_between(granted, lost) < SOON, "two hold it");
}

/// Redisson before 4.4 keeps it alive for as long as one of its own reads.
async fn our_dead_reader_expires_while_java_reads(redisson: Redisson) {
    let (name, watchdog) = ("x", ms(2_000));
    let (server, peer) = redisson_reads(redisson, watchdog);
    let child = killed_process(&server, "read", watchdog, name);
    let id = child.expect_line("held").replace("held ", "");
    child.kill();
    let hold = format!("{{{name}}}:{id}:rwlock_timeout:1");
    let ends = || server.cli(&["PEXPIRETIME", &hold]).int();
    let (first, read) = (ends(), peer.on("one").read(name));
    assert!(first > 0, "it has just died");
    match redisson {
        Redisson::Newest => eventually("it is gone", || ends() == -2).await,
        _ => eventually("Java renews it", || ends() > first).await,
    }
    let java = peer.on("two").write(name).lock();
    listened_to(&server, &channel(name), 1).await;
    assert!(java.answer_within(SHORT).is_none(), "Java reads");
    read.unlock().ok();
    let unlocked = Instant::now();
    // What is left of the dead one is at most a lease of Java's.
    let took = awake_between(unlocked, ended(java.await));
    assert!(took < if redisson == Redisson::Newest { SOON } else { watchdog + SOON }, "{took:?}");
}

async fn a_hold_without_a_lease_is_renewed_until_its_process_dies(redisson: Redisson) {
    let (server, name, watchdog) = (RedisServer::start(), "x", ms(3_000));
    let peer = JavaPeer::builder(redisson).watchdog(watchdog).start(&server.url());
    let options = ClientOptions::new().watchdog_timeout(watchdog);
    let lock = connect(&server, options).await.rw_lock(name);
    let renewed = async || {
        let at = || server.cli(&["PEXPIRETIME", name]).int();
        let before = at();
        eventually("it is renewed", || at() > before).await;
    };
    let (read, write) = (peer.on("one").read(name), peer.on("one").write(name));
    for side in [lock.reader(), lock.writer()] {
        let guard = side.lock().await.unwrap();
        let java = write.lock();
        listened_to(&server, &channel(name), 1).await;
        renewed().await;
        assert!(java.is_pending() && !guard.is_lost());
        guard.release().await.unwrap();
        within(SOON, "Java's writer", java).await.ok();
        write.unlock().ok();
    }

    write.lock().ok();
    let ours = waits(lock.write());
    listened_to(&server, &channel(name), 1).await;
    renewed().await;
    assert!(!ours.is_finished() && write.is_held().ok());
    read.lock().ok();
    read.unlock().ok();
    if redisson == Redisson::Newest {
        // There a nested reader that leaves takes the writer's watchdog with it.
        let (guard, _) = within(watchdog + 2 * SOON, "it is not renewed", joined(ours)).await;
        assert!(write.unlock().err().is_not_owner());
        guard.release().await.unwrap();
    } else {
        renewed().await;
        write.unlock().ok();
        within(SOON, "ours", joined(ours)).await.0.release().await.unwrap();
    }

    read.lock().ok();
    let ours = waits(lock.write());
    listened_to(&server, &channel(name), 1).await;
    renewed().await;
    assert!(!ours.is_finished() && read.is_held().ok());
    peer.kill();
    let ends = end(&server, name);
    let (guard, granted) = joined(ours).await;
    assert!(granted + ms(50) >= ends, "before its end");
    assert!(awake_between(ends, granted) < 2 * SOON, "long after its end");
    guard.release().await.unwrap();
}

/// Two writers and a reader on each side. The readers pause, because writers of Java's are not let in while
/// readers keep relieving each other.
async fn nothing_is_lost_under_stress(redisson: Redisson) {
    const ROUNDS: u32 = 60;
    let stage = Stage::new(redisson, "rw, stress").await;
    let (name, counter) = (stage.name.as_str(), format!("{} counter", stage.name));
    let value = |counter: &str| server().cli(&["GET", counter]).int();
    server().cli(&["SET", &counter, "0"]).ok();
    let java = stage.one.write(name).stress(&counter, ROUNDS, 2);
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let lock = connect(server(), ClientOptions::new()).await.rw_lock(name);
        let counter = counter.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = lock.write().await.unwrap();
                let next = value(&counter) + 1;
                server().cli(&["SET", &counter, &next.to_string()]).ok();
                guard.release().await.unwrap();
            }
        }));
    }
    let (lock, number) = (stage.client.rw_lock(name), counter.clone());
    tasks.push(tokio::spawn(async move {
        for _ in 0..ROUNDS {
            let guard = lock.read().await.unwrap();
            let before = value(&number);
            tokio::time::sleep(ms(1)).await;
            assert_eq!(value(&number), before, "somebody wrote");
            guard.release().await.unwrap();
            tokio::time::sleep(ms(2)).await;
        }
    }));
    let (worker, lock, number) = (stage.two.clone(), name.to_owned(), counter.clone());
    tasks.push(tokio::spawn(async move {
        let read = worker.read(&lock);
        for _ in 0..ROUNDS {
            read.lock().await.ok();
            let before = value(&number);
            tokio::time::sleep(ms(1)).await;
            assert_eq!(value(&number), before, "somebody wrote");
            read.unlock().await.ok();
            tokio::time::sleep(ms(2)).await;
        }
    }));
    for task in tasks {
        joined(task).await;
    }
    let java = java.await.ok();
    assert_eq!(value(&counter), i64::from(4 * ROUNDS));
    println!("{name}: Java's writers waited for {:.1?} at most", java.longest_wait);
    assert!(!exists(name));
}
