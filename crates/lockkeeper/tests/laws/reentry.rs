//! Holding a lock more than once: owners, counts, and what the lease then is.

use std::time::Duration;

use lockkeeper::{AnyLock, Client, Error, LostReason, Phase};
use testkit::{Flaky, Gate};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::store::{Reentrant, Store, assert_is, eventually, left, one, poll_once};

async fn lock_and_client<L: Reentrant>(store: &Store) -> (AnyLock, Client) {
    let client = store.client().await;
    (L::of(&client, store.name("lock")), client)
}

/// A handle with an owner.
async fn owned<L: Reentrant>(store: &Store) -> AnyLock {
    let (lock, client) = lock_and_client::<L>(store).await;
    lock.as_owner(&client.new_owner())
}

pub(crate) async fn each_release_releases_one_hold<L: Reentrant>(store: &Store) {
    let (lock, client) = lock_and_client::<L>(store).await;
    let (owner, other) = (client.new_owner(), one::<L>(store).await);
    let lock = lock.as_owner(&owner);
    let mut guards = Vec::new();
    for count in 1..=3 {
        guards.push(lock.lock().await.unwrap());
        assert_eq!(lock.hold_count(&owner).await.unwrap(), count);
        assert_eq!(other.inspect().await.unwrap().holders.remove(0).hold_count, count);
    }
    assert!(guards.iter().all(|guard| guard.hold_count() == 3));
    for count in [2, 1, 0] {
        assert!(other.try_lock().await.unwrap().is_none());
        guards.pop().unwrap().release().await.unwrap();
        // One member of a quorum may hear of it a little later.
        eventually("one less", async || lock.hold_count(&owner).await.unwrap() == count).await;
    }
    assert!(other.try_lock().await.unwrap().is_some());
}

pub(crate) async fn a_guard_may_be_reentered<L: Reentrant>(store: &Store) {
    let lock = one::<L>(store).await;
    let outer = lock.lease(store.long()).lock().await.unwrap();
    let inner = store.promptly("re-entry", outer.reenter()).await.unwrap();
    assert_eq!(inner.owner_id(), outer.owner_id());
    assert_eq!((outer.hold_count(), inner.hold_count()), (2, 2));
    assert_eq!(lock.inspect().await.unwrap().holders.remove(0).hold_count, 2);
    // In either order.
    outer.release().await.unwrap();
    assert!(!inner.is_lost());
    assert!(lock.is_locked().await.unwrap());
    inner.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

pub(crate) async fn owners_of_one_client_exclude_each_other<L: Reentrant>(store: &Store) {
    let (lock, client) = lock_and_client::<L>(store).await;
    let (a, b) = (client.new_owner(), client.new_owner());
    let held = lock.as_owner(&a).lock().await.unwrap();
    assert!(lock.as_owner(&b).try_lock().await.unwrap().is_none());
    assert!(lock.try_lock().await.unwrap().is_none(), "nor does an acquire of nobody's");
    assert_eq!(lock.hold_count(&a).await.unwrap(), 1);
    assert_eq!(lock.hold_count(&b).await.unwrap(), 0);
    held.release().await.unwrap();
    let held = lock.as_owner(&b).try_lock().await.unwrap().expect("it is free");
    assert_eq!(lock.hold_count(&b).await.unwrap(), 1);
    assert_eq!(lock.hold_count(&a).await.unwrap(), 0);
    held.release().await.unwrap();
}

pub(crate) async fn an_owner_reenters_by_every_request<L: Reentrant>(store: &Store) {
    let (lock, client) = lock_and_client::<L>(store).await;
    let owner = client.new_owner();
    let lock = lock.as_owner(&owner);
    let first = lock.try_lock().await.unwrap().expect("it is free");
    let second = lock.try_lock().await.unwrap().expect("it is its own");
    let third = lock.try_lock_for(store.lease()).await.unwrap().expect("it is its own");
    let fourth = lock.lease(store.long()).lock().await.unwrap();
    let fifth = first.reenter().await.unwrap();
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 5);
    let ran = lock.run(async |_| lock.hold_count(&owner).await.unwrap()).await.unwrap();
    assert_eq!(ran.output, 6);
    for guard in [first, second, third, fourth, fifth] {
        guard.release().await.unwrap();
    }
    assert_eq!(lock.inspect().await.unwrap().ttl, None);
}

