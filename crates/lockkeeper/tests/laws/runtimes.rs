//! The end of a runtime, and other executors.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use lockkeeper::blocking::Wait;
use lockkeeper::{
    AnyLock, Client, Error, Lock, LockGuard, LostReason, MultiLock, RunError, Ttl, blocking,
};
use tokio::runtime::{Builder, Runtime};

use crate::store::{Store, assert_is};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Holds a lock in a runtime that then ends.
fn orphan(store: &Store, lease: Option<Duration>) -> (Client, Lock, LockGuard) {
    let runtime = runtime();
    runtime.block_on(async {
        let client = store.client().await;
        let lock = client.lock(store.name("lock"));
        let guard = match lease {
            Some(lease) => lock.lease(lease).lock().await.unwrap(),
            None => lock.lock().await.unwrap(),
        };
        assert!(!guard.is_lost());
        (client, lock, guard)
    })
}

pub(crate) fn locks_are_lost_when_their_runtime_ends(store: &Store) {
    let (_client, _lock, guard) = orphan(store, Some(store.long()));
    assert!(guard.is_lost());
    assert_eq!(runtime().block_on(guard.lost()), LostReason::Closed);
    assert_eq!(guard.remaining(), Duration::ZERO);
}

pub(crate) fn lost_resolves_when_the_runtime_ends(store: &Store) {
    let first = runtime();
    let guard = first.block_on(async {
        let lock = store.client().await.lock(store.name("lock"));
        lock.lease(store.long()).lock().await.unwrap()
    });
    let lost = guard.lost();
    let elsewhere = thread::spawn(move || runtime().block_on(lost));
    drop(first);
    assert_eq!(elsewhere.join().unwrap(), LostReason::Closed);
}

pub(crate) fn a_client_whose_runtime_ended_is_closed(store: &Store) {
    let (client, lock, guard) = orphan(store, Some(store.long()));
    let other = client.lock(store.name("other"));
    runtime().block_on(async {
        assert_is!(lock.try_lock().await, Err(Error::Closed { .. }));
        assert_is!(other.lock().await, Err(Error::Closed { .. }));
        assert_is!(lock.is_locked().await, Err(Error::Closed { .. }));
    });
    drop(guard);
}

pub(crate) fn a_lock_whose_runtime_ended_is_free_after_its_lease(store: &Store) {
    let lease = Duration::from_secs(1);
    let start = Instant::now();
    let (_client, _lock, _guard) = orphan(store, Some(lease));
    let next = blocking::connect(store.url()).unwrap().lock(store.name("lock"));
    let next = next.lock().wait().unwrap();
    let took = start.elapsed();
    assert!(took >= lease.mul_f64(0.95), "{took:?}");
    assert!(took < lease * 8, "{took:?}");
    next.release().wait().unwrap();
}

/// Guards may be used from another runtime than the client's, as long as that one runs.
pub(crate) fn a_guard_may_be_released_on_another_runtime(store: &Store) {
    let home = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, guard) = home.block_on(async {
        let client = store.client().await;
        let guard = client.lock(store.name("lock")).lease(store.long()).lock().await.unwrap();
        (client, guard)
    });
    runtime().block_on(async {
        guard.release().await.unwrap();
        let guard = client.lock(store.name("lock")).try_lock().await.unwrap();
        assert!(guard.is_some(), "it is free, and may be taken from here, too");
    });
}

