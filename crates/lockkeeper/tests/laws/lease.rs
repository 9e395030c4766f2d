//! Leases: fixed, renewed, extended, and `leave_for`.

use std::time::Duration;

use lockkeeper::{AnyGuard, Error, LostReason, Phase};
use tokio::time::Instant;

use crate::store::{Exclusive, Store, assert_is, deadline, eventually, left, one, pair};

pub(crate) async fn the_requested_lease_is_the_ttl<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let ttl = left(lock.inspect().await);
    assert!(ttl <= store.long() && ttl > store.long() / 2, "{ttl:?}");
    guard.release().await.unwrap();
    let attempt = lock.lease(store.long()).try_lock_for(store.lease());
    let guard = attempt.await.unwrap().expect("it is free");
    let ttl = left(lock.inspect().await);
    assert!(ttl <= store.long() && ttl > store.long() / 2, "{ttl:?}");
    guard.release().await.unwrap();
}

pub(crate) async fn a_lease_is_cut_to_whole_milliseconds<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let lease = Duration::from_secs(20) + Duration::from_nanos(999_999);
    let guard = lock.lease(lease).lock().await.unwrap();
    let ttl = left(lock.inspect().await);
    assert!(ttl <= Duration::from_secs(20) && ttl > Duration::from_secs(10), "{ttl:?}");
    // Less 1 % and 2 ms for the drift.
    assert!(guard.remaining() <= Duration::from_millis(20_000 - 200 - 2));
    guard.release().await.unwrap();
}

/// Long enough that the watchdog has looked at it in between.
pub(crate) async fn a_fixed_lease_is_never_renewed<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let lease = store.watchdog() / 2;
    let start = store.timer();
    let guard = ours.lease(lease).lock().await.unwrap();
    let theirs = theirs.lock().await.unwrap();
    start.took(lease.mul_f64(0.95), lease * 2);
    assert!(guard.is_lost());
    assert_eq!(guard.lost().await, LostReason::Expired);
    theirs.release().await.unwrap();
}

pub(crate) async fn without_a_lease_the_ttl_is_the_watchdog_timeout<L: Exclusive>(store: &Store) {
    let options = store.options().watchdog_timeout(Duration::from_secs(40));
    let lock = L::of(&store.client_with(options).await, store.name("lock"));
    let guard = lock.lock().await.unwrap();
    let ttl = left(lock.inspect().await);
    assert!(ttl <= Duration::from_secs(40) && ttl > Duration::from_secs(30), "{ttl:?}");
    guard.release().await.unwrap();
}

pub(crate) async fn without_a_lease_a_guard_is_renewed<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lock().await.unwrap();
    let mut waiting = Box::pin(theirs.lock());
    tokio::select! {
        _ = &mut waiting => panic!("it was taken from a living guard"),
        () = store.is_renewed(&ours) => {}
    }
    assert!(!guard.is_lost());
    assert!(left(ours.inspect().await) <= store.watchdog());
    guard.release().await.unwrap();
    let next = store.after_wake_up::<L, _>("after the release", waiting).await.unwrap();
    next.release().await.unwrap();
}

pub(crate) async fn renewed_is_a_watchdog_lease_for_this_request<L: Exclusive>(store: &Store) {
    let options = store.options().watchdog_timeout(store.long() * 10);
    let lock = L::of(&store.client_with(options).await, store.name("lock"));
    let guard = lock.lease(lockkeeper::LeaseTime::Renewed(store.watchdog())).lock().await.unwrap();
    assert!(left(lock.inspect().await) <= store.watchdog());
    store.is_renewed(&lock).await;
    assert!(!guard.is_lost());
    assert!(left(lock.inspect().await) <= store.watchdog());
    guard.release().await.unwrap();
}

pub(crate) async fn the_deadline_moves_on_with_each_renewal<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lock().await.unwrap();
    let first = deadline(&guard);
    store.is_renewed(&lock).await;
    eventually("it moves on", async || deadline(&guard) > first).await;
    assert!(guard.remaining() <= store.watchdog());
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

pub(crate) async fn the_deadline_precedes_the_expiry_at_the_store<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let safe = guard.remaining();
    let ttl = left(lock.inspect().await);
    assert!(safe < ttl, "safe for {safe:?}, stored for {ttl:?}");
    let drift = store.long() / 100 + Duration::from_millis(2);
    assert!(safe <= store.long() - drift, "{safe:?}");
    assert!(deadline(&guard) <= Instant::now() + store.long() - drift);
    guard.release().await.unwrap();
}

