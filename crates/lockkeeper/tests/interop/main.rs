//! Beside a real Redisson, and beside other libraries of the Redlock family.
//!
//! Everything here runs against real servers, real JVMs and real interpreters. A file is a theme; what
//! is true of several versions of Redisson is tested with each of them (`on_versions`). Where the other
//! side holds what this side waits for, and back, the test does both.
//!
//! Bounds: a waiter that is told gets the lock within [`support::SOON`], with leases of half a minute; so
//! a slow machine does not fail a test, and a message that nobody sent or nobody heard does.
#![cfg(feature = "redis")]

mod killed_process;
mod support;

mod cluster;
mod fair;
mod fenced;
mod latch;
mod listing;
mod lock;
mod multi;
mod permits;
mod quorum;
mod redlock;
mod rw;
mod semaphore;
mod spin;
mod stress;
mod versions;
