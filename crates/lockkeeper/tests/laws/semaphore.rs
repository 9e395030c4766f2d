//! The semaphore: permits without owners.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{AnyLock, Error, Semaphore, SemaphoreGuard};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

use crate::store::{Store, assert_is, eventually, poll_once};

/// Handles of two clients to one semaphore, which is not set up yet.
async fn bare(store: &Store) -> (Semaphore, Semaphore) {
    let name = store.name("permits");
    (store.client().await.semaphore(&name), store.client().await.semaphore(&name))
}

/// The same with so many permits.
async fn pair(store: &Store, permits: u64) -> (Semaphore, Semaphore) {
    let (ours, theirs) = bare(store).await;
    assert!(ours.try_set_permits(permits, None).await.unwrap());
    (ours, theirs)
}

/// Waits in a task of its own, and is known to listen: the first of its client to do so.
async fn listening(
    store: &Store,
    semaphore: &Semaphore,
    permits: u32,
) -> JoinHandle<SemaphoreGuard> {
    let name = store.name("permits");
    let before = store.listeners(&name);
    let request = semaphore.acquire(permits);
    let waiter = tokio::spawn(async move { request.await.unwrap() });
    eventually("the waiter listens", async || store.listeners(&name) > before).await;
    waiter
}

async fn free(semaphore: &Semaphore) -> i64 {
    semaphore.available().await.unwrap()
}

pub(crate) async fn a_semaphore_is_created_once(store: &Store) {
    let (ours, theirs) = bare(store).await;
    assert_eq!(free(&ours).await, 0, "there are none");
    assert!(ours.try_set_permits(3, None).await.unwrap());
    assert!(!ours.try_set_permits(5, None).await.unwrap());
    assert!(!theirs.try_set_permits(5, None).await.unwrap());
    assert!(!theirs.try_set_permits(5, store.long()).await.unwrap());
    assert_eq!(free(&theirs).await, 3, "it is left alone");
}

pub(crate) async fn permits_are_acquired_and_released(store: &Store) {
    let (ours, theirs) = pair(store, 5).await;
    let two = ours.acquire(2).await.unwrap();
    let three = theirs.try_acquire(3).await.unwrap().expect("there are three");
    assert_eq!((two.count(), three.count(), free(&ours).await), (2, 3, 0));
    assert_eq!(two.name().as_bytes(), store.name("permits").as_bytes());
    assert!(theirs.try_acquire(1).await.unwrap().is_none());
    assert!(theirs.try_acquire_for(1, Duration::ZERO).await.unwrap().is_none());
    two.release().await.unwrap();
    assert_eq!(free(&theirs).await, 2);
    assert!(theirs.try_acquire(3).await.unwrap().is_none(), "all of them or none");
    assert_eq!(free(&theirs).await, 2);
    three.release().await.unwrap();
    assert_eq!(free(&ours).await, 5);
}

pub(crate) async fn a_dropped_permit_is_released(store: &Store) {
    let (ours, theirs) = pair(store, 3).await;
    let permit = ours.acquire(3).await.unwrap();
    assert_eq!(free(&theirs).await, 0);
    drop(permit);
    eventually("it is given back", async || free(&theirs).await == 3).await;
    let panics = ours.acquire(2).await.unwrap();
    let task = tokio::spawn(async move {
        let _permit = panics;
        panic!("on purpose: it is given back all the same");
    });
    assert!(task.await.unwrap_err().is_panic());
    eventually("it is given back", async || free(&theirs).await == 3).await;
    drop(ours.acquire(1).await.unwrap().release());
    eventually("also unawaited", async || free(&theirs).await == 3).await;
}

pub(crate) async fn a_forgotten_permit_can_be_released_by_any_client(store: &Store) {
    let (ours, theirs) = pair(store, 4).await;
    ours.acquire(3).await.unwrap().forget();
    assert_eq!(free(&theirs).await, 1);
    // It stays away when its client goes.
    let client = store.client().await;
    client.semaphore(store.name("permits")).acquire(1).await.unwrap().forget();
    client.shutdown().await;
    assert_eq!(free(&theirs).await, 0);
    theirs.add_permits(4).await.unwrap();
    assert_eq!(free(&ours).await, 4);
}

