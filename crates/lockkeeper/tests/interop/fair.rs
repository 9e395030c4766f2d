//! The fair lock: one queue for both sides.
//!
//! Both publish to the next waiter's own channel, so whoever is next gets the lock within
//! milliseconds of a release, whichever side releases.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockkeeper::{ClientOptions, Error, FairLock, LockGuard, LostReason, Ttl};
use testkit::java::{Lock, Pending, Worker};
use testkit::{JavaPeer, RedisServer, Redisson, Reply, Stopwatch};
use tokio::task::JoinHandle;

use crate::killed_process::killed_process;
use crate::support::*;

on_versions! { [newest v3_27]
    each_side_excludes_the_other_and_sees_its_holds
    waiters_are_served_in_the_order_of_arrival
    a_waiter_that_times_out_leaves_the_queue
    many_acquires_by_java_keep_our_queue_positions
    our_queue_position_lasts_while_java_holds_the_lock
    our_waiter_removed_by_java_queues_again
    a_force_release_wakes_the_next_in_the_queue
    a_lease_that_expires_frees_the_lock
    our_dead_waiter_is_skipped_while_another_of_ours_waits
    our_dead_waiter_blocks_java_until_another_of_ours_asks
}

/// How long Redisson's waiters keep their places, in ms.
const WAIT: i64 = 300_000;

/// What a clock of another process may be off when it computes a place, in ms.
const LAG: i64 = 2_000;

fn key(prefix: &str, name: &str) -> String {
    format!("{prefix}:{{{name}}}")
}

/// The queue, head first.
fn queue(server: &RedisServer, name: &str) -> Vec<String> {
    let ids = server.cli(&["LRANGE", &key("redisson_lock_queue", name), "0", "-1"]);
    ids.array().iter().map(|id| id.text().to_owned()).collect()
}

/// Until when each keeps its place.
fn scores(server: &RedisServer, name: &str) -> BTreeMap<String, i64> {
    let timeouts = key("redisson_lock_timeout", name);
    let pairs = server.cli(&["ZRANGE", &timeouts, "0", "-1", "WITHSCORES"]);
    let pairs = pairs.array().chunks(2);
    pairs.map(|pair| (pair[0].text().to_owned(), pair[1].int())).collect()
}

fn holder(server: &RedisServer, name: &str) -> Option<String> {
    let fields = server.cli(&["HKEYS", name]);
    fields.array().first().map(|id| id.text().to_owned())
}

/// When the lock ends, in the server's time.
fn ends(server: &RedisServer, name: &str) -> i64 {
    server.cli(&["PEXPIRETIME", name]).int()
}

/// The timeouts of waiters are one, two, three... waits after the expiry of the lock.
#[track_caller]
fn queue_positions_are_in_order(server: &RedisServer, name: &str, ends: i64, waiting: &[String]) {
    let scores = scores(server, name);
    assert_eq!(scores.len(), waiting.len());
    for (place, id) in (1..).zip(waiting) {
        let off = scores[id] - ends - place * WAIT;
        assert!(off.abs() < LAG, "{id}, in place {place}, is off by {off} ms");
    }
}

/// Only the record of tolerated silence and the log of force-releases may remain.
async fn nothing_is_left(server: &RedisServer, name: &str) {
    let stays = |key: &Reply| {
        ["lockkeeper_grace", "lockkeeper_forced"]
            .iter()
            .any(|prefix| key.text().starts_with(prefix))
    };
    let keys = || server.cli(&["KEYS", &format!("*{name}*")]);
    eventually("nothing is left", || keys().array().iter().all(stays)).await;
}

/// A waiter in the queue.
enum Waiter<'a> {
    Ours(String, JoinHandle<(LockGuard, Instant)>),
    Java(String, Lock<'a>, Pending<()>),
}

impl<'a> Waiter<'a> {
    /// Returns when it stands at the end of the queue and listens.
    async fn ours(server: &RedisServer, name: &str, lock: &FairLock) -> Self {
        let before = queue(server, name);
        let request = lock.lease(LONG).lock();
        let task = tokio::spawn(async move { (request.await.unwrap(), Instant::now()) });
        let id = newcomer(server, name, &before).await;
        listened_to(server, &format!("{}:{id}", lock_channel(name)), 1).await;
        Self::Ours(id, task)
    }