pub(crate) async fn an_owner_reenters_with_a_wait_limit_shorter_than_a_round_trip<L: Reentrant>(
    store: &Store,
) {
    let flaky = Flaky::new(store.backend().await);
    let client = Client::with_backend(flaky.backend(), store.options()).unwrap();
    let lock = L::of(&client, store.name("lock")).as_owner(&client.new_owner());
    let outer = lock.lease(store.long()).lock().await.unwrap();
    flaky.script([Gate::Slow(Duration::from_millis(100))]);
    let inner = lock.try_lock_for(Duration::from_millis(1)).await.expect("the store answers");
    inner.expect("it is its own").release().await.unwrap();
    outer.release().await.unwrap();
}

pub(crate) async fn a_new_hold_of_the_same_owner_has_a_new_id<L: Reentrant>(store: &Store) {
    let (lock, client) = lock_and_client::<L>(store).await;
    let lock = lock.as_owner(&client.new_owner());
    let guard = lock.lock().await.unwrap();
    let first = guard.owner_id();
    guard.release().await.unwrap();
    let guard = lock.lock().await.unwrap();
    assert_ne!(guard.owner_id(), first);
    guard.release().await.unwrap();
}

pub(crate) async fn requests_of_one_owner_are_sent_one_at_a_time<L: Reentrant>(store: &Store) {
    let (lock, client) = lock_and_client::<L>(store).await;
    let owner = client.new_owner();
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let lock = lock.as_owner(&owner);
        tasks.spawn(async move { lock.lock().await.unwrap() });
    }
    let guards = tasks.join_all().await;
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 16);
    assert!(guards.iter().all(|guard| guard.owner_id() == guards[0].owner_id()));
    let mut tasks = JoinSet::new();
    for guard in guards {
        tasks.spawn(async move { guard.release().await.unwrap() });
    }
    tasks.join_all().await;
    assert!(!lock.is_locked().await.unwrap());
}

pub(crate) async fn an_owner_reenters_past_waiters<L: Reentrant>(store: &Store) {
    let (lock, client) = lock_and_client::<L>(store).await;
    let owner = client.new_owner();
    let outer = lock.as_owner(&owner).lease(store.long()).lock().await.unwrap();
    let mut local = Box::pin(lock.lock());
    assert!(poll_once(&mut local).is_pending());
    let inner = lock.as_owner(&owner);
    let inner = store.promptly("re-entry", inner.lock()).await.unwrap();
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    store.promptly("then the waiter", local).await.unwrap().release().await.unwrap();
}

pub(crate) async fn a_dropped_guard_releases_one_hold<L: Reentrant>(store: &Store) {
    let (lock, client) = lock_and_client::<L>(store).await;
    let owner = client.new_owner();
    let outer = lock.as_owner(&owner).lease(store.long()).lock().await.unwrap();
    drop(outer.reenter().await.unwrap());
    eventually("one hold is left", async || lock.hold_count(&owner).await.unwrap() == 1).await;
    assert!(!outer.is_lost());
    drop(outer);
    eventually("it is free", async || !lock.is_locked().await.unwrap()).await;
}

