//! What the library does when servers, networks, clocks and processes misbehave.
//!
//! Everything here runs against real `redis-server` processes on loopback, some of them behind a
//! proxy that misbehaves on request. A file is a theme. A scenario that makes sense for [`Lock`] and
//! [`Mutex`] alike runs for both, at the same time; one that does for the rest of the family is in a
//! file that begins with `family`, and runs for each of them.
//!
//! Bounds: what must happen "at once" has [`support::SOON`], which is well below the re-check of a
//! waiter (2.5 to 5 s) and any lease that could make the same thing happen by itself; so a slow
//! machine does not fail a test, and a lost wake-up does.
//!
//! [`Lock`]: lockkeeper::Lock
//! [`Mutex`]: lockkeeper::Mutex
#![cfg(feature = "redis")]

mod family;
mod support;

mod checks;
mod clock;
mod connection;
mod family_full;
mod family_multi;
mod family_outage;
mod family_replies;
mod family_scripts;
mod family_time;
mod family_wakeups;
mod leftovers;
mod listing;
mod meddling;
mod orphans;
mod outage;
mod pause;
mod permissions;
mod process;
mod refusals;
mod replies;
mod restart;
mod scripts;
mod subscription;
#[cfg(feature = "tls")]
mod tls;
