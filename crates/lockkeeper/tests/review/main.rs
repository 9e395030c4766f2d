//! What a hostile review found, so that it stays found: each test is an interleaving that once went
//! wrong.
//!
//! - [`memory`]: what the engine and the model got wrong. Memory store, paused clock.
//! - [`redis`]: what only a server shows: scripts, rights, messages that are late.

mod memory;
#[cfg(feature = "redis")]
mod redis;
