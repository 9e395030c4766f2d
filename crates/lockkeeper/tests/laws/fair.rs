//! The queue of the fair lock.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use lockkeeper::backend::{Acquire, Attempt, Resource};
use lockkeeper::{AnyLock, Client, FairLock, Kind, OwnerId};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::store::{Store, eventually, one, pair, poll_once};

/// A waiter that is not heard of for so long is passed over.
const SILENCE: Duration = Duration::from_secs(3);

type Order = Arc<StdMutex<Vec<usize>>>;

/// Until so many wait.
async fn waiting(lock: &AnyLock, count: usize) {
    eventually("so many wait", async || lock.inspect().await.unwrap().queue.len() == count).await;
}

/// Waits in a task of its own; when it is served it says so and goes.
fn waiter(lock: &AnyLock, place: usize, order: &Order) -> JoinHandle<()> {
    let (lock, order) = (lock.clone(), Arc::clone(order));
    tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        order.lock().unwrap().push(place);
        guard.release().await.unwrap();
    })
}

/// Puts a waiter into the queue that sends no heartbeats.
async fn other_queues(store: &Store, lock: &AnyLock) {
    let resource = Resource { kind: Kind::Fair, name: lock.name().clone() };
    let owner = OwnerId::fresh(Client::memory().id());
    let request = Acquire { waits: true, ..Acquire::new(resource, owner, 1000) };
    let answer = store.backend().await.acquire(request).await;
    assert!(matches!(answer, Ok(Attempt::Busy { .. })), "{answer:?}");
}

pub(crate) async fn waiters_of_many_clients_are_served_in_the_order_of_arrival(store: &Store) {
    let holder = one::<FairLock>(store).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(one::<FairLock>(store).await);
    }
    let guard = holder.lease(store.long()).lock().await.unwrap();
    let (order, mut tasks) = (Order::default(), Vec::new());
    for place in 0..24 {
        tasks.push(waiter(&clients[place * 7 % 4], place, &order));
        waiting(&holder, place + 1).await;
    }
    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..24).collect::<Vec<_>>());
    assert_eq!(holder.inspect().await.unwrap().queue.len(), 0);
    assert_eq!(store.stored(&store.name("lock")), 0);
}

/// A client that releases the lock and acquires it again queues behind the waiters.
pub(crate) async fn a_holder_that_acquires_again_queues_last(store: &Store) {
    let (ours, theirs) = pair::<FairLock>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    let order = Order::default();
    let first = waiter(&theirs, 1, &order);
    waiting(&ours, 1).await;
    guard.release().await.unwrap();
    let again = waiter(&ours, 2, &order);
    store.promptly("the first", first).await.unwrap();
    store.promptly("the one that came back", again).await.unwrap();
    assert_eq!(*order.lock().unwrap(), [1, 2]);
}

pub(crate) async fn hundreds_of_waiters_with_random_cancellations_keep_their_order(store: &Store) {
    const WAITERS: usize = 200;
    let holder = one::<FairLock>(store).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(one::<FairLock>(store).await);
    }
    let guard = holder.lease(store.long()).lock().await.unwrap();
    let (order, mut tasks) = (Order::default(), Vec::new());
    for place in 0..WAITERS {
        tasks.push(waiter(&clients[place % 3], place, &order));
        waiting(&holder, place + 1).await;
    }
    let dies = |place: usize| place * place % 5 == 1;
    for (place, task) in tasks.iter().enumerate() {
        if dies(place) {
            task.abort();
        }
    }
    // Without a moment's rest: some of them are still in the queue.
    guard.release().await.unwrap();
    for (place, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.is_err(), dies(place));
    }
    let survivors: Vec<_> = (0..WAITERS).filter(|place| !dies(*place)).collect();
    assert_eq!(*order.lock().unwrap(), survivors);
    eventually("nothing is left", async || store.stored(&store.name("lock")) == 0).await;
}

