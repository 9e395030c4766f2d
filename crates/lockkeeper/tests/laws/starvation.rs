//! No waiter starves. The law runs on every store, the tests on memory with a paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::stores::Memory;
use lockkeeper::{AnyLock, Client, ClientOptions, Kind, RwLock};
use testkit::{Flaky, Gate, Verb};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::store::{Exclusive, Store, eventually, pair};

/// A client that hands the lock off inside itself does not keep it from other clients.
pub(crate) async fn a_busy_client_does_not_starve_another<L: Exclusive>(store: &Store) {
    let (busy, other) = pair::<L>(store).await;
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (busy, stop, rounds) = (busy.clone(), Arc::clone(&stop), Arc::clone(&rounds));
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = busy.lock().await.unwrap();
                sleep(Duration::from_millis(1)).await;
                guard.release().await.unwrap();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for turn in 0..5 {
        // A round of theirs in between, so that the lock was contended each time.
        let before = rounds.load(Ordering::Relaxed);
        let gets_in = timeout(store.long(), other.lock()).await;
        let guard = gets_in.unwrap_or_else(|_| panic!("starved at turn {turn}")).unwrap();
        guard.release().await.unwrap();
        eventually("the busy client goes on", async || rounds.load(Ordering::Relaxed) > before)
            .await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// A client uses the later of two clocks: after an hour that is the paused one, however slow the machine is.
const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn client(store: &Arc<Memory>) -> Client {
    Client::with_backend(store.clone(), ClientOptions::new()).unwrap()
}

/// Three clients with many tasks each: all get about as many turns.
#[tokio::test(start_paused = true)]
async fn three_busy_clients_take_turns() {
    let store = Memory::new();
    let clients = [client(&store), client(&store), client(&store)];
    sleep(HOUR).await;
    let (until, mut tasks) = (Instant::now() + ms(4000), JoinSet::new());
    for task in 0..12 {
        let lock = clients[task % 3].lock("it");
        tasks.spawn(async move {
            let mut turns = 0;
            while Instant::now() < until {
                let guard = lock.lock().await.unwrap();
                sleep(ms(2)).await;
                guard.release().await.unwrap();
                turns += 1;
            }
            (task % 3, turns)
        });
    }
    let mut turns = [0; 3];
    tasks.join_all().await.into_iter().for_each(|(client, count)| turns[client] += count);
    assert!(turns.iter().max() <= turns.iter().min().map(|least| 2 * least).as_ref(), "{turns:?}");
}

/// Reads and pauses for these spans, for ever.
async fn reading(lock: RwLock, delay: Duration, reads: Duration, rests: Duration) {
    sleep(delay).await;
    loop {
        let guard = lock.read().await.unwrap();
        sleep(reads).await;
        guard.release().await.unwrap();
        sleep(rests).await;
    }
}

/// Each read is longer than the time for which a reader waits behind a writer: before the last reader leaves,
/// the next one has waited long enough. One batch is admitted, and no second one before the writer.
#[tokio::test(start_paused = true)]
async fn long_reads_do_not_starve_a_writer() {
    let lock = Client::memory().rw_lock("it");
    let mut readers = JoinSet::new();
    for i in 0..3 {
        readers.spawn(reading(lock.clone(), i * ms(3000), ms(8000), Duration::ZERO));
    }
    sleep(ms(7000)).await;
    for _ in 0..5 {
        // The present readers, and one batch after them.
        let writer = timeout(3 * ms(8000), lock.write()).await;
        writer.expect("the writer starves").unwrap().release().await.unwrap();
        sleep(ms(9000)).await;
    }
}

/// Many readers, each with another duration.
#[tokio::test(start_paused = true)]
async fn readers_of_different_durations_do_not_starve_a_writer() {
    let lock = Client::memory().rw_lock("it");
    let mut readers = JoinSet::new();
    for i in 0..30_u64 {
        let reads = ms(6000 + i * 7919 % 24_000);
        readers.spawn(reading(lock.clone(), ms(i * 700), reads, ms(i * 1009 % 10_000)));
    }
    sleep(ms(20_000)).await;
    for _ in 0..5 {
        let writer = timeout(3 * ms(30_000), lock.write()).await;
        writer.expect("the writer starves").unwrap().release().await.unwrap();
        sleep(ms(1000)).await;
    }
}

/// Sixteen tasks of a near client use a lock all the time. A far client acquires it within a second each time,
/// and the near one keeps at least half of its throughput.
#[tokio::test(start_paused = true)]
async fn a_far_client_acquires_the_lock_beside_a_busy_near_one() {
    for kind in [Kind::Lock, Kind::Mutex, Kind::Write] {
        let alone = acquired_nearby(kind, None).await;
        for one_way in [1, 3, 10] {
            let beside = acquired_nearby(kind, Some(ms(one_way))).await;
            assert!(2 * beside >= alone, "{kind} at {one_way} ms: {beside} against {alone}");
        }
    }
}

/// How often the near client acquires the lock in ten seconds.
async fn acquired_nearby(kind: Kind, far_away: Option<Duration>) -> u64 {
    let memory = Memory::new();
    let flaky = Flaky::new(memory.clone());
    let far = Client::with_backend(flaky.backend(), ClientOptions::new()).unwrap();
    let near = client(&memory);
    sleep(HOUR).await;
    let request = move |client: &Client| {
        let lock: AnyLock = match kind {
            Kind::Mutex => client.mutex("it").into(),
            Kind::Write => client.rw_lock("it").writer(),
            _ => client.lock("it").into(),
        };
        lock.lock()
    };
    let count = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (near, count) = (near.clone(), Arc::clone(&count));
        tasks.spawn(async move {
            loop {
                let guard = request(&near).await.unwrap();
                sleep(ms(1)).await;
                guard.release().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let end = Instant::now() + ms(10_000);
    let Some(one_way) = far_away else {
        tokio::time::sleep_until(end).await;
        return count.load(Ordering::Relaxed);
    };
    // Messages are not delayed, so the request and its answer take twice as long.
    flaky.script(std::iter::repeat_n(Gate::Slow(4 * one_way), 100_000));
    while Instant::now() < end {
        let asked = async { request(&far).await };
        let granted = timeout(ms(1000), asked).await;
        let guard = granted.unwrap_or_else(|_| panic!("{kind} at {one_way:?}: not within 1 s"));
        guard.unwrap().release().await.unwrap();
    }
    count.load(Ordering::Relaxed)
}

/// Writers of one client hold the lock for too long for a handoff. No other client listens, so that each
/// acquires it as soon as it is released.
#[tokio::test(start_paused = true)]
async fn writers_of_one_client_do_not_pause_without_a_competitor() {
    let lock = client(&Memory::new()).rw_lock("it");
    sleep(HOUR).await;
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let lock = lock.clone();
        tasks.spawn(async move {
            let guard = lock.write().await.unwrap();
            sleep(ms(11)).await;
            guard.release().await.unwrap();
        });
    }
    let start = Instant::now();
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let took = start.elapsed();
    assert!(took < 20 * ms(11) + ms(10), "{took:?}");
}

/// At most 16 clients subscribe, and a subscriber acquires before a client that polls. So some subscribers
/// leave at each re-check, and others subscribe instead.
#[tokio::test(start_paused = true)]
async fn subscribers_of_a_full_channel_make_room_for_others() {
    fastrand::seed(1);
    let store = Memory::new();
    sleep(HOUR).await;
    let _guard = client(&store).lock("it").lease(HOUR).lock().await.unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        tasks.spawn(client(&store).lock("it").lock());
    }
    sleep(ms(100)).await;
    let late = Flaky::new(store.clone());
    let lock = Client::with_backend(late.backend(), ClientOptions::new()).unwrap().lock("it");
    tasks.spawn(lock.lock());
    sleep(ms(2000)).await;
    assert_eq!(late.calls(Verb::Subscribe), 0, "there is room for 16");
    sleep(ms(60_000)).await;
    assert!(late.calls(Verb::Subscribe) > 0, "no client has made room");
}

/// Redis notifies subscribers in the order in which they subscribed.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_the_lock_to_others_subscribes_behind_them() {
    let store = Memory::new();
    let flaky = Flaky::new(store.clone());
    let ours = Client::with_backend(flaky.backend(), ClientOptions::new()).unwrap().lock("it");
    let theirs = client(&store).lock("it");
    sleep(HOUR).await;
    let held = theirs.lock().await.unwrap();
    let first = tokio::spawn(ours.lock());
    sleep(ms(10)).await;
    let second = tokio::spawn(ours.lock());
    sleep(ms(10)).await;
    held.release().await.unwrap();
    let first = first.await.unwrap().unwrap();
    let other = tokio::spawn(theirs.lock());
    // Too long for a handoff to the second task.
    sleep(ms(100)).await;
    assert_eq!(flaky.calls(Verb::Subscribe), 1, "for both tasks");
    first.release().await.unwrap();
    let other = other.await.unwrap().unwrap();
    sleep(ms(100)).await;
    assert_eq!(flaky.calls(Verb::Subscribe), 2);
    other.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
}
