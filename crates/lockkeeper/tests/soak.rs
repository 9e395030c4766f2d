//! A great many short cycles, a good part of them dropped half-way, leave nothing: no key, no
//! subscription, no task, no byte.
//!
//! `LOCKKEEPER_SOAK_CYCLES=10000000` sets the number of cycles of each test.

use std::alloc::System;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper::{AnyGuard, AnyLock, Client, Result};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use testkit::RedisServer;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Cycles on Redis, in the time that a test may take.
const CYCLES_REDIS: usize = 300_000;

/// What is alive then is what must be alive in the end.
const EARLY: usize = 100_000;

/// Blocks that may be alive more, beside the 1 %: on Redis the spare buffers of two clients and of three
/// threads, 64 each; in memory what the next ticks of two clients remove (up to 135 were seen on a loaded
/// machine); and room for a few of the runtime. So a leak in one of 500 cycles is found.
const BLOCKS: usize = 400;

/// Bytes that may be alive more on Redis. Read and write buffers, queues and tables keep the size of
/// their peak, and each of them doubles at once; no more of them exist, or `BLOCKS` would tell.
const BUFFERS: usize = 512 * 1024;

/// Tasks that make them.
const TASKS: usize = 64;

/// Names: enough that most are free, few enough that many are not.
const NAMES: usize = 512;

/// The most turns of the runtime after which something is dropped.
const TURNS: usize = 40;

/// The live bytes of the process are counted: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn cycles(default: usize) -> usize {
    match std::env::var("LOCKKEEPER_SOAK_CYCLES") {
        Ok(number) => number.parse().expect("LOCKKEEPER_SOAK_CYCLES is a number"),
        Err(_) => default,
    }
}

