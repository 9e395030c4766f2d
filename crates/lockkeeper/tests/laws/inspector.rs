//! The inspector: one name of any kind of lock, and its force-release.

use std::time::SystemTime;

use lockkeeper::{Error, Holder, Kind, LockInfo, Ttl};

use crate::listing::{is_about, is_ours};
use crate::store::{Exclusive, Store, assert_is, eventually, one, pair};

async fn inspect(store: &Store, name: &str) -> LockInfo {
    store.client().await.inspector().inspect(name).await.unwrap()
}

fn ids(holders: &[Holder]) -> Vec<String> {
    holders.iter().map(|holder| holder.id.clone()).collect()
}

pub(crate) async fn a_free_name_is_inspected_as_free<L: Exclusive>(store: &Store) {
    let name = store.name("lock");
    let lock = one::<L>(store).await;
    for round in 0..2 {
        for kind in [None, Some(L::KIND)] {
            let inspector = store.client().await.inspector();
            let found = match kind {
                None => inspector.inspect(&name).await.unwrap(),
                Some(kind) => inspector.inspect_as(&name, kind).await.unwrap(),
            };
            assert_eq!(found.name.as_bytes(), name.as_bytes());
            assert!(found.is_free(), "{round}: {found:?}");
            assert_eq!((found.ttl, found.since()), (None, None));
            assert_eq!((found.holders, found.queue, found.forced), (vec![], vec![], vec![]));
            assert_eq!(found.waiting.unwrap_or(0), 0);
        }
        let guard = lock.lock().await.unwrap();
        guard.release().await.unwrap();
    }
}

pub(crate) async fn a_held_lock_is_inspected_with_its_kind_and_holder<L: Exclusive>(store: &Store) {
    let ((lock, other), name) = (pair::<L>(store).await, store.name("lock"));
    let then = SystemTime::now();
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let waiter = tokio::spawn(other.lock());
    let mut found = inspect(store, &name).await;
    eventually("all is told", async || {
        found = inspect(store, &name).await;
        found.since().is_some() && (found.waiting == Some(1) || !L::NOTIFIED)
    })
    .await;
    assert_eq!((found.name.to_string(), found.kind), (name.clone(), L::KIND));
    assert_eq!(ids(&found.holders), [guard.owner_id().to_string()]);
    assert_eq!(found.holders[0].hold_count, 1);
    is_ours(&found.holders[0]);
    is_about(found.since(), then);
    assert_is!(found.ttl, Some(Ttl::For(left)) if left > store.long() / 2);
    let inspector = store.client().await.inspector();
    let as_kind = inspector.inspect_as(&name, L::KIND).await.unwrap();
    assert_eq!((as_kind.kind, &as_kind.holders), (found.kind, &found.holders));
    waiter.abort();
    guard.release().await.unwrap();
}

pub(crate) async fn an_inspection_as_another_kind_is_rejected<L: Exclusive>(store: &Store) {
    let name = store.name("lock");
    let lock = one::<L>(store).await;
    let guard = lock.lock().await.unwrap();
    let inspector = store.client().await.inspector();
    let alike: &[Kind] = match L::KIND {
        Kind::Lock | Kind::Fair => &[Kind::Lock, Kind::Fair],
        Kind::Write => &[Kind::Read, Kind::Write],
        Kind::Mutex => &[Kind::Mutex],
        kind => panic!("{kind} is held by nobody"),
    };
    for kind in Kind::ALL.into_iter().filter(|kind| store.has(*kind)) {
        let looked = inspector.inspect_as(&name, kind).await;
        if alike.contains(&kind) {
            let looked = looked.unwrap();
            assert!(alike.contains(&looked.kind) && !looked.is_free(), "{kind}: {looked:?}");
            continue;
        }
        assert_is!((kind, looked), (_, Err(Error::WrongKind { lock, .. })) if lock.as_bytes() == name.as_bytes());
        let forced = inspector.force_unlock(&name, kind, None, "").await;
        let counter = matches!(kind, Kind::Semaphore | Kind::Permits | Kind::Latch);
        match forced {
            Err(Error::Invalid { .. }) if counter => {}
            Err(Error::WrongKind { .. }) if !counter => {}
            other => panic!("{kind}: {other:?}"),
        }
    }
    assert!(lock.is_locked().await.unwrap(), "it is left alone");
    guard.release().await.unwrap();
}

/// RULES §14: the last twenty force-releases with their author, time, reason and holders.
pub(crate) async fn force_releases_are_logged<L: Exclusive>(store: &Store) {
    let (client, name) = (store.client().await, store.name("lock"));
    let (lock, inspector) = (L::of(&client, &name), store.client().await.inspector());
    let why = "the host is gone \"for good\"\nand ✂ {}";
    let mut victims = Vec::new();
    let then = SystemTime::now();
    for turn in 0..23 {
        let guard = lock.lease(store.long()).lock().await.unwrap();
        victims.push(guard.owner_id().to_string());
        let reason = format!("{why} {turn}");
        assert!(inspector.force_unlock(&name, L::KIND, None, reason).await.unwrap());
        // While it is held again, and after.
        let found = inspector.inspect(&name).await.unwrap();
        assert_eq!(found.forced.len(), (turn + 1).min(20));
        let last = &found.forced[0];
        assert_eq!(last.reason, format!("{why} {turn}"));
        assert_eq!(last.holders, [victims[turn].clone()]);
        assert!(last.by.contains(&std::process::id().to_string()), "{}", last.by);
        assert!(last.by.contains("laws"), "{}", last.by);
        is_about(Some(last.at), then);
        drop(guard);
    }
    let found = inspector.inspect(&name).await.unwrap();
    let holders: Vec<_> = found.forced.iter().map(|forced| forced.holders[0].clone()).collect();
    victims.reverse();
    assert_eq!(holders, victims[..20], "the newest first");
    let times: Vec<_> = found.forced.iter().map(|forced| forced.at).collect();
    assert!(times.is_sorted_by(|a, b| a >= b));
    // Another name has a log of its own.
    assert_eq!(inspector.inspect(store.name("other")).await.unwrap().forced, []);
}
