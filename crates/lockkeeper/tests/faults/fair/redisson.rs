//! Waiters of Redisson and of this library in one queue.

use lockkeeper::backend::{Acquire, Backend, Kind, Resource};
use lockkeeper::stores::Redis;
use lockkeeper::{ClientOptions, OwnerId};

use super::support::*;

/// Everybody's score, less so much.
fn lowered(rig: &Rig, owners: &[&str], by: i64) -> Vec<i64> {
    let scores = rig.scores();
    owners.iter().map(|owner| scores[*owner] - by).collect()
}

/// Redisson never sets an end to its queue, and does not look for one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_with_a_redisson_waiter_has_no_ttl() {
    let rig = Rig::new("a");
    let ends = || {
        let keys = [rig.queue_key(), rig.timeouts_key()];
        keys.map(|key| rig.cmd(&["PTTL", &key]).int())
    };
    let guard = rig.held().await;
    let lock = rig.lock().await;
    let (_, stays) = rig.waiter(&lock).await;
    let java = Java::new(&rig, 1, WAIT);
    assert!(!java.take());
    eventually(ms(1_500), "ours have noticed", || ends() == [-1, -1]).await;
    rig.cmd(&["LREM", &rig.queue_key(), "1", &java.id]);
    rig.cmd(&["ZREM", &rig.timeouts_key(), &java.id]);
    eventually(ms(1_500), "again only ours", || ends().iter().all(|left| *left > 0)).await;

    // Our last waiter leaves before its next heartbeat.
    assert!(!java.take());
    cancel(stays).await;
    eventually(SOON, "it has left", || rig.queue() == [java.id.as_str()]).await;
    assert_eq!(ends(), [-1, -1], "one of ours gave up");
    guard.release().await.unwrap();
    assert!(java.take());
    let (_, takes) = rig.waiter(&lock).await;
    let other = Java::new(&rig, 2, WAIT);
    assert!(!other.take());
    java.unlock();
    let guard = within(SOON, "ours", takes).await;
    assert_eq!(rig.queue(), [other.id.as_str()]);
    assert_eq!(ends(), [-1, -1], "one of ours took the lock");
    guard.release().await.unwrap();
    assert!(other.take());
    other.unlock();
    assert_eq!(rig.keys(), [""; 0]);
}

