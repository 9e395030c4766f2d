//! The permit semaphore: permits with ids and leases, held by guards.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::backend::{Acquire, Attempt, Resource};
use lockkeeper::{
    AnyLock, Client, Error, Kind, LostReason, OwnerId, PermitGuard, PermitId, PermitSemaphore, Ttl,
};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::store::{Store, assert_is, eventually};

/// The remaining lease of a permit.
async fn left(semaphore: &PermitSemaphore, id: PermitId) -> Duration {
    match semaphore.remaining(id).await {
        Ok(Some(Ttl::For(left))) => left,
        other => panic!("expected a lease, got {other:?}"),
    }
}

/// Handles of two clients to one semaphore with so many permits.
async fn pair(store: &Store, permits: u64) -> (PermitSemaphore, PermitSemaphore) {
    let name = store.name("permits");
    let (ours, theirs) = (store.client().await, store.client().await);
    let (ours, theirs) = (ours.permit_semaphore(&name), theirs.permit_semaphore(&name));
    assert!(ours.try_set_permits(permits, None).await.unwrap());
    (ours, theirs)
}

/// Free, taken, and both.
async fn counts(semaphore: &PermitSemaphore) -> (i64, u64, i64) {
    let free = semaphore.available().await.unwrap();
    (free, semaphore.acquired().await.unwrap(), semaphore.permits().await.unwrap())
}

/// Waits in a task of its own, and is known to listen: the first of its client to do so.
async fn listening(
    store: &Store,
    semaphore: &PermitSemaphore,
    permits: u32,
) -> JoinHandle<PermitGuard> {
    let name = store.name("permits");
    let before = store.listeners(&name);
    let request = semaphore.acquire(permits);
    let waiter = tokio::spawn(async move { request.await.unwrap() });
    eventually("the waiter listens", async || store.listeners(&name) > before).await;
    waiter
}

/// Permits of a process that died.
async fn dead(store: &Store, semaphore: &PermitSemaphore, permits: u32, lease: Duration) {
    let owner = OwnerId::fresh(Client::memory().id());
    let resource = Resource { kind: Kind::Permits, name: semaphore.name().clone() };
    let request = Acquire::new(resource, owner, lease.as_millis() as u64);
    let request = Acquire { count: permits, ..request };
    assert_eq!(store.backend().await.acquire(request).await, Ok(Attempt::GRANTED));
}

pub(crate) async fn a_semaphore_is_created_once(store: &Store) {
    let name = store.name("permits");
    let ours = store.client().await.permit_semaphore(&name);
    assert_eq!(counts(&ours).await, (0, 0, 0), "there are none");
    assert!(ours.try_set_permits(3, None).await.unwrap());
    let theirs = store.client().await.permit_semaphore(&name);
    assert!(!theirs.try_set_permits(5, None).await.unwrap());
    assert!(!theirs.try_set_permits(5, store.long()).await.unwrap());
    assert_eq!(counts(&theirs).await, (3, 0, 3), "it is left alone");
}

pub(crate) async fn permits_are_acquired_and_released(store: &Store) {
    let (ours, theirs) = pair(store, 5).await;
    let one = ours.lease(store.long()).acquire(1).await.unwrap();
    let three = theirs.lease(store.long()).try_acquire(3).await.unwrap().expect("there are four");
    assert_eq!((one.permit_ids().len(), three.permit_ids().len()), (1, 3));
    assert_eq!(counts(&ours).await, (1, 4, 5));
    assert!(ours.try_acquire(2).await.unwrap().is_none(), "all of them or none");
    assert_eq!(counts(&ours).await, (1, 4, 5));
    three.release().await.unwrap();
    assert_eq!(counts(&ours).await, (4, 1, 5));
    drop(one);
    eventually("it is given back", async || counts(&theirs).await == (5, 0, 5)).await;
    assert_eq!(store.traces(&store.name("permits")), 1, "only the number is left");
}