pub(crate) async fn hundreds_of_locks_of_one_task_are_all_renewed<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let (mut guards, mut last): (Vec<AnyGuard>, _) = (Vec::new(), None);
    for i in 0..500 {
        let lock = L::of(&client, store.name(&i.to_string()));
        guards.push(lock.lock().await.unwrap());
        last = Some(lock);
    }
    store.is_renewed(&last.unwrap()).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    for guard in guards {
        guard.release().await.expect("each of them was kept");
    }
}

pub(crate) async fn extend_sets_a_new_deadline<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let lease = store.steady_lease() * 2 / 3;
    let guard = lock.lease(lease).lock().await.unwrap();
    let (start, first) = (store.timer(), deadline(&guard));
    guard.extend(lease * 2).await.unwrap();
    assert!(left(lock.inspect().await) <= lease * 2);
    assert!(deadline(&guard) > first + lease / 2, "the old end has been replaced");
    assert_eq!(store.signalled(guard.lost()).await, LostReason::Expired);
    start.took(lease * 3 / 2, lease * 2);
}

pub(crate) async fn extend_never_shortens_the_ttl<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.long()).lock().await.unwrap();
    guard.extend(store.long() / 100).await.unwrap();
    assert!(left(lock.inspect().await) > store.long() / 2);
    guard.release().await.unwrap();
}

pub(crate) async fn extend_stops_the_renewals<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(lockkeeper::LeaseTime::Renewed(store.watchdog())).lock().await.unwrap();
    let start = store.timer();
    guard.extend(store.watchdog() * 4 / 3).await.unwrap();
    assert_eq!(store.signalled(guard.lost()).await, LostReason::Expired);
    start.took(store.watchdog(), store.watchdog() * 4 / 3);
}

pub(crate) async fn a_lost_guard_cannot_be_extended<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.lease()).lock().await.unwrap();
    guard.lost().await;
    let expired = LostReason::Expired;
    assert_is!(guard.extend(store.long()).await,
        Err(Error::Lost { phase: Phase::Extend, reason, .. }) if reason == expired);
    eventually("it ends as it was to", async || !lock.is_locked().await.unwrap()).await;
}

pub(crate) async fn extending_a_deleted_lock_fails_and_creates_nothing<L: Exclusive>(
    store: &Store,
) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.long()).lock().await.unwrap();
    store.delete::<L>(&guard).await;
    assert_is!(guard.extend(store.long()).await,
        Err(Error::Lost { reason, .. }) if reason == LostReason::Deleted);
    assert!(guard.is_lost());
    assert!(!lock.is_locked().await.unwrap());
}

pub(crate) async fn leave_for_holds_the_lock_until_it_expires<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    let lost = guard.lost();
    let start = store.timer();
    guard.leave_for(store.steady_lease()).await.unwrap();
    assert_eq!(store.promptly("the guard is gone", lost).await, LostReason::Released);
    let ttl = left(ours.inspect().await);
    assert!(ttl <= store.steady_lease(), "it stands no longer than it was left for: {ttl:?}");
    assert!(theirs.try_lock().await.unwrap().is_none());
    assert!(ours.try_lock().await.unwrap().is_none());
    let theirs = theirs.lock().await.unwrap();
    start.took(store.steady_lease().mul_f64(0.95), store.steady_lease() * 2);
    theirs.release().await.unwrap();
}

pub(crate) async fn leave_for_can_exceed_the_previous_lease<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lock().await.unwrap();
    guard.leave_for(store.long() * 2).await.unwrap();
    assert!(left(lock.inspect().await) > store.long());
    assert!(lock.force_unlock("").await.unwrap());
}

pub(crate) async fn leave_for_is_not_renewed_for_a_local_waiter<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lock().await.unwrap();
    let waiting = lock.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await });
    let start = store.timer();
    guard.leave_for(store.lease()).await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    start.took(store.lease().mul_f64(0.95), store.lease() * 2);
    next.release().await.unwrap();
}

pub(crate) async fn leave_for_of_a_lost_lock_is_not_held<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.lease()).lock().await.unwrap();
    let new = theirs.lease(store.long()).lock().await.unwrap();
    assert_is!(guard.leave_for(store.lease()).await, Err(Error::NotHeld { .. }));
    let ttl = left(theirs.inspect().await);
    assert!(ttl > store.long() / 2, "the new holder's lease is as it was: {ttl:?}");
    assert!(!new.is_lost());
    new.release().await.unwrap();
    assert_eq!(theirs.inspect().await.unwrap().ttl, None);
}
