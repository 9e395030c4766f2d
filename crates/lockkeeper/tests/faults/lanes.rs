//! One lane of a store does not answer, the others do: memory store, paused clock.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::backend::{
    Acquire, Answer, Attempt, Backend, BoxFuture, Capabilities, Fault, Lane, LockInfo, Release,
    Released, Renew, Renewed, Resource,
};
use lockkeeper::stores::Memory;
use lockkeeper::{
    Client, ClientOptions, LockGuard, LockName, LostReason, MultiLock, RESPONSE_TIMEOUT,
    WATCHDOG_TIMEOUT,
};
use testkit::{Flaky, Gate, Verb, forward};
use tokio::time::{Instant, sleep};

use crate::support::{assert_unreachable, joined, ms};

/// The lanes of a name: its first digit.
fn lane_of(name: &LockName) -> Lane {
    Lane(u32::from(name.as_bytes()[0] - b'0'))
}

/// A store in lanes. A dead one answers after the response timeout, with an error. As in a cluster, the
/// answers to a batch arrive together.
#[derive(Clone, Debug)]
struct Lanes {
    inner: Arc<Memory>,
    books: Arc<Mutex<Books>>,
}

#[derive(Debug, Default)]
struct Books {
    dead: HashSet<Lane>,
    /// The renewals and heartbeats, batch by batch.
    batches: Vec<Vec<Lane>>,
}

impl Lanes {
    /// After an hour the paused clock is later than the real one, however slow the machine is.
    async fn new() -> (Self, Client) {
        let store = Self { inner: Memory::new(), books: Arc::default() };
        let client = store.client();
        sleep(Duration::from_secs(3600)).await;
        (store, client)
    }

    fn client(&self) -> Client {
        Client::with_backend(Arc::new(self.clone()), ClientOptions::new()).unwrap()
    }

    fn kill(&self, lane: u32) {
        self.books.lock().unwrap().dead.insert(Lane(lane));
    }

    /// Takes the batches so far.
    fn batches(&self) -> Vec<Vec<Lane>> {
        std::mem::take(&mut self.books.lock().unwrap().batches)
    }

    fn fault(&self, name: &LockName) -> Option<Fault> {
        let detail = "the lane is dead".into();
        let dead = self.books.lock().unwrap().dead.contains(&lane_of(name));
        dead.then_some(Fault::Unreachable { maybe_ran: true, detail })
    }

    fn answer<T: Send + 'static>(
        &self,
        name: &LockName,
        work: impl FnOnce(&Memory) -> Answer<T>,
    ) -> Answer<T> {
        match self.fault(name) {
            None => work(&self.inner),
            Some(fault) => Box::pin(async {
                sleep(RESPONSE_TIMEOUT).await;
                Err(fault)
            }),
        }
    }
}

impl Backend for Lanes {
    forward!(inner: adjust subscribe list check close);

    fn capabilities(&self, name: &LockName) -> Capabilities {
        let mut capabilities = self.inner.capabilities(name);
        capabilities.lane = lane_of(name);
        capabilities
    }

    fn acquire(&self, request: Acquire) -> Answer<Attempt> {
        let name = request.resource.name.clone();
        if request.also.iter().any(|(other, _)| lane_of(other) != lane_of(&name)) {
            let detail = "the names are in different lanes".into();
            return Box::pin(std::future::ready(Err(Fault::Invalid { detail })));
        }
        self.answer(&name, |inner| inner.acquire(request))
    }

    fn release(&self, request: Release) -> Answer<Released> {
        let name = request.resource.name.clone();
        self.answer(&name, |inner| inner.release(request))
    }

    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        let lanes = batch.iter().map(|renew| lane_of(&renew.resource.name)).collect();
        self.books.lock().unwrap().batches.push(lanes);
        let faults: Vec<_> = batch.iter().map(|renew| self.fault(&renew.resource.name)).collect();
        let served = batch.into_iter().zip(&faults).filter(|(_, fault)| fault.is_none());
        let served = self.inner.renew(served.map(|(renew, _)| renew).collect());
        Box::pin(async move {
            let mut served = served.await.into_iter();
            if faults.iter().any(Option::is_some) {
                sleep(RESPONSE_TIMEOUT).await;
            }
            let answer = |fault: Option<Fault>| match fault {
                Some(fault) => Err(fault),
                None => served.next().expect("one answer for each"),
            };
            faults.into_iter().map(answer).collect()
        })
    }

    fn inspect(&self, resource: Resource) -> Answer<LockInfo> {
        self.answer(&resource.name.clone(), |inner| inner.inspect(resource))
    }
}

