//! What CI runs, and what contributors run before pushing: the same steps, in the same order.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::time::Instant;

use crate::run::{Outcome, Step, root};
use crate::times::{Times, laws_file};
use crate::{api, counts, install, servers};

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
    // The command without the live view.
    Step::new(&[
        "cargo",
        "clippy",
        "-p",
        "lockkeeper-cli",
        "--no-default-features",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]),
    api::DOC,
    Step::new(&["cargo", "xtask", "api", "--check"]),
    // The figures of the documents are those that were measured.
    Step::new(&["cargo", "test", "--workspace", "--all-features", "--bin", "bench"]),
];

/// What finds most mistakes in a minute, with nothing installed.
const CHECKS: &[Step<'_>] = &[
    STEPS[0],
    STEPS[1],
    Step::new(&["cargo", "test", "-p", "lockkeeper", "--all-features", "--lib"]),
    Step::new(&["cargo", "test", "-p", "lockkeeper", "--all-features", "--test", "tidy"]),
    Step::new(&[
        "cargo",
        "test",
        "-p",
        "lockkeeper",
        "--all-features",
        "--test",
        "laws",
        "memory::",
    ]),
];

/// The quick part of the steps.
pub(crate) fn check() -> Outcome {
    CHECKS.iter().try_for_each(Step::run)
}

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

/// Property tests run the same cases each time, so that a failure belongs to a change.
const SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "1");

/// All tests but those of the benchmark, one suite after the other.
fn all_tests(times: &mut Times) -> Outcome {
    times.part("build", || Step::new(&[TEST, &["--no-run"]].concat()).run())?;
    let mut outcome = tests(times, "unit tests", &["--lib", "--bins"]);
    for suite in suites()? {
        outcome = outcome.and(tests(times, &suite, &["--test", &suite]));
    }
    outcome.and(tests(times, "doc tests", &["--doc"]))
}

fn tests(times: &mut Times, name: &str, which: &[&str]) -> Outcome {
    let laws = laws_file();
    // Laws wait most of the time, each for its own locks. Many of the others measure a time.
    let threads = if name == "laws" { "16" } else { "6" };
    let times_of_laws = laws.display().to_string();
    let environment =
        [("RUST_TEST_THREADS", threads), SEED, ("LOCKKEEPER_LAW_TIMES", times_of_laws.as_str())];
    times.part(name, || Step::new(&[TEST, which].concat()).environment(&environment).run())
}

/// The names of all test binaries: a file or a folder in `tests` of a crate.
fn suites() -> Result<BTreeSet<String>, String> {
    let mut suites = BTreeSet::new();
    for package in ["lockkeeper", "lockkeeper-cli", "testkit"] {
        let folder = root().join("crates").join(package).join("tests");
        let found =
            fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for path in found.flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|ending| ending == "rs")
                || path.join("main.rs").exists()
            {
                suites.extend(path.file_stem().and_then(OsStr::to_str).map(str::to_owned));
            }
        }
    }
    Ok(suites)
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
    install::tools(install::TESTS)?;
    servers::install()?;
    install::component("rustfmt", &["cargo", "fmt", "--version"])?;
    install::component("clippy", &["cargo", "clippy", "--version"])?;
    STEPS.iter().try_for_each(Step::run)?;
    let mut times = Times::default();
    let _ = fs::remove_file(laws_file());
    EXAMPLES.run()?;
    let outcome =
        all_tests(&mut times).and_then(|()| times.part("other servers", on_other_servers));
    times.print();
    outcome?;
    counts::run()?;
    println!("\n==> all steps passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
