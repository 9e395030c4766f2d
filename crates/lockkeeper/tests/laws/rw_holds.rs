//! The read/write lock: leases, expired holders, losses, force-release, tokens and holders.

use std::time::Duration;

use lockkeeper::backend::{Acquire, Attempt, Release, Released, Resource};
use lockkeeper::{AnyLock, Client, Error, Hold, Kind, LeaseTime, LostReason, OwnerId, RwLock};
use tokio::time::{Instant, sleep, timeout};

use crate::rw::{listening, pair};
use crate::store::{Store, assert_is, eventually, left};

/// The re-check interval of a waiting writer.
const LOOKS: Duration = Duration::from_millis(1200);

fn resource(lock: &RwLock, kind: Kind) -> Resource {
    Resource { kind, name: lock.name().clone() }
}

/// A hold of a process that died: it is neither released nor renewed.
async fn dead(store: &Store, lock: &RwLock, kind: Kind, lease: Duration) -> OwnerId {
    let owner = OwnerId::fresh(Client::memory().id());
    let request = Acquire::new(resource(lock, kind), owner, lease.as_millis() as u64);
    assert_eq!(store.backend().await.acquire(request).await, Ok(Attempt::GRANTED));
    owner
}

/// Deletes what `guard` holds, behind its back.
async fn delete(store: &Store, lock: &RwLock, kind: Kind, guard: &Hold) {
    let release = Release::new(resource(lock, kind), guard.owner_id());
    let answer = store.backend().await.release(release).await;
    assert_is!(answer, Ok(Released::Freed { .. }));
}

/// A client that its own renewals tell of a loss no sooner than in ten seconds.
async fn slow(store: &Store) -> Client {
    store.client_with(store.options().watchdog_timeout(store.long())).await
}

pub(crate) async fn waiters_of_both_sides_are_notified(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let name = store.name("lock");
    let told = async |held: &str, waits: AnyLock| {
        let waiter;
        let start;
        let mut reads = None;
        if held == "read" {
            let held = ours.lease(store.long()).read().await.unwrap();
            store.receives_notices_of(&held).await;
            waiter = listening(store, waits.lock()).await;
            start = Instant::now();
            held.release().await.unwrap();
        } else {
            let writing = ours.lease(store.long()).write().await.unwrap();
            store.receives_notices_of(&writing).await;
            waiter = listening(store, waits.lock()).await;
            start = Instant::now();
            match held {
                "downgraded" => reads = Some(writing.downgrade().await.unwrap()),
                _ => writing.release().await.unwrap(),
            }
        }
        let guard = waiter.await.unwrap().unwrap();
        let took = start.elapsed();
        guard.release().await.unwrap();
        if let Some(reads) = reads {
            reads.release().await.unwrap();
        }
        eventually("nothing is left", async || store.traces(&name) == 0).await;
        took
    };
    for (held, waits, what) in [
        ("read", theirs.writer(), "a writer by the last reader"),
        ("write", theirs.reader(), "a reader by the writer"),
        ("write", theirs.writer(), "a writer by the writer"),
        ("downgraded", theirs.reader(), "a reader by the downgrade"),
    ] {
        store.is_notified(what, async || told(held, waits.clone()).await).await;
    }
}

pub(crate) async fn the_requested_lease_is_the_ttl(store: &Store) {
    let (lock, _) = pair(store).await;
    for side in [lock.reader(), lock.writer()] {
        let guard = side.lease(store.long()).lock().await.unwrap();
        let ttl = left(lock.inspect().await);
        assert!(ttl <= store.long() && ttl > store.long() * 8 / 10, "{ttl:?}");
        assert!(guard.remaining() <= ttl);
        guard.release().await.unwrap();
        assert_eq!(lock.inspect().await.unwrap().ttl, None);
    }
    for side in [lock.reader(), lock.writer()] {
        let renewed = side.lease(LeaseTime::Renewed(store.long()));
        let guard = renewed.try_lock().await.unwrap().expect("free");
        let ttl = left(lock.inspect().await);
        assert!(ttl <= store.long() && ttl > store.long() * 8 / 10, "{ttl:?}");
        guard.release().await.unwrap();
    }
    for side in [lock.reader(), lock.writer()] {
        let guard = side.lock().await.unwrap();
        let ttl = left(lock.inspect().await);
        assert!(ttl <= store.watchdog() && ttl > store.watchdog() / 3, "{ttl:?}");
        guard.release().await.unwrap();
    }
}

