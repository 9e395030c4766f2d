//! The inspector: queues, tokens, readers, permits, counters, and holders that have ended.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use lockkeeper::{AnyLock, Error, Kind, LockInfo, Ttl};

use crate::listing::{is_about, is_ours, told};
use crate::store::{Store, assert_is, eventually};

async fn inspect(store: &Store, name: &str) -> LockInfo {
    store.client().await.inspector().inspect(name).await.unwrap()
}

pub(crate) async fn the_queue_of_a_fair_lock_is_inspected_in_order(store: &Store) {
    let name = store.name("lock");
    let holder = store.client().await;
    let guard = holder.fair_lock(&name).lease(store.long()).lock().await.unwrap();
    let mut waiters = Vec::new();
    for place in 1..=4 {
        let client = store.client().await;
        let waiter = tokio::spawn(client.fair_lock(&name).lock());
        waiters.push((client, waiter));
        let queue = async || inspect(store, &name).await.queue.len();
        eventually("it waits", async || queue().await == place).await;
    }
    let found = inspect(store, &name).await;
    assert_eq!((found.kind, found.waiting), (Kind::Fair, Some(4)));
    assert_eq!(found.holders[0].id, guard.owner_id().to_string());
    for (waiter, (client, _)) in found.queue.iter().zip(&waiters) {
        assert!(waiter.id.starts_with(&client.id().to_string()), "{found:?}");
        assert_eq!((waiter.hold_count, waiter.shared), (0, false));
    }
    // The first gets in, and the rest moves up.
    guard.release().await.unwrap();
    let (_, first) = waiters.remove(0);
    let second = first.await.unwrap().unwrap();
    let next = inspect(store, &name).await;
    assert_eq!(next.holders[0].id, found.queue[0].id);
    let ids = |lock: &LockInfo| lock.queue.iter().map(|w| w.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&next), ids(&found)[1..]);
    for (_, waiter) in waiters {
        waiter.abort();
    }
    eventually("nobody waits", async || inspect(store, &name).await.queue.is_empty()).await;
    second.release().await.unwrap();
}

/// A waiter is known if its client also holds something.
pub(crate) async fn a_waiter_that_holds_something_is_known(store: &Store) {
    let name = store.name("lock");
    let (holder, waiter) = (store.client().await, store.client().await);
    let guard = holder.fair_lock(&name).lock().await.unwrap();
    let beside = waiter.lock(store.name("beside")).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.fair_lock(&name).lock());
    let mut found = inspect(store, &name).await;
    eventually("it says who it is", async || {
        found = inspect(store, &name).await;
        found.queue.first().is_some_and(|waiter| waiter.client.is_some())
    })
    .await;
    is_ours(&found.queue[0]);
    waiting.abort();
    beside.release().await.unwrap();
    guard.release().await.unwrap();
}

pub(crate) async fn the_last_token_is_inspected(store: &Store) {
    let (client, name) = (store.client().await, store.name("lock"));
    assert_eq!(inspect(store, &name).await.token, None);
    let plain = client.lock(&name).lock().await.unwrap();
    assert_eq!(inspect(store, &name).await.token, None);
    plain.release().await.unwrap();
    let mut last = 0;
    let mut locks = [(); 3].map(|()| AnyLock::from(client.fenced_lock(&name)));
    if !store.is_quorum() {
        locks[1] = client.fair_lock(&name).fenced().into();
        locks[2] = client.rw_lock(&name).fenced().writer();
    }
    for lock in locks {
        let guard = lock.lock().await.unwrap();
        let token = guard.token().expect("it is fenced");
        assert!(token > last);
        last = token;
        assert_eq!(inspect(store, &name).await.token, Some(token));
        guard.release().await.unwrap();
        assert_eq!(inspect(store, &name).await.token, Some(token), "it outlives the lock");
    }
}

pub(crate) async fn readers_are_inspected(store: &Store) {
    let name = store.name("lock");
    let (one, two) = (store.client().await, store.client().await);
    let first = one.rw_lock(&name).lease(store.long()).read().await.unwrap();
    let second = two.rw_lock(&name).lease(store.long()).read().await.unwrap();
    let found = inspect(store, &name).await;
    assert_eq!(found.kind, Kind::Read);
    let ids: BTreeSet<_> = found.holders.iter().map(|holder| holder.id.clone()).collect();
    assert_eq!(ids, [&first, &second].map(|guard| guard.owner_id().to_string()).into());
    assert!(found.holders.iter().all(|holder| holder.shared && holder.hold_count == 1));
    first.release().await.unwrap();
    second.release().await.unwrap();
    let writer = one.rw_lock(&name).lease(store.long()).write().await.unwrap();
    let found = inspect(store, &name).await;
    assert_eq!((found.kind, found.holders.len()), (Kind::Write, 1));
    assert!(!found.holders[0].shared);
    // The log names all readers.
    writer.release().await.unwrap();
    let first = one.rw_lock(&name).read().await.unwrap();
    let second = two.rw_lock(&name).read().await.unwrap();
    store.receives_notices_of(&first).await;
    store.receives_notices_of(&second).await;
    let inspector = store.client().await.inspector();
    assert!(inspector.force_unlock(&name, Kind::Read, None, "why").await.unwrap());
    for guard in [&first, &second] {
        store.promptly("the holder is notified", guard.lost()).await;
    }
    let forced = inspector.inspect(&name).await.unwrap().forced.remove(0);
    let holders: BTreeSet<_> = forced.holders.into_iter().collect();
    assert_eq!(holders, [&first, &second].map(|guard| guard.owner_id().to_string()).into());
}

