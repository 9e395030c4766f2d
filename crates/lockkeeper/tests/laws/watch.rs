//! A watch reports added, changed and removed locks.

use std::collections::BTreeMap;
use std::task::Poll;
use std::time::Duration;

use lockkeeper::backend::{Acquire, Backend, Kind, Resource};
use lockkeeper::stores::Memory;
use lockkeeper::{AnyGuard, Client, ClientOptions, Event, LockInfo, OwnerId, Watch};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::listing::told;
use crate::store::{Store, assert_is, eventually, poll_once};

/// How often the laws look.
const EVERY: Duration = Duration::from_millis(20);

async fn watch(store: &Store) -> Watch {
    store.client().await.inspector().watch(store.name("*")).every(EVERY)
}

/// What happens next, which is soon.
async fn next(store: &Store, watch: &mut Watch) -> (&'static str, LockInfo) {
    let event = timeout(store.long(), watch.next()).await.expect("something happens");
    match event.unwrap() {
        Event::Appeared(lock) => ("appeared", lock),
        Event::Changed(lock) => ("changed", lock),
        Event::Gone(lock) => ("gone", lock),
        other => panic!("{other:?}"),
    }
}

fn of(event: &(&'static str, LockInfo)) -> (&'static str, String) {
    (event.0, event.1.name.to_string())
}

pub(crate) async fn a_watch_reports_added_changed_and_removed_locks(store: &Store) {
    let (client, name) = (store.client().await, store.name("lock"));
    let mut watch = watch(store).await;
    let guard = client.lock(&name).lease(store.long()).lock().await.unwrap();
    let event = next(store, &mut watch).await;
    assert_eq!(of(&event), ("appeared", name.clone()));
    assert_eq!(event.1.holders[0].id, guard.owner_id().to_string());
    assert_eq!(watch.locks().map(|lock| lock.name.to_string()).collect::<Vec<_>>(), [&name[..]]);

    let again = guard.reenter().await.unwrap();
    let event = next(store, &mut watch).await;
    assert_eq!((of(&event), event.1.holders[0].hold_count), (("changed", name.clone()), 2));
    again.release().await.unwrap();
    let event = next(store, &mut watch).await;
    assert_eq!((of(&event), event.1.holders[0].hold_count), (("changed", name.clone()), 1));

    let waiting = tokio::spawn(store.client().await.lock(&name).lock());
    let event = next(store, &mut watch).await;
    assert_eq!((of(&event), event.1.waiting), (("changed", name.clone()), Some(1)));
    waiting.abort();
    let event = next(store, &mut watch).await;
    assert_eq!((of(&event), event.1.waiting), (("changed", name.clone()), Some(0)));

    guard.release().await.unwrap();
    let event = next(store, &mut watch).await;
    assert_eq!(of(&event), ("gone", name.clone()));
    assert_eq!(event.1.holders.len(), 1, "what it was");
    assert_eq!(watch.locks().count(), 0);
}

pub(crate) async fn another_holder_is_a_change(store: &Store) {
    let (ours, theirs, name) = (store.client().await, store.client().await, store.name("lock"));
    let mut watch = watch(store).await;
    let guard = ours.fair_lock(&name).lease(store.long()).lock().await.unwrap();
    assert_eq!(of(&next(store, &mut watch).await), ("appeared", name.clone()));
    let waiting = tokio::spawn(theirs.fair_lock(&name).lock());
    while next(store, &mut watch).await.1.waiting != Some(1) {}
    guard.release().await.unwrap();
    let second = waiting.await.unwrap().unwrap();
    loop {
        let (what, lock) = next(store, &mut watch).await;
        assert_eq!(what, "changed", "it was never free");
        if lock.holders[0].id == second.owner_id().to_string() {
            break;
        }
    }
    second.release().await.unwrap();
}

pub(crate) async fn acquired_and_released_permits_are_changes(store: &Store) {
    let (client, name) = (store.client().await, store.name("permits"));
    let semaphore = client.permit_semaphore(&name);
    assert!(semaphore.try_set_permits(5, None).await.unwrap());
    let mut watch = watch(store).await;
    let one = semaphore.lease(store.long()).acquire(1).await.unwrap();
    let (what, lock) = next(store, &mut watch).await;
    assert_eq!((what, lock.taken, lock.count), ("appeared", 1, Some(4)));
    let two = semaphore.lease(store.long()).acquire(2).await.unwrap();
    let (what, lock) = next(store, &mut watch).await;
    assert_eq!((what, lock.taken, lock.count), ("changed", 3, Some(2)));
    one.release().await.unwrap();
    let (what, lock) = next(store, &mut watch).await;
    assert_eq!((what, lock.taken, lock.count), ("changed", 2, Some(3)));
    two.release().await.unwrap();
    assert_eq!(of(&next(store, &mut watch).await), ("gone", name));
}

/// Time to live that goes down and up again is nothing that happens.
pub(crate) async fn a_watch_reports_no_change_while_only_time_passes(store: &Store) {
    let client = store.client().await;
    let mut held = vec![
        AnyGuard::from(client.lock(store.name("lock")).lock().await.unwrap()),
        client.mutex(store.name("mutex")).lock().await.unwrap().into(),
    ];
    if !store.is_quorum() {
        let semaphore = client.permit_semaphore(store.name("permits"));
        assert!(semaphore.try_set_permits(3, None).await.unwrap());
        held.push(client.fair_lock(store.name("fair")).lock().await.unwrap().into());
        held.push(client.rw_lock(store.name("rw")).read().await.unwrap().into());
        held.push(semaphore.acquire(2).await.unwrap().into());
    }
    for guard in &held {
        told(store, &guard.name().to_string()).await;
    }
    let mut watch = watch(store).await;
    let mut seen = BTreeMap::new();
    while seen.len() < held.len() {
        let (what, lock) = next(store, &mut watch).await;
        seen.insert(lock.name.to_string(), what);
    }
    assert!(seen.values().all(|what| *what == "appeared"), "{seen:?}");
    // Several renewals and several announcements.
    let quiet = timeout(store.watchdog() * 7 / 6, watch.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    assert!(held.iter().all(|guard| !guard.is_lost()));
}

/// Dropped at every step, and called again: it comes to its end all the same.
pub(crate) async fn a_watch_that_is_dropped_half_way_loses_nothing(store: &Store) {
    let (client, name) = (store.client().await, store.name("lock"));
    let mut watch = watch(store).await.every(Duration::from_millis(1));
    let mut heard = Vec::new();
    let mut drops = 0;
    for turn in 0..10 {
        let guard = client.lock(format!("{name} {turn}")).lease(store.long()).lock().await.unwrap();
        for expected in ["appeared", "gone"] {
            let limit = Instant::now() + store.long();
            let event = loop {
                assert!(Instant::now() < limit, "{expected}: never; {heard:?}");
                if let Poll::Ready(event) = poll_once(&mut Box::pin(watch.next())) {
                    break event.unwrap();
                }
                drops += 1;
                tokio::time::sleep(Duration::from_micros(500)).await;
            };
            heard.push(match event {
                Event::Appeared(lock) => ("appeared", lock.name.to_string()),
                Event::Gone(lock) => ("gone", lock.name.to_string()),
                other => panic!("{other:?}"),
            });
            assert_eq!(heard[heard.len() - 1], (expected, format!("{name} {turn}")));
            if expected == "appeared" {
                assert!(client.lock(format!("{name} {turn}")).force_unlock("").await.unwrap());
            }
        }
        drop(guard);
    }
    assert!(drops > 0, "it was never dropped");
}

/// It polls at its interval, however often it is asked.
pub(crate) async fn a_watch_polls_at_its_interval(store: &Store) {
    let client = store.client().await;
    let mut watch = store.client().await.inspector().watch(store.name("*"));
    // From the beginning of one look to that of the next.
    let two_looks = async |watch: &mut Watch| {
        let begun = Instant::now();
        watch.look().await.unwrap();
        watch.look().await.unwrap();
        begun.elapsed()
    };
    let default = Duration::from_secs(1);
    let took = two_looks(&mut watch).await;
    assert!(took >= default, "{took:?}: once a second unless told otherwise");
    let _guard = client.lock(store.name("lock")).lock().await.unwrap();
    watch = watch.every(EVERY);
    let turn = async || {
        let took = two_looks(&mut watch).await;
        assert!(took >= EVERY, "{took:?}: no more often than it was told");
        took
    };
    store.is_within("a look, as often as it was told", default, turn).await;
    eventually("it is seen", async || {
        watch.look().await.unwrap();
        watch.locks().count() == 1
    })
    .await;
    // What a look saw comes out one by one, without another look.
    assert_is!(watch.try_next(), Some(Event::Appeared(_)));
    assert_is!(watch.try_next(), None);
    let _other = client.lock(store.name("other")).lock().await.unwrap();
    watch.look().await.unwrap();
    assert_eq!(of(&next(store, &mut watch).await), ("appeared", store.name("other")));
    assert_is!(watch.try_next(), None);
}

pub(crate) async fn a_watch_reports_whether_it_is_complete(store: &Store) {
    let store = store.apart();
    let client = store.client().await;
    let mut watch = store.client().await.inspector().watch("*").every(EVERY);
    watch.look().await.unwrap();
    assert!(watch.is_complete());
    let mutex = client.mutex("mutex").lock().await.unwrap();
    let mut held = Vec::new();
    for i in 0..130 {
        held.push(client.lock(format!("lock {i}")).lock().await.unwrap());
    }
    eventually("not all is told", async || {
        watch.look().await.unwrap();
        !watch.is_complete() && watch.locks().count() == 131
    })
    .await;
    // What can be seen all the same is seen to go.
    let visible = held.pop().unwrap();
    let name = visible.name().to_string();
    visible.release().await.unwrap();
    while watch.try_next().is_some() {}
    assert_eq!(of(&next(&store, &mut watch).await), ("gone", name));
    mutex.release().await.unwrap();
    assert_eq!(of(&next(&store, &mut watch).await), ("gone", "mutex".to_owned()));
    assert!(!watch.is_complete());

    held.truncate(10);
    eventually("all is told again", async || {
        watch.look().await.unwrap();
        watch.is_complete()
    })
    .await;
    assert_eq!(watch.locks().count(), 10);
}

/// The most locks that a watch keeps in mind.
const WATCHED_MAX: usize = 100_000;

#[tokio::test]
async fn as_many_locks_as_a_watch_keeps_in_mind_are_all_of_them() {
    let store = Memory::new();
    let client = Client::with_backend(store.clone(), ClientOptions::new()).unwrap();
    let owner = OwnerId::fresh(Uuid::new_v4());
    let take = async |number: usize| {
        let resource = Resource { kind: Kind::Lock, name: number.to_string()[..].into() };
        store.acquire(Acquire::new(resource, owner, 600_000)).await.unwrap();
    };
    for number in 0..WATCHED_MAX {
        take(number).await;
    }
    let mut watch = client.inspector().watch("*").every(Duration::ZERO);
    watch.look().await.unwrap();
    assert!(watch.is_complete());
    assert_eq!(watch.locks().count(), WATCHED_MAX);
    take(WATCHED_MAX).await;
    watch.look().await.unwrap();
    assert!(!watch.is_complete(), "one more is too many");
}
