//! The blocking API: threads are owners. Real time on every store.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::blocking::{AnyLock, Client, MultiLock};
use lockkeeper::{Backoff, ClientOptions, Error, LostReason, Remaining, RunError};
use testkit::History;

use crate::store::{Store, assert_is};

const LONG: Duration = Duration::from_secs(30);
/// A lease that a law waits for, and a wait that times out: much longer than an answer takes.
const SHORT: Duration = Duration::from_secs(1);
/// A watchdog timeout: a machine may stand still for two seconds without a lock being lost.
const WATCHDOG: Duration = Duration::from_secs(3);
/// Far less than [`LONG`], whatever the machine does.
const SOON: Duration = Duration::from_secs(5);

fn client(store: &Store) -> Client {
    Client::connect(store.url()).unwrap()
}

/// Until the time to live is seen to grow, by another client than the one that holds it.
fn is_renewed(store: &Store) {
    let observer = client(store).lock(store.name("lock"));
    let mut least = Duration::MAX;
    eventually("the time to live grows", || {
        let Remaining::For(left) = observer.remaining().unwrap() else {
            panic!("it was not renewed");
        };
        let grown = left > least;
        least = least.min(left);
        grown
    });
}

/// Looks until it is so.
fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(10);
    while !so() {
        assert!(Instant::now() < limit, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn a_thread_holds_and_releases(store: &Store) {
    let (client, name) = (client(store), store.name("lock"));
    let lock = client.lock(&name);
    assert!(!lock.is_locked().unwrap());
    let guard = lock.lock().unwrap();
    assert_eq!(guard.name().as_bytes(), name.as_bytes());
    assert!(lock.is_locked().unwrap() && lock.is_held_by_this_thread().unwrap());
    assert_eq!(lock.holder().unwrap().expect("held").id, guard.owner_id().to_string());
    assert_is!(lock.remaining().unwrap(), Remaining::For(_));
    assert!(!guard.is_lost() && guard.remaining() > Duration::ZERO);
    guard.release().unwrap();
    assert_eq!(lock.remaining().unwrap(), Remaining::Free);
    assert!(!lock.is_held_by_this_thread().unwrap());
}

pub(crate) fn threads_exclude_each_other(store: &Store) {
    let history = History::new();
    let (one, two) = (client(store), client(store));
    let threads: Vec<_> = (0..4)
        .map(|t| {
            let lock = if t % 2 == 0 { &one } else { &two }.lock(store.name("lock"));
            let (history, me) = (history.clone(), format!("thread {t}"));
            thread::spawn(move || {
                for _ in 0..25 {
                    let guard = lock.lock().unwrap();
                    history.granted("it", &me, None);
                    thread::yield_now();
                    history.released("it", &me);
                    guard.release().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(history.grants(), 100);
    history.assert_valid();
}

pub(crate) fn a_waiting_thread_is_woken_by_the_release(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let guard = ours.lock(store.name("lock")).lease(LONG).lock().unwrap();
    let lock = theirs.lock(store.name("lock"));
    let (waits, waiting) = mpsc::channel();
    let thread = thread::spawn(move || {
        waits.send(()).unwrap();
        lock.try_lock_for(LONG).unwrap().map(|guard| guard.release().unwrap()).is_some()
    });
    waiting.recv().unwrap();
    let start = Instant::now();
    guard.release().unwrap();
    assert!(thread.join().unwrap());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

pub(crate) fn a_dropped_guard_releases(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    drop(ours.lock(store.name("lock")).lease(LONG).lock().unwrap());
    let start = Instant::now();
    theirs.lock(store.name("lock")).lock().unwrap().release().unwrap();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

pub(crate) fn a_thread_that_panics_releases(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let lock = ours.lock(store.name("lock"));
    let thread = thread::spawn(move || {
        let _guard = lock.lease(LONG).lock().unwrap();
        panic!("this panic is part of the law");
    });
    assert!(thread.join().is_err());
    let start = Instant::now();
    theirs.lock(store.name("lock")).lock().unwrap().release().unwrap();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

/// The runtime has its own thread: leases are renewed between calls.
pub(crate) fn the_watchdog_renews_while_the_thread_sleeps(store: &Store) {
    let options = ClientOptions::new().watchdog_timeout(WATCHDOG);
    let ours = Client::connect_with(store.url(), options).unwrap();
    let guard = ours.lock(store.name("lock")).lock().unwrap();
    is_renewed(store);
    assert!(!guard.is_lost());
    guard.release().unwrap();
}

pub(crate) fn a_fixed_lease_expires_and_is_reported_lost(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let guard = ours.lock(store.name("lock")).lease(SHORT).lock().unwrap();
    assert_eq!(guard.wait_lost(Duration::from_millis(1)), None);
    assert_eq!(guard.wait_lost(LONG), Some(LostReason::Expired));
    let next = theirs.lock(store.name("lock")).lock().unwrap();
    assert_is!(guard.release(), Err(Error::NotHeld { .. }));
    assert!(!next.is_lost());
    next.release().unwrap();
}

pub(crate) fn the_wait_limit_bounds_the_wait(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let guard = ours.lock(store.name("lock")).lease(LONG).lock().unwrap();
    let lock = theirs.lock(store.name("lock"));
    let start = Instant::now();
    assert!(lock.try_lock_for(SHORT).unwrap().is_none());
    assert!(start.elapsed() >= SHORT && start.elapsed() < SOON, "{:?}", start.elapsed());
    guard.release().unwrap();
    let renewed = lockkeeper::LeaseTime::Renewed(LONG);
    assert!(lock.lease(renewed).try_lock_for(LONG).unwrap().is_some());
}

pub(crate) fn run_holds_the_lock_while_it_runs(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let (lock, other) = (ours.lock(store.name("lock")), theirs.lock(store.name("lock")));
    let ran = lock.run(|hold| {
        assert!(!hold.is_lost());
        assert!(other.try_lock().unwrap().is_none());
        assert_eq!(lock.hold_count().unwrap(), 1);
        thread::sleep(Duration::from_millis(20));
        "done"
    });
    let ran = ran.unwrap();
    assert_eq!(ran.output, "done");
    assert!(ran.held >= Duration::from_millis(20) && ran.waited < SOON);
    assert!(!other.is_locked().unwrap());
    let _held = other.lock().unwrap();
    let never = AtomicU32::new(0);
    assert!(lock.try_run(|_| never.fetch_add(1, Ordering::Relaxed)).unwrap().is_none());
    assert_eq!(never.load(Ordering::Relaxed), 0);
}

pub(crate) fn run_reports_a_loss(store: &Store) {
    let lock = client(store).lock(store.name("lock"));
    let other = client(store).lock(store.name("lock"));
    let ran = lock.run(|_| {
        assert!(other.force_unlock().unwrap());
        5
    });
    assert_is!(ran, Err(RunError::Lost { output: Some(5), .. }));
}

pub(crate) fn a_mutex_is_not_reentrant(store: &Store) {
    let mutex = client(store).mutex(store.name("lock"));
    let guard = mutex.lock().unwrap();
    assert!(mutex.try_lock().unwrap().is_none());
    guard.release().unwrap();
    assert_eq!(mutex.run(|_| 1).unwrap().output, 1);
    assert_eq!(mutex.holder().unwrap(), None);
}

pub(crate) fn a_guard_may_be_released_by_another_thread(store: &Store) {
    let lock = client(store).lock(store.name("lock"));
    let guard = lock.lock().unwrap();
    thread::spawn(move || guard.release().unwrap()).join().unwrap();
    assert!(!lock.is_locked().unwrap());
}

pub(crate) fn extend_and_leave_for_work_on_threads(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let lock = ours.lock(store.name("lock"));
    let guard = lock.lease(LONG / 10).lock().unwrap();
    guard.extend(LONG).unwrap();
    assert!(guard.remaining() > LONG / 2);
    let start = Instant::now();
    guard.leave_for(SHORT).unwrap();
    assert!(theirs.lock(store.name("lock")).try_lock().unwrap().is_none());
    theirs.lock(store.name("lock")).lock().unwrap().release().unwrap();
    let took = start.elapsed();
    assert!(took >= SHORT.mul_f64(0.95) && took < SOON, "{took:?}");
}

pub(crate) fn a_force_released_lock_is_lost_with_the_reason(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let guard = ours.lock(store.name("lock")).lock().unwrap();
    let lock = theirs.lock(store.name("lock"));
    // The holder subscribes to notices at about the time of its announcement.
    eventually("the holder says who it is", || lock.holder().unwrap().unwrap().client.is_some());
    assert!(lock.force_unlock_because("enough").unwrap());
    let reason = guard.wait_lost(LONG).expect("it is told");
    assert_is!(reason, LostReason::Revoked(_) | LostReason::Deleted);
    assert!(!lock.force_unlock().unwrap());
}

pub(crate) fn shutdown_releases_and_closes(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let lock = ours.lock(store.name("lock"));
    let guard = lock.lease(LONG).lock().unwrap();
    ours.shutdown();
    assert_eq!(guard.wait_lost(SOON), Some(LostReason::Closed));
    assert!(!theirs.lock(store.name("lock")).is_locked().unwrap());
    assert_is!(lock.lock(), Err(Error::Closed { .. }));
    assert_is!(lock.try_lock(), Err(Error::Closed { .. }));
}

pub(crate) fn the_last_drop_waits_for_the_release(store: &Store) {
    let observer = client(store).lock(store.name("lock"));
    for guard_last in [false, true] {
        let ours = client(store);
        let lock = ours.lock(store.name("lock"));
        let guard = lock.lock().unwrap();
        drop(lock);
        if guard_last {
            drop((ours, guard))
        } else {
            drop((guard, ours))
        }
        assert!(!observer.is_locked().unwrap());
    }
    // After a shutdown, and after it was abandoned, there is nothing to wait for.
    for end in [Client::shutdown, Client::abandon] {
        let ours = client(store);
        let guard = ours.lock(store.name("lock")).lease(SHORT).lock().unwrap();
        end(&ours);
        let begun = Instant::now();
        drop((guard, ours));
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }
}

pub(crate) fn the_last_drop_may_be_in_a_task(store: &Store) {
    let ours = client(store);
    let guard = ours.lock(store.name("lock")).lock().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { tokio::spawn(async { drop((ours, guard)) }).await.unwrap() });
    assert!(!client(store).lock(store.name("lock")).is_locked().unwrap());
}

pub(crate) fn a_drained_client_waits_for_its_threads(store: &Store) {
    let client = client(store);
    let lock = client.lock(store.name("lock"));
    let (outer, draining) = (lock.lock().unwrap(), client.clone());
    let draining = thread::spawn(move || draining.drain(LONG));
    let new = client.lock(store.name("new"));
    eventually("it acquires nothing more", || new.try_lock().is_err());
    // It holds that one.
    lock.lock().unwrap().release().unwrap();
    assert!(!outer.is_lost() && !draining.is_finished());
    outer.release().unwrap();
    assert!(draining.join().unwrap(), "all was released");
    assert_is!(lock.is_locked(), Err(Error::Closed { .. }));
}

pub(crate) fn a_waiting_thread_fails_at_shutdown(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let guard = theirs.lock(store.name("lock")).lease(LONG).lock().unwrap();
    let lock = ours.lock(store.name("lock"));
    let (waits, waiting) = mpsc::channel();
    let thread = thread::spawn(move || {
        waits.send(()).unwrap();
        lock.lock().map(drop)
    });
    waiting.recv().unwrap();
    ours.shutdown();
    assert_is!(thread.join().unwrap(), Err(Error::Closed { .. }));
    guard.release().unwrap();
}

pub(crate) fn a_guard_keeps_its_client_alive(store: &Store) {
    let options = ClientOptions::new().watchdog_timeout(WATCHDOG);
    let client = Client::connect_with(store.url(), options).unwrap();
    let guard = client.lock(store.name("lock")).lock().unwrap();
    drop(client);
    is_renewed(store);
    assert!(!guard.is_lost());
    guard.release().unwrap();
}

pub(crate) fn many_threads_share_one_client(store: &Store) {
    let (client, inside) = (client(store), Arc::new(AtomicU32::new(0)));
    let start = Arc::new(Barrier::new(16));
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let (lock, inside) = (client.lock(store.name("lock")), Arc::clone(&inside));
            let start = Arc::clone(&start);
            thread::spawn(move || {
                start.wait();
                for _ in 0..5 {
                    let outer = lock.lock().unwrap();
                    let inner = lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    outer.release().unwrap();
                    inner.release().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(!client.lock(store.name("lock")).is_locked().unwrap());
}

/// What a thread can say of every lock that is re-entrant.
macro_rules! is_reentrant_per_thread {
    ($store:ident, $make:ident) => {{
        let lock = client($store).$make($store.name(stringify!($make)));
        let outer = lock.lock().unwrap();
        let token = outer.hold().token();
        let inner = lock.lease(LONG).lock().unwrap();
        let third = lock.try_lock().unwrap().expect("it is its own");
        let fourth = outer.reenter().unwrap();
        assert_eq!(lock.hold_count().unwrap(), 4);
        assert!(lock.is_held_by_this_thread().unwrap());
        assert_eq!(inner.owner_id(), outer.owner_id());
        let tokens = [&outer, &inner, &third, &fourth].map(|guard| guard.hold().token());
        assert_eq!(tokens, [token; 4], "re-entries share the token");
        let elsewhere = lock.clone();
        let seen = thread::spawn(move || {
            let count = elsewhere.hold_count().unwrap();
            let waited = elsewhere.try_lock_for(SHORT).unwrap();
            (elsewhere.try_lock().unwrap().is_none() && waited.is_none(), count)
        });
        assert_eq!(seen.join().unwrap(), (true, 0), "another thread is another owner");
        for guard in [outer, inner, third, fourth] {
            guard.release().unwrap();
        }
        assert!(!lock.is_locked().unwrap());
        let ran = lock.run(|hold| hold.token()).unwrap();
        assert_eq!(ran.output.is_some(), stringify!($make) == "fenced_lock");
        assert!(ran.output >= token);
        assert!(lock.try_run(|_| ()).unwrap().is_some());
    }};
}

pub(crate) fn every_kind_is_reentrant_per_thread(store: &Store) {
    is_reentrant_per_thread!(store, lock);
    is_reentrant_per_thread!(store, fair_lock);
    is_reentrant_per_thread!(store, fenced_lock);
    is_reentrant_per_thread!(store, spin_lock);
}

pub(crate) fn threads_are_served_in_the_order_of_a_fair_lock(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let lock = ours.fair_lock(store.name("lock"));
    let guard = lock.lock().unwrap();
    let (served, order) = mpsc::channel();
    let threads: Vec<_> = (0..8)
        .map(|place| {
            let client = if place % 2 == 0 { &ours } else { &theirs };
            let (waiter, served) = (client.fair_lock(store.name("lock")), served.clone());
            let thread = thread::spawn(move || {
                let guard = waiter.lock().unwrap();
                served.send(place).unwrap();
                guard.release().unwrap();
            });
            eventually("it waits", || lock.waiting().unwrap() == place + 1);
            thread
        })
        .collect();
    guard.release().unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(order.try_iter().collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert_eq!(lock.waiting().unwrap(), 0);
}

pub(crate) fn a_thread_that_times_out_leaves_the_queue(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let lock = ours.fair_lock(store.name("lock"));
    let guard = lock.lock().unwrap();
    let impatient = theirs.fair_lock(store.name("lock"));
    assert!(impatient.try_lock_for(SHORT).unwrap().is_none());
    eventually("nobody waits", || lock.waiting().unwrap() == 0);
    guard.release().unwrap();
    impatient.try_lock().unwrap().expect("it is free").release().unwrap();
}

pub(crate) fn tokens_grow_from_thread_to_thread(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let (issued, tokens) = mpsc::channel();
    let threads: Vec<_> = (0..4)
        .map(|t| {
            let client = if t % 2 == 0 { ours.clone() } else { theirs.clone() };
            let (name, issued) = (store.name("lock"), issued.clone());
            thread::spawn(move || {
                for round in 0..10 {
                    let guard = match round % 3 {
                        0 => client.fenced_lock(&name).lock().unwrap(),
                        1 => client.lock(&name).fenced().lock().unwrap(),
                        _ => client.fair_lock(&name).fenced().lock().unwrap(),
                    };
                    issued.send(guard.token()).unwrap();
                    guard.release().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let tokens: Vec<_> = tokens.try_iter().collect();
    assert_eq!(tokens.len(), 40);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

pub(crate) fn a_spinning_thread_acquires_the_lock(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let guard = ours.lock(store.name("lock")).lease(LONG).lock().unwrap();
    let backoff = Backoff::constant(Duration::from_millis(5));
    let spin = theirs.spin_lock(store.name("lock")).backoff(backoff);
    let (waits, waiting) = mpsc::channel();
    let thread = thread::spawn(move || {
        assert!(spin.try_lock_for(SHORT).unwrap().is_none());
        waits.send(()).unwrap();
        spin.lock().unwrap().release().unwrap();
    });
    waiting.recv().unwrap();
    let start = Instant::now();
    guard.release().unwrap();
    thread.join().unwrap();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

pub(crate) fn a_thread_cannot_reenter_a_non_reentrant_lock(store: &Store) {
    let client = client(store);
    let lock = client.lock(store.name("lock")).non_reentrant();
    let fair = client.fair_lock(store.name("fair")).non_reentrant();
    let guards = [lock.lock().unwrap(), fair.lock().unwrap()];
    let start = Instant::now();
    assert_is!(lock.lock(), Err(Error::Invalid { .. }));
    assert_is!(fair.lock(), Err(Error::Invalid { .. }));
    assert_is!(lock.try_lock(), Err(Error::Invalid { .. }));
    assert_is!(fair.try_lock(), Err(Error::Invalid { .. }));
    assert_is!(lock.try_lock_for(LONG), Err(Error::Invalid { .. }));
    assert_is!(fair.try_lock_for(LONG), Err(Error::Invalid { .. }));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!((lock.hold_count().unwrap(), fair.hold_count().unwrap()), (1, 1));
    for guard in guards {
        assert_is!(guard.reenter(), Err(Error::Invalid { .. }));
        guard.release().unwrap();
    }
    lock.lock().unwrap().release().unwrap();
}

pub(crate) fn a_thread_holds_all_of_a_multi_lock_or_none(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let members = || {
        [
            AnyLock::from(ours.lock(store.name("a"))),
            AnyLock::from(ours.fair_lock(store.name("b"))),
            AnyLock::from(ours.spin_lock(store.name("c"))),
        ]
    };
    let locked = || ["a", "b", "c"].map(|name| theirs.lock(store.name(name)).is_locked().unwrap());
    let multi = MultiLock::new(&ours, members());
    assert!(multi.names().map(ToString::to_string).eq(["a", "b", "c"].map(|n| store.name(n))));
    let guard = multi.lock().unwrap();
    assert_eq!(locked(), [true; 3]);
    assert!(!guard.is_lost() && guard.remaining() > Duration::ZERO);
    let start = Instant::now();
    assert!(multi.try_lock().unwrap().is_none(), "held by the guard, not by the thread");
    assert!(multi.try_lock_for(SHORT).unwrap().is_none());
    assert!(start.elapsed() >= SHORT && start.elapsed() < SOON, "{:?}", start.elapsed());
    guard.release().unwrap();
    assert_eq!(locked(), [false; 3]);
    let busy = theirs.lock(store.name("c")).lock().unwrap();
    assert!(multi.try_lock().unwrap().is_none());
    assert_eq!(locked(), [false, false, true], "the rest is free again at once");
    busy.release().unwrap();
    drop(multi.try_lock_for(LONG).unwrap().expect("all are free"));
    eventually("dropping it releases all", || locked() == [false; 3]);
    let none = MultiLock::new(&ours, Vec::<AnyLock>::new());
    assert_is!(none.lock(), Err(Error::Invalid { .. }));
    let twice = MultiLock::new(&ours, members().into_iter().chain(members()));
    assert_is!(twice.try_lock(), Err(Error::Invalid { .. }));
}

pub(crate) fn a_thread_is_notified_when_a_member_is_lost(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let locks = ["a", "b"].map(|name| ours.lock(store.name(name)));
    let multi = MultiLock::new(&ours, locks);
    let guard = multi.lease(SHORT).lock().unwrap();
    assert!(guard.remaining() <= SHORT);
    assert_eq!(guard.wait_lost(Duration::from_millis(1)), None);
    let (_, reason) = guard.wait_lost(LONG).expect("its lease ends");
    assert_eq!(reason, LostReason::Expired);
    assert!(guard.is_lost());
    drop(guard);
    let guard = multi.lease(LONG).lock().unwrap();
    let b = theirs.lock(store.name("b"));
    eventually("the holder says who it is", || b.holder().unwrap().unwrap().client.is_some());
    assert!(b.force_unlock_because("enough").unwrap());
    let (name, reason) = guard.wait_lost(LONG).expect("it is told");
    assert_eq!(name.to_string(), store.name("b"));
    assert_is!(reason, LostReason::Revoked(_) | LostReason::Deleted);
    assert_is!(guard.release(), Err(Error::NotHeld { .. }));
    assert!(!theirs.lock(store.name("a")).is_locked().unwrap());
}

pub(crate) fn multi_locks_of_threads_in_opposite_orders_do_not_deadlock(store: &Store) {
    let inside = Arc::new(AtomicU32::new(0));
    let (one, two) = (client(store), client(store));
    let threads: Vec<_> = (0..4)
        .map(|t| {
            let client = if t < 2 { &one } else { &two };
            let order = if t % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
            let multi = MultiLock::new(client, order.map(|name| client.lock(store.name(name))));
            let inside = Arc::clone(&inside);
            thread::spawn(move || {
                for _ in 0..8 {
                    let guard = multi.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(!one.lock(store.name("a")).is_locked().unwrap());
}

/// No other handle of the client of a member is left.
pub(crate) fn a_multi_lock_keeps_the_clients_of_its_members(store: &Store) {
    let (ours, theirs) = (client(store), client(store));
    let members =
        [AnyLock::from(ours.lock(store.name("a"))), theirs.rw_lock(store.name("b")).writer()];
    let multi = MultiLock::new(&ours, members);
    drop(theirs);
    let guard = multi.lock().unwrap();
    assert_eq!(guard.wait_lost(SHORT), None);
    guard.release().unwrap();
    let guard = multi.try_lock().unwrap().expect("it is free again");
    drop((multi, ours));
    assert_eq!(guard.wait_lost(SHORT), None, "the guard alone keeps them, too");
    guard.release().unwrap();
}
