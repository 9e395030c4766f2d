//! The semaphore. Both sides publish how many permits are free, so waiters of either side are told within
//! milliseconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use lockkeeper::{Error, Semaphore, SemaphoreGuard};
use testkit::Redisson;
use tokio::task::JoinHandle;

use crate::killed_process::killed_process;
use crate::support::*;

on_versions! { [newest v3_27]
    both_sides_count_the_same_permits
    a_release_wakes_the_other_side
    adding_permits_wakes_the_other_side
    an_unset_semaphore_is_an_error_here_and_a_wait_there
    a_negative_count_is_shared_by_both_sides
    a_ttl_is_kept_by_rust_and_dropped_by_java
    permits_of_a_dead_process_are_lost_until_released
    at_most_as_many_holders_as_permits
}

pub(crate) fn channel(name: &str) -> String {
    format!("redisson_sc:{{{name}}}")
}

fn waits(semaphore: &Semaphore, permits: u32) -> JoinHandle<(SemaphoreGuard, Instant)> {
    let request = semaphore.acquire(permits);
    tokio::spawn(async move { (request.await.unwrap(), Instant::now()) })
}

/// Returns when so many connections listen and what was begun has had the time to fall asleep: it tries
/// once more after it listens, and would need no message if it succeeded then.
pub(crate) async fn asleep(name: &str, listeners: i64, awake: impl Fn() -> bool) {
    listened_to(server(), &channel(name), listeners).await;
    tokio::time::sleep(SHORT).await;
    assert!(!awake(), "it does not wait");
}

async fn both_sides_count_the_same_permits(redisson: Redisson) {
    let stage = Stage::new(redisson, "semaphore, counts").await;
    let ours = stage.client.semaphore(&stage.name);
    let java = stage.one.semaphore(&stage.name);

    assert!(ours.try_set_permits(5, None).await.unwrap());
    assert!(!java.try_set_permits(7).ok());
    java.acquire(2).ok();
    let permit = ours.acquire(2).await.unwrap();
    assert_eq!((java.available().ok(), ours.available().await.unwrap()), (1, 1));
    assert!(!java.try_acquire(2).ok());
    assert!(ours.try_acquire(2).await.unwrap().is_none());
    assert!(!java.try_acquire_for(2, SHORT).ok());
    assert!(ours.try_acquire_for(2, IN_VAIN).await.unwrap().is_none());
    // Permits have no owners: each side can release permits of the other.
    ours.add_permits(2).await.unwrap();
    permit.forget();
    java.release(2).ok();
    assert_eq!((java.available().ok(), ours.available().await.unwrap()), (5, 5));

    java.add_permits(3).ok();
    assert_eq!(ours.add_permits(2).await.unwrap(), 10);
    assert_eq!(java.available().ok(), 10);
    java.add_permits(-4).ok();
    assert_eq!(ours.drain_permits().await.unwrap(), 6);
    assert_eq!(java.drain().ok(), 0);
    ours.add_permits(4).await.unwrap();
    assert_eq!(java.drain().ok(), 4);
    assert_eq!(ours.available().await.unwrap(), 0);

    assert!(java.delete().ok());
    assert!(java.try_set_permits(1).ok());
    assert!(!ours.try_set_permits(2, None).await.unwrap());
    assert_eq!(ours.available().await.unwrap(), 1);
}

/// One release lets in as many as there are permits for. `cluster` has one permit, there and back.
async fn a_release_wakes_the_other_side(redisson: Redisson) {
    let stage = Stage::new(redisson, "semaphore, wake-up").await;
    let (ours, name) = (stage.client.semaphore(&stage.name), stage.name.as_str());
    let java = stage.one.semaphore(name);
    ours.try_set_permits(3, None).await.unwrap();
    let permits = ours.acquire(3).await.unwrap();
    let there = [java.acquire(1), stage.two.semaphore(name).acquire(1)];
    listened_to(server(), &channel(name), 1).await;
    assert!(there.iter().all(|waits| waits.answer_within(SHORT).is_none()));
    let here = waits(&ours, 1);
    listened_to(server(), &channel(name), 2).await;
    permits.release().await.unwrap();
    for waits in there {
        within(SOON, "a permit for Java", waits).await.ok();
    }
    within(SOON, "a permit for us", joined(here)).await.0.release().await.unwrap();
}

async fn adding_permits_wakes_the_other_side(redisson: Redisson) {
    let stage = Stage::new(redisson, "semaphore, more").await;
    let (ours, name) = (stage.client.semaphore(&stage.name), stage.name.as_str());
    let java = stage.one.semaphore(name);

    // Java waits for a semaphore that is not there yet.
    let there = java.acquire(1);
    asleep(name, 1, || !there.is_pending()).await;
    assert!(ours.try_set_permits(1, None).await.unwrap());
    within(SOON, "it was set up", there).await.ok();
    let there = java.acquire(2);
    asleep(name, 1, || !there.is_pending()).await;
    ours.add_permits(2).await.unwrap();
    within(SOON, "permits were added", there).await.ok();

    let here = waits(&ours, 2);
    asleep(name, 1, || here.is_finished()).await;
    java.add_permits(2).ok();
    within(SOON, "permits were added", joined(here)).await.0.forget();
    let here = waits(&ours, 1);
    asleep(name, 1, || here.is_finished()).await;
    stage.two.semaphore(name).release(1).ok();
    within(SOON, "a permit was given back", joined(here)).await.0.forget();
    assert_eq!(java.available().ok(), 0);
}

