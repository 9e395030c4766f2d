//! A chart of measured waits and holds over time.

use std::time::Duration;

use tokio::time::Instant;

/// The number of columns.
const WIDTH: usize = 60;

/// The state of a client during a period.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Bar {
    Absent,
    Waiting,
    Holding,
}

/// One hold: requested, acquired, released or lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) who: &'static str,
    pub(super) asked: Instant,
    pub(super) got: Instant,
    pub(super) gone: Instant,
}

impl Turn {
    /// Whether the two holds overlap.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.got < other.gone && other.got < self.gone
    }
}

/// Whether no two holds overlap.
pub(super) fn one_at_a_time(turns: &[Turn]) -> bool {
    let pairs =
        turns.iter().enumerate().flat_map(|(at, a)| turns[at + 1..].iter().map(move |b| (a, b)));
    pairs.into_iter().all(|(a, b)| !a.overlaps(b))
}

/// Holds on one time scale.
pub(super) struct Chart {
    names: Vec<&'static str>,
    turns: Vec<Turn>,
    start: Instant,
    span: Duration,
}

impl Chart {
    /// One line per name.
    pub(super) fn new(names: &[&'static str], turns: Vec<Turn>) -> Self {
        let now = Instant::now();
        let start = turns.iter().map(|turn| turn.asked).min().unwrap_or(now);
        let end = turns.iter().map(|turn| turn.gone).max().unwrap_or(now);
        Self { names: names.to_vec(), turns, start, span: end - start }
    }

    /// The lines, each as pieces of text.
    pub(super) fn lines(&self) -> Vec<(&'static str, Vec<(Bar, String)>)> {
        self.names.iter().map(|name| (*name, pieces(&self.cells(name)))).collect()
    }

    /// The time scale.
    pub(super) fn scale(&self) -> String {
        let span = format!(" {} ms", self.span.as_millis());
        let rest = WIDTH.saturating_sub(span.len() + 2);
        format!("├{}{span}┤", "─".repeat(rest))
    }

    /// The state per column. A hold of any length fills at least one column.
    fn cells(&self, name: &str) -> [Bar; WIDTH] {
        let mut cells = [Bar::Absent; WIDTH];
        let at = |moment: Instant| {
            let part = (moment - self.start).as_secs_f64() / self.span.as_secs_f64().max(1e-9);
            ((part * WIDTH as f64) as usize).min(WIDTH - 1)
        };
        let own = || self.turns.iter().filter(|turn| turn.who == name);
        own().for_each(|turn| cells[at(turn.asked)..=at(turn.got)].fill(Bar::Waiting));
        own().for_each(|turn| {
            let (from, to) = (at(turn.got), at(turn.gone));
            cells[from..to.max(from + 1)].fill(Bar::Holding);
        });
        cells
    }
}

fn pieces(cells: &[Bar]) -> Vec<(Bar, String)> {
    let runs = cells.chunk_by(|a, b| a == b);
    let symbol = |bar| match bar {
        Bar::Absent => " ",
        Bar::Waiting => "·",
        Bar::Holding => "█",
    };
    runs.map(|run| (run[0], symbol(run[0]).repeat(run.len()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(who: &'static str, start: Instant, millis: [u64; 3]) -> Turn {
        let [asked, got, gone] = millis.map(|ms| start + Duration::from_millis(ms));
        Turn { who, asked, got, gone }
    }

    #[test]
    fn holds_are_drawn_to_scale() {
        let start = Instant::now();
        let turns = vec![turn("ann", start, [0, 0, 300]), turn("bob", start, [100, 300, 600])];
        assert!(one_at_a_time(&turns));
        let chart = Chart::new(&["ann", "bob"], turns);
        let text = |at: usize| -> String {
            chart.lines()[at].1.iter().map(|(_, text)| text.clone()).collect()
        };
        assert_eq!(text(0), "█".repeat(30) + &" ".repeat(30));
        assert_eq!(text(1), " ".repeat(10) + &"·".repeat(20) + &"█".repeat(29) + " ");
        assert!(chart.scale().ends_with(" 600 ms┤"));
    }

    #[test]
    fn overlapping_holds_are_detected() {
        let start = Instant::now();
        assert!(!one_at_a_time(&[turn("a", start, [0, 0, 10]), turn("b", start, [0, 9, 20])]));
        assert!(one_at_a_time(&[turn("a", start, [0, 0, 10]), turn("b", start, [0, 10, 20])]));
    }
}
