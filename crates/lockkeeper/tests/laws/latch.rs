//! The count-down latch: closed until it was counted down, and then open for everybody.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::{
    Acquire, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, CountChange, Fault,
    Finding, List, Page, Release, Released, Renew, Renewed, Resource, Snapshot, Subscription,
    Topic,
};
use lockkeeper::{AnyLock, Client, CountDownLatch, Error, Kind, LockName, OwnerId, Result};
use testkit::{Flaky, Gate};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

use crate::decorators::Counting;
use crate::store::{Store, assert_is, eventually};

/// Handles of two clients to one latch.
async fn pair(store: &Store) -> (CountDownLatch, CountDownLatch) {
    let name = store.name("latch");
    let (ours, theirs) = (store.client().await, store.client().await);
    (ours.count_down_latch(&name), theirs.count_down_latch(&name))
}

/// How many clients listen (on Redis), or whether anybody does (in memory).
fn listeners(store: &Store) -> usize {
    let Some(server) = store.behind() else { return store.listeners("") };
    let channel = format!("redisson_countdownlatch__channel__{{{}}}", store.name("latch"));
    server.cli(&["PUBSUB", "NUMSUB", &channel]).array()[1].int() as usize
}

/// Waits in a task of its own, and is known to listen: the first of its client to do so.
async fn listening(store: &Store, latch: &CountDownLatch) -> JoinHandle<Result<()>> {
    let before = listeners(store);
    let latch = latch.clone();
    let waiter = tokio::spawn(async move { latch.wait().await });
    eventually("the waiter listens", async || listeners(store) > before).await;
    waiter
}

pub(crate) async fn it_is_set_once_and_counted_down(store: &Store) {
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

pub(crate) async fn one_that_was_never_set_is_open(store: &Store) {
    let (ours, _) = pair(store).await;
    store.promptly("nobody waits", ours.wait()).await.unwrap();
    assert!(ours.wait_for(store.long()).await.unwrap());
    assert!(ours.wait_for(Duration::ZERO).await.unwrap());
    assert!(!ours.delete().await.unwrap());
    assert_eq!(ours.count_down().await.unwrap(), 0);
    assert_eq!(store.traces(&store.name("latch")), 0);
}

pub(crate) async fn the_last_count_lets_the_waiters_go(store: &Store) {
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
    eventually("nobody listens", async || listeners(store) == 0).await;
}

pub(crate) async fn who_waits_is_told(store: &Store) {
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
            eventually("nobody listens", async || listeners(store) == 0).await;
            took
        };
        store.is_told(how, turn).await;
    }
}

pub(crate) async fn the_wait_limit_is_kept(store: &Store) {
    let (ours, theirs) = pair(store).await;
    ours.try_set_count(1).await.unwrap();
    let start = Instant::now();
    assert!(!theirs.wait_for(store.lease()).await.unwrap());
    let took = start.elapsed();
    assert!(took >= store.lease().mul_f64(0.99), "{took:?}");
    assert!(took < store.lease() + store.slack(), "{took:?}");
    eventually("nobody listens", async || listeners(store) == 0).await;
    let long = store.long();
    let waiter = tokio::spawn(async move { theirs.wait_for(long).await });
    eventually("it listens", async || listeners(store) > 0).await;
    ours.count_down().await.unwrap();
    assert!(store.promptly("it is told in time", waiter).await.unwrap().unwrap());
    assert!(ours.wait_for(Duration::MAX).await.unwrap());
}

