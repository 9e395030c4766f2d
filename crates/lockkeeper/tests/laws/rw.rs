//! The read/write lock: sharing, exclusion, waiting, upgrade and downgrade.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{AnyGuard, AnyLock, Error, Result, RwLock};
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::store::{Store, eventually, left};

/// Handles of two clients to one lock.
pub(crate) async fn pair(store: &Store) -> (RwLock, RwLock) {
    let name = store.name("lock");
    (store.client().await.rw_lock(&name), store.client().await.rw_lock(&name))
}

/// Waits in a task of its own, and is known to listen: the first of its client to do so.
pub(crate) async fn listening<T: Send + 'static>(
    store: &Store,
    request: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let name = store.name("lock");
    let before = store.listeners(&name);
    let waiter = tokio::spawn(request);
    eventually("the waiter listens", async || store.listeners(&name) > before).await;
    waiter
}

/// Gives all of them back.
async fn release<G: Into<AnyGuard>>(guards: impl IntoIterator<Item = G>) {
    for guard in guards {
        guard.into().release().await.unwrap();
    }
}

/// How many read, and whether anybody writes.
async fn seen(lock: &RwLock) -> (usize, bool) {
    let holders = lock.inspect().await.unwrap().holders;
    let readers = holders.iter().filter(|holder| holder.shared).count();
    (readers, holders.len() > readers)
}

pub(crate) async fn readers_share_the_lock(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let one = ours.lease(store.long()).read().await.unwrap();
    let two = store.promptly("another reads, too", ours.read()).await.unwrap();
    let three = theirs.try_read().await.unwrap().expect("and one of another client");
    assert_eq!(seen(&ours).await, (3, false));
    assert_ne!(one.owner_id(), two.owner_id());
    release([one, two, three]).await;
    assert_eq!(seen(&ours).await, (0, false));
    assert_eq!(store.traces(&store.name("lock")), 0);
}

pub(crate) async fn a_writer_blocks_readers_and_writers(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let guard = ours.lease(store.long()).write().await.unwrap();
    for lock in [&ours, &theirs] {
        assert!(lock.try_read().await.unwrap().is_none());
        assert!(lock.try_write().await.unwrap().is_none());
    }
    assert_eq!(seen(&theirs).await, (0, true));
    guard.release().await.unwrap();
    assert_eq!(store.traces(&store.name("lock")), 0);
}

pub(crate) async fn a_reader_blocks_writers(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let guard = ours.lease(store.long()).read().await.unwrap();
    assert!(ours.try_write().await.unwrap().is_none());
    assert!(theirs.try_write().await.unwrap().is_none());
    // One attempt is not a wait: it blocks no reader.
    let another = theirs.try_read().await.unwrap().expect("readers share it");
    release([guard, another]).await;
    theirs.try_write().await.unwrap().expect("free").release().await.unwrap();
}

