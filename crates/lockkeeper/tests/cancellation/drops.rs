//! Guards and waiters that go down with what they live in.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::stores::Memory;
use lockkeeper::{Client, ClientOptions, Error};
use testkit::{Flaky, Gate};
use tokio::time::sleep;

/// Time for the reaper: much less than a lease.
const SETTLE: Duration = Duration::from_secs(3);

fn client(memory: &Arc<Memory>) -> Client {
    Client::with_backend(memory.clone(), ClientOptions::new()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_leave_for_that_is_never_polled_is_done() {
    let memory = Memory::new();
    let (client, rival) = (client(&memory), client(&memory));
    let guard = client.lock("it").lock().await.unwrap();
    drop(guard.leave_for(Duration::from_secs(5)));
    sleep(Duration::from_secs(4)).await;
    assert!(rival.lock("it").try_lock().await.unwrap().is_none());
    sleep(Duration::from_secs(2)).await;
    assert!(rival.lock("it").try_lock().await.unwrap().is_some());
}

/// A release holds its lease's turn when its caller drops it; thousands of other guards of the lease,
/// dropped before, wait for that turn.
#[tokio::test(start_paused = true)]
async fn a_dropped_release_is_finished_though_thousands_wait_for_it() {
    let memory = Memory::new();
    let flaky = Flaky::new(memory.clone());
    let (mine, rival) =
        (Client::with_backend(flaky.backend(), ClientOptions::new()).unwrap(), client(&memory));
    let unrelated = mine.lock("unrelated").lock().await.unwrap();
    let first = mine.lock("it").lock().await.unwrap();
    let mut others = Vec::new();
    for _ in 0..5000 {
        others.push(first.reenter().await.unwrap());
    }
    flaky.script([Gate::Never]);
    let mut release = Box::pin(first.release());
    assert!(tokio::time::timeout(Duration::ZERO, &mut release).await.is_err(), "no answer yet");
    drop(others);
    sleep(Duration::from_millis(1)).await;
    drop(release);
    flaky.open();
    drop(unrelated);
    sleep(SETTLE).await;
    for name in ["it", "unrelated"] {
        assert!(rival.lock(name).try_lock().await.unwrap().is_some(), "{name} is still held");
    }
    assert_eq!(flaky.abandoned(), vec![]);
}

/// The release of a guard waits for a re-entry, and the shutdown waits for the release. Then the re-entry is
/// dropped, and its undo must start before the release can complete.
#[tokio::test(start_paused = true)]
async fn shutdown_completes_while_a_cancelled_reentry_is_undone() {
    let memory = Memory::new();
    let flaky = Flaky::new(memory.clone());
    let ours = Client::with_backend(flaky.backend(), ClientOptions::new()).unwrap();
    let theirs = client(&memory);
    sleep(Duration::from_secs(3600)).await;
    let guard = ours.lock("it").lock().await.unwrap();
    let hold = lockkeeper::Hold::clone(&guard);
    flaky.script([Gate::Never]);
    let mut reentry = Box::pin(guard.reenter());
    assert!(tokio::time::timeout(Duration::ZERO, &mut reentry).await.is_err(), "no answer yet");
    drop(guard);
    sleep(Duration::from_millis(1)).await;
    let closing = ours.clone();
    let closing = tokio::spawn(async move {
        let start = tokio::time::Instant::now();
        closing.shutdown().await;
        start.elapsed()
    });
    sleep(Duration::from_millis(1)).await;
    drop(reentry);
    flaky.open();
    let took = closing.await.unwrap();
    assert!(took < Duration::from_millis(500), "it took {took:?}");
    assert!(!theirs.lock("it").is_locked().await.unwrap());
    drop((ours, theirs, hold));
    sleep(SETTLE).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks, 0, "tasks are left");
}

/// A runtime in real time, whose end takes its tasks along.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_guard_dropped_while_its_runtime_shuts_down_does_not_panic_or_hang() {
    for _ in 0..50 {
        let (memory, clock) = (Memory::new(), runtime());
        let lock = clock.block_on(async { client(&memory).lock("it") });
        let (held, waiter) = (lock.clone(), lock.clone());
        clock.block_on(async move {
            let guard = held.lock().await.unwrap();
            // Dropped with the runtime, in whatever order it likes.
            tokio::spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
            tokio::spawn(async move { waiter.lock().await.map(drop) });
        });
        clock.shutdown_timeout(Duration::from_secs(5));
        let elsewhere = runtime();
        let outcome = elsewhere.block_on(async move { lock.try_lock().await });
        assert!(matches!(outcome, Err(Error::Closed { .. })), "{outcome:?}");
    }
}

#[test]
fn a_release_under_way_when_its_runtime_ends_does_not_panic_or_hang() {
    let (memory, clock) = (Memory::new(), runtime());
    let guard = clock.block_on(async { client(&memory).lock("it").lock().await.unwrap() });
    let release = guard.release();
    clock.shutdown_timeout(Duration::from_secs(5));
    let elsewhere = runtime();
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| elsewhere.block_on(release)));
    assert!(outcome.is_ok(), "a release after the end of the runtime panics");
}
