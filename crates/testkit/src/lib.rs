//! Servers and faults for tests: what the tests of this workspace share, and nothing a user sees.
//!
//! Everything here is a value that starts on construction and is gone after `Drop`:
//!
//! | Value | What it is |
//! |---|---|
//! | [`RedisServer`] | a `redis-server` of its own, on loopback, that can be paused, killed and restarted |
//! | [`FaultProxy`] | a TCP proxy in front of it that cuts, delays, swallows, holds and drops replies |
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
mod flaky;
mod history;
pub mod java;
mod peer;
mod percent;
mod port;
mod prepared;
mod process;
mod proxy;
mod redlock;
mod reply;
mod server;
pub mod signals;
mod stopwatch;

pub use child::{ChildProcess, example_path};
pub use cli::Cli;
pub use flaky::{Flaky, Gate, Verb};
pub use history::History;
pub use java::{JavaPeer, Redisson};
pub use proxy::{ConnId, FaultProxy, RequestWatch};
pub use redlock::{Redlock, RedlockMutex, RedlockPeer};
pub use reply::Reply;
pub use server::{RedisServer, RedisServerBuilder};
pub use stopwatch::Stopwatch;