pub(crate) async fn a_cancelled_reentry_leaves_the_count_as_it_was<L: Reentrant>(store: &Store) {
    let (lock, client) = lock_and_client::<L>(store).await;
    let owner = client.new_owner();
    let outer = lock.as_owner(&owner).lease(store.long()).lock().await.unwrap();
    for micros in 0..30 {
        let _ = timeout(Duration::from_micros(micros * 20), outer.reenter()).await;
        let mut again = Box::pin(lock.as_owner(&owner).lock());
        let _ = poll_once(&mut again);
    }
    eventually("one hold is left", async || {
        outer.hold_count() == 1 && lock.hold_count(&owner).await.unwrap() == 1
    })
    .await;
    outer.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

pub(crate) async fn a_longer_lease_extends_the_ttl<L: Reentrant>(store: &Store) {
    let lock = owned::<L>(store).await;
    let outer = lock.lease(store.steady_lease()).lock().await.unwrap();
    let inner = lock.lease(store.long()).lock().await.unwrap();
    let ttl = left(lock.inspect().await);
    assert!(ttl > store.long() / 2 && ttl <= store.long(), "{ttl:?}");
    assert!(outer.remaining() > store.long() / 2, "the group shares the deadline");
    assert!(outer.remaining() >= inner.remaining());
    sleep(store.steady_lease() * 5 / 4).await;
    assert!(!outer.is_lost());
    inner.release().await.unwrap();
}

pub(crate) async fn a_shorter_lease_never_shortens_the_ttl<L: Reentrant>(store: &Store) {
    let lock = owned::<L>(store).await;
    let outer = lock.lease(store.long()).lock().await.unwrap();
    let inner = lock.lease(store.lease()).lock().await.unwrap();
    assert!(left(lock.inspect().await) > store.long() / 2);
    assert!(inner.remaining() > store.long() / 2, "the group shares the deadline");
    inner.release().await.unwrap();
    assert!(left(lock.inspect().await) > store.long() / 2);
    outer.release().await.unwrap();
}

pub(crate) async fn a_partial_release_keeps_the_lease_of_the_remaining_holds<L: Reentrant>(
    store: &Store,
) {
    let lock = owned::<L>(store).await;
    let outer = lock.lease(store.long()).lock().await.unwrap();
    let inner = lock.lease(store.long() * 10).lock().await.unwrap();
    assert!(left(lock.inspect().await) > store.long() * 9);
    inner.release().await.unwrap();
    let ttl = left(lock.inspect().await);
    assert!(ttl <= store.long() && ttl > store.long() / 2, "{ttl:?}");
    assert!(outer.remaining() <= store.long());
    assert!(!outer.is_lost());
    outer.release().await.unwrap();
}

pub(crate) async fn the_remaining_holds_expire_at_their_own_deadline<L: Reentrant>(store: &Store) {
    let lock = owned::<L>(store).await;
    let (start, lease) = (store.timer(), store.steady_lease());
    let outer = lock.lease(lease).lock().await.unwrap();
    let inner = lock.lease(store.long() * 10).lock().await.unwrap();
    sleep(lease / 3).await;
    inner.release().await.unwrap();
    assert_eq!(store.signalled(outer.lost()).await, LostReason::Expired);
    start.took(lease * 3 / 4, lease);
    eventually("it ends at the store", async || !lock.is_locked().await.unwrap()).await;
}

pub(crate) async fn releasing_the_outer_hold_first_keeps_the_inner_ones_lease<L: Reentrant>(
    store: &Store,
) {
    let lock = owned::<L>(store).await;
    let outer = lock.lease(store.long() * 10).lock().await.unwrap();
    let inner = lock.lease(store.long()).lock().await.unwrap();
    outer.release().await.unwrap();
    let ttl = left(lock.inspect().await);
    assert!(ttl <= store.long() && ttl > store.long() / 2, "{ttl:?}");
    assert!(!inner.is_lost());
    inner.release().await.unwrap();
}

pub(crate) async fn one_hold_without_a_lease_keeps_the_group_renewed<L: Reentrant>(store: &Store) {
    let lock = one::<L>(store).await;
    let fixed = lock.lease(store.steady_lease()).lock().await.unwrap();
    let renewed = fixed.reenter().await.unwrap();
    sleep(store.steady_lease()).await;
    store.is_renewed(&lock).await;
    assert!(!fixed.is_lost() && !renewed.is_lost());
    assert!(left(lock.inspect().await) <= store.watchdog());
    fixed.release().await.unwrap();
    store.is_renewed(&lock).await;
    assert!(!renewed.is_lost(), "and it stays renewed without the other");
    renewed.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

pub(crate) async fn a_fixed_hold_in_a_renewed_one_is_renewed_too<L: Reentrant>(store: &Store) {
    let lock = owned::<L>(store).await;
    let renewed = lock.lock().await.unwrap();
    let fixed = lock.lease(store.lease() / 4).lock().await.unwrap();
    sleep(store.lease() / 4).await;
    store.is_renewed(&lock).await;
    assert!(!fixed.is_lost() && !renewed.is_lost());
    fixed.release().await.unwrap();
    renewed.release().await.unwrap();
}

pub(crate) async fn without_its_renewed_hold_a_lock_expires_with_its_fixed_one<L: Reentrant>(
    store: &Store,
) {
    let options = store.options().watchdog_timeout(store.long());
    let lock = L::of(&store.client_with(options).await, store.name("lock"));
    let start = store.timer();
    let fixed = lock.lease(store.steady_lease()).lock().await.unwrap();
    let renewed = fixed.reenter().await.unwrap();
    assert!(left(lock.inspect().await) > store.steady_lease() * 2);
    renewed.release().await.unwrap();
    assert_eq!(store.signalled(fixed.lost()).await, LostReason::Expired);
    start.took(store.steady_lease() / 2, store.steady_lease());
}

/// What the fixed hold asked for has passed when the renewed one goes: nothing is owed.
pub(crate) async fn holds_without_remaining_lease_are_lost<L: Reentrant>(store: &Store) {
    let lock = one::<L>(store).await;
    let fixed = lock.lease(store.steady_lease()).lock().await.unwrap();
    let renewed = fixed.reenter().await.unwrap();
    sleep(store.steady_lease() * 5 / 4).await;
    assert!(!fixed.is_lost());
    renewed.release().await.unwrap();
    assert!(fixed.is_lost());
    assert_eq!(store.promptly("lost", fixed.lost()).await, LostReason::Expired);
    eventually("it is free", async || !lock.is_locked().await.unwrap()).await;
}

pub(crate) async fn guards_of_one_owner_are_lost_together<L: Reentrant>(store: &Store) {
    let lock = owned::<L>(store).await;
    let outer = lock.lease(store.steady_lease()).lock().await.unwrap();
    let inner = lock.lease(store.steady_lease() / 2).lock().await.unwrap();
    let (a, b) = tokio::join!(outer.lost(), inner.lost());
    assert_eq!((a, b), (LostReason::Expired, LostReason::Expired));
    assert!(outer.is_lost() && inner.is_lost());
    eventually("the lease ends", async || !lock.is_locked().await.unwrap()).await;
    assert_is!(inner.release().await, Err(Error::NotHeld { .. }));
    assert_is!(outer.release().await, Err(Error::NotHeld { .. }));
}

pub(crate) async fn all_guards_of_a_force_released_lock_are_lost<L: Reentrant>(store: &Store) {
    let options = store.options().watchdog_timeout(store.long());
    let lock = L::of(&store.client_with(options).await, store.name("lock"));
    let outer = lock.lock().await.unwrap();
    let inner = outer.reenter().await.unwrap();
    store.receives_notices_of(&outer).await;
    assert!(one::<L>(store).await.force_unlock("why").await.unwrap());
    let why = LostReason::Revoked("why".to_owned());
    assert_eq!(store.promptly("outer", outer.lost()).await, why);
    assert_eq!(store.promptly("inner", inner.lost()).await, why);
}

pub(crate) async fn a_lost_lock_cannot_be_reentered<L: Reentrant>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.lease()).lock().await.unwrap();
    guard.lost().await;
    let error = guard.reenter().await.unwrap_err();
    let said = error.to_string();
    assert_is!(error, Error::Lost { phase: Phase::Reenter, reason: LostReason::Expired, .. });
    assert!(said.contains(&store.name("lock")) && said.contains("re-entering"), "{said}");
}