    async fn java(server: &RedisServer, name: &str, worker: &Worker<'a>) -> Self {
        let (id, lock) = (worker.owner(), worker.fair(name));
        let pending = lock.lock();
        lines_up(server, name, &id).await;
        Self::Java(id, lock, pending)
    }

    fn id(&self) -> &String {
        let (Self::Ours(id, _) | Self::Java(id, ..)) = self;
        id
    }

    /// Returns when it has the lock, and since when.
    async fn served(self) -> (Holder<'a>, Instant) {
        match self {
            Self::Ours(id, task) => {
                let (guard, at) = joined(task).await;
                assert_eq!(guard.owner_id().to_string(), id);
                (Holder::Ours(guard), at)
            }
            Self::Java(_, lock, pending) => {
                let answer = pending.await;
                let at = answer.ended;
                answer.ok();
                (Holder::Java(lock), at)
            }
        }
    }
}

/// A waiter at the end of the queue.
async fn newcomer(server: &RedisServer, name: &str, before: &[String]) -> String {
    let mut last = None;
    eventually("somebody lines up", || {
        last = queue(server, name).pop().filter(|id| !before.contains(id));
        last.is_some()
    })
    .await;
    last.unwrap()
}

/// Returns when it stands at the end of the queue and listens.
async fn lines_up(server: &RedisServer, name: &str, id: &str) {
    eventually("it lines up", || queue(server, name).last().is_some_and(|last| last == id)).await;
    listened_to(server, &format!("{}:{id}", lock_channel(name)), 1).await;
}

enum Holder<'a> {
    Ours(LockGuard),
    Java(Lock<'a>),
}

impl Holder<'_> {
    /// When that began.
    async fn release(self) -> Instant {
        match self {
            Self::Ours(guard) => {
                let begun = Instant::now();
                guard.release().await.unwrap();
                begun
            }
            Self::Java(lock) => {
                let answer = lock.unlock().await;
                let begun = answer.started;
                answer.ok();
                begun
            }
        }
    }
}

/// Lets one after the other have it.
async fn served_in_turn(server: &RedisServer, name: &str, waiters: Vec<Waiter<'_>>) {
    for waiter in waiters {
        within(SOON, "it is its turn", waiter.served()).await.0.release().await;
    }
    nothing_is_left(server, name).await;
}

async fn each_side_excludes_the_other_and_sees_its_holds(redisson: Redisson) {
    let stage = Stage::new(redisson, "fair, exclusion").await;
    let (lock, name) = (stage.client.fair_lock(&stage.name), stage.name.as_str());
    let (one, two) = (stage.one.fair(name), stage.two.fair(name));

    let owner = stage.client.new_owner();
    let guard = lock.as_owner(&owner).lease(LONG).lock().await.unwrap();
    let again = lock.as_owner(&owner).lease(LONG).lock().await.unwrap();
    assert!(!one.try_lock().ok());
    assert!(!one.try_lock_within(SHORT, Some(LONG)).ok());
    assert!(one.is_locked().ok() && !one.is_held().ok());
    assert_eq!(one.hold_count().ok(), 0);
    assert!((30_001..=60_000).contains(&one.remaining().ok()));
    assert!(one.unlock().err().is_not_owner());
    let held = server().cli(&["HGET", name, &guard.owner_id().to_string()]);
    assert_eq!(held.int(), 2, "counted as Java counts");
    again.release().await.unwrap();
    assert!(!one.try_lock().ok());
    guard.release().await.unwrap();

    one.lock_for(LONG).ok();
    assert!(one.try_lock_within(SHORT, Some(LONG)).ok(), "re-entry");
    assert!(lock.try_lock().await.unwrap().is_none());
    assert!(lock.try_lock_for(IN_VAIN).await.unwrap().is_none());
    let holder = lock.inspect().await.unwrap().holders.remove(0);
    assert_eq!((holder.id, holder.hold_count), (stage.one.owner(), 2));
    let Some(Ttl::For(left)) = lock.inspect().await.unwrap().ttl else { panic!("it has an end") };
    assert!(left > LONG / 2 && left <= LONG, "{left:?}");
    assert!(two.unlock().err().is_not_owner());
    one.unlock().ok();
    assert!(lock.is_locked().await.unwrap());
    one.unlock().ok();
    assert!(!lock.is_locked().await.unwrap());
    nothing_is_left(server(), name).await;
}

