//! Workers that acquire and release as fast as they can: on names of their own, all on one, fairly, and as
//! readers and writers.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use super::WITH_PEERS;
use crate::Result;
use crate::bench::{Bench, Plan};
use crate::probe::{Probe, Slice};
use crate::processes::{Library, Monitor, Team};
use crate::report::{Aim, Row};

const TASKS: [usize; 7] = [1, 8, 16, 32, 64, 256, 1024];
const TASKS_QUICK: [usize; 2] = [1, 64];

/// Workers of one hot lock, in all processes together.
pub(super) const HOT: usize = 64;

/// A worker that all others pass is seen only when each could have had the lock some hundred times; slow
/// libraries would need minutes for that, so this is what there is time for.
pub(super) const HOT_SLICES: u32 = 4;

/// The same for processes, which take the lock in turns that are longer.
pub(super) const HOT_SLICES_OF_PROCESSES: u32 = 6;

/// What one library did in its turns.
pub(super) struct Measured {
    pub(super) library: Library,
    slices: Vec<Slice>,
    /// Per turn and process, how often each worker had the lock.
    counts: Vec<Vec<Vec<u64>>>,
}

/// A work for all workers of a team.
pub(super) struct Work<'a> {
    /// As the protocol calls it.
    pub(super) what: &'a str,
    /// Workers in each process.
    pub(super) workers: usize,
    /// Before the clock starts, until all workers are at work.
    pub(super) settle: Duration,
    pub(super) time: Duration,
}

/// Each worker on a name of its own.
pub(super) fn uncontended(bench: &mut Bench) -> Result<Vec<Row>> {
    with_solo(bench, |bench, teams| {
        warm_up(&bench.plan, teams, "own", 64)?;
        let mut rows = Vec::new();
        let tasks: &[usize] = if bench.plan.quick { &TASKS_QUICK } else { &TASKS };
        for &workers in tasks {
            let time = bench.plan.slice;
            let work = Work { what: "own", workers, settle: settle(time, workers), time };
            let measured = measure(bench, &mut all(teams), &work)?;
            let mut found: Vec<_> = measured
                .iter()
                .map(|of| of.row("peers: uncontended", of.library.name(), "pairs/s", workers))
                .collect();
            aim_uncontended(&mut found, workers);
            rows.extend(against_first(found));
        }
        Ok(rows)
    })
}

/// What BENCH.md asks. The rows are in the order of `Library::ALL`.
fn aim_uncontended(rows: &mut [Row], workers: usize) {
    let [lock, mutex, redisson, rslock, ..] = rows else { return };
    let bound = if workers == 1024 { 2.0 } else { 1.2 };
    mutex.aims.push(Aim::at_least("ratio to rslock", mutex.over(rslock), bound));
    if workers == 64 {
        for ours in [lock, mutex] {
            ours.aims.push(Aim::at_least("ratio to Redisson", ours.over(redisson), 15.0));
        }
    }
}

/// All workers on one name, in one process.
pub(super) fn hot(bench: &mut Bench) -> Result<Vec<Row>> {
    with_solo(bench, |bench, teams| {
        warm_up(&bench.plan, teams, "one", HOT)?;
        let measured = measure(bench, &mut all(teams), &hot_work(&bench.plan, HOT, HOT_SLICES))?;
        let mut rows = hot_rows("peers: hot lock, 1 process", &measured, 10.0);
        rows.extend(measured.iter().map(|of| of.fairness("peers: fairness, 1 process")));
        Ok(rows)
    })
}

/// All workers on one name, in several processes.
pub(super) fn hot_processes(bench: &mut Bench) -> Result<Vec<Row>> {
    with_teams(bench, |bench, teams| {
        let processes = teams[0].peers.len();
        let workers = HOT / 8;
        warm_up(&bench.plan, teams, "own", workers)?;
        warm_up(&bench.plan, teams, "one", workers)?;
        let work = hot_work(&bench.plan, workers, HOT_SLICES_OF_PROCESSES);
        let measured = measure(bench, &mut all(teams), &work)?;
        let mut rows = hot_rows(&format!("peers: hot lock, {processes} processes"), &measured, 2.0);
        let workload = format!("peers: fairness, {processes} processes");
        rows.extend(measured.iter().map(|of| of.fairness(&workload)));
        let workload = format!("peers: fairness between {processes} processes");
        rows.extend(measured.iter().map(|of| {
            let row = of.fairness_between(&workload);
            let ratios = row.values.clone();
            match of.library {
                Library::Lock | Library::Mutex => {
                    row.aiming([Aim::at_most("max/min", ratios, 1.5)])
                }
                _ => row,
            }
        }));
        Ok(rows)
    })
}

pub(super) fn hot_work(plan: &Plan, workers: usize, slices: u32) -> Work<'static> {
    let time = plan.slice * slices;
    Work { what: "one", workers, settle: settle(time, workers), time }
}

