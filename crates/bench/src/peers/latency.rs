//! How long it takes: until the next waiter has the lock, until a waiter has the lock of a holder that was
//! killed, until a new client or process has a lock.

use std::thread;
use std::time::{Duration, Instant};

use super::WITH_PEERS;
use crate::Result;
use crate::bench::Bench;
use crate::processes::{Built, LEASE, Library, Team, first, now};
use crate::report::{Aim, Row, median};
use crate::wire::{Wire, integer};

/// Until a waiter has been refused and waits.
const SETTLE: Duration = Duration::from_millis(4);

/// Samples of one round.
const SAMPLES: usize = 300;

/// A library that polls has few samples within this.
const ROUND_MAX: Duration = Duration::from_secs(2);

/// Percentiles, with the least number of samples that say something about each.
const PERCENTILES: [(f64, &str, usize); 3] =
    [(0.5, "p50", 1), (0.99, "p99", 100), (0.999, "p99.9", 1_000)];

/// The lease of the locks whose holder is killed.
const SHORT_LEASE: Duration = Duration::from_secs(2);

/// How long a waiter has waited when the holder is killed: the lease is not yet due for renewal.
const WAITED: Duration = Duration::from_millis(300);

/// From the start of a release in one process to the moment a waiter in another one has the lock.
pub(super) fn handoff(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut teams = bench.peers.as_ref().ok_or(WITH_PEERS)?.teams(2)?;
    // The reference is the last one.
    teams.push(Team::start(Library::Raw, 2, &Built::default(), &bench.url(), LEASE)?);
    let (samples, longest) = match bench.plan.quick {
        true => (40, Duration::from_millis(500)),
        false => (SAMPLES, ROUND_MAX),
    };
    for team in teams.iter_mut().filter(|team| team.library().warms_up()) {
        let many = samples * if bench.plan.quick { 1 } else { 4 };
        handoffs(team, many, longest * 4)?;
    }
    let rounds = bench.interleave(teams.len(), |_, turn, time| {
        let longest = longest.min(time * 10);
        handoffs(&mut teams[turn], samples, longest)
    })?;
    let mut rows = Vec::new();
    for (share, name, least) in PERCENTILES {
        let workload = format!("peers: handoff {name}");
        let found = teams.iter().zip(&rounds).filter_map(|(team, rounds)| {
            let values = percentiles(rounds, share, least)?;
            Some(Row::of(&workload, team.library().name(), "µs", &values).by(2))
        });
        let mut found = against_first(found.collect());
        if let (true, Some(raw)) = (share == 0.5, found.last().cloned()) {
            for ours in &mut found[..2] {
                ours.aims = vec![Aim::at_most("ratio to the raw subscriber", ours.over(&raw), 1.2)];
            }
        }
        rows.extend(found);
    }
    Ok(rows)
}

/// Microseconds from the release in the first process to the lock in the second.
fn handoffs(team: &mut Team, count: usize, longest: Duration) -> Result<Vec<f64>> {
    let name = format!("bench:{}:next", team.library().tag());
    let [holder, waiter, ..] = &mut team.peers[..] else {
        return Err("a handoff needs two processes".into());
    };
    let (start, mut samples) = (Instant::now(), Vec::with_capacity(count));
    while samples.len() < count && start.elapsed() < longest {
        holder.ask(&format!("acquire {name}"))?;
        waiter.send(&format!("wait {name}"));
        thread::sleep(SETTLE);
        let released = holder.number("release")?;
        let acquired = first(&waiter.answer()?)?;
        samples.push(acquired.saturating_sub(released) as f64 / 1e3);
    }
    Ok(samples)
}

/// One value per round if a round has samples enough, or one of all rounds, or none.
fn percentiles(rounds: &[Vec<f64>], share: f64, least: usize) -> Option<Vec<f64>> {
    let all = rounds.concat();
    if rounds.iter().all(|samples| samples.len() >= least) {
        Some(rounds.iter().map(|samples| percentile(samples, share)).collect())
    } else if all.len() >= least {
        Some(vec![percentile(&all, share)])
    } else {
        None
    }
}

