//! Thousands of random cycles over everything there is, dropped half-way, forced and killed, leave
//! what should be there and nothing else: every permit, the tokens, what ends by itself.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{AnyLock, Client, ClientOptions, CountDownLatch, Error, MultiLock, Result};
use testkit::{ChildProcess, RedisServer};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The longest lease of killed processes: their holds are free after that.
const LEASE: Duration = Duration::from_millis(1500);

/// That of the one that lives: what it leaves behind stays for longer than the test.
const LONG: Duration = Duration::from_secs(600);

/// Of each kind; few, so that there is much waiting.
const NAMES: usize = 3;

/// Of each semaphore.
const PERMITS: u32 = 5;

/// Tasks of one process.
const TASKS: usize = 40;

/// The most turns of the runtime after which something is dropped: finer than any timer, so that some of it is
/// dropped before it is sent.
const TURNS: usize = 60;

/// All of it takes a small part of this. Whatever is left behind keeps others waiting for longer.
const LIMIT: Duration = Duration::from_secs(300);

/// Cycles of the process that lives.
const CYCLES: usize = 16_000;

/// Processes that are killed, one after the other in each of [`GRAVES`] lines.
const DEATHS: usize = 16;
const GRAVES: usize = 2;

/// Tells a process of this very binary that it is one of them, and where the store is.
const DIES_AT: &str = "LOCKKEEPER_LEAKS_DIES_AT";

/// What may hold a name: whatever a name of one kind may be asked for.
const KINDS: [&str; 6] = ["lock", "mutex", "fair", "rw", "fenced", "spin"];

fn options(fate: Fate) -> ClientOptions {
    let lease = if fate == Fate::Lives { LONG } else { LEASE };
    ClientOptions::new().watchdog_timeout(lease)
}

/// Whether the process will be killed. It takes no permits that a crash loses for good.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Lives,
    Dies,
}

/// The outcome of `work`, if it is not dropped before.
async fn or_drop<T>(work: impl IntoFuture<Output = T>) -> Option<T> {
    let turns = async {
        for _ in 0..fastrand::usize(..TURNS) {
            tokio::task::yield_now().await;
        }
    };
    match fastrand::u8(..4) {
        0 => Some(work.await),
        1 => tokio::select! {
            biased;
            done = work.into_future() => Some(done),
            () = turns => None,
        },
        _ => timeout(Duration::from_micros(fastrand::u64(..4000)), work).await.ok(),
    }
}

