//! lockkeeper beside the libraries that one would use instead, each in processes of its own, on one server
//! or on a quorum.

pub(crate) mod acknowledged;
mod far;
mod held;
mod latency;
mod memory;
mod quorum;
mod throughput;

use crate::bench::Workload;

/// What a workload says that needs the peers.
const WITH_PEERS: &str = "this workload needs --peers";

/// The workloads, in the order they run.
pub(crate) const ALL: &[Workload] = &[
    Workload { name: "peers: uncontended", seconds: 364, run: throughput::uncontended },
    Workload { name: "peers: hot lock", seconds: 50, run: throughput::hot },
    Workload { name: "peers: hot lock of processes", seconds: 82, run: throughput::hot_processes },
    Workload { name: "peers: far process", seconds: 89, run: far::run },
    Workload { name: "peers: handoff", seconds: 70, run: latency::handoff },
    Workload { name: "peers: fair lock", seconds: 59, run: throughput::fair },
    Workload { name: "peers: read/write", seconds: 26, run: throughput::read_write },
    Workload { name: "peers: held locks", seconds: 108, run: held::run },
    Workload { name: "peers: recovery", seconds: 15, run: latency::recovery },
    Workload { name: "peers: connect", seconds: 7, run: latency::connect },
    Workload { name: "peers: memory per waiter", seconds: 34, run: memory::run },
    Workload { name: "quorum: uncontended", seconds: 45, run: quorum::uncontended },
    Workload { name: "quorum: hot lock", seconds: 120, run: quorum::hot },
    Workload { name: "quorum: members die", seconds: 35, run: quorum::members_die },
];