pub(crate) async fn permits_are_inspected(store: &Store) {
    let (client, name) = (store.client().await, store.name("permits"));
    let semaphore = client.permit_semaphore(&name);
    assert!(semaphore.try_set_permits(5, store.long()).await.unwrap());
    let guard = semaphore.lease(store.long()).acquire(3).await.unwrap();
    let inspector = store.client().await.inspector();
    for found in [
        inspector.inspect(&name).await.unwrap(),
        inspector.inspect_as(&name, Kind::Permits).await.unwrap(),
    ] {
        assert_eq!((found.kind, found.count, found.taken), (Kind::Permits, Some(2), 3));
        let ids: BTreeSet<_> = found.holders.iter().map(|holder| holder.id.clone()).collect();
        assert_eq!(ids, guard.permit_ids().iter().map(ToString::to_string).collect());
        assert_is!(found.ttl, Some(Ttl::For(left)) if left <= store.long());
    }
    let forced = inspector.force_unlock(&name, Kind::Permits, None, "why").await;
    assert_is!(forced, Err(Error::Invalid { .. }));
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    let found = inspector.inspect_as(&name, Kind::Permits).await.unwrap();
    assert_eq!((found.count, found.taken, found.holders), (Some(5), 0, vec![]));
    assert_is!(inspector.inspect_as(&name, Kind::Lock).await, Err(Error::WrongKind { .. }));
}

pub(crate) async fn counters_are_inspected(store: &Store) {
    let (client, inspector) = (store.client().await, store.client().await.inspector());
    let (semaphore, latch) = (store.name("semaphore"), store.name("latch"));
    assert!(client.semaphore(&semaphore).try_set_permits(5, None).await.unwrap());
    let permit = client.semaphore(&semaphore).acquire(2).await.unwrap();
    assert!(client.count_down_latch(&latch).try_set_count(3).await.unwrap());
    let found = inspector.inspect(&semaphore).await.unwrap();
    assert_eq!((found.kind, found.count), (Kind::Semaphore, Some(3)));
    assert_eq!((found.ttl, found.is_free()), (Some(Ttl::Forever), false));
    let found = inspector.inspect_as(&latch, Kind::Latch).await.unwrap();
    assert_eq!((found.kind, found.count), (Kind::Latch, Some(3)));
    for (name, kind) in [(&semaphore, Kind::Lock), (&semaphore, Kind::Write), (&latch, Kind::Fair)]
    {
        assert_is!(inspector.inspect_as(name, kind).await, Err(Error::WrongKind { .. }));
    }
    for kind in [Kind::Semaphore, Kind::Latch] {
        let forced = inspector.force_unlock(&semaphore, kind, None, "").await;
        assert_is!(forced, Err(Error::Invalid { .. }));
    }
    assert_eq!(client.semaphore(&semaphore).available().await.unwrap(), 3);
    permit.release().await.unwrap();
}

pub(crate) async fn an_empty_name_is_rejected(store: &Store) {
    let plain = store.client().await.inspector();
    let prefixed = store.client_with(store.options().name_prefix(store.name("p:"))).await;
    for inspector in [plain, prefixed.inspector()] {
        assert_is!(inspector.inspect("").await, Err(Error::Invalid { .. }));
        assert_is!(inspector.inspect_as("", Kind::Mutex).await, Err(Error::Invalid { .. }));
        let forced = inspector.force_unlock("", Kind::Lock, None, "").await;
        assert_is!(forced, Err(Error::Invalid { .. }));
    }
}

