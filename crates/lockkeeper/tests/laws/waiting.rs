//! Waiting for a lock: wake-ups, order, wait limits and cancellation.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use lockkeeper::{AnyLock, Client, Error};
use testkit::{Flaky, Gate};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::decorators::{Counting, Deaf};
use crate::store::{Exclusive, Store, assert_is, eventually, left, one, pair, poll_once};

/// By how much a waiter may miss the expiry of a lease: a waiter for a mutex tries every 100 ms, a spinning one
/// a little less often, and the others know the expiry.
fn late<L: Exclusive>() -> Duration {
    L::RECHECK.clamp(Duration::from_millis(100), Duration::from_millis(128))
}

/// Waits in a new task; returns the time of the grant.
fn waiter(lock: &AnyLock) -> tokio::task::JoinHandle<Instant> {
    let lock = lock.clone();
    tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        let granted = Instant::now();
        guard.release().await.unwrap();
        granted
    })
}

/// A waiter of another client that has subscribed, or has tried where waiters poll.
async fn listening<L: Exclusive>(
    store: &Store,
    lock: &AnyLock,
) -> tokio::task::JoinHandle<Instant> {
    if !L::NOTIFIED {
        let mut waiting = Box::pin(lock.lock());
        assert!(poll_once(&mut waiting).is_pending());
        return tokio::spawn(async move {
            let guard = waiting.await.unwrap();
            let granted = Instant::now();
            guard.release().await.unwrap();
            granted
        });
    }
    let (name, before) = (lock.name().to_string(), store.listeners(&lock.name().to_string()));
    let waiter = waiter(lock);
    eventually("the waiter listens", async || store.listeners(&name) > before).await;
    waiter
}

pub(crate) async fn a_waiter_acquires_as_soon_as_the_lock_is_released<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    store.receives_notices_of(&guard).await;
    let waiter = listening::<L>(store, &theirs).await;
    guard.release().await.unwrap();
    store.promptly("the waiter is woken", waiter).await.unwrap();
}

pub(crate) async fn a_waiter_of_the_same_client_acquires_as_soon_as_the_lock_is_released<
    L: Exclusive,
>(
    store: &Store,
) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let mut next = Box::pin(lock.lock());
    assert!(poll_once(&mut next).is_pending());
    guard.release().await.unwrap();
    store.promptly("the waiter is woken", next).await.unwrap().release().await.unwrap();
}

pub(crate) async fn a_waiter_acquires_when_the_lease_of_a_dead_holder_expires<L: Exclusive>(
    store: &Store,
) {
    let (ours, theirs) = pair::<L>(store).await;
    let (begun, start) = (Instant::now(), store.timer());
    // It is neither released nor renewed.
    store.other_holds_for::<L>(ours.name(), store.lease()).await;
    let guards = tokio::join!(waiter(&ours), waiter(&theirs));
    start.took(store.lease().mul_f64(0.95), store.lease() + late::<L>());
    for granted in [guards.0.unwrap(), guards.1.unwrap()] {
        assert!(granted - begun >= store.lease().mul_f64(0.95), "{:?}", granted - begun);
    }
}

pub(crate) async fn a_waiter_acquires_when_a_forgotten_guard_expires<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let start = store.timer();
    std::mem::forget(lock.lease(store.lease()).lock().await.unwrap());
    waiter(&lock).await.unwrap();
    start.took(store.lease().mul_f64(0.95), store.lease() + late::<L>());
}

pub(crate) async fn a_waiter_times_out_while_the_lock_is_busy<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    let start = store.timer();
    assert!(theirs.try_lock_for(store.lease()).await.unwrap().is_none());
    start.took(store.lease().mul_f64(0.99), store.lease() + late::<L>());
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

pub(crate) async fn the_wait_limit_holds_in_the_local_queue<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let start = store.timer();
    assert!(lock.try_lock_for(store.lease()).await.unwrap().is_none());
    start.took(store.lease().mul_f64(0.99), store.lease() + late::<L>());
    guard.release().await.unwrap();
}

