//! Live heap bytes per held lock and per waiting task.
//!
//! Everything runs on one thread, so that what the counting allocator says of this thread is all
//! there is.

use std::sync::Arc;
use std::time::Duration;

use allocation_counter::measure;
use lockkeeper::Client;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::Bench;
use crate::Result;
use crate::contenders::keeper::{KEEPER, free, hold};
use crate::report::{Aim, Row};

const HELD: usize = 100_000;
const WAITING: usize = 10_000;

/// Both figures, and what a bare tokio task that waits costs, which is part of the second.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let url = bench.url();
    let (mut held, mut waiting, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.plan.rounds.min(5) {
        held.push(per_held_lock(&runtime, &url)?);
        bare.push(per_bare_task(&runtime));
        waiting.push(per_waiter(&runtime, &url)?);
    }
    let held = Row::of("memory: held lock", KEEPER, "bytes", &held).by(HELD);
    let aim = Aim::at_most("bytes", held.median, 1024.0);
    let held = held.aiming([aim]);
    let bare = Row::of("memory: waiting task", "bare tokio task", "bytes", &bare).by(WAITING);
    let waiting = Row::of("memory: waiting task", KEEPER, "bytes", &waiting).by(WAITING);
    let aim = Aim::at_most("bytes", waiting.median, 2048.0);
    let waiting = waiting.against(&bare).aiming([aim]);
    Ok(vec![held, bare, waiting])
}

fn per_held_lock(runtime: &Runtime, url: &str) -> Result<f64> {
    let client = runtime.block_on(Client::connect(url))?;
    let mut held = Ok(Vec::new());
    let bytes = measure(|| held = runtime.block_on(hold(&client, 0..HELD))).bytes_current;
    runtime.block_on(free(held?))?;
    Ok(bytes as f64 / HELD as f64)
}

/// With the task it waits in: a waiter without one does not exist.
fn per_waiter(runtime: &Runtime, url: &str) -> Result<f64> {
    let client = runtime.block_on(Client::connect(url))?;
    let lock = client.lock("bench:queue");
    let guard = runtime.block_on(async { lock.lock().await })?;
    let mut waiters = JoinSet::new();
    let bytes = measure(|| {
        runtime.block_on(async {
            for _ in 0..WAITING {
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
        Ok(bytes.bytes_current as f64 / WAITING as f64)
    })
}

fn per_bare_task(runtime: &Runtime) -> f64 {
    let notify = Arc::new(Notify::new());
    let mut waiters = JoinSet::new();
    let bytes = measure(|| {
        runtime.block_on(async {
            for _ in 0..WAITING {
                let notify = Arc::clone(&notify);
                waiters.spawn(async move { notify.notified().await });
            }
            settle().await;
        });
    });
    runtime.block_on(waiters.shutdown());
    bytes.bytes_current as f64 / WAITING as f64
}

/// Until every task has been polled and the one that speaks to the store has its subscription.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}
