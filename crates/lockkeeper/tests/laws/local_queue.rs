//! The local queue: of the waiters of one client for one lock, one sends requests to the store.

use lockkeeper::Client;

use crate::decorators::Counting;
use crate::store::{Exclusive, Store, poll_once};

pub(crate) async fn try_lock_sends_no_request_while_its_own_client_holds_the_lock<L: Exclusive>(
    store: &Store,
) {
    let counting = Counting::new(store.backend().await);
    let client = Client::with_backend(counting.clone(), store.options()).unwrap();
    let lock = L::of(&client, store.name("lock"));
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let before = counting.acquires();
    for _ in 0..10 {
        assert!(lock.try_lock().await.unwrap().is_none());
    }
    assert_eq!(counting.acquires(), before);
    guard.release().await.unwrap();
    drop(lock.try_lock().await.unwrap().expect("it is free"));
    assert!(counting.acquires() > before, "the counter counts");
}

pub(crate) async fn try_lock_sends_no_request_while_its_own_client_waits<L: Exclusive>(
    store: &Store,
) {
    let name = store.name("lock");
    let theirs = L::of(&store.client().await, &name).lease(store.long()).lock().await.unwrap();
    // No other requests than this one's: the waiter is not polled any more once it waits.
    let counting = Counting::new(store.backend().await);
    let client = Client::with_backend(counting.clone(), store.options()).unwrap();
    let lock = L::of(&client, &name);
    let mut waiter = Box::pin(lock.lock());
    assert!(poll_once(&mut waiter).is_pending());
    let before = counting.acquires();
    assert!(lock.try_lock().await.unwrap().is_none());
    assert_eq!(counting.acquires(), before);
    drop(waiter);
    theirs.release().await.unwrap();
}

pub(crate) async fn a_thousand_local_waiters_send_the_requests_of_one<L: Exclusive>(store: &Store) {
    let name = store.name("lock");
    let theirs = L::of(&store.client().await, &name).lease(store.long()).lock().await.unwrap();
    let counting = Counting::new(store.backend().await);
    let client = Client::with_backend(counting.clone(), store.options()).unwrap();
    let lock = L::of(&client, &name);
    let mut waiters: Vec<_> = (0..1000).map(|_| Box::pin(lock.lock())).collect();
    for waiter in &mut waiters {
        assert!(poll_once(waiter).is_pending());
    }
    // Only the first of them has sent a request.
    assert!(counting.acquires() <= 2, "{} attempts", counting.acquires());
    assert!(counting.subscribes() <= 1, "{} subscriptions", counting.subscribes());
    drop(waiters);
    theirs.release().await.unwrap();
}