fn hot_rows(workload: &str, measured: &[Measured], bound: f64) -> Vec<Row> {
    let rows = measured
        .iter()
        .map(|of| of.row(workload, of.library.name(), "acquisitions/s", of.workers()));
    let mut rows: Vec<_> = rows.collect();
    let redisson = rows[2].clone();
    for row in &mut rows[..2] {
        row.aims = vec![Aim::at_least("ratio to Redisson", row.over(&redisson), bound)];
    }
    against_first(rows)
}

/// A fair lock with ever more waiters.
pub(super) fn fair(bench: &mut Bench) -> Result<Vec<Row>> {
    with_solo(bench, |bench, teams| {
        let mut teams = complete(teams);
        teams.iter_mut().try_for_each(|team| team.warm_up("fair", 16, warm_time(&bench.plan)))?;
        let sizes: &[usize] = if bench.plan.quick { &[1, 100] } else { &[1, 100, 1_000] };
        let mut rows = Vec::new();
        for &waiters in sizes {
            // One more than there are waiters: the holder.
            let workers = waiters + 1;
            let time = bench.plan.slice * 2;
            // All of them have to queue first.
            let settle = time / 3 + Duration::from_millis(1) * waiters as u32;
            let work = Work { what: "fair", workers, settle, time };
            let measured = measure(bench, &mut teams, &work)?;
            let mut found: Vec<_> = measured
                .iter()
                .zip(["lockkeeper FairLock", "Redisson FairLock"])
                .map(|(of, name)| of.row("peers: fair lock", name, "handoffs/s", workers))
                .collect();
            if waiters > 1 {
                let ratio = found[0].over(&found[1]);
                found[0].aims = vec![Aim::at_least("ratio to Redisson", ratio, 5.0)];
            }
            rows.extend(against_first(found));
        }
        Ok(rows)
    })
}

/// Readers and writers of one lock.
pub(super) fn read_write(bench: &mut Bench) -> Result<Vec<Row>> {
    with_solo(bench, |bench, teams| {
        let mut teams = complete(teams);
        let mut rows = Vec::new();
        for (what, shares) in [("rw90", "90:10"), ("rw50", "50:50")] {
            teams
                .iter_mut()
                .try_for_each(|team| team.warm_up(what, HOT, warm_time(&bench.plan)))?;
            let time = bench.plan.slice * 2;
            let work = Work { what, workers: HOT, settle: time / 3, time };
            let measured = measure(bench, &mut teams, &work)?;
            let workload = format!("peers: read/write {shares}");
            let names = ["lockkeeper RwLock", "Redisson ReadWriteLock"];
            let found = measured.iter().zip(names);
            let found = found.map(|(of, name)| of.row(&workload, name, "operations/s", HOT));
            rows.extend(against_first(found.collect()));
        }
        Ok(rows)
    })
}

impl Measured {
    pub(super) fn row(
        &self,
        workload: &str,
        name: &str,
        unit: &'static str,
        workers: usize,
    ) -> Row {
        Row::rate(workload, name, unit, &self.slices).by(workers)
    }

    /// In all processes together.
    pub(super) fn workers(&self) -> usize {
        self.counts[0].iter().map(Vec::len).sum()
    }

    /// The most that a worker had the lock over the least, in each round.
    pub(super) fn fairness(&self, workload: &str) -> Row {
        let shares = self.counts.iter().map(|processes| processes.concat());
        self.ratio_row(workload, shares)
    }

    /// The same with the processes instead of the workers.
    fn fairness_between(&self, workload: &str) -> Row {
        let shares = self
            .counts
            .iter()
            .map(|processes| processes.iter().map(|of| of.iter().sum()).collect());
        self.ratio_row(workload, shares)
    }

    fn ratio_row(&self, workload: &str, shares: impl Iterator<Item = Vec<u64>>) -> Row {
        let shares: Vec<_> = shares.collect();
        let ratios: Vec<_> = shares.iter().map(|of| unfairness(of)).collect();
        Row::of(workload, self.library.name(), "max/min", &ratios).by(shares[0].len())
    }
}

/// Infinite if one had nothing.
fn unfairness(shares: &[u64]) -> f64 {
    let most = shares.iter().max().copied().unwrap_or(0);
    let least = shares.iter().min().copied().unwrap_or(0);
    if least == 0 { f64::INFINITY } else { most as f64 / least as f64 }
}

/// Until all workers are at work: a thread takes longer to start than a task.
pub(super) fn settle(time: Duration, workers: usize) -> Duration {
    time / 3 + Duration::from_micros(300) * workers as u32
}

/// Gives the teams their turns. A first turn, which is not timed, counts the requests.
pub(super) fn measure(
    bench: &mut Bench,
    teams: &mut [&mut Team],
    work: &Work<'_>,
) -> Result<Vec<Measured>> {
    let mut measured = Vec::new();
    let mut calls = Vec::new();
    for team in teams.iter_mut() {
        calls.push(calls_per_operation(team, work, bench.probe.addresses())?);
        let library = team.library();
        measured.push(Measured { library, slices: Vec::new(), counts: Vec::new() });
    }
    for round in 0..bench.plan.rounds {
        for step in 0..teams.len() {
            let turn = if round % 2 == 0 { step } else { teams.len() - 1 - step };
            let team = &mut *teams[turn];
            let (slice, counts) = take_turn(&mut bench.probe, team, work)?;
            let calls = calls[turn] * slice.ops as f64;
            measured[turn].slices.push(Slice { calls, ..slice });
            measured[turn].counts.push(counts);
        }
    }
    Ok(measured)
}