pub(crate) async fn a_reentry_does_not_recreate_a_deleted_lock<L: Reentrant>(store: &Store) {
    let (lock, client) = lock_and_client::<L>(store).await;
    let owner = client.new_owner();
    let guard = lock.as_owner(&owner).lease(store.long()).lock().await.unwrap();
    store.delete::<L>(&guard).await;
    assert_is!(guard.reenter().await,
        Err(Error::Lost { phase: Phase::Reenter, reason, .. }) if reason == LostReason::Deleted);
    assert!(guard.is_lost());
    assert!(!lock.is_locked().await.unwrap());
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 0);
}

pub(crate) async fn an_owner_can_acquire_again_after_a_loss<L: Reentrant>(store: &Store) {
    let (lock, client) = lock_and_client::<L>(store).await;
    let owner = client.new_owner();
    let lock = lock.as_owner(&owner);
    let stale = lock.lease(store.lease()).lock().await.unwrap();
    stale.lost().await;
    let new = lock.lease(store.long()).lock().await.unwrap();
    assert_ne!(new.owner_id(), stale.owner_id());
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
    assert_is!(stale.release().await, Err(Error::NotHeld { .. }));
    assert!(!new.is_lost());
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
    new.release().await.unwrap();
}

pub(crate) async fn an_owner_belongs_to_the_client_that_made_it<L: Reentrant>(store: &Store) {
    let (lock, _client) = lock_and_client::<L>(store).await;
    let foreign = store.client().await.new_owner();
    assert_is!(lock.hold_count(&foreign).await, Err(Error::Invalid { .. }));
    let lock = lock.as_owner(&foreign);
    assert_is!(lock.lock().await, Err(Error::Invalid { lock: Some(_), .. }));
    assert_is!(lock.try_lock().await, Err(Error::Invalid { lock: Some(_), .. }));
    assert!(!lock.is_locked().await.unwrap(), "nothing was sent");
}

