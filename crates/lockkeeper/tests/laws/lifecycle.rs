//! Shutdown and drop of a client.

use std::time::Duration;

use lockkeeper::{Error, LostReason, RunError};
use tokio::time::{Instant, timeout};

use crate::store::{Exclusive, Store, assert_is, left, one, poll_once};

/// Longer than any of these laws takes.
const LIMIT: Duration = Duration::from_secs(600);

pub(crate) async fn shutdown_releases_every_lock<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let mut guards = Vec::new();
    for i in 0..10 {
        let lock = L::of(&client, store.name(&i.to_string()));
        guards.push(lock.lease(store.long()).lock().await.unwrap());
    }
    client.shutdown().await;
    let other = store.client().await;
    for (i, guard) in guards.iter().enumerate() {
        assert!(!L::of(&other, store.name(&i.to_string())).is_locked().await.unwrap());
        assert!(guard.is_lost());
        assert_eq!(store.promptly("lost", guard.lost()).await, LostReason::Closed);
    }
}

/// As after the death of the process: neither renewed nor released.
pub(crate) async fn a_hold_of_an_abandoned_client_expires_with_its_lease<L: Exclusive>(
    store: &Store,
) {
    let client = store.client().await;
    let (lock, other) = (L::of(&client, store.name("lock")), one::<L>(store).await);
    let guard = lock.lock().await.unwrap();
    let dropped = L::of(&client, store.name("dropped")).lock().await.unwrap();
    client.abandon();
    assert_eq!(store.promptly("the loss", guard.lost()).await, LostReason::Closed);
    assert!(guard.is_lost() && dropped.is_lost());
    drop(dropped);
    assert_is!(guard.release().await, Err(Error::Closed { .. }));
    assert_is!(lock.try_lock().await, Err(Error::Closed { .. }));
    client.shutdown().await;

    let still = L::of(&store.client().await, store.name("dropped"));
    assert!(still.is_locked().await.unwrap(), "it was given back");
    let (begun, rest) = (Instant::now(), left(other.inspect().await));
    let next = timeout(store.long() * 3, other.lock()).await;
    drop(next.expect("it is not renewed").unwrap());
    // By another clock than the store's.
    assert!(begun.elapsed() + Duration::from_millis(100) > rest, "{:?}", begun.elapsed());
}

pub(crate) async fn shutdown_leaves_the_locks_of_others_alone<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let other = L::of(&store.client().await, store.name("lock"));
    let guard = other.lease(store.long()).lock().await.unwrap();
    assert!(L::of(&client, store.name("lock")).try_lock().await.unwrap().is_none());
    client.shutdown().await;
    assert!(!guard.is_lost());
    assert!(left(other.inspect().await) > store.long() / 2);
    guard.release().await.unwrap();
}

pub(crate) async fn waiters_fail_when_their_client_shuts_down<L: Exclusive>(store: &Store) {
    let holder = one::<L>(store).await;
    let guard = holder.lease(store.long()).lock().await.unwrap();
    let client = store.client().await;
    let lock = L::of(&client, store.name("lock"));
    // The first asks the store, the second queues behind it.
    let (mut first, mut second) = (Box::pin(lock.lock()), Box::pin(lock.lock()));
    assert!(poll_once(&mut first).is_pending());
    assert!(poll_once(&mut second).is_pending());
    let waiters = tokio::spawn(async move { tokio::join!(first, second) });
    client.shutdown().await;
    let (first, second) = store.promptly("the waiters end", waiters).await.unwrap();
    assert_is!(first, Err(Error::Closed { lock: Some(_) }));
    assert_is!(second, Err(Error::Closed { lock: Some(_) }));
    assert_eq!(holder.inspect().await.unwrap().holders.remove(0).id, guard.owner_id().to_string());
    guard.release().await.unwrap();
    assert!(!holder.is_locked().await.unwrap());
}

pub(crate) async fn waiters_behind_their_own_client_fail_at_shutdown<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let lock = L::of(&client, store.name("lock"));
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let mut waiting = Box::pin(lock.lock());
    assert!(poll_once(&mut waiting).is_pending());
    let waiting = tokio::spawn(waiting);
    client.shutdown().await;
    assert_is!(
        store.promptly("the waiter ends", waiting).await.unwrap(),
        Err(Error::Closed { .. })
    );
    assert!(guard.is_lost());
    assert!(!one::<L>(store).await.is_locked().await.unwrap());
}

pub(crate) async fn a_client_that_is_shut_down_rejects_everything<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let lock = L::of(&client, store.name("lock"));
    client.shutdown().await;
    assert_is!(lock.lock().await, Err(Error::Closed { .. }));
    assert_is!(lock.try_lock().await, Err(Error::Closed { .. }));
    assert_is!(lock.try_lock_for(store.long()).await, Err(Error::Closed { .. }));
    assert_is!(lock.is_locked().await, Err(Error::Closed { .. }));
    assert_is!(lock.inspect().await, Err(Error::Closed { .. }));
    assert_is!(lock.force_unlock("").await, Err(Error::Closed { .. }));
    assert_is!(lock.run(async |_| ()).await, Err(RunError::Acquire(Error::Closed { .. })));
    let error = L::of(&client, store.name("new")).lock().await.unwrap_err();
    assert_is!(&error, Error::Closed { .. });
    assert!(error.to_string().contains(&store.name("new")), "{error}");
}

pub(crate) async fn a_client_may_be_shut_down_twice<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let guard = L::of(&client, store.name("lock")).lease(store.long()).lock().await.unwrap();
    let again = client.clone();
    tokio::join!(client.shutdown(), again.shutdown());
    again.shutdown().await;
    assert_eq!(guard.lost().await, LostReason::Closed);
    assert!(!one::<L>(store).await.is_locked().await.unwrap());
}

