//! Real libraries in other languages on the other side: the tests that need a JVM, Python, Node and Go.

use crate::install::{self, GO, JAVA, NODE, PYTHON, REDIS_SERVER};
use crate::run::{Outcome, Step};

/// Installs what is missing and runs the tests, which build the peers. `cargo test --workspace` runs them, too.
pub(crate) fn run() -> Outcome {
    install::tools(&[REDIS_SERVER, JAVA, PYTHON, NODE, GO])?;
    Step::new(&["cargo", "test", "-p", "lockkeeper", "--all-features", "--test", "interop"]).run()
}
