//! The loss of a lock: signalled in time, with a reason, and final.

use std::time::Duration;

use lockkeeper::{Clock, LostReason};
use tokio::time::{Instant, timeout};

use crate::store::{Exclusive, Store, deadline, left, one, pair};

/// Half of the lease is given up for the drift, so that a busy machine does not decide the law.
pub(crate) async fn lost_is_signalled_before_the_lease_ends_at_the_store<L: Exclusive>(
    store: &Store,
) {
    let options = store.options().drift(0.49, Duration::from_millis(2));
    let lock = L::of(&store.client_with(options).await, store.name("lock"));
    let guard = lock.lease(store.watchdog() * 2).lock().await.unwrap();
    assert_eq!(store.signalled(guard.lost()).await, LostReason::Expired);
    assert!(guard.is_lost());
    let ttl = left(lock.inspect().await);
    assert!(!ttl.is_zero(), "it ended at the store first");
}

pub(crate) async fn lost_is_signalled_at_the_deadline_and_nothing_remains<L: Exclusive>(
    store: &Store,
) {
    let lock = one::<L>(store).await;
    let start = Instant::now();
    let guard = lock.lease(store.steady_lease()).lock().await.unwrap();
    let ends = deadline(&guard);
    assert!(guard.remaining() > Duration::ZERO);
    guard.lost().await;
    assert!(start.elapsed() > store.steady_lease().mul_f64(0.9), "{:?}", start.elapsed());
    assert!(Instant::now() + Duration::from_millis(10) > ends);
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(deadline(&guard) <= Instant::now());
    assert!(lockkeeper::Hold::is_lost(&guard));
    assert!(format!("{guard:?}").contains("Expired"), "{guard:?}");
}

/// As after a suspended machine or a stopped process: the store was never asked.
pub(crate) async fn a_loss_is_detected_without_the_store<L: Exclusive>(store: &Store) {
    let clock = Clock::system();
    let client = store.client_with(store.options().clock(clock.clone())).await;
    let lock = L::of(&client, store.name("lock"));
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let lost = guard.lost();
    assert!(!guard.is_lost());
    clock.skip(store.long());
    assert!(guard.is_lost(), "is_lost reads the clock");
    assert_eq!(guard.remaining(), Duration::ZERO);
    let start = store.timer();
    assert_eq!(store.signalled(lost).await, LostReason::Expired);
    // 250 ms, and as much again for a busy machine.
    start.took(Duration::ZERO, Duration::from_millis(260));
}

pub(crate) async fn a_deleted_lock_is_detected_at_the_next_renewal<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard =
        lock.lease(lockkeeper::LeaseTime::Renewed(store.watchdog() * 2)).lock().await.unwrap();
    store.delete::<L>(&guard).await;
    let start = store.timer();
    assert_eq!(store.signalled(guard.lost()).await, LostReason::Deleted);
    start.took(Duration::ZERO, store.watchdog() * 2 / 3);
    assert!(!lock.is_locked().await.unwrap(), "a renewal creates nothing");
}

pub(crate) async fn a_deleted_lock_of_fixed_lease_is_detected_at_the_next_check<L: Exclusive>(
    store: &Store,
) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.long() * 10).lock().await.unwrap();
    store.delete::<L>(&guard).await;
    let start = store.timer();
    assert_eq!(store.signalled(guard.lost()).await, LostReason::Deleted);
    start.took(Duration::ZERO, store.watchdog() / 2);
}

pub(crate) async fn a_lock_of_another_holder_is_lost_as_taken<L: Exclusive>(store: &Store) {
    // No check comes between the two changes, however long they take.
    let clock = Clock::system();
    let options = store.options().clock(clock.clone()).watchdog_timeout(store.long());
    let client = store.client_with(options).await;
    store.listens(&client).await;
    let lock = L::of(&client, store.name("lock"));
    let guard = lock.lease(store.long()).lock().await.unwrap();
    store.delete::<L>(&guard).await;
    let other = store.other_holds::<L>(lock.name()).await;
    clock.skip(store.long() / 3);
    assert_eq!(store.signalled(guard.lost()).await, LostReason::Taken);
    assert_eq!(lock.inspect().await.unwrap().holders.remove(0).id, other.to_string());
}

/// The loss of one lock does not affect other locks.
pub(crate) async fn the_loss_of_one_lock_is_not_that_of_another<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let gone = L::of(&client, store.name("gone")).lease(store.long()).lock().await.unwrap();
    let kept = L::of(&client, store.name("kept")).lock().await.unwrap();
    store.delete::<L>(&gone).await;
    assert_eq!(store.signalled(gone.lost()).await, LostReason::Deleted);
    assert!(!kept.is_lost());
    store.is_renewed(&L::of(&client, store.name("kept"))).await;
    assert!(!kept.is_lost());
    kept.release().await.unwrap();
}

pub(crate) async fn a_loss_is_final<L: Exclusive>(store: &Store) {
    let clock = Clock::system();
    let client = store.client_with(store.options().clock(clock.clone())).await;
    let lock = L::of(&client, store.name("lock"));
    let guard = lock.lease(lockkeeper::LeaseTime::Renewed(store.lease())).lock().await.unwrap();
    clock.skip(store.lease());
    assert_eq!(guard.lost().await, LostReason::Unreachable);
    // It is still held at the store, is not renewed, and expires.
    let observer = one::<L>(store).await;
    let next = timeout(store.long(), observer.lock()).await.expect("it ends").unwrap();
    assert!(guard.is_lost());
    assert_eq!(guard.lost().await, LostReason::Unreachable, "the first reason stays");
    next.release().await.unwrap();
}

pub(crate) async fn lost_outlives_the_guard_and_reports_released<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lock().await.unwrap();
    let (early, hold) = (guard.lost(), lockkeeper::Hold::clone(&guard));
    let waiting = tokio::spawn(guard.lost());
    guard.release().await.unwrap();
    assert_eq!(store.promptly("lost", early).await, LostReason::Released);
    assert_eq!(store.promptly("lost in a task", waiting).await.unwrap(), LostReason::Released);
    assert_eq!(store.promptly("lost of a hold", hold.lost()).await, LostReason::Released);
    assert!(hold.is_lost());
    let guard = lock.lock().await.unwrap();
    let lost = guard.lost();
    drop(guard);
    assert_eq!(store.promptly("lost after a drop", lost).await, LostReason::Released);
}

pub(crate) async fn lost_waits_while_the_lock_is_held<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lock().await.unwrap();
    tokio::select! {
        reason = guard.lost() => panic!("lost while it is held: {reason}"),
        () = store.is_renewed(&lock) => {}
    }
    guard.release().await.unwrap();
}

pub(crate) async fn another_holder_starts_only_after_the_loss<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.lease()).lock().await.unwrap();
    let lost = guard.lost();
    let told = tokio::spawn(async move {
        lost.await;
        Instant::now()
    });
    let next = theirs.lock().await.unwrap();
    assert!(guard.is_lost());
    let granted = Instant::now();
    assert!(told.await.unwrap() <= granted + store.slack());
    next.release().await.unwrap();
    assert_eq!(ours.inspect().await.unwrap().ttl, None);
}