/// Polls until the condition holds.
async fn eventually(what: &str, mut condition: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while let Err(found) = condition() {
        assert!(Instant::now() < deadline, "{what}: {found}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// `Ok` if they are the same.
fn same<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?}, not {expected:?}")) }
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// The outcome of `work`, if it comes within a random number of turns of the runtime.
async fn or_drop<T>(work: impl Future<Output = T>) -> Option<T> {
    let late = async {
        for _ in 0..fastrand::usize(..TURNS) {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = late => None,
    }
}

/// One short hold, or the attempt at one, ended in one of many ways.
async fn cycle(client: &Client, name: &str) {
    let lock = AnyLock::from(client.lock(name));
    let mutex = AnyLock::from(client.mutex([name, " mutex"].concat()));
    let guard = match fastrand::u8(..8) {
        0 => or_drop(lock.lock()).await.map(Result::unwrap),
        1 => or_drop(lock.lease(Duration::from_secs(60)).lock()).await.map(Result::unwrap),
        2 => lock.try_lock_for(Duration::from_secs(60)).await.unwrap(),
        3 => or_drop(mutex.lock()).await.map(Result::unwrap),
        4 => or_drop(lock.as_owner(&client.new_owner()).lock()).await.map(Result::unwrap),
        5 => {
            let ran = or_drop(lock.run(|_| tokio::task::yield_now())).await;
            assert!(ran.is_none_or(|outcome| outcome.is_ok()));
            None
        }
        _ => lock.try_lock().await.unwrap(),
    };
    if let Some(guard) = guard {
        give_back(guard).await;
    }
}

async fn give_back(guard: AnyGuard) {
    match fastrand::u8(..8) {
        0 => drop(guard),
        1 => drop(guard.release()),
        2 => drop(or_drop(guard.release()).await),
        3 => drop(guard.lost()),
        4 => {
            // A mutex cannot be re-entered; a re-entry may also be dropped.
            let again = or_drop(guard.reenter()).await;
            drop(again);
            guard.release().await.unwrap();
        }
        5 => drop(or_drop(guard.extend(Duration::from_secs(60))).await),
        _ => guard.release().await.unwrap(),
    }
}

/// So many cycles by many tasks at once.
async fn work(clients: &[Client], cycles: usize) {
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let client = clients[task % clients.len()].clone();
            tokio::spawn(async move {
                for _ in 0..cycles / TASKS {
                    cycle(&client, &format!("name {}", fastrand::usize(..NAMES))).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// The most that the cycles can ever have at once, so that whatever grows with that and is kept for
/// the next time has grown when something is counted. `waiting` returns when as many wait as there are
/// names.
async fn burst(clients: &[Client], waiting: &impl AsyncFn()) {
    // The runtime's own queue of tasks doubles at its peaks: more than two reapers ever run at once,
    // and far from a power of two, so that a task more or less does not tip it over.
    let nothing: Vec<_> = (0..12_000).map(|_| tokio::spawn(async {})).collect();
    for task in nothing {
        task.await.unwrap();
    }
    let take_all = |client: &Client| -> Vec<_> {
        let take = |number: usize| {
            let name = format!("name {number}");
            let (lock, mutex) = (client.lock(&name), client.mutex([&name, " mutex"].concat()));
            let lock = lock.as_owner(&client.new_owner());
            async move { (lock.lock().await.unwrap(), mutex.lock().await.unwrap()) }
        };
        (0..NAMES).map(take).collect()
    };
    for holder in clients {
        let mut held = Vec::new();
        for taking in take_all(holder) {
            held.push(taking.await);
        }
        let tasks = clients.iter().flat_map(take_all);
        let tasks = tasks.map(|taking| tokio::spawn(async { drop(taking.await) }));
        let tasks: Vec<_> = tasks.collect();
        // All queue before the first release.
        waiting().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(held);
        for task in tasks {
            task.await.unwrap();
        }
    }
}

/// What is allocated and not freed.
#[derive(Clone, Copy, Debug)]
struct Live {
    blocks: usize,
    bytes: usize,
}

impl Live {
    fn now() -> Self {
        let stats = ALLOCATOR.stats();
        Self {
            blocks: stats.allocations - stats.deallocations,
            bytes: stats.bytes_allocated - stats.bytes_deallocated,
        }
    }
}

/// What is alive at rest, always after the same burst: most buffers are as large as they get.
async fn at_rest(clients: &[Client], waiting: &impl AsyncFn(), idle: &impl AsyncFn()) -> Live {
    burst(clients, waiting).await;
    idle().await;
    Live::now()
}

/// Works, and compares what is alive early with what is alive in the end.
async fn soak(
    clients: &[Client],
    cycles: usize,
    more: Live,
    waiting: impl AsyncFn(),
    idle: impl AsyncFn(),
) {
    work(clients, EARLY).await;
    let early = at_rest(clients, &waiting, &idle).await;
    let (started, rest) = (Instant::now(), cycles.saturating_sub(EARLY));
    work(clients, rest).await;
    let rate = rest as f64 / started.elapsed().as_secs_f64();
    let late = at_rest(clients, &waiting, &idle).await;
    println!("{cycles} cycles, {rate:.0} a second; {early:?}, then {late:?}");
    let is_more = |late: usize, early: usize, more| late > early + early / 100 + more;
    assert!(!is_more(late.blocks, early.blocks, more.blocks), "from {early:?} to {late:?}");
    assert!(!is_more(late.bytes, early.bytes, more.bytes), "from {early:?} to {late:?}");
}

fn names(server: &RedisServer, command: &[&str], without: &str) -> Vec<String> {
    let names = server.cli(command).ok();
    let names = names.array().iter().map(|name| name.text().to_owned());
    names.filter(|name| !name.starts_with(without)).collect()
}

#[test]
fn a_great_many_cycles_on_redis_leave_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start();
        let connect = async || Client::connect(&server.url()).await.unwrap();
        let clients = [connect().await, connect().await];
        let at_rest = tasks();
        // Waiters of the same client queue locally, the others subscribe.
        let waiting = async || {
            eventually("all wait", || {
                let names =
                    names(&server, &["PUBSUB", "CHANNELS", "redisson_lock__channel:*"], "-");
                if names.len() >= NAMES { Ok(()) } else { Err(format!("only {}", names.len())) }
            })
            .await;
        };
        let more = Live { blocks: BLOCKS, bytes: BUFFERS };
        soak(&clients, cycles(CYCLES_REDIS), more, waiting, async || {
            eventually("keys left", || {
                same(names(&server, &["KEYS", "*"], "lockkeeper_client"), vec![])
            })
            .await;
            eventually("subscriptions left", || {
                same(names(&server, &["PUBSUB", "CHANNELS"], "-"), vec![])
            })
            .await;
            eventually("tasks left", || same(tasks(), at_rest)).await;
        })
        .await;
        for client in clients {
            client.shutdown().await;
        }
        eventually("tasks outlive their clients", || same(tasks(), 0)).await;
        assert_eq!(names(&server, &["KEYS", "*"], "-"), Vec::<String>::new());
    });
}

/// The most that is alive while a list of so many locks is read, page by page, beyond what was alive
/// before.
async fn listing(server: &RedisServer, locks: usize) -> usize {
    let make = "for i = 1, tonumber(ARGV[1]) do
        redis.call('HSET', 'some lock ' .. i, '6e0c9d2c-52f4-4c5d-9d63-cc1f2c4a6d0e:1', 1)
    end";
    server.cli(&["EVAL", make, "0", &locks.to_string()]).ok();
    let client = Client::connect(&server.url()).await.unwrap();
    // Buffers grow with the first.
    let _ = client.inspector().list("*").next().await.unwrap();
    let before = Live::now().bytes;
    let (mut listing, mut found, mut most) = (client.inspector().list("*"), 0, 0);
    let started = Instant::now();
    while let Some(page) = listing.next().await.unwrap() {
        found += page.len();
        most = most.max(Live::now().bytes.saturating_sub(before));
    }
    println!("{found} locks listed in {:?}, {most} bytes", started.elapsed());
    assert!(found >= locks && listing.is_complete());
    client.shutdown().await;
    most
}

#[test]
fn a_list_needs_bounded_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start();
        let few = listing(&server, 10_000).await;
        let many = listing(&server, 100_000).await;
        // A page may be somewhat larger. To keep so much as each name would be ten times as much.
        assert!(many < few * 2, "{few} bytes for 10 000 locks, {many} for 100 000");
    });
}
