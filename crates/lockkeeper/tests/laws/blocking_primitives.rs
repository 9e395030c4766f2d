//! The read/write lock, the semaphores and the latch for threads. Real time on every store.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::blocking::{Client, CountDownLatch, PermitSemaphore, RwLock, Semaphore};
use lockkeeper::{Error, Event, Kind, LostReason, Remaining};

use crate::store::{Store, assert_is};

const LONG: Duration = Duration::from_secs(30);
/// A lease that a law waits for, and a wait that times out: much longer than an answer takes.
const SHORT: Duration = Duration::from_secs(1);
/// Far less than [`LONG`], whatever the machine does.
const SOON: Duration = Duration::from_secs(5);

fn client(store: &Store) -> Client {
    Client::connect(store.url()).unwrap()
}

fn rw(store: &Store) -> RwLock {
    client(store).rw_lock(store.name("lock"))
}

fn semaphore(store: &Store, permits: u64) -> Semaphore {
    let semaphore = client(store).semaphore(store.name("permits"));
    semaphore.try_set_permits(permits).unwrap();
    semaphore
}

fn permits(store: &Store, permits: u64) -> PermitSemaphore {
    let semaphore = client(store).permit_semaphore(store.name("permits"));
    semaphore.try_set_permits(permits).unwrap();
    semaphore
}

fn latch(store: &Store, count: u64) -> CountDownLatch {
    let latch = client(store).count_down_latch(store.name("latch"));
    latch.try_set_count(count).unwrap();
    latch
}

