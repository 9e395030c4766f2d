//! A name of one kind is rejected for another kind.

use lockkeeper::Error;

use crate::store::{Exclusive, Store, assert_is, one};

/// Whatever is asked of `L` about a name that is in use for its other.
pub(crate) async fn a_name_of_the_other_kind_is_rejected<L: Exclusive>(store: &Store) {
    let name = store.name("lock");
    let other = one::<L::Other>(store).await;
    let guard = other.lease(store.long()).lock().await.unwrap();
    for client in [store.client().await, store.client().await] {
        let lock = L::of(&client, &name);
        let error = lock.lock().await.unwrap_err();
        let said = error.to_string();
        match error {
            Error::WrongKind { lock, kind, found } => {
                assert_eq!(lock.as_bytes(), name.as_bytes());
                assert_eq!(kind, L::KIND);
                assert!(!found.is_empty());
            }
            other => panic!("expected WrongKind, got {other:?}"),
        }
        assert!(said.contains(&name), "{said}");
        assert_is!(lock.try_lock().await, Err(Error::WrongKind { .. }));
        assert_is!(lock.try_lock_for(store.long()).await, Err(Error::WrongKind { .. }));
        assert_is!(lock.is_locked().await, Err(Error::WrongKind { .. }));
        assert_is!(lock.inspect().await, Err(Error::WrongKind { .. }));
        assert_is!(lock.force_unlock("").await, Err(Error::WrongKind { .. }));
    }
    assert!(!guard.is_lost(), "the refusals change nothing");
    assert_eq!(other.inspect().await.unwrap().holders.remove(0).id, guard.owner_id().to_string());
    guard.release().await.unwrap();
    let lock = one::<L>(store).await;
    assert!(lock.try_lock().await.unwrap().is_some(), "a free name is free for both");
}

pub(crate) async fn two_kinds_of_one_client_do_not_share_a_local_queue<L: Exclusive>(
    store: &Store,
) {
    let client = store.client().await;
    let (lock, other) = (L::of(&client, store.name("x")), L::Other::of(&client, store.name("x")));
    let guard = other.lease(store.long()).lock().await.unwrap();
    assert_is!(lock.try_lock().await, Err(Error::WrongKind { .. }));
    guard.release().await.unwrap();
    lock.try_lock().await.unwrap().expect("free").release().await.unwrap();
}

/// The name is used for another kind while a waiter waits.
pub(crate) async fn a_waiter_fails_when_the_name_changes_its_kind<L: Exclusive>(store: &Store) {
    let ours = one::<L>(store).await;
    let theirs = one::<L>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    let waiter = {
        let theirs = theirs.clone();
        tokio::spawn(async move { theirs.lock().await })
    };
    store.delete_held::<L>(&ours).await;
    // It depends on timing whether the waiter acquires it for a moment.
    let became = L::Other::of(&store.client().await, store.name("lock"));
    let became = became.lease(store.long()).try_lock().await;
    match became {
        Ok(Some(became)) => {
            assert_is!(waiter.await.unwrap(), Err(Error::WrongKind { kind, .. }) if kind == L::KIND);
            became.release().await.unwrap();
        }
        Err(Error::WrongKind { kind, .. }) => {
            assert_eq!(kind, <L::Other as Exclusive>::KIND);
            waiter.await.unwrap().unwrap().release().await.unwrap();
        }
        other => panic!("neither granted nor refused: {other:?}"),
    }
    assert_is!(guard.release().await, Err(Error::NotHeld { .. }));
}