pub(crate) async fn every_permit_has_an_id_of_its_own(store: &Store) {
    let (ours, theirs) = pair(store, 40).await;
    let mut ids: Vec<PermitId> = Vec::new();
    let mut guards = Vec::new();
    for cycle in 0..10 {
        let semaphore = if cycle % 2 == 0 { &ours } else { &theirs };
        let guard = semaphore.lease(store.long()).acquire(1 + cycle % 4).await.unwrap();
        ids.extend(guard.permit_ids());
        guards.push(guard);
    }
    let all = ids.len();
    assert_eq!(ours.acquired().await.unwrap(), all as u64);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "no id is used twice");
    assert_eq!(ids[0].to_string().parse(), Ok(ids[0]));
    assert!(ours.release(&ids).await.unwrap(), "by their ids, also those of others");
    assert_eq!(counts(&theirs).await, (40, 0, 40));
    for guard in guards {
        assert_is!(guard.release().await, Err(Error::NotHeld { .. }));
    }
    assert_eq!(counts(&theirs).await, (40, 0, 40), "none of them twice");
}

pub(crate) async fn permits_without_a_lease_are_renewed(store: &Store) {
    let (ours, theirs) = pair(store, 3).await;
    let guard = ours.acquire(2).await.unwrap();
    sleep(store.watchdog() * 2).await;
    assert!(!guard.is_lost());
    assert_eq!(counts(&theirs).await, (1, 2, 3));
    guard.release().await.unwrap();
    assert_eq!(counts(&theirs).await, (3, 0, 3));
}

pub(crate) async fn permits_of_a_fixed_lease_expire_and_are_reported_lost(store: &Store) {
    let (ours, theirs) = pair(store, 3).await;
    let start = store.timer();
    let guard = ours.lease(store.lease()).acquire(2).await.unwrap();
    assert_eq!(store.signalled(guard.lost()).await, LostReason::Expired);
    start.took(Duration::ZERO, store.lease());
    eventually("they free themselves", async || counts(&theirs).await == (3, 0, 3)).await;
    start.took(Duration::ZERO, store.lease());
    // Taken by another meanwhile: whoever comes late does not take it away.
    let next = theirs.lease(store.long()).acquire(3).await.unwrap();
    assert_is!(guard.release().await, Err(Error::NotHeld { .. }));
    assert_eq!(counts(&theirs).await, (0, 3, 3));
    assert!(!next.is_lost());
    next.release().await.unwrap();
}

pub(crate) async fn permits_released_by_another_client_are_lost(store: &Store) {
    let (ours, theirs) = pair(store, 3).await;
    for fixed in [false, true] {
        let lease = if fixed { ours.lease(store.long() * 4) } else { ours.clone() };
        let guard = lease.acquire(2).await.unwrap();
        let other = ours.acquire(1).await.unwrap();
        // One of the two is enough.
        assert!(theirs.release(&guard.permit_ids()[1..]).await.unwrap());
        assert_eq!(store.signalled(guard.lost()).await, LostReason::Deleted);
        assert!(!other.is_lost());
        drop(guard);
        eventually("the other of the two, too", async || counts(&theirs).await == (2, 1, 3)).await;
        other.release().await.unwrap();
    }
    assert_eq!(counts(&theirs).await, (3, 0, 3));
}

pub(crate) async fn the_remaining_lease_of_a_permit_can_be_asked(store: &Store) {
    let (ours, theirs) = pair(store, 5).await;
    let (guard, long) = (ours.lease(store.long()).acquire(2).await.unwrap(), store.long());
    let renewed = ours.acquire(1).await.unwrap();
    for id in guard.permit_ids() {
        let left = left(&theirs, id).await;
        assert!(left <= long && left > long / 2, "{left:?}");
    }
    assert!(guard.remaining() <= long && guard.remaining() > long / 2, "{:?}", guard.remaining());
    assert_is!(theirs.remaining(renewed.permit_ids()[0]).await, Ok(Some(Ttl::For(_))));
    let id = guard.permit_ids()[1];
    assert!(theirs.extend(id, long * 4).await.unwrap());
    assert!(left(&ours, id).await > long * 2);
    assert_eq!(ours.remaining(PermitId::from_bytes([7; 16])).await.unwrap(), None);
    guard.release().await.unwrap();
    assert_eq!(ours.remaining(id).await.unwrap(), None, "it was released");
    dead(store, &ours, 1, store.lease()).await;
    assert_eq!(counts(&ours).await, (3, 2, 5), "asking changes nothing");

    let client = store.client().await;
    let other = client.permit_semaphore(store.name("other"));
    assert_eq!(other.remaining(id).await.unwrap(), None, "there is none");
    let lock = client.lock(store.name("other")).lease(long).lock().await.unwrap();
    assert_is!(other.remaining(id).await, Err(Error::WrongKind { .. }));
    drop((lock, renewed));
}