pub(crate) async fn both_sides_are_renewed_for_as_long_as_they_are_held(store: &Store) {
    let (lock, _) = pair(store).await;
    let writer = lock.write().await.unwrap();
    let nested = writer.read().await.unwrap();
    let another = store.client().await.rw_lock(store.name("readers"));
    let readers = [another.read().await.unwrap(), another.read().await.unwrap()];
    sleep(store.watchdog() * 2).await;
    assert!(!writer.is_lost());
    for guard in readers.iter().chain([&nested]) {
        assert!(!guard.is_lost());
    }
    assert_eq!(lock.inspect().await.unwrap().holders.len(), 2);
    assert_eq!(another.inspect().await.unwrap().holders.len(), 2);
    writer.release().await.unwrap();
    for guard in readers.into_iter().chain([nested]) {
        guard.release().await.unwrap();
    }
}

pub(crate) async fn a_fixed_lease_expires_and_is_reported_lost(store: &Store) {
    let (ours, theirs) = pair(store).await;
    for side in [ours.reader(), ours.writer()] {
        let guard = side.lease(store.lease()).lock().await.unwrap();
        assert_eq!(store.signalled(guard.lost()).await, LostReason::Expired);
        assert!(guard.is_lost());
        let next = timeout(store.slack() + LOOKS, theirs.write()).await;
        next.expect("it has ended at the store").unwrap().release().await.unwrap();
        assert_is!(guard.release().await, Err(Error::NotHeld { .. }));
    }
}

/// What keeps the lock for longer than the writer has it is shared with others from then on.
pub(crate) async fn a_writer_expires_before_its_nested_reader(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let writer = ours.lease(store.steady_lease()).write().await.unwrap();
    let nested = writer.read().await.unwrap();
    assert!(theirs.try_read().await.unwrap().is_none());
    assert_eq!(store.signalled(writer.lost()).await, LostReason::Expired);
    let reader = timeout(store.slack() + LOOKS, theirs.read()).await;
    let reader = reader.expect("the writer has ended at the store").unwrap();
    assert!(!nested.is_lost());
    assert!(!theirs.writer().is_locked().await.unwrap());
    assert_eq!(theirs.inspect().await.unwrap().holders.len(), 2);
    assert!(theirs.try_write().await.unwrap().is_none(), "it is read");
    assert_is!(writer.release().await, Err(Error::NotHeld { .. }));
    nested.release().await.unwrap();
    reader.release().await.unwrap();
    assert_eq!(store.traces(&store.name("lock")), 0);
}

/// Nobody has to touch it for that, and a renewed writer is none that ends.
pub(crate) async fn the_lease_of_a_writer_is_independent_of_its_nested_reader(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let client = store.client().await;
    let owner = client.new_owner();
    let lock = client.rw_lock(store.name("lock")).as_owner(&owner);
    let writer = lock.lease(store.lease()).write().await.unwrap();
    let nested = lock.lease(store.long()).read().await.unwrap();
    assert!(left(ours.inspect().await) > store.long() / 2);
    assert_eq!(store.signalled(writer.lost()).await, LostReason::Expired);
    sleep(store.lease() / 10).await;
    let holders = theirs.inspect().await.unwrap().holders;
    assert!(holders.iter().all(|holder| holder.id == nested.owner_id().to_string()), "{holders:?}");
    assert_is!(writer.release().await, Err(Error::NotHeld { .. }));
    nested.release().await.unwrap();
    // One that is released takes its lease with it.
    let writer = lock.lease(store.long()).write().await.unwrap();
    lock.lease(store.long() * 10).read().await.unwrap().release().await.unwrap();
    let ttl = left(ours.inspect().await);
    assert!(ttl <= store.long(), "{ttl:?}");
    writer.extend(store.long() * 3).await.unwrap();
    let nested = lock.lease(store.long() * 10).read().await.unwrap();
    nested.release().await.unwrap();
    assert!(left(ours.inspect().await) > store.long() * 2);
    writer.release().await.unwrap();
    assert_eq!(store.traces(&store.name("lock")), 0);
}

