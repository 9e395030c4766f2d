//! Locks that are configured as non-reentrant.

use std::time::Duration;

use lockkeeper::{AnyLock, Client, Error, FairLock, Lock, RunError};

use crate::store::{Reentrant, Store, assert_is, poll_once};

/// What can be made not re-entrant.
pub(crate) trait Once: Reentrant {
    fn once(client: &Client, name: String) -> AnyLock;
}

impl Once for Lock {
    fn once(client: &Client, name: String) -> AnyLock {
        client.lock(name).non_reentrant().into()
    }
}

impl Once for FairLock {
    fn once(client: &Client, name: String) -> AnyLock {
        client.fair_lock(name).non_reentrant().into()
    }
}

pub(crate) async fn a_second_acquire_of_the_owner_is_rejected_at_once<L: Once>(store: &Store) {
    let client = store.client().await;
    let owner = client.new_owner();
    let lock = L::once(&client, store.name("lock")).as_owner(&owner);
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let answers = async {
        let waits = lock.try_lock_for(store.long()).await;
        [lock.lock().await.map(Some), lock.try_lock().await, waits]
    };
    for answer in store.promptly("the refusals", answers).await {
        let error = answer.expect_err("it holds it already");
        let said = error.to_string();
        assert_is!(error, Error::Invalid { lock: Some(_), .. });
        assert!(said.contains(&store.name("lock")) && said.contains("re-entrant"), "{said}");
    }
    assert_is!(lock.run(async |_| ()).await, Err(RunError::Acquire(Error::Invalid { .. })));
    assert_is!(
        lock.try_run_for(Duration::ZERO, async |_| ()).await,
        Err(RunError::Acquire(Error::Invalid { .. }))
    );
    assert!(!guard.is_lost(), "the first hold is unharmed");
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
    assert_eq!(store.stored(&store.name("lock")), 1, "and nobody is in a queue");
    guard.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
    lock.try_lock().await.unwrap().expect("it may have it anew").release().await.unwrap();
}

pub(crate) async fn a_non_reentrant_guard_cannot_be_reentered<L: Once>(store: &Store) {
    let lock = L::once(&store.client().await, store.name("lock"));
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let refused = store.promptly("the refusal", guard.reenter()).await;
    assert_is!(refused, Err(Error::Invalid { lock: Some(_), .. }));
    assert_eq!(guard.hold_count(), 1);
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

/// Both the request and the hold have a say.
pub(crate) async fn a_non_reentrant_request_or_hold_rejects_reentry<L: Once>(store: &Store) {
    let client = store.client().await;
    let owner = client.new_owner();
    let twice = L::of(&client, store.name("lock")).as_owner(&owner);
    let once = L::once(&client, store.name("lock")).as_owner(&owner);
    let guard = once.lease(store.long()).lock().await.unwrap();
    assert_is!(twice.lock().await, Err(Error::Invalid { .. }));
    guard.release().await.unwrap();
    let guard = twice.lease(store.long()).lock().await.unwrap();
    assert_is!(once.lock().await, Err(Error::Invalid { .. }));
    let again = twice.lock().await.expect("this one may be held twice");
    again.release().await.unwrap();
    guard.release().await.unwrap();
}

pub(crate) async fn other_owners_wait<L: Once>(store: &Store) {
    let client = store.client().await;
    let lock = L::once(&client, store.name("lock"));
    let guard = lock.as_owner(&client.new_owner()).lease(store.long()).lock().await.unwrap();
    let other = lock.as_owner(&client.new_owner());
    assert!(other.try_lock().await.unwrap().is_none());
    assert!(lock.try_lock().await.unwrap().is_none(), "nobody is another one, too");
    let mut waiting = Box::pin(other.lock());
    assert!(poll_once(&mut waiting).is_pending());
    guard.release().await.unwrap();
    store.promptly("the other", waiting).await.unwrap().release().await.unwrap();
}