pub(crate) async fn shutdown_releases_the_permits(store: &Store) {
    let (ours, _theirs) = pair(store, 3).await;
    let client = store.client().await;
    let semaphore = client.semaphore(store.name("permits"));
    let permit = semaphore.acquire(2).await.unwrap();
    let rest = ours.acquire(1).await.unwrap();
    let mut waits = Box::pin(semaphore.acquire(1));
    assert!(poll_once(&mut waits).is_pending());
    let waits = tokio::spawn(waits);
    client.shutdown().await;
    assert_is!(waits.await.unwrap(), Err(Error::Closed { .. }));
    assert_eq!(free(&ours).await, 2);
    assert_is!(semaphore.acquire(1).await, Err(Error::Closed { .. }));
    assert_is!(semaphore.add_permits(1).await, Err(Error::Closed { .. }));
    drop(permit);
    rest.release().await.unwrap();
    assert_eq!(free(&ours).await, 3, "none of them twice");
}

pub(crate) async fn permits_are_added_and_removed(store: &Store) {
    let (ours, theirs) = pair(store, 2).await;
    assert_eq!(ours.add_permits(3).await.unwrap(), 5);
    assert_eq!(theirs.add_permits(-4).await.unwrap(), 1);
    assert_eq!(theirs.add_permits(-3).await.unwrap(), -2, "also below zero");
    assert_eq!(free(&ours).await, -2);
    assert!(ours.try_acquire(1).await.unwrap().is_none());
    assert_eq!(ours.drain_permits().await.unwrap(), 0, "a debt is nothing to take");
    assert_eq!(ours.add_permits(0).await.unwrap(), -2);
    assert_eq!(ours.add_permits(7).await.unwrap(), 5);
    assert_eq!(theirs.drain_permits().await.unwrap(), 5);
    assert_eq!((free(&ours).await, theirs.drain_permits().await.unwrap()), (0, 0));
}

pub(crate) async fn a_semaphore_expires_and_is_not_recreated(store: &Store) {
    let (ours, theirs) = bare(store).await;
    let leaving = store.client().await;
    let start = store.timer();
    assert!(ours.try_set_permits(3, store.steady_lease()).await.unwrap());
    // Whatever is done with it does not move its end.
    ours.acquire(1).await.unwrap().release().await.unwrap();
    assert_eq!(ours.add_permits(2).await.unwrap(), 5);
    let (released, dropped) =
        (ours.acquire(1).await.unwrap(), leaving.semaphore(store.name("permits")));
    let dropped = dropped.acquire(1).await.unwrap();
    eventually("it has ended", async || theirs.add_permits(0).await.is_err()).await;
    start.took(store.steady_lease().mul_f64(0.95), store.steady_lease());
    assert_is!(released.release().await, Err(Error::NotHeld { .. }));
    drop(dropped);
    // The reaper is done when the client is shut down.
    leaving.shutdown().await;
    assert_is!(theirs.add_permits(1).await, Err(Error::Invalid { .. }));
    assert_is!(theirs.acquire(1).await, Err(Error::Invalid { .. }));
    assert_eq!(free(&theirs).await, 0);
    assert!(theirs.try_set_permits(2, None).await.unwrap(), "it was not made anew");
    assert_eq!(free(&ours).await, 2);
}

pub(crate) async fn invalid_arguments_are_rejected_and_change_nothing(store: &Store) {
    let (ours, _) = pair(store, 2).await;
    assert_is!(ours.acquire(0).await, Err(Error::Invalid { .. }));
    assert_is!(ours.try_acquire(0).await, Err(Error::Invalid { .. }));
    assert_is!(ours.try_acquire_for(0, store.long()).await, Err(Error::Invalid { .. }));
    for too_many in [1 << 54, u64::MAX] {
        assert_is!(ours.try_set_permits(too_many, None).await, Err(Error::Invalid { .. }));
        let ended = ours.try_set_permits(too_many, store.long()).await;
        assert_is!(ended, Err(Error::Invalid { .. }));
    }
    for too_many in [1 << 54, i64::MAX, i64::MIN, -(1 << 54)] {
        assert_is!(ours.add_permits(too_many).await, Err(Error::Invalid { .. }));
    }
    assert_is!(ours.try_set_permits(1, Duration::ZERO).await, Err(Error::Invalid { .. }));
    // Each alone can be counted, all together cannot.
    let most = (1 << 53) - 1;
    assert_is!(ours.add_permits(most).await, Err(Error::Invalid { .. }));
    assert_eq!(ours.add_permits(most - 2).await.unwrap(), most);
    assert_is!(ours.add_permits(1).await, Err(Error::Invalid { .. }));
    assert_eq!(ours.add_permits(2 - most).await.unwrap(), 2);
    let nameless = store.client().await.semaphore("");
    assert_is!(nameless.try_set_permits(1, None).await, Err(Error::Invalid { .. }));
    assert_is!(nameless.acquire(1).await, Err(Error::Invalid { .. }));
}

