//! What a client allocates: bytes per held lock and per waiting task, allocations per uncontended pair.

use std::process::Command;

use super::Bench;
use crate::Result;
use crate::contenders::keeper::KEEPER;
use crate::processes::sibling;
use crate::report::{Aim, Row};

const HELD: usize = 100_000;
const WAITING: usize = 10_000;

/// Pairs of each task; enough for what is allocated once to vanish.
const PAIRS: usize = 400;

/// Both figures, and what a bare tokio task that waits costs, which is part of the second.
pub(super) fn bytes(bench: &mut Bench) -> Result<Vec<Row>> {
    let (mut held, mut waiting, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.plan.rounds.min(5) {
        held.push(counted(bench, &["held", &HELD.to_string()])?);
        bare.push(counted(bench, &["bare", &WAITING.to_string()])?);
        waiting.push(counted(bench, &["waiting", &WAITING.to_string()])?);
    }
    let held = Row::of("memory: held lock", KEEPER, "bytes", &held).by(HELD);
    let aim = Aim::at_most("bytes", held.values.clone(), 600.0);
    let held = held.aiming([aim]);
    let bare = Row::of("memory: waiting task", "bare tokio task", "bytes", &bare).by(WAITING);
    let waiting = Row::of("memory: waiting task", KEEPER, "bytes", &waiting).by(WAITING);
    let aim = Aim::at_most("bytes", waiting.values.clone(), 1_500.0);
    let waiting = waiting.against(&bare).aiming([aim]);
    Ok(vec![held, bare, waiting])
}

/// Of `Lock` and `Mutex`.
pub(super) fn allocations(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for tasks in [1, 64] {
        for (name, form) in [("lockkeeper Lock", "lock"), ("lockkeeper Mutex", "mutex")] {
            let words = [form, &tasks.to_string(), &PAIRS.to_string()];
            let counts = (0..bench.plan.rounds.min(3)).map(|_| counted(bench, &words));
            let counts = counts.collect::<Result<Vec<_>>>()?;
            let row = Row::of("allocations per pair", name, "allocations", &counts).by(tasks);
            let counts = row.values.clone();
            rows.push(row.aiming([Aim::at_most("allocations", counts, 4.0)]));
        }
    }
    Ok(rows)
}

/// The number that the program says that counts.
fn counted(bench: &Bench, words: &[&str]) -> Result<f64> {
    let output =
        Command::new(sibling("bench-allocations")?).arg(bench.url()).args(words).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