/// A timed `tryLock` of Java waits for as long as it says, not for 300 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redisson_waiter_with_a_short_timeout_keeps_its_position_until_then() {
    let rig = Rig::new("a");
    let guard = rig.held().await;
    let ends = rig.ends();
    let lock = rig.lock().await;
    let (first, first_task) = rig.waiter(&lock).await;
    let java = Java::new(&rig, 1, 5_000);
    assert!(!java.take());
    let (second, second_task) = rig.waiter(&lock).await;
    let all = [first.as_str(), &java.id, &second];
    assert_eq!(rig.queue(), all);
    let scores = lowered(&rig, &all, ends);
    let expected = [WAIT, WAIT + 5_000, 2 * WAIT + 5_000];
    let close = scores.iter().zip(expected).all(|(found, due)| (found - due).abs() <= 5);
    assert!(close, "{scores:?}");
    guard.release().await.unwrap();
    let guard = within(SOON, "ours", first_task).await;
    let scores = lowered(&rig, &all[1..], ends);
    let close =
        scores.iter().zip([5_000, WAIT + 5_000]).all(|(found, due)| (found - due).abs() <= 5);
    assert!(close, "{scores:?}");
    guard.release().await.unwrap();
    assert!(java.take());
    java.unlock();
    within(SOON, "ours", second_task).await.release().await.unwrap();
    assert_eq!(rig.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_without_a_valid_timeout_is_removed_and_the_next_is_woken() {
    let rig = Rig::new("a");
    let lock = rig.lock().await;
    let [stale, timeless, alive] = [1, 2, 3].map(|number| Java::new(&rig, number, WAIT));
    stale.place(rig.now());
    timeless.place(rig.now());
    rig.cmd(&["ZREM", &rig.timeouts_key(), &timeless.id]);
    let guard = lock.try_lock().await.unwrap().expect("they are gone");
    assert_eq!((rig.queue().len(), rig.scores().len()), (0, 0));
    guard.release().await.unwrap();
    assert_eq!(rig.keys(), [""; 0]);

    stale.place(rig.now() - 1);
    timeless.place(rig.now());
    rig.cmd(&["ZREM", &rig.timeouts_key(), &timeless.id]);
    alive.place(rig.now() + WAIT);
    let mut listener = rig.listen(&[&alive.id]);
    assert!(lock.try_lock().await.unwrap().is_none(), "it is another's turn");
    assert_eq!(rig.told(&mut listener), [alive.id.as_str()]);
    assert_eq!(rig.queue(), [alive.id.as_str()]);
    assert_eq!(rig.scores().into_keys().collect::<Vec<_>>(), [alive.id.as_str()]);

    // Present waiters detect it, too, without any new request.
    let (id, task) = rig.waiter(&lock).await;
    rig.cmd(&["ZADD", &rig.timeouts_key(), &rig.now().to_string(), &alive.id]);
    let guard = within(SOON, "ours", task).await;
    assert_eq!(guard.owner_id().to_string(), id);
    guard.release().await.unwrap();
    assert_eq!(rig.keys(), [""; 0]);
}

/// What Java does not know of must not outlive what it drops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_waiter_removed_by_redisson_leaves_no_record() {
    let rig = Rig::new("a");
    let guard = rig.held().await;
    // A waiter without heartbeats.
    let store = Redis::connect(&rig.server.url(), &ClientOptions::new()).await.unwrap();
    let resource = Resource { kind: Kind::Fair, name: "a".into() };
    let dead = OwnerId::fresh(uuid::Uuid::new_v4());
    let acquire = Acquire::new(resource, dead, 1_000);
    store.acquire(Acquire { waits: true, ..acquire }).await.unwrap();
    let dead = dead.to_string();
    assert_eq!(rig.queue(), [dead.as_str()]);
    rig.cmd(&["ZREM", &rig.timeouts_key(), &dead]);
    rig.cmd(&["LREM", &rig.queue_key(), "0", &dead]);
    let lock = rig.lock().await;
    let (_, task) = rig.waiter(&lock).await;
    let java = Java::new(&rig, 1, WAIT);
    assert!(!java.take());
    let due = lowered(&rig, &[&java.id], WAIT);
    guard.release().await.unwrap();
    let guard = within(SOON, "ours", task).await;
    assert_eq!(lowered(&rig, &[&java.id], 0), due, "an acquire while Redisson waits");
    guard.release().await.unwrap();
    assert!(java.take());
    java.unlock();
    lock.lock().await.unwrap().release().await.unwrap();
    assert_eq!(rig.keys(), [""; 0]);
}

/// A waiter that stands in the queue, and that nobody speaks for. The store has heard of it for as long
/// as the test lasts.
async fn placed(rig: &Rig) -> String {
    let store = Redis::connect(&rig.server.url(), &ClientOptions::new()).await.unwrap();
    let resource = Resource { kind: Kind::Fair, name: rig.name.as_str().into() };
    let owner = OwnerId::fresh(uuid::Uuid::new_v4());
    let acquire = Acquire::new(resource, owner, 1_000);
    store.acquire(Acquire { waits: true, ..acquire }).await.unwrap();
    let owner = owner.to_string();
    rig.cmd(&["ZADD", &rig.seen_key(), &(rig.now() + 3_600_000).to_string(), &owner]);
    owner
}

/// Everybody's score is as if so many ms had passed.
fn pass(rig: &Rig, span: i64) {
    for owner in rig.scores().keys() {
        rig.cmd(&["ZINCRBY", &rig.timeouts_key(), &(-span).to_string(), owner]);
    }
}