pub(crate) async fn permits_are_released_by_id_all_or_none(store: &Store) {
    let (ours, theirs) = pair(store, 4).await;
    let one = ours.lease(store.long()).acquire(1).await.unwrap();
    let two = ours.lease(store.long()).acquire(2).await.unwrap();
    let (mut ids, unknown) = (two.permit_ids(), PermitId::from_bytes([7; 16]));
    ids.push(unknown);
    assert!(!theirs.release(&ids).await.unwrap());
    assert!(!theirs.release(&[unknown]).await.unwrap());
    assert_eq!(counts(&ours).await, (1, 3, 4), "none of them");
    assert_is!(theirs.release(&[]).await, Err(Error::Invalid { .. }));
    ids.pop();
    // Named twice is named once.
    ids.extend(two.permit_ids());
    assert!(theirs.release(&ids).await.unwrap());
    assert_eq!(counts(&ours).await, (3, 1, 4));
    assert!(!theirs.release(&two.permit_ids()).await.unwrap(), "only once");
    assert_eq!(counts(&ours).await, (3, 1, 4));
    one.release().await.unwrap();
    drop(two);
}

pub(crate) async fn a_lease_can_be_set_by_permit_id(store: &Store) {
    let (ours, theirs) = pair(store, 2).await;
    let guard = ours.lease(store.long() * 4).acquire(1).await.unwrap();
    let id = guard.permit_ids()[0];
    guard.leave_for(store.long() * 4).await.unwrap();
    let start = store.timer();
    assert!(theirs.extend(id, store.steady_lease()).await.unwrap(), "it may shorten it");
    assert_eq!(counts(&ours).await, (1, 1, 2));
    eventually("it ends then", async || counts(&ours).await == (2, 0, 2)).await;
    start.took(store.steady_lease().mul_f64(0.95), store.steady_lease());
    assert!(!theirs.extend(id, store.steady_lease()).await.unwrap(), "it is not taken any more");
    assert_eq!(counts(&ours).await, (2, 0, 2));
    assert_is!(theirs.extend(id, Duration::ZERO).await, Err(Error::Invalid { .. }));
}

pub(crate) async fn extend_and_leave_for_set_a_new_lease(store: &Store) {
    let (ours, theirs) = pair(store, 3).await;
    let guard = ours.lease(store.steady_lease()).acquire(2).await.unwrap();
    guard.extend(store.long()).await.unwrap();
    assert!(guard.remaining() > store.long() / 2);
    sleep(store.steady_lease() * 5 / 4).await;
    assert!(!guard.is_lost());
    assert_eq!(counts(&theirs).await, (1, 2, 3));
    let start = store.timer();
    guard.leave_for(store.steady_lease()).await.unwrap();
    assert_eq!(counts(&theirs).await, (1, 2, 3), "they are still taken");
    eventually("they end then", async || counts(&theirs).await == (3, 0, 3)).await;
    start.took(store.steady_lease().mul_f64(0.95), store.steady_lease());
    // A lost one cannot.
    let guard = ours.lease(store.steady_lease()).acquire(1).await.unwrap();
    store.signalled(guard.lost()).await;
    assert_is!(guard.extend(store.long()).await, Err(Error::Lost { .. }));
    assert_is!(lockkeeper::AnyGuard::from(guard).reenter().await, Err(Error::Invalid { .. }));
}

