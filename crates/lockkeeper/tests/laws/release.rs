//! Releasing a lock that is held, expired, deleted or held by another owner.

use lockkeeper::{Clock, Error, Phase};

use crate::store::{Exclusive, Store, assert_is, eventually, one, pair};

pub(crate) async fn release_frees_the_lock<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lock().await.unwrap();
    assert_eq!(store.stored(&store.name("lock")), 1);
    guard.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
    assert_eq!(store.stored(&store.name("lock")), 0, "nothing is left in the store");
}

pub(crate) async fn a_dropped_guard_releases_the_lock<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    drop(guard);
    let next = store.promptly("after the drop", theirs.lock()).await.unwrap();
    next.release().await.unwrap();
}

pub(crate) async fn a_release_that_is_never_polled_is_done<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    drop(guard.release());
    let next = store.promptly("after the release", theirs.lock()).await.unwrap();
    next.release().await.unwrap();
}

pub(crate) async fn a_task_that_panics_releases_its_lock<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let task = tokio::spawn(async move {
        let _guard = ours.lease(std::time::Duration::from_secs(30)).lock().await.unwrap();
        panic!("this panic is part of the law");
    });
    assert!(task.await.unwrap_err().is_panic());
    let next = store.promptly("after the panic", theirs.lock()).await.unwrap();
    next.release().await.unwrap();
}

pub(crate) async fn an_aborted_task_releases_its_lock<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let (held, is_held) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let _guard = ours.lease(std::time::Duration::from_secs(30)).lock().await.unwrap();
        held.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    is_held.await.unwrap();
    task.abort();
    let next = store.promptly("after the abort", theirs.lock()).await.unwrap();
    next.release().await.unwrap();
}

pub(crate) async fn releasing_an_expired_lock_is_not_held<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.lease()).lock().await.unwrap();
    eventually("the lease ends", async || !lock.is_locked().await.unwrap()).await;
    let error = guard.release().await.unwrap_err();
    let said = error.to_string();
    assert_is!(error, Error::NotHeld { phase: Phase::Release, holder: None, .. });
    assert!(said.contains(&lock.name().to_string()) && said.contains("releasing"), "{said}");
}

pub(crate) async fn releasing_an_expired_lock_does_not_disturb_the_new_holder<L: Exclusive>(
    store: &Store,
) {
    let (ours, theirs) = pair::<L>(store).await;
    let stale = ours.lease(store.lease()).lock().await.unwrap();
    let new = theirs.lock().await.unwrap();
    let id = new.owner_id().to_string();
    match stale.release().await {
        Err(Error::NotHeld { lock, phase: Phase::Release, holder }) => {
            assert_eq!(&lock, ours.name());
            assert_eq!(holder.unwrap().id, id, "the error names the new holder");
        }
        other => panic!("expected NotHeld, got {other:?}"),
    }
    assert!(!new.is_lost());
    assert_eq!(ours.inspect().await.unwrap().holders.remove(0).id, id);
    new.release().await.unwrap();
}

/// The same client, so that the stale guard and the new one share the gate.
pub(crate) async fn a_stale_guard_does_not_disturb_its_own_client<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let stale = lock.lease(store.lease()).lock().await.unwrap();
    let new = lock.lease(store.long()).lock().await.unwrap();
    assert_is!(stale.release().await, Err(Error::NotHeld { .. }));
    assert!(lock.try_lock().await.unwrap().is_none());
    assert_eq!(lock.inspect().await.unwrap().holders.remove(0).id, new.owner_id().to_string());
    new.release().await.unwrap();
}

pub(crate) async fn dropping_a_stale_guard_does_not_disturb_the_new_holder<L: Exclusive>(
    store: &Store,
) {
    let client = store.client().await;
    let theirs = one::<L>(store).await;
    let stale = L::of(&client, store.name("lock")).lease(store.lease()).lock().await.unwrap();
    let new = theirs.lease(store.long()).lock().await.unwrap();
    drop(stale);
    // Waits until the client has done all it has to do about the guard.
    client.shutdown().await;
    assert_eq!(theirs.inspect().await.unwrap().holders.remove(0).id, new.owner_id().to_string());
    assert!(!new.is_lost());
    new.release().await.unwrap();
}

pub(crate) async fn releasing_a_deleted_lock_is_not_held<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.long()).lock().await.unwrap();
    store.delete::<L>(&guard).await;
    assert_is!(guard.release().await, Err(Error::NotHeld { .. }));
    assert!(!lock.is_locked().await.unwrap());
}

pub(crate) async fn releasing_a_lock_of_another_holder_does_not_change_it<L: Exclusive>(
    store: &Store,
) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.long()).lock().await.unwrap();
    store.delete::<L>(&guard).await;
    let other = store.other_holds::<L>(lock.name()).await.to_string();
    assert_is!(guard.release().await,
        Err(Error::NotHeld { holder: Some(holder), .. }) if holder.id == other);
    assert_eq!(lock.inspect().await.unwrap().holders.remove(0).id, other);
}

/// The clock of this process has run past the deadline, the store's has not.
pub(crate) async fn a_release_after_the_deadline_still_asks_the_store<L: Exclusive>(store: &Store) {
    let clock = Clock::system();
    let client = store.client_with(store.options().clock(clock.clone())).await;
    let lock = L::of(&client, store.name("lock"));
    let guard = lock.lease(store.long()).lock().await.unwrap();
    clock.skip(store.long() * 2);
    assert!(guard.is_lost());
    guard.release().await.expect("it was still ours");
    let observer = L::of(&store.client().await, store.name("lock"));
    assert!(!observer.is_locked().await.unwrap());
}
