//! The count-down latch.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{AnyLock, Client, CountDownLatch, Error, Kind, Result};
use testkit::{Flaky, Gate};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

use crate::decorators::{Counting, Deaf, Hasty};
use crate::store::{Store, assert_is, eventually};

/// Handles of two clients to one latch.
async fn pair(store: &Store) -> (CountDownLatch, CountDownLatch) {
    let name = store.name("latch");
    let (ours, theirs) = (store.client().await, store.client().await);
    (ours.count_down_latch(&name), theirs.count_down_latch(&name))
}

/// How many clients listen (on Redis), or whether anybody does (in memory).
fn listeners(store: &Store) -> usize {
    store.subscribers(&format!("redisson_countdownlatch__channel__{{{}}}", store.name("latch")))
}

/// Waits in a task of its own, and is known to listen: the first of its client to do so.
async fn listening(store: &Store, latch: &CountDownLatch) -> JoinHandle<Result<()>> {
    let before = listeners(store);
    let latch = latch.clone();
    let waiter = tokio::spawn(async move { latch.wait().await });
    eventually("the waiter listens", async || listeners(store) > before).await;
    waiter
}

pub(crate) async fn a_latch_is_set_once_and_counted_down(store: &Store) {
    let (ours, theirs) = pair(store).await;
    assert_eq!(ours.count().await.unwrap(), 0);
    assert!(ours.try_set_count(3).await.unwrap());
    assert!(!theirs.try_set_count(7).await.unwrap(), "it is closed");
    assert_eq!(theirs.count().await.unwrap(), 3);
    assert_eq!(ours.count_down().await.unwrap(), 2);
    assert_eq!(theirs.count_down().await.unwrap(), 1);
    assert!(!theirs.wait_for(Duration::ZERO).await.unwrap());
    assert_eq!(ours.count_down().await.unwrap(), 0);
    assert_eq!(ours.count().await.unwrap(), 0);
    assert_eq!(ours.count_down().await.unwrap(), 0, "an open one stays open");
    assert_eq!(store.traces(&store.name("latch")), 0);
    assert!(theirs.try_set_count(2).await.unwrap(), "and may be closed again");
    assert_eq!(ours.count().await.unwrap(), 2);
}

pub(crate) async fn a_latch_that_was_never_set_is_open(store: &Store) {
    let (ours, _) = pair(store).await;
    store.promptly("nobody waits", ours.wait()).await.unwrap();
    assert!(ours.wait_for(store.long()).await.unwrap());
    assert!(ours.wait_for(Duration::ZERO).await.unwrap());
    assert!(!ours.delete().await.unwrap());
    assert_eq!(ours.count_down().await.unwrap(), 0);
    assert_eq!(store.traces(&store.name("latch")), 0);
}

pub(crate) async fn the_last_count_wakes_the_waiters(store: &Store) {
    let (ours, theirs) = pair(store).await;
    ours.try_set_count(2).await.unwrap();
    let waiter = listening(store, &theirs).await;
    let local = ours.clone();
    let local = tokio::spawn(async move { local.wait().await });
    ours.count_down().await.unwrap();
    assert!(!theirs.wait_for(store.lease()).await.unwrap(), "one is left to count");
    assert!(!waiter.is_finished() && !local.is_finished());
    theirs.count_down().await.unwrap();
    for waiter in [waiter, local] {
        store.promptly("the waiters go on", waiter).await.unwrap().unwrap();
    }
    eventually("no subscriber is left", async || listeners(store) == 0).await;
}

pub(crate) async fn waiters_are_notified(store: &Store) {
    let (ours, theirs) = pair(store).await;
    for how in ["it is opened", "it is deleted"] {
        let turn = async || {
            ours.try_set_count(1).await.unwrap();
            let waiter = listening(store, &theirs).await;
            let start = Instant::now();
            match how {
                "it is opened" => assert_eq!(ours.count_down().await.unwrap(), 0),
                _ => assert!(ours.delete().await.unwrap()),
            }
            waiter.await.unwrap().unwrap();
            let took = start.elapsed();
            eventually("no subscriber is left", async || listeners(store) == 0).await;
            took
        };
        store.is_notified(how, turn).await;
    }
}

