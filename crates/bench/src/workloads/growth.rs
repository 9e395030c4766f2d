//! Does it stay as fast when there is more of it: names used, names held, waiters on one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Bench;
use crate::Result;
use crate::contenders::Contender;
use crate::contenders::keeper::{KEEPER, Keeper, free, hold};
use crate::contenders::raw::Raw;
use crate::form::Form;
use crate::report::{Aim, Row};

/// Tasks that take and release.
const TASKS: usize = 64;

/// Flat means: not slower than this share of the rate at the smallest size. Faster is no fault.
const FLAT: f64 = 0.8;

/// Pairs per second of a client that takes a name never used before each time, and has so used a
/// million, against one that keeps to a few: nothing may be left behind by a name that is free again.
pub(super) fn used(bench: &mut Bench) -> Result<Vec<Row>> {
    let size = if bench.plan.quick { 100_000 } else { 1_000_000 };
    let connect = || Keeper::connect(bench.runtime.handle(), &bench.url(), Form::Lock);
    let (settled, roaming) = (connect()?, connect()?);
    let fresh = Arc::new(AtomicU64::new(0));
    while fresh.load(Ordering::Relaxed) < size {
        roaming.roam(TASKS, bench.plan.slice, Some(&fresh))?;
    }
    let slices = bench.interleave(2, |probe, turn, time| {
        probe.slice(|| match turn {
            0 => settled.roam(TASKS, time, None),
            _ => roaming.roam(TASKS, time, Some(&fresh)),
        })
    })?;
    let row = |workload: &str, turn: usize| {
        Row::rate(workload, KEEPER, "pairs/s", &slices[turn]).by(TASKS)
    };
    let few = row(&format!("growth: {TASKS} names used"), 0);
    let many = row(&format!("growth: {size} names used"), 1);
    let aim = Aim::at_least("of few names", many.over(&few), FLAT);
    Ok(vec![few, many.aiming([aim])])
}

/// Pairs per second on free names while ever more names are held by the same client, whose
/// watchdog keeps them: at the largest size that alone is 100 000 renewals a second. The raw ceiling beside it says how much of a change is the server's or the
/// machine's.
pub(super) fn held(bench: &mut Bench) -> Result<Vec<Row>> {
    let runtime = bench.runtime.handle().clone();
    let keeper = Keeper::connect(&runtime, &bench.url(), Form::Lock)?;
    let client = keeper.client().clone();
    let mut contenders: Vec<Box<dyn Contender>> =
        vec![Box::new(Raw::connect(bench.address, Form::Lock)?), Box::new(keeper)];
    let sizes: &[usize] =
        if bench.plan.quick { &[1, 1_000, 100_000] } else { &[1, 1_000, 100_000, 1_000_000] };
    let (mut guards, mut rows) = (Vec::new(), Vec::new());
    for &size in sizes {
        guards.extend(runtime.block_on(hold(&client, guards.len()..size))?);
        rows.extend(bench.pairs(&format!("growth: {size} names held"), &mut contenders, TASKS)?);
    }
    runtime.block_on(free(guards))?;
    let first = rows[1].clone();
    for row in rows.iter_mut().skip(1).step_by(2) {
        row.aims = vec![Aim::at_least("of 1 name", row.over(&first), FLAT)];
    }
    Ok(rows)
}

/// Hand-overs per second while ever more tasks wait for one lock.
pub(super) fn waiters(bench: &mut Bench) -> Result<Vec<Row>> {
    let sizes = [1, 10, 100, 1_000, 10_000];
    let keeper = Keeper::connect(bench.runtime.handle(), &bench.url(), Form::Lock)?;
    let slices = bench.interleave(sizes.len(), |probe, turn, time| {
        // One more than there are waiters: the holder.
        keeper.fight(probe, "bench:crowd", sizes[turn] + 1, time)
    })?;
    let rows = sizes.iter().zip(&slices).map(|(size, slices)| {
        let workload = format!("growth: {size} waiters");
        Row::rate(&workload, KEEPER, "hand-overs/s", slices).by(size + 1)
    });
    let mut rows: Vec<_> = rows.collect();
    let first = rows[0].clone();
    for row in &mut rows {
        row.aims = vec![Aim::at_least("of 1 waiter", row.over(&first), FLAT)];
    }
    Ok(rows)
}
