//! The embedded store: no server, so what is left is the library itself.

use super::Bench;
use crate::Result;
use crate::contenders::Contender;
use crate::contenders::keeper::Keeper;
use crate::form::Form;
use crate::report::{Aim, Row};

/// One task, uncontended.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let runtime = bench.runtime.handle().clone();
    let mut contenders = [Form::Lock, Form::Mutex]
        .map(|form| Box::new(Keeper::memory(&runtime, form)) as Box<dyn Contender>);
    let rows = bench.pairs("memory store", &mut contenders, 1)?;
    let rows = rows.into_iter().map(|row| {
        let aim = Aim::at_least("pairs/s", row.values.clone(), 2_000_000.0);
        // No server: nothing to count, and neither lock is the other's reference.
        Row { ratio: None, calls: None, batch: None, server_cpu: None, ..row }.aiming([aim])
    });
    Ok(rows.collect())
}
