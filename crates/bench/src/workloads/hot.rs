//! One name, many tasks in one client: how often the lock changes hands, and what each time costs
//! the store.

use super::Bench;
use crate::Result;
use crate::contenders::Contender;
use crate::contenders::keeper::Keeper;
use crate::contenders::raw::Raw;
use crate::form::Form;
use crate::report::{Aim, Row};

const TASKS: usize = 64;

/// 64 tasks. The reference is one raw task that takes and releases without anyone in its way: a
/// handoff that takes two round trips cannot be faster, one that takes a single round trip can.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let runtime = bench.runtime.handle().clone();
    let mut raw = Raw::connect(bench.address, Form::Lock)?;
    let keepers =
        [Form::Lock, Form::Mutex].map(|form| Keeper::connect(&runtime, &bench.url(), form));
    let keepers = keepers.into_iter().collect::<Result<Vec<_>>>()?;
    let slices = bench.interleave(3, |probe, turn, time| match turn {
        0 => probe.slice(|| raw.run(1, time)),
        keeper => keepers[keeper - 1].fight(probe, "bench:hot", TASKS, time),
    })?;
    let reference = Row::rate("hot lock", "raw pair, 1 task", "handoffs/s", &slices[0]);
    let mut rows = vec![reference.clone()];
    for (keeper, slices) in keepers.iter().zip(&slices[1..]) {
        let row = Row::rate("hot lock", &keeper.name(), "handoffs/s", slices).by(TASKS);
        let row = row.against(&reference);
        rows.push(match keeper.form() {
            Form::Lock => {
                let calls = row.calls.unwrap_or(f64::NAN);
                row.aiming([Aim::at_most("requests/handoff", [calls], 1.1)])
            }
            // Its handoff script calls SET, which is also a request: the two cannot be told apart.
            Form::Mutex => {
                let aim = Aim::at_least("ratio to Lock", row.over(&rows[1]), 1.0);
                Row { calls: None, batch: None, ..row }.aiming([aim])
            }
        });
    }
    Ok(rows)
}
