//! Real libraries in other languages on the other side: the tests that need a JVM, Python, Node and Go.

use crate::install;
use crate::run::{Outcome, Step};

/// `cargo test --workspace` runs the tests, too.
const STEPS: &[Step<'_>] = &[
    // The peer for every version of Redisson, first and alone: if it cannot be built, no test can
    // pass. Nothing is built when nothing has changed.
    Step::new(&["cargo", "test", "-p", "testkit", "--test", "java", "build::"]),
    Step::new(&["cargo", "test", "-p", "testkit", "--test", "java", "--test", "redlock"]),
    Step::new(&["cargo", "test", "-p", "lockkeeper", "--all-features", "--test", "interop"]),
];

/// Installs what the tests need.
pub(crate) fn install() -> Outcome {
    install::redis_server()?;
    install::java()?;
    install::redlock()
}

/// Installs what is missing, builds the peers and runs the tests that need them.
pub(crate) fn run() -> Outcome {
    install()?;
    STEPS.iter().try_for_each(Step::run)
}
