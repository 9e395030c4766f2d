//! Many held locks and nothing else to do: what keeping them costs.

use std::thread;
use std::time::Duration;

use lockkeeper::Client;

use super::Bench;
use crate::Result;
use crate::contenders::keeper::KEEPER;
use crate::hold::{free, hold};
use crate::probe::{Probe, Slice};
use crate::report::{Aim, Row};

const HELD: usize = 100_000;

/// Every lock is renewed once in this time, so each window costs the same wherever it begins.
const PERIOD: Duration = Duration::from_secs(10);

/// CPU of this process as a share of one core, per renewal period. An operation is one renewal, as
/// the server counts them: a watchdog that did not renew would be cheap.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let client = bench.runtime.block_on(Client::connect(&bench.url()))?;
    let guards = bench.runtime.block_on(hold(&client, 0..HELD))?;
    // The locks were taken within a second or so and are renewed as close together. From the middle
    // of the gap on, each window has all of that and none of it twice.
    thread::sleep(PERIOD / 2);
    let mut counter = Probe::connect(&[bench.address])?;
    let windows = if bench.plan.quick { 1 } else { 6 };
    let mut slices = Vec::new();
    for _ in 0..windows {
        slices.push(bench.probe.slice(|| {
            let before = counter.executed("pexpire")?;
            thread::sleep(PERIOD);
            Ok(counter.executed("pexpire")? - before)
        })?);
    }
    if let Some(slice) = slices.iter().find(|slice| slice.ops < HELD as u64 * 99 / 100) {
        return Err(format!("only {} of {HELD} locks were renewed", slice.ops).into());
    }
    if let Some(lost) = guards.iter().find(|guard| guard.is_lost()) {
        return Err(format!("a lock was lost while it was measured: {lost:?}").into());
    }
    bench.runtime.block_on(free(guards))?;

    let per_second = |of: fn(&Slice) -> f64| -> Vec<f64> {
        slices.iter().map(|slice| of(slice) / slice.elapsed.as_secs_f64()).collect()
    };
    let share = per_second(|slice| slice.client_cpu * 100.0);
    let share = Row::of("watchdog", KEEPER, "% of a core", &share).by(HELD).costing(&slices);
    let aim = Aim::at_most("% of a core", share.values.clone(), 1.0);
    let calls = per_second(|slice| slice.calls);
    let calls = Row::of("watchdog: requests", KEEPER, "calls/s", &calls).by(HELD);
    Ok(vec![share.aiming([aim]), calls])
}
