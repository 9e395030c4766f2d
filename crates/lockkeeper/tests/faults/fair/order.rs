//! The order of grants, and the delay by waiters that died.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::{Client, ClientOptions, FencedLock};
use testkit::{ChildProcess, FaultProxy, example_path};
use tokio::task::JoinHandle;

use super::support::*;

/// Tokens and owners, in the order of grants.
type Grants = Arc<Mutex<Vec<(u64, String)>>>;

/// Waits, has the lock for an instant, and passes it on.
fn passer_by(lock: FencedLock, grants: &Grants) -> JoinHandle<()> {
    let grants = Arc::clone(grants);
    tokio::spawn(async move {
        let guard = lock.lock().await.expect("reachable");
        let grant = (guard.token(), guard.owner_id().to_string());
        grants.lock().unwrap_or_else(PoisonError::into_inner).push(grant);
        guard.release().await.expect("it is held");
    })
}

fn child(rig: &Rig, count: usize) -> ChildProcess {
    let (url, count) = (rig.server.url(), count.to_string());
    ChildProcess::spawn(example_path("queue"), [url.as_str(), &rig.name, &count])
}

/// The tokens and owners of what a child has said.
fn said(child: &ChildProcess, limit: Duration) -> Vec<(u64, String)> {
    let mut grants = Vec::new();
    while let Some(line) = child.next_line(limit) {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["held", owner, token] => grants.push((token.parse().unwrap(), owner.to_owned())),
            _ => break,
        }
    }
    grants
}

/// A client that ends without a word: its runtime goes, and with it everything that could speak.
struct Mortal {
    runtime: Option<tokio::runtime::Runtime>,
}

impl Mortal {
    fn new(url: String, name: String, count: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be built");
        runtime.spawn(async move {
            let options = ClientOptions::new().watchdog_timeout(ms(1_000));
            let options = options.connect_timeout(PATIENCE);
            let client = Client::connect_with(&url, options).await.expect("reachable");
            let lock = client.fair_lock(&name).fenced();
            let waiting: Vec<_> =
                (0..count).map(|_| tokio::spawn(wait_and_keep(lock.clone()))).collect();
            for task in waiting {
                drop(task.await);
            }
        });
        Self { runtime: Some(runtime) }
    }

    fn die(mut self) {
        self.runtime.take().expect("it dies once").shutdown_background();
    }
}

async fn wait_and_keep(lock: FencedLock) {
    let guard = lock.lock().await.expect("reachable");
    guard.release().await.expect("it is held");
}