async fn waiters_are_served_in_the_order_of_arrival(redisson: Redisson) {
    let stage = Stage::new(redisson, "fair, order").await;
    let name = stage.name.as_str();
    let other = connect(server(), ClientOptions::new()).await;
    let (ours, others) = (stage.client.fair_lock(name), other.fair_lock(name));
    let three = stage.peer.on(&format!("{name} 3"));

    let guard = ours.lease(LONG).lock().await.unwrap();
    let ends = ends(server(), name);
    let mut waiters = vec![
        Waiter::java(server(), name, &stage.one).await,
        Waiter::ours(server(), name, &ours).await,
        Waiter::java(server(), name, &stage.two).await,
        Waiter::ours(server(), name, &others).await,
        Waiter::ours(server(), name, &ours).await,
        Waiter::java(server(), name, &three).await,
    ];
    let mut waiting: Vec<_> = waiters.iter().map(|waiter| waiter.id().clone()).collect();
    assert_eq!(queue(server(), name), waiting);
    assert_eq!(ours.inspect().await.unwrap().queue.len(), 6);
    queue_positions_are_in_order(server(), name, ends, &waiting);

    let mut holds = Holder::Ours(guard);
    while !waiters.is_empty() {
        let released = holds.release().await;
        let granted;
        (holds, granted) = within(PATIENCE, "its turn", waiters.remove(0).served()).await;
        assert!(awake_between(released, granted) < SOON);
        assert_eq!(holder(server(), name), Some(waiting.remove(0)));
        assert_eq!(queue(server(), name), waiting);
        queue_positions_are_in_order(server(), name, ends, &waiting);
    }
    holds.release().await;
    nothing_is_left(server(), name).await;
}

async fn a_waiter_that_times_out_leaves_the_queue(redisson: Redisson) {
    let stage = Stage::new(redisson, "fair, give-up").await;
    let (lock, name) = (stage.client.fair_lock(&stage.name), stage.name.as_str());
    let [three, four] = [3, 4].map(|number| stage.peer.on(&format!("{name} {number}")));
    let (impatient, patience) = (three.owner(), ms(3_000));

    let guard = lock.lease(LONG).lock().await.unwrap();
    let ends = ends(server(), name);
    let first = Waiter::java(server(), name, &stage.one).await;
    let dropped = Waiter::ours(server(), name, &lock).await;
    let java_gives_up = three.fair(name).try_lock_within(patience, Some(LONG));
    lines_up(server(), name, &impatient).await;
    let second = Waiter::java(server(), name, &stage.two).await;
    let before = queue(server(), name);
    let gives_up = tokio::spawn(lock.try_lock_for(patience));
    newcomer(server(), name, &before).await;
    let third = Waiter::ours(server(), name, &lock).await;
    let fourth = Waiter::java(server(), name, &four).await;

    let Waiter::Ours(_, dropped) = dropped else { unreachable!() };
    dropped.abort();
    assert!(!java_gives_up.ok());
    assert!(joined(gives_up).await.unwrap().is_none());
    let waiters = vec![first, second, third, fourth];
    let waiting: Vec<_> = waiters.iter().map(|waiter| waiter.id().clone()).collect();
    eventually("they have left", || queue(server(), name) == waiting).await;
    queue_positions_are_in_order(server(), name, ends, &waiting);
    guard.release().await.unwrap();
    served_in_turn(server(), name, waiters).await;
}