pub(crate) async fn an_owner_holds_different_locks_independently<L: Reentrant>(store: &Store) {
    let client = store.client().await;
    let owner = client.new_owner();
    let a = L::of(&client, store.name("a")).as_owner(&owner);
    let b = L::of(&client, store.name("b")).as_owner(&owner);
    let held = [a.lock().await.unwrap(), a.lock().await.unwrap(), b.lock().await.unwrap()];
    assert_eq!(a.hold_count(&owner).await.unwrap(), 2);
    assert_eq!(b.hold_count(&owner).await.unwrap(), 1);
    for guard in held {
        guard.release().await.unwrap();
    }
}

/// The inner guard is left standing; the outer one's release does not take that away.
pub(crate) async fn a_hold_after_leave_for_outlives_the_other_holds<L: Reentrant>(store: &Store) {
    let lock = one::<L>(store).await;
    let outer = lock.lease(store.long()).lock().await.unwrap();
    let inner = outer.reenter().await.unwrap();
    let start = store.timer();
    inner.leave_for(store.steady_lease()).await.unwrap();
    assert!(!outer.is_lost());
    outer.release().await.unwrap();
    assert!(lock.is_locked().await.unwrap());
    assert!(left(lock.inspect().await) <= store.steady_lease());
    let next = lock.lock().await.unwrap();
    start.took(store.steady_lease().mul_f64(0.95), store.steady_lease() * 2);
    next.release().await.unwrap();
}

/// The release of a dropped guard is not passed again and again by the next re-entry.
pub(crate) async fn reentering_in_a_loop_leaves_no_holds_behind<L: Reentrant>(store: &Store) {
    let lock = one::<L>(store).await;
    let outer = lock.lease(store.long()).lock().await.unwrap();
    for _ in 0..1000 {
        drop(outer.reenter().await.unwrap());
        let count = outer.hold_count();
        // A task that never waits for its store lets others run now and then.
        assert!(count < 300, "{count} holds");
    }
    eventually("all but the outer one are released", async || outer.hold_count() == 1).await;
    outer.release().await.unwrap();
}

pub(crate) async fn a_lock_reentered_a_hundred_times_is_one_lock<L: Reentrant>(store: &Store) {
    let (lock, client) = lock_and_client::<L>(store).await;
    let owner = client.new_owner();
    let first = lock.as_owner(&owner).lock().await.unwrap();
    let mut guards = Vec::new();
    for _ in 0..100 {
        guards.push(first.reenter().await.unwrap());
    }
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 101);
    drop(guards);
    eventually("one is left", async || lock.hold_count(&owner).await.unwrap() == 1).await;
    first.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

/// Waiters are served only after the last hold.
pub(crate) async fn a_waiter_is_served_only_after_the_last_hold<L: Reentrant>(store: &Store) {
    let (lock, client) = lock_and_client::<L>(store).await;
    let mine = lock.as_owner(&client.new_owner());
    let other = one::<L>(store).await;
    let outer = mine.lease(store.long()).lock().await.unwrap();
    let inner = mine.lease(store.long()).lock().await.unwrap();
    let mut local = Box::pin(lock.lock());
    assert!(poll_once(&mut local).is_pending());
    inner.release().await.unwrap();
    assert!(poll_once(&mut local).is_pending());
    assert!(other.try_lock().await.unwrap().is_none());
    outer.release().await.unwrap();
    store.promptly("the waiter", local).await.unwrap().release().await.unwrap();
}
