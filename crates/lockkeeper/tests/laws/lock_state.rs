//! The state of a lock: holder and remaining time.

use std::time::{Duration, SystemTime};

use crate::store::{Exclusive, Store, eventually, left, one, pair};

pub(crate) async fn is_locked_and_holder_reflect_the_store<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    assert!(!ours.is_locked().await.unwrap());
    assert!(ours.inspect().await.unwrap().holders.is_empty());
    let guard = theirs.lease(store.long()).lock().await.unwrap();
    assert!(ours.is_locked().await.unwrap());
    guard.release().await.unwrap();
    assert!(!ours.is_locked().await.unwrap());
    assert!(ours.inspect().await.unwrap().holders.is_empty());
    let forgotten = theirs.lease(store.lease()).lock().await.unwrap();
    assert!(ours.is_locked().await.unwrap() || forgotten.is_lost());
    eventually("it expires", async || !ours.is_locked().await.unwrap()).await;
    assert!(forgotten.is_lost());
}

pub(crate) async fn remaining_counts_down_until_the_lock_is_free<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    assert_eq!(ours.inspect().await.unwrap().ttl, None);
    let guard = theirs.lease(store.long()).lock().await.unwrap();
    let first = left(ours.inspect().await);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let second = left(ours.inspect().await);
    assert!(second < first && first <= store.long(), "{first:?}, then {second:?}");
    guard.release().await.unwrap();
    assert_eq!(ours.inspect().await.unwrap().ttl, None);
}

pub(crate) async fn holder_names_the_owner_and_its_process<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = theirs.lock().await.unwrap();
    let holder = ours.inspect().await.unwrap().holders.remove(0);
    assert_eq!(holder.id, guard.owner_id().to_string());
    assert_eq!(holder.hold_count, 1);
    // The announcement follows the acquire.
    let mut client = None;
    eventually("the holder says who it is", async || {
        client = ours.inspect().await.unwrap().holders.remove(0).client;
        client.is_some()
    })
    .await;
    let client = client.unwrap();
    assert_eq!(client.pid, std::process::id());
    assert!(client.program.starts_with("laws"), "{}", client.program);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(client.host, host.trim());
    let age = SystemTime::now().duration_since(client.started).unwrap();
    assert!(age < Duration::from_secs(3600), "{age:?}");
    guard.release().await.unwrap();
}

pub(crate) async fn the_holder_is_known_as_long_as_the_lock_is_held<L: Exclusive>(store: &Store) {
    // The note lives as long as the watchdog timeout, whatever the lease of the lock.
    let note = Duration::from_millis(600);
    let holder = store.client_with(store.options().watchdog_timeout(note)).await;
    let guard = L::of(&holder, store.name("lock")).lease(store.long()).lock().await.unwrap();
    let lock = one::<L>(store).await;
    let known = async || lock.inspect().await.unwrap().holders.remove(0).client.is_some();
    eventually("the holder says who it is", known).await;
    tokio::time::sleep(note * 5 / 4).await;
    eventually("it is still known", known).await;
    guard.release().await.unwrap();
}
