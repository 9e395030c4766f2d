//! The queue of a fair lock on a real server: what is stored and published, the order of grants, the
//! cost of an acquire, and the queue after faults.
//!
//! Redisson's waiters are placed in the queue by the scripts that Redisson uses.
//!
//! Bounds count only the time in which the machine ran ([`support::Stopwatch`]): a machine that stands
//! still for seconds fails no test.

mod support;

mod cost;
mod order;
mod outage;
mod redisson;
mod stored;
