//! Servers and faults for tests: what the tests of this workspace share, and nothing a user sees.
//!
//! Everything here is a value that starts on construction and is gone after `Drop`:
//!
//! | Value | What it is |
//! |---|---|
//! | [`RedisServer`] | a `redis-server` of its own, or of another [`Flavour`], on loopback, that can be paused, killed and restarted |
//! | [`FaultProxy`] | a TCP proxy in front of it that cuts, delays, swallows, holds and drops replies, or moves |
//! | [`Replicated`] | a primary and its replicas, each behind a proxy if asked for; nodes can be cut off |
//! | [`Sentinels`] | the same with three sentinels, ready for a failover |
//! | [`Cluster`] | a Redis Cluster of three shards: slots migrate in steps, replicas take over |
//! | [`Quorum`] | servers that know nothing of each other, the members of a quorum, and all that happens to them |
//! | [`Flaky`] | a store whose answers are lost, late or withheld, call by call |
//! | [`History`] | who held which lock when, and whether that was allowed |
//! | [`ChildProcess`] | another process of ours, for tests that need more than one |
//! | [`JavaPeer`] | a Redisson client in a process of its own, several versions to choose from |
//! | [`Stopwatch`] | time without that in which the machine stood still |
//! | [`RedlockPeer`] | a client of another library of the Redlock family, in a process of its own |
//!
//! Nothing is skipped when something is missing: the panic says how to get it.

mod certificates;
mod child;
mod cli;
mod cluster;
mod flaky;
mod forward;
mod history;
pub mod java;
mod node;
mod peer;
mod percent;
mod port;
mod prepared;
mod process;
mod proxy;
mod quorum;
mod redlock;
mod replicated;
mod reply;
mod sentinels;
mod server;
pub mod signals;
mod stopwatch;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use child::{ChildProcess, example_path};
pub use cli::Cli;
pub use cluster::{Cluster, ClusterBuilder, Shape};
pub use flaky::{Flaky, Gate, Verb};
pub use history::History;
pub use java::{JavaPeer, Redisson};
#[doc(hidden)]
pub use lockkeeper::backend;
pub use node::{Node, Side};
pub use proxy::{ConnId, FaultProxy, RequestWatch};
pub use quorum::{Quorum, QuorumBuilder};
pub use redlock::{Redlock, RedlockMutex, RedlockPeer};
pub use replicated::{Replicated, ReplicatedBuilder};
pub use reply::Reply;
pub use sentinels::{Sentinels, SentinelsBuilder, Switch, SwitchWatch};
pub use server::{Flavour, RedisServer, RedisServerBuilder};
pub use stopwatch::{Stopwatch, awake_between};

/// Also after a panic: no state here is left half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
