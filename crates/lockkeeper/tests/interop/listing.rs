//! The inspector among Redisson's locks: they are found by their form, and shown as what they are.

use std::collections::BTreeSet;

use lockkeeper::{Event, Kind, LockInfo, Ttl};
use testkit::Redisson;

use crate::support::*;

on_versions! { [newest v3_27]
    holds_of_java_are_listed_with_their_kind
    waiters_of_a_fair_lock_are_visible_from_both_sides
    a_watch_reports_changes_made_by_java
}

/// What is found under the names of a test.
async fn listed(stage: &Stage) -> Vec<LockInfo> {
    let mut listing = stage.client.inspector().list(format!("{}*", stage.name));
    let mut locks = Vec::new();
    while let Some(page) = listing.next().await.unwrap() {
        locks.extend(page);
    }
    locks
}

fn ids(lock: &LockInfo) -> BTreeSet<String> {
    lock.holders.iter().map(|holder| holder.id.clone()).collect()
}

async fn holds_of_java_are_listed_with_their_kind(redisson: Redisson) {
    let stage = Stage::new(redisson, "listing").await;
    let name = |what: &str| format!("{} {what}", stage.name);
    let (one, two) = (&stage.one, &stage.two);
    let both = BTreeSet::from([one.owner(), two.owner()]);
    let first = BTreeSet::from([one.owner()]);

    one.lock(&name("lock")).lock_for(LONG).ok();
    one.lock(&name("lock")).lock_for(LONG).ok();
    one.lock(&name("renewed")).lock().ok();
    one.fair(&name("fair")).lock_for(LONG).ok();
    one.read(&name("read")).lock_for(LONG).ok();
    two.read(&name("read")).lock_for(LONG).ok();
    one.write(&name("write")).lock_for(LONG).ok();
    let permits = one.permits(&name("permits"));
    assert!(permits.try_set_permits(5).ok());
    let taken = BTreeSet::from([permits.acquire().ok(), permits.acquire_for(LONG).ok()]);
    // Indistinguishable from other numbers.
    let semaphore = one.semaphore(&name("semaphore"));
    assert!(semaphore.try_set_permits(5).ok());
    semaphore.acquire(2).ok();
    assert!(one.latch(&name("latch")).try_set_count(3).ok());
    let waits = two.fair(&name("fair")).lock();
    eventually("Java waits in the queue", || {
        server().cli(&["LLEN", &format!("redisson_lock_queue:{{{}}}", name("fair"))]).int() == 1
    })
    .await;

    let locks = listed(&stage).await;
    let of = |what: &str| {
        let found = locks.iter().find(|lock| lock.name.as_bytes() == name(what).as_bytes());
        found.unwrap_or_else(|| panic!("{what} is missing: {locks:#?}"))
    };
    for (what, kind, holders, holds) in [
        ("lock", Kind::Lock, &first, 2),
        ("renewed", Kind::Lock, &first, 1),
        ("fair", Kind::Fair, &first, 1),
        ("read", Kind::Read, &both, 1),
        ("write", Kind::Write, &first, 1),
        ("permits", Kind::Permits, &taken, 1),
    ] {
        let lock = of(what);
        assert_eq!((lock.kind, &ids(lock)), (kind, holders), "{what}");
        for holder in &lock.holders {
            let shared = matches!(kind, Kind::Read | Kind::Permits);
            assert_eq!((holder.hold_count, holder.shared), (holds, shared), "{what}");
            assert!(holder.client.is_none() && holder.since.is_none(), "{what}: {holder:?}");
        }
        match lock.ttl {
            Some(Ttl::For(left)) => {
                let longest = if what == "renewed" { ms(30_000) } else { LONG };
                assert!(left <= longest && left > ms(10_000), "{what}: {left:?}");
            }
            Some(Ttl::Forever) => assert_eq!(what, "permits", "it has no end of its own"),
            other => panic!("{what}: {other:?}"),
        }
    }
    assert_eq!(locks.len(), 6, "{locks:#?}");
    assert_eq!(of("fair").waiting, Some(1));
    assert_eq!((of("permits").count, of("permits").taken), (Some(3), 2));
    // The way back.
    let inspector = stage.client.inspector();
    for lock in &locks {
        let looked = inspector.inspect(&lock.name).await.unwrap();
        assert_eq!((looked.kind, ids(&looked)), (lock.kind, ids(lock)), "{}", lock.name);
    }
    let semaphore = inspector.inspect(name("semaphore")).await.unwrap();
    assert_eq!((semaphore.kind, semaphore.count), (Kind::Semaphore, Some(3)));
    for lock in locks.iter().filter(|lock| lock.kind != Kind::Permits) {
        assert!(inspector.force_unlock(&lock.name, lock.kind, None, "a test").await.unwrap());
    }
    // The next Redisson waiter acquires the fair lock after its message.
    within(SOON, "Java's waiter is told", waits).await.ok();
    assert_eq!(ids(&inspector.inspect(name("fair")).await.unwrap()), [two.owner()].into());
    two.fair(&name("fair")).unlock().ok();
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
