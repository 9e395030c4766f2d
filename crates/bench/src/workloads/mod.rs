//! What is measured, one file per workload.

mod command;
mod embedded;
mod family;
mod growth;
mod hot;
mod memory;
mod uncontended;
mod wake;
mod watchdog;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::Result;
use crate::contenders::Contender;
use crate::probe::Probe;
use crate::report::Row;

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Times every contender gets its turn.
    pub(crate) rounds: usize,
    /// Length of a turn.
    pub(crate) slice: Duration,
    /// Whether the sizes may be cut down as well.
    pub(crate) quick: bool,
}

/// The server, the runtime and the plan every workload shares.
pub(crate) struct Bench {
    /// Two workers: the machine of BENCH.md.
    pub(crate) runtime: Runtime,
    /// Where the server listens.
    pub(crate) address: SocketAddr,
    /// For readings.
    pub(crate) probe: Probe,
    /// How much.
    pub(crate) plan: Plan,
}

impl Bench {
    /// The server's URL.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Gives `contenders` contenders their turns, round by round; returns what the turns of each
    /// gave. Every other round goes backwards, so that none always has the same neighbour. A first,
    /// shorter turn warms each up and is thrown away.
    pub(crate) fn interleave<T>(
        &mut self,
        contenders: usize,
        mut turn: impl FnMut(&mut Probe, usize, Duration) -> Result<T>,
    ) -> Result<Vec<Vec<T>>> {
        let mut results: Vec<_> = (0..contenders).map(|_| Vec::new()).collect();
        for contender in 0..contenders {
            turn(&mut self.probe, contender, self.plan.slice / 5)?;
        }
        for round in 0..self.plan.rounds {
            for step in 0..contenders {
                let contender = if round % 2 == 0 { step } else { contenders - 1 - step };
                results[contender].push(turn(&mut self.probe, contender, self.plan.slice)?);
            }
        }
        Ok(results)
    }

    /// Uncontended pairs of every contender: one row each, against the first.
    pub(crate) fn pairs(
        &mut self,
        workload: &str,
        contenders: &mut [Box<dyn Contender>],
        tasks: usize,
    ) -> Result<Vec<Row>> {
        let slices = self.interleave(contenders.len(), |probe, contender, time| {
            probe.slice(|| contenders[contender].run(tasks, time))
        })?;
        let rows = contenders.iter().zip(&slices).map(|(contender, slices)| {
            Row::rate(workload, &contender.name(), "pairs/s", slices).by(tasks)
        });
        let rows: Vec<_> = rows.collect();
        let reference = rows[0].clone();
        Ok(rows.into_iter().map(|row| row.against(&reference)).collect())
    }
}

/// A workload: the name `--only` looks at, and what runs it.
pub(crate) struct Workload {
    /// Its name.
    pub(crate) name: &'static str,
    /// Measures it.
    pub(crate) run: fn(&mut Bench) -> Result<Vec<Row>>,
}

/// All of them, in the order they run.
pub(crate) const ALL: &[Workload] = &[
    Workload { name: "lock uncontended", run: uncontended::lock },
    Workload { name: "mutex uncontended", run: uncontended::mutex },
    Workload { name: "hot lock", run: hot::run },
    Workload { name: "family: uncontended", run: family::uncontended },
    Workload { name: "family: shared", run: family::shared },
    Workload { name: "fair hand-over", run: family::fair },
    Workload { name: "wake-up", run: wake::run },
    Workload { name: "memory store", run: embedded::run },
    Workload { name: "command line: run", run: command::run },
    Workload { name: "command line: ls", run: command::list },
    Workload { name: "memory", run: memory::run },
    Workload { name: "watchdog", run: watchdog::run },
    Workload { name: "growth: waiters", run: growth::waiters },
    Workload { name: "growth: names used", run: growth::used },
    Workload { name: "growth: names held", run: growth::held },
];