/// Several hundred from several clients and processes, some of which end while the lock goes round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn surviving_waiters_are_served_in_their_order_of_arrival() {
    const CLIENTS: usize = 4;
    const ROUNDS: usize = 18;
    let rig = Rig::new("a");
    let guard = rig.held().await;
    let watch = Stopwatch::start();
    let grants = Grants::default();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(rig.lock().await.fenced());
    }
    // In waves, so that waiters that will die are everywhere in the queue.
    let (mut tasks, mut quitters) = (Vec::new(), Vec::new());
    let (mut children, mut mortals) = (Vec::new(), Vec::new());
    let mut expected_len = 0;
    for wave in 0..3 {
        children.push(child(&rig, 8));
        mortals.push(Mortal::new(rig.server.url(), rig.name.clone(), 8));
        for number in 0..CLIENTS * ROUNDS {
            let lock = clients[number % CLIENTS].clone();
            let task = passer_by(lock, &grants);
            if number % 12 == wave { quitters.push(task) } else { tasks.push(task) }
        }
        expected_len += 8 + 8 + CLIENTS * ROUNDS;
        eventually(PATIENCE, "all of a wave wait", || rig.queue().len() == expected_len).await;
    }
    let arrived = rig.queue();
    assert_eq!(arrived.len(), 3 * (16 + CLIENTS * ROUNDS));
    let survivor = children.pop().expect("there are three");
    mortals.reverse();

    // Some die before it begins; their places are behind living ones, at the front, and in a row.
    children.remove(0).kill();
    let begun = Stopwatch::start();
    guard.release().await.unwrap();
    let total = tasks.len();
    let served = || grants.lock().unwrap_or_else(PoisonError::into_inner).len();
    let mut random = numbers(7);
    for share in [total / 5, total * 2 / 5, total * 3 / 5] {
        eventually(PATIENCE, "it goes round", || served() >= share).await;
        for _ in 0..quitters.len() / 2 {
            let task = quitters.swap_remove(random() % quitters.len());
            cancel(task).await;
        }
        match share {
            _ if share == total * 2 / 5 => children.remove(0).kill(),
            _ => mortals.pop().expect("there are three").die(),
        }
    }
    for task in tasks.into_iter().chain(quitters) {
        within(PATIENCE, "its turn", task).await;
    }
    let mut granted = grants.lock().unwrap_or_else(PoisonError::into_inner).clone();
    granted.extend(said(&survivor, PATIENCE));
    mortals.into_iter().for_each(Mortal::die);
    // Four deaths, each of a whole client: the silence of each and, at worst, a lease of two seconds.
    let took = begun.elapsed();
    assert!(took < 4 * (DEATH + ms(2_000)), "{took:?}");
    granted.sort();
    let order: Vec<_> = granted.into_iter().map(|(_, owner)| owner).collect();
    let place = |owner: &String| arrived.iter().position(|other| other == owner);
    let places: Vec<_> = order.iter().map(|owner| place(owner).expect("it stood there")).collect();
    assert!(places.is_sorted() || watch.stalled(), "not in order of arrival: {places:?}");
    assert!(places.len() >= total + 8, "{} were served", places.len());
    // Stale waiters behind all survivors are removed by the next request.
    let lock = clients[0].clone();
    let last = tokio::spawn(async move { lock.lock().await.unwrap().release().await.unwrap() });
    within(2 * DEATH, "the last", last).await;
    rig.nothing_is_left().await;
}

/// Numbers that are the same in each run.
fn numbers(seed: u64) -> impl FnMut() -> usize {
    let mut state = seed;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    }
}

/// Deaths in a row cost no more than one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_died_together_are_removed_together() {
    let rig = Rig::new("a");
    let guard = rig.held().await;
    let dead = [child(&rig, 3), child(&rig, 3)];
    eventually(PATIENCE, "they wait", || rig.queue().len() == 6).await;
    let (id, task) = rig.waiter(&rig.lock().await).await;
    for child in dead {
        child.kill();
    }
    let watch = Stopwatch::start();
    guard.release().await.unwrap();
    let guard = within(DEATH_AT_WORST, "the one that lives", task).await;
    assert!(watch.elapsed() > ms(1_000) || watch.stalled(), "they were given their time");
    assert_eq!(guard.owner_id().to_string(), id);
    guard.release().await.unwrap();
    rig.nothing_is_left().await;
}

/// When all waiters were silent, the server was stopped: no waiter is skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_costs_no_waiter_its_queue_position() {
    let rig = Rig::new("a");
    let guard = rig.held().await;
    let (mut ids, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        let (id, task) = rig.waiter(&rig.lock().await).await;
        ids.push(id);
        tasks.push(task);
    }
    let pauses = Stopwatch::start();
    rig.server.pause();
    // Time is what is tested: longer than the silence after which one of them would be dead.
    eventually(PATIENCE, "time passes", || pauses.elapsed() > ms(4_000)).await;
    rig.server.resume();
    let resumed = rig.now();
    let all = || rig.seen().values().filter(|heard| **heard >= resumed).count() == ids.len();
    eventually(PATIENCE, "all have spoken", all).await;
    assert_eq!(rig.queue(), ids);
    let mut guard = guard;
    for (id, task) in ids.into_iter().zip(tasks) {
        guard.release().await.unwrap();
        guard = within(SOON, "its turn", task).await;
        assert_eq!(guard.owner_id().to_string(), id);
    }
    guard.release().await.unwrap();
    rig.nothing_is_left().await;
}