pub(crate) async fn the_total_may_be_set_and_changed(store: &Store) {
    let name = store.name("permits");
    let ours = store.client().await.permit_semaphore(&name);
    ours.set_permits(2).await.unwrap();
    assert_eq!(counts(&ours).await, (2, 0, 2), "it sets it up if need be");
    let guard = ours.lease(store.long()).acquire(2).await.unwrap();
    ours.set_permits(5).await.unwrap();
    assert_eq!(counts(&ours).await, (3, 2, 5));
    ours.set_permits(1).await.unwrap();
    assert_eq!(counts(&ours).await, (-1, 2, 1), "those that are taken stay taken");
    assert!(ours.try_acquire(1).await.unwrap().is_none());
    assert_eq!(ours.add_permits(4).await.unwrap(), 3);
    assert_eq!(ours.add_permits(-2).await.unwrap(), 1);
    assert_eq!(counts(&ours).await, (1, 2, 3));
    guard.release().await.unwrap();
    assert_eq!(counts(&ours).await, (3, 0, 3));
}

pub(crate) async fn invalid_arguments_are_rejected_and_change_nothing(store: &Store) {
    let (ours, _) = pair(store, 2).await;
    assert_is!(ours.acquire(0).await, Err(Error::Invalid { .. }));
    assert_is!(ours.try_acquire_for(0, store.long()).await, Err(Error::Invalid { .. }));
    assert_is!(ours.acquire(10_001).await, Err(Error::Invalid { .. }));
    assert_is!(ours.lease(Duration::ZERO).acquire(1).await, Err(Error::Invalid { .. }));
    let short = ours.lease(lockkeeper::LeaseTime::Renewed(Duration::from_millis(1)));
    assert_is!(short.acquire(1).await, Err(Error::Invalid { .. }));
    assert_is!(ours.set_permits(1 << 54).await, Err(Error::Invalid { .. }));
    assert_is!(ours.try_set_permits(u64::MAX, None).await, Err(Error::Invalid { .. }));
    assert_is!(ours.add_permits(i64::MIN).await, Err(Error::Invalid { .. }));
    assert_is!(ours.add_permits((1 << 53) - 1).await, Err(Error::Invalid { .. }));
    assert_is!(ours.temporary(1 << 54).acquire(1).await, Err(Error::Invalid { .. }));
    assert_eq!(counts(&ours).await, (2, 0, 2));
    let unset = store.client().await.permit_semaphore(store.name("unset"));
    let says_how = |error: Error| match error {
        Error::Invalid { detail, .. } => assert!(detail.contains("try_set_permits"), "{detail}"),
        other => panic!("expected Invalid, got {other:?}"),
    };
    says_how(store.promptly("at once", unset.acquire(1)).await.unwrap_err());
    says_how(unset.try_acquire_for(1, store.long()).await.unwrap_err());
    says_how(unset.add_permits(1).await.unwrap_err());
    assert!(!unset.release(&[PermitId::from_bytes([1; 16])]).await.unwrap());
    assert_eq!(store.traces(&store.name("unset")), usize::from(store.counts_all()));
}

pub(crate) async fn a_name_of_another_kind_is_rejected(store: &Store) {
    let (client, name) = (store.client().await, store.name("permits"));
    let semaphore = client.permit_semaphore(&name);
    let locks: [AnyLock; 3] =
        [client.lock(&name).into(), client.mutex(&name).into(), client.rw_lock(&name).reader()];
    for lock in locks {
        let guard = lock.lease(store.long()).lock().await.unwrap();
        assert_is!(semaphore.acquire(1).await, Err(Error::WrongKind { .. }));
        assert_is!(semaphore.try_acquire(1).await, Err(Error::WrongKind { .. }));
        assert_is!(semaphore.try_set_permits(1, None).await, Err(Error::WrongKind { .. }));
        assert_is!(semaphore.set_permits(1).await, Err(Error::WrongKind { .. }));
        assert_is!(semaphore.add_permits(1).await, Err(Error::WrongKind { .. }));
        assert_is!(semaphore.available().await, Err(Error::WrongKind { .. }));
        assert_is!(semaphore.acquired().await, Err(Error::WrongKind { .. }));
        let id = PermitId::from_bytes([1; 16]);
        assert_is!(semaphore.release(&[id]).await, Err(Error::WrongKind { .. }));
        guard.release().await.expect("nothing has changed");
    }
    assert_eq!(store.traces(&name), 0);
}