pub(crate) async fn one_readers_lease_never_shortens_anothers(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let long = ours.lease(store.long()).read().await.unwrap();
    let whole = |what: &str, ttl: Duration| {
        assert!(ttl > store.long() - Duration::from_secs(11) - store.slack(), "{what}: {ttl:?}");
    };
    let short = theirs.lease(store.steady_lease()).read().await.unwrap();
    whole("a short one joins", left(theirs.inspect().await));
    short.release().await.unwrap();
    whole("it goes", left(theirs.inspect().await));
    let twice = theirs.lease(store.steady_lease()).read().await.unwrap();
    let again = twice.reenter().await.unwrap();
    again.release().await.unwrap();
    whole("it takes a hold off", left(theirs.inspect().await));
    twice.leave_for(store.steady_lease() / 2).await.unwrap();
    whole("it is left", left(theirs.inspect().await));
    let short = theirs.lease(store.steady_lease()).read().await.unwrap();
    assert_eq!(store.signalled(short.lost()).await, LostReason::Expired);
    drop(short);
    whole("it ends", left(theirs.inspect().await));
    assert!(theirs.try_write().await.unwrap().is_none(), "the long one reads on");
    assert!(!long.is_lost());
    long.release().await.unwrap();
}

/// The lock ends with its last reader, and not later.
pub(crate) async fn a_released_reader_no_longer_extends_the_ttl(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let long = ours.lease(store.long() * 10).read().await.unwrap();
    let short = theirs.lease(store.long()).read().await.unwrap();
    assert!(left(ours.inspect().await) > store.long() * 9);
    long.release().await.unwrap();
    let ttl = left(ours.inspect().await);
    assert!(ttl <= store.long() && ttl > store.long() / 2, "{ttl:?}");
    short.release().await.unwrap();
}

pub(crate) async fn an_expired_reader_stops_blocking_writers(store: &Store) {
    let (ours, theirs) = pair(store).await;
    // The living one keeps the lock itself alive for long.
    let living = ours.lease(store.long()).read().await.unwrap();
    let start = store.timer();
    dead(store, &ours, Kind::Read, store.steady_lease()).await;
    assert_eq!(theirs.inspect().await.unwrap().holders.len(), 2);
    let mut writer = Box::pin(theirs.write());
    assert!(timeout(store.steady_lease() / 4, &mut writer).await.is_err());
    living.release().await.unwrap();
    let writer = timeout(store.long(), writer).await.expect("the dead one has ended").unwrap();
    start.took(store.steady_lease().mul_f64(0.95), store.steady_lease() + LOOKS);
    writer.release().await.unwrap();
    assert_eq!(store.traces(&store.name("lock")), 0);
}

pub(crate) async fn expired_readers_are_not_holders(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let living = ours.lease(store.long()).read().await.unwrap();
    let gone = dead(store, &ours, Kind::Read, store.steady_lease()).await.to_string();
    let is_shown = async || {
        let holders = theirs.inspect().await.unwrap().holders;
        assert!(holders.iter().any(|holder| holder.id == living.owner_id().to_string()));
        holders.iter().any(|holder| holder.id == gone)
    };
    assert!(is_shown().await);
    sleep(store.steady_lease() + Duration::from_millis(20)).await;
    assert!(!is_shown().await);
    // Nor do they keep the only living one from writing.
    let writer = living.try_upgrade().await.expect("it is the only one that lives");
    writer.release().await.unwrap();
    assert_eq!(store.traces(&store.name("lock")), 0);
}

pub(crate) async fn readers_acquire_when_the_lease_of_a_dead_writer_expires(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let start = store.timer();
    dead(store, &ours, Kind::Write, store.lease()).await;
    let (one, two) = tokio::join!(ours.read(), theirs.read());
    start.took(store.lease().mul_f64(0.95), store.lease());
    one.unwrap().release().await.unwrap();
    two.unwrap().release().await.unwrap();
}

