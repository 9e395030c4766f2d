//! Force-release of a lock.

use std::time::Duration;

use lockkeeper::{Error, LostReason};

use crate::store::{Exclusive, Store, assert_is, one, pair, poll_once};

pub(crate) async fn a_force_release_of_a_free_lock_is_false<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    assert!(!lock.force_unlock("").await.unwrap());
    assert_eq!(store.stored(&store.name("lock")), 0);
}

pub(crate) async fn a_force_release_of_a_held_lock_is_true_and_frees_it<L: Exclusive>(
    store: &Store,
) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = theirs.lease(store.long()).lock().await.unwrap();
    store.is_everywhere(&store.name("lock")).await;
    assert!(ours.force_unlock("").await.unwrap());
    assert!(!ours.is_locked().await.unwrap());
    assert!(!ours.force_unlock("").await.unwrap(), "only once");
    drop(guard);
}

pub(crate) async fn the_holder_is_notified_of_a_force_release_at_once<L: Exclusive>(store: &Store) {
    // Its own renewals would tell it no sooner than in ten seconds.
    let options = || store.options().watchdog_timeout(store.long());
    let lock = one::<L>(store).await;
    // The store may not listen yet for a client that has just acquired its first lock.
    for round in 0..16 {
        let victim = store.client_with(options()).await;
        let guard = L::of(&victim, store.name("lock")).lock().await.unwrap();
        tokio::time::sleep(Duration::from_micros(125 * round)).await;
        assert!(lock.force_unlock("the host is gone").await.unwrap());
        let reason = store.promptly("the holder is notified", guard.lost()).await;
        assert_eq!(reason, LostReason::Revoked("the host is gone".to_owned()), "round {round}");
        assert!(guard.is_lost());
        assert!(reason.to_string().contains("the host is gone"), "{reason}");
    }
}

pub(crate) async fn a_client_can_force_release_its_own_lock<L: Exclusive>(store: &Store) {
    let options = store.options().watchdog_timeout(store.long());
    let lock = L::of(&store.client_with(options).await, store.name("lock"));
    let guard = lock.lock().await.unwrap();
    store.receives_notices_of(&guard).await;
    assert!(lock.force_unlock("").await.unwrap());
    let reason = store.promptly("it is told", guard.lost()).await;
    assert_eq!(reason, LostReason::Revoked(String::new()));
    assert!(lock.try_lock().await.unwrap().is_some(), "and may have it anew");
}

pub(crate) async fn a_release_after_a_force_release_is_not_held<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = theirs.lease(store.long()).lock().await.unwrap();
    assert!(ours.force_unlock("").await.unwrap());
    let next = ours.lease(store.long()).lock().await.unwrap();
    assert_is!(guard.release().await, Err(Error::NotHeld { .. }));
    assert_eq!(ours.inspect().await.unwrap().holders.remove(0).id, next.owner_id().to_string());
    next.release().await.unwrap();
}

/// The holder may have changed since it was inspected.
pub(crate) async fn a_force_release_with_expected_holders_spares_other_holders<L: Exclusive>(
    store: &Store,
) {
    let (ours, theirs) = pair::<L>(store).await;
    let (inspector, name) = (store.client().await.inspector(), store.name("lock"));
    let first = theirs.lease(store.long()).lock().await.unwrap();
    let seen = inspector.inspect_as(&name, L::KIND).await.unwrap().holders;
    first.release().await.unwrap();
    let free = inspector.force_unlock(&name, L::KIND, Some(&seen), "stuck").await;
    assert!(!free.unwrap(), "there is nothing to take");

    let second = ours.lease(store.long()).lock().await.unwrap();
    let refused = inspector.force_unlock(&name, L::KIND, Some(&seen), "stuck").await;
    match refused.expect_err("others have it") {
        Error::NotHeld { holder, .. } => {
            assert_eq!(holder.unwrap().id, second.owner_id().to_string())
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(ours.inspect().await.unwrap().holders.remove(0).id, second.owner_id().to_string());
    let now = inspector.inspect_as(&name, L::KIND).await.unwrap();
    assert!(now.forced.is_empty(), "{now:?}");
    let nobody = inspector.force_unlock(&name, L::KIND, Some(&[]), "stuck").await;
    assert_is!(nobody, Err(Error::Invalid { .. }));

    let both = [seen, now.holders].concat();
    assert!(inspector.force_unlock(&name, L::KIND, Some(&both), "stuck").await.unwrap());
    assert!(!ours.is_locked().await.unwrap());
    drop(second);
}

pub(crate) async fn a_waiter_of_another_client_acquires_at_once<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let _guard = theirs.lease(store.long()).lock().await.unwrap();
    let third = one::<L>(store).await;
    let mut waiting = Box::pin(third.lock());
    assert!(poll_once(&mut waiting).is_pending());
    assert!(ours.force_unlock("").await.unwrap());
    let next = store.promptly("the waiter is woken", waiting).await.unwrap();
    next.release().await.unwrap();
}

pub(crate) async fn a_waiter_of_the_holders_client_acquires_at_once<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = theirs.lease(store.long()).lock().await.unwrap();
    store.receives_notices_of(&guard).await;
    let mut waiting = Box::pin(theirs.lock());
    assert!(poll_once(&mut waiting).is_pending());
    assert!(ours.force_unlock("").await.unwrap());
    let next = store.promptly("the waiter is woken", waiting).await.unwrap();
    // Where its own client wakes the waiter, the holder was notified before.
    assert!(guard.is_lost() || !L::QUEUED);
    store.promptly("the holder is notified", guard.lost()).await;
    next.release().await.unwrap();
}

pub(crate) async fn a_force_release_affects_one_lock_only<L: Exclusive>(store: &Store) {
    let victim = store.client().await;
    let guard = L::of(&victim, store.name("lock")).lock().await.unwrap();
    let other = L::of(&victim, store.name("other")).lock().await.unwrap();
    store.receives_notices_of(&guard).await;
    assert!(one::<L>(store).await.force_unlock("why").await.unwrap());
    assert_eq!(guard.lost().await, LostReason::Revoked("why".to_owned()));
    assert!(!other.is_lost());
    other.release().await.unwrap();
}

/// A notice is one line, whatever the operator wrote.
pub(crate) async fn a_reason_of_many_lines_arrives_as_one<L: Exclusive>(store: &Store) {
    let options = store.options().watchdog_timeout(store.long());
    let victim = store.client_with(options).await;
    let guard = L::of(&victim, store.name("lock")).lock().await.unwrap();
    store.receives_notices_of(&guard).await;
    let why = "stuck since noon\r\nrevoked everything ✂";
    assert!(one::<L>(store).await.force_unlock(why).await.unwrap());
    let LostReason::Revoked(heard) = store.promptly("it is told", guard.lost()).await else {
        panic!("expected to be revoked");
    };
    assert!(!heard.contains('\n') && heard.ends_with("everything ✂"), "{heard:?}");
}