/// Each acquire of Redisson lowers the timeouts of all waiters.
async fn many_acquires_by_java_keep_our_queue_positions(redisson: Redisson) {
    let stage = Stage::new(redisson, "fair, arithmetic").await;
    let (lock, name) = (stage.client.fair_lock(&stage.name), stage.name.as_str());
    let workers: Vec<_> = (3..9).map(|n| stage.peer.on(&format!("{name} {n}"))).collect();
    let java = stage.one.fair(name);
    java.lock().ok();
    let mut before = Vec::new();
    for worker in &workers {
        before.push(Waiter::java(server(), name, worker).await);
    }
    let ours = Waiter::ours(server(), name, &lock).await;
    java.unlock().ok();
    for waiter in before {
        let (holds, _) = within(SOON, "Java's turn", waiter.served()).await;
        // Others come, get in line behind ours and leave, which costs whoever is behind them.
        assert!(!stage.one.fair(name).try_lock_within(SHORT, Some(LONG)).ok());
        assert!(!stage.two.fair(name).try_lock().ok());
        assert_eq!(queue(server(), name).last(), Some(ours.id()));
        let now = server().cli(&["TIME"]).array()[0].int() * 1000;
        assert!(scores(server(), name)[ours.id()] > now + WAIT / 2, "it is far from stale");
        holds.release().await;
    }
    served_in_turn(server(), name, vec![ours]).await;
}

/// A place is good for five minutes after the lock was to end when it was taken; Java drops whoever is past
/// that, and its holders may well go on for longer.
async fn our_queue_position_lasts_while_java_holds_the_lock(redisson: Redisson) {
    let stage = Stage::new(redisson, "fair, long hold").await;
    let (lock, name) = (stage.client.fair_lock(&stage.name), stage.name.as_str());
    let java = stage.one.fair(name);
    java.lock_for(ms(5_000)).ok();
    let ours = Waiter::ours(server(), name, &lock).await;
    let place = scores(server(), name)[ours.id()];
    assert!((place - ends(server(), name) - WAIT).abs() < LAG);
    assert!(java.try_lock_within(SHORT, Some(LONG)).ok(), "it goes on");
    let later = ends(server(), name) + WAIT;
    eventually("it is put right", || later - scores(server(), name)[ours.id()] < LAG).await;
    java.unlock().ok();
    java.unlock().ok();
    served_in_turn(server(), name, vec![ours]).await;
}

async fn our_waiter_removed_by_java_queues_again(redisson: Redisson) {
    let stage = Stage::new(redisson, "fair, eviction").await;
    let (lock, name) = (stage.client.fair_lock(&stage.name), stage.name.as_str());
    let guard = lock.lease(LONG).lock().await.unwrap();
    let evicted = Waiter::ours(server(), name, &lock).await;
    let java = Waiter::java(server(), name, &stage.one).await;
    let timeouts = key("redisson_lock_timeout", name);
    let both = [evicted.id().clone(), java.id().clone()];
    // Its score is put right about once a second; Java must come before that.
    eventually("Java has dropped it", || {
        server().cli(&["ZADD", &timeouts, "1", evicted.id()]).ok();
        assert!(!stage.two.fair(name).try_lock().ok());
        queue(server(), name) != both
    })
    .await;
    let (dropped, swapped) = (Stopwatch::start(), [&both[1], &both[0]].map(Clone::clone));
    eventually("it lines up again", || queue(server(), name) == swapped).await;
    assert!(dropped.elapsed() < SPOKEN, "{:?}", dropped.elapsed());
    guard.release().await.unwrap();
    served_in_turn(server(), name, vec![java, evicted]).await;
}