/// Writers let readers go first then, but not for long if none comes.
pub(crate) async fn a_reader_that_timed_out_delays_writers_briefly(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let writer = ours.write().await.unwrap();
    let limit = Duration::from_millis(5600);
    assert!(theirs.try_read_for(limit).await.unwrap().is_none());
    writer.release().await.unwrap();
    let start = store.timer();
    let next = timeout(store.long(), ours.write()).await.unwrap().unwrap();
    start.took(Duration::ZERO, Duration::from_millis(2500));
    next.release().await.unwrap();
    if let Some(server) = store.behind(&store.name("lock")) {
        let patience = format!("lockkeeper_patience:{{{}}}", store.name("lock"));
        let left = server.cli(&["PTTL", &patience]).int();
        assert!(left == -2 || (0..=10_000).contains(&left), "{left}: it ends by itself");
    }
}

pub(crate) async fn leave_for_of_a_reader_blocks_writers_until_it_expires(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let start = store.timer();
    ours.read().await.unwrap().leave_for(store.steady_lease()).await.unwrap();
    let another = theirs.try_read().await.unwrap().expect("readers share it");
    another.release().await.unwrap();
    let writer = timeout(store.long(), theirs.write()).await.unwrap().unwrap();
    start.took(store.steady_lease().mul_f64(0.95), store.steady_lease() + LOOKS);
    writer.leave_for(store.steady_lease()).await.unwrap();
    assert!(ours.try_read().await.unwrap().is_none());
    let reader = timeout(store.long(), ours.read()).await.unwrap().unwrap();
    reader.release().await.unwrap();
}

pub(crate) async fn extend_sets_a_new_deadline_for_a_reader(store: &Store) {
    let (lock, _) = pair(store).await;
    let guard = lock.lease(store.steady_lease()).read().await.unwrap();
    guard.extend(store.long()).await.unwrap();
    assert!(left(lock.inspect().await) > store.long() / 2);
    assert!(guard.remaining() > store.long() / 2);
    guard.extend(store.steady_lease()).await.unwrap();
    assert!(left(lock.inspect().await) > store.long() / 2, "nothing shortens it");
    guard.release().await.unwrap();
}

pub(crate) async fn a_deleted_hold_is_detected_at_the_next_check(store: &Store) {
    let (lock, _) = pair(store).await;
    for fixed in [false, true] {
        let term = match fixed {
            true => lock.lease(store.long() * 4),
            false => lock.clone(),
        };
        let reader = term.read().await.unwrap();
        let another = term.read().await.unwrap();
        delete(store, &lock, Kind::Read, &reader).await;
        assert_eq!(store.signalled(reader.lost()).await, LostReason::Deleted);
        assert!(!another.is_lost(), "the other one reads on");
        another.release().await.unwrap();
        assert_is!(reader.release().await, Err(Error::NotHeld { .. }));
        let writer = term.write().await.unwrap();
        delete(store, &lock, Kind::Write, &writer).await;
        assert_eq!(store.signalled(writer.lost()).await, LostReason::Deleted);
        assert_is!(writer.release().await, Err(Error::NotHeld { .. }));
    }
}

pub(crate) async fn a_reader_whose_lock_is_written_is_lost_as_taken(store: &Store) {
    let (client, theirs) = (store.client().await, pair(store).await.1);
    let ours = client.rw_lock(theirs.name());
    for (side, kind) in [(ours.reader(), Kind::Read), (ours.writer(), Kind::Write)] {
        store.listens(&client).await;
        let guard = side.lock().await.unwrap();
        delete(store, &ours, kind, &guard).await;
        let next = theirs.try_write().await.unwrap().expect("it is gone");
        assert_eq!(store.signalled(guard.lost()).await, LostReason::Taken);
        drop(guard);
        assert!(!next.is_lost());
        next.release().await.unwrap();
    }
}

