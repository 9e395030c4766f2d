//! From the start of a release to the moment the next waiter, in another client, holds the lock.
//!
//! The two clients have a runtime each, as two processes would.

mod driver;
mod raw;

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::Client;
use tokio::runtime::{Builder, Handle};

use super::Bench;
use crate::Result;
use crate::contenders::keeper::KEEPER;
use crate::form::Name;
use crate::probe::Probe;
use crate::report::{Aim, Row, median};
use driver::DriverPair;
use raw::RawPair;

/// Far longer than the waiter needs to be refused, subscribe and try once more: what is measured is
/// a waiter that waits.
const SETTLE: Duration = Duration::from_millis(3);

/// Median of the samples of each round.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let other = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let runtimes = [bench.runtime.handle().clone(), other.handle().clone()];
    let clients =
        runtimes.each_ref().map(|runtime| runtime.block_on(Client::connect(&bench.url())));
    let [here, there] = clients;
    let clients = [here?, there?];
    let mut raw = RawPair::connect(bench.address)?;
    let samples = if bench.plan.quick { 60 } else { 250 };
    let mut driver = DriverPair::connect(&runtimes, &bench.url())?;
    let results = bench.interleave(3, |probe, turn, _| {
        let times: Result<Vec<f64>> = (0..samples)
            .map(|_| match turn {
                0 => raw.sample(),
                1 => driver.sample(),
                _ => sample(&runtimes, &clients, probe),
            })
            .collect();
        Ok(median(&times?))
    })?;
    let row = |contender, turn: usize| Row::of("wake-up", contender, "µs p50", &results[turn]);
    let reference = row("raw subscriber", 0);
    let driver = row("driver", 1).against(&reference);
    let keeper = row(KEEPER, 2).against(&reference);
    let aim = Aim::at_most("raw", keeper.over(&reference), 1.2);
    Ok(vec![reference, driver, keeper.aiming([aim])])
}

/// Microseconds from the call of `release` on one client to the return of `lock` on the other.
fn sample(runtimes: &[Handle; 2], clients: &[Client; 2], probe: &mut Probe) -> Result<f64> {
    let name = Name::of("wak", 0);
    let [holder, waiter] = clients.each_ref().map(|client| client.lock(&name.key));
    let guard = runtimes[0].block_on(async { holder.lock().await })?;
    let waiting = runtimes[1].spawn(async move {
        let guard = waiter.lock().await;
        (guard, Instant::now())
    });
    while !probe.subscribers(name.channel.as_bytes())? {
        thread::yield_now();
    }
    thread::sleep(SETTLE);
    // On a worker, where a user's code would be.
    let releasing = runtimes[0].spawn(async move {
        let start = Instant::now();
        guard.release().await.map(|()| start)
    });
    let start = runtimes[0].block_on(releasing)??;
    let (guard, end) = runtimes[1].block_on(waiting)?;
    runtimes[1].block_on(guard?.release())?;
    Ok(micros(end - start))
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
