//! `cargo xtask simulate`: seeds, and what they have shown.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use proof::simulation;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (mut seeds, mut from, mut hours) = (100_u64, 1_u64, None);
    while let Some(word) = args.next() {
        let value = args.next().and_then(|value| value.parse::<f64>().ok());
        match (word.as_str(), value) {
            ("--seeds", Some(value)) => seeds = value as u64,
            ("--from", Some(value)) => from = value as u64,
            ("--hours", Some(value)) => hours = Some(Duration::from_secs_f64(value * 3600.0)),
            _ => {
                eprintln!("usage: simulate [--seeds N] [--from SEED] [--hours H]");
                return ExitCode::from(2);
            }
        }
    }
    let started = Instant::now();
    let (mut operations, mut grants, mut requests, mut failed) = (0, 0, 0, 0);
    let mut faults = BTreeMap::<_, u64>::new();
    let mut longest = Duration::ZERO;
    let mut seed = from;
    while hours.map_or(seed < from + seeds, |hours| started.elapsed() < hours) {
        let report = simulation::run(seed, false);
        if std::env::var("TWICE").is_ok() {
            let again = simulation::run(seed, true);
            println!("{seed} {:x} {:x} {}", report.history, again.history, report.history == again.history);
        }
        operations += report.operations;
        grants += report.grants;
        requests += report.requests;
        longest = longest.max(report.longest_wait);
        for (fault, count) in report.faults {
            *faults.entry(fault).or_default() += count;
        }
        if !report.violations.is_empty() {
            failed += 1;
            println!("seed {seed} fails: cargo xtask simulate --seeds 1 --from {seed}");
            if seeds == 1 {
                let report = simulation::run(seed, true);
                report.violations.iter().for_each(|violation| println!("{violation}"));
            } else {
                report.violations.iter().take(3).for_each(|violation| println!("  {violation}"));
            }
        }
        seed += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{} seeds, {operations} operations, {grants} holds, {requests} requests in {seconds:.1} s", seed - from);
    println!("{:.0} operations a second; longest wait in a calm {longest:?}", operations as f64 / seconds);
    for (fault, count) in faults {
        println!("{count:>12}  {fault}");
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