pub(crate) async fn a_lost_guard_neither_reads_nor_writes_nor_reenters(store: &Store) {
    let (lock, _) = pair(store).await;
    let reader = lock.lease(store.lease()).read().await.unwrap();
    store.signalled(reader.lost()).await;
    assert_is!(reader.reenter().await, Err(Error::Lost { .. }));
    let refused = reader.try_upgrade().await.unwrap_err();
    assert_is!(refused.error(), Some(Error::Lost { .. }));
    drop(refused);
    let writer = lock.lease(store.lease()).write().await.unwrap();
    store.signalled(writer.lost()).await;
    assert_is!(writer.read().await, Err(Error::Lost { .. }));
    assert_is!(writer.reenter().await, Err(Error::Lost { .. }));
    assert_is!(writer.downgrade().await, Err(Error::Lost { .. }));
    eventually("nothing is left", async || {
        lock.inspect().await.unwrap().ttl.is_none() && store.traces(&store.name("lock")) == 0
    })
    .await;
}

pub(crate) async fn all_readers_of_a_force_released_lock_are_lost_with_the_reason(store: &Store) {
    let (ours, theirs) = (slow(store).await, slow(store).await);
    let name = store.name("lock");
    let mut readers = Vec::new();
    for client in [&ours, &ours, &theirs] {
        readers.push(client.rw_lock(&name).read().await.unwrap());
    }
    readers.push(readers[0].reenter().await.unwrap());
    for reader in &readers {
        store.receives_notices_of(reader).await;
    }
    let (operator, _) = pair(store).await;
    assert!(operator.force_unlock("the host is gone").await.unwrap());
    for reader in &readers {
        let reason = store.promptly("it is told", reader.lost()).await;
        assert_eq!(reason, LostReason::Revoked("the host is gone".to_owned()));
    }
    assert!(!operator.force_unlock("").await.unwrap(), "only once");
    assert_eq!(store.traces(&name), 0);
    let writer = operator.try_write().await.unwrap().expect("it is free");
    for reader in readers {
        assert_is!(reader.release().await, Err(Error::NotHeld { .. }));
    }
    writer.release().await.unwrap();
}

pub(crate) async fn the_writer_of_a_force_released_lock_is_lost_with_the_reason(store: &Store) {
    let lock = slow(store).await.rw_lock(store.name("lock"));
    let writer = lock.write().await.unwrap();
    let nested = writer.read().await.unwrap();
    store.receives_notices_of(&writer).await;
    let (operator, _) = pair(store).await;
    let waits = listening(store, operator.read()).await;
    assert!(operator.force_unlock("stuck").await.unwrap());
    for hold in [lockkeeper::Hold::clone(&writer), lockkeeper::Hold::clone(&nested)] {
        let reason = store.promptly("it is told", hold.lost()).await;
        assert_eq!(reason, LostReason::Revoked("stuck".to_owned()));
    }
    let reader = store.promptly("who waits gets in", waits).await.unwrap().unwrap();
    assert_is!(writer.release().await, Err(Error::NotHeld { .. }));
    assert_is!(nested.release().await, Err(Error::NotHeld { .. }));
    assert!(!reader.is_lost());
    reader.release().await.unwrap();
}

pub(crate) async fn a_force_release_of_a_free_lock_is_false(store: &Store) {
    let (lock, _) = pair(store).await;
    assert!(!lock.force_unlock("").await.unwrap());
    assert_eq!(store.traces(&store.name("lock")), 0);
}

pub(crate) async fn holders_are_inspected_with_their_counts(store: &Store) {
    let (ours, theirs) = pair(store).await;
    assert!(ours.inspect().await.unwrap().holders.is_empty());
    assert!(!ours.reader().is_locked().await.unwrap() && !ours.writer().is_locked().await.unwrap());
    let one = ours.lease(store.long()).read().await.unwrap();
    let again = one.reenter().await.unwrap();
    let two = theirs.lease(store.long()).read().await.unwrap();
    assert!(
        theirs.reader().is_locked().await.unwrap() && !theirs.writer().is_locked().await.unwrap()
    );
    let holders = async || {
        let mut all: Vec<_> = ours.inspect().await.unwrap().holders;
        all.sort_by_key(|holder| holder.hold_count);
        all.into_iter().map(|holder| (holder.id, holder.hold_count, holder.shared)).collect()
    };
    let all: Vec<_> = holders().await;
    let id = |guard: &Hold| guard.owner_id().to_string();
    assert_eq!(all, [(id(&two), 1, true), (id(&one), 2, true)]);
    for guard in [again, one, two] {
        guard.release().await.unwrap();
    }
    let writer = ours.lease(store.long()).write().await.unwrap();
    let twice = writer.reenter().await.unwrap();
    let nested = writer.read().await.unwrap();
    assert!(
        theirs.reader().is_locked().await.unwrap() && theirs.writer().is_locked().await.unwrap()
    );
    let all: Vec<_> = holders().await;
    assert_eq!(all, [(id(&nested), 1, true), (id(&writer), 2, false)]);
    eventually("who that is, too", async || {
        let holders = theirs.inspect().await.unwrap().holders;
        holders.iter().all(|h| h.client.as_ref().is_some_and(|c| c.pid == std::process::id()))
    })
    .await;
    nested.release().await.unwrap();
    for guard in [writer, twice] {
        guard.release().await.unwrap();
    }
}

