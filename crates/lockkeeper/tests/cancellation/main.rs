//! Whoever walks away leaves nothing behind: no hold, no place in a queue, no subscription, no
//! renewal, no task.
//!
//! - [`matrix`]: every operation of everything that can be held or waited for, dropped at every point
//!   where it can be, while the store answers, fails, forgets to answer, dawdles or says nothing at
//!   all. Memory store, paused clock. [`scenes`] are the operations, [`stage`] is where they happen.
//! - [`drops`]: guards and waiters that go down with their task or their runtime.
//! - [`late_answers`]: answers that come after everything has changed, or never.
//! - [`redis`]: thousands of acquires on a real server, dropped at random moments.

mod drops;
mod late_answers;
mod matrix;
mod redis;
mod scenes;
mod stage;