pub(crate) async fn a_waiter_that_timed_out_is_skipped_at_once(store: &Store) {
    let (ours, theirs) = pair::<FairLock>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    let first = {
        let (theirs, patience) = (theirs.clone(), store.long() / 10);
        tokio::spawn(async move { theirs.try_lock_for(patience).await.unwrap().is_none() })
    };
    waiting(&ours, 1).await;
    let second = waiter(&theirs, 2, &Order::default());
    waiting(&ours, 2).await;
    assert!(first.await.unwrap(), "it gives up");
    guard.release().await.unwrap();
    store.promptly("the second", second).await.unwrap();
    eventually("nothing is left", async || store.stored(&store.name("lock")) == 0).await;
    assert_eq!(ours.inspect().await.unwrap().queue.len(), 0);
}

pub(crate) async fn a_waiter_that_was_dropped_is_skipped_at_once(store: &Store) {
    let (ours, theirs) = pair::<FairLock>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    let first = waiter(&theirs, 1, &Order::default());
    waiting(&ours, 1).await;
    let second = waiter(&ours, 2, &Order::default());
    waiting(&ours, 2).await;
    first.abort();
    guard.release().await.unwrap();
    store.promptly("the second", second).await.unwrap();
    eventually("nothing is left", async || store.stored(&store.name("lock")) == 0).await;
}

/// The lock is free and it is its turn, but it never looks.
pub(crate) async fn a_waiter_dropped_at_its_grant_wakes_the_next_one(store: &Store) {
    let (ours, theirs) = pair::<FairLock>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    let mut first = Box::pin(ours.lock());
    assert!(poll_once(&mut first).is_pending());
    waiting(&ours, 1).await;
    let second = waiter(&theirs, 2, &Order::default());
    waiting(&ours, 2).await;
    guard.release().await.unwrap();
    assert!(!ours.is_locked().await.unwrap(), "it is the first one's turn");
    drop(first);
    store.promptly("the second", second).await.unwrap();
    eventually("nothing is left", async || store.stored(&store.name("lock")) == 0).await;
}

pub(crate) async fn random_cancellations_leave_no_queue_position(store: &Store) {
    let (ours, theirs) = pair::<FairLock>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    for micros in 0..60 {
        for lock in [&ours, &theirs] {
            let attempt = lock.lock();
            let _ = tokio::time::timeout(Duration::from_micros(micros * 11), attempt).await;
        }
    }
    // A store serves the requests of a client in order: no attempt is under way after this answer.
    for lock in [&ours, &theirs] {
        lock.inspect().await.unwrap().queue.len();
    }
    eventually("no waiter", async || store.stored(&store.name("lock")) == 1).await;
    assert_eq!(ours.inspect().await.unwrap().queue.len(), 0);
    guard.release().await.unwrap();
    store.promptly("it is free", theirs.lock()).await.unwrap().release().await.unwrap();
}

pub(crate) async fn try_lock_does_not_jump_the_queue(store: &Store) {
    let (ours, theirs) = pair::<FairLock>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    let mut first = Box::pin(ours.lock());
    assert!(poll_once(&mut first).is_pending());
    waiting(&ours, 1).await;
    guard.release().await.unwrap();
    for lock in [&ours, &theirs] {
        assert!(lock.try_lock().await.unwrap().is_none(), "it is another one's turn");
        assert!(lock.try_lock_for(Duration::ZERO).await.unwrap().is_none());
        assert_eq!(lock.inspect().await.unwrap().queue.len(), 1, "an attempt takes no place");
        assert!(!lock.is_locked().await.unwrap());
    }
    store.promptly("the first", first).await.unwrap().release().await.unwrap();
    theirs.try_lock().await.unwrap().expect("nobody waits").release().await.unwrap();
}