pub(crate) async fn hold_counts_are_per_owner(store: &Store) {
    let (ours, theirs) = (store.client().await, store.client().await);
    let lock = ours.rw_lock(store.name("lock"));
    let (owner, other) = (ours.new_owner(), ours.new_owner());
    let reader = lock.as_owner(&owner).lease(store.long()).read().await.unwrap();
    assert_eq!(lock.reader().hold_count(&owner).await.unwrap(), 1);
    assert_eq!(lock.writer().hold_count(&owner).await.unwrap(), 0);
    assert_eq!(lock.reader().hold_count(&other).await.unwrap(), 0);
    assert_is!(lock.reader().hold_count(&theirs.new_owner()).await, Err(Error::Invalid { .. }));
    assert_is!(lock.writer().hold_count(&theirs.new_owner()).await, Err(Error::Invalid { .. }));
    assert_is!(lock.as_owner(&theirs.new_owner()).read().await, Err(Error::Invalid { .. }));
    assert_is!(lock.as_owner(&theirs.new_owner()).write().await, Err(Error::Invalid { .. }));
    reader.release().await.unwrap();
}

pub(crate) async fn writers_have_growing_tokens_and_readers_none(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let (ours, theirs) = (ours.fenced(), theirs.fenced());
    let mut last = None;
    let mut grows = |guard: &Hold| {
        let token = guard.token();
        assert!(token > last, "{token:?} after {last:?}");
        last = token;
    };
    for lock in [&ours, &theirs, &ours] {
        let writer = lock.lease(store.long()).write().await.unwrap();
        grows(&writer);
        let again = writer.reenter().await.unwrap();
        assert_eq!(again.token(), writer.token(), "a re-entry has the same");
        let nested = writer.read().await.unwrap();
        assert_eq!(nested.token(), None);
        again.release().await.unwrap();
        let reader = writer.downgrade().await.unwrap();
        assert_eq!(reader.token(), None, "a reader has none");
        nested.release().await.unwrap();
        let writer = reader.try_upgrade().await.expect("it is the only reader");
        grows(&writer);
        writer.release().await.unwrap();
        let reader = lock.lease(store.long()).read().await.unwrap();
        assert_eq!(reader.token(), None);
        reader.release().await.unwrap();
    }
    let (plain, _) = pair(store).await;
    let writer = plain.lease(store.long()).write().await.unwrap();
    assert_eq!(writer.token(), None, "nobody asked for one");
    writer.release().await.unwrap();
}

/// An owner that holds the lock by a plain handle, too, gets its token from the fenced one.
pub(crate) async fn a_fenced_upgrade_issues_a_token(store: &Store) {
    let client = store.client().await;
    let plain = client.rw_lock(store.name("lock")).as_owner(&client.new_owner());
    let first = plain.lease(store.long()).read().await.unwrap();
    let second = plain.fenced().read().await.unwrap();
    let writer = second.try_upgrade().await.expect("it is the only reader");
    assert!(writer.token().is_some());
    writer.release().await.unwrap();
    first.release().await.unwrap();
    assert!(plain.inspect().await.unwrap().holders.is_empty());
}