fn percentile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// From the kill of a holder to the moment a waiter in another process has the lock, and how much of it is
/// after the lease has expired. All libraries at once: they wait, mostly.
pub(super) fn recovery(bench: &mut Bench) -> Result<Vec<Row>> {
    let peers = bench.peers.as_ref().ok_or(WITH_PEERS)?;
    let mut waiters = peers.each(SHORT_LEASE)?;
    let mut wire = Wire::connect(bench.address)?;
    let mut spans: Vec<_> = waiters.iter().map(|_| (Vec::new(), Vec::new())).collect();
    for _ in 0..bench.plan.rounds {
        let mut holders = peers.each(SHORT_LEASE)?;
        for (holder, waiter) in holders.iter_mut().zip(&mut waiters) {
            let name = format!("bench:{}:kill", holder.library().tag());
            holder.ask(&format!("acquire {name}"))?;
            waiter.send(&format!("wait {name}"));
        }
        thread::sleep(WAITED);
        let mut killed = Vec::new();
        for holder in holders {
            let name = format!("bench:{}:kill", holder.library().tag());
            let key = holder.library().key(&name);
            let left = integer(wire.call(&[b"PTTL", key.as_bytes()])?);
            let at = now();
            holder.kill();
            killed.push((at, at.saturating_add_signed(left * 1_000_000)));
        }
        for ((waiter, (at, expires)), (whole, late)) in
            waiters.iter_mut().zip(killed).zip(&mut spans)
        {
            let acquired = first(&waiter.answer()?)?;
            whole.push((acquired as f64 - at as f64) / 1e9);
            late.push((acquired as f64 - expires as f64) / 1e6);
        }
    }
    let rows = |workload: &str, unit, values: &[&Vec<f64>]| -> Vec<Row> {
        let rows = waiters
            .iter()
            .zip(values)
            .map(|(waiter, values)| Row::of(workload, waiter.library().name(), unit, values).by(2));
        rows.collect()
    };
    let (whole, late): (Vec<_>, Vec<_>) = spans.iter().map(|(whole, late)| (whole, late)).unzip();
    let lease = SHORT_LEASE.as_secs();
    let mut found = rows(&format!("peers: recovery, lease {lease} s"), "s", &whole);
    found.extend(rows("peers: recovery after expiry", "ms", &late));
    Ok(found)
}

/// From no client to a held lock, in a process that runs and in a new one.
pub(super) fn connect(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut peers = bench.peers.take().ok_or(WITH_PEERS)?;
    let times = if bench.plan.quick { 3 } else { 10 };
    let solo = peers.solo()?;
    let clients = bench.interleave(solo.len(), |_, turn, _| {
        let name = format!("bench:{}:conn", solo[turn].library().tag());
        let spans = (0..times).map(|_| solo[turn].peers[0].number(&format!("connect {name}")));
        let spans: Result<Vec<_>> = spans.map(|span| Ok(span? as f64 / 1e6)).collect();
        Ok(median(&spans?))
    })?;
    let processes = bench.interleave(Library::ALL.len(), |_, turn, _| {
        let start = Instant::now();
        let mut peer = peers.one(Library::ALL[turn], LEASE)?;
        peer.ask(&format!("acquire bench:{}:proc", Library::ALL[turn].tag()))?;
        let span = start.elapsed();
        peer.ask("release")?;
        Ok(span.as_secs_f64() * 1e3)
    })?;
    bench.peers = Some(peers);
    let rows = |workload: &str, values: &[Vec<f64>]| -> Vec<Row> {
        let rows = Library::ALL.iter().zip(values);
        let rows = rows.map(|(library, values)| Row::of(workload, library.name(), "ms", values));
        against_first(rows.collect())
    };
    let mut found = rows("peers: connect, new client", &clients);
    found.extend(rows("peers: connect, new process", &processes));
    Ok(found)
}

fn against_first(rows: Vec<Row>) -> Vec<Row> {
    let Some(reference) = rows.first().cloned() else { return rows };
    rows.into_iter().map(|row| row.against(&reference)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_samples() {
        let samples: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        assert_eq!(percentile(&samples, 0.5), 500.0);
        assert_eq!(percentile(&samples, 0.999), 999.0);
        assert_eq!(percentile(&[7.0], 0.999), 7.0);
    }

    #[test]
    fn rounds_with_few_samples_count_together_or_not_at_all() {
        let rounds = [vec![1.0; 60], vec![3.0; 60]];
        assert_eq!(percentiles(&rounds, 0.5, 50), Some(vec![1.0, 3.0]));
        assert_eq!(percentiles(&rounds, 0.99, 100), Some(vec![3.0]));
        assert_eq!(percentiles(&rounds, 0.999, 1_000), None);
    }
}