pub(crate) fn after_the_runtime_ended_every_release_is_closed(store: &Store) {
    let home = runtime();
    let (lock, left, permit, plain) = home.block_on(async {
        let client = store.client().await;
        let permits = client.permit_semaphore(store.name("permits"));
        permits.set_permits(1).await.unwrap();
        let semaphore = client.semaphore(store.name("semaphore"));
        semaphore.try_set_permits(1, None).await.unwrap();
        let lock = client.lock(store.name("lock")).lock().await.unwrap();
        let left = client.mutex(store.name("left")).lock().await.unwrap();
        (lock, left, permits.acquire(1).await.unwrap(), semaphore.acquire(1).await.unwrap())
    });
    drop(home);
    runtime().block_on(async {
        assert_is!(lock.release().await, Err(Error::Closed { .. }));
        assert_is!(left.leave_for(store.long()).await, Err(Error::Closed { .. }));
    });
    block_on(async {
        assert_is!(permit.release().await, Err(Error::Closed { .. }));
        assert_is!(plain.release().await, Err(Error::Closed { .. }));
    });
    // As if the process had died.
    let observer = blocking::connect(store.url()).unwrap();
    assert!(observer.lock(store.name("lock")).is_locked().wait().unwrap());
    assert_eq!(observer.semaphore(store.name("semaphore")).available().wait().unwrap(), 0);
}

/// Wakes up a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn unpark() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

/// An executor that knows nothing of tokio.
fn block_on<W: Future>(work: W) -> W::Output {
    let waker = unpark();
    let mut work = pin!(work);
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        thread::park();
    }
}

/// A runtime that runs by itself, as `#[tokio::main]` makes one.
fn home() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A wait that is to time out.
const SHORT: Duration = Duration::from_millis(100);

pub(crate) fn every_future_works_on_any_executor(store: &Store) {
    let home = home();
    let (ours, theirs) = home.block_on(async { (store.client().await, store.client().await) });
    let long = store.long();
    block_on(async {
        let (lock, other) = (ours.lock(store.name("lock")), theirs.lock(store.name("lock")));
        let guard = lock.lock().await.unwrap();
        let again = guard.reenter().await.unwrap();
        again.extend(long).await.unwrap();
        again.release().await.unwrap();
        assert!(lock.try_lock_for(SHORT).await.unwrap().is_none(), "behind its own client");
        assert!(other.try_lock_for(SHORT).await.unwrap().is_none(), "behind another");
        let (lost, waiter) = (guard.lost(), thread::spawn(move || block_on(other.lock())));
        guard.release().await.unwrap();
        assert_eq!(lost.await, LostReason::Released);
        waiter.join().unwrap().unwrap().leave_for(SHORT).await.unwrap();
        let ran = lock.run(async |hold| hold.remaining()).await.unwrap();
        assert!(ran.output > Duration::ZERO);

        for fair in [false, true] {
            let name = store.name(if fair { "fair" } else { "spin" });
            let wait = |client: &Client| {
                let lock: AnyLock = match fair {
                    true => client.fair_lock(&name).into(),
                    false => client.spin_lock(&name).into(),
                };
                lock.try_lock_for(SHORT)
            };
            let guard = wait(&ours).await.unwrap().expect("it is free");
            assert!(wait(&theirs).await.unwrap().is_none());
            guard.release().await.unwrap();
        }
        let both = MultiLock::new([ours.lock(store.name("a")), theirs.lock(store.name("b"))]);
        let all = both.lock().await.unwrap();
        assert!(both.try_lock_for(SHORT).await.unwrap().is_none());
        all.release().await.unwrap();

        let rw = ours.rw_lock(store.name("rw"));
        let writing = rw.write().await.unwrap();
        let reading = writing.read().await.unwrap();
        let downgraded = writing.downgrade().await.unwrap();
        reading.release().await.unwrap();
        downgraded.try_upgrade().await.expect("alone").release().await.unwrap();
        assert!(rw.inspect().await.unwrap().holders.is_empty());
    });
    block_on(async {
        let semaphore = ours.semaphore(store.name("semaphore"));
        semaphore.try_set_permits(1, None).await.unwrap();
        let permit = semaphore.acquire(1).await.unwrap();
        assert!(semaphore.try_acquire_for(1, SHORT).await.unwrap().is_none());
        permit.release().await.unwrap();
        let permits = ours.permit_semaphore(store.name("permits"));
        permits.set_permits(1).await.unwrap();
        let guard = permits.lease(long).acquire(1).await.unwrap();
        assert!(permits.try_acquire_for(1, SHORT).await.unwrap().is_none());
        assert_is!(permits.remaining(guard.permit_ids()[0]).await, Ok(Some(Ttl::For(_))));
        guard.release().await.unwrap();
        let latch = ours.count_down_latch(store.name("latch"));
        latch.try_set_count(1).await.unwrap();
        assert!(!latch.wait_for(SHORT).await.unwrap());
        latch.count_down().await.unwrap();
        latch.wait().await.unwrap();

        let held = theirs.lock(store.name("held")).lease(long).lock().await.unwrap();
        let inspector = ours.inspector();
        assert_eq!(inspector.inspect(store.name("held")).await.unwrap().holders.len(), 1);
        let mut watch = inspector.watch(store.name("held")).every(SHORT);
        watch.next().await.unwrap();
        watch.look().await.unwrap();
        assert!(inspector.list(store.name("held")).next().await.unwrap().is_some());
        assert!(ours.lock(store.name("held")).force_unlock("").await.unwrap());
        drop(held);
        ours.check().await.unwrap();
        ours.shutdown().await;
        assert_is!(ours.lock(store.name("new")).lock().await, Err(Error::Closed { .. }));
    });
}

