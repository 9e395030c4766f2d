//! Pairs of acquire and release, every task on a name of its own.

use super::Bench;
use crate::Result;
use crate::contenders::Contender;
use crate::contenders::driver::Driver;
use crate::contenders::keeper::Keeper;
use crate::contenders::raw::Raw;
use crate::form::Form;
use crate::report::{Aim, Row};

const TASKS: [usize; 7] = [1, 8, 16, 32, 64, 256, 1024];

const CEILING: &str = "ratio to the raw ceiling";

/// `Lock`.
pub(super) fn lock(bench: &mut Bench) -> Result<Vec<Row>> {
    run(bench, Form::Lock)
}

/// `Mutex`.
pub(super) fn mutex(bench: &mut Bench) -> Result<Vec<Row>> {
    run(bench, Form::Mutex)
}

fn run(bench: &mut Bench, form: Form) -> Result<Vec<Row>> {
    let runtime = bench.runtime.handle().clone();
    let workload = format!("{} uncontended", form.word());
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        Box::new(Raw::connect(bench.address, form)?),
        Box::new(Driver::connect(&runtime, &bench.url(), form)?),
        Box::new(Keeper::connect(&runtime, &bench.url(), form)?),
    ];
    let mut rows = Vec::new();
    for tasks in TASKS {
        let mut measured = bench.pairs(&workload, &mut contenders, tasks)?;
        measured[2].aims = aims(form, &measured[2], &measured[0], &measured[1]);
        rows.extend(measured);
    }
    Ok(rows)
}

/// What BENCH.md asks; `--peers` compares with rslock and Redisson.
fn aims(form: Form, keeper: &Row, ceiling: &Row, driver: &Row) -> Vec<Aim> {
    let mut aims = vec![Aim::at_most("requests/pair", [keeper.calls.unwrap_or(f64::NAN)], 2.01)];
    match (form, keeper.workers) {
        (Form::Lock, 1 | 1024) => {
            aims.push(Aim::at_least(CEILING, keeper.over(ceiling), 0.95));
        }
        (Form::Lock, 64) | (Form::Mutex, 64 | 1024) => {
            aims.push(Aim::at_least(CEILING, keeper.over(ceiling), 0.90));
        }
        (Form::Lock, 8 | 16 | 32) => {
            aims.push(Aim::at_least("ratio to the driver", keeper.over(driver), 1.0));
        }
        _ => {}
    }
    if keeper.workers == 64 {
        let cpu = keeper.client_cpu.unwrap_or(f64::NAN);
        aims.push(Aim::at_most("client CPU µs/pair", [cpu], 4.0));
    }
    aims
}
