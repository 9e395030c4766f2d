//! Pairs on a primary with one replica: what it costs to wait until the replica has the lock.
//!
//! Redisson waits by itself if it knows that there are replicas; the others are told to. Without `--peers`
//! it is lockkeeper alone.

use testkit::Replicated;

use super::throughput::{Work, against_first, all, measure, settle, warm_up};
use crate::Result;
use crate::bench::Bench;
use crate::processes::{Built, LEASE, Library, Team};
use crate::report::Row;

const TASKS: [usize; 3] = [1, 64, 256];

/// The first is the reference of the ratios: without acknowledgement.
pub(crate) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let servers = Replicated::builder().replicas(1).start();
    let (one, both) = (servers.primary().url(), servers.url());
    let mut teams = vec![
        Team::start(Library::Lock, 1, &Built::default(), &one, LEASE)?,
        Team::start(Library::Acknowledged, 1, &Built::default(), &one, LEASE)?,
    ];
    if let Some(peers) = &bench.peers {
        teams.push(peers.team(Library::Redisson, 1, &both, LEASE)?);
    }
    let primary = ([127, 0, 0, 1], servers.primary().port()).into();
    bench.counting_on(&[primary], |bench| rows(bench, &mut teams))
}

fn rows(bench: &mut Bench, teams: &mut [Team]) -> Result<Vec<Row>> {
    warm_up(&bench.plan, teams, "own", 64)?;
    let mut rows = Vec::new();
    for workers in TASKS {
        let time = bench.plan.slice;
        let work = Work { what: "own", workers, settle: settle(time, workers), time };
        let measured = measure(bench, &mut all(teams), &work)?;
        let found =
            measured.iter().map(|of| of.row("acknowledged", of.library.name(), "pairs/s", workers));
        rows.extend(against_first(found.collect()));
    }
    Ok(rows)
}