async fn a_force_release_wakes_the_next_in_the_queue(redisson: Redisson) {
    let options = ClientOptions::new().watchdog_timeout(ms(4_000));
    let stage = Stage::with(redisson, "fair, force", options).await;
    let (lock, name) = (stage.client.fair_lock(&stage.name), stage.name.as_str());

    // A Redisson holder is not notified; it checks every third of its lease.
    let guard = lock.lock().await.unwrap();
    let waits = Waiter::java(server(), name, &stage.one).await;
    assert!(stage.two.fair(name).force_unlock().ok());
    let (holds, _) = within(SOON, "the next", waits.served()).await;
    let reason = within(PATIENCE, "it is noticed", guard.lost()).await;
    // The first look at it may come before the next holder has it.
    assert!(matches!(reason, LostReason::Taken | LostReason::Deleted), "{reason}");
    let refused = guard.release().await.unwrap_err();
    assert!(matches!(refused, Error::Lost { .. } | Error::NotHeld { .. }), "{refused}");
    assert_eq!(holder(server(), name), Some(stage.one.owner()), "it took nothing away");

    let waits = Waiter::ours(server(), name, &lock).await;
    assert!(lock.force_unlock("").await.unwrap());
    let (ours, _) = within(SOON, "the next", waits.served()).await;
    let Holder::Java(java) = holds else { unreachable!() };
    assert!(!java.is_held().ok());
    assert!(java.unlock().err().is_not_owner());
    ours.release().await;
    // Of a free fair lock, Redisson says that anybody may unlock it.
    java.unlock().ok();
    nothing_is_left(server(), name).await;
}

/// Up to 3.31 a waiter of Java's that looks a moment before the lock ends, and any that waits behind a lock
/// that was renewed meanwhile, sleeps on when it has ended, until it is told. One of ours, which speaks
/// about once a second while it waits, tells the next one.
async fn one_of_ours_for_an_old_java<'a>(
    redisson: Redisson,
    name: &str,
    lock: &FairLock,
) -> Vec<Waiter<'a>> {
    match redisson {
        Redisson::Newest => Vec::new(),
        _ => vec![Waiter::ours(server(), name, lock).await],
    }
}

async fn a_lease_that_expires_frees_the_lock(redisson: Redisson) {
    let stage = Stage::new(redisson, "fair, lease").await;
    let (lock, name) = (stage.client.fair_lock(&stage.name), stage.name.as_str());
    let lease = ms(4_000);

    let ended = Instant::now() + lease;
    let guard = lock.lease(lease).lock().await.unwrap();
    let next = Waiter::java(server(), name, &stage.one).await;
    let last = one_of_ours_for_an_old_java(redisson, name, &lock).await;
    let (holds, granted) = next.served().await;
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(granted + ms(50) >= ended, "before its end");
    assert!(awake_between(ended, granted) < SPOKEN, "long after its end");
    holds.release().await;
    served_in_turn(server(), name, last).await;

    let java = stage.two.fair(name).lock_for(lease).answer();
    let waits = Waiter::ours(server(), name, &lock).await;
    let (holds, granted) = waits.served().await;
    assert!(granted >= java.started + lease, "before its end");
    assert!(awake_between(java.ended + lease, granted) < SOON, "long after its end");
    java.ok();
    assert!(stage.two.fair(name).unlock().err().is_not_owner());
    holds.release().await;
    nothing_is_left(server(), name).await;
}

async fn our_dead_waiter_is_skipped_while_another_of_ours_waits(redisson: Redisson) {
    let stage = Stage::new(redisson, "fair, dead waiter").await;
    let (lock, name) = (stage.client.fair_lock(&stage.name), stage.name.as_str());
    let java = stage.two.fair(name);
    java.lock().ok();
    let child = killed_process(server(), "fair", LONG, name);
    eventually("the child lines up", || queue(server(), name).len() == 1).await;
    let next = Waiter::java(server(), name, &stage.one).await;
    let last = Waiter::ours(server(), name, &lock).await;
    child.kill();
    java.unlock().ok();
    // Nobody is heard of for three seconds before it counts as dead; then the last one notices. Where
    // the machine stood still that is forgiven once.
    let (holds, _) = within(PATIENCE, "the dead one is passed over", next.served()).await;
    holds.release().await;
    served_in_turn(server(), name, vec![last]).await;
}

