//! Time as a test means it: without that in which the machine stood still.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often it ticks.
const TICK: Duration = Duration::from_millis(5);

/// What is more than this between two ticks does not count.
const AWAKE_FOR: Duration = Duration::from_millis(100);

/// A standstill that matters to who must be heard of every so often.
const STALL: Duration = Duration::from_secs(1);

/// How long the machine was awake, in microseconds, and how often it stood still for long.
static AWAKE: AtomicU64 = AtomicU64::new(0);
static STALLS: AtomicU64 = AtomicU64::new(0);

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
        let gap = last.elapsed();
        last = Instant::now();
        AWAKE.fetch_add(gap.min(AWAKE_FOR).as_micros() as u64, Ordering::SeqCst);
        STALLS.fetch_add(u64::from(gap >= STALL), Ordering::SeqCst);
    }
}