/// The read lock was deleted and another client wrote in between: an upgrade would hide that.
pub(crate) async fn an_upgrade_without_its_read_hold_is_a_loss(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let reader = ours.lease(store.long()).read().await.unwrap();
    delete(store, &ours, Kind::Read, &reader).await;
    let between = theirs.try_write().await.unwrap().expect("no reader is left");
    between.release().await.unwrap();
    let refused = reader.try_upgrade().await.unwrap_err();
    assert_is!(refused.error(), Some(Error::Lost { .. }));
    assert!(refused.error().is_some() && refused.into_guard().is_lost());
    theirs.try_write().await.unwrap().expect("nothing is held").release().await.unwrap();
}

/// What holds the name of something else, and whether it still does.
pub(crate) async fn a_name_of_another_kind_is_rejected(store: &Store) {
    let (client, name) = (store.client().await, store.name("lock"));
    let lock = client.rw_lock(&name);
    let refuses = async || {
        assert_is!(lock.read().await, Err(Error::WrongKind { kind: Kind::Read, .. }));
        assert_is!(lock.write().await, Err(Error::WrongKind { kind: Kind::Write, .. }));
        for side in [lock.reader(), lock.writer()] {
            assert_is!(side.try_lock().await, Err(Error::WrongKind { .. }));
            assert_is!(side.try_lock_for(store.long()).await, Err(Error::WrongKind { .. }));
        }
        assert_is!(lock.inspect().await, Err(Error::WrongKind { .. }));
        assert_is!(lock.reader().is_locked().await, Err(Error::WrongKind { .. }));
        assert_is!(lock.writer().is_locked().await, Err(Error::WrongKind { .. }));
        assert_is!(lock.force_unlock("").await, Err(Error::WrongKind { .. }));
    };
    for lock in [
        AnyLock::from(client.lock(&name)),
        client.mutex(&name).into(),
        client.fair_lock(&name).into(),
        client.spin_lock(&name).into(),
    ] {
        let guard = lock.lease(store.long()).lock().await.unwrap();
        refuses().await;
        assert!(!guard.is_lost());
        guard.release().await.expect("nothing has changed");
    }
    let permits = client.semaphore(&name);
    permits.try_set_permits(3, store.long()).await.unwrap();
    refuses().await;
    assert_eq!(permits.available().await.unwrap(), 3);
    assert_eq!(permits.drain_permits().await.unwrap(), 3);
    assert_eq!(store.traces(&name), 1, "and nothing beside it");
}

pub(crate) async fn the_name_of_a_read_write_lock_is_rejected_for_other_kinds(store: &Store) {
    let (client, name) = (store.client().await, store.name("lock"));
    let lock = client.rw_lock(&name);
    for side in [lock.reader(), lock.writer()] {
        let guard = side.lease(store.long()).lock().await.unwrap();
        for other in [
            AnyLock::from(client.lock(&name)),
            client.mutex(&name).into(),
            client.fair_lock(&name).into(),
            client.fenced_lock(&name).into(),
            client.spin_lock(&name).into(),
        ] {
            assert_is!(other.try_lock().await, Err(Error::WrongKind { .. }));
        }
        assert_is!(client.lock(&name).force_unlock("").await, Err(Error::WrongKind { .. }));
        assert_is!(client.mutex(&name).force_unlock("").await, Err(Error::WrongKind { .. }));
        let (permits, ids) = (client.semaphore(&name), client.permit_semaphore(&name));
        assert_is!(permits.try_set_permits(3, None).await, Err(Error::WrongKind { .. }));
        assert_is!(permits.acquire(1).await, Err(Error::WrongKind { .. }));
        assert_is!(ids.try_set_permits(3, None).await, Err(Error::WrongKind { .. }));
        assert_is!(ids.acquire(1).await, Err(Error::WrongKind { .. }));
        let latch = client.count_down_latch(&name);
        assert_is!(latch.try_set_count(3).await, Err(Error::WrongKind { .. }));
        assert_is!(latch.wait().await, Err(Error::WrongKind { .. }));
        assert_is!(latch.delete().await, Err(Error::WrongKind { .. }));
        let holders = lock.inspect().await.unwrap().holders;
        assert_eq!(holders[0].id, guard.owner_id().to_string());
        assert!(!guard.is_lost());
        guard.release().await.expect("nothing has changed");
        assert_eq!(store.traces(&name), 0);
    }
}

