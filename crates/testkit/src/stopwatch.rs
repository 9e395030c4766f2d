//! Time as a test means it: without that in which the machine stood still.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use crate::lock;

/// How often it ticks.
const TICK: Duration = Duration::from_millis(5);

/// What is more than this between two ticks does not count.
const AWAKE_FOR: Duration = Duration::from_millis(100);

/// A standstill that matters to who must be heard of every so often.
const STALL: Duration = Duration::from_secs(1);

/// How long the machine was awake, in microseconds, and how often it stood still for long.
static AWAKE: AtomicU64 = AtomicU64::new(0);
static STALLS: AtomicU64 = AtomicU64::new(0);

/// From when to when the machine stood still, as far as is known at the last tick.
static KNOWN: Mutex<Known> = Mutex::new(Known { tick: None, standstills: Vec::new() });

struct Known {
    tick: Option<Instant>,
    standstills: Vec<(Instant, Instant)>,
}

/// How long the machine was awake between two moments. The first [`Stopwatch`] of the process was started before
/// them; none if the second moment is the earlier one.
pub fn awake_between(from: Instant, to: Instant) -> Duration {
    // Whatever ended with a standstill may have been seen before the tick that finds out.
    while Instant::now() < to || lock(&KNOWN).tick.is_some_and(|tick| tick < to) {
        std::thread::sleep(TICK);
    }
    without(&lock(&KNOWN).standstills, from, to)
}

fn without(standstills: &[(Instant, Instant)], from: Instant, to: Instant) -> Duration {
    let within = |(begin, end): &(Instant, Instant)| {
        (*end).min(to).saturating_duration_since((*begin).max(from))
    };
    let stood_still = standstills.iter().map(within).sum();
    to.saturating_duration_since(from).saturating_sub(stood_still)
}

/// A clock that stands still while the machine does.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    begun: Instant,
    awake: u64,
    stalls: u64,
}

impl Stopwatch {
    /// Starts one.
    pub fn start() -> Self {
        static TICKING: Once = Once::new();
        TICKING.call_once(|| drop(std::thread::spawn(tick)));
        let (awake, stalls) = (AWAKE.load(Ordering::SeqCst), STALLS.load(Ordering::SeqCst));
        Self { begun: Instant::now(), awake, stalls }
    }

    /// How long the machine was awake since then.
    pub fn elapsed(&self) -> Duration {
        Duration::from_micros(AWAKE.load(Ordering::SeqCst) - self.awake)
    }

    /// How long it stood still since then.
    pub fn stood_still(&self) -> Duration {
        let all = self.begun.elapsed();
        // The last tick may be a moment ago.
        all.saturating_sub(self.elapsed()).saturating_sub(TICK)
    }

    /// Whether it stood still for a second or more at a time.
    pub fn stalled(&self) -> bool {
        STALLS.load(Ordering::SeqCst) > self.stalls
    }
}

fn tick() {
    let mut last = Instant::now();
    loop {
        std::thread::sleep(TICK);
        let now = Instant::now();
        let gap = now - last;
        if gap > AWAKE_FOR {
            lock(&KNOWN).standstills.push((last, now));
        }
        lock(&KNOWN).tick = Some(now);
        last = now;
        AWAKE.fetch_add(gap.min(AWAKE_FOR).as_micros() as u64, Ordering::SeqCst);
        STALLS.fetch_add(u64::from(gap >= STALL), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_of_a_standstill_between_two_moments_is_left_out() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let standstills = [(at(1), at(3)), (at(5), at(8))];
        let awake = |from, to| without(&standstills, at(from), at(to)).as_secs();
        assert_eq!([awake(0, 1), awake(0, 4), awake(2, 6), awake(6, 7)], [1, 2, 2, 0]);
        assert_eq!(awake(4, 2), 0);
    }

    #[test]
    fn a_moment_that_has_just_passed_is_known_about() {
        let watch = Stopwatch::start();
        let (from, to) = (watch.begun, Instant::now());
        assert!(awake_between(from, to) <= to - from);
    }
}
