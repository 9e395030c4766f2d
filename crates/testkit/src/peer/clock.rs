//! The peer's clock and ours.

use std::time::{Duration, Instant};

use super::switchboard::Switchboard;

/// What the peer's monotonic clock showed at a moment of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Option<Reading>);

#[derive(Clone, Copy, Debug)]
struct Reading {
    ours: Instant,
    theirs: i64,
    error: Duration,
}

impl Clock {
    /// Before the clocks have been compared: every time of theirs is now.
    pub(super) const UNSET: Self = Self(None);

    /// The peer reads its clock between our sending and our receiving. The quickest of several round
    /// trips narrows it down best.
    pub(super) fn compare(switchboard: &Switchboard, rounds: usize) -> Self {
        let round = |_| {
            let sent = Instant::now();
            let answer = switchboard.send("main", &["clock"]).wait(None);
            let error = sent.elapsed() / 2;
            Reading { ours: sent + error, theirs: answer.start, error }
        };
        Self((0..rounds).map(round).min_by_key(|reading| reading.error))
    }

    pub(super) fn error(&self) -> Duration {
        self.0.map_or(Duration::ZERO, |reading| reading.error)
    }

    pub(super) fn instant(&self, theirs: i64) -> Instant {
        let Some(reading) = self.0 else { return Instant::now() };
        let distance = Duration::from_nanos(theirs.abs_diff(reading.theirs));
        if theirs < reading.theirs { reading.ours - distance } else { reading.ours + distance }
    }
}
