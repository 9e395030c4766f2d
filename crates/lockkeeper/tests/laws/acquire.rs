//! Acquiring a lock.

use std::collections::HashSet;
use std::time::Duration;

use lockkeeper::{AnyLock, OwnerId};
use testkit::History;
use tokio::task::JoinSet;

use crate::store::{Exclusive, Store, one, pair};

pub(crate) async fn a_free_lock_is_granted_at_once<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = store.promptly("lock", lock.lock()).await.unwrap();
    assert!(!guard.is_lost());
    assert_eq!(guard.name(), lock.name());
    guard.release().await.unwrap();
    let guard = lock.try_lock().await.unwrap().expect("it is free again");
    guard.release().await.unwrap();
    let waiting = lock.try_lock_for(store.long());
    let guard = store.promptly("try_lock with wait", waiting).await.unwrap();
    guard.expect("it is free").release().await.unwrap();
}

pub(crate) async fn try_lock_is_none_while_another_client_holds_it<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = theirs.lock().await.unwrap();
    assert!(ours.try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(ours.try_lock().await.unwrap().is_some());
}

pub(crate) async fn two_tasks_that_share_a_handle_exclude_each_other<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lock().await.unwrap();
    let other = lock.clone();
    let task = tokio::spawn(async move { other.try_lock().await.unwrap().is_some() });
    assert!(!task.await.unwrap());
    assert!(lock.try_lock().await.unwrap().is_none(), "nor does the same task get it twice");
    guard.release().await.unwrap();
}

pub(crate) async fn locks_of_different_names_are_independent<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let (a, b) = (L::of(&client, store.name("a")), L::of(&client, store.name("b")));
    let held = a.lock().await.unwrap();
    let also = b.try_lock().await.unwrap().expect("b is free");
    held.release().await.unwrap();
    assert!(b.is_locked().await.unwrap(), "the release of a is not that of b");
    also.release().await.unwrap();
}

pub(crate) async fn zero_wait_is_one_attempt<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = theirs.lease(store.long()).lock().await.unwrap();
    let attempt = ours.try_lock_for(Duration::ZERO);
    assert!(store.promptly("no wait", attempt).await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(ours.try_lock_for(Duration::ZERO).await.unwrap().is_some());
}

pub(crate) async fn every_acquire_has_an_id_that_is_never_used_again<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let lock = L::of(&client, store.name("lock"));
    let mut seen = HashSet::new();
    for _ in 0..50 {
        let guard = lock.lock().await.unwrap();
        assert_eq!(guard.owner_id().client(), client.id());
        assert!(seen.insert(guard.owner_id()), "used twice: {}", guard.owner_id());
        guard.release().await.unwrap();
    }
}

/// By hand-over, too.
pub(crate) async fn waiters_get_ids_of_their_own<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lock().await.unwrap();
    let mut seen = HashSet::from([guard.owner_id()]);
    let waiters: Vec<_> = (0..5).map(|_| tokio::spawn(hold_and_release(lock.clone()))).collect();
    guard.release().await.unwrap();
    for waiter in waiters {
        assert!(seen.insert(waiter.await.unwrap()));
    }
}

async fn hold_and_release(lock: AnyLock) -> OwnerId {
    let guard = lock.lock().await.unwrap();
    let held_as = lock.inspect().await.unwrap().holders.remove(0).id;
    let id = guard.owner_id();
    assert_eq!(held_as, id.to_string(), "the store knows the holder by this id");
    guard.release().await.unwrap();
    id
}

pub(crate) async fn a_contended_lock_has_at_most_one_holder<L: Exclusive>(store: &Store) {
    const ROUNDS: usize = 25;
    let (history, mut tasks) = (History::new(), JoinSet::new());
    for c in 0..3 {
        let client = store.client().await;
        for t in 0..4 {
            let lock = L::of(&client, store.name("lock"));
            let (history, me) = (history.clone(), format!("client {c} task {t}"));
            tasks.spawn(async move {
                for round in 0..ROUNDS {
                    let guard = lock.lock().await.unwrap();
                    history.granted("it", &me, None);
                    tokio::task::yield_now().await;
                    history.released("it", &me);
                    match round % 3 {
                        0 => drop(guard),
                        _ => guard.release().await.unwrap(),
                    }
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(history.grants(), 12 * ROUNDS);
    history.assert_valid();
}

pub(crate) async fn contending_attempts_are_granted_once<L: Exclusive>(store: &Store) {
    let (history, mut tasks) = (History::new(), JoinSet::new());
    for c in 0..4 {
        let lock = L::of(&store.client().await, store.name("lock"));
        let (history, me) = (history.clone(), format!("client {c}"));
        tasks.spawn(async move {
            for _ in 0..200 {
                if let Some(guard) = lock.try_lock().await.unwrap() {
                    history.granted("it", &me, None);
                    tokio::task::yield_now().await;
                    history.released("it", &me);
                    guard.release().await.unwrap();
                }
                tokio::task::yield_now().await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(history.grants() > 0, "somebody gets it");
    history.assert_valid();
}