pub(crate) async fn the_guard_of_a_client_that_is_shut_down_is_not_held<L: Exclusive>(
    store: &Store,
) {
    let client = store.client().await;
    let guard = L::of(&client, store.name("lock")).lease(store.long()).lock().await.unwrap();
    client.shutdown().await;
    let next = L::of(&store.client().await, store.name("lock")).try_lock().await.unwrap();
    let next = next.expect("it was released");
    assert_is!(guard.extend(store.long()).await,
        Err(Error::Lost { reason, .. }) if reason == LostReason::Closed);
    // No request is sent, so that every store answers the same.
    assert_is!(guard.release().await, Err(Error::Closed { .. }));
    assert!(!next.is_lost());
    next.release().await.unwrap();
}

pub(crate) async fn after_the_shutdown_every_release_is_closed<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let lock = |name: &str| L::of(&client, store.name(name));
    let left = lock("left").lock().await.unwrap();
    let expired = lock("expired").lease(store.lease()).lock().await.unwrap();
    assert_eq!(store.signalled(expired.lost()).await, LostReason::Expired);
    client.shutdown().await;
    assert_is!(left.leave_for(store.long()).await, Err(Error::Closed { .. }));
    assert_is!(expired.release().await, Err(Error::Closed { .. }));
    let other = store.client().await;
    assert!(!L::of(&other, store.name("left")).is_locked().await.unwrap());
}

pub(crate) async fn a_guard_keeps_its_client_alive<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let lock = L::of(&client, store.name("lock"));
    let guard = lock.lock().await.unwrap();
    drop((client, lock));
    let observer = one::<L>(store).await;
    store.is_renewed(&observer).await;
    assert!(!guard.is_lost());
    assert!(observer.is_locked().await.unwrap());
    guard.release().await.unwrap();
    assert!(!observer.is_locked().await.unwrap());
}

pub(crate) async fn a_handle_keeps_its_client_alive<L: Exclusive>(store: &Store) {
    let lock = L::of(&store.client().await, store.name("lock"));
    tokio::task::yield_now().await;
    lock.lock().await.unwrap().release().await.unwrap();
}

pub(crate) async fn dropping_guard_and_client_releases_the_lock<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let lock = L::of(&client, store.name("lock"));
    let guard = lock.lease(store.long()).lock().await.unwrap();
    drop((guard, lock, client));
    let next = one::<L>(store).await;
    let next = store.promptly("it is given back", next.lock()).await.unwrap();
    next.release().await.unwrap();
}

/// What is held goes on, and ends when its guard is released; what waits, and what comes later, fails.
pub(crate) async fn a_drained_client_waits_for_its_guards<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let lock = L::of(&client, store.name("lock"));
    let guard = lock.lock().await.unwrap();
    let other = one::<L>(store).await;
    let theirs = L::of(&store.client().await, store.name("theirs")).lock().await.unwrap();
    let other_lock = L::of(&client, store.name("theirs"));
    let (mut behind, mut elsewhere) = (Box::pin(lock.lock()), Box::pin(other_lock.lock()));
    assert!(poll_once(&mut behind).is_pending() && poll_once(&mut elsewhere).is_pending());
    let waiters = tokio::spawn(async move { tokio::join!(behind, elsewhere) });
    let draining = tokio::spawn({
        let client = client.clone();
        async move { client.drain(LIMIT).await }
    });
    let (behind, elsewhere) = store.promptly("the waiters end", waiters).await.unwrap();
    assert_is!(behind, Err(Error::Closed { lock: Some(_) }));
    assert_is!(elsewhere, Err(Error::Closed { lock: Some(_) }));
    let new = L::of(&client, store.name("new"));
    assert_is!(new.lock().await, Err(Error::Closed { .. }));
    assert_is!(new.try_lock().await, Err(Error::Closed { .. }));
    assert_is!(new.run(async |_| ()).await, Err(RunError::Acquire(Error::Closed { .. })));
    store.is_renewed(&other).await;
    guard.extend(store.long()).await.unwrap();
    assert!(lock.is_locked().await.unwrap() && !guard.is_lost() && !draining.is_finished());
    guard.release().await.unwrap();
    assert!(draining.await.unwrap(), "all was released");
    assert_is!(lock.is_locked().await, Err(Error::Closed { .. }));
    assert!(!other.is_locked().await.unwrap());
    theirs.release().await.unwrap();
}

pub(crate) async fn a_guard_beyond_the_limit_of_a_drain_is_lost<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let guard = L::of(&client, store.name("lock")).lease(store.long()).lock().await.unwrap();
    assert!(!client.drain(Duration::from_millis(300)).await);
    assert_eq!(store.promptly("lost", guard.lost()).await, LostReason::Closed);
    assert!(!one::<L>(store).await.is_locked().await.unwrap());
}

/// Its guards remain, and it acquires nothing more, until it is drained again.
pub(crate) async fn a_dropped_drain_keeps_the_guards<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let lock = L::of(&client, store.name("lock"));
    let guard = lock.lock().await.unwrap();
    let drained = timeout(Duration::from_millis(100), client.drain(LIMIT)).await;
    assert!(drained.is_err(), "the guard is there");
    assert_is!(L::of(&client, store.name("new")).try_lock().await, Err(Error::Closed { .. }));
    assert!(!guard.is_lost() && lock.is_locked().await.unwrap());
    drop(guard);
    assert!(client.drain(LIMIT).await);
    assert!(!one::<L>(store).await.is_locked().await.unwrap());
}
