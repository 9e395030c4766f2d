//! What every workload gets: a server, a runtime, readings, and how much to measure.

use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::Result;
use crate::contenders::Contender;
use crate::probe::Probe;
use crate::processes::Peers;
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
    /// Other libraries, if they were asked for.
    pub(crate) peers: Option<Peers>,
}

impl Bench {
    /// The server's URL.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Runs `work` with the counters of other servers.
    pub(crate) fn counting_on<T>(
        &mut self,
        servers: &[SocketAddr],
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let usual = mem::replace(&mut self.probe, Probe::connect(servers)?);
        let result = work(self);
        self.probe = usual;
        result
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
    /// How long it takes beside the peers, about, on two quiet cores; 0 if it does not run there.
    pub(crate) seconds: u64,
    /// Measures it.
    pub(crate) run: fn(&mut Bench) -> Result<Vec<Row>>,
}
