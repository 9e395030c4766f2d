//! Where the minutes of a test run go: per suite, per store, and the slowest laws.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::run::{Outcome, target};

/// How many of the slowest laws are shown.
const SLOWEST: usize = 20;

/// The seconds of each suite that has run.
#[derive(Default)]
pub(crate) struct Times(Mutex<Vec<(String, f64)>>);

impl Times {
    /// Runs one part.
    pub(crate) fn part(&self, name: &str, run: impl FnOnce() -> Outcome) -> Outcome {
        let start = Instant::now();
        let outcome = run();
        let seconds = start.elapsed().as_secs_f64();
        self.lock().push((name.to_owned(), seconds));
        outcome
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, f64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn print(&self) {
        println!("\n==> seconds per suite, two at a time");
        for (name, seconds) in self.lock().iter() {
            println!("{seconds:8.1}  {name}");
        }
        print!("{}", slowest(&fs::read_to_string(laws_file()).unwrap_or_default()));
    }
}

/// Where each law writes a line: its name and how many milliseconds it took.
pub(crate) fn laws_file() -> PathBuf {
    target().join("laws.tsv")
}

/// The sum per store and the slowest laws. A law is named `store::…`.
fn slowest(lines: &str) -> String {
    let times = lines.lines().filter_map(|line| line.split_once('\t'));
    let mut times: Vec<(f64, &str)> =
        times.filter_map(|(law, ms)| Some((ms.parse::<f64>().ok()? / 1000.0, law))).collect();
    times.sort_by(|one, other| other.0.total_cmp(&one.0));
    let mut stores: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for (seconds, law) in &times {
        let store = stores.entry(law.split("::").next().unwrap_or_default()).or_default();
        *store = (store.0 + 1, store.1 + seconds);
    }
    let mut text = "\n==> laws: seconds per store, in sum, many at once\n".to_owned();
    for (store, (laws, seconds)) in stores {
        let _ = writeln!(text, "{seconds:8.1}  {store} ({laws})");
    }
    text += "\n==> the slowest laws\n";
    for (seconds, law) in times.iter().take(SLOWEST) {
        let _ = writeln!(text, "{seconds:8.1}  {law}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_are_summed_per_store_and_the_slowest_come_first() {
        let text = slowest("redis::a\t1500\nmemory::b\t3\nredis::c\t2500\nnonsense\n");
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        assert!(lines.contains(&"4.0  redis (2)") && lines.contains(&"0.0  memory (1)"), "{text}");
        assert!(text.find("redis::c") < text.find("redis::a"), "{text}");
    }
}