pub(crate) async fn the_wait_limit_bounds_the_wait(store: &Store) {
    let (ours, theirs) = pair(store).await;
    ours.try_set_count(1).await.unwrap();
    let start = store.timer();
    assert!(!theirs.wait_for(store.lease()).await.unwrap());
    start.took(store.lease().mul_f64(0.99), store.lease());
    eventually("no subscriber is left", async || listeners(store) == 0).await;
    let long = store.long();
    let waiter = tokio::spawn(async move { theirs.wait_for(long).await });
    eventually("it listens", async || listeners(store) > 0).await;
    ours.count_down().await.unwrap();
    assert!(store.promptly("it is told in time", waiter).await.unwrap().unwrap());
    assert!(ours.wait_for(Duration::MAX).await.unwrap());
}

/// Also when the last question is cut short: the store has said that it is closed.
pub(crate) async fn the_wait_limit_bounds_many_waits_at_once(store: &Store) {
    let (ours, theirs) = pair(store).await;
    ours.try_set_count(1).await.unwrap();
    let mut tasks = JoinSet::new();
    for micros in 0..200 {
        let latch = if micros % 2 == 0 { ours.clone() } else { theirs.clone() };
        let limit = store.lease() + Duration::from_micros(micros * 17);
        tasks.spawn(async move { latch.wait_for(limit).await });
    }
    while let Some(done) = tasks.join_next().await {
        assert!(!done.unwrap().unwrap());
    }
}

pub(crate) async fn a_wait_limit_shorter_than_a_round_trip_is_answered(store: &Store) {
    let flaky = Flaky::new(store.backend().await);
    let client = Client::with_backend(flaky.backend(), store.options()).unwrap();
    let latch = client.count_down_latch(store.name("latch"));
    for count in [1, 0] {
        flaky.open();
        match count {
            0 => assert_eq!(latch.count_down().await.unwrap(), 0),
            _ => assert!(latch.try_set_count(count).await.unwrap()),
        }
        flaky.script([Gate::Slow(Duration::from_millis(100))]);
        let opened = latch.wait_for(Duration::from_millis(1)).await.expect("the store answers");
        assert_eq!(opened, count == 0);
    }
}

/// The store answered twice that the latch is closed, and then stops answering.
pub(crate) async fn a_store_that_stops_answering_during_the_wait_is_unreachable(store: &Store) {
    let flaky = Flaky::new(store.backend().await);
    let options = store.options().response_timeout(store.lease());
    let client = Client::with_backend(flaky.backend(), options).unwrap();
    let latch = client.count_down_latch(store.name("latch"));
    assert!(latch.try_set_count(1).await.unwrap());
    let answered = [Gate::Ok, Gate::Ok, Gate::Ok];
    flaky.script(answered.into_iter().chain(std::iter::repeat_n(Gate::Never, 1000)));
    assert_is!(latch.wait_for(store.lease()).await, Err(Error::Unreachable { .. }));
    flaky.open();
}

pub(crate) async fn deleting_the_latch_wakes_its_waiters(store: &Store) {
    let (ours, theirs) = pair(store).await;
    ours.try_set_count(9).await.unwrap();
    let waiter = listening(store, &theirs).await;
    assert!(ours.delete().await.unwrap());
    store.promptly("the waiter goes on", waiter).await.unwrap().unwrap();
    assert_eq!(theirs.count().await.unwrap(), 0);
    assert!(!theirs.delete().await.unwrap(), "only once");
    assert_eq!(store.traces(&store.name("latch")), 0);
}

pub(crate) async fn invalid_arguments_are_rejected(store: &Store) {
    let (ours, _) = pair(store).await;
    assert_is!(ours.try_set_count(0).await, Err(Error::Invalid { .. }));
    assert_is!(ours.try_set_count(1 << 54).await, Err(Error::Invalid { .. }));
    assert_is!(ours.try_set_count(u64::MAX).await, Err(Error::Invalid { .. }));
    assert_eq!(store.traces(&store.name("latch")), 0);
    assert!(ours.try_set_count((1 << 53) - 1).await.unwrap());
    assert_eq!(ours.count_down().await.unwrap(), (1 << 53) - 2);
    let nameless = store.client().await.count_down_latch("");
    assert_is!(nameless.try_set_count(1).await, Err(Error::Invalid { .. }));
    assert_is!(nameless.wait().await, Err(Error::Invalid { .. }));
    assert_is!(nameless.count_down().await, Err(Error::Invalid { .. }));
}

