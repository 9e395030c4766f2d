//! How long the thread of a file store waits for other processes to finish their transactions.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

thread_local! {
    static LIMIT: Cell<Option<Instant>> = const { Cell::new(None) };
    static CLOSING: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Sets the flag that ends every wait of this thread.
pub(super) fn stop_when(closing: Arc<AtomicBool>) {
    CLOSING.set(Some(closing));
}

/// Removes the flag when the thread is about to end: only the time limit counts then.
pub(super) fn stop_by_limit_only() {
    CLOSING.set(None);
}

/// Sets until when this thread waits for other processes.
pub(super) fn set_limit(limit: Instant) {
    LIMIT.set(Some(limit));
}

/// Returns how long this thread still waits for other processes.
pub(super) fn left() -> Duration {
    let closing =
        CLOSING.with_borrow(|flag| flag.as_ref().is_some_and(|f| f.load(Ordering::Acquire)));
    let limit = LIMIT.get().filter(|_| !closing);
    limit.map_or(Duration::ZERO, |limit| limit.saturating_duration_since(Instant::now()))
}

/// Whether this thread may wait longer.
pub(super) fn is_left() -> bool {
    !left().is_zero()
}

/// Runs `work` without waiting for other processes.
pub(super) fn at_once<T>(work: impl FnOnce() -> T) -> T {
    let limit = LIMIT.replace(Some(Instant::now()));
    let done = work();
    LIMIT.set(limit);
    done
}

/// The busy handler of SQLite. Our transactions take some tens of microseconds, so the first pauses
/// are short. SQLite's own handler sleeps for up to 100 ms.
pub(super) fn pause(tries: i32) -> bool {
    if !is_left() {
        return false;
    }
    let longest = match tries {
        0..=3 => 60,
        4..=15 => 250,
        16..=63 => 1500,
        // There are many writers, or the writer does not get a CPU: leave it more time.
        _ => 6000,
    };
    thread::sleep(Duration::from_micros(fastrand::u64(longest / 3..longest)));
    true
}