pub(crate) async fn a_semaphore_that_was_not_created_is_rejected(store: &Store) {
    let (ours, _) = bare(store).await;
    let says_how = |error: Error| match error {
        Error::Invalid { detail, lock } => {
            assert!(detail.contains("try_set_permits"), "{detail}");
            assert_eq!(lock.expect("named").to_string(), store.name("permits"));
        }
        other => panic!("expected Invalid, got {other:?}"),
    };
    says_how(store.promptly("at once", ours.acquire(1)).await.unwrap_err());
    says_how(ours.try_acquire(1).await.unwrap_err());
    says_how(ours.try_acquire_for(1, store.long()).await.unwrap_err());
    says_how(ours.add_permits(1).await.unwrap_err());
    says_how(ours.drain_permits().await.unwrap_err());
    assert_eq!(free(&ours).await, 0);
    assert_eq!(store.traces(&store.name("permits")), 0);
}

pub(crate) async fn a_name_of_another_kind_is_rejected(store: &Store) {
    let (client, name) = (store.client().await, store.name("permits"));
    let semaphore = client.semaphore(&name);
    let locks: [AnyLock; 3] =
        [client.lock(&name).into(), client.fair_lock(&name).into(), client.rw_lock(&name).reader()];
    for lock in locks {
        let guard = lock.lease(store.long()).lock().await.unwrap();
        assert_is!(semaphore.acquire(1).await, Err(Error::WrongKind { .. }));
        assert_is!(semaphore.try_acquire(1).await, Err(Error::WrongKind { .. }));
        assert_is!(semaphore.try_set_permits(1, None).await, Err(Error::WrongKind { .. }));
        assert_is!(semaphore.add_permits(1).await, Err(Error::WrongKind { .. }));
        assert_is!(semaphore.drain_permits().await, Err(Error::WrongKind { .. }));
        assert_is!(semaphore.available().await, Err(Error::WrongKind { .. }));
        guard.release().await.expect("nothing has changed");
    }
    let mutex = client.mutex(&name).lease(store.long()).lock().await.unwrap();
    assert_is!(semaphore.acquire(1).await, Err(Error::WrongKind { .. }));
    assert_is!(semaphore.add_permits(1).await, Err(Error::WrongKind { .. }));
    mutex.release().await.expect("nothing has changed");
    assert_eq!(store.traces(&name), 0);
    semaphore.try_set_permits(2, None).await.unwrap();
    assert_is!(client.lock(&name).lock().await, Err(Error::WrongKind { .. }));
    assert_is!(client.rw_lock(&name).read().await, Err(Error::WrongKind { .. }));
    assert_is!(client.fair_lock(&name).lock().await, Err(Error::WrongKind { .. }));
    assert_eq!(free(&semaphore).await, 2);
}

pub(crate) async fn a_waiter_is_woken_by_whatever_frees_permits(store: &Store) {
    let (ours, theirs) = pair(store, 2).await;
    let held = ours.acquire(2).await.unwrap();
    let mut held = Some(held);
    for how in 0..3 {
        let waiter = listening(store, &theirs, 2).await;
        match how {
            0 => held.take().expect("held").release().await.unwrap(),
            1 => drop(held.take()),
            _ => assert_eq!(ours.add_permits(2).await.unwrap(), 2),
        }
        let permit = store.promptly("the waiter is woken", waiter).await.unwrap();
        assert_eq!(permit.count(), 2);
        match how {
            0 => held = Some(permit),
            _ => permit.forget(),
        }
        // On memory who waits no longer is gone at once, and who holds something counts, too.
        let name = store.name("permits");
        let gone = async || store.is_paused() || store.listeners(&name) == 0;
        eventually("nobody waits", gone).await;
    }
}

