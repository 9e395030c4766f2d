//! How long the thread of a file store waits for other processes to finish their transactions.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::mailbox::Mailbox;

thread_local! {
    static LIMIT: Cell<Option<Instant>> = const { Cell::new(None) };
    static MAILBOX: RefCell<Option<Arc<Mailbox>>> = const { RefCell::new(None) };
}

/// The thread works for this mailbox: it stops waiting when that is closed.
pub(super) fn work_for(mailbox: &Arc<Mailbox>) {
    MAILBOX.set(Some(Arc::clone(mailbox)));
}

/// The thread is about to end: only its limit counts.
pub(super) fn work_alone() {
    MAILBOX.set(None);
}

/// Until when this thread waits for others.
pub(super) fn set_limit(limit: Instant) {
    LIMIT.set(Some(limit));
}

/// How long this thread still waits for others.
pub(super) fn left() -> Duration {
    let closing = MAILBOX.with_borrow(|mailbox| mailbox.as_ref().is_some_and(|m| m.is_closing()));
    let limit = LIMIT.get().filter(|_| !closing);
    limit.map_or(Duration::ZERO, |limit| limit.saturating_duration_since(Instant::now()))
}

/// Whether it waits any longer.
pub(super) fn is_left() -> bool {
    !left().is_zero()
}

/// Does something without waiting for others.
pub(super) fn at_once<T>(work: impl FnOnce() -> T) -> T {
    let limit = LIMIT.replace(Some(Instant::now()));
    let done = work();
    LIMIT.set(limit);
    done
}

/// What SQLite calls when another process is in its way: a transaction of ours takes some tens of
/// microseconds, so the first pauses are short. Its own handler sleeps for up to 100 ms.
pub(super) fn pause(tries: i32) -> bool {
    if !is_left() {
        return false;
    }
    let longest = match tries {
        0..=3 => 60,
        4..=15 => 250,
        16..=63 => 1500,
        // There are many who write, or the one that does is not let run: do not keep it from that.
        _ => 6000,
    };
    thread::sleep(Duration::from_micros(fastrand::u64(longest / 3..longest)));
    true
}
