//! What is measured, one file per workload.

mod cluster;
mod command;
mod embedded;
mod failover;
mod growth;
mod hot;
mod instructions;
mod memory;
mod several;
mod uncontended;

use crate::bench::{Bench, Workload};
use crate::peers::acknowledged;

/// All of them, in the order they run.
pub(crate) const ALL: &[Workload] = &[
    Workload { name: "lock uncontended", seconds: 22, run: uncontended::lock },
    Workload { name: "mutex uncontended", seconds: 22, run: uncontended::mutex },
    Workload { name: "hot lock", seconds: 3, run: hot::run },
    Workload { name: "several locks", seconds: 45, run: several::run },
    Workload { name: "acknowledged", seconds: 34, run: acknowledged::run },
    Workload { name: "failover", seconds: 70, run: failover::run },
    Workload { name: "cluster: uncontended", seconds: 12, run: cluster::uncontended },
    Workload { name: "cluster: renewals", seconds: 45, run: cluster::renewals },
    Workload { name: "cluster: failover", seconds: 70, run: cluster::failover },
    Workload { name: "memory store", seconds: 2, run: embedded::run },
    Workload { name: "allocations", seconds: 2, run: memory::allocations },
    Workload { name: "command line: run", seconds: 4, run: command::run },
    Workload { name: "memory", seconds: 0, run: memory::bytes },
    Workload { name: "growth: timeouts", seconds: 33, run: growth::timeouts },
    Workload { name: "growth: names held", seconds: 42, run: growth::held },
];

/// Needs valgrind, so it runs only when it is asked for.
pub(crate) const INSTRUCTIONS: Workload =
    Workload { name: "instructions", seconds: 5, run: instructions::run };