/// Among Java's waiters alone it keeps its place as one of theirs would: for five minutes. A waiter of
/// ours clears it away, and so do two tries three seconds apart.
async fn our_dead_waiter_blocks_java_until_another_of_ours_asks(redisson: Redisson) {
    let stage = Stage::new(redisson, "fair, dead among Java").await;
    let (lock, name) = (stage.client.fair_lock(&stage.name), stage.name.as_str());
    let java = stage.two.fair(name);
    java.lock().ok();
    let child = killed_process(server(), "fair", LONG, name);
    eventually("the child lines up", || queue(server(), name).len() == 1).await;
    let dead = queue(server(), name).remove(0);
    let next = Waiter::java(server(), name, &stage.one).await;
    child.kill();
    java.unlock().ok();
    let Waiter::Java(_, _, pending) = &next else { unreachable!() };
    assert!(pending.answer_within(ms(3_500)).is_none(), "Java knows of nobody's silence");
    assert_eq!(queue(server(), name)[0], dead);
    let heard = server().cli(&["ZSCORE", &key("lockkeeper_seen", name), &dead]).int();
    let now = server().cli(&["TIME"]).array()[0].int() * 1000;
    assert!(now + 1_000 - heard > 3_000);
    // The first try tolerates the silence, since all waiters were silent.
    let came = Instant::now();
    eventually("the dead one is passed over", || {
        let asks = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(lock.try_lock())
        });
        assert!(asks.unwrap().is_none());
        !pending.is_pending()
    })
    .await;
    println!("{name}: passed over after {:.1?} of asking", came.elapsed());
    served_in_turn(server(), name, vec![next]).await;
}

/// How long a dead waiter of Java's keeps its place is its own affair.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redisson_waiter_that_died_is_removed_after_its_timeout() {
    let (server, name) = (RedisServer::start(), "x");
    let builder = JavaPeer::builder(Redisson::Newest).fair_wait(ms(1_500));
    let peer = builder.start(&server.url());
    let lock = connect(&server, ClientOptions::new()).await.fair_lock(name);
    let guard = lock.lease(ms(1_500)).lock().await.unwrap();
    let dies = Waiter::java(&server, name, &peer.on("one")).await;
    let ours = Waiter::ours(&server, name, &lock).await;
    let due = scores(&server, name)[dies.id()];
    let off = due - ends(&server, name) - 1_500;
    assert!(off.abs() < LAG, "{off}");
    peer.kill();
    guard.release().await.unwrap();
    let (holds, _) = within(PATIENCE, "it is passed over", ours.served()).await;
    let time = server.cli(&["TIME"]);
    let late = time.array()[0].int() * 1000 + time.array()[1].int() / 1000 - due;
    assert!((0..4_000).contains(&late), "{late} ms after its time");
    holds.release().await;
    nothing_is_left(&server, name).await;
}

/// Both sides' holders live on for as long as their processes do, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_without_a_lease_is_renewed_until_its_process_dies() {
    let (server, name, watchdog) = (RedisServer::start(), "x", ms(3_000));
    let peer = JavaPeer::builder(Redisson::Newest).watchdog(watchdog).start(&server.url());
    let options = ClientOptions::new().watchdog_timeout(watchdog);
    let lock = connect(&server, options).await.fair_lock(name);
    let renewed = async || {
        let before = ends(&server, name);
        eventually("it is renewed", || ends(&server, name) > before).await;
    };
    let guard = lock.lock().await.unwrap();
    let waits = Waiter::java(&server, name, &peer.on("one")).await;
    renewed().await;
    assert_eq!(holder(&server, name), Some(guard.owner_id().to_string()));
    guard.release().await.unwrap();
    let (holds, _) = within(SOON, "Java's turn", waits.served()).await;
    let waits = Waiter::ours(&server, name, &lock).await;
    renewed().await;
    assert!(matches!(holds, Holder::Java(_)));
    peer.kill();
    let asked = Instant::now();
    let left = server.cli(&["PTTL", name]).int();
    let ends = asked + Duration::from_millis(left.try_into().unwrap());
    let (holds, granted) = waits.served().await;
    assert!(granted + ms(50) >= ends, "before its end");
    assert!(awake_between(ends, granted) < SOON, "long after its end");
    holds.release().await;
}
