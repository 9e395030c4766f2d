//! Does it stay as fast when there is more of it: names held, waiters on one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::Client;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::Bench;
use crate::Result;
use crate::contenders::Contender;
use crate::contenders::keeper::{KEEPER, Keeper};
use crate::contenders::raw::Raw;
use crate::form::Form;
use crate::hold::{free, hold};
use crate::probe::client_cpu;
use crate::report::{Aim, Row};

/// Tasks that take and release.
const TASKS: usize = 64;

/// Flat means: not slower than this share of the rate at the smallest size. Faster is no fault.
const FLAT: f64 = 0.9;

/// Ten times as many waiters may cost this much more each, and still be called linear.
const LINEAR: f64 = 1.5;

/// Each held lock is renewed once in this time: the turns of one size take as long.
const RENEWALS: Duration = Duration::from_secs(10);

/// Until many waiters wait, and longer for each of them.
const GATHER: Duration = Duration::from_secs(1);
const GATHER_EACH: Duration = Duration::from_micros(30);

/// CPU time of each of many waiters for one lock whose wait limits pass at the same moment, from just before
/// until the last has ended. Another client holds the lock.
pub(super) fn timeouts(bench: &mut Bench) -> Result<Vec<Row>> {
    let sizes = if bench.plan.quick { [1_000, 10_000] } else { [10_000, 100_000] };
    let runtime = bench.runtime.handle().clone();
    let connect = || runtime.block_on(Client::connect(&bench.url()));
    let (holder, waiter) = (connect()?, connect()?);
    let guard = runtime.block_on(async { holder.lock("bench:limit").lock().await })?;
    let cpu =
        bench.interleave(sizes.len(), |_, turn, _| time_out(&runtime, &waiter, sizes[turn]))?;
    runtime.block_on(guard.release())?;
    let rows = sizes.iter().zip(&cpu).map(|(size, cpu)| {
        let row = Row::of("growth: timeouts", KEEPER, "CPU µs/waiter", cpu).by(*size);
        row.aiming([Aim::at_most("CPU µs/waiter", cpu.clone(), 10.0)])
    });
    let mut rows: Vec<_> = rows.collect();
    let growth = rows[1].over(&rows[0]);
    rows[1].aims.push(Aim::at_most("ratio to a tenth of them", growth, LINEAR));
    Ok(rows)
}

/// Microseconds of CPU time of each.
fn time_out(runtime: &Handle, client: &Client, waiters: usize) -> Result<f64> {
    let limit = Instant::now() + GATHER + GATHER_EACH * waiters as u32;
    let lock = client.lock("bench:limit");
    let waiting = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        let (lock, waiting) = (lock.clone(), Arc::clone(&waiting));
        let task = async move {
            waiting.fetch_add(1, Ordering::Relaxed);
            lock.try_lock_for(limit - Instant::now()).await
        };
        tasks.spawn_on(task, runtime);
    }
    thread::sleep((limit - GATHER / 5).saturating_duration_since(Instant::now()));
    if waiting.load(Ordering::Relaxed) < waiters as u64 {
        return Err("the waiters came too late to time out together".into());
    }
    let before = client_cpu();
    runtime.block_on(async {
        while let Some(ended) = tasks.join_next().await {
            if ended??.is_some() {
                return Err("a waiter got the lock".into());
            }
        }
        Ok((client_cpu() - before).as_secs_f64() * 1e6 / waiters as f64)
    })
}

/// Pairs per second on free names while ever more names are held by the same client, whose watchdog
/// renews them: at the largest size that alone is 100 000 renewals a second. The raw ceiling beside it
/// says how much of a change is the server's or the machine's.
pub(super) fn held(bench: &mut Bench) -> Result<Vec<Row>> {
    let plan = bench.plan;
    if !plan.quick {
        // Two contenders.
        bench.plan.slice = plan.slice.max(RENEWALS / (plan.rounds * 2) as u32);
    }
    let rows = beside_held(bench);
    bench.plan = plan;
    rows
}

fn beside_held(bench: &mut Bench) -> Result<Vec<Row>> {
    let runtime = bench.runtime.handle().clone();
    let keeper = Keeper::connect(&runtime, &bench.url(), Form::Lock)?;
    let client = keeper.client().clone();
    let mut contenders: Vec<Box<dyn Contender>> =
        vec![Box::new(Raw::connect(bench.address, Form::Lock)?), Box::new(keeper)];
    let sizes = if bench.plan.quick { [1, 1_000, 100_000] } else { [1, 100_000, 1_000_000] };
    let (mut guards, mut rows) = (Vec::new(), Vec::new());
    for size in sizes {
        guards.extend(runtime.block_on(hold(&client, guards.len()..size))?);
        rows.extend(bench.pairs(&format!("growth: {size} names held"), &mut contenders, TASKS)?);
    }
    runtime.block_on(free(guards))?;
    let first = rows[1].clone();
    for row in rows.iter_mut().skip(3).step_by(2) {
        row.aims = vec![Aim::at_least("ratio to 1 name", row.over(&first), FLAT)];
    }
    Ok(rows)
}
