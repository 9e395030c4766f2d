//! What CI runs, and what everybody runs before pushing: the same steps, in the same order.

use std::time::Instant;

use crate::run::{Outcome, Step};
use crate::{api, install, interop};

/// Quick ones first: the first failure ends the run.
const STEPS: &[Step<'_>] = &[
    Step::new(&["cargo", "fmt", "--all", "--check"]),
    Step::new(&[
        "cargo",
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ]),
    // Features are additive: the library must build with none.
    Step::new(&[
        "cargo",
        "clippy",
        "-p",
        "lockkeeper",
        "--no-default-features",
        "--",
        "-D",
        "warnings",
    ]),
    // As most users build it: without what only stores and tests of their own need.
    Step::new(&[
        "cargo",
        "clippy",
        "-p",
        "lockkeeper",
        "--features",
        "file,tls",
        "--",
        "-D",
        "warnings",
    ]),
    api::DOC,
    Step::new(&["cargo", "xtask", "api", "--check"]),
    // With what `cargo xtask interop` runs. Most tests wait for servers most of the time.
    Step::new(&["cargo", "test", "--workspace", "--all-features", "--exclude", "bench"])
        .environment(&[("RUST_TEST_THREADS", "6")]),
];

/// Installs what is missing and runs every step.
pub(crate) fn run() -> Outcome {
    let start = Instant::now();
    interop::install()?;
    install::tmux()?;
    install::component("rustfmt", &["cargo", "fmt", "--version"])?;
    install::component("clippy", &["cargo", "clippy", "--version"])?;
    STEPS.iter().try_for_each(Step::run)?;
    println!("\n==> all {} steps passed in {:.0} s", STEPS.len(), start.elapsed().as_secs_f64());
    Ok(())
}
