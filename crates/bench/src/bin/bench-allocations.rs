//! What a client allocates: `bench-allocations URL (held|waiting|bare) COUNT`, or
//! `bench-allocations URL (lock|mutex) TASKS PAIRS`. Prints one number. `bench-allocations URL pair` acquires and
//! releases a lock for a profiler.
//!
//! A program of its own, because counting takes time that the other workloads would measure. Everything runs on
//! one thread, so that what the counting allocator says of this thread is all there is.

#[path = "../hold.rs"]
mod hold;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use allocation_counter::measure;
use hold::{free, hold};
use lockkeeper::{AnyLock, Client, Lock, LockGuard};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::JoinSet;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let number = match arguments[..] {
        [url, "held", count] => per_held_lock(&runtime, url, count.parse()?)?,
        [url, "waiting", count] => per_waiter(&runtime, url, count.parse()?)?,
        [_, "bare", count] => per_bare_task(&runtime, count.parse()?),
        [url, "lock", tasks, pairs] => {
            per_pair(&runtime, url, false, tasks.parse()?, pairs.parse()?)?
        }
        [url, "mutex", tasks, pairs] => {
            per_pair(&runtime, url, true, tasks.parse()?, pairs.parse()?)?
        }
        [url, "pair"] => pair(&runtime, url)?,
        _ => return Err("usage: see the beginning of its source".into()),
    };
    println!("{number}");
    Ok(())
}

/// One pair of a client that holds another lock, so that it has announced itself and loaded the scripts.
fn pair(runtime: &Runtime, url: &str) -> Result<f64> {
    let client = runtime.block_on(Client::connect(url))?;
    let lock = client.lock("bench:pair");
    let _held = runtime.block_on(async {
        lock.lock().await?.release().await?;
        let held = client.lock("bench:held").lock().await;
        settle().await;
        held
    })?;
    let guard = acquire_once(runtime, &lock)?;
    release_once(runtime, guard)?;
    Ok(1.0)
}

#[inline(never)]
fn acquire_once(runtime: &Runtime, lock: &Lock) -> lockkeeper::Result<LockGuard> {
    runtime.block_on(lock.lock())
}

#[inline(never)]
fn release_once(runtime: &Runtime, guard: LockGuard) -> lockkeeper::Result<()> {
    runtime.block_on(guard.release())
}

/// Allocations of one pair, after a first round that grows buffers and loads scripts.
fn per_pair(runtime: &Runtime, url: &str, mutex: bool, tasks: usize, pairs: usize) -> Result<f64> {
    let client = runtime.block_on(Client::connect(url))?;
    count_pairs(runtime, &client, mutex, tasks, pairs)?;
    count_pairs(runtime, &client, mutex, tasks, pairs)
}

fn count_pairs(
    runtime: &Runtime,
    client: &Client,
    mutex: bool,
    tasks: usize,
    pairs: usize,
) -> Result<f64> {
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let name = format!("bench:alc:{task:06}");
        let lock: AnyLock =
            if mutex { client.mutex(name).into() } else { client.lock(name).into() };
        let work = async move {
            for _ in 0..pairs {
                lock.lock().await?.release().await?;
            }
            Ok::<_, lockkeeper::Error>(())
        };
        running.spawn_on(work, runtime.handle());
    }
    let mut outcome = Ok(());
    let counted = measure(|| {
        outcome = runtime.block_on(async {
            while let Some(ended) = running.join_next().await {
                ended??;
            }
            Ok(())
        });
    });
    outcome.map(|()| counted.count_total as f64 / (tasks * pairs) as f64)
}

/// Bytes of the heap that one more held lock takes.
fn per_held_lock(runtime: &Runtime, url: &str, count: usize) -> Result<f64> {
    let client = runtime.block_on(Client::connect(url))?;
    let mut held = Ok(Vec::new());
    let bytes = measure(|| held = runtime.block_on(hold(&client, 0..count))).bytes_current;
    runtime.block_on(free(held?))?;
    Ok(bytes as f64 / count as f64)
}

/// With the task it waits in: a waiter without one does not exist.
fn per_waiter(runtime: &Runtime, url: &str, count: usize) -> Result<f64> {
    let client = runtime.block_on(Client::connect(url))?;
    let lock = client.lock("bench:queue");
    let guard = runtime.block_on(async { lock.lock().await })?;
    let mut waiters = JoinSet::new();
    let bytes = measure(|| {
        runtime.block_on(async {
            for _ in 0..count {
                let lock = lock.clone();
                waiters.spawn(async move { lock.lock().await?.release().await });
            }
            settle().await;
        });
    });
    runtime.block_on(async {
        guard.release().await?;
        while let Some(waited) = waiters.join_next().await {
            waited??;
        }
        Ok(bytes.bytes_current as f64 / count as f64)
    })
}

/// Bytes of a task that waits for nothing of ours.
fn per_bare_task(runtime: &Runtime, count: usize) -> f64 {
    let notify = Arc::new(Notify::new());
    let mut waiters = JoinSet::new();
    let bytes = measure(|| {
        runtime.block_on(async {
            for _ in 0..count {
                let notify = Arc::clone(&notify);
                waiters.spawn(async move { notify.notified().await });
            }
            settle().await;
        });
    });
    runtime.block_on(waiters.shutdown());
    bytes.bytes_current as f64 / count as f64
}

/// Until every task has been polled and the connections have their subscriptions.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}