pub(crate) async fn a_name_of_another_kind_is_rejected(store: &Store) {
    let (client, name) = (store.client().await, store.name("latch"));
    let latch = client.count_down_latch(&name);
    let locks: [AnyLock; 3] =
        [client.lock(&name).into(), client.mutex(&name).into(), client.rw_lock(&name).writer()];
    for lock in locks {
        let guard = lock.lease(store.long()).lock().await.unwrap();
        assert_is!(latch.wait().await, Err(Error::WrongKind { kind: Kind::Latch, .. }));
        assert_is!(latch.wait_for(store.long()).await, Err(Error::WrongKind { .. }));
        assert_is!(latch.try_set_count(1).await, Err(Error::WrongKind { .. }));
        assert_is!(latch.count_down().await, Err(Error::WrongKind { .. }));
        assert_is!(latch.count().await, Err(Error::WrongKind { .. }));
        assert_is!(latch.delete().await, Err(Error::WrongKind { .. }));
        guard.release().await.expect("nothing has changed");
    }
    assert_eq!(store.traces(&name), 0);
    latch.try_set_count(2).await.unwrap();
    assert_is!(client.lock(&name).try_lock().await, Err(Error::WrongKind { .. }));
    assert_is!(client.rw_lock(&name).try_read().await, Err(Error::WrongKind { .. }));
    assert_eq!(latch.count().await.unwrap(), 2);
}