/// When the first of them times out, the next one has hardly any time left for a request.
pub(crate) async fn waiters_of_one_client_that_time_out_together_find_it_busy<L: Exclusive>(
    store: &Store,
) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = theirs.lock().await.unwrap();
    for _ in 0..15 {
        let wait = || tokio::spawn(ours.try_lock_for(Duration::from_millis(20)));
        let waiters: Vec<_> = (0..8).map(|_| wait()).collect();
        for waiter in waiters {
            assert!(waiter.await.unwrap().expect("the store answers").is_none());
        }
    }
    guard.release().await.unwrap();
}

pub(crate) async fn a_wait_limit_shorter_than_a_round_trip_is_answered<L: Exclusive>(
    store: &Store,
) {
    let flaky = Flaky::new(store.backend().await);
    let client = Client::with_backend(flaky.backend(), store.options()).unwrap();
    let ours = L::of(&client, store.name("lock"));
    let theirs = one::<L>(store).await;
    let guard = theirs.lock().await.unwrap();
    let attempt = async || {
        flaky.script([Gate::Slow(Duration::from_millis(100))]);
        ours.try_lock_for(Duration::from_millis(1)).await.expect("the store answers")
    };
    assert!(attempt().await.is_none());
    guard.release().await.unwrap();
    // What the first attempt left in a queue may still be on its way out.
    eventually("a grant after the limit counts", async || attempt().await.is_some()).await;
}

/// The store answered twice that the lock is busy, and then stops answering.
pub(crate) async fn a_store_that_stops_answering_during_the_wait_is_unreachable<L: Exclusive>(
    store: &Store,
) {
    let flaky = Flaky::new(store.backend().await);
    let options = store.options().response_timeout(store.lease());
    let client = Client::with_backend(flaky.backend(), options).unwrap();
    let theirs = one::<L>(store).await;
    let guard = theirs.lock().await.unwrap();
    let answered = [Gate::Ok, Gate::Ok, Gate::Ok];
    flaky.script(answered.into_iter().chain(std::iter::repeat_n(Gate::Never, 1000)));
    let start = store.timer();
    let ours = L::of(&client, store.name("lock"));
    let answer = ours.try_lock_for(store.lease()).await;
    assert_is!(answer, Err(Error::Unreachable { silent_for: Some(_), .. }));
    start.took(store.lease().mul_f64(0.99), store.lease() * 2 + late::<L>());
    flaky.open();
    guard.release().await.unwrap();
}

pub(crate) async fn a_release_within_the_wait_limit_grants_the_lock<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.lease()).lock().await.unwrap();
    let waiting = theirs.lease(store.long()).try_lock_for(store.long());
    let next = waiting.await.unwrap().expect("it expires in time");
    assert!(guard.is_lost());
    next.release().await.unwrap();
}

pub(crate) async fn an_endless_wait_limit_is_allowed<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    let mut waiting = Box::pin(theirs.try_lock_for(Duration::MAX));
    assert!(poll_once(&mut waiting).is_pending());
    guard.release().await.unwrap();
    let next = store.promptly("the waiter is woken", waiting).await.unwrap();
    let local = ours.try_lock_for(Duration::MAX);
    next.expect("granted").release().await.unwrap();
    assert!(local.await.unwrap().is_some());
}

pub(crate) async fn the_lease_of_a_waiter_starts_at_the_grant<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.lease()).lock().await.unwrap();
    let queued = {
        let ours = ours.clone();
        let lease = store.long();
        tokio::spawn(async move { ours.lease(lease).lock().await.unwrap() })
    };
    let queued = queued.await.unwrap();
    assert!(guard.is_lost());
    assert!(queued.remaining() > store.long() * 8 / 10, "{:?}", queued.remaining());
    assert!(left(theirs.inspect().await) > store.long() * 8 / 10);
    queued.release().await.unwrap();
}