pub(crate) async fn a_reentry_does_not_queue(store: &Store) {
    let client = store.client().await;
    let (lock, owner) = (client.fair_lock(store.name("lock")), client.new_owner());
    let mine = lock.as_owner(&owner);
    let guard = mine.lease(store.long()).lock().await.unwrap();
    let other = waiter(&one::<FairLock>(store).await, 1, &Order::default());
    waiting(&lock.clone().into(), 1).await;
    let again = store.promptly("by its owner", mine.lock()).await.unwrap();
    let third = store.promptly("by its guard", guard.reenter()).await.unwrap();
    let fourth = mine.try_lock().await.unwrap().expect("it is its own");
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 4);
    assert_eq!(lock.inspect().await.unwrap().queue.len(), 1);
    for guard in [guard, again, third, fourth] {
        assert!(!other.is_finished());
        guard.release().await.unwrap();
    }
    store.promptly("the waiter", other).await.unwrap();
}

/// Its client died without leaving the queue.
pub(crate) async fn a_waiter_that_died_delays_the_queue_by_seconds(store: &Store) {
    let (ours, theirs) = pair::<FairLock>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    other_queues(store, &ours).await;
    let start = store.timer();
    let (order, mut tasks) = (Order::default(), JoinSet::new());
    for (place, lock) in [&theirs, &ours].into_iter().enumerate() {
        tasks.spawn(waiter(lock, place, &order));
        waiting(&ours, place + 2).await;
    }
    guard.release().await.unwrap();
    tasks.join_all().await.into_iter().for_each(Result::unwrap);
    // Where a machine stood still, the silence is forgiven once.
    let longest = if store.is_paused() { SILENCE } else { SILENCE * 2 };
    start.took(SILENCE, longest + Duration::from_secs(1));
    assert_eq!(*order.lock().unwrap(), [0, 1]);
    assert_eq!(store.stored(&store.name("lock")), 0);
}

/// While the lock is held, live waiters keep their queue positions, and stale ones are removed.
pub(crate) async fn a_long_wait_keeps_its_queue_position(store: &Store) {
    let (ours, theirs) = pair::<FairLock>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    other_queues(store, &ours).await;
    let (order, mut tasks) = (Order::default(), JoinSet::new());
    for (place, lock) in [&theirs, &ours, &theirs].into_iter().enumerate() {
        tasks.spawn(waiter(lock, place, &order));
        waiting(&ours, place + 2).await;
    }
    let ids = async || store.queue(ours.name()).await;
    let before = ids().await;
    sleep(SILENCE * 5 / 4).await;
    let mut now = Vec::new();
    eventually("the dead one is gone", async || {
        now = ids().await;
        now.first() != Some(&before[0])
    })
    .await;
    assert_eq!(now, before[1..], "the dead one is gone, the others are as they were");
    guard.release().await.unwrap();
    let all = store.promptly("there is nobody to wait for", tasks.join_all()).await;
    all.into_iter().for_each(Result::unwrap);
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
}

/// The client of the holder died: its lease expires, and the head of the queue acquires.
pub(crate) async fn the_head_acquires_when_the_lease_of_a_dead_holder_expires(store: &Store) {
    let (ours, theirs) = pair::<FairLock>(store).await;
    store.other_holds_for::<FairLock>(ours.name(), store.lease()).await;
    let start = store.timer();
    let (order, mut tasks) = (Order::default(), JoinSet::new());
    for (place, lock) in [&theirs, &ours, &theirs].into_iter().enumerate() {
        tasks.spawn(waiter(lock, place, &order));
        waiting(&ours, place + 1).await;
    }
    tasks.join_all().await.into_iter().for_each(Result::unwrap);
    start.took(Duration::ZERO, store.lease() + Duration::from_secs(1));
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
}

/// It is the same lock in the store as `Lock`, as in Redisson: each keeps the other out.
pub(crate) async fn a_fair_lock_and_a_lock_of_one_name_exclude_each_other(store: &Store) {
    let (ours, theirs) = (store.client().await, store.client().await);
    let (fair, plain) = (ours.fair_lock(store.name("lock")), theirs.lock(store.name("lock")));
    let guard = fair.lease(store.long()).lock().await.unwrap();
    assert!(plain.try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    let guard = plain.lease(store.long()).lock().await.unwrap();
    assert!(fair.try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
}