pub(crate) fn guards_may_be_dropped_on_any_executor(store: &Store) {
    let home = home();
    let (ours, theirs) = home.block_on(async { (store.client().await, store.client().await) });
    let (lock, other) = (ours.lock(store.name("lock")), theirs.lock(store.name("lock")));
    block_on(async {
        drop(lock.lease(store.long()).lock().await.unwrap());
        let guard = other.lease(store.long()).lock().await.unwrap();
        // Begun, and dropped half-way.
        let mut waiting = pin!(lock.lock());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        let mut releasing = Box::pin(guard.release());
        let _ = releasing.as_mut().poll(&mut cx);
    });
    let lock = home.block_on(async { store.client().await.lock(store.name("lock")) });
    block_on(async { lock.lock().await.unwrap().release().await.unwrap() });
}

pub(crate) fn a_wait_on_another_executor_ends_when_the_runtime_ends(store: &Store) {
    let (home, elsewhere) = (home(), home());
    let guard = elsewhere.block_on(async {
        store.client().await.lock(store.name("lock")).lease(store.long()).lock().await.unwrap()
    });
    let client = home.block_on(store.client());
    let (first, second) = (client.lock(store.name("lock")), client.lock(store.name("lock")));
    // The first asks the store, the second queues behind it.
    let mut waiting = Box::pin(first.lock());
    assert!(crate::store::poll_once(&mut waiting).is_pending());
    let mut queued = Box::pin(second.lock());
    assert!(crate::store::poll_once(&mut queued).is_pending());
    let threads = [waiting, queued].map(|work| thread::spawn(move || block_on(work)));
    drop(home);
    for thread in threads {
        assert_is!(thread.join().unwrap(), Err(Error::Closed { .. }));
    }
    block_on(async {
        assert_is!(first.lock().await, Err(Error::Closed { .. }));
        let ran = first.run(async |_| ()).await;
        assert_is!(ran, Err(RunError::Acquire(Error::Closed { .. })));
        client.shutdown().await;
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
    });
}

pub(crate) fn a_runtime_that_ends_before_it_polled_its_tasks_wakes_waiters(store: &Store) {
    // Polls no task of the client: it returns as soon as the client is there.
    let home = runtime();
    let lock = home.block_on(async { store.client().await.lock(store.name("lock")) });
    let mut waiting = Box::pin(lock.lock());
    let polled = Pin::new(&mut waiting).poll(&mut Context::from_waker(&unpark()));
    drop(home);
    if polled.is_pending() {
        thread::park();
        assert_is!(block_on(waiting), Err(Error::Closed { .. }));
    }
}

pub(crate) fn a_client_is_made_on_a_runtime(store: &Store) {
    assert_is!(block_on(Client::connect(store.url())), Err(Error::Invalid { .. }));
}
