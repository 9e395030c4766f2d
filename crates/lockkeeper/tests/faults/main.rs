//! Servers, networks, clocks and processes fail: what the library does.
//!
//! Tests run against real `redis-server` processes on loopback, some of them behind a proxy that fails on
//! request; those in [`flaky`] and [`lanes`] run on the memory store with a paused clock, behind a backend that fails on
//! request. A scenario for every primitive goes through [`primitives`]; one for locks and mutexes runs for
//! both at the same time.
//!
//! Bounds: what must happen at once has [`support::SOON`], which is well below the re-check of a waiter
//! (2.5 to 5 s) and any lease that could have the same effect. Time in which the machine
//! stood still does not count ([`testkit::Stopwatch`]): a slow machine does not fail a test, and a lost wake-up
//! does.
#![cfg(feature = "redis")]

mod primitives;
mod support;

mod acknowledged;
mod changed_keys;
mod checks;
mod clock;
mod cluster;
mod connection;
mod endpoints;
mod failed_requests;
mod failover;
mod fair;
mod flaky;
mod full;
mod lanes;
mod latch;
mod listing;
mod load;
mod multi;
mod orphans;
mod outage;
mod pause;
mod permissions;
mod process;
mod protocol;
mod quorum;
mod refusals;
mod replies;
mod replies_by_primitive;
mod restart;
mod scripts;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod wakeups;