pub(crate) async fn a_contended_write_lock_has_at_most_one_holder(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let (inside, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..12 {
        let lock = if task % 2 == 0 { ours.clone() } else { theirs.clone() };
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        tasks.spawn(async move {
            for cycle in 0..20 {
                if (task + cycle) % 4 == 0 {
                    let guard = lock.write().await.unwrap();
                    assert_eq!(inside.fetch_sub(1000, Ordering::SeqCst), 0, "not alone");
                    tokio::task::yield_now().await;
                    assert_eq!(inside.fetch_add(1000, Ordering::SeqCst), -1000, "not alone");
                    guard.release().await.unwrap();
                } else {
                    let guard = lock.read().await.unwrap();
                    let readers = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(readers > 0, "beside a writer");
                    most.fetch_max(readers, Ordering::SeqCst);
                    sleep(Duration::from_millis(1)).await;
                    assert!(inside.fetch_sub(1, Ordering::SeqCst) > 0, "beside a writer");
                    guard.release().await.unwrap();
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(most.load(Ordering::SeqCst) > 1, "readers never shared it");
    assert_eq!(store.traces(&store.name("lock")), 0);
}

pub(crate) async fn a_writer_acquires_as_soon_as_the_last_reader_releases(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let first = ours.lease(store.long()).read().await.unwrap();
    let last = ours.lease(store.long()).read().await.unwrap();
    store.receives_notices_of(&last).await;
    let mut writer = listening(store, theirs.write()).await;
    first.release().await.unwrap();
    assert!(timeout(Duration::from_millis(50), &mut writer).await.is_err(), "one still reads");
    drop(last);
    let writer = store.promptly("the writer is woken", writer).await.unwrap().unwrap();
    writer.release().await.unwrap();
}

pub(crate) async fn all_waiting_readers_acquire_as_soon_as_the_writer_releases(store: &Store) {
    let (ours, theirs) = pair(store).await;
    for dropped in [false, true] {
        let writer = ours.lease(store.long()).write().await.unwrap();
        store.receives_notices_of(&writer).await;
        // No reader releases before all have acquired.
        let all = Arc::new(Barrier::new(10));
        let read = |lock: &RwLock| {
            let (lock, all) = (lock.clone(), Arc::clone(&all));
            async move {
                let guard = lock.read().await.unwrap();
                all.wait().await;
                guard.release().await.unwrap();
            }
        };
        let mut readers = vec![listening(store, read(&theirs)).await];
        readers.extend((1..10).map(|i| tokio::spawn(read([&ours, &theirs][i % 2]))));
        match dropped {
            true => drop(writer),
            false => writer.release().await.unwrap(),
        }
        for reader in readers {
            store.promptly("the readers are woken", reader).await.unwrap();
        }
    }
}

pub(crate) async fn a_waiter_times_out_while_the_lock_is_busy(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let guard = ours.write().await.unwrap();
    for lock in [&ours, &theirs] {
        for side in [lock.reader(), lock.writer()] {
            let start = store.timer();
            assert!(side.try_lock_for(store.lease()).await.unwrap().is_none());
            start.took(store.lease().mul_f64(0.99), store.lease());
        }
    }
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    eventually("nothing is left", async || store.traces(&store.name("lock")) == 0).await;
}

pub(crate) async fn a_release_within_the_wait_limit_grants_the_lock(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let writer = ours.lease(store.lease()).write().await.unwrap();
    let reader = theirs.lease(store.lease()).try_read_for(store.long()).await.unwrap();
    let reader = reader.expect("the writer's lease ends in time");
    assert!(writer.is_lost());
    let writer = ours.try_write_for(store.long()).await.unwrap();
    let writer = writer.expect("the reader's lease ends in time");
    assert!(reader.is_lost());
    writer.release().await.unwrap();
}

pub(crate) async fn both_sides_can_be_reentered(store: &Store) {
    let client = store.client().await;
    let lock = client.rw_lock(store.name("lock"));
    let owner = client.new_owner();
    let owned = lock.as_owner(&owner);
    for write in [false, true] {
        let side = if write { owned.writer() } else { owned.reader() };
        let (take, try_take) = (|| side.lock(), || side.try_lock());
        let counts = async || {
            let (reads, writes) =
                (lock.reader().hold_count(&owner).await, lock.writer().hold_count(&owner).await);
            let (reads, writes) = (reads.unwrap(), writes.unwrap());
            assert_eq!(if write { reads } else { writes }, 0, "of the other side");
            reads + writes
        };
        let outer = side.lease(store.long()).lock().await.unwrap();
        let second = take().await.unwrap();
        let third = try_take().await.unwrap().expect("it is its own");
        let fourth = side.try_lock_for(store.long()).await.unwrap().expect("it is its own");
        let fifth = outer.reenter().await.unwrap();
        assert_eq!((counts().await, outer.hold_count()), (5, 5));
        assert!(
            [&second, &third, &fourth, &fifth].iter().all(|g| g.owner_id() == outer.owner_id())
        );
        assert_eq!(lock.inspect().await.unwrap().holders.len(), 1, "it is one holder");
        // The first goes first: which guard is which does not matter.
        outer.release().await.unwrap();
        drop(second);
        eventually("the dropped one is taken off", async || counts().await == 3).await;
        release([third, fourth, fifth]).await;
        assert_eq!(counts().await, 0);
        assert_eq!(store.traces(&store.name("lock")), 0);
    }
}

pub(crate) async fn a_holder_reenters_past_a_waiting_writer(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let client = store.client().await;
    let owned = client.rw_lock(store.name("lock")).as_owner(&client.new_owner());
    let reader = owned.lease(store.long()).read().await.unwrap();
    let unnamed = ours.lease(store.long()).read().await.unwrap();
    store.receives_notices_of(&unnamed).await;
    let writer = listening(store, theirs.write()).await;
    eventually("it is known to wait", async || ours.try_read().await.unwrap().is_none()).await;
    let again = store.promptly("a reader re-enters", owned.read()).await.unwrap();
    let once_more = store.promptly("by its guard, too", unnamed.reenter()).await.unwrap();
    release([reader, unnamed, again, once_more]).await;
    let writer = store.promptly("then the writer", writer).await.unwrap().unwrap();
    store.subscriptions_have_ended(&store.name("lock")).await;
    // The same for what is nested in a write lock.
    let waits = listening(store, ours.write()).await;
    let nested = store.promptly("a writer reads", writer.read()).await.unwrap();
    release([AnyGuard::from(nested), writer.into()]).await;
    release([store.promptly("the next", waits).await.unwrap().unwrap()]).await;
}

pub(crate) async fn a_writer_can_read(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let client = store.client().await;
    let (owner, other) = (client.new_owner(), client.new_owner());
    let lock = client.rw_lock(store.name("lock"));
    for named in [false, true] {
        let by = if named { lock.as_owner(&owner) } else { ours.clone() };
        let writer = by.lease(store.long()).write().await.unwrap();
        let nested = store.promptly("it reads, too", writer.read()).await.unwrap();
        let mut guards = vec![nested];
        if named {
            guards.push(store.promptly("by its name", by.read()).await.unwrap());
            guards.push(by.try_read().await.unwrap().expect("by its name"));
            assert_eq!(lock.reader().hold_count(&owner).await.unwrap(), 3);
            assert_eq!(lock.writer().hold_count(&owner).await.unwrap(), 1);
        }
        assert_eq!(seen(&theirs).await, (1, true));
        assert!(theirs.try_read().await.unwrap().is_none(), "it does not let others in");
        assert!(lock.as_owner(&other).try_read().await.unwrap().is_none(), "another owner");
        release(guards).await;
        assert_eq!(seen(&theirs).await, (0, true), "it still writes");
        writer.release().await.unwrap();
        assert_eq!(store.traces(&store.name("lock")), 0);
    }
}

/// Whichever of the two leases is longer.
pub(crate) async fn releasing_a_nested_read_does_not_change_the_write_lease(store: &Store) {
    let (lock, _) = pair(store).await;
    let writer = lock.lease(store.long()).write().await.unwrap();
    for dropped in [false, true] {
        // Renewed, for the watchdog timeout.
        let nested = writer.read().await.unwrap();
        let before = left(lock.inspect().await);
        match dropped {
            true => drop(nested),
            false => nested.release().await.unwrap(),
        }
        eventually("it is taken off", async || seen(&lock).await == (0, true)).await;
        let after = left(lock.inspect().await);
        assert!(before - after < store.slack(), "{before:?} became {after:?}");
        assert!(after > store.long() * 8 / 10, "{after:?}");
    }
    writer.release().await.unwrap();
    // A longer one: its end does not make the lock end with it either.
    let writer = lock.lease(store.long()).write().await.unwrap();
    let nested = writer.read().await.unwrap();
    nested.extend(store.long() * 4).await.unwrap();
    nested.release().await.unwrap();
    assert!(left(lock.inspect().await) > store.long() * 8 / 10);
    assert!(!writer.is_lost());
    writer.release().await.unwrap();
}

pub(crate) async fn a_released_writer_keeps_its_nested_reader(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let writer = ours.lease(store.long()).write().await.unwrap();
    let reader = writer.read().await.unwrap();
    store.receives_notices_of(&reader).await;
    let waits = listening(store, theirs.read()).await;
    writer.release().await.unwrap();
    let another = store.promptly("waiting readers are woken", waits).await.unwrap().unwrap();
    assert_eq!(seen(&theirs).await, (2, false));
    assert!(theirs.try_write().await.unwrap().is_none(), "it is still read");
    assert!(!reader.is_lost());
    release([reader, another]).await;
    assert_eq!(store.traces(&store.name("lock")), 0);
}

pub(crate) async fn a_downgrade_wakes_waiting_readers(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let writer = ours.lease(store.long()).write().await.unwrap();
    store.receives_notices_of(&writer).await;
    let waits = listening(store, theirs.read()).await;
    let reader = writer.downgrade().await.unwrap();
    let another = store.promptly("waiting readers are woken", waits).await.unwrap().unwrap();
    assert_eq!(seen(&theirs).await, (2, false));
    release([reader, another]).await;
    assert_eq!(store.traces(&store.name("lock")), 0);
}

pub(crate) async fn no_writer_acquires_during_a_downgrade(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let (state, written) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..4 {
        let lock = if task % 2 == 0 { ours.clone() } else { theirs.clone() };
        let (state, written) = (Arc::clone(&state), Arc::clone(&written));
        tasks.spawn(async move {
            for cycle in 0..15 {
                let writer = lock.write().await.unwrap();
                let mine = task * 100 + cycle;
                state.store(mine, Ordering::SeqCst);
                let reader = writer.downgrade().await.unwrap();
                tokio::task::yield_now().await;
                assert_eq!(state.load(Ordering::SeqCst), mine, "somebody has written");
                written.fetch_add(1, Ordering::Relaxed);
                reader.release().await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(written.load(Ordering::Relaxed), 60);
}

pub(crate) async fn a_downgrade_of_one_guard_leaves_the_others_writing(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let first = ours.lease(store.long()).write().await.unwrap();
    let second = first.reenter().await.unwrap();
    let reader = first.downgrade().await.unwrap();
    assert_eq!(seen(&theirs).await, (1, true), "the other guard still writes");
    assert!(theirs.try_read().await.unwrap().is_none());
    second.release().await.unwrap();
    assert_eq!(seen(&theirs).await, (1, false));
    release([theirs.try_read().await.unwrap().expect("readers share it"), reader]).await;
}

pub(crate) async fn a_reader_that_requests_a_write_lock_is_rejected_at_once(store: &Store) {
    let (theirs, _) = pair(store).await;
    let client = store.client().await;
    let owner = client.new_owner();
    let lock = client.rw_lock(store.name("lock")).as_owner(&owner);
    let refused = |answer: Result<bool>| match answer {
        Err(Error::Invalid { detail, .. }) => assert!(detail.contains("try_upgrade"), "{detail}"),
        other => panic!("expected Invalid, got {other:?}"),
    };
    let reader = lock.lease(store.long()).read().await.unwrap();
    for with_another in [false, true] {
        let another = match with_another {
            true => theirs.try_read().await.unwrap(),
            false => None,
        };
        let write = async { lock.write().await.map(|_| true) };
        refused(store.promptly("a wait for itself", write).await);
        let write = async { lock.try_write().await.map(|guard| guard.is_some()) };
        refused(store.promptly("an attempt", write).await);
        let write = async { lock.try_write_for(store.long()).await.map(|g| g.is_some()) };
        refused(store.promptly("a wait with a limit", write).await);
        assert_eq!(another.is_some(), with_another);
        release(another).await;
    }
    // Nothing has changed, and no client is blocked.
    assert_eq!(lock.reader().hold_count(&owner).await.unwrap(), 1);
    release([theirs.try_read().await.unwrap().expect("readers share it"), reader]).await;
    lock.try_write().await.unwrap().expect("now it reads no more").release().await.unwrap();
}

pub(crate) async fn the_only_reader_can_upgrade(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let client = store.client().await;
    let owner = client.new_owner();
    let named = client.rw_lock(store.name("lock")).as_owner(&owner);
    for lock in [&ours, &named] {
        let reader = lock.lease(store.long()).read().await.unwrap();
        let twice = reader.reenter().await.unwrap();
        let writer = reader.try_upgrade().await.expect("it is the only reader");
        assert_eq!(seen(&theirs).await, (1, true), "its other guard still reads");
        assert!(theirs.try_read().await.unwrap().is_none());
        writer.release().await.unwrap();
        assert_eq!(seen(&theirs).await, (1, false), "it reads on");
        assert!(!twice.is_lost());
        release([theirs.try_read().await.unwrap().expect("readers share it")]).await;
        // The last of its read guards: it only writes then.
        let writer = twice.try_upgrade().await.expect("it is the only reader");
        assert_eq!(seen(&theirs).await, (0, true));
        assert!(theirs.try_read().await.unwrap().is_none());
        writer.release().await.unwrap();
        assert_eq!(store.traces(&store.name("lock")), 0);
    }
}

pub(crate) async fn one_reader_of_two_cannot_upgrade(store: &Store) {
    let (ours, theirs) = pair(store).await;
    for others in [&ours, &theirs] {
        let reader = ours.lease(store.long()).read().await.unwrap();
        let another = others.lease(store.long()).read().await.unwrap();
        let refused = store.promptly("at once", reader.try_upgrade()).await.unwrap_err();
        assert!(refused.error().is_none(), "{refused:?}");
        let reader = refused.into_guard();
        assert_eq!(seen(&theirs).await, (2, false), "both read on");
        // It does not wait, so no reader waits behind it.
        release([theirs.try_read().await.unwrap().expect("readers share it"), another]).await;
        let writer = reader.try_upgrade().await.expect("now it is the only one");
        release([writer]).await;
    }
}

pub(crate) async fn a_waiting_writer_does_not_block_an_upgrade(store: &Store) {
    let (ours, theirs) = pair(store).await;
    for waits in [&ours, &theirs] {
        let reader = ours.lease(store.long()).read().await.unwrap();
        store.receives_notices_of(&reader).await;
        let waiter = listening(store, waits.write()).await;
        let writer = store.promptly("it does not wait", reader.try_upgrade()).await;
        let reader = writer.expect("it is the only reader").downgrade().await.unwrap();
        assert!(!waiter.is_finished(), "it is still read");
        reader.release().await.unwrap();
        let waiter = store.promptly("then the other", waiter).await.unwrap().unwrap();
        waiter.release().await.unwrap();
    }
}

pub(crate) async fn a_cancelled_writer_stops_blocking_readers_at_once(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let name = store.name("lock");
    for gives_up in [false, true] {
        let turn = async || {
            let reader = ours.lease(store.long()).read().await.unwrap();
            store.receives_notices_of(&reader).await;
            let before = store.listeners(&name);
            let limit = if gives_up { store.long() / 10 } else { store.long() };
            let writer = listening(store, theirs.try_write_for(limit)).await;
            let kept_out = async || ours.try_read().await.unwrap().is_none();
            eventually("it keeps others out", kept_out).await;
            let waits = tokio::spawn(ours.read());
            match gives_up {
                false => writer.abort(),
                true => assert!(writer.await.unwrap().unwrap().is_none()),
            }
            let start = Instant::now();
            let another = waits.await.unwrap().unwrap();
            release([ours.read().await.unwrap(), another]).await;
            let took = start.elapsed();
            eventually("no subscriber is left", async || store.listeners(&name) <= before).await;
            reader.release().await.unwrap();
            eventually("nothing is left", async || store.traces(&name) == 0).await;
            took
        };
        store.is_notified("no waiter is left", turn).await;
    }
}

pub(crate) async fn a_cancelled_reader_leaves_nothing_behind(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let name = store.name("lock");
    let writer = ours.lease(store.long()).write().await.unwrap();
    store.receives_notices_of(&writer).await;
    let before = store.listeners(&name);
    let waits = listening(store, theirs.read()).await;
    waits.abort();
    eventually("it listens no longer", async || store.listeners(&name) == before).await;
    writer.release().await.unwrap();
    assert_eq!(store.traces(&name), 0);
    theirs.try_write().await.unwrap().expect("no reader is left").release().await.unwrap();
}

pub(crate) async fn random_cancellations_leave_nothing_behind(store: &Store) {
    let (ours, theirs) = pair(store).await;
    let span = |micros: u64| Duration::from_micros(micros * 9);
    for micros in 0..80 {
        let reader = ours.lease(store.long()).read();
        let reader = timeout(span(micros), reader).await.ok().map(|reader| reader.unwrap());
        for lock in [&ours, &theirs] {
            let writer = lock.lease(store.long()).write();
            let _ = timeout(span(micros), writer).await;
            let another = lock.lease(store.long()).read();
            let _ = timeout(span(80 - micros), another).await;
        }
        if let Some(reader) = reader {
            let _ = timeout(span(micros), async { reader.reenter().await?.release().await }).await;
            let _ = timeout(span(micros), reader.try_upgrade()).await;
        }
        let writer = theirs.lease(store.long()).write();
        if let Ok(writer) = timeout(span(micros) * 4, writer).await {
            let _ = timeout(span(80 - micros), writer.unwrap().downgrade()).await;
        }
    }
    for lock in [&ours, &theirs] {
        let guard = store.promptly("it is free", lock.write()).await.unwrap();
        guard.release().await.unwrap();
    }
    eventually("nothing is left", async || store.traces(&store.name("lock")) == 0).await;
}

/// How long `turn` waits for its turn while the others never stop.
async fn beside_a_crowd(
    store: &Store,
    crowd: usize,
    busy: impl Fn(RwLock) -> AnyLock + Copy + Send + 'static,
    turn: impl Fn(RwLock) -> AnyLock,
    (hold, within): (Duration, Duration),
) {
    let (ours, theirs) = pair(store).await;
    let turns = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..crowd {
        let lock = if task % 2 == 0 { ours.clone() } else { theirs.clone() };
        let turns = Arc::clone(&turns);
        tasks.spawn(async move {
            loop {
                let start = Instant::now();
                let guard = busy(lock.clone()).lock().await.unwrap();
                // Much longer than taking it took, and never all in step, so that they overlap.
                let took = start.elapsed() * 5;
                sleep(took.clamp(hold, hold * 10) + hold * task as u32 / 3).await;
                turns.fetch_add(1, Ordering::Relaxed);
                guard.release().await.unwrap();
            }
        });
    }
    let so_far = || turns.load(Ordering::Relaxed);
    eventually("they are at it", async || so_far() >= 5 * crowd as u64).await;
    let lock = store.client().await.rw_lock(store.name("lock"));
    for _ in 0..3 {
        let start = store.timer();
        let guard = timeout(within * 3, turn(lock.clone()).lock()).await;
        let (guard, took) = (guard.expect("it was starved").unwrap(), start.elapsed());
        assert!(took < within, "{took:?}");
        guard.release().await.unwrap();
        let before = so_far();
        eventually("they go on", async || so_far() > before + 2 * crowd as u64).await;
    }
    tasks.shutdown().await;
    eventually("nothing is left", async || store.traces(&store.name("lock")) == 0).await;
}

pub(crate) async fn a_stream_of_readers_does_not_starve_a_writer(store: &Store) {
    let times = (Duration::from_millis(20), Duration::from_secs(2) + store.slack());
    beside_a_crowd(store, 8, |lock| lock.reader(), |lock| lock.writer(), times).await;
}

/// Readers wait for at most five seconds behind writers.
pub(crate) async fn a_stream_of_writers_does_not_starve_a_reader(store: &Store) {
    let times = (Duration::from_millis(3), Duration::from_secs(8));
    beside_a_crowd(store, 6, |lock| lock.writer(), |lock| lock.reader(), times).await;
}