/// A client that shuts down removes its waiters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_waiters_of_a_client_that_shuts_down_leave_at_once() {
    let rig = Rig::new("a");
    let guard = rig.held().await;
    let client = rig.client().await;
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let lock = client.fair_lock(&rig.name);
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    eventually(SOON, "they wait", || rig.queue().len() == 5).await;
    let (id, task) = rig.waiter(&rig.lock().await).await;
    client.shutdown().await;
    for ended in waiting {
        let ended = within(SOON, "it ends", ended).await;
        assert!(matches!(ended, Err(lockkeeper::Error::Closed { .. })), "{ended:?}");
    }
    assert_eq!(rig.queue(), [id]);
    assert_eq!((rig.scores().len(), rig.seen().len()), (1, 1));
    guard.release().await.unwrap();
    within(SOON, "the next", task).await.release().await.unwrap();
    rig.nothing_is_left().await;
}

/// The head is cancelled when it is woken: the next waiter is woken at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_cancelled_at_its_wake_up_wakes_the_next_waiter() {
    const ROUNDS: usize = 200;
    let rig = Rig::new("a");
    let mut guard = rig.held().await;
    // A slow connection: it goes before it has heard, while it asks, or when it has the lock.
    let proxy = FaultProxy::start(rig.server.port()).await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    proxy.delay(ms(2));
    let (leaves, stays) = (client.fair_lock(&rig.name), rig.lock().await);
    let mut random = numbers(11);
    let mut slow = 0;
    for _ in 0..ROUNDS {
        let (_, leaving) = rig.waiter(&leaves).await;
        let (id, staying) = rig.waiter(&stays).await;
        guard.release().await.unwrap();
        // Not to wait for anything, but to be anywhere.
        tokio::time::sleep(Duration::from_micros(random() as u64 % 7_000)).await;
        cancel(leaving).await;
        let watch = Stopwatch::start();
        guard = within(SOON, "the next", staying).await;
        assert_eq!(guard.owner_id().to_string(), id);
        // A heartbeat every 0.8 s wakes the head, too: a lost wake-up costs half of that.
        slow += usize::from(watch.elapsed() > ms(200));
    }
    assert!(slow <= ROUNDS / 40, "{slow} of {ROUNDS} were not told at once");
    guard.release().await.unwrap();
    rig.nothing_is_left().await;
}

/// A head that is frozen is passed over; when it goes on it waits again, and gets its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_head_is_skipped_and_served_later() {
    let rig = Rig::new("a");
    let guard = rig.held().await;
    let frozen = child(&rig, 2);
    eventually(PATIENCE, "it waits", || rig.queue().len() == 2).await;
    let both = rig.queue();
    let lock = rig.lock().await;
    let (first, first_task) = rig.waiter(&lock).await;
    let (second, second_task) = rig.waiter(&lock).await;
    frozen.pause();
    guard.release().await.unwrap();
    let guard = within(DEATH_AT_WORST, "passed over", first_task).await;
    assert_eq!(guard.owner_id().to_string(), first);
    assert_eq!(rig.queue(), [second.as_str()]);
    frozen.resume();
    eventually(PATIENCE, "it waits again", || rig.queue().len() == 3).await;
    let queue = rig.queue();
    assert_eq!(queue[0], second, "at the end");
    assert!(both.iter().all(|id| queue.contains(id)), "as who it was: {queue:?}");
    assert_eq!(frozen.next_line(ms(0)), None, "it was not its turn");
    guard.release().await.unwrap();
    let guard = within(SOON, "the second", second_task).await;
    assert_eq!(guard.owner_id().to_string(), second);
    guard.release().await.unwrap();
    let had: Vec<_> = said(&frozen, PATIENCE).into_iter().map(|(_, owner)| owner).collect();
    assert_eq!(had, queue[1..], "in the order of the queue");
    rig.nothing_is_left().await;
}
