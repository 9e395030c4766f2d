//! The history of a soak, merged from the logs of its processes, and what must be true of it.
//!
//! A hold counts from its grant, as its process saw it, to the last moment at which its process found it valid; the
//! clock was read before that look. So an overlap in the history is an overlap of two real holds.

use std::collections::{BTreeMap, HashMap};

use super::worker::LEASE;

/// What has happened in a soak, by the clock of the workers.
#[derive(Default)]
pub(super) struct Events {
    /// When locks may have been lost.
    pub(super) losses: Vec<u64>,
    /// From when to when something was done to servers or processes.
    pub(super) faults: Vec<(u64, u64)>,
    /// From when to when a process was stopped, by its number.
    pub(super) stops: HashMap<usize, Vec<(u64, u64)>>,
}

/// The sums of one kind.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) holds: u64,
    pub(super) overlaps: u64,
    /// After a loss of data that the manual describes.
    pub(super) documented: u64,
    pub(super) late_signals: u64,
    pub(super) lost_wakeups: u64,
    pub(super) tokens: u64,
    pub(super) tokens_back: u64,
    /// In microseconds.
    pub(super) longest_wait: u64,
}

/// One hold; times are zero if they are not known.
#[derive(Debug, Default)]
struct Held {
    worker: usize,
    kind: String,
    shared: bool,
    since: u64,
    granted: u64,
    token: u64,
    valid: u64,
    lost: u64,
    released: u64,
}

/// A lock that is free for so long while a process waits for it has lost a wake-up: the re-check is at 2.5 s at the
/// earliest.
const FREE: u64 = 2_400_000;

/// How long after a fault the lock may be free for another reason: leases of dead processes, and timeouts.
const AFTERMATH: u64 = 16_000_000;

/// How late a signal may be after a process was stopped.
const NOTICED: u64 = 300_000;

/// Reads the logs, each with the number of its process, and judges. Returns the sums by kind, the faults that the
/// workers have met, and violations as text.
pub(super) fn judge(
    logs: &[String],
    events: &Events,
) -> (BTreeMap<String, Sums>, BTreeMap<String, u64>, Vec<String>) {
    let (mut names, mut met) = (BTreeMap::<String, Vec<Held>>::new(), BTreeMap::new());
    for (worker, log) in logs.iter().enumerate() {
        read(worker, log, &mut names, &mut met);
    }
    let (mut sums, mut violations) = (BTreeMap::<String, Sums>::new(), Vec::new());
    for (name, mut holds) in names {
        holds.sort_by_key(|hold| hold.granted);
        judge_name(&name, &holds, events, &mut sums, &mut violations);
    }
    (sums, met, violations)
}

fn read(
    worker: usize,
    log: &str,
    names: &mut BTreeMap<String, Vec<Held>>,
    met: &mut BTreeMap<String, u64>,
) {
    let mut open = HashMap::new();
    // The last line of a killed process may be cut.
    for line in log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let words: Vec<_> = line.split(' ').collect();
        let number =
            |index: usize| words.get(index).and_then(|word| word.parse().ok()).unwrap_or(0);
        match words[..] {
            ["G", _, name, kind, ..] => {
                let (kind, shared) = (kind.to_owned(), number(4) == 1);
                let (since, granted, token) = (number(5), number(6), number(7));
                let valid = granted;
                let hold =
                    Held { worker, kind, shared, since, granted, token, valid, ..Held::default() };
                let holds = names.entry(name.to_owned()).or_default();
                open.insert(number(1), (name.to_owned(), holds.len()));
                holds.push(hold);
            }
            ["E", ..] => {
                let Some((name, index)) = open.remove(&number(1)) else { continue };
                let hold = &mut names.entry(name).or_default()[index];
                (hold.valid, hold.lost, hold.released) =
                    (number(2).max(hold.granted), number(3), number(4));
            }
            ["F", word] => *met.entry(word.to_owned()).or_default() += 1,
            _ => {}
        }
    }
}

