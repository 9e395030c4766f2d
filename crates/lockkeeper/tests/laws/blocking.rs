//! Clients for threads: whose thread is the owner, what keeps the client alive, and misuse in async code. What a
//! lock does is said by the other laws, which use the same types. Real time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join;
use lockkeeper::blocking::{self, Wait, this_thread};
use lockkeeper::{
    AnyLock, Client, ClientOptions, Error, LockGuard, MultiLock, Owner, RunError, Ttl,
};
use testkit::{History, Stopwatch};
use tokio::runtime::{Builder, Runtime};

use crate::store::{Store, assert_is};

/// A lease that nobody waits for.
const LONG: Duration = Duration::from_secs(30);
/// A lease or a wait limit that passes: much longer than an answer takes.
const SHORT: Duration = Duration::from_secs(1);
/// A machine may stand still for two seconds without a lock being lost.
const WATCHDOG: Duration = Duration::from_secs(3);
/// Far less than [`LONG`], whatever the machine does.
const SOON: Duration = Duration::from_secs(10);

fn client(store: &Store) -> Client {
    blocking::connect(store.url()).unwrap()
}

/// Looks until it is so.
fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + LONG;
    while !so() {
        assert!(Instant::now() < limit, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    thread::spawn(work).join().unwrap()
}

/// Does `work` in a thread, and returns once that is about to begin.
fn begin<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    let (begins, begun) = mpsc::channel();
    let thread = thread::spawn(move || {
        begins.send(()).unwrap();
        work()
    });
    begun.recv().unwrap();
    thread
}