pub(crate) async fn a_semaphore_expires_and_is_not_recreated(store: &Store) {
    let (client, name) = (store.client().await, store.name("permits"));
    let semaphore = client.permit_semaphore(&name);
    assert!(semaphore.try_set_permits(3, store.steady_lease()).await.unwrap());
    let released = semaphore.lease(store.long()).acquire(1).await.unwrap();
    let dropped = semaphore.lease(store.long()).acquire(1).await.unwrap();
    eventually("it has ended", async || semaphore.add_permits(0).await.is_err()).await;
    drop(released.release().await);
    drop(dropped);
    assert_is!(semaphore.acquire(1).await, Err(Error::Invalid { .. }));
    client.shutdown().await;
    let anew = store.client().await.permit_semaphore(&name);
    assert!(anew.try_set_permits(2, None).await.unwrap(), "it was not made anew");
    assert_eq!(counts(&anew).await, (2, 0, 2));
}

pub(crate) async fn a_temporary_semaphore_is_deleted_with_its_last_permit(store: &Store) {
    let name = store.name("permits");
    let ours = store.client().await.permit_semaphore(&name).temporary(2);
    let theirs = store.client().await.permit_semaphore(&name).temporary(2);
    let one = ours.lease(store.long()).acquire(1).await.unwrap();
    assert!(ours.is_temporary().await.unwrap());
    let two = theirs.try_acquire(1).await.unwrap().expect("one is free");
    assert_eq!(counts(&ours).await, (0, 2, 2));
    assert!(ours.try_acquire(1).await.unwrap().is_none());
    one.release().await.unwrap();
    assert_eq!(counts(&theirs).await, (1, 1, 2), "one is still held");
    two.release().await.unwrap();
    assert!(!ours.is_temporary().await.unwrap());
    assert_eq!((counts(&ours).await, store.traces(&name)), ((0, 0, 0), 0), "nothing is left");
    // The name is free for anything.
    let lock = store.client().await.lock(&name).try_lock().await.unwrap().expect("it is free");
    lock.release().await.unwrap();
    // By id, as an operator does it.
    let guard = ours.lease(store.long()).acquire(2).await.unwrap();
    let ids = guard.permit_ids();
    assert!(theirs.release(&ids[..1]).await.unwrap());
    assert_eq!(counts(&theirs).await, (1, 1, 2));
    assert!(theirs.release(&ids[1..]).await.unwrap());
    assert_eq!(counts(&theirs).await, (0, 0, 0));
}

pub(crate) async fn a_temporary_semaphore_expires_with_its_last_lease(store: &Store) {
    let name = store.name("permits");
    let client = store.client().await;
    let semaphore = client.permit_semaphore(&name).temporary(3);
    let renewed = semaphore.acquire(1).await.unwrap();
    dead_temporary(store, &semaphore, store.steady_lease()).await;
    assert_eq!(counts(&semaphore).await, (1, 2, 3));
    sleep(store.watchdog() * 2).await;
    assert_eq!(counts(&semaphore).await, (2, 1, 3), "renewals keep it");
    drop(renewed);
    eventually("it goes", async || counts(&semaphore).await == (0, 0, 0)).await;
    dead_temporary(store, &semaphore, store.steady_lease()).await;
    eventually("it ends", async || counts(&semaphore).await == (0, 0, 0)).await;
    assert!(client.lock(&name).try_lock().await.unwrap().is_some(), "the name is free");
}

/// A permit of a process that died, of a semaphore that it has made.
async fn dead_temporary(store: &Store, semaphore: &PermitSemaphore, lease: Duration) {
    let owner = OwnerId::fresh(Client::memory().id());
    let resource = Resource { kind: Kind::Permits, name: semaphore.name().clone() };
    let request = Acquire::new(resource, owner, lease.as_millis() as u64);
    let request = Acquire { temporary: Some(3), ..request };
    assert_eq!(store.backend().await.acquire(request).await, Ok(Attempt::GRANTED));
}