pub(crate) async fn waiters_are_notified(store: &Store) {
    let (ours, theirs) = pair(store, 0).await;
    let name = store.name("permits");
    for how in ["it is given back", "it is dropped", "they are added"] {
        let turn = async || {
            let held = ours.add_permits(1).await.map(|_| ours.try_acquire(1)).unwrap();
            let held = held.await.unwrap().expect("there is one");
            let waiter = listening(store, &theirs, 1).await;
            let start = Instant::now();
            match how {
                "it is given back" => held.release().await.unwrap(),
                "it is dropped" => drop(held),
                _ => {
                    held.forget();
                    ours.add_permits(1).await.unwrap();
                }
            }
            waiter.await.unwrap().forget();
            let took = start.elapsed();
            eventually("no subscriber is left", async || store.listeners(&name) == 0).await;
            took
        };
        store.is_notified(how, turn).await;
    }
}

pub(crate) async fn a_waiter_of_the_same_client_is_woken_too(store: &Store) {
    let (ours, _) = pair(store, 1).await;
    let held = ours.acquire(1).await.unwrap();
    let waiter = listening(store, &ours, 1).await;
    let behind: Vec<_> = (0..3)
        .map(|_| {
            let request = ours.acquire(1);
            tokio::spawn(async move { request.await.unwrap().release().await.unwrap() })
        })
        .collect();
    held.release().await.unwrap();
    store.promptly("the first", waiter).await.unwrap().release().await.unwrap();
    for waiter in behind {
        store.promptly("those behind it", waiter).await.unwrap();
    }
    assert_eq!(free(&ours).await, 1);
}

/// Several permits become free at once: one message wakes enough waiters.
pub(crate) async fn as_many_waiters_acquire_as_there_are_permits(store: &Store) {
    let (ours, theirs) = pair(store, 8).await;
    let held = ours.acquire(8).await.unwrap();
    let mut waiters = vec![listening(store, &theirs, 1).await];
    waiters.extend((0..7).map(|_| {
        let request = theirs.acquire(1);
        tokio::spawn(async move { request.await.unwrap() })
    }));
    held.release().await.unwrap();
    let mut permits = Vec::new();
    for waiter in waiters {
        permits.push(store.promptly("all are let in", waiter).await.unwrap());
    }
    assert_eq!(free(&ours).await, 0, "all at the same time");
    drop(permits);
    eventually("all are given back", async || free(&ours).await == 8).await;
}

pub(crate) async fn a_waiter_acquires_after_the_semaphore_is_recreated(store: &Store) {
    let (ours, theirs) = bare(store).await;
    ours.try_set_permits(1, store.long()).await.unwrap();
    ours.acquire(1).await.unwrap().forget();
    let waiter = listening(store, &theirs, 2).await;
    // Gone and made anew before the waiter looks.
    match store.behind(&store.name("permits")) {
        Some(server) => drop(server.cli(&["DEL", &store.name("permits")]).ok()),
        None => return waiter.abort(),
    }
    assert!(ours.try_set_permits(2, None).await.unwrap());
    store.promptly("it is told", waiter).await.unwrap().release().await.unwrap();
}

pub(crate) async fn a_waiter_fails_when_the_semaphore_expires(store: &Store) {
    let (ours, theirs) = bare(store).await;
    ours.try_set_permits(1, store.steady_lease()).await.unwrap();
    let permit = ours.acquire(1).await.unwrap();
    let start = store.timer();
    assert_is!(theirs.acquire(1).await, Err(Error::Invalid { .. }));
    start.took(Duration::ZERO, store.steady_lease() + lockkeeper::RECHECK);
    drop(permit);
}

pub(crate) async fn a_waiter_times_out_at_its_wait_limit(store: &Store) {
    let (ours, theirs) = pair(store, 1).await;
    let name = store.name("permits");
    let permit = ours.acquire(1).await.unwrap();
    for semaphore in [&ours, &theirs] {
        let start = store.timer();
        let behind = semaphore.try_acquire_for(1, store.lease());
        let (first, second) = tokio::join!(semaphore.try_acquire_for(1, store.lease()), behind,);
        assert!(first.unwrap().is_none() && second.unwrap().is_none());
        start.took(store.lease().mul_f64(0.99), store.lease());
    }
    permit.release().await.unwrap();
    eventually("no subscriber is left", async || store.listeners(&name) == 0).await;
    assert_eq!(free(&ours).await, 1, "they have taken nothing");
}

pub(crate) async fn a_release_within_the_wait_limit_grants_the_lock(store: &Store) {
    let (ours, theirs) = pair(store, 1).await;
    let permit = ours.acquire(1).await.unwrap();
    let waiter = tokio::spawn(theirs.try_acquire_for(1, store.long()));
    let name = store.name("permits");
    eventually("it listens", async || store.listeners(&name) > 0).await;
    permit.release().await.unwrap();
    let permit = store.promptly("it is woken", waiter).await.unwrap().unwrap();
    permit.expect("in time").release().await.unwrap();
}

