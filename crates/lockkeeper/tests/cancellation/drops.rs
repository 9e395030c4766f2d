//! Guards and waiters that go down with what they live in.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::memory::Memory;
use lockkeeper::{Client, ClientOptions, Error, LostReason};
use testkit::{Flaky, Gate, Verb};
use tokio::time::sleep;

/// Time for the reaper: much less than a lease.
const SETTLE: Duration = Duration::from_secs(3);

fn client(memory: &Arc<Memory>) -> Client {
    Client::with_backend(memory.clone(), ClientOptions::new()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_guard_dropped_by_a_panic_gives_the_lock_back() {
    let memory = Memory::new();
    let (client, rival) = (client(&memory), client(&memory));
    let lock = client.lock("it");
    let task = tokio::spawn(async move {
        let _guard = lock.lock().await.unwrap();
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(task.await.unwrap_err().is_panic());
    sleep(SETTLE).await;
    assert_eq!(memory.usage(), (0, 0));
    assert!(rival.lock("it").try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_work_that_runs_under_a_lock_gives_the_lock_back() {
    let memory = Memory::new();
    let client = client(&memory);
    let lock = client.lock("it");
    let task = tokio::spawn(async move {
        let work = |_| async { std::panic::resume_unwind(Box::new("on purpose")) };
        let _ = lock.run::<(), _>(work).await;
    });
    assert!(task.await.unwrap_err().is_panic());
    sleep(SETTLE).await;
    assert_eq!(memory.usage(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_never_polled_is_done_all_the_same() {
    let memory = Memory::new();
    let (client, rival) = (client(&memory), client(&memory));
    for _ in 0..2 {
        let guard = client.lock("it").lock().await.unwrap();
        drop(guard.release());
        sleep(Duration::from_millis(1)).await;
        let taken = rival.lock("it").try_lock().await.unwrap();
        taken.expect("it is free").release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_left_for_a_while_stands_so_long_even_if_that_is_never_polled() {
    let memory = Memory::new();
    let (client, rival) = (client(&memory), client(&memory));
    let guard = client.lock("it").lock().await.unwrap();
    drop(guard.leave_for(Duration::from_secs(5)));
    sleep(Duration::from_secs(4)).await;
    assert!(rival.lock("it").try_lock().await.unwrap().is_none());
    sleep(Duration::from_secs(2)).await;
    assert!(rival.lock("it").try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_aborted_waiter_lets_the_next_one_in() {
    let memory = Memory::new();
    let flaky = Flaky::new(memory.clone());
    let mine = Client::with_backend(flaky.backend(), ClientOptions::new()).unwrap();
    let held = client(&memory).lock("it").lock().await.unwrap();
    let wait = || {
        let lock = mine.lock("it");
        tokio::spawn(async move { lock.lock().await?.release().await })
    };
    // The first has the seat and waits for the store, the others wait behind it.
    let (first, second, third) = (wait(), wait(), wait());
    sleep(Duration::from_millis(1)).await;
    assert_eq!(flaky.calls(Verb::Subscribe), 1);
    first.abort();
    second.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert!(second.await.unwrap_err().is_cancelled());
    sleep(Duration::from_millis(1)).await;
    held.release().await.unwrap();
    let third = tokio::time::timeout(SETTLE, third).await.expect("the third waits on");
    third.unwrap().unwrap();
    sleep(SETTLE).await;
    assert_eq!((memory.usage(), flaky.abandoned()), ((0, 0), vec![]));
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

#[tokio::test(start_paused = true)]
async fn waiters_aborted_all_at_once_leave_no_subscription() {
    let memory = Memory::new();
    let (mine, other) = (client(&memory), client(&memory));
    let held = other.lock("it").lock().await.unwrap();
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let lock = mine.lock("it");
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    sleep(Duration::from_millis(1)).await;
    let (_, topics) = memory.usage();
    for waiter in &waiters {
        waiter.abort();
    }
    for waiter in waiters {
        assert!(waiter.await.unwrap_err().is_cancelled());
    }
    sleep(SETTLE).await;
    // The holder still listens for notices and reconnections; the waiters' one topic is gone.
    assert_eq!(memory.usage(), (1, topics - 1));
    held.release().await.unwrap();
    assert!(mine.lock("it").try_lock().await.unwrap().is_some());
}

/// A runtime in real time, whose end takes its tasks along.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_guard_that_outlives_its_runtime_is_lost_and_can_be_dropped() {
    let (memory, clock) = (Memory::new(), runtime());
    let guard = clock.block_on(async { client(&memory).lock("it").lock().await.unwrap() });
    assert!(!guard.is_lost());
    let lost = guard.lost();
    clock.shutdown_timeout(Duration::from_secs(5));
    assert!(guard.is_lost());
    let elsewhere = runtime();
    assert_eq!(elsewhere.block_on(lost), LostReason::Closed);
    // Nobody is left to give it back; that must neither panic nor hang.
    drop(guard);
    assert_eq!(memory.usage().0, 1, "it stays until its lease ends");
    elsewhere.block_on(async {
        assert!(client(&memory).lock("it").try_lock().await.unwrap().is_none());
    });
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
