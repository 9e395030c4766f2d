//! Independent servers of which a majority decides, as in Redlock: pairs, one hot lock, and how soon the
//! death of two of five members is over.
//!
//! Each library asks every member for each acquire and each release: 2N requests for a pair.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use testkit::RedisServer;

use super::WITH_PEERS;
use super::throughput::{
    HOT, HOT_SLICES, HOT_SLICES_OF_PROCESSES, Measured, Work, against_first, all, hot_work,
    measure, settle,
};
use crate::Result;
use crate::bench::Bench;
use crate::processes::{Library, Peer, Team, now};
use crate::report::{Aim, Row};

/// Those that lock on several servers, ours first.
const LIBRARIES: [Library; 4] = [Library::Lock, Library::Mutex, Library::Rslock, Library::Redsync];

const SIZES: [usize; 2] = [3, 5];

const TASKS: [usize; 2] = [1, 64];

/// Short, because a new member of our quorum grants nothing for as long.
const LEASE: Duration = Duration::from_secs(3);

/// Between two acquisitions while members die: more would be load, and not a measurement.
const PAUSE: Duration = Duration::from_millis(1);

/// For so long all members are there.
const BEFORE: Duration = Duration::from_millis(200);

/// Servers that know nothing of each other, and processes that use all of them.
struct Quorum {
    members: Vec<RedisServer>,
    teams: Vec<Team>,
}

impl Quorum {
    /// Returns when the members vote.
    fn start(bench: &Bench, size: usize, processes: usize) -> Result<Self> {
        let members: Vec<_> = (0..size).map(|_| RedisServer::start()).collect();
        let urls: Vec<_> = members.iter().map(RedisServer::url).collect();
        let url = format!("quorum:{}", urls.join(","));
        let peers = bench.peers.as_ref().ok_or(WITH_PEERS)?;
        let start = |library| peers.team(library, processes, &url, LEASE);
        let mut teams = LIBRARIES.map(start).into_iter().collect::<Result<Vec<_>>>()?;
        for team in &mut teams {
            let name = name(team.library());
            team.peers
                .iter_mut()
                .try_for_each(|peer| peer.ask(&format!("wait {name}")).map(drop))?;
        }
        Ok(Self { members, teams })
    }

    fn measure(&mut self, bench: &mut Bench, work: &Work<'_>) -> Result<Vec<Measured>> {
        let address = |member: &RedisServer| ([127, 0, 0, 1], member.port()).into();
        let addresses: Vec<_> = self.members.iter().map(address).collect();
        bench.counting_on(&addresses, |bench| measure(bench, &mut all(&mut self.teams), work))
    }
}

fn name(library: Library) -> String {
    format!("bench:{}:quorum", library.tag())
}

/// Each worker on a name of its own.
pub(super) fn uncontended(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for members in SIZES {
        let workload = format!("quorum: uncontended, {members} members");
        let mut quorum = Quorum::start(bench, members, 1)?;
        for workers in TASKS {
            let time = bench.plan.slice;
            let work = Work { what: "own", workers, settle: settle(time, workers), time };
            let measured = quorum.measure(bench, &work)?;
            let found =
                measured.iter().map(|of| of.row(&workload, of.library.name(), "pairs/s", workers));
            let mut found: Vec<_> = found.collect();
            let [lock, mutex, rslock, ..] = &mut found[..] else { return Err("no rows".into()) };
            mutex.aims.push(Aim::at_least("ratio to rslock", mutex.over(rslock), 1.0));
            for ours in [lock, mutex] {
                let calls = [ours.calls.unwrap_or(f64::NAN)];
                // A renewal may fall into the turn.
                let most = 2.0 * members as f64 + 0.05;
                ours.aims.push(Aim::at_most("requests/pair", calls, most));
            }
            rows.extend(against_first(found));
        }
    }
    Ok(rows)
}

/// All workers on one name, in one process and in several.
pub(super) fn hot(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for members in SIZES {
        let mut quorum = Quorum::start(bench, members, 1)?;
        let measured = quorum.measure(bench, &hot_work(&bench.plan, HOT, HOT_SLICES))?;
        rows.extend(hot_rows(&measured, &format!("{members} members, 1 process")));
    }
    let (members, processes) = (SIZES[0], if bench.plan.quick { 2 } else { 8 });
    let mut quorum = Quorum::start(bench, members, processes)?;
    let work = hot_work(&bench.plan, HOT / 8, HOT_SLICES_OF_PROCESSES);
    let measured = quorum.measure(bench, &work)?;
    rows.extend(hot_rows(&measured, &format!("{members} members, {processes} processes")));
    // By workload, so that the table compares libraries.
    rows.sort_by_key(|row| row.unit);
    Ok(rows)
}

fn hot_rows(measured: &[Measured], shape: &str) -> Vec<Row> {
    let workload = format!("quorum: hot lock, {shape}");
    let found = measured
        .iter()
        .map(|of| of.row(&workload, of.library.name(), "acquisitions/s", of.workers()));
    let mut found: Vec<_> = found.collect();
    let [ours @ .., rslock, redsync] = &mut found[..] else { return found };
    for row in ours {
        row.aims = vec![
            Aim::at_least("ratio to rslock", row.over(rslock), 1.0),
            Aim::at_least("ratio to redsync", row.over(redsync), 1.0),
        ];
    }
    let mut rows = against_first(found);
    let workload = format!("quorum: fairness, {shape}");
    rows.extend(measured.iter().map(|of| of.fairness(&workload)));
    rows
}

/// Milliseconds from the death of two of five members to the next grant that was asked for afterwards. A
/// request that was under way delays it.
pub(super) fn members_die(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut spans = LIBRARIES.map(|_| Vec::new());
    for _ in 0..bench.plan.rounds {
        let Quorum { members, mut teams } = Quorum::start(bench, 5, 1)?;
        let died = AtomicU64::new(u64::MAX);
        let found = thread::scope(|scope| {
            let acquiring: Vec<_> = teams
                .iter_mut()
                .map(|team| scope.spawn(|| acquire_until_after(&mut team.peers[0], &died)))
                .collect();
            thread::sleep(BEFORE);
            members[..2].iter().for_each(RedisServer::kill);
            died.store(now(), Ordering::SeqCst);
            let ended = acquiring.into_iter().map(|thread| thread.join());
            ended.map(|span| span.map_err(|_| "a thread has panicked")?).collect::<Result<Vec<_>>>()
        })?;
        spans.iter_mut().zip(found).for_each(|(spans, span)| spans.push(span));
    }
    let rows = LIBRARIES.iter().zip(&spans).map(|(library, spans)| {
        let row = Row::of("quorum: members die", library.name(), "ms", spans);
        match library {
            Library::Lock | Library::Mutex => {
                row.aiming([Aim::at_most("ms", spans.clone(), 100.0)])
            }
            _ => row,
        }
    });
    Ok(against_first(rows.collect()))
}

/// Acquires and releases, one after the other.
fn acquire_until_after(peer: &mut Peer, died: &AtomicU64) -> Result<f64> {
    let wait = format!("wait {}", name(peer.library()));
    loop {
        let asked = now();
        let acquired = peer.number(&wait)?;
        let died = died.load(Ordering::SeqCst);
        if asked > died {
            return Ok((acquired - died) as f64 / 1e6);
        }
        thread::sleep(PAUSE);
    }
}
