//! Permits without owners: a repeated request must not acquire or release twice.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::stores::Memory;
use lockkeeper::{Client, ClientOptions, Error};
use testkit::{Flaky, Gate, Verb};
use tokio::time::{Instant, sleep, timeout};

use super::{HOUR, SETTLE, flaky, flaky_with, silence};
use crate::support::{assert_unreachable, joined, ms};

/// How long the store remembers its answers about permits.
const REMEMBERED: Duration = Duration::from_secs(60);

/// How long a request for permits is repeated.
const REPEATED: Duration = Duration::from_secs(20);

fn client(store: &Arc<Memory>) -> Client {
    Client::with_backend(store.clone(), ClientOptions::new()).unwrap()
}

#[track_caller]
fn assert_closed<T: std::fmt::Debug>(answer: &Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Closed { .. })), "{answer:?}");
}

/// `shutdown` releases the permits; the [`SemaphoreGuard`](lockkeeper::SemaphoreGuard) is dropped or released after the store
/// has forgotten that release.
#[tokio::test(start_paused = true)]
async fn permits_that_outlive_their_client_are_released_once() {
    for dropped in [true, false] {
        let store = Memory::new();
        let (ours, theirs) = (client(&store), client(&store));
        let theirs = theirs.semaphore("it");
        assert!(theirs.try_set_permits(3, None).await.unwrap());
        let permit = ours.semaphore("it").acquire(2).await.unwrap();
        ours.shutdown().await;
        assert_eq!(theirs.available().await.unwrap(), 3);
        sleep(REMEMBERED + ms(1000)).await;
        if dropped {
            drop(permit);
        } else {
            assert_closed(&permit.release().await);
        }
        sleep(SETTLE).await;
        assert_eq!(theirs.available().await.unwrap(), 3, "dropped: {dropped}");
    }
}

/// The permits are acquired, the answer is lost, and the store is unreachable for longer than it remembers
/// answers. The client stops: a repeated request would acquire again.
#[tokio::test(start_paused = true)]
async fn an_acquire_is_not_repeated_when_the_store_may_have_forgotten_it() {
    let options = ClientOptions::new().unreachable_after(2 * REMEMBERED);
    let (flaky, ours, theirs) = flaky_with(options).await;
    let (ours, theirs) = (ours.semaphore("it"), theirs.semaphore("it"));
    assert!(theirs.try_set_permits(5, None).await.unwrap());
    flaky.script(iter::once(Gate::ErrAfter).chain(silence()));
    let start = Instant::now();
    let answer = timeout(REMEMBERED + ms(5000), ours.acquire(1)).await;
    flaky.open();
    assert_unreachable(&answer.expect("it still asks"));
    assert!(start.elapsed() < REPEATED + ms(1000), "{:?}", start.elapsed());
    // The acquire is undone as soon as the store is back.
    sleep(SETTLE).await;
    assert_eq!(theirs.available().await.unwrap(), 5);
}

/// As long as the store remembers the answer, a repeated request acquires nothing twice.
#[tokio::test(start_paused = true)]
async fn an_acquire_is_repeated_while_the_store_remembers_it() {
    let options = ClientOptions::new().unreachable_after(2 * REMEMBERED);
    let (flaky, ours, theirs) = flaky_with(options).await;
    let (ours, theirs) = (ours.semaphore("it"), theirs.semaphore("it"));
    assert!(theirs.try_set_permits(5, None).await.unwrap());
    flaky.script(iter::once(Gate::ErrAfter).chain(silence()));
    let waiter = tokio::spawn(ours.acquire(2));
    sleep(REPEATED - ms(5000)).await;
    flaky.open();
    let permit = joined(waiter).await.unwrap();
    assert_eq!(theirs.available().await.unwrap(), 3);
    permit.release().await.unwrap();
    assert_eq!(theirs.available().await.unwrap(), 5);
}

/// The release is done, its answer is lost, and the client learns that after the store has forgotten the
/// request.
#[tokio::test(start_paused = true)]
async fn a_release_is_not_repeated_when_the_store_may_have_forgotten_it() {
    let memory = Memory::new();
    let lossy = Flaky::new(memory.clone());
    let slow = Flaky::new(lossy.backend());
    let ours = Client::with_backend(slow.backend(), ClientOptions::new()).unwrap();
    let theirs = client(&memory).semaphore("it");
    sleep(HOUR).await;
    assert!(theirs.try_set_permits(1, None).await.unwrap());
    let permit = ours.semaphore("it").acquire(1).await.unwrap();
    // Half of the delay is before the release, half after it.
    slow.script([Gate::Slow(2 * (REMEMBERED + ms(10_000)))]);
    lossy.script([Gate::ErrAfter]);
    let answer = permit.release().await;
    assert!(matches!(answer, Err(Error::Unconfirmed { .. })), "{answer:?}");
    sleep(3 * REMEMBERED).await;
    assert_eq!(slow.calls(Verb::Release), 1);
    assert_eq!(theirs.available().await.unwrap(), 1);
}

/// The answer to an acquire arrives while the client closes. The permits are granted before the client
/// closes, and after it.
#[tokio::test(start_paused = true)]
async fn permits_granted_while_the_client_closes_are_released() {
    for closed_after in [5, 15] {
        for waits in [true, false] {
            let (flaky, ours, theirs) = flaky().await;
            let theirs = theirs.semaphore("it");
            assert!(theirs.try_set_permits(1, None).await.unwrap());
            flaky.script([Gate::Slow(ms(20))]);
            let asking = ours.semaphore("it");
            let waiter = tokio::spawn(async move {
                if waits {
                    return asking.acquire(1).await.map(Some);
                }
                asking.try_acquire(1).await
            });
            sleep(ms(closed_after)).await;
            ours.shutdown().await;
            assert_closed(&joined(waiter).await);
            let permit = theirs.try_acquire(1).await.unwrap();
            permit.expect("it was released").release().await.unwrap();
            assert_eq!(theirs.available().await.unwrap(), 1);
        }
    }
}