fn judge_name(
    name: &str,
    holds: &[Held],
    events: &Events,
    sums: &mut BTreeMap<String, Sums>,
    violations: &mut Vec<String>,
) {
    let lease = LEASE.as_micros() as u64;
    // Those that may still be valid; the last release, and the last token.
    let (mut active, mut freed, mut token) = (Vec::<&Held>::new(), 0, 0);
    for hold in holds {
        let sum = sums.entry(hold.kind.clone()).or_default();
        sum.holds += 1;
        sum.longest_wait = sum.longest_wait.max(hold.granted - hold.since);
        // A hold that was lost is kept for a while: its signal must have come before the next grant.
        active.retain(|other| other.valid.max(other.lost) >= hold.granted);
        for other in active.iter().filter(|other| !(other.shared && hold.shared)) {
            let since_loss =
                |lost: &&u64| other.granted <= **lost && hold.granted <= **lost + lease + 5_000_000;
            let documented = events.losses.iter().any(|lost| since_loss(&lost));
            if other.valid >= hold.granted {
                match documented {
                    true => sum.documented += 1,
                    false => {
                        sum.overlaps += 1;
                        violations.push(format!("{name}: {hold:?} overlaps {other:?}"));
                    }
                }
            } else if !documented && !was_stopped(events, other) {
                sum.late_signals += 1;
                violations.push(format!("{name}: {other:?} was signalled after {hold:?}"));
            }
        }
        if hold.token > 0 {
            sum.tokens += 1;
            if hold.token <= token {
                sum.tokens_back += 1;
                violations.push(format!("{name}: token {} after {token}", hold.token));
            }
            token = hold.token;
        }
        let quiet = |from: u64, to: u64| {
            events.faults.iter().all(|(begin, end)| to < *begin || from > *end + AFTERMATH)
        };
        let was_free = active.is_empty() && freed > 0 && hold.granted > freed;
        // The wait of a multi-lock is for several names.
        if was_free
            && hold.granted - freed > FREE
            && hold.since < freed
            && hold.kind != "multi"
            && quiet(freed, hold.granted)
        {
            sum.lost_wakeups += 1;
            violations.push(format!(
                "{name} was free for {} ms before {hold:?}",
                (hold.granted - freed) / 1000
            ));
        }
        freed = if active.is_empty() { hold.released } else { freed.max(hold.released) };
        active.push(hold);
    }
}

/// Whether the process of a hold was stopped shortly before its loss was signalled.
fn was_stopped(events: &Events, hold: &Held) -> bool {
    let stops = events.stops.get(&hold.worker).map_or(&[][..], Vec::as_slice);
    stops.iter().any(|(begin, end)| *begin <= hold.lost && hold.lost <= *end + NOTICED)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processes, in this order.
    fn judged(first: &str, second: &str, events: &Events) -> Sums {
        let (mut sums, ..) = judge(&[first.to_owned(), second.to_owned()], events);
        sums.remove("lock").unwrap_or_default()
    }

    const FIRST: &str = "G 1 lock lock 0 0 1000 7\nE 1 5000 0 6000\n";

    #[test]
    fn an_overlap_is_found_and_told_apart_from_a_documented_one() {
        let second = "G 1 lock lock 0 0 4000 8\nE 1 4500 0 4600\n";
        assert_eq!(judged(FIRST, second, &Events::default()).overlaps, 1);
        let lost = Events { losses: vec![2000], ..Events::default() };
        let sums = judged(FIRST, second, &lost);
        assert_eq!((sums.overlaps, sums.documented), (0, 1));
        let later = "G 1 lock lock 0 0 6500 8\nE 1 6600 0 6700\n";
        let sums = judged(FIRST, later, &Events::default());
        assert_eq!((sums.overlaps, sums.tokens_back, sums.holds), (0, 0, 2));
        let older = "G 1 lock lock 0 0 6500 7\n";
        assert_eq!(judged(FIRST, older, &Events::default()).tokens_back, 1);
    }

    #[test]
    fn a_late_signal_and_a_lost_wake_up_are_found() {
        let lost = "G 1 lock lock 0 0 1000 0\nE 1 5000 9000 0\n";
        let second = "G 1 lock lock 0 0 8000 0\n";
        assert_eq!(judged(lost, second, &Events::default()).late_signals, 1);
        let stops = HashMap::from([(0, vec![(2000, 8900)])]);
        let stopped = Events { stops, ..Events::default() };
        assert_eq!(judged(lost, second, &stopped).late_signals, 0);
        let late = "G 1 lock lock 0 100 9000000 8\n";
        assert_eq!(judged(FIRST, late, &Events::default()).lost_wakeups, 1);
        let fault = Events { faults: vec![(10_000, 20_000)], ..Events::default() };
        assert_eq!(judged(FIRST, late, &fault).lost_wakeups, 0);
    }
}