pub(crate) async fn a_temporary_acquire_counts_by_its_own_number(store: &Store) {
    let semaphore = store.client().await.permit_semaphore(store.name("permits"));
    let (two, three, one) =
        (semaphore.temporary(2), semaphore.temporary(3), semaphore.temporary(1));
    let first = two.lease(store.long()).acquire(2).await.unwrap();
    assert!(two.try_acquire(1).await.unwrap().is_none());
    assert!(one.try_acquire(1).await.unwrap().is_none(), "two are taken already");
    assert_eq!(counts(&semaphore).await, (0, 2, 2), "who gets nothing changes nothing");
    let third =
        three.lease(store.long()).try_acquire(1).await.unwrap().expect("the third of three");
    assert_eq!(counts(&semaphore).await, (0, 3, 3));
    third.release().await.unwrap();
    assert!(two.try_acquire(1).await.unwrap().is_none(), "two are taken");
    assert_eq!(counts(&semaphore).await, (1, 2, 3));
    first.release().await.unwrap();
    assert_eq!(counts(&semaphore).await, (0, 0, 0));
    let only = one.lease(store.long()).try_acquire(1).await.unwrap().expect("it is gone");
    assert_eq!(counts(&semaphore).await, (0, 1, 1));
    only.release().await.unwrap();
}

pub(crate) async fn a_waiter_recreates_a_temporary_semaphore(store: &Store) {
    let name = store.name("permits");
    let ours = store.client().await.permit_semaphore(&name).temporary(1);
    let theirs = store.client().await.permit_semaphore(&name).temporary(1);
    let guard = ours.lease(store.long()).acquire(1).await.unwrap();
    let waiter = listening(store, &theirs, 1).await;
    guard.release().await.unwrap();
    let next = store.promptly("it is woken", waiter).await.unwrap();
    assert_eq!(counts(&ours).await, (0, 1, 1));
    next.release().await.unwrap();
    assert_eq!(counts(&ours).await, (0, 0, 0));
}

pub(crate) async fn a_permanent_semaphore_is_not_temporary(store: &Store) {
    let (ours, theirs) = pair(store, 2).await;
    let (less, more) = (ours.temporary(1), ours.temporary(9));
    let guard = less.lease(store.long()).acquire(2).await.unwrap();
    assert!(!ours.is_temporary().await.unwrap());
    assert!(more.try_acquire(1).await.unwrap().is_none(), "its number is its own");
    assert_eq!(counts(&theirs).await, (0, 2, 2));
    guard.release().await.unwrap();
    assert_eq!(counts(&theirs).await, (2, 0, 2), "it stays");
    // A number that is set lasts.
    let name = store.name("adopted");
    let semaphore = store.client().await.permit_semaphore(&name);
    let guard = semaphore.temporary(2).lease(store.long()).acquire(1).await.unwrap();
    semaphore.set_permits(4).await.unwrap();
    assert!(!semaphore.is_temporary().await.unwrap());
    guard.release().await.unwrap();
    assert_eq!(counts(&semaphore).await, (4, 0, 4));
}

pub(crate) async fn a_waiter_is_woken_by_whatever_frees_permits(store: &Store) {
    let (ours, theirs) = pair(store, 2).await;
    for how in 0..5 {
        let held = ours.lease(store.long()).acquire(2).await.unwrap();
        store.receives_notices_of(&held).await;
        // This one may have waited for what the last round gave back.
        store.subscriptions_have_ended(&store.name("permits")).await;
        let waiter = listening(store, &theirs, 2).await;
        let ids = held.permit_ids();
        match how {
            0 => held.release().await.unwrap(),
            1 => drop(held),
            2 => assert!(theirs.release(&ids).await.unwrap()),
            3 => assert_eq!(ours.add_permits(2).await.unwrap(), 2),
            _ => ours.set_permits(4).await.unwrap(),
        }
        let guard = store.promptly("the waiter is woken", waiter).await.unwrap();
        assert_eq!(guard.permit_ids().len(), 2);
        guard.release().await.unwrap();
        ours.set_permits(2).await.unwrap();
        let name = store.name("permits");
        let listens = usize::from(store.counts_all());
        eventually("nobody waits", async || store.listeners(&name) <= 2 * listens).await;
    }
}

