//! What CI runs, and what contributors run before pushing: the same steps, in the same order.

use std::time::Instant;

use crate::run::{Outcome, Step};
use crate::{api, install, interop, servers};

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
    // The figures of the documents are those that were measured.
    Step::new(&["cargo", "test", "--workspace", "--all-features", "--bin", "bench"]),
];

/// Examples as programs, which `tests/examples.rs` runs. `cargo test --examples` builds tests of them.
const EXAMPLES: Step = Step::new(&[
    "cargo",
    "build",
    "--workspace",
    "--all-features",
    "--exclude",
    "bench",
    "--examples",
]);

/// One run shows all failures of a step.
const TEST: &[&str] =
    &["cargo", "test", "--workspace", "--all-features", "--exclude", "bench", "--no-fail-fast"];

/// All tests but those of the benchmark, with how many run at once.
const TESTS: &[(&[&str], &str)] = &[
    // Laws wait most of the time, each for its own locks.
    (&["--test", "laws"], "16"),
    // All others, with what `cargo xtask interop` runs. Many of them measure a time.
    (&["--lib", "--bins", "--test", "[!l]*", "--test", "l[!a]*"], "6"),
    (&["--doc"], "6"),
];

/// Property tests run the same cases each time, so that a failure belongs to a change.
const SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "1");

fn all_tests() -> Outcome {
    TESTS.iter().try_for_each(|(tests, threads)| {
        let environment = [("RUST_TEST_THREADS", *threads), SEED];
        Step::new(&[TEST, tests].concat()).environment(&environment).run()
    })
}

/// What the servers of `cargo xtask servers` run, too: what is stored and published, the scripts against
/// the model, and the faults in which versions differ.
const ON_OTHER_SERVERS: [&[&str]; 2] = [
    &["--test", "wire", "--test", "model"],
    &[
        "--test",
        "faults",
        "--",
        "acknowledged::",
        "checks::",
        "cluster::",
        "endpoints::",
        "failover::",
        "permissions::",
        // These builds have no TLS. The server of the system runs the tests of it.
        "--skip",
        "tls",
    ],
];

/// Both servers at once: the model keeps the processor busy while the faults of the other server wait.
fn on_other_servers() -> Outcome {
    let [model, faults] = ON_OTHER_SERVERS;
    let on = |server: &str, order: [&[&str]; 2]| {
        let environment = [("RUST_TEST_THREADS", "5"), ("LOCKKEEPER_TEST_SERVER", server), SEED];
        order.iter().try_for_each(|tests| {
            Step::new(&[TEST, tests].concat()).environment(&environment).run()
        })
    };
    std::thread::scope(|scope| {
        let one = scope.spawn(|| on("redis62", [model, faults]));
        let other = on("valkey9", [faults, model]);
        other.and(one.join().unwrap_or_else(|_| Err("it panicked".to_owned())))
    })
}

/// Installs what is missing and runs every step.
pub(crate) fn run() -> Outcome {
    let start = Instant::now();
    interop::install()?;
    servers::install()?;
    install::tmux()?;
    install::faketime()?;
    install::component("rustfmt", &["cargo", "fmt", "--version"])?;
    install::component("clippy", &["cargo", "clippy", "--version"])?;
    STEPS.iter().try_for_each(Step::run)?;
    EXAMPLES.run()?;
    all_tests()?;
    on_other_servers()?;
    println!("\n==> all steps passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