/// What may become of a request here: what another cycle took away was lost.
#[track_caller]
fn fine<T>(outcome: Result<T>) -> Option<T> {
    match outcome {
        Ok(done) => Some(done),
        Err(Error::NotHeld { .. } | Error::Lost { .. } | Error::Invalid { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn name(kind: &str) -> String {
    format!("{kind} {}", fastrand::usize(..NAMES))
}

fn lock(client: &Client, kind: &str) -> AnyLock {
    let name = name(kind);
    let owner = client.new_owner();
    match kind {
        "lock" => client.lock(name).as_owner(&owner).into(),
        "mutex" => client.mutex(name).into(),
        "fair" => client.fair_lock(name).into(),
        "fenced" => client.fenced_lock(name).into(),
        "spin" => client.spin_lock(name).into(),
        "rw" => client.rw_lock(name).fenced().as_owner(&owner).writer(),
        other => panic!("no such kind: {other}"),
    }
}

/// The sides of a read/write lock, one beside the other or one after the other.
async fn sides(client: &Client) {
    let rw = client.rw_lock(name("rw")).as_owner(&client.new_owner());
    if fastrand::bool() {
        let Some(reading) = or_drop(rw.read()).await.and_then(fine) else { return };
        match or_drop(reading.try_upgrade()).await {
            Some(Ok(writing)) => drop(or_drop(writing.release()).await.map(fine)),
            Some(Err(refused)) => drop(refused.into_guard()),
            None => {}
        }
    } else {
        let Some(writing) = or_drop(rw.write()).await.and_then(fine) else { return };
        let nested = or_drop(writing.read()).await.and_then(fine);
        match fastrand::u8(..3) {
            0 => drop(or_drop(writing.downgrade()).await.map(fine)),
            1 => drop((writing, nested)),
            _ => drop((nested, writing)),
        }
    }
}

/// A hold, or the attempt at one, that ends in one of many ways.
async fn hold(lock: AnyLock) {
    let fixed = fastrand::u8(..3) == 0;
    let span = Duration::from_millis(fastrand::u64(20..200));
    let lock = if fixed { lock.lease(span) } else { lock };
    let Some(guard) = or_drop(lock.lock()).await else { return };
    let guard = guard.unwrap();
    match fastrand::u8(..12) {
        0 => drop(guard),
        1 => drop(guard.release()),
        2 => drop(or_drop(guard.release()).await.map(fine)),
        3 => drop(or_drop(guard.reenter()).await.map(fine)),
        4 => drop(or_drop(guard.extend(span)).await.map(fine)),
        5 => drop(fine(guard.leave_for(span).await)),
        6 if fixed => std::mem::forget(guard),
        _ => drop(fine(guard.release().await)),
    }
}

async fn hold_several(client: &Client) {
    let rw = client.rw_lock(name("rw"));
    let all = [
        AnyLock::from(client.lock(name("lock"))),
        AnyLock::from(client.mutex(name("mutex"))),
        AnyLock::from(client.fair_lock(name("fair"))),
        AnyLock::from(client.spin_lock(name("spin"))),
        if fastrand::bool() { rw.writer() } else { rw.reader() },
    ];
    let some = all.into_iter().filter(|_| fastrand::bool());
    let Some(guard) = or_drop(MultiLock::new(some).lock()).await.and_then(fine) else { return };
    match fastrand::u8(..3) {
        0 => drop(guard),
        1 => drop(or_drop(guard.release()).await.map(fine)),
        _ => drop(fine(guard.release().await)),
    }
}

async fn use_permits(client: &Client) {
    let semaphore = client.semaphore(name("semaphore"));
    let count = fastrand::u32(1..=3);
    let Some(permit) = or_drop(semaphore.acquire(count)).await else { return };
    let permit = permit.unwrap();
    match fastrand::u8(..5) {
        0 => drop(permit),
        1 => drop(or_drop(permit.release()).await.map(Result::unwrap)),
        2 => {
            permit.forget();
            semaphore.add_permits(i64::from(count)).await.unwrap();
        }
        3 => {
            semaphore.add_permits(i64::from(count)).await.unwrap();
            permit.release().await.unwrap();
            semaphore.add_permits(-i64::from(count)).await.unwrap();
        }
        _ => permit.release().await.unwrap(),
    }
}

async fn use_permits_with_ids(client: &Client) {
    let semaphore = client.permit_semaphore(name("permits"));
    let count = fastrand::u32(1..=3);
    if fastrand::u8(..4) > 0 {
        return hold(semaphore.into()).await;
    }
    let Some(guard) = or_drop(semaphore.acquire(count)).await else { return };
    let guard = guard.unwrap();
    let _ = or_drop(semaphore.release(&guard.permit_ids())).await.map(fine);
}

async fn use_a_latch(latch: CountDownLatch) {
    match fastrand::u8(..5) {
        0 => drop(or_drop(latch.try_set_count(fastrand::u64(1..4))).await.map(Result::unwrap)),
        1 => drop(timeout(Duration::from_millis(fastrand::u64(..9)), latch.wait()).await),
        // It may be over before the store could answer at all.
        2 => drop(latch.wait_for(Duration::from_millis(fastrand::u64(..99))).await),
        3 => drop(or_drop(latch.delete()).await.map(Result::unwrap)),
        _ => drop(or_drop(latch.count_down()).await.map(Result::unwrap)),
    }
}

/// Only the first of each kind: on the others it would hide what was left behind.
async fn force(client: &Client) {
    let forced = match fastrand::u8(..4) {
        0 => client.lock("lock 0").force_unlock("for the test").await,
        1 => client.mutex("mutex 0").force_unlock("").await,
        2 => client.fair_lock("fair 0").force_unlock("").await,
        _ => client.rw_lock("rw 0").force_unlock("").await,
    };
    forced.unwrap();
}

async fn cycle(client: &Client, fate: Fate) {
    match fastrand::u8(..20) {
        0 => force(client).await,
        1 | 2 => hold_several(client).await,
        3..=5 => use_permits_with_ids(client).await,
        6 | 7 => use_a_latch(client.count_down_latch(name("latch"))).await,
        8..=10 if fate == Fate::Lives => use_permits(client).await,
        11 | 12 => sides(client).await,
        _ => hold(lock(client, KINDS[fastrand::usize(..KINDS.len())])).await,
    }
}

/// Never ends; counts.
fn keep_cycling(client: &Client, cycles: &Arc<AtomicUsize>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS / 4 {
        let (client, cycles) = (client.clone(), Arc::clone(cycles));
        tasks.spawn(async move {
            loop {
                cycle(&client, Fate::Dies).await;
                cycles.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tasks
}

/// A process that is killed. Does nothing unless its environment says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed() {
    let Ok(url) = std::env::var(DIES_AT) else { return };
    let client = Client::connect_with(&url, options(Fate::Dies)).await.unwrap();
    let cycles = Arc::new(AtomicUsize::new(0));
    let mut tasks = keep_cycling(&client, &cycles);
    let at_it = async || cycles.load(Ordering::Relaxed) > TASKS;
    eventually("it is at it", async || at_it().await.then_some(()).ok_or(String::new())).await;
    println!("at it");
    tasks.join_next().await.expect("they never end").unwrap();
}

/// Starts such processes and kills them, one after the other.
fn kill_processes(url: &str) {
    for _ in 0..DEATHS / GRAVES {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_process_that_is_killed", "--nocapture"]).env(DIES_AT, url);
        let child = ChildProcess::from_command(command);
        child.expect_line("at it");
        std::thread::sleep(Duration::from_millis(fastrand::u64(..400)));
        child.kill();
    }
}

/// Polls until the condition holds.
async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> Result<(), String>) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while let Err(found) = condition().await {
        assert!(Instant::now() < deadline, "{what}: {found}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// `Ok` if they are the same.
fn same<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?}, not {expected:?}")) }
}

async fn set_up(client: &Client) {
    for n in 0..NAMES {
        let permits = u64::from(PERMITS);
        let semaphore = client.semaphore(format!("semaphore {n}"));
        assert!(semaphore.try_set_permits(permits, None).await.unwrap());
        let semaphore = client.permit_semaphore(format!("permits {n}"));
        assert!(semaphore.try_set_permits(permits, None).await.unwrap());
    }
    // One for each cycle, and one more.
    let exact = client.count_down_latch("exact");
    assert!(exact.try_set_count(CYCLES as u64 + 1).await.unwrap());
}

/// All cycles of this process, beside the processes that are killed.
async fn work(clients: &[Client], deaths: Vec<std::thread::JoinHandle<()>>) {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let client = clients[task % clients.len()].clone();
        tasks.spawn(async move {
            let exact = client.count_down_latch("exact");
            for _ in 0..CYCLES / TASKS {
                cycle(&client, Fate::Lives).await;
                // Once polled it is done, also when it is dropped.
                let _ = or_drop(exact.count_down()).await.map(Result::unwrap);
            }
        });
    }
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    };
    timeout(LIMIT, all).await.expect("somebody waits for what was left behind");
    for death in deaths {
        tokio::task::spawn_blocking(move || death.join()).await.unwrap().unwrap();
    }
}

/// After everything: all permits are there, and every name is free for whoever comes next, at the
/// latest when the leases of the dead have ended.
async fn everything_is_free(client: &Client) {
    // Far below what is left behind by a process that lives.
    let patience = Duration::from_secs(30);
    for n in 0..NAMES {
        let semaphore = client.semaphore(format!("semaphore {n}"));
        let all = i64::from(PERMITS);
        eventually("permits lost or made", async || {
            same(semaphore.available().await.unwrap(), all)
        })
        .await;
        let semaphore = client.permit_semaphore(format!("permits {n}"));
        eventually("permits with ids lost or made", async || {
            let free = semaphore.available().await.unwrap();
            same((free, semaphore.acquired().await.unwrap()), (all, 0))
        })
        .await;
        // What has ended is swept out by the next request.
        let guard = timeout(patience, semaphore.acquire(PERMITS)).await;
        guard.expect("all permits").unwrap().release().await.unwrap();
        client.count_down_latch(format!("latch {n}")).delete().await.unwrap();
        for lock in [
            AnyLock::from(client.lock(format!("lock {n}"))),
            client.mutex(format!("mutex {n}")).into(),
            client.fair_lock(format!("fair {n}")).into(),
            client.rw_lock(format!("rw {n}")).writer(),
            client.fenced_lock(format!("fenced {n}")).into(),
            client.spin_lock(format!("spin {n}")).into(),
        ] {
            let what = format!("{lock:?}");
            let guard = timeout(patience, lock.lock()).await;
            guard
                .unwrap_or_else(|_| panic!("still held: {what}"))
                .unwrap()
                .release()
                .await
                .unwrap();
        }
    }
    let exact = client.count_down_latch("exact");
    eventually("a count was lost or made", async || same(exact.count().await.unwrap(), 1)).await;
    assert!(exact.delete().await.unwrap());
}

/// What stands in the server beside what is expected, with how long it stays.
fn left_over(server: &RedisServer) -> Vec<(String, i64)> {
    let semaphore = |key: &str| {
        let of = |kind: &str| (0..NAMES).any(|n| key == format!("{kind} {n}"));
        of("semaphore") || of("permits")
    };
    let keys = server.cli(&["KEYS", "*"]).ok();
    let keys = keys.array().iter().map(|key| key.text().to_owned()).filter(|key| !semaphore(key));
    let keys = keys.filter(|key| !key.starts_with("redisson_lock_token:{"));
    let with_end = keys.map(|key| {
        let left = server.cli(&["PTTL", &key]).int();
        (key, left)
    });
    // Gone meanwhile.
    with_end.filter(|(_, left)| *left != -2).collect()
}

/// Whether a key may remain for a while after all clients have ended.
fn ends_by_itself((key, left): &(String, i64)) -> bool {
    let longest = |what: &str| match what {
        "lockkeeper_replies" | "lockkeeper_grace" => 60_000,
        "lockkeeper_patience" => 10_000,
        "lockkeeper_client" | "lockkeeper_clients" => LONG.as_millis() as i64,
        "lockkeeper_forced" => 7 * 24 * 3_600_000,
        _ => -1,
    };
    (0..=longest(key.split(':').next().unwrap_or_default())).contains(left)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_at_once_leaves_nothing_in_redis() {
    let server = RedisServer::start();
    let connect = async || Client::connect_with(&server.url(), options(Fate::Lives)).await.unwrap();
    let clients = [connect().await, connect().await, connect().await];
    set_up(&clients[0]).await;
    let deaths = (0..GRAVES).map(|_| {
        let url = server.url();
        std::thread::spawn(move || kill_processes(&url))
    });
    work(&clients, deaths.collect()).await;
    everything_is_free(&clients[0]).await;
    eventually("keys left", async || {
        let mut keys = left_over(&server);
        keys.retain(|key| !ends_by_itself(key));
        same(keys, Vec::new())
    })
    .await;
    for n in 0..NAMES {
        for key in [format!("semaphore {n}"), format!("permits {n}")] {
            assert_eq!(server.cli(&["GET", &key]).text(), PERMITS.to_string(), "{key}");
            assert_eq!(server.cli(&["PTTL", &key]).int(), -1, "{key}");
        }
    }
    eventually("subscriptions left", async || {
        same(server.cli(&["PUBSUB", "CHANNELS"]).array().len(), 0)
    })
    .await;
    for client in clients {
        client.shutdown().await;
    }
    eventually("notes of clients left", async || {
        let keys = left_over(&server).into_iter().filter(|(key, _)| key.contains("_client:"));
        same(keys.collect::<Vec<_>>(), Vec::new())
    })
    .await;
}
