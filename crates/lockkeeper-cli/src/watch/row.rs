//! One line of the view: a lock as it was last seen, and what became of it since.

use std::time::{Duration, Instant, SystemTime};

use lockkeeper::{LockInfo, Remaining};

/// How long a change is marked.
const MARKED: Duration = Duration::from_millis(2500);

/// How long a lock that is gone stays on the screen: long enough to be read, short enough not to be
/// taken for one that is there.
const FADING: Duration = Duration::from_secs(3);

/// What happened to a lock between two looks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    Appeared,
    Changed,
    Gone,
}

/// The present, by both clocks: one for what passes, one for what others wrote down.
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
    /// Its holder says so.
    Known(Duration),
    /// Its holder says nothing; it has been seen for so long.
    AtLeast(Duration),
}

/// A lock on the screen.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) lock: LockInfo,
    /// When the store told.
    seen: Instant,
    /// Since when it has been seen in the same hands.
    held_from: Instant,
    /// The longest that it was seen to stand: what a full gauge means. Nothing tells how long a lease
    /// was when it began.
    lease: Duration,
    change: Option<(Change, Instant)>,
}

impl Row {
    /// A lock that was not there before, or (without `change`) at the first look.
    pub(super) fn new(lock: LockInfo, change: Option<Change>, now: Instant) -> Self {
        let lease = span(&lock).unwrap_or_default();
        Self { lock, seen: now, held_from: now, lease, change: change.map(|change| (change, now)) }
    }

    /// The store has told again.
    pub(super) fn update(&mut self, lock: LockInfo, now: Instant) {
        let back = self.is_gone();
        if back || differs(&self.lock, &lock) {
            let change = if back { Change::Appeared } else { Change::Changed };
            self.change = Some((change, now));
        }
        if back || !same_hands(&self.lock, &lock) {
            self.held_from = now;
            self.lease = Duration::ZERO;
        }
        self.lease = self.lease.max(span(&lock).unwrap_or_default());
        self.lock = lock;
        self.seen = now;
    }

    /// The store has it no longer.
    pub(super) fn gone(&mut self, now: Instant) {
        if !self.is_gone() {
            self.change = Some((Change::Gone, now));
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.change, Some((Change::Gone, _)))
    }

    /// Whether it has been gone for so long that it need not be shown.
    pub(super) fn has_faded(&self, now: Instant) -> bool {
        matches!(self.change, Some((Change::Gone, at)) if now.duration_since(at) >= FADING)
    }

    /// What just happened to it.
    pub(super) fn mark(&self, now: Instant) -> Option<Change> {
        let (change, at) = self.change?;
        let fresh = change == Change::Gone || now.duration_since(at) < MARKED;
        fresh.then_some(change)
    }

    /// How long it stands unless it is renewed: what the store told, less the time since.
    pub(super) fn remaining(&self, now: Instant) -> Remaining {
        match self.lock.remaining {
            Remaining::For(left) => Remaining::For(left.saturating_sub(now - self.seen)),
            other => other,
        }
    }

    /// What part of its lease is left, from 0 to 1.
    pub(super) fn part_left(&self, now: Instant) -> Option<f64> {
        match self.remaining(now) {
            Remaining::For(left) if !self.lease.is_zero() => {
                Some(left.as_secs_f64() / self.lease.as_secs_f64())
            }
            _ => None,
        }
    }

    pub(super) fn age(&self, now: Now) -> Option<Age> {
        if self.lock.holders.is_empty() {
            return None;
        }
        // A clock elsewhere may be ahead of ours.
        let told = self.lock.since().map(|since| now.wall.duration_since(since));
        Some(match told {
            Some(age) => Age::Known(age.unwrap_or_default()),
            None => Age::AtLeast(now.tick.duration_since(self.held_from)),
        })
    }
}

fn span(lock: &LockInfo) -> Option<Duration> {
    match lock.remaining {
        Remaining::For(left) => Some(left),
        _ => None,
    }
}

/// Whether something happened, beside that time passed.
fn differs(old: &LockInfo, new: &LockInfo) -> bool {
    let counts = |lock: &LockInfo| (lock.kind, lock.waiting, lock.count, lock.taken);
    counts(old) != counts(new) || holds(old) != holds(new)
}

fn same_hands(old: &LockInfo, new: &LockInfo) -> bool {
    let ids = |lock| holds(lock).into_iter().map(|(id, _)| id.to_owned()).collect::<Vec<_>>();
    ids(old) == ids(new)
}

/// Who holds it, and how often, in an order of its own: the store has none.
fn holds(lock: &LockInfo) -> Vec<(&str, u64)> {
    let mut holds: Vec<_> =
        lock.holders.iter().map(|holder| (&holder.id[..], holder.hold_count)).collect();
    holds.sort_unstable();
    holds
}