pub(crate) async fn waiters_are_notified(store: &Store) {
    let (ours, theirs) = pair(store, 1).await;
    let name = store.name("permits");
    for how in ["it is given back", "it is dropped", "by its id", "they are added", "it is set"] {
        let turn = async || {
            let held = ours.lease(store.long()).acquire(1).await.unwrap();
            store.receives_notices_of(&held).await;
            let waiter = listening(store, &theirs, 1).await;
            let (start, ids, mut held) = (Instant::now(), held.permit_ids(), Some(held));
            match how {
                "it is given back" => held.take().expect("held").release().await.unwrap(),
                "it is dropped" => drop(held.take()),
                "by its id" => assert!(theirs.release(&ids).await.unwrap()),
                "they are added" => assert_eq!(ours.add_permits(1).await.unwrap(), 1),
                _ => ours.set_permits(2).await.unwrap(),
            }
            let guard = waiter.await.unwrap();
            let took = start.elapsed();
            guard.release().await.unwrap();
            drop(held);
            eventually("all are back", async || counts(&ours).await.1 == 0).await;
            ours.set_permits(1).await.unwrap();
            // In memory the two notice topics stay.
            let topics = if store.counts_all() { 2 } else { 0 };
            eventually("no subscriber is left", async || store.listeners(&name) <= topics).await;
            took
        };
        store.is_notified(how, turn).await;
    }
}

/// No message is published: the waiter re-checks.
pub(crate) async fn a_shortened_lease_is_found_within_the_recheck(store: &Store) {
    let (ours, theirs) = pair(store, 1).await;
    let held = ours.lease(store.long()).acquire(1).await.unwrap();
    let waiter = listening(store, &theirs, 1).await;
    let start = store.timer();
    held.leave_for(store.lease() / 4).await.unwrap();
    let guard = timeout(store.long(), waiter).await.expect("it looks again").unwrap();
    start.took((store.lease() / 4).mul_f64(0.95), store.lease() / 4 + lockkeeper::RECHECK);
    guard.release().await.unwrap();
}

/// The permits are neither released nor renewed.
pub(crate) async fn a_waiter_acquires_when_the_lease_of_a_dead_holder_expires(store: &Store) {
    let (ours, theirs) = pair(store, 3).await;
    let start = store.timer();
    dead(store, &ours, 1, store.long()).await;
    dead(store, &ours, 2, store.steady_lease()).await;
    assert_eq!(counts(&ours).await, (0, 3, 3));
    let one = |semaphore: &PermitSemaphore| semaphore.lease(store.long()).acquire(1);
    let (one, two) = tokio::join!(one(&ours), one(&theirs));
    start.took(store.steady_lease().mul_f64(0.95), store.steady_lease());
    assert_eq!(counts(&ours).await, (0, 3, 3));
    one.unwrap().release().await.unwrap();
    two.unwrap().release().await.unwrap();
    assert_eq!(counts(&ours).await, (2, 1, 3));
}

pub(crate) async fn a_waiter_times_out_at_its_wait_limit(store: &Store) {
    let (ours, theirs) = pair(store, 1).await;
    let guard = ours.acquire(1).await.unwrap();
    for semaphore in [&ours, &theirs] {
        let start = store.timer();
        assert!(semaphore.try_acquire_for(1, store.lease()).await.unwrap().is_none());
        start.took(store.lease().mul_f64(0.99), store.lease());
    }
    assert_eq!(counts(&ours).await, (0, 1, 1));
    guard.release().await.unwrap();
    assert_eq!(counts(&ours).await, (1, 0, 1));
}

pub(crate) async fn work_runs_under_permits(store: &Store) {
    let (ours, theirs) = pair(store, 2).await;
    let ran = ours.run(2, async |_hold| counts(&theirs).await).await.unwrap();
    assert_eq!(ran.output, (0, 2, 2));
    assert_eq!(counts(&theirs).await, (2, 0, 2));
}

