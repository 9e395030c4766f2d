//! How long things took: counted, not kept, so that a long run needs no more memory than a short one.

use std::time::Duration;

/// Sixteen steps between a power of two and the next: about 4 % wide.
const STEPS: usize = 16;

/// Durations by size.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; 64 * STEPS], total: 0 }
    }
}

impl Histogram {
    pub(super) fn record(&mut self, span: Duration) {
        self.counts[step(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))] += 1;
        self.total += 1;
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// What this part of all (from 0 to 1) stays below, within the width of a step.
    pub(super) fn quantile(&self, part: f64) -> Option<Duration> {
        let rank = ((self.total as f64 * part).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        found.map(|step| Duration::from_nanos(middle(step)))
    }
}

/// The exponent, then the four bits after the leading one.
fn step(nanos: u64) -> usize {
    let nanos = nanos.max(1);
    let exponent = nanos.ilog2() as usize;
    let rest = nanos ^ (1 << exponent);
    exponent * STEPS + ((u128::from(rest) * STEPS as u128) >> exponent) as usize
}

fn middle(step: usize) -> u64 {
    let low = 1_u128 << (step / STEPS);
    let at = (low * (2 * (step % STEPS) + 1) as u128) / (2 * STEPS) as u128;
    u64::try_from(low + at).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_within_a_step_of_the_truth() {
        let mut spans = Histogram::default();
        assert_eq!(spans.quantile(0.5), None);
        (1..=10_000).for_each(|micros| spans.record(Duration::from_micros(micros)));
        for (part, micros) in [(0.01, 100.0), (0.5, 5_000.0), (0.99, 9_900.0), (1.0, 10_000.0)] {
            let found = spans.quantile(part).unwrap().as_secs_f64() * 1e6;
            assert!((found / micros - 1.0).abs() < 0.04, "{part}: {found} is not {micros}");
        }
    }

    #[test]
    fn nothing_is_too_short_or_too_long() {
        for span in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            let mut spans = Histogram::default();
            spans.record(span);
            assert!(spans.quantile(0.5).is_some());
        }
    }
}
