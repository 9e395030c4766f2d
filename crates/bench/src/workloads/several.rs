//! Several contended locks: as a multi-lock, against the same locks by hand, one after the other in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{AnyLock, Client, MultiLock};

use super::Bench;
use crate::Result;
use crate::contenders::{Stop, drive};
use crate::report::{Aim, Row};

const TASKS: usize = 40;
const CLIENTS: usize = 3;
const LOCKS: usize = 5;

/// How long all of them are held.
const HELD: Duration = Duration::from_millis(2);

/// A turn is this many slices: a wait is part of a second.
const SLICES: u32 = 4;

/// Random ones of five locks, of one kind and of many.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let connect = |_| bench.runtime.block_on(Client::connect(&bench.url()));
    let clients = (0..CLIENTS).map(connect).collect::<Result<Vec<_>, _>>()?;
    let plan = bench.plan;
    bench.plan.slice = plan.slice * SLICES;
    let one_kind =
        contended(bench, "several locks", &clients, |client, _, name| client.lock(name).into());
    let many = contended(bench, "several locks of many kinds", &clients, of_many_kinds);
    bench.plan = plan;
    Ok([one_kind?, many?].concat())
}

fn of_many_kinds(client: &Client, number: usize, name: String) -> AnyLock {
    match number {
        0 => client.mutex(name).into(),
        1 => client.rw_lock(name).writer(),
        2 => client.fair_lock(name).into(),
        3 => client.lock(name).into(),
        _ => client.fenced_lock(name).into(),
    }
}

fn contended(
    bench: &mut Bench,
    workload: &str,
    clients: &[Client],
    lock: fn(&Client, usize, String) -> AnyLock,
) -> Result<Vec<Row>> {
    let runtime = bench.runtime.handle().clone();
    let named = |client, number| lock(client, number, format!("bench:{workload}:{number}"));
    let turns = bench.interleave(2, |probe, turn, time| {
        let longest = Arc::new(AtomicU64::new(0));
        let slice = probe.slice(|| {
            drive(&runtime, TASKS, time, |task, stop| {
                let client = &clients[task % CLIENTS];
                let locks = (0..LOCKS).map(|number| named(client, number)).collect();
                acquire(locks, turn == 1, task as u64, Arc::clone(&longest), stop)
            })
        })?;
        Ok((slice, longest.load(Ordering::Relaxed) as f64 / 1e3))
    })?;
    let [by_hand, multi] = [0, 1].map(|turn| {
        let contender = ["by hand, in order", "lockkeeper MultiLock"][turn];
        let (slices, longest): (Vec<_>, Vec<_>) = turns[turn].iter().copied().unzip();
        let rate = Row::rate(workload, contender, "acquisitions/s", &slices).by(TASKS);
        let workload = format!("{workload}: longest wait");
        (rate, Row::of(&workload, contender, "ms", &longest).by(TASKS))
    });
    let rate = Aim::at_least("ratio to by hand", multi.0.over(&by_hand.0), 0.9);
    let wait = Aim::at_most("ratio to by hand", multi.1.over(&by_hand.1), 2.0);
    let multi = (multi.0.against(&by_hand.0), multi.1.against(&by_hand.1));
    Ok(vec![by_hand.0, multi.0.aiming([rate]), by_hand.1, multi.1.aiming([wait])])
}

/// Until it is stopped. Returns how often; `longest` is in microseconds.
async fn acquire(
    locks: Vec<AnyLock>,
    as_one: bool,
    seed: u64,
    longest: Arc<AtomicU64>,
    stop: Stop,
) -> Result<u64> {
    let (mut random, mut count) = (fastrand::Rng::with_seed(seed), 0);
    while !stop.reached() {
        let chosen = random.u8(1..1 << LOCKS);
        let chosen = locks.iter().enumerate().filter(|(number, _)| chosen & 1 << number != 0);
        let chosen = chosen.map(|(_, lock)| lock.clone());
        let (start, mut guards, mut all) = (Instant::now(), Vec::new(), None);
        if as_one {
            all = Some(MultiLock::new(chosen).lock().await?);
        } else {
            for lock in chosen {
                guards.push(lock.lock().await?);
            }
        }
        longest.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        tokio::time::sleep(HELD).await;
        for guard in guards {
            guard.release().await?;
        }
        if let Some(all) = all {
            all.release().await?;
        }
        count += 1;
    }
    Ok(count)
}