/// The lease of the receiver counts, not that of the giver.
pub(crate) async fn a_handoff_sets_the_lease_of_the_receiver<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let giver = lock.lease(store.long() * 20).lock().await.unwrap();
    let mut receiver = Box::pin(lock.lease(store.long()).lock());
    assert!(poll_once(&mut receiver).is_pending());
    giver.release().await.unwrap();
    let receiver = store.promptly("handed over", receiver).await.unwrap();
    let ttl = left(lock.inspect().await);
    assert!(ttl <= store.long() && ttl > store.long() / 2, "{ttl:?}");
    assert!(receiver.remaining() <= store.long());
    receiver.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

pub(crate) async fn waiters_of_one_client_are_served_in_order<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let (order, mut tasks) = (Arc::new(StdMutex::new(Vec::new())), JoinSet::new());
    for place in 0..40 {
        let mut waiting = Box::pin(lock.lock());
        assert!(poll_once(&mut waiting).is_pending());
        let order = Arc::clone(&order);
        tasks.spawn(async move {
            let guard = waiting.await.unwrap();
            order.lock().unwrap().push(place);
            guard.release().await.unwrap();
        });
    }
    guard.release().await.unwrap();
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..40).collect::<Vec<_>>());
}

pub(crate) async fn a_thousand_waiters_of_one_client_are_all_served<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let (served, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
    for _ in 0..1000 {
        let (lock, served) = (lock.clone(), Arc::clone(&served));
        tasks.spawn(async move {
            let guard = lock.lock().await.unwrap();
            served.fetch_add(1, Ordering::Relaxed);
            guard.release().await.unwrap();
        });
    }
    guard.release().await.unwrap();
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(served.load(Ordering::Relaxed), 1000);
    assert!(!lock.is_locked().await.unwrap());
}

pub(crate) async fn waiters_of_many_clients_are_all_served<L: Exclusive>(store: &Store) {
    let holder = one::<L>(store).await;
    let guard = holder.lease(store.long()).lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..5 {
        let lock = one::<L>(store).await;
        waiters.extend([waiter(&lock), waiter(&lock)]);
    }
    guard.release().await.unwrap();
    for waiter in waiters {
        store.promptly("a waiter is served", waiter).await.unwrap();
    }
}

pub(crate) async fn a_cancelled_waiter_leaves_nothing_behind<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    store.receives_notices_of(&guard).await;
    let name = store.name("lock");
    let before = store.listeners(&name);
    let waiting = listening::<L>(store, &theirs).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    eventually("it listens no longer", async || store.listeners(&name) == before).await;
    eventually("it has left the queue", async || store.stored(&name) == 1).await;
    assert_eq!(ours.inspect().await.unwrap().holders.remove(0).id, guard.owner_id().to_string());
    guard.release().await.unwrap();
    assert!(!ours.is_locked().await.unwrap(), "nobody has taken it");
    // A try that was under way when it was cancelled is finished first.
    let free = async || theirs.try_lock().await.unwrap().is_some();
    eventually("its client may have it", free).await;
}

pub(crate) async fn a_waiter_that_times_out_leaves_nothing_behind<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    store.receives_notices_of(&guard).await;
    let name = store.name("lock");
    let before = store.listeners(&name);
    assert!(theirs.try_lock_for(store.lease()).await.unwrap().is_none());
    eventually("it listens no longer", async || store.listeners(&name) == before).await;
    eventually("it has left the queue", async || store.stored(&name) == 1).await;
    guard.release().await.unwrap();
    assert!(!ours.is_locked().await.unwrap());
}

pub(crate) async fn the_last_waiter_ends_the_subscription<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let name = store.name("lock");
    let guard = ours.lease(store.long()).lock().await.unwrap();
    store.receives_notices_of(&guard).await;
    let waiters = [listening::<L>(store, &theirs).await, waiter(&theirs), waiter(&theirs)];
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    // In memory also the holders' own topics, which linger for a second.
    eventually("no subscriber is left", async || store.listeners(&name) == 0).await;
    assert_eq!(store.stored(&name), 0);
}

