//! The inspector among Redisson's locks: they are found by their form, and shown as what they are.

use std::collections::BTreeSet;

use lockkeeper::{Event, Kind, LockInfo};
use testkit::Redisson;

use crate::support::*;

on_versions! { [newest v3_27]
    waiters_of_a_fair_lock_are_visible_from_both_sides
    a_watch_reports_changes_made_by_java
}

fn ids(lock: &LockInfo) -> BTreeSet<String> {
    lock.holders.iter().map(|holder| holder.id.clone()).collect()
}

async fn waiters_of_a_fair_lock_are_visible_from_both_sides(redisson: Redisson) {
    let stage = Stage::new(redisson, "listing, queue").await;
    let (inspector, name) = (stage.client.inspector(), stage.name.as_str());
    let guard = stage.client.fair_lock(name).lease(LONG).lock().await.unwrap();
    let queued = || server().cli(&["LLEN", &format!("redisson_lock_queue:{{{name}}}")]).int();
    let owner = stage.one.owner();
    let java = stage.one.fair(name).lock();
    eventually("Java waits", || queued() == 1).await;
    let ours = connect(server(), lockkeeper::ClientOptions::new()).await;
    let waiting = tokio::spawn(ours.fair_lock(name).lease(LONG).lock());
    eventually("ours waits behind it", || queued() == 2).await;
    let found = inspector.inspect(name).await.unwrap();
    assert_eq!((found.kind, found.waiting), (Kind::Fair, Some(2)));
    let queue: Vec<_> = found.queue.iter().map(|waiter| &waiter.id[..]).collect();
    assert_eq!(queue[0], owner);
    assert!(queue[1].starts_with(&ours.id().to_string()), "{queue:?}");
    guard.release().await.unwrap();
    within(SOON, "Java's turn", java).await.ok();
    stage.one.fair(name).unlock().ok();
    let guard = joined(waiting).await.unwrap();
    guard.release().await.unwrap();
}

async fn a_watch_reports_changes_made_by_java(redisson: Redisson) {
    let stage = Stage::new(redisson, "listing, watch").await;
    let mut watch = stage.client.inspector().watch(&stage.name[..]).every(ms(10));
    let lock = stage.one.lock(&stage.name);
    lock.lock_for(LONG).ok();
    let event = within(PATIENCE, "it appears", watch.next()).await.unwrap();
    assert!(matches!(&event, Event::Appeared(lock) if ids(lock) == [stage.one.owner()].into()));
    lock.lock_for(LONG).ok();
    let event = within(PATIENCE, "it is re-entered", watch.next()).await.unwrap();
    assert!(matches!(&event, Event::Changed(lock) if lock.holders[0].hold_count == 2), "{event:?}");
    lock.unlock().ok();
    lock.unlock().ok();
    loop {
        match within(PATIENCE, "it goes", watch.next()).await.unwrap() {
            Event::Gone(_) => break,
            // Between the two.
            Event::Changed(lock) => assert_eq!(lock.holders[0].hold_count, 1),
            other => panic!("{other:?}"),
        }
    }
}