/// The client may have ended by then: the log of the lock names it.
pub(crate) async fn the_log_of_a_force_release_names_the_previous_holder(store: &Store) {
    let name = store.name("lock");
    let victim = store.client_with(store.options().program("victim")).await;
    let guard = victim.lock(&name).lease(store.long()).lock().await.unwrap();
    told(store, &name).await;
    let inspector = store.client_with(store.options().program("operator")).await.inspector();
    assert!(inspector.force_unlock(&name, Kind::Lock, None, "why").await.unwrap());
    drop(guard);
    victim.shutdown().await;
    let forced = inspect(store, &name).await.forced.remove(0);
    assert!(forced.by.contains("operator"), "{forced:?}");
    let [Some(client)] = &forced.clients[..] else { panic!("{forced:?}") };
    assert_eq!((client.pid, &client.program[..]), (std::process::id(), "victim"));
    assert!(!client.host.is_empty());

    // Of a holder of another library only its id is known.
    let owner = store.other_holds::<lockkeeper::Lock>(&name[..].into()).await;
    assert!(inspector.force_unlock(&name, Kind::Lock, None, "why").await.unwrap());
    let forced = inspect(store, &name).await.forced.remove(0);
    assert_eq!((forced.holders, forced.clients), (vec![owner.to_string()], vec![None]));
}

pub(crate) async fn a_failed_release_names_the_process_of_the_new_holder(store: &Store) {
    let name = store.name("lock");
    let stale = store.client().await.lock(&name).lease(store.lease()).lock().await.unwrap();
    let next = store.client_with(store.options().program("next")).await;
    let _held = next.lock(&name).lease(store.long()).lock().await.unwrap();
    told(store, &name).await;
    let error = stale.release().await.unwrap_err().to_string();
    let host = lockkeeper::ClientInfo::of_this_process().host;
    let holder = format!("(now held by next pid {} on {host})", std::process::id());
    assert!(error.ends_with(&holder), "{error}");
}

/// A process that died: it is not called alive, and it is said when it was last seen.
pub(crate) async fn a_client_without_announcements_is_overdue(store: &Store) {
    let name = store.name("lock");
    let options = store.options().watchdog_timeout(Duration::from_secs(12)).program("dies");
    let client = store.client_with(options).await;
    let guard = client.lock(&name).lease(Duration::from_secs(60)).lock().await.unwrap();
    let before = told(store, &name).await.holders.remove(0);
    assert!(before.seen.is_some());
    client.abandon();
    let mut after = None;
    eventually("it is overdue", async || {
        after = inspect(store, &name).await.holders.pop();
        after.as_ref().is_some_and(|holder| holder.seen.is_some_and(|seen| seen.is_overdue()))
    })
    .await;
    let after = after.expect("it still holds it");
    assert_eq!((after.id, after.client), (before.id, before.client));
    assert!(after.seen.expect("it was seen").ago > Duration::from_secs(4));
    drop(guard);
}

/// The process has ended; it is known until the lock expires.
pub(crate) async fn a_lock_after_leave_for_shows_its_client_and_time(store: &Store) {
    let then = SystemTime::now();
    let kinds = [("lock", Kind::Lock), ("mutex", Kind::Mutex), ("fair", Kind::Fair)];
    for (name, kind) in kinds.into_iter().take(if store.is_quorum() { 2 } else { 3 }) {
        let name = store.name(name);
        let client = store.client_with(store.options().program("job")).await;
        let lock: AnyLock = match kind {
            Kind::Mutex => client.mutex(&name).into(),
            Kind::Fair => client.fair_lock(&name).into(),
            _ => client.lock(&name).into(),
        };
        let guard = lock.lock().await.unwrap();
        let owner = guard.owner_id().to_string();
        // Longer than it would be told of a client that holds something.
        guard.leave_for(store.long() * 4).await.unwrap();
        client.shutdown().await;
        let found = inspect(store, &name).await;
        assert_eq!(found.kind, kind);
        let [holder] = &found.holders[..] else { panic!("{found:?}") };
        assert_eq!(holder.id, owner);
        let client = holder.client.as_ref().expect("it said who it is");
        assert_eq!((client.pid, &client.program[..]), (std::process::id(), "job"));
        is_about(holder.since, then);
        is_about(holder.left, then);
        let inspector = store.client().await.inspector();
        let listed = crate::listing::all(&mut inspector.list(&name[..])).await;
        assert_eq!(listed[0].holders[0].left, holder.left);
    }
}

/// The client announces its holds and its lock after `leave_for`.
pub(crate) async fn a_client_can_continue_after_leave_for(store: &Store) {
    let (client, left, held) = (store.client().await, store.name("left"), store.name("held"));
    let guard = client.lock(&left).lock().await.unwrap();
    guard.leave_for(store.long()).await.unwrap();
    let beside = client.lock(&held).lock().await.unwrap();
    assert_eq!(told(store, &held).await.holders[0].left, None);
    let holder = told(store, &left).await.holders.remove(0);
    assert!(holder.left.is_some(), "{holder:?}");
    beside.release().await.unwrap();
}