async fn an_unset_semaphore_is_an_error_here_and_a_wait_there(redisson: Redisson) {
    let stage = Stage::new(redisson, "semaphore, unset").await;
    let ours = stage.client.semaphore(&stage.name);
    let java = stage.one.semaphore(&stage.name);
    let invalid = |error: Error| assert!(matches!(error, Error::Invalid { .. }), "{error}");
    invalid(ours.acquire(1).await.unwrap_err());
    invalid(ours.add_permits(1).await.unwrap_err());
    assert!(!java.try_acquire_for(1, SHORT).ok());
    assert_eq!(ours.available().await.unwrap(), 0);
    // Java's release makes it.
    java.release(2).ok();
    assert_eq!(ours.available().await.unwrap(), 2);
}

/// Java publishes the number below zero, which its own waiters cannot make sense of.
async fn a_negative_count_is_shared_by_both_sides(redisson: Redisson) {
    let stage = Stage::new(redisson, "semaphore, debt").await;
    let (ours, name) = (stage.client.semaphore(&stage.name), stage.name.as_str());
    let java = stage.one.semaphore(name);
    java.try_set_permits(1).ok();
    let (here, there) = (waits(&ours, 2), stage.two.semaphore(name).acquire(2));
    listened_to(server(), &channel(name), 2).await;
    java.add_permits(-4).ok();
    assert_eq!((java.available().ok(), ours.available().await.unwrap()), (-3, -3));
    assert_eq!(ours.add_permits(-1).await.unwrap(), -4);
    assert_eq!(ours.drain_permits().await.unwrap(), 0);
    assert_eq!(ours.available().await.unwrap(), -4, "a debt is not forgiven");
    java.release(8).ok();
    within(SOON, "enough for us", joined(here)).await.0.release().await.unwrap();
    within(SOON, "enough for Java", there).await.ok();
    assert_eq!(java.available().ok(), 2);
}

async fn a_ttl_is_kept_by_rust_and_dropped_by_java(redisson: Redisson) {
    let stage = Stage::new(redisson, "semaphore, time to live").await;
    let (ours, name) = (stage.client.semaphore(&stage.name), stage.name.as_str());
    let java = stage.one.semaphore(name);
    let ttl = || server().cli(&["PTTL", name]).int();
    assert!(ours.try_set_permits(3, LONG).await.unwrap());
    java.acquire(1).ok();
    java.release(1).ok();
    ours.add_permits(1).await.unwrap();
    assert_eq!(ours.drain_permits().await.unwrap(), 4);
    assert!((1..=60_000).contains(&ttl()));
    java.add_permits(1).ok();
    assert_eq!(ttl(), -1, "Redisson has learnt to keep it");
    java.delete().ok();

    assert!(ours.try_set_permits(3, ms(2_000)).await.unwrap());
    let permit = ours.acquire(1).await.unwrap();
    java.acquire(1).ok();
    eventually("it ends", || ttl() == -2).await;
    assert_eq!(java.available().ok(), 0);
    assert!(matches!(permit.release().await.unwrap_err(), Error::NotHeld { .. }));
    assert_eq!(ttl(), -2, "ours does not make it anew");
    java.release(1).ok();
    assert_eq!(ours.available().await.unwrap(), 1, "Java's does");
}

async fn permits_of_a_dead_process_are_lost_until_released(redisson: Redisson) {
    let stage = Stage::new(redisson, "semaphore, death").await;
    let (ours, name) = (stage.client.semaphore(&stage.name), stage.name.as_str());
    let java = stage.one.semaphore(name);
    ours.try_set_permits(1, None).await.unwrap();
    let child = killed_process(server(), "semaphore", LONG, name);
    child.expect_line("held");
    child.kill();
    let waits = java.acquire(1);
    assert!(waits.answer_within(ms(300)).is_none(), "nobody knows whose it was");
    ours.add_permits(1).await.unwrap();
    within(SOON, "it was given back", waits).await.ok();
}

/// Four threads of Java's and four tasks of ours, and how many are inside at once.
async fn at_most_as_many_holders_as_permits(redisson: Redisson) {
    const PERMITS: u64 = 3;
    const ROUNDS: usize = 40;
    let stage = Stage::new(redisson, "semaphore, stress").await;
    let semaphore = stage.client.semaphore(&stage.name);
    semaphore.try_set_permits(PERMITS, None).await.unwrap();
    let inside = Arc::new(Inside::default());
    let mut tasks = Vec::new();
    for number in 0..4 {
        let (peer, name, there) = (stage.peer, stage.name.clone(), Arc::clone(&inside));
        tasks.push(tokio::spawn(async move {
            let java = peer.on(&format!("{name} stress {number}")).semaphore(&name);
            for _ in 0..ROUNDS {
                java.acquire(1).await.ok();
                there.enter().await;
                java.release(1).await.ok();
            }
        }));
        let (ours, here) = (semaphore.clone(), Arc::clone(&inside));
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let permit = ours.acquire(1).await.unwrap();
                here.enter().await;
                permit.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        joined(task).await;
    }
    let most = inside.most.load(Ordering::SeqCst);
    assert_eq!(most, PERMITS as i64, "were inside at once");
    assert_eq!(stage.one.semaphore(&stage.name).available().ok(), PERMITS as i64);
}

/// Counts holders.
#[derive(Debug, Default)]
struct Inside {
    now: AtomicI64,
    most: AtomicI64,
}

impl Inside {
    /// Goes in, stays for a moment in which others may come, and goes out.
    async fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(ms(1)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}
