//! What becomes of locks when the runtime of their client ends.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{Client, Error, Guard, Lock, LostReason, blocking};
use tokio::runtime::{Builder, Runtime};

use crate::store::{Store, assert_is};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Holds a lock in a runtime that then ends.
fn orphan(store: &Store, lease: Option<Duration>) -> (Client, Lock, Guard) {
    let runtime = runtime();
    runtime.block_on(async {
        let client = store.client().await;
        let lock = client.lock(store.name("lock"));
        let request = lock.lock();
        let guard = match lease {
            Some(lease) => request.lease(lease).await.unwrap(),
            None => request.await.unwrap(),
        };
        assert!(!guard.is_lost());
        (client, lock, guard)
    })
}

pub(crate) fn when_the_runtime_ends_its_locks_are_lost(store: &Store) {
    let (_client, _lock, guard) = orphan(store, Some(store.long()));
    assert!(guard.is_lost());
    assert_eq!(runtime().block_on(guard.lost()), LostReason::Closed);
    assert_eq!(guard.remaining(), Duration::ZERO);
}

pub(crate) fn when_the_runtime_ends_whoever_waits_for_the_loss_is_told(store: &Store) {
    let first = runtime();
    let guard = first.block_on(async {
        let lock = store.client().await.lock(store.name("lock"));
        lock.lock().lease(store.long()).await.unwrap()
    });
    let lost = guard.lost();
    let elsewhere = thread::spawn(move || runtime().block_on(lost));
    drop(first);
    assert_eq!(elsewhere.join().unwrap(), LostReason::Closed);
}

pub(crate) fn a_client_whose_runtime_ended_is_closed(store: &Store) {
    let (client, lock, guard) = orphan(store, Some(store.long()));
    let other = client.lock(store.name("other"));
    runtime().block_on(async {
        assert_is!(lock.try_lock().await, Err(Error::Closed { .. }));
        assert_is!(other.lock().await, Err(Error::Closed { .. }));
        assert_is!(lock.is_locked().await, Err(Error::Closed { .. }));
    });
    drop(guard);
}

pub(crate) fn a_lock_whose_runtime_ended_is_free_when_its_lease_ends(store: &Store) {
    let lease = Duration::from_secs(1);
    let start = Instant::now();
    let (_client, _lock, _guard) = orphan(store, Some(lease));
    let next = blocking::Client::connect(store.url()).unwrap().lock(store.name("lock"));
    let next = next.lock().unwrap();
    let took = start.elapsed();
    assert!(took >= lease.mul_f64(0.95), "{took:?}");
    assert!(took < lease * 8, "{took:?}");
    next.release().unwrap();
}

/// Guards may be used from another runtime than the client's, as long as that one runs.
pub(crate) fn a_guard_may_be_released_on_another_runtime(store: &Store) {
    let home = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, guard) = home.block_on(async {
        let client = store.client().await;
        let guard = client.lock(store.name("lock")).lock().lease(store.long()).await.unwrap();
        (client, guard)
    });
    runtime().block_on(async {
        guard.release().await.unwrap();
        let guard = client.lock(store.name("lock")).try_lock().await.unwrap();
        assert!(guard.is_some(), "it is free, and may be taken from here, too");
    });
}
