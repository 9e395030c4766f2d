//! The mutex.

use lockkeeper::{Error, Mutex};

use crate::store::{Store, one, poll_once};

pub(crate) async fn a_mutex_is_not_reentrant(store: &Store) {
    let mutex = one::<Mutex>(store).await;
    let guard = mutex.lease(store.long()).lock().await.unwrap();
    match guard.reenter().await {
        Err(Error::Invalid { lock: Some(lock), detail }) => {
            assert_eq!(&lock, mutex.name());
            assert!(detail.contains("mutex") && detail.contains("reentrant"), "{detail}");
        }
        other => panic!("expected Invalid, got {other:?}"),
    }
    assert_eq!(guard.hold_count(), 1);
    assert!(!guard.is_lost(), "the refusal changes nothing");
    guard.release().await.unwrap();
}

pub(crate) async fn a_second_lock_of_a_mutex_waits(store: &Store) {
    let mutex = one::<Mutex>(store).await;
    let guard = mutex.lease(store.long()).lock().await.unwrap();
    let mut again = Box::pin(mutex.lock());
    assert!(poll_once(&mut again).is_pending());
    assert!(mutex.try_lock_for(store.lease()).await.unwrap().is_none());
    guard.release().await.unwrap();
    store.promptly("then it is granted", again).await.unwrap().release().await.unwrap();
}

pub(crate) async fn a_mutex_is_held_once_by_its_holder(store: &Store) {
    let mutex = one::<Mutex>(store).await;
    let guard = mutex.lock().await.unwrap();
    let holder = mutex.inspect().await.unwrap().holders.remove(0);
    assert_eq!((holder.id, holder.hold_count), (guard.owner_id().to_string(), 1));
    guard.release().await.unwrap();
}