/// The head of the local queue is cancelled when it is served.
pub(crate) async fn a_cancelled_waiter_wakes_the_next_one<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    for _ in 0..20 {
        let guard = lock.lease(store.long()).lock().await.unwrap();
        let mut first = Box::pin(lock.lock());
        let mut second = Box::pin(lock.lock());
        assert!(poll_once(&mut first).is_pending());
        assert!(poll_once(&mut second).is_pending());
        let release = guard.release();
        let acquire_and_cancel = async { drop(first) };
        let (released, ()) = tokio::join!(release, acquire_and_cancel);
        released.unwrap();
        store.promptly("the second is served", second).await.unwrap().release().await.unwrap();
    }
}

/// It was granted the lock already, but never looked.
pub(crate) async fn a_waiter_dropped_after_its_grant_releases_the_lock<L: Exclusive>(
    store: &Store,
) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    let mut granted = Box::pin(ours.lease(store.long()).lock());
    assert!(poll_once(&mut granted).is_pending());
    guard.release().await.unwrap();
    drop(granted);
    let next = store.promptly("it is given back", theirs.lock()).await.unwrap();
    next.release().await.unwrap();
}

pub(crate) async fn random_cancellations_leave_no_lock_held<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    for micros in 0..100 {
        for lock in [&ours, &theirs] {
            let attempt = lock.lease(store.long()).lock();
            let _ = timeout(Duration::from_micros(micros * 7), attempt).await;
        }
    }
    let guard = store.promptly("the lock is free", ours.lock()).await.unwrap();
    guard.release().await.unwrap();
    let guard = store.promptly("for the other, too", theirs.lock()).await.unwrap();
    guard.release().await.unwrap();
}

/// Wake-ups may get lost.
pub(crate) async fn a_waiter_without_wake_ups_rechecks<L: Exclusive>(store: &Store) {
    let holder = one::<L>(store).await;
    let deaf = Arc::new(Deaf(store.backend().await));
    let deaf = Client::with_backend(deaf, store.options()).unwrap();
    let deaf = L::of(&deaf, store.name("lock"));
    let guard = holder.lease(store.long()).lock().await.unwrap();
    let mut waiting = Box::pin(deaf.lock());
    // Long enough that it has subscribed and sleeps.
    assert!(timeout(Duration::from_millis(200), &mut waiting).await.is_err());
    let start = store.timer();
    guard.release().await.unwrap();
    let next = timeout(store.long(), waiting).await.expect("it looks again").unwrap();
    // At most 5 s for a lock, and 100 ms for a mutex, whose other libraries do not publish.
    start.took(Duration::ZERO, L::RECHECK);
    next.release().await.unwrap();
}

/// Ten waiters: none of them asks more often than it has reason to.
pub(crate) async fn waiters_do_not_poll_in_a_tight_loop<L: Exclusive>(store: &Store) {
    let holder = one::<L>(store).await;
    let counting = Counting::new(store.backend().await);
    let client = Client::with_backend(counting.clone(), store.options()).unwrap();
    let lock = L::of(&client, store.name("lock"));
    let guard = holder.lease(store.long()).lock().await.unwrap();
    let start = Instant::now();
    let waiters: Vec<_> = (0..10).map(|_| waiter(&lock)).collect();
    let asking = if L::QUEUED { 1 } else { 10 };
    let listening = if L::NOTIFIED { asking } else { 0 };
    // Once, once more after subscribing, and then a re-check from time to time.
    eventually("all have come to wait", async || {
        counting.acquires() >= 2 * asking && counting.confirmed() == listening
    })
    .await;
    sleep(Duration::from_secs(1)).await;
    let asked = counting.acquires();
    let pause = L::RECHECK / 2;
    let limit = L::TRIES + (start.elapsed().as_millis() / pause.as_millis()) as u64;
    assert!(asked <= limit * asking, "{asked} attempts in {:?}", start.elapsed());
    assert_eq!(counting.subscribes(), listening);
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
}