pub(super) fn start(team: &mut Team, work: &Work<'_>) -> Result<()> {
    let name = format!("bench:{}:{}", team.library().tag(), work.what);
    team.ask(&format!("start {} {name} {}", work.what, work.workers)).map(drop)
}

/// From before the first worker starts until the last has ended: every request belongs to an operation.
fn calls_per_operation(team: &mut Team, work: &Work<'_>, servers: &[SocketAddr]) -> Result<f64> {
    // What is done once, such as to load scripts, belongs to no operation.
    start(team, work)?;
    thread::sleep(work.settle);
    team.ask("stop")?;
    let monitors = servers.iter().map(|server| Monitor::start(*server));
    let monitors = monitors.collect::<Result<Vec<_>>>()?;
    start(team, work)?;
    thread::sleep(work.settle + work.time / 2);
    let counts = team.ask("stop")?;
    let requests: u64 = monitors.into_iter().map(Monitor::stop).sum::<Result<_>>()?;
    let operations: u64 = counts.iter().flat_map(|numbers| numbers.iter().skip(1)).sum();
    Ok(requests as f64 / operations as f64)
}

/// Counts only the middle, when all workers are at work.
fn take_turn(
    probe: &mut Probe,
    team: &mut Team,
    work: &Work<'_>,
) -> Result<(Slice, Vec<Vec<u64>>)> {
    start(team, work)?;
    thread::sleep(work.settle);
    let (mut before, mut after, mut cpu) = (Vec::new(), Vec::new(), Duration::ZERO);
    let slice = probe.slice(|| {
        let spent = team.cpu();
        before = team.ask("count")?;
        thread::sleep(work.time);
        after = team.ask("count")?;
        cpu = team.cpu() - spent;
        Ok(0)
    })?;
    team.ask("stop")?;
    let counts: Vec<Vec<u64>> =
        before.iter().zip(&after).map(|(before, after)| differences(before, after)).collect();
    let spans = before.iter().zip(&after).map(|(before, after)| after[0] - before[0]);
    // Each by its own clock: an answer may have been late.
    let elapsed = Duration::from_nanos(spans.sum::<u64>() / before.len() as u64);
    let ops = counts.iter().flatten().sum();
    Ok((Slice { ops, elapsed, client_cpu: cpu.as_secs_f64(), ..slice }, counts))
}

/// Without the times, which come first.
fn differences(before: &[u64], after: &[u64]) -> Vec<u64> {
    before.iter().zip(after).skip(1).map(|(before, after)| after - before).collect()
}

pub(super) fn against_first(rows: Vec<Row>) -> Vec<Row> {
    let reference = rows[0].clone();
    rows.into_iter().map(|row| row.against(&reference)).collect()
}

/// The longest that a warm-up may take.
fn warm_time(plan: &Plan) -> Duration {
    Duration::from_secs(if plan.quick { 1 } else { 15 })
}

pub(super) fn warm_up(plan: &Plan, teams: &mut [Team], what: &str, workers: usize) -> Result<()> {
    teams.iter_mut().try_for_each(|team| team.warm_up(what, workers, warm_time(plan)))
}

pub(super) fn all(teams: &mut [Team]) -> Vec<&mut Team> {
    teams.iter_mut().collect()
}

/// Those that have every kind of lock.
fn complete(teams: &mut [Team]) -> Vec<&mut Team> {
    teams.iter_mut().filter(|team| Library::COMPLETE.contains(&team.library())).collect()
}

/// Lends the processes of which there is one per library.
fn with_solo<T>(
    bench: &mut Bench,
    work: impl FnOnce(&mut Bench, &mut [Team]) -> Result<T>,
) -> Result<T> {
    let mut peers = bench.peers.take().ok_or(WITH_PEERS)?;
    let result = peers.solo().and_then(|teams| work(bench, teams));
    bench.peers = Some(peers);
    result
}

/// Lends the processes of which there are several per library.
fn with_teams<T>(
    bench: &mut Bench,
    work: impl FnOnce(&mut Bench, &mut [Team]) -> Result<T>,
) -> Result<T> {
    let peers = bench.peers.take().ok_or(WITH_PEERS)?;
    let size = if bench.plan.quick { 2 } else { 8 };
    let result = peers.teams(size).and_then(|mut teams| work(bench, &mut teams));
    bench.peers = Some(peers);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_without_a_turn_makes_it_infinitely_unfair() {
        assert_eq!(unfairness(&[4, 2, 3]), 2.0);
        assert_eq!(unfairness(&[4, 0]), f64::INFINITY);
    }

    #[test]
    fn the_time_is_no_count() {
        assert_eq!(differences(&[100, 1, 2], &[900, 4, 2]), [3, 0]);
    }
}