/// Takes among ours lower no scores. One of ours that is at the head after several of them, and has
/// died, must not keep Java from the lock for longer than one of Java's own would.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_head_of_ours_blocks_redisson_for_one_timeout_only() {
    let rig = Rig::new("a");
    let mut guard = rig.held().await;
    let lock = rig.lock().await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(rig.waiter(&lock).await.1);
    }
    let dead = placed(&rig).await;
    for task in tasks {
        guard.release().await.unwrap();
        guard = within(SOON, "ours", task).await;
    }
    assert_eq!(rig.queue(), [dead.as_str()]);
    let java = Java::new(&rig, 1, WAIT);
    assert!(!java.take());
    let wait = rig.ends() - rig.now() + WAIT + 1_003;
    assert!(rig.scores()[&dead] <= rig.now() + wait, "it came to the head just now");
    guard.release().await.unwrap();
    assert!(!java.take(), "Java knows of nobody's silence");
    pass(&rig, wait);
    assert!(java.take(), "the time of the dead one is over");
    java.unlock();
}

/// The same where one of Java's is in the queue already when ours comes to the head. Whom Java's own
/// defects have brought near its end is not brought nearer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeouts_behind_a_new_head_are_lowered_with_it() {
    for damaged in [false, true] {
        let rig = Rig::new("a");
        let guard = rig.held().await;
        let (_, first) = rig.waiter(&rig.lock().await).await;
        let second = placed(&rig).await;
        // As after many takes of ours in a moment.
        rig.cmd(&["ZINCRBY", &rig.timeouts_key(), &(5 * WAIT).to_string(), &second]);
        let java = Java::new(&rig, 1, WAIT);
        assert!(!java.take());
        let third = placed(&rig).await;
        let near = rig.now() + WAIT + 50_000;
        if damaged {
            rig.cmd(&["ZADD", &rig.timeouts_key(), &near.to_string(), &java.id]);
        }
        cancel(first).await;
        eventually(SOON, "it has left", || rig.queue().len() == 3).await;
        let ends = rig.ends();
        let due = [WAIT, if damaged { near - WAIT - ends } else { 2 * WAIT }, 3 * WAIT];
        let scores = lowered(&rig, &[&second, &java.id, &third], ends);
        let close = scores.iter().zip(due).all(|(found, due)| (found - due).abs() < 1_010);
        assert!(close, "{scores:?} is not {due:?}");
        guard.release().await.unwrap();
    }
}

/// The scores behind the head need not have been counted from it. Whatever the head had too much of,
/// nobody is left with less than one wait for each position: each take lowers everybody by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_timeout_is_lowered_below_its_position() {
    let rig = Rig::new("a");
    let guard = rig.held().await;
    let (_, first) = rig.waiter(&rig.lock().await).await;
    let second = placed(&rig).await;
    rig.cmd(&["ZINCRBY", &rig.timeouts_key(), &(5 * WAIT).to_string(), &second]);
    // Among ours alone this one gets what its position needs, and Java counts from that.
    let third = placed(&rig).await;
    let (early, late) = (Java::new(&rig, 1, WAIT), Java::new(&rig, 2, WAIT));
    assert!(!early.take());
    assert!(!late.take());
    cancel(first).await;
    eventually(SOON, "it has left", || rig.queue().len() == 4).await;
    let due = [1, 2, 3, 4].map(|position| position * WAIT);
    let scores = lowered(&rig, &[&second, &third, &early.id, &late.id], rig.ends());
    let close = scores.iter().zip(due).all(|(found, due)| (found - due).abs() < 1_010);
    assert!(close, "{scores:?} is not {due:?}");
    guard.release().await.unwrap();
}

/// Where only ours wait, and each of them says about once a second that it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeouts_behind_the_head_are_lowered_at_the_next_heartbeat() {
    let rig = Rig::new("a");
    let mut guard = rig.held().await;
    let lock = rig.lock().await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(rig.waiter(&lock).await);
    }
    let behind = waiting.split_off(3);
    for (_, task) in waiting {
        guard.release().await.unwrap();
        guard = within(SOON, "ours", task).await;
    }
    for (place, (id, _)) in (1..).zip(&behind) {
        let due = || rig.ends() + place * WAIT;
        eventually(PATIENCE, "it comes up", || rig.scores()[id] <= due() + 1_003).await;
        assert!(rig.scores()[id] >= due() - 1_003);
    }
    guard.release().await.unwrap();
    for (_, task) in behind {
        within(SOON, "its turn", task).await.release().await.unwrap();
    }
    assert_eq!(rig.keys(), [""; 0]);
}