pub(crate) async fn hundreds_of_waiters_share_few_permits(store: &Store) {
    const PERMITS: i64 = 4;
    let (ours, theirs) = pair(store, PERMITS as u64).await;
    let (inside, served) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..300 {
        let semaphore = if task % 2 == 0 { ours.clone() } else { theirs.clone() };
        let (inside, served) = (Arc::clone(&inside), Arc::clone(&served));
        let count = 1 + task as u32 % 3;
        tasks.spawn(async move {
            let permit = semaphore.acquire(count).await.unwrap();
            let now = inside.fetch_add(i64::from(count), Ordering::SeqCst) + i64::from(count);
            assert!(now <= PERMITS, "{now} of {PERMITS} permits");
            tokio::task::yield_now().await;
            served.fetch_add(1, Ordering::Relaxed);
            inside.fetch_sub(i64::from(count), Ordering::SeqCst);
            match task % 5 {
                0 => drop(permit),
                _ => permit.release().await.unwrap(),
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(served.load(Ordering::Relaxed), 300);
    eventually("none is lost", async || free(&ours).await == PERMITS).await;
    let name = store.name("permits");
    eventually("no subscriber is left", async || store.listeners(&name) == 0).await;
}

pub(crate) async fn random_cancellations_lose_no_permit(store: &Store) {
    let (ours, theirs) = pair(store, 3).await;
    let mut tasks = JoinSet::new();
    for task in 0..8_u64 {
        let semaphore = if task % 2 == 0 { ours.clone() } else { theirs.clone() };
        tasks.spawn(async move {
            for cycle in 0..60_u64 {
                let count = 1 + ((task + cycle) % 3) as u32;
                let patience = Duration::from_micros((cycle * 37 + task * 11) % 700);
                match timeout(patience, semaphore.acquire(count)).await {
                    Ok(permit) if cycle % 3 == 0 => drop(permit.unwrap()),
                    Ok(permit) => drop(timeout(patience / 9, permit.unwrap().release()).await),
                    Err(_) => {}
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    eventually("none is lost or made", async || free(&ours).await == 3).await;
    for semaphore in [&ours, &theirs] {
        let all = store.promptly("all can be had", semaphore.acquire(3)).await.unwrap();
        all.release().await.unwrap();
    }
    let name = store.name("permits");
    eventually("no subscriber is left", async || store.listeners(&name) == 0).await;
}

/// The first in the line walks away in the moment in which permits come.
pub(crate) async fn a_cancelled_waiter_wakes_the_next_one(store: &Store) {
    let (ours, theirs) = pair(store, 1).await;
    for _ in 0..20 {
        let permit = ours.acquire(1).await.unwrap();
        let first = listening(store, &theirs, 1).await;
        let second = tokio::spawn(theirs.acquire(1));
        let release = permit.release();
        first.abort();
        release.await.unwrap();
        let second = store.promptly("the second is served", second).await.unwrap().unwrap();
        second.release().await.unwrap();
        eventually("none is lost", async || free(&ours).await == 1).await;
        let name = store.name("permits");
        eventually("no subscriber is left", async || store.listeners(&name) == 0).await;
    }
}

/// One permit of two is free. Local waiters for one permit queue behind a waiter for both.
pub(crate) async fn a_waiter_for_many_permits_is_not_overtaken(store: &Store) {
    let (ours, _) = pair(store, 2).await;
    let first = ours.acquire(1).await.unwrap();
    let many = listening(store, &ours, 2).await;
    let few = tokio::spawn(ours.acquire(1));
    assert!(ours.try_acquire_for(1, store.lease()).await.unwrap().is_none());
    assert!(!few.is_finished());
    // An attempt that does not wait does not queue.
    let passing = ours.try_acquire(1).await.unwrap().expect("one is free");
    passing.release().await.unwrap();
    first.release().await.unwrap();
    let many = store.promptly("the waiter for both", many).await.unwrap();
    assert!(!few.is_finished(), "none is free");
    many.release().await.unwrap();
    let few = store.promptly("the waiter for one", few).await.unwrap();
    few.unwrap().release().await.unwrap();
    assert_eq!(free(&ours).await, 2);
}