pub(crate) async fn shutdown_releases_both_sides_and_fails_waiters(store: &Store) {
    let (client, name) = (store.client().await, store.name("lock"));
    let (theirs, _) = pair(store).await;
    let lock = client.rw_lock(&name);
    let reader = lock.read().await.unwrap();
    let writer = client.rw_lock(store.name("another")).write().await.unwrap();
    store.receives_notices_of(&reader).await;
    let waits = listening(store, lock.write()).await;
    client.shutdown().await;
    assert_is!(waits.await.unwrap(), Err(Error::Closed { .. }));
    assert_eq!(store.signalled(reader.lost()).await, LostReason::Closed);
    assert_eq!(store.signalled(writer.lost()).await, LostReason::Closed);
    let guard = store.promptly("it is free", theirs.read()).await.unwrap();
    guard.release().await.unwrap();
    eventually("nothing is left", async || store.traces(&name) == 0).await;
    eventually("of either", async || store.traces(&store.name("another")) == 0).await;
    assert_is!(lock.read().await, Err(Error::Closed { .. }));
    assert_is!(lock.write().await, Err(Error::Closed { .. }));
}

/// What an owner does with the lock that it holds is no new acquire.
pub(crate) async fn the_holds_of_a_drained_client_are_used_to_the_end(store: &Store) {
    let client = store.client().await;
    let lock = client.rw_lock(store.name("lock"));
    let writer = lock.write().await.unwrap();
    let waits = listening(store, lock.read()).await;
    let draining = tokio::spawn({
        let client = client.clone();
        async move { client.drain(Duration::from_secs(60)).await }
    });
    assert_is!(waits.await.unwrap(), Err(Error::Closed { .. }));
    let again = writer.reenter().await.unwrap();
    again.release().await.unwrap();
    let reader = writer.downgrade().await.unwrap();
    let writer = reader.try_upgrade().await.unwrap();
    assert_is!(lock.read().await, Err(Error::Closed { .. }));
    client.semaphore(store.name("permits")).try_set_permits(1, None).await.unwrap();
    writer.release().await.unwrap();
    assert!(draining.await.unwrap(), "all was released");
}

pub(crate) async fn work_runs_under_either_side(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let (reader, writer) = (ours.reader(), ours.writer());
    let ran = reader.run(async |_hold| {
        let beside = theirs.reader().run(async |_hold| 7).await.unwrap();
        assert!(
            theirs.writer().try_run_for(Duration::ZERO, async |_hold| ()).await.unwrap().is_none()
        );
        beside.output
    });
    assert_eq!(ran.await.unwrap().output, 7);
    let alone = writer.run(async |_hold| {
        assert!(
            theirs.reader().try_run_for(Duration::ZERO, async |_hold| ()).await.unwrap().is_none()
        );
    });
    alone.await.unwrap();
    assert_eq!(store.traces(&store.name("lock")), 0);
}

/// A reader that came since has a say; one that is dead has none.
pub(crate) async fn a_force_release_with_expected_holders_needs_all_readers(store: &Store) {
    let (name, lease) = (store.name("lock"), store.lease());
    let lock = store.client().await.rw_lock(&name);
    let inspector = store.client().await.inspector();
    let dying = lock.lease(lease).read().await.unwrap();
    let _first = lock.lease(store.long()).read().await.unwrap();
    eventually("one is dead", async || {
        inspector.inspect_as(&name, Kind::Read).await.unwrap().holders.len() == 1
    })
    .await;
    let seen = inspector.inspect_as(&name, Kind::Read).await.unwrap().holders;
    let second = lock.lease(store.long()).read().await.unwrap();
    let refused = inspector.force_unlock(&name, Kind::Read, Some(&seen), "stuck").await;
    assert_is!(refused, Err(Error::NotHeld { .. }));
    second.release().await.unwrap();
    assert!(inspector.force_unlock(&name, Kind::Read, Some(&seen), "stuck").await.unwrap());
    assert!(lock.try_write().await.unwrap().is_some(), "nothing is left of the readers");
    drop(dying);
}
