//! A fixed set of seeds, the promise that a seed decides everything, and mutants that still fit the sources.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use proof::mutants::{MUTANTS, SOURCES};
use proof::simulation::run;

/// The seeds of the test command: as many as fit into its time on a slow machine, and never none.
#[test]
fn the_engine_keeps_its_promises_in_a_world_that_fails() {
    let (started, limit) = (Instant::now(), Duration::from_secs(25));
    let mut operations = 0;
    for seed in 1..=60 {
        let report = run(seed, false);
        operations += report.operations;
        let again = || run(seed, true).violations.join("\n");
        assert!(report.violations.is_empty(), "seed {seed}:\n{}", again());
        if started.elapsed() > limit && seed >= 10 {
            break;
        }
    }
    assert!(operations > 10_000, "only {operations} operations");
}

#[test]
fn a_seed_decides_everything() {
    for seed in [5, 11, 24, 81] {
        let (first, second) = (run(seed, false), run(seed, false));
        assert!(first.operations > 1_000);
        assert_eq!(first.history, second.history, "seed {seed}");
    }
    assert_ne!(run(5, false).history, run(11, false).history);
}

#[test]
fn every_mutant_fits_the_sources() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(SOURCES);
    for mutant in MUTANTS {
        let text = fs::read_to_string(sources.join(mutant.file)).unwrap();
        assert_ne!(mutant.apply(&text).unwrap(), text);
    }
    assert!(MUTANTS.len() >= 15);
}
