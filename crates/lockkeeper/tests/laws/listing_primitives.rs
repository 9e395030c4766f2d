//! Lists of readers, permits and counters; patterns and pages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use lockkeeper::backend::{Acquire, Attempt, Resource};
use lockkeeper::{AnyGuard, AnyLock, Error, Inspector, Kind, LockInfo, OwnerId, Ttl};

use tokio::time::{Instant, sleep};

use crate::listing::{all, is_about, is_ours, listed, named, told};
use crate::store::{Store, assert_is, eventually};

/// Looks until it is so, now and then: a list of much takes its time.
async fn at_last(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(30);
    while !so().await {
        assert!(Instant::now() < limit, "never: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// What an inspector finds under the names of the law.
async fn found(store: &Store, inspector: &Inspector) -> Vec<LockInfo> {
    all(&mut inspector.list(store.name("*"))).await
}

fn names(locks: &[LockInfo]) -> Vec<String> {
    let mut names: Vec<_> = locks.iter().map(|lock| lock.name.to_string()).collect();
    names.sort();
    names
}

pub(crate) async fn readers_are_listed_with_their_counts(store: &Store) {
    let name = store.name("lock");
    let (one, two) = (store.client().await, store.client().await);
    let first = one.rw_lock(&name).lease(store.long()).read().await.unwrap();
    let again = first.reenter().await.unwrap();
    let second = two.rw_lock(&name).lease(store.long()).read().await.unwrap();
    let found = told(store, &name).await;
    assert_eq!(found.kind, Kind::Read);
    let mut holders: Vec<_> =
        found.holders.iter().map(|h| (h.id.clone(), h.hold_count, h.shared)).collect();
    holders.sort();
    let mut expected =
        [(first.owner_id().to_string(), 2, true), (second.owner_id().to_string(), 1, true)];
    expected.sort();
    assert_eq!(holders, expected);
    again.release().await.unwrap();
    first.release().await.unwrap();
    let found = told(store, &name).await;
    assert_eq!(found.holders.len(), 1);
    assert_eq!(found.holders[0].id, second.owner_id().to_string());
    second.release().await.unwrap();
    assert_eq!(listed(store).await, []);
}

pub(crate) async fn a_writer_that_reads_is_listed_as_both(store: &Store) {
    let name = store.name("lock");
    let client = store.client().await;
    let writer = client.rw_lock(&name).lease(store.long()).write().await.unwrap();
    let reader = writer.read().await.unwrap();
    let found = told(store, &name).await;
    assert_eq!(found.kind, Kind::Write);
    let shared: BTreeSet<_> = found.holders.iter().map(|h| h.shared).collect();
    assert_eq!((found.holders.len(), shared.len()), (2, 2), "{found:?}");
    writer.release().await.unwrap();
    let found = told(store, &name).await;
    assert_eq!((found.kind, found.holders.len()), (Kind::Read, 1));
    assert_eq!(found.holders[0].id, reader.owner_id().to_string());
    reader.release().await.unwrap();
}

/// The lock lives on by another's lease.
pub(crate) async fn an_expired_reader_is_not_listed(store: &Store) {
    let name = store.name("lock");
    let (one, two) = (store.client().await, store.client().await);
    let short = one.rw_lock(&name).lease(store.lease()).read().await.unwrap();
    let long = two.rw_lock(&name).lease(store.long()).read().await.unwrap();
    store.signalled(short.lost()).await;
    // As a killed process: nothing is released.
    std::mem::forget(short);
    let inspector = two.inspector();
    let readers = async || {
        let locks = found(store, &inspector).await;
        let lock = named(&locks, &name).expect("it is held").clone();
        lock.holders.into_iter().map(|holder| holder.id).collect::<Vec<_>>()
    };
    eventually("the dead one is gone", async || readers().await.len() == 1).await;
    assert_eq!(readers().await, [long.owner_id().to_string()]);
    long.release().await.unwrap();
}

pub(crate) async fn holds_are_counted(store: &Store) {
    let client = store.client().await;
    let (lock, fair) = (store.name("lock"), store.name("fair"));
    let (lock, fair) = (client.lock(lock), client.fair_lock(fair));
    let rw = client.rw_lock(store.name("rw"));
    for lock in [AnyLock::from(lock), fair.into(), rw.writer()] {
        let guard = lock.lease(store.long()).lock().await.unwrap();
        let inner = (guard.reenter().await.unwrap(), guard.reenter().await.unwrap());
        let name = guard.name().to_string();
        assert_eq!(told(store, &name).await.holders[0].hold_count, 3);
        inner.0.release().await.unwrap();
        assert_eq!(told(store, &name).await.holders[0].hold_count, 2);
        inner.1.release().await.unwrap();
        guard.release().await.unwrap();
    }
    assert_eq!(listed(store).await, []);
}

pub(crate) async fn held_permits_are_listed_with_their_holders(store: &Store) {
    let name = store.name("permits");
    let (one, two) = (store.client().await, store.client().await);
    let semaphore = one.permit_semaphore(&name);
    assert!(semaphore.try_set_permits(5, None).await.unwrap());
    assert_eq!(listed(store).await, [], "nobody has any");
    let then = SystemTime::now();
    let mine = semaphore.lease(store.long()).acquire(2).await.unwrap();
    let yours = two.permit_semaphore(&name).lease(store.long()).acquire(1).await.unwrap();
    let mut found = told(store, &name).await;
    eventually("both say who they are", async || {
        found = told(store, &name).await;
        found.holders.iter().all(|holder| holder.since.is_some())
    })
    .await;
    assert_eq!((found.kind, found.count, found.taken), (Kind::Permits, Some(2), 3));
    assert_eq!(found.ttl, Some(Ttl::Forever), "it has no end of its own");
    let ids: BTreeSet<_> = found.holders.iter().map(|holder| holder.id.clone()).collect();
    let permits = mine.permit_ids().into_iter().chain(yours.permit_ids());
    assert_eq!(ids, permits.map(|id| id.to_string()).collect());
    for holder in &found.holders {
        assert_eq!(holder.hold_count, 1);
        is_ours(holder);
        is_about(holder.since, then);
    }
    mine.release().await.unwrap();
    let found = told(store, &name).await;
    assert_eq!((found.count, found.taken, found.holders.len()), (Some(4), 1, 1));
    assert_eq!(found.holders[0].id, yours.permit_ids()[0].to_string());
    yours.release().await.unwrap();
    assert_eq!(listed(store).await, []);
}

pub(crate) async fn expired_permits_are_not_listed(store: &Store) {
    let (client, name) = (store.client().await, store.name("permits"));
    let (semaphore, inspector) = (client.permit_semaphore(&name), client.inspector());
    assert!(semaphore.try_set_permits(5, None).await.unwrap());
    // As a killed process: nothing is released.
    let killed = async || {
        let guard = semaphore.lease(store.lease()).acquire(2).await.unwrap();
        store.signalled(guard.lost()).await;
        std::mem::forget(guard);
    };
    let long = semaphore.lease(store.long()).acquire(1).await.unwrap();
    killed().await;
    let taken = async || found(store, &inspector).await.first().map(|l| (l.taken, l.count));
    eventually("two have ended", async || taken().await == Some((1, Some(4)))).await;
    let holders = found(store, &inspector).await.remove(0).holders;
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].id, long.permit_ids()[0].to_string());
    // After all have expired there is no holder.
    long.release().await.unwrap();
    killed().await;
    eventually("it is listed no longer", async || taken().await.is_none()).await;
}

/// A number may be anything: it is a semaphore while a client says that it has permits of it.
pub(crate) async fn a_semaphore_is_listed_while_a_client_holds_permits(store: &Store) {
    let name = store.name("semaphore");
    let client = store.client().await;
    let semaphore = client.semaphore(&name);
    assert!(semaphore.try_set_permits(5, None).await.unwrap());
    assert_eq!(listed(store).await, [], "nobody has any");
    let permit = semaphore.acquire(2).await.unwrap();
    let inspector = client.inspector();
    let seen = async || {
        let locks = found(store, &inspector).await;
        named(&locks, &name).map(|lock| (lock.kind, lock.count))
    };
    let there = Some((Kind::Semaphore, Some(3)));
    at_last("it is listed", async || seen().await == there).await;
    permit.release().await.unwrap();
    at_last("it is listed no longer", async || seen().await.is_none()).await;
    assert_eq!(semaphore.available().await.unwrap(), 5);
}

/// Semaphores without held permits, and latches.
pub(crate) async fn a_counter_without_holders_is_not_listed(store: &Store) {
    let client = store.client().await;
    assert!(client.semaphore(store.name("s")).try_set_permits(5, None).await.unwrap());
    assert!(client.permit_semaphore(store.name("p")).try_set_permits(5, None).await.unwrap());
    assert!(client.count_down_latch(store.name("l")).try_set_count(5).await.unwrap());
    let fenced = client.fenced_lock(store.name("token")).lock().await.unwrap();
    fenced.release().await.unwrap();
    let _forced = client.lock(store.name("forced")).lock().await.unwrap();
    assert!(client.lock(store.name("forced")).force_unlock("").await.unwrap());
    assert_eq!(listed(store).await, []);
}

pub(crate) async fn a_pattern_chooses_among_the_names(store: &Store) {
    let client = store.client().await;
    let names_held = ["a1", "a2", "ab", "b1", "b*", "[", "a\\"];
    let mut held = Vec::new();
    for name in names_held {
        held.push(AnyGuard::from(client.lock(store.name(name)).lock().await.unwrap()));
    }
    let semaphore = client.permit_semaphore(store.name("a3"));
    assert!(semaphore.try_set_permits(1, None).await.unwrap());
    held.push(semaphore.acquire(1).await.unwrap().into());
    for (pattern, expected) in [
        ("*", &["[", "a1", "a2", "a3", "a\\", "ab", "b*", "b1"][..]),
        ("a*", &["a1", "a2", "a3", "a\\", "ab"]),
        ("a?", &["a1", "a2", "a3", "a\\", "ab"]),
        ("a[0-9]", &["a1", "a2", "a3"]),
        ("a[^0-9]", &["a\\", "ab"]),
        ("[ab]1", &["a1", "b1"]),
        ("b\\*", &["b*"]),
        ("\\[", &["["]),
        ("a\\\\", &["a\\"]),
        ("?1", &["a1", "b1"]),
        ("c*", &[]),
        ("a", &[]),
    ] {
        let found = all(&mut client.inspector().list(store.name(pattern))).await;
        let expected: Vec<_> = expected.iter().map(|name| store.name(name)).collect();
        assert_eq!(names(&found), expected, "{pattern}");
    }
    assert_eq!(all(&mut client.inspector().list("")).await, [], "no name is empty");
    drop(held);
}

/// More than one page has, and while others come and go.
pub(crate) async fn thousands_are_all_found(store: &Store) {
    const MANY: usize = 3000;
    let backend = store.backend().await;
    let take = |name: String| {
        let resource = Resource { kind: Kind::Lock, name: name[..].into() };
        let owner = OwnerId::fresh(store_id());
        backend.acquire(Acquire::new(resource, owner, 60_000))
    };
    let all_names: BTreeSet<_> = (0..MANY).map(|i| store.name(&format!("lock {i}"))).collect();
    let taking: Vec<_> = all_names.iter().cloned().map(take).collect();
    for taken in taking {
        assert_eq!(taken.await, Ok(Attempt::GRANTED));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let churn = tokio::spawn({
        let (client, stop) = (store.client().await, Arc::clone(&stop));
        let name = store.name("passing");
        async move {
            for turn in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let guard = client.lock(format!("{name} {turn}")).lock().await.unwrap();
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
            }
        }
    });
    let mut listing = store.client().await.inspector().list(store.name("lock *"));
    let (mut found, mut pages) = (BTreeSet::new(), 0);
    while let Some(page) = listing.next().await.unwrap() {
        assert!(!page.is_empty(), "a page with nothing on it");
        found.extend(page.into_iter().map(|lock| lock.name.to_string()));
        pages += 1;
    }
    stop.store(true, Ordering::Relaxed);
    churn.await.unwrap();
    assert_eq!(found.len(), MANY, "some were not found");
    assert_eq!(found, all_names);
    // What is in one process may come at once.
    assert!(pages > 1 || store.is_paused(), "all on one page");
    assert_is!(listing.next().await, Ok(None));
}

fn store_id() -> uuid::Uuid {
    uuid::Uuid::new_v4()
}

pub(crate) async fn a_list_of_nothing_is_complete(store: &Store) {
    let store = store.apart();
    let mut listing = store.client().await.inspector().list("*");
    assert_is!(listing.next().await, Ok(None));
    assert!(listing.is_complete());
    assert_is!(listing.next().await, Ok(None));
}

/// People look at what a client tells, so that it does not tell everything.
pub(crate) async fn a_client_announces_that_it_has_more_holds_than_it_lists(store: &Store) {
    let store = store.apart();
    let client = store.client().await;
    let complete = async || {
        let mut listing = client.inspector().list("*");
        let found = all(&mut listing).await;
        (found.len(), listing.is_complete())
    };
    let mut held = Vec::new();
    for i in 0..128 {
        held.push(client.mutex(format!("mutex {i}")).lock().await.unwrap());
    }
    at_last("all of them are told", async || complete().await == (128, true)).await;
    for i in 0..3 {
        held.push(client.mutex(format!("more {i}")).lock().await.unwrap());
    }
    at_last("there are more", async || !complete().await.1).await;
    assert!(complete().await.0 >= 128);
    held.truncate(100);
    at_last("the rest is told again", async || complete().await == (100, true)).await;
}

/// What shows by itself what it is need not be told of as much as what does not.
pub(crate) async fn a_list_reports_holds_that_were_not_announced(store: &Store) {
    let store = store.apart();
    let client = store.client().await;
    let mut held = Vec::new();
    for i in 0..200 {
        held.push(client.lock(format!("lock {i}")).lock().await.unwrap());
    }
    let mutex = client.mutex("mutex").lock().await.unwrap();
    let semaphore = client.semaphore("semaphore");
    assert!(semaphore.try_set_permits(5, None).await.unwrap());
    let permit = semaphore.acquire(1).await.unwrap();
    let mut found = Vec::new();
    at_last("all are listed", async || {
        found = all(&mut client.inspector().list("*")).await;
        found.len() == 202
    })
    .await;
    assert_eq!(named(&found, "mutex").unwrap().kind, Kind::Mutex);
    assert_eq!(named(&found, "semaphore").unwrap().kind, Kind::Semaphore);
    mutex.release().await.unwrap();
    permit.release().await.unwrap();
}

pub(crate) async fn a_client_that_is_shut_down_lists_nothing(store: &Store) {
    let client = store.client().await;
    let _guard = client.lock(store.name("lock")).lock().await.unwrap();
    let inspector = client.inspector();
    client.shutdown().await;
    assert_is!(inspector.list("*").next().await, Err(Error::Closed { .. }));
    assert_is!(inspector.inspect("lock").await, Err(Error::Closed { .. }));
    let forced = inspector.force_unlock("lock", Kind::Lock, None, "").await;
    assert_is!(forced, Err(Error::Closed { .. }));
    assert_is!(inspector.watch("*").next().await, Err(Error::Closed { .. }));
    assert_is!(client.check().await, Err(Error::Closed { .. }));
}

/// A fair lock without waiters differs from a plain lock only in the announcement of its client.
pub(crate) async fn a_list_distinguishes_fair_locks_from_plain_ones(store: &Store) {
    let client = store.client().await;
    let name = store.name("lock");
    let guard = client.fair_lock(&name).lock().await.unwrap();
    assert_eq!(told(store, &name).await.kind, Kind::Fair);
    guard.release().await.unwrap();
    let guard = client.lock(&name).lock().await.unwrap();
    let kind = async || told(store, &name).await.kind;
    eventually("it is a plain one", async || kind().await == Kind::Lock).await;
    guard.release().await.unwrap();
}

/// RULES §14: the start of a hold is announced first, and stays the same.
pub(crate) async fn the_start_of_a_hold_does_not_change_with_renewals(store: &Store) {
    let client = store.client().await;
    let semaphore = client.permit_semaphore(store.name("permits"));
    assert!(semaphore.try_set_permits(3, None).await.unwrap());
    let then = SystemTime::now();
    let lock = client.lock(store.name("lock"));
    let _held = (
        lock.lock().await.unwrap(),
        client.mutex(store.name("mutex")).lock().await.unwrap(),
        client.rw_lock(store.name("rw")).read().await.unwrap(),
        semaphore.acquire(2).await.unwrap(),
    );
    let inspector = client.inspector();
    let since = async || -> BTreeMap<String, Option<SystemTime>> {
        let locks = found(store, &inspector).await;
        locks.iter().map(|lock| (lock.name.to_string(), lock.since())).collect()
    };
    let mut first = BTreeMap::new();
    at_last("all say since when", async || {
        first = since().await;
        first.len() == 4 && first.values().all(Option::is_some)
    })
    .await;
    first.values().for_each(|since| is_about(*since, then));
    store.is_renewed(&lock.clone().into()).await;
    // Everything is announced again after a third of the watchdog timeout.
    sleep(store.watchdog() / 2).await;
    let later = since().await;
    assert_eq!(later.keys().collect::<Vec<_>>(), first.keys().collect::<Vec<_>>());
    for (name, since) in later {
        let apart = since.unwrap().duration_since(first[&name].unwrap());
        let apart = apart.unwrap_or_else(|error| error.duration());
        assert!(apart <= Duration::from_millis(1), "{name}: {apart:?}");
    }
}

/// What a client holds that has said long ago who it is becomes known soon, not with the next word
/// that is due.
pub(crate) async fn a_hold_that_lasts_becomes_known_soon(store: &Store) {
    let options = store.options().watchdog_timeout(store.long());
    let client = store.client_with(options).await;
    let first = client.lock(store.name("first")).lock().await.unwrap();
    told(store, &store.name("first")).await;
    let begun = Instant::now();
    let _held = (
        client.mutex(store.name("mutex")).lock().await.unwrap(),
        client.lock(store.name("lock")).lock().await.unwrap(),
    );
    for name in ["mutex", "lock"] {
        told(store, &store.name(name)).await;
    }
    let took = begun.elapsed();
    assert!(took < store.long() / 6, "{took:?}: not before the next word that was due");
    first.release().await.unwrap();
}