/// Looks until it is so.
fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(10);
    while !so() {
        assert!(Instant::now() < limit, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Asks in another thread, which is another owner.
fn elsewhere<T: Send + 'static>(
    lock: &RwLock,
    ask: impl FnOnce(RwLock) -> T + Send + 'static,
) -> T {
    let lock = lock.clone();
    thread::spawn(move || ask(lock)).join().unwrap()
}

pub(crate) fn threads_share_reads_and_exclude_writes(store: &Store) {
    let (inside, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let (one, two) = (rw(store), rw(store));
    let threads: Vec<_> = (0..6)
        .map(|t| {
            let lock = if t % 2 == 0 { one.clone() } else { two.clone() };
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            thread::spawn(move || {
                for cycle in 0..15 {
                    if (t + cycle) % 4 == 0 {
                        let guard = lock.write().unwrap();
                        assert_eq!(inside.fetch_sub(1000, Ordering::SeqCst), 0, "not alone");
                        thread::yield_now();
                        assert_eq!(inside.fetch_add(1000, Ordering::SeqCst), -1000, "not alone");
                        guard.release().unwrap();
                    } else {
                        let guard = lock.read().unwrap();
                        let readers = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(readers > 0, "beside a writer");
                        most.fetch_max(readers, Ordering::SeqCst);
                        thread::sleep(Duration::from_millis(2));
                        assert!(inside.fetch_sub(1, Ordering::SeqCst) > 0, "beside a writer");
                        guard.release().unwrap();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(most.load(Ordering::SeqCst) > 1, "readers never shared it");
    assert_eq!(one.remaining().unwrap(), Remaining::Free);
}

pub(crate) fn a_thread_owns_both_sides(store: &Store) {
    let lock = rw(store);
    let writing = lock.write().unwrap();
    let again = lock.try_write().unwrap().expect("it is its own");
    let reading = lock.read().unwrap();
    let nested = writing.read().unwrap();
    assert_eq!((lock.write_count().unwrap(), lock.read_count().unwrap()), (2, 2));
    assert!(lock.is_write_locked().unwrap() && lock.is_read_locked().unwrap());
    assert_eq!(lock.holders().unwrap().len(), 2);
    let counts = elsewhere(&lock, |lock| {
        assert!(lock.try_read().unwrap().is_none() && lock.try_write().unwrap().is_none());
        assert!(lock.try_read_for(SHORT).unwrap().is_none());
        (lock.write_count().unwrap(), lock.read_count().unwrap())
    });
    assert_eq!(counts, (0, 0), "another thread is another owner");
    again.release().unwrap();
    let downgraded = writing.downgrade().unwrap();
    assert!(!lock.is_write_locked().unwrap());
    assert!(elsewhere(&lock, |lock| lock.try_read().unwrap().map(|g| g.release()).is_some()));
    for guard in [reading, nested, downgraded] {
        guard.release().unwrap();
    }
    assert_eq!(lock.remaining().unwrap(), Remaining::Free);
}

pub(crate) fn a_reading_thread_that_requests_a_write_lock_is_rejected(store: &Store) {
    let lock = rw(store);
    let reading = lock.lease(LONG).read().unwrap();
    let start = Instant::now();
    assert_is!(lock.write(), Err(Error::Invalid { .. }));
    assert_is!(lock.try_write(), Err(Error::Invalid { .. }));
    assert_is!(lock.try_write_for(LONG), Err(Error::Invalid { .. }));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let upgraded = reading.try_upgrade().expect("it is the only reader");
    assert!(elsewhere(&lock, |lock| lock.try_read().unwrap().is_none()));
    let reading = upgraded.downgrade().unwrap();
    let another = rw(store).lease(LONG).read().unwrap();
    let refused = reading.try_upgrade().unwrap_err();
    assert!(refused.is_busy() && refused.error().is_none(), "there are two: {refused}");
    let reading = refused.into_guard();
    another.release().unwrap();
    reading.release().unwrap();
}

pub(crate) fn waiting_threads_are_woken_by_the_writer(store: &Store) {
    let (ours, theirs) = (rw(store), rw(store));
    let writing = ours.lease(LONG).write().unwrap();
    let all = Arc::new(Barrier::new(4));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (lock, all) = (theirs.clone(), Arc::clone(&all));
            thread::spawn(move || {
                let guard = lock.read().unwrap();
                all.wait();
                guard.release().unwrap();
            })
        })
        .collect();
    assert!(theirs.try_write_for(SHORT).unwrap().is_none());
    let start = Instant::now();
    writing.release().unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

pub(crate) fn threads_receive_the_loss_reason_of_both_sides(store: &Store) {
    let lock = rw(store);
    let reading = lock.lease(SHORT).read().unwrap();
    assert_eq!(reading.wait_lost(LONG), Some(LostReason::Expired));
    drop(reading);
    let options = lockkeeper::ClientOptions::new().watchdog_timeout(Duration::from_secs(3));
    let victim = Client::connect_with(store.url(), options).unwrap();
    let writing = victim.rw_lock(store.name("lock")).write().unwrap();
    assert!(lock.force_unlock_because("stuck").unwrap());
    // The notice, or the next renewal, whichever is first.
    let why = writing.wait_lost(LONG).expect("it is told");
    assert_is!(why, LostReason::Revoked(_) | LostReason::Deleted);
    assert_is!(writing.release(), Err(Error::NotHeld { .. }));
    let fenced = lock.fenced();
    let token = || {
        let guard = fenced.write().unwrap();
        let token = guard.token();
        guard.release().unwrap();
        token
    };
    let (first, second) = (token(), token());
    assert!(first > 0 && second > first, "{first:?}, {second:?}");
}

pub(crate) fn threads_share_permits(store: &Store) {
    const PERMITS: i64 = 3;
    let (one, two) = (semaphore(store, PERMITS as u64), semaphore(store, 0));
    let inside = Arc::new(AtomicI64::new(0));
    let threads: Vec<_> = (0..12)
        .map(|t| {
            let semaphore = if t % 2 == 0 { one.clone() } else { two.clone() };
            let inside = Arc::clone(&inside);
            thread::spawn(move || {
                for _ in 0..10 {
                    let permit = semaphore.acquire(1).unwrap();
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= PERMITS, "{now} of {PERMITS}");
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    permit.release().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(one.available().unwrap(), PERMITS);
}

pub(crate) fn permits_are_changed_by_threads(store: &Store) {
    let semaphore = semaphore(store, 3);
    assert!(!semaphore.try_set_permits(9).unwrap());
    assert!(!semaphore.try_set_permits_for(9, LONG).unwrap());
    let two = semaphore.acquire(2).unwrap();
    assert_eq!((two.count(), semaphore.available().unwrap()), (2, 1));
    assert!(semaphore.try_acquire(2).unwrap().is_none());
    let start = Instant::now();
    assert!(semaphore.try_acquire_for(2, SHORT).unwrap().is_none());
    assert!(start.elapsed() >= SHORT && start.elapsed() < SHORT + SOON);
    semaphore.try_acquire(1).unwrap().expect("one is free").forget();
    assert_eq!(semaphore.available().unwrap(), 0);
    semaphore.release(1).unwrap();
    drop(two);
    eventually("it is given back", || semaphore.available().unwrap() == 3);
    assert_eq!(semaphore.add_permits(-1).unwrap(), 2);
    assert_eq!(semaphore.drain_permits().unwrap(), 2);
    let waits = semaphore.clone();
    let waits = thread::spawn(move || waits.acquire(1).unwrap().release().unwrap());
    assert_eq!(semaphore.add_permits(1).unwrap(), 1);
    waits.join().unwrap();
    assert_is!(semaphore.acquire(0), Err(Error::Invalid { .. }));
    let unset = client(store).semaphore(store.name("unset"));
    assert_is!(unset.acquire(1), Err(Error::Invalid { .. }));
    assert_is!(unset.release(1), Err(Error::Invalid { .. }));
}

pub(crate) fn shutdown_releases_the_permits_of_threads(store: &Store) {
    let observer = semaphore(store, 3);
    let closing = client(store);
    let permit = closing.semaphore(store.name("permits")).acquire(2).unwrap();
    assert_eq!(observer.available().unwrap(), 1);
    closing.shutdown();
    assert_eq!(observer.available().unwrap(), 3);
    drop(permit);
    // Kept by the permit alone.
    let permit = client(store).semaphore(store.name("permits")).acquire(2).unwrap();
    assert_eq!(observer.available().unwrap(), 1);
    drop(permit);
    eventually("it is given back", || observer.available().unwrap() == 3);
}

pub(crate) fn permits_with_ids_work_on_threads(store: &Store) {
    let semaphore = permits(store, 4);
    let counts = || {
        (
            semaphore.available().unwrap(),
            semaphore.acquired().unwrap(),
            semaphore.permits().unwrap(),
        )
    };
    assert!(!semaphore.try_set_permits(9).unwrap());
    let one = semaphore.acquire(1).unwrap();
    let two = semaphore.lease(LONG).try_acquire(2).unwrap().expect("there are three");
    assert_eq!((one.permit_ids().len(), two.permit_ids().len()), (1, 2));
    assert_eq!(counts(), (1, 3, 4));
    assert!(semaphore.try_acquire(2).unwrap().is_none());
    assert!(semaphore.try_acquire_for(2, SHORT).unwrap().is_none());
    assert!(semaphore.release(&two.permit_ids()).unwrap());
    assert!(!semaphore.release(&two.permit_ids()).unwrap(), "only once");
    assert_is!(two.release(), Err(Error::NotHeld { .. }));
    assert_eq!(counts(), (3, 1, 4));
    semaphore.set_permits(2).unwrap();
    assert_eq!(semaphore.add_permits(1).unwrap(), 2);
    assert_eq!(counts(), (2, 1, 3));
    one.extend(LONG).unwrap();
    assert!(one.remaining() > LONG / 2);
    let id = one.permit_ids()[0];
    one.leave_for(LONG).unwrap();
    assert!(semaphore.update_lease(id, SHORT).unwrap());
    eventually("it ends", || counts() == (3, 0, 3));
    assert!(!semaphore.update_lease(id, SHORT).unwrap());
    let ended = semaphore.lease(SHORT).acquire(1).unwrap();
    assert_eq!(ended.wait_lost(LONG), Some(LostReason::Expired));
    let waits = semaphore.acquire(3).unwrap();
    assert_eq!(counts(), (0, 3, 3));
    waits.release().unwrap();
}

pub(crate) fn threads_wait_for_a_latch(store: &Store) {
    let (ours, theirs) = (latch(store, 2), latch(store, 2));
    assert!(!theirs.try_set_count(5).unwrap());
    assert!(!theirs.wait_for(SHORT).unwrap());
    let threads: Vec<_> = (0..5)
        .map(|_| {
            let latch = theirs.clone();
            thread::spawn(move || latch.wait().unwrap())
        })
        .collect();
    assert_eq!(ours.count_down().unwrap(), 1);
    assert_eq!(ours.count().unwrap(), 1);
    let start = Instant::now();
    assert_eq!(theirs.count_down().unwrap(), 0);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(ours.wait_for(LONG).unwrap());
    assert!(ours.try_set_count(1).unwrap());
    let latch = theirs.clone();
    let waits = thread::spawn(move || latch.wait_for(LONG).unwrap());
    assert!(ours.delete().unwrap());
    assert!(waits.join().unwrap());
    assert_is!(ours.try_set_count(0), Err(Error::Invalid { .. }));
}

pub(crate) fn threads_list_inspect_force_release_and_watch(store: &Store) {
    let (client, name) = (client(store), store.name("lock"));
    let inspector = client.inspector();
    let mut watch = inspector.watch(store.name("*")).every(SHORT / 20);
    let guard = client.lock(&name).lock().unwrap();
    assert_is!(watch.next(), Some(Ok(Event::Appeared(lock))) if lock.name.as_bytes() == name.as_bytes());
    let many: Vec<_> =
        (0..30).map(|i| client.lock(format!("{name} {i}")).lock().unwrap()).collect();
    let mut listing = inspector.list(store.name("*"));
    let listed: Vec<_> = listing.by_ref().map(|lock| lock.unwrap().name.to_string()).collect();
    assert_eq!(listed.len(), 31);
    assert!(listed.contains(&name) && listing.next().is_none());
    drop(many);
    let looked = inspector.inspect(&name).unwrap();
    assert_eq!((looked.kind, looked.holders.len()), (Kind::Lock, 1));
    assert_eq!(looked.holders[0].id, guard.owner_id().to_string());
    let as_mutex = inspector.inspect_as(&name, Kind::Mutex);
    assert_is!(as_mutex, Err(Error::WrongKind { .. }));
    eventually("it hears notices", || {
        // Where nobody listens yet its own renewal would tell it, much later.
        inspector.inspect(&name).unwrap().since().is_some()
    });
    assert!(inspector.force_unlock(&name, Kind::Lock, "why").unwrap());
    let reason = guard.wait_lost(LONG);
    assert_is!(reason, Some(LostReason::Revoked(_) | LostReason::Deleted));
    let gone = |event: &lockkeeper::Result<Event>| matches!(event, Ok(Event::Gone(lock)) if lock.name.as_bytes() == name.as_bytes());
    assert!(watch.take(200).any(|event| gone(&event)));
    assert!(client.check().unwrap().findings.len() > 3);
}
