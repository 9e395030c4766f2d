//! One row of the view: a lock as last seen, and its latest change.

use std::time::{Duration, Instant, SystemTime};

use lockkeeper::{LockInfo, Ttl};

use crate::args::Sort;
use crate::row;

/// How long a change is marked.
const MARKED: Duration = Duration::from_millis(2500);

/// How long a removed lock stays on the screen.
const FADING: Duration = Duration::from_secs(3);

/// The change of a lock between two polls.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    Appeared,
    Changed,
    Gone,
}

/// The current time by both clocks: the monotonic one for intervals, the wall clock for timestamps of
/// holders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) tick: Instant,
    pub(super) wall: SystemTime,
}

impl Now {
    pub(super) fn get() -> Self {
        Self { tick: Instant::now(), wall: SystemTime::now() }
    }
}

/// How long a lock has been held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Age {
    /// Announced by the holder.
    Known(Duration),
    /// The holder announces nothing; seen for this time.
    AtLeast(Duration),
}

/// A lock on the screen.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) lock: LockInfo,
    /// The time of the last poll.
    seen: Instant,
    /// The first time it was seen with the same holders.
    held_from: Instant,
    /// The longest TTL seen, which is a full gauge: the store does not tell the length of a lease.
    lease: Duration,
    change: Option<(Change, Instant)>,
}

impl Row {
    /// A new lock; without `change` at the first poll.
    pub(super) fn new(lock: LockInfo, change: Option<Change>, now: Instant) -> Self {
        let lease = span(&lock).unwrap_or_default();
        Self { lock, seen: now, held_from: now, lease, change: change.map(|change| (change, now)) }
    }

    /// Updates the row after a poll.
    pub(super) fn update(&mut self, lock: LockInfo, now: Instant) {
        let back = self.is_gone();
        if back || differs(&self.lock, &lock) {
            let change = if back { Change::Appeared } else { Change::Changed };
            self.change = Some((change, now));
        }
        if back || !same_holders(&self.lock, &lock) {
            self.held_from = now;
            self.lease = Duration::ZERO;
        }
        self.lease = self.lease.max(span(&lock).unwrap_or_default());
        self.lock = lock;
        self.seen = now;
    }

    /// Marks the row as removed from the store.
    pub(super) fn gone(&mut self, now: Instant) {
        if !self.is_gone() {
            self.change = Some((Change::Gone, now));
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.change, Some((Change::Gone, _)))
    }

    /// Whether it was removed long enough ago to be hidden.
    pub(super) fn has_faded(&self, now: Instant) -> bool {
        matches!(self.change, Some((Change::Gone, at)) if now.duration_since(at) >= FADING)
    }

    /// The recent change.
    pub(super) fn mark(&self, now: Instant) -> Option<Change> {
        let (change, at) = self.change?;
        let fresh = change == Change::Gone || now.duration_since(at) < MARKED;
        fresh.then_some(change)
    }

    /// The remaining TTL: the last answer of the store less the time since.
    pub(super) fn remaining(&self, now: Instant) -> Option<Ttl> {
        match self.lock.ttl {
            Some(Ttl::For(left)) => Some(Ttl::For(left.saturating_sub(now - self.seen))),
            other => other,
        }
    }

    /// The remaining part of the lease, from 0 to 1.
    pub(super) fn part_left(&self, now: Instant) -> Option<f64> {
        match self.remaining(now) {
            Some(Ttl::For(left)) if !self.lease.is_zero() => {
                Some(left.as_secs_f64() / self.lease.as_secs_f64())
            }
            _ => None,
        }
    }

    /// The row of `ls`, with the TTL as of now.
    pub(super) fn shown(&self, now: Instant) -> row::Row<'_> {
        let mut row = row::Row::of(&self.lock);
        row.ttl = self.remaining(now);
        row
    }

    pub(super) fn key(&self, column: Sort, now: Now) -> row::Key {
        let age = self.age(now).map(|(Age::Known(age) | Age::AtLeast(age))| age);
        self.shown(now.tick).key(column, age)
    }

    pub(super) fn age(&self, now: Now) -> Option<Age> {
        if self.lock.holders.is_empty() {
            return None;
        }
        // The holder's clock may be ahead of this one.
        let age = self.lock.since().map(|since| now.wall.duration_since(since));
        Some(match age {
            Some(age) => Age::Known(age.unwrap_or_default()),
            None => Age::AtLeast(now.tick.duration_since(self.held_from)),
        })
    }
}

fn span(lock: &LockInfo) -> Option<Duration> {
    match lock.ttl {
        Some(Ttl::For(left)) => Some(left),
        _ => None,
    }
}

/// Whether anything but the TTL differs.
fn differs(old: &LockInfo, new: &LockInfo) -> bool {
    let counts = |lock: &LockInfo| (lock.kind, lock.waiting, lock.count, lock.taken);
    counts(old) != counts(new) || holds(old) != holds(new)
}

fn same_holders(old: &LockInfo, new: &LockInfo) -> bool {
    let ids = |lock| holds(lock).into_iter().map(|(id, _)| id.to_owned()).collect::<Vec<_>>();
    ids(old) == ids(new)
}

/// Ids and hold counts, sorted: the store has no order.
fn holds(lock: &LockInfo) -> Vec<(&str, u64)> {
    let mut holds: Vec<_> =
        lock.holders.iter().map(|holder| (&holder.id[..], holder.hold_count)).collect();
    holds.sort_unstable();
    holds
}
