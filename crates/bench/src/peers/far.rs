//! One hot lock of several processes, one of which is far from the server: how long its workers wait, and what
//! is left for the others.

use std::time::{Duration, Instant};
use std::{slice, thread};

use testkit::FaultProxy;

use super::WITH_PEERS;
use super::throughput::{HOT, Work, start};
use crate::Result;
use crate::bench::Bench;
use crate::processes::{LEASE, Library, Team};
use crate::report::{Aim, Row};

/// Added to what is on its way, in each direction.
const DELAYS_MS: [u64; 3] = [1, 3, 10];

/// Workers of each process.
const WORKERS: usize = HOT / 8;

/// Between two looks at the workers: a wait is known to this.
const LOOK: Duration = Duration::from_millis(10);

/// A wait that is longer than the turn would not be seen, and BENCH.md allows a second.
const TURN: Duration = Duration::from_secs(3);

/// The near processes with nothing else, then with a far one.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let (processes, rounds, turn) = match bench.plan.quick {
        true => (1, 1, TURN / 3),
        false => (7, bench.plan.rounds.min(2), TURN),
    };
    let mut rows = Vec::new();
    // The others poll: their far workers sleep as long as the near ones.
    for library in [Library::Lock, Library::Mutex, Library::Redisson] {
        let peers = bench.peers.as_ref().ok_or(WITH_PEERS)?;
        let proxy = FaultProxy::start_blocking(bench.address.port());
        let mut near = peers.team(library, processes, &bench.url(), LEASE)?;
        let mut far = peers.team(library, 1, &proxy.url(), LEASE)?;
        near.warm_up("one", WORKERS, turn)?;
        far.warm_up("one", WORKERS, turn)?;
        let mut alone = Vec::new();
        let mut beside = DELAYS_MS.map(|_| (Vec::new(), Vec::new()));
        for _ in 0..rounds {
            alone.push(take_turn(slice::from_mut(&mut near), turn / 3)?.0);
            for (delay, (rates, waits)) in DELAYS_MS.iter().zip(&mut beside) {
                proxy.delay(Duration::from_millis(*delay));
                let mut teams = [near, far];
                let (rate, wait) = take_turn(&mut teams, turn)?;
                rates.push(rate);
                waits.push(wait);
                [near, far] = teams;
            }
            proxy.delay(Duration::ZERO);
        }
        rows.extend(rows_of(library, processes * WORKERS, &alone, &beside));
    }
    // By workload, so that the table compares libraries.
    rows.sort_by(|one, other| one.workload.cmp(&other.workload));
    Ok(rows)
}

type RatesAndWaits = (Vec<f64>, Vec<f64>);

fn rows_of(library: Library, near: usize, alone: &[f64], beside: &[RatesAndWaits]) -> Vec<Row> {
    let row = |what: &str, unit, values: &[f64]| {
        Row::of(&format!("peers: far process, {what}"), library.name(), unit, values)
    };
    let alone = row("near ones without it", "acquisitions/s", alone).by(near);
    let mut rows = vec![alone.clone()];
    for (delay, (rates, waits)) in DELAYS_MS.iter().zip(beside) {
        let mut rate = row(&format!("near ones, {delay:>2} ms"), "acquisitions/s", rates).by(near);
        let mut wait = row(&format!("longest wait, {delay:>2} ms"), "s", waits).by(WORKERS);
        if library != Library::Redisson {
            rate.aims = vec![Aim::at_least("ratio to without it", rate.over(&alone), 0.5)];
            wait.aims = vec![Aim::at_most("s", waits.clone(), 1.0)];
        }
        rows.extend([rate, wait]);
    }
    rows
}

/// Acquisitions per second of the first team, and the longest time in seconds in which a worker of the last
/// one did not get the lock.
fn take_turn(teams: &mut [Team], time: Duration) -> Result<(f64, f64)> {
    let work = Work { what: "one", workers: WORKERS, settle: time / 5, time };
    teams.iter_mut().try_for_each(|team| start(team, &work))?;
    thread::sleep(work.settle);
    let before = total(&mut teams[0])?;
    let begun = Instant::now();
    let far = &mut teams.last_mut().ok_or("there is no team")?.peers[0];
    let mut last = vec![(0, begun); WORKERS];
    let mut longest = Duration::ZERO;
    while begun.elapsed() < time {
        let counts = far.ask("count")?;
        let now = Instant::now();
        for (count, (known, since)) in counts[1..].iter().zip(&mut last) {
            longest = longest.max(now - *since);
            if count != known {
                (*known, *since) = (*count, now);
            }
        }
        thread::sleep(LOOK);
    }
    let (elapsed, after) = (begun.elapsed(), total(&mut teams[0])?);
    teams.iter_mut().try_for_each(|team| team.ask("stop").map(drop))?;
    Ok(((after - before) as f64 / elapsed.as_secs_f64(), longest.as_secs_f64()))
}

fn total(team: &mut Team) -> Result<u64> {
    Ok(team.ask("count")?.iter().flat_map(|counts| &counts[1..]).sum())
}
