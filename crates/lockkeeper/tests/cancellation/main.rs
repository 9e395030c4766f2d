//! A dropped future leaves nothing behind: no hold, no queue position, no subscription, no renewal, no
//! task.
//!
//! - [`matrix`]: every operation of every primitive, dropped at every poll, while the store answers, fails,
//!   loses the answer, is slow or does not answer. Memory store, paused clock. [`operations`] are the
//!   operations, [`fixture`] has the stores and clients.
//! - [`drops`]: guards and waiters that are dropped with their task or their runtime.
//! - [`late_answers`]: answers that arrive after the state has changed, or never.
//!
//! `tests/leaks.rs` drops thousands of acquires at random times, on a real server, too.

mod drops;
mod fixture;
mod late_answers;
mod matrix;
mod operations;
