//! The fair lock on a real server: what is stored and published, in which order it is given out,
//! what a death costs, what a take costs, and what faults do to the queue.
//!
//! Strangers in the queue are Redisson's waiters, placed by hand as Redisson places them.
//!
//! Bounds are in time that the machine was awake ([`support::Stopwatch`]): one that stands still for
//! seconds fails no test.
#![cfg(feature = "redis")]

mod support;

mod cost;
mod faults;
mod mixed;
mod order;
mod wire;
