//! The spin lock: its waiters poll with a back-off and do not subscribe.

use std::time::Duration;

use lockkeeper::{Backoff, Client, Lock};
use tokio::time::{Instant, timeout};

use crate::decorators::Counting;
use crate::store::{Store, eventually, one, poll_once};

pub(crate) async fn a_spinning_waiter_does_not_subscribe(store: &Store) {
    let counting = Counting::new(store.backend().await);
    let client = Client::with_backend(counting.clone(), store.options()).unwrap();
    let lock = client.spin_lock(store.name("lock"));
    store.other_holds_for::<Lock>(lock.name(), store.lease()).await;
    let waiter = tokio::spawn(lock.lock());
    eventually("it has tried several times", async || {
        assert_eq!(store.listeners(&store.name("lock")), 0);
        counting.acquires() >= 5
    })
    .await;
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(counting.subscribes(), 0);
}

/// Its own do not listen, but others may.
pub(crate) async fn the_release_of_a_spin_lock_wakes_a_waiting_lock(store: &Store) {
    let (ours, theirs) = (store.client().await, store.client().await);
    let (spin, lock) = (ours.spin_lock(store.name("lock")), theirs.lock(store.name("lock")));
    let guard = spin.lease(store.long()).lock().await.unwrap();
    store.receives_notices_of(&guard).await;
    let before = store.listeners(&store.name("lock"));
    let waiter = tokio::spawn(lock.lock());
    eventually("it listens", async || store.listeners(&store.name("lock")) > before).await;
    guard.release().await.unwrap();
    store.promptly("it is woken", waiter).await.unwrap().unwrap().release().await.unwrap();
}

pub(crate) async fn a_spin_lock_and_a_lock_of_one_name_exclude_each_other(store: &Store) {
    let (ours, theirs) = (store.client().await, store.client().await);
    for client in [&ours, &theirs] {
        let (spin, lock) = (ours.spin_lock(store.name("it")), client.lock(store.name("it")));
        let guard = lock.lease(store.long()).lock().await.unwrap();
        assert!(spin.try_lock().await.unwrap().is_none());
        let mut waiting = Box::pin(spin.lease(store.long()).lock());
        assert!(poll_once(&mut waiting).is_pending());
        guard.release().await.unwrap();
        let guard = store.promptly("then it gets it", waiting).await.unwrap();
        assert!(lock.try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
    }
}

/// How long it takes until there were so many attempts.
async fn attempts(store: &Store, backoff: Backoff, tries: u64) -> Duration {
    let counting = Counting::new(store.backend().await);
    let client = Client::with_backend(counting.clone(), store.options()).unwrap();
    let lock = client.lock(store.name("lock")).polling(backoff);
    store.other_holds::<Lock>(lock.name()).await;
    let start = Instant::now();
    let waiter = tokio::spawn(lock.lock());
    eventually("it tries", async || counting.acquires() >= tries).await;
    let took = start.elapsed();
    waiter.abort();
    took
}

pub(crate) async fn a_constant_back_off_is_the_same_each_time(store: &Store) {
    let pause = Duration::from_millis(40);
    let took = attempts(store, Backoff::constant(pause), 6).await;
    assert!(took >= pause * 5, "six attempts in {took:?}");
    assert!(took < pause * 5 + store.slack(), "six attempts in {took:?}");
}

pub(crate) async fn an_exponential_back_off_doubles_up_to_its_limit(store: &Store) {
    let backoff = Backoff::default().first(Duration::from_millis(10));
    // 10 + 20 + 40 + 80 + 80, each of which is jittered down to a half of it.
    let pauses = Duration::from_millis(230);
    let took = attempts(store, backoff.max(Duration::from_millis(80)), 6).await;
    assert!(took >= pauses / 2, "six attempts in {took:?}");
    assert!(took < pauses + store.slack(), "six attempts in {took:?}");
}

pub(crate) async fn the_factor_of_the_back_off_is_used(store: &Store) {
    let backoff = Backoff::default().first(Duration::from_millis(2)).factor(10);
    // 2 + 20 + 200.
    let took = attempts(store, backoff.max(Duration::from_secs(60)), 4).await;
    assert!(took >= Duration::from_millis(111), "four attempts in {took:?}");
    assert!(took < Duration::from_millis(222) + store.slack(), "four attempts in {took:?}");
}

/// A pause of nothing would be a busy loop.
pub(crate) async fn a_pause_is_never_shorter_than_a_millisecond(store: &Store) {
    for backoff in [Backoff::constant(Duration::ZERO), Backoff::default().max(Duration::ZERO)] {
        let took = attempts(store, backoff, 21).await;
        assert!(took >= Duration::from_millis(20), "21 attempts in {took:?}");
        one::<Lock>(store).await.force_unlock("").await.unwrap();
    }
}

pub(crate) async fn the_wait_limit_ends_a_long_pause(store: &Store) {
    let (ours, theirs) = (store.client().await, one::<Lock>(store).await);
    let guard = theirs.lease(store.long()).lock().await.unwrap();
    let slow = ours.lock(store.name("lock")).polling(Backoff::constant(store.long()));
    let start = Instant::now();
    assert!(slow.try_lock_for(store.lease()).await.unwrap().is_none());
    let took = start.elapsed();
    assert!(
        took >= store.lease().mul_f64(0.99) && took < store.lease() + store.slack(),
        "{took:?}"
    );
    guard.release().await.unwrap();
}

/// The longest possible pause does not panic.
#[tokio::test(start_paused = true)]
async fn an_endless_back_off_never_retries() {
    let store = Store::memory();
    let constant = Backoff::constant(Duration::MAX);
    let growing = Backoff::default().first(Duration::MAX).max(Duration::MAX).factor(u32::MAX);
    for back_off in [constant, growing] {
        let (ours, theirs) = (store.client().await, one::<Lock>(&store).await);
        let guard = theirs.lock().await.unwrap();
        let lock = ours.lock(store.name("lock")).polling(back_off);
        assert!(lock.try_lock_for(Duration::from_millis(100)).await.unwrap().is_none());
        let mut waiting = Box::pin(lock.lock());
        assert!(timeout(store.long(), &mut waiting).await.is_err(), "it is held");
        guard.release().await.unwrap();
        assert!(timeout(Duration::from_secs(3600), waiting).await.is_err(), "it tried again");
    }
}