pub(crate) fn threads_exclude_each_other_and_re_enter(store: &Store) {
    let history = History::new();
    let (one, two) = (client(store), client(store));
    let threads: Vec<_> = (0..6)
        .map(|t| {
            let lock = if t % 2 == 0 { &one } else { &two }.lock(store.name("lock"));
            let (history, me) = (history.clone(), format!("thread {t}"));
            thread::spawn(move || {
                for _ in 0..20 {
                    let (outer, inner) = (lock.lock().wait().unwrap(), lock.lock().wait().unwrap());
                    history.granted("it", &me, None);
                    outer.release().wait().unwrap();
                    thread::yield_now();
                    history.released("it", &me);
                    inner.release().wait().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(history.grants(), 120);
    history.assert_valid();
    assert!(!one.lock(store.name("lock")).is_locked().wait().unwrap());
}

/// The runtime has its own thread: leases are renewed between calls, also for a guard alone.
pub(crate) fn the_watchdog_renews_while_the_thread_sleeps(store: &Store) {
    let options = ClientOptions::new().watchdog_timeout(WATCHDOG);
    let client = blocking::connect_with(store.url(), options).unwrap();
    let guard = client.lock(store.name("lock")).lock().wait().unwrap();
    drop(client);
    let observer = self::client(store).lock(store.name("lock"));
    let mut least = Duration::MAX;
    eventually("the TTL grows", || {
        let Some(Ttl::For(left)) = observer.inspect().wait().unwrap().ttl else {
            panic!("it was not renewed");
        };
        let grown = left > least;
        least = least.min(left);
        grown
    });
    assert!(!guard.is_lost());
    guard.release().wait().unwrap();
}

/// What a thread can say of every lock that is reentrant.
macro_rules! is_reentrant_per_thread {
    ($store:ident, $make:ident) => {{
        let client = client($store);
        let (lock, me) = (client.$make($store.name(stringify!($make))), this_thread(&client));
        let outer = lock.lock().wait().unwrap();
        let guards = [
            lock.lease(LONG).lock().wait().unwrap(),
            lock.try_lock().wait().unwrap().expect("it is its own"),
            lock.try_lock_for(SHORT).wait().unwrap().expect("it is its own"),
            lock.as_owner(&me).lock().wait().unwrap(),
            outer.reenter().wait().unwrap(),
        ];
        let any = AnyLock::from(lock.clone()).lock().wait().unwrap();
        assert!(guards.iter().all(|guard| guard.owner_id() == outer.owner_id()));
        assert_eq!(lock.hold_count(&me).wait().unwrap(), 7);
        assert!(lock.hold_count(&me).wait().unwrap() > 0);
        let (theirs, at) = (lock.clone(), client.clone());
        elsewhere(move || {
            let me = this_thread(&at);
            assert!(theirs.hold_count(&me).wait().unwrap() == 0);
            assert!(theirs.try_lock().wait().unwrap().is_none());
            let waited = theirs.try_lock_for(SHORT).wait().unwrap();
            assert!(waited.is_none(), "another thread is another owner");
        });
        let ran = lock.run(async |hold| hold.owner_id()).wait().unwrap();
        assert_eq!(ran.output, outer.owner_id());
        for guard in guards {
            guard.release().wait().unwrap();
        }
        any.release().wait().unwrap();
        outer.release().wait().unwrap();
        assert!(!lock.is_locked().wait().unwrap());
    }};
}

pub(crate) fn every_kind_is_reentrant_per_thread(store: &Store) {
    is_reentrant_per_thread!(store, lock);
    is_reentrant_per_thread!(store, fair_lock);
    is_reentrant_per_thread!(store, fenced_lock);
    is_reentrant_per_thread!(store, spin_lock);
}

pub(crate) fn a_thread_owns_both_sides(store: &Store) {
    let client = client(store);
    let (lock, me) = (client.rw_lock(store.name("lock")), this_thread(&client));
    let writing = lock.write().wait().unwrap();
    let again = lock.try_write().wait().unwrap().expect("it is its own");
    let reading = lock.read().wait().unwrap();
    let counts = |of: &Owner| {
        (lock.writer().hold_count(of).wait().unwrap(), lock.reader().hold_count(of).wait().unwrap())
    };
    assert_eq!(counts(&me), (2, 1));
    let (theirs, at) = (lock.clone(), client.clone());
    let other = elsewhere(move || {
        assert!(theirs.try_read_for(SHORT).wait().unwrap().is_none());
        assert!(theirs.try_write().wait().unwrap().is_none());
        this_thread(&at)
    });
    assert_eq!(counts(&other), (0, 0), "another thread is another owner");
    again.release().wait().unwrap();
    let downgraded = writing.downgrade().wait().unwrap();
    reading.release().wait().unwrap();
    // It would wait for itself.
    assert_is!(lock.write().wait(), Err(Error::Invalid { .. }));
    assert_is!(lock.try_write_for(LONG).wait(), Err(Error::Invalid { .. }));
    let writing = downgraded.try_upgrade().wait().expect("it is the only reader");
    writing.release().wait().unwrap();
    assert_eq!(lock.inspect().wait().unwrap().ttl, None);
}

pub(crate) fn a_thread_cannot_re_enter_a_non_reentrant_lock(store: &Store) {
    let client = client(store);
    let lock = client.lock(store.name("lock")).non_reentrant();
    let guard = lock.lock().wait().unwrap();
    assert_is!(lock.lock().wait(), Err(Error::Invalid { .. }));
    assert_is!(lock.try_lock_for(LONG).wait(), Err(Error::Invalid { .. }));
    guard.release().wait().unwrap();
    let mutex = client.mutex(store.name("mutex"));
    let guard = mutex.lock().wait().unwrap();
    assert!(mutex.try_lock().wait().unwrap().is_none(), "it is the guard's");
    guard.release().wait().unwrap();
    lock.lock().wait().unwrap().release().wait().unwrap();
}

pub(crate) fn the_thread_that_calls_is_the_owner(store: &Store) {
    let client = client(store);
    let (lock, me) = (client.lock(store.name("lock")), this_thread(&client));
    let called = lock.lock();
    let guard = elsewhere(move || called.wait().unwrap());
    assert_eq!(lock.hold_count(&me).wait().unwrap(), 1);
    let again = lock.try_lock().wait().unwrap().expect("it is its own");
    // Another thread may release it.
    elsewhere(move || guard.release().wait().unwrap());
    again.release().wait().unwrap();
    assert!(!lock.is_locked().wait().unwrap());
}

pub(crate) fn a_multi_lock_is_held_by_its_guard(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let (a, b) = (ours.lock(store.name("a")), theirs.rw_lock(store.name("b")));
    let multi = MultiLock::new([AnyLock::from(a.clone()), b.writer()]);
    let guard = multi.lock().wait().unwrap();
    assert!(multi.try_lock().wait().unwrap().is_none());
    assert!(a.try_lock().wait().unwrap().is_none(), "not by the thread");
    guard.release().wait().unwrap();
    let ran = multi.run(async |holds| holds.len()).wait().unwrap();
    assert_eq!(ran.output, 2);
    // The guard alone keeps the clients of its members.
    let guard = multi.lock().wait().unwrap();
    let observer = client(store).lock(store.name("a"));
    drop((multi, ours, theirs, a, b));
    assert!(!guard.is_lost() && observer.is_locked().wait().unwrap());
    drop(guard);
    assert!(!observer.is_locked().wait().unwrap(), "dropped, it waits");
}

pub(crate) fn run_holds_the_lock_while_the_thread_works(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let (lock, other) = (ours.lock(store.name("lock")), theirs.lock(store.name("lock")));
    let me = this_thread(&ours);
    // The work waits for requests and for further locks.
    let ran = lock.run(async |hold| {
        assert!(!hold.is_lost());
        assert!(other.try_lock().wait().unwrap().is_none());
        let again = lock.lock().wait().unwrap();
        assert_eq!(lock.hold_count(&me).await.unwrap(), 2);
        again.release().await.unwrap();
        lock.run(async |_| "done").wait().unwrap().output
    });
    assert_eq!(ran.wait().unwrap().output, "done");
    let held = other.lock().wait().unwrap();
    let never = AtomicU32::new(0);
    let work = async |_| never.fetch_add(1, Ordering::Relaxed);
    assert!(lock.try_run_for(Duration::ZERO, work).wait().unwrap().is_none());
    assert!(lock.try_run_for(SHORT, work).wait().unwrap().is_none());
    assert_eq!(never.into_inner(), 0);
    held.release().wait().unwrap();
}

pub(crate) fn the_last_drop_waits_for_the_release(store: &Store) {
    type End = fn(Client, LockGuard);
    let observer = client(store);
    let semaphore = observer.semaphore(store.name("semaphore"));
    semaphore.try_set_permits(1, None).wait().unwrap();
    let ends: [End; 7] = [
        |client, guard| drop((guard, client)),
        |client, guard| drop((client, guard)),
        |client, guard| {
            let handle = client.mutex("another");
            drop((client, guard, handle));
        },
        |client, guard| {
            let inspector = client.inspector();
            drop((guard, client, inspector.list("*")));
        },
        // Never polled, and polled.
        |client, guard| drop((client, guard.release()).1),
        |client, guard| (client, guard.release()).1.wait().unwrap(),
        |client, guard| drop((client.lock("another").lock(), client, guard)),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let client = client(store);
        let lock = client.lock(store.name("lock"));
        let guard = lock.lock().wait().unwrap();
        let permit = client.semaphore(store.name("semaphore")).acquire(1).wait().unwrap();
        drop(lock);
        if number % 2 == 0 {
            drop(permit);
            end(client, guard);
        } else {
            end(client, guard);
            drop(permit);
        }
        assert!(!observer.lock(store.name("lock")).is_locked().wait().unwrap(), "{number}");
        assert_eq!(semaphore.available().wait().unwrap(), 1, "{number}");
    }
    // After a shutdown, and after it was abandoned, there is nothing to wait for.
    for end in [|client: &Client| client.shutdown().wait(), Client::abandon] {
        let ours = client(store);
        let guard = ours.lock(store.name("lock")).lease(SHORT).lock().wait().unwrap();
        end(&ours);
        let watch = Stopwatch::start();
        drop((guard, ours));
        assert!(watch.elapsed() < SOON, "{:?}", watch.elapsed());
    }
}

pub(crate) fn the_last_drop_may_be_in_a_task(store: &Store) {
    let ours = client(store);
    let guard = ours.lock(store.name("lock")).lock().wait().unwrap();
    runtime().block_on(async { tokio::spawn(async { drop((ours, guard)) }).await.unwrap() });
    assert!(!client(store).lock(store.name("lock")).is_locked().wait().unwrap());
}

pub(crate) fn a_pending_acquire_keeps_its_client_alive(store: &Store) {
    let guard = client(store).lock(store.name("lock")).lock().wait().unwrap();
    let waiting = client(store).lock(store.name("lock")).lock();
    let thread = begin(move || waiting.wait().unwrap());
    thread::sleep(Duration::from_millis(20));
    guard.release().wait().unwrap();
    let guard = thread.join().unwrap();
    assert!(!guard.is_lost());
    guard.release().wait().unwrap();
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[track_caller]
fn assert_says<T>(outcome: Result<T, Error>, words: &str) {
    let Err(error @ Error::Invalid { .. }) = outcome else { panic!("{:?}", outcome.err()) };
    assert!(error.to_string().contains(words), "{error}");
}

/// Two tasks on one thread must not pass for one owner, whatever polls them.
pub(crate) fn an_acquire_that_is_awaited_fails(store: &Store) {
    let client = client(store);
    let lock = client.lock(store.name("lock"));
    let advice = "write .wait(), or make the client with Client::connect";
    let awaited = async || {
        assert_says(lock.lock().await, advice);
        assert_says(lock.try_lock_for(SHORT).await, advice);
        assert_says(client.rw_lock(store.name("rw")).read().await, advice);
        assert_says(client.mutex(store.name("mutex")).lock().await, advice);
        let multi = MultiLock::new([lock.clone()]);
        assert_says(multi.try_lock().await, advice);
        assert_is!(lock.run(async |_| ()).await, Err(RunError::Acquire(Error::Invalid { .. })));
        assert_is!(multi.run(async |_| ()).await, Err(RunError::Acquire(Error::Invalid { .. })));
        // What has no owner may be awaited.
        assert!(!client.lock(store.name("free")).is_locked().await.unwrap());
    };
    runtime().block_on(awaited());
    // Also in a wait, which may join several tasks.
    join(awaited(), awaited()).wait();
    lock.run(async |_| awaited().await).wait().unwrap();
    // Acquires that one wait joins are the caller's.
    let (one, two) = join(lock.lock(), lock.lock()).wait();
    assert_eq!(lock.hold_count(&this_thread(&client)).wait().unwrap(), 2);
    drop((one.unwrap(), two.unwrap()));
}

pub(crate) fn wait_in_async_code_fails_instead_of_blocking(store: &Store) {
    let (ours, url) = (client(store), store.url().to_owned());
    let lock = ours.lock(store.name("lock"));
    let guard = lock.lock().wait().unwrap();
    let many = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let theirs = many.block_on(Client::connect(&url)).unwrap();
    let other = theirs.lock(store.name("other"));
    let in_async_code = || {
        let advice = "write .await";
        for client in [&ours, &theirs] {
            let (lock, semaphore) = (client.lock(store.name("new")), client.semaphore("s"));
            assert_says(lock.lock().wait(), advice);
            assert_says(lock.is_locked().wait(), advice);
            assert_says(async { lock.try_lock().await }.wait(), advice);
            assert_says(semaphore.try_set_permits(1, None).wait(), advice);
            assert_says(client.count_down_latch("l").wait().wait(), advice);
            assert_says(client.inspector().inspect("new").wait(), advice);
            assert_says(client.check().wait(), advice);
            assert_says(MultiLock::new([lock]).lock().wait(), advice);
        }
        assert_says(guard.extend(LONG).wait(), advice);
        assert_says(guard.reenter().wait(), advice);
        assert_says(blocking::connect(&url), "write Client::connect(…).await");
        // Any other future is polled once.
        assert_eq!(async { 7 }.wait(), 7);
        let pending = catch_unwind(AssertUnwindSafe(|| guard.lost().wait())).unwrap_err();
        let said = pending.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| pending.downcast_ref::<&str>().copied());
        assert!(said.is_some_and(|said| said.contains(advice)), "{said:?}");
    };
    many.block_on(async { in_async_code() });
    runtime().block_on(async { in_async_code() });
    thread::scope(|scope| {
        let task = async { in_async_code() };
        // A poll of a worker, not of `block_on`.
        scope.spawn(|| tokio::task::LocalSet::new().block_on(&runtime(), task));
    });
    // A release that fails so is done all the same.
    let advised = runtime().block_on(async { guard.release().wait() });
    assert_says(advised, "write .await");
    eventually("it is released", || !lock.is_locked().wait().unwrap());
    // Where tokio lets a thread block it waits.
    many.block_on(async {
        let (blocks, other) = (lock.clone(), other.clone());
        let work = move || {
            blocks.lock().wait().unwrap().release().wait().unwrap();
            other.lock().wait().unwrap().release().wait().unwrap();
        };
        tokio::spawn(async { tokio::task::block_in_place(work) }).await.unwrap();
        let work = move || lock.lock().wait().unwrap().release().wait().unwrap();
        tokio::task::spawn_blocking(work).await.unwrap();
    });
    let _entered = many.enter();
    other.lock().wait().unwrap().release().wait().unwrap();
}