/// Also when the last question is cut short: the store has said that it is closed.
pub(crate) async fn the_wait_limit_is_kept_by_many_at_once(store: &Store) {
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

pub(crate) async fn a_wait_limit_shorter_than_a_round_trip_gets_an_answer(store: &Store) {
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

/// The waiter was told that it is closed, twice, and nothing since.
pub(crate) async fn a_store_that_falls_silent_during_the_wait_is_unreachable(store: &Store) {
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

pub(crate) async fn deleting_it_lets_the_waiters_go(store: &Store) {
    let (ours, theirs) = pair(store).await;
    ours.try_set_count(9).await.unwrap();
    let waiter = listening(store, &theirs).await;
    assert!(ours.delete().await.unwrap());
    store.promptly("the waiter goes on", waiter).await.unwrap().unwrap();
    assert_eq!(theirs.count().await.unwrap(), 0);
    assert!(!theirs.delete().await.unwrap(), "only once");
    assert_eq!(store.traces(&store.name("latch")), 0);
}

pub(crate) async fn what_makes_no_sense_is_refused(store: &Store) {
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

pub(crate) async fn a_name_in_use_for_something_else_is_refused(store: &Store) {
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
        // Once polled it is done, also when nobody awaits it.
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

pub(crate) async fn hundreds_of_waiters_go_on_together(store: &Store) {
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
    eventually("nobody listens", async || listeners(store) == 0).await;
}

/// RULES §12: opened and closed again before any of the waiters has had a turn.
pub(crate) async fn one_that_is_reopened_at_once_lets_every_waiter_go(store: &Store) {
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

/// A store in which a latch opens and closes just after the subscription was confirmed, before the
/// waiter has had a turn.
#[derive(Debug)]
struct Hasty(Arc<dyn Backend>);

impl Backend for Hasty {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn acquire(&self, request: Acquire) -> BoxFuture<Result<Attempt, Fault>> {
        self.0.acquire(request)
    }
    fn release(&self, request: Release) -> BoxFuture<Result<Released, Fault>> {
        self.0.release(request)
    }
    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        self.0.renew(batch)
    }
    fn adjust(&self, change: Change) -> BoxFuture<Result<Changed, Fault>> {
        self.0.adjust(change)
    }
    fn inspect(&self, resource: Resource) -> BoxFuture<Result<Snapshot, Fault>> {
        self.0.inspect(resource)
    }
    fn subscribe(&self, topic: Topic) -> BoxFuture<Result<Subscription, Fault>> {
        let (store, name) = (
            Arc::clone(&self.0),
            match &topic {
                Topic::Latch(name) => Some(name.clone()),
                _ => None,
            },
        );
        let subscribing = store.subscribe(topic);
        Box::pin(async move {
            let subscription = subscribing.await?;
            if let Some(name) = name {
                let seen = subscription.seen();
                let create = CountChange::Create { count: 1, ttl: None };
                for change in [CountChange::Down, create] {
                    store.adjust(counted(&name, change)).await?;
                }
                // Until both messages have arrived.
                subscription.beyond(seen + 1).await;
            }
            Ok(subscription)
        })
    }
    fn list(&self, request: List) -> BoxFuture<Result<Page, Fault>> {
        self.0.list(request)
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Fault>> {
        self.0.check()
    }

    fn close(&self) -> BoxFuture<()> {
        self.0.close()
    }
}

fn counted(name: &LockName, change: CountChange) -> Change {
    let id = OwnerId::fresh(Client::memory().id());
    let resource = Resource { kind: Kind::Latch, name: name.clone() };
    Change::Count { resource, id, change }
}

pub(crate) async fn one_that_opens_as_the_waiter_subscribes_lets_it_go(store: &Store) {
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
    eventually("nobody listens", async || listeners(store) == 0).await;
    for micros in 0..50 {
        let _ = timeout(Duration::from_micros(micros * 11), theirs.wait()).await;
    }
    eventually("nobody listens", async || listeners(store) == 0).await;
    assert_eq!(ours.count().await.unwrap(), 1);
}

pub(crate) async fn waiters_of_a_client_that_is_shut_down_are_told(store: &Store) {
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

/// Messages get lost; nobody depends on them.
pub(crate) async fn a_waiter_that_is_never_told_looks_again_by_itself(store: &Store) {
    let (ours, _) = pair(store).await;
    ours.try_set_count(1).await.unwrap();
    let deaf = Arc::new(crate::decorators::Deaf(store.backend().await));
    let deaf = Client::with_backend(deaf, store.options()).unwrap();
    let latch = deaf.count_down_latch(store.name("latch"));
    let mut waiting = Box::pin(async move { latch.wait().await });
    assert!(timeout(Duration::from_millis(200), &mut waiting).await.is_err());
    let start = Instant::now();
    ours.count_down().await.unwrap();
    timeout(store.long(), waiting).await.expect("it looks again").unwrap();
    assert!(start.elapsed() < lockkeeper::RECHECK + store.slack(), "{:?}", start.elapsed());
}