/// Acquires `count` locks, one after the other in each of `lanes`.
async fn hold(client: &Client, lanes: &[u32], count: usize) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for (nth, lane) in lanes.iter().cycle().take(count).enumerate() {
        guards.push(client.lock(format!("{lane}:{nth}")).lock().await.unwrap());
    }
    guards
}

/// Each batch with one dead lock would delay the healthy ones in it, and those behind it.
#[tokio::test(start_paused = true)]
async fn a_dead_lane_costs_no_lock_of_another_lane() {
    let (store, client) = Lanes::new().await;
    let guards = hold(&client, &[0, 1, 2], 20_000).await;
    store.kill(1);
    sleep(2 * WATCHDOG_TIMEOUT).await;
    let lost = |lane: u32| {
        let of_lane = guards.iter().filter(move |guard| lane_of(guard.name()) == Lane(lane));
        let all = of_lane.clone().count();
        (of_lane.filter(|guard| guard.is_lost()).count(), all)
    };
    assert_eq!([lost(0), lost(1), lost(2)], [(0, 6667), (6667, 6667), (0, 6666)]);
    assert_eq!(guards[1].lost().await, LostReason::Unreachable);
}

/// The waiters have sent no request: their client has, for the same lanes.
#[tokio::test(start_paused = true)]
async fn a_waiter_fails_only_if_its_own_lane_does_not_answer() {
    let (store, client) = Lanes::new().await;
    let [healthy, dead] = ["0:it", "1:it"].map(|name| client.lock(name));
    let guards = [healthy.lock().await.unwrap(), dead.lock().await.unwrap()];
    let [waiting, failing] = [&healthy, &dead].map(|lock| tokio::spawn(lock.lock()));
    store.kill(1);
    sleep(ms(20_000)).await;
    // Its own renewals fail: the lane is known to be silent.
    assert_unreachable(&dead.try_lock_for(ms(100)).await);
    assert!(healthy.try_lock_for(ms(100)).await.unwrap().is_none(), "it is only busy");
    assert_unreachable(&joined(failing).await);
    sleep(2 * WATCHDOG_TIMEOUT).await;
    let [guard, _lost] = guards;
    guard.release().await.unwrap();
    joined(waiting).await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_answers_of_a_healthy_lane_do_not_hide_a_dead_one() {
    let (store, client) = Lanes::new().await;
    let _held = client.lock("1:it").lock().await.unwrap();
    let waiter = tokio::spawn(client.lock("1:it").lock());
    store.kill(1);
    let killed = Instant::now();
    // The first renewal fails after 13 s. The lease would end after 30 s.
    while killed.elapsed() < ms(25_000) {
        client.lock("0:it").lock().await.unwrap().release().await.unwrap();
        sleep(ms(100)).await;
    }
    assert!(waiter.is_finished(), "it still waits");
    assert_unreachable(&joined(waiter).await);
}

/// The store rejects a request for locks of several lanes without asking any of them.
#[tokio::test(start_paused = true)]
async fn locks_of_several_lanes_are_acquired_one_by_one_and_hide_no_dead_lane() {
    let (store, client) = Lanes::new().await;
    let both = MultiLock::new([client.lock("0:a"), client.lock("1:b")]);
    both.lock().await.unwrap().release().await.unwrap();
    let _held = client.lock("1:it").lock().await.unwrap();
    let waiter = tokio::spawn(client.lock("1:it").lock());
    store.kill(1);
    let killed = Instant::now();
    while killed.elapsed() < ms(25_000) {
        assert!(both.try_lock().await.is_err(), "one lane is dead");
        sleep(ms(100)).await;
    }
    assert!(waiter.is_finished(), "it still waits");
    assert_unreachable(&joined(waiter).await);
}

/// Dropped guards are released in the background; a shutdown releases all that is held. The healthy one comes
/// last.
#[tokio::test(start_paused = true)]
async fn thousands_of_releases_in_a_dead_lane_delay_none_in_another() {
    for shutdown in [false, true] {
        let (store, client) = Lanes::new().await;
        let mut guards = hold(&client, &[1], 6_000).await;
        guards.push(client.lock("0:it").lock().await.unwrap());
        store.kill(1);
        let start = Instant::now();
        let closing = shutdown.then(|| tokio::spawn(async move { client.shutdown().await }));
        if closing.is_none() {
            guards.clear();
        }
        let other = store.client();
        let guard = other.lock("0:it").lock().await.unwrap();
        assert!(start.elapsed() < ms(100), "shutdown: {shutdown}: {:?}", start.elapsed());
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_reconnection_makes_the_client_check_the_leases_of_its_lane_only() {
    let (store, client) = Lanes::new().await;
    let _guards = hold(&client, &[0, 1, 2], 600).await;
    sleep(ms(1000)).await;
    let checked_after = async |reconnected: &[Option<Lane>]| {
        store.batches();
        for lane in reconnected {
            store.inner.reconnected(*lane);
        }
        sleep(ms(100)).await;
        let checked: Vec<_> = store.batches().into_iter().flatten().collect();
        [0, 1, 2].map(|lane| checked.iter().filter(|of| **of == Lane(lane)).count())
    };
    assert_eq!(checked_after(&[]).await, [0, 0, 0]);
    assert_eq!(checked_after(&[Some(Lane(1))]).await, [0, 200, 0]);
    assert_eq!(checked_after(&[Some(Lane(2)), Some(Lane(0))]).await, [200, 0, 200]);
    assert_eq!(checked_after(&[None]).await, [200, 200, 200]);
    assert_eq!(checked_after(&[Some(Lane(1)), None]).await, [200, 200, 200]);
    // No more than 1024 messages are kept: what another one said may concern every lane.
    assert_eq!(checked_after(&[Some(Lane(1)); 1024]).await, [0, 200, 0]);
    assert_eq!(checked_after(&[Some(Lane(1)); 1025]).await, [200, 200, 200]);
}

/// The request that is under way was sent before.
#[tokio::test(start_paused = true)]
async fn a_reconnection_during_a_renewal_makes_the_client_check_again() {
    let memory = Memory::new();
    let flaky = Flaky::new(memory.clone());
    let client = Client::with_backend(flaky.backend(), ClientOptions::new()).unwrap();
    sleep(Duration::from_secs(3600)).await;
    let _guard = client.lock("it").lock().await.unwrap();
    flaky.script([Gate::Slow(ms(2000))]);
    while flaky.calls(Verb::Renew) == 0 {
        sleep(ms(100)).await;
    }
    memory.reconnected(None);
    sleep(ms(3000)).await;
    assert_eq!(flaky.calls(Verb::Renew), 2);
}

/// A mixed batch would be answered when the dead lane is given up.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_of_one_lane_does_not_wait_for_another() {
    let (store, ours) = Lanes::new().await;
    let theirs = store.client();
    let mut held = Vec::new();
    for lane in [0, 1, 2] {
        held.push(theirs.fair_lock(format!("{lane}:it")).lock().await.unwrap());
        tokio::spawn(ours.fair_lock(format!("{lane}:it")).lock());
    }
    sleep(ms(5000)).await;
    let batches = store.batches();
    for lane in [0, 1, 2] {
        assert!(batches.iter().any(|batch| *batch == [Lane(lane)]), "{batches:?}");
    }
    let mixed = batches.iter().find(|batch| batch.iter().any(|lane| *lane != batch[0]));
    assert_eq!(mixed, None);
}