pub(crate) async fn every_count_counts_once(store: &Store) {
    let (ours, theirs) = pair(store).await;
    ours.try_set_count(200).await.unwrap();
    let waiter = listening(store, &theirs).await;
    let mut tasks = JoinSet::new();
    for task in 0..200 {
        let latch = if task % 2 == 0 { ours.clone() } else { theirs.clone() };
        // Once polled it is done, even if it is not awaited.
        tasks.spawn(async move {
            match task % 4 {
                0 => drop(timeout(Duration::from_micros(task), latch.count_down()).await),
                _ => drop(latch.count_down().await.unwrap()),
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    store.promptly("all have counted", waiter).await.unwrap().unwrap();
    assert_eq!(ours.count().await.unwrap(), 0);
}

/// Clients whose waiters are counted, and so many waiters of each, all of them subscribed.
async fn crowd(store: &Store, clients: usize, waiters: usize) -> JoinSet<Result<()>> {
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let counting = Counting::new(store.backend().await);
        let client = Client::with_backend(counting.clone(), store.options()).unwrap();
        let latch = client.count_down_latch(store.name("latch"));
        for _ in 0..waiters {
            let latch = latch.clone();
            tasks.spawn(async move { latch.wait().await });
        }
        eventually("all listen", async || counting.confirmed() == waiters as u64).await;
    }
    let channels = if store.counts_all() { 1 } else { clients };
    eventually("the store knows", async || listeners(store) == channels).await;
    tasks
}

pub(crate) async fn hundreds_of_waiters_wake_up_together(store: &Store) {
    let (ours, _) = pair(store).await;
    ours.try_set_count(1).await.unwrap();
    let mut tasks = crowd(store, 3, 200).await;
    ours.count_down().await.unwrap();
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap().unwrap()
        }
    };
    store.promptly("all go on", all).await;
    eventually("no subscriber is left", async || listeners(store) == 0).await;
}

/// RULES §12: opened and closed again before any of the waiters has had a turn.
pub(crate) async fn a_latch_set_again_at_once_still_wakes_every_waiter(store: &Store) {
    let (ours, theirs) = pair(store).await;
    for round in 0..5 {
        ours.try_set_count(1).await.unwrap();
        let mut tasks = crowd(store, 2, 60).await;
        match round % 2 {
            0 => assert_eq!(ours.count_down().await.unwrap(), 0),
            _ => assert!(ours.delete().await.unwrap()),
        }
        assert!(ours.try_set_count(1).await.unwrap());
        let all = async {
            while let Some(done) = tasks.join_next().await {
                done.unwrap().unwrap()
            }
        };
        store.promptly("all go on", all).await;
        assert_eq!(theirs.count().await.unwrap(), 1, "it is closed again");
        ours.delete().await.unwrap();
    }
}

pub(crate) async fn a_latch_that_opens_during_the_subscription_wakes_the_waiter(store: &Store) {
    let (ours, _) = pair(store).await;
    ours.try_set_count(1).await.unwrap();
    let hasty = Client::with_backend(Arc::new(Hasty(store.backend().await)), store.options());
    let latch = hasty.unwrap().count_down_latch(store.name("latch"));
    store.promptly("it goes on", latch.wait()).await.unwrap();
    assert_eq!(ours.count().await.unwrap(), 1, "it is closed again");
}

pub(crate) async fn a_cancelled_waiter_leaves_nothing_behind(store: &Store) {
    let (ours, theirs) = pair(store).await;
    ours.try_set_count(1).await.unwrap();
    let waiter = listening(store, &theirs).await;
    waiter.abort();
    eventually("no subscriber is left", async || listeners(store) == 0).await;
    for micros in 0..50 {
        let _ = timeout(Duration::from_micros(micros * 11), theirs.wait()).await;
    }
    eventually("no subscriber is left", async || listeners(store) == 0).await;
    assert_eq!(ours.count().await.unwrap(), 1);
}

pub(crate) async fn waiters_fail_when_their_client_shuts_down(store: &Store) {
    let (ours, _) = pair(store).await;
    ours.try_set_count(1).await.unwrap();
    let client = store.client().await;
    let latch = client.count_down_latch(store.name("latch"));
    let waiter = listening(store, &latch).await;
    client.shutdown().await;
    let told = store.promptly("it is told", waiter).await.unwrap();
    assert_is!(told, Err(Error::Closed { .. }));
    assert_is!(latch.count_down().await, Err(Error::Closed { .. }));
    assert_eq!(ours.count().await.unwrap(), 1);
}

/// Wake-ups may get lost.
pub(crate) async fn a_waiter_without_wake_ups_rechecks(store: &Store) {
    let (ours, _) = pair(store).await;
    ours.try_set_count(1).await.unwrap();
    let deaf = Arc::new(Deaf(store.backend().await));
    let deaf = Client::with_backend(deaf, store.options()).unwrap();
    let latch = deaf.count_down_latch(store.name("latch"));
    let mut waiting = Box::pin(async move { latch.wait().await });
    assert!(timeout(Duration::from_millis(200), &mut waiting).await.is_err());
    let start = store.timer();
    ours.count_down().await.unwrap();
    timeout(store.long(), waiting).await.expect("it looks again").unwrap();
    start.took(Duration::ZERO, lockkeeper::RECHECK);
}

/// A latch that is closed, on memory with a paused clock.
async fn closed() -> (Client, CountDownLatch) {
    let client = Client::memory();
    let latch = client.count_down_latch("latch");
    assert!(latch.try_set_count(1).await.unwrap());
    (client, latch)
}

/// The latch is opened and closed again while the waiter is not scheduled, and its wait limit passes.
#[tokio::test(start_paused = true)]
async fn a_message_before_the_wait_limit_counts_after_it() {
    let (_client, latch) = closed().await;
    let mut waiting = Box::pin(latch.wait_for(Duration::from_millis(100)));
    assert!(timeout(Duration::from_millis(10), &mut waiting).await.is_err());
    latch.count_down().await.unwrap();
    assert!(latch.try_set_count(1).await.unwrap());
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(waiting.await.unwrap());
}

/// The waiter lost a race and is not polled any more.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_waiter_that_is_not_polled() {
    let (client, latch) = closed().await;
    let mut waiting = Box::pin(latch.wait());
    assert!(timeout(Duration::from_millis(10), &mut waiting).await.is_err());
    let start = Instant::now();
    client.shutdown().await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}