pub(crate) async fn shutdown_releases_the_permits(store: &Store) {
    let (ours, _) = pair(store, 3).await;
    let client = store.client().await;
    let semaphore = client.permit_semaphore(store.name("permits"));
    let guard = semaphore.acquire(2).await.unwrap();
    let name = store.name("permits");
    store.receives_notices_of(&guard).await;
    let before = store.listeners(&name);
    let waits = tokio::spawn(semaphore.acquire(2));
    eventually("it waits", async || store.listeners(&name) > before).await;
    client.shutdown().await;
    assert_is!(waits.await.unwrap(), Err(Error::Closed { .. }));
    assert_eq!(store.signalled(guard.lost()).await, LostReason::Closed);
    assert_eq!(counts(&ours).await, (3, 0, 3));
    drop(guard);
    assert_eq!(counts(&ours).await, (3, 0, 3));
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
            let guard = semaphore.acquire(count).await.unwrap();
            let now = inside.fetch_add(i64::from(count), Ordering::SeqCst) + i64::from(count);
            assert!(now <= PERMITS, "{now} of {PERMITS} permits");
            tokio::task::yield_now().await;
            served.fetch_add(1, Ordering::Relaxed);
            inside.fetch_sub(i64::from(count), Ordering::SeqCst);
            match task % 5 {
                0 => drop(guard),
                _ => guard.release().await.unwrap(),
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(served.load(Ordering::Relaxed), 300);
    eventually("none is lost", async || counts(&ours).await == (PERMITS, 0, PERMITS)).await;
}

pub(crate) async fn random_cancellations_lose_no_permit(store: &Store) {
    let (ours, theirs) = pair(store, 3).await;
    let long = store.long();
    let mut tasks = JoinSet::new();
    for task in 0..8_u64 {
        let semaphore = if task % 2 == 0 { ours.clone() } else { theirs.clone() };
        tasks.spawn(async move {
            for cycle in 0..60_u64 {
                let count = 1 + ((task + cycle) % 3) as u32;
                let patience = Duration::from_micros((cycle * 37 + task * 11) % 700);
                let request = semaphore.lease(long).acquire(count);
                match timeout(patience, request).await {
                    Ok(guard) if cycle % 3 == 0 => drop(guard.unwrap()),
                    Ok(guard) => drop(timeout(patience / 9, guard.unwrap().release()).await),
                    Err(_) => {}
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    eventually("none is lost or made", async || counts(&ours).await == (3, 0, 3)).await;
    let name = store.name("permits");
    eventually("only the number is left", async || store.traces(&name) == 1).await;
    eventually("no subscriber is left", async || store.listeners(&name) == 0).await;
}

/// All permits of a holder that died are free, not only the first hundred.
pub(crate) async fn hundreds_of_expired_permits_are_free_at_once(store: &Store) {
    let (ours, _) = pair(store, 300).await;
    dead(store, &ours, 300, store.lease()).await;
    eventually("the lease expires", async || ours.available().await.unwrap() == 300).await;
    let guard = ours.try_acquire(200).await.unwrap().expect("300 are free");
    assert_eq!(ours.available().await.unwrap(), 100);
    guard.release().await.unwrap();
    assert_eq!(ours.available().await.unwrap(), 300);
}

pub(crate) async fn after_the_shutdown_every_release_is_closed(store: &Store) {
    let client = store.client().await;
    let permits = client.permit_semaphore(store.name("permits"));
    permits.set_permits(1).await.unwrap();
    let permit = permits.acquire(1).await.unwrap();
    let semaphore = client.semaphore(store.name("semaphore"));
    semaphore.try_set_permits(1, None).await.unwrap();
    let plain = semaphore.acquire(1).await.unwrap();
    client.shutdown().await;
    assert_is!(permit.release().await, Err(Error::Closed { .. }));
    assert_is!(plain.release().await, Err(Error::Closed { .. }));
    let other = store.client().await;
    let permits = other.permit_semaphore(store.name("permits"));
    assert_eq!(permits.available().await.unwrap(), 1);
    assert_eq!(other.semaphore(store.name("semaphore")).available().await.unwrap(), 1);
}
