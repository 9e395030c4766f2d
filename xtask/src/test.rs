//! What CI runs, and what contributors run before pushing: the same steps, in the same order.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{fs, thread};

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

/// Some of the tests: what cargo is told of them, and the server that they run on, if it is another one.
struct Part {
    name: String,
    which: Vec<String>,
    server: Option<&'static str>,
}

/// What waits most of the time is first, and what computes is last.
const ORDER: [&[&str]; 2] = [
    &["laws", "faults", "interop", "cli"],
    &["simulation", "cancellation", "model", "unit tests", "doc tests"],
];

impl Part {
    fn new(name: &str, which: &[&str], server: Option<&'static str>) -> Self {
        let which = which.iter().map(|word| (*word).to_owned()).collect();
        Self { name: name.to_owned(), which, server }
    }

    fn order(&self) -> usize {
        let [waiting, computing] =
            ORDER.map(|names| names.iter().position(|name| *name == self.name));
        waiting.or(computing.map(|at| 9 + at)).unwrap_or(8)
    }

    fn run(&self, times: &Times) -> Outcome {
        let laws = laws_file().display().to_string();
        // Laws wait most of the time, each for its own locks. Many of the others measure a time.
        let threads = if self.name == "laws" { "16" } else { "6" };
        let mut environment =
            vec![("RUST_TEST_THREADS", threads), SEED, ("LOCKKEEPER_LAW_TIMES", laws.as_str())];
        if let Some(server) = self.server {
            // The first sequences of the others: a command that works differently shows soon.
            environment.extend([("LOCKKEEPER_TEST_SERVER", server), ("PROPTEST_CASES", "200")]);
        }
        let which: Vec<&str> = self.which.iter().map(String::as_str).collect();
        let line = [TEST, &which].concat();
        times.part(&self.name, || Step::new(&line).environment(&environment).run_aside())
    }
}

/// All tests but those of the benchmark, two suites at a time: while one waits the other computes.
fn all_tests(times: &Times) -> Outcome {
    times.part("build", || Step::new(&[TEST, &["--no-run"]].concat()).run())?;
    let mut parts: Vec<_> =
        suites()?.iter().map(|suite| Part::new(suite, &["--test", suite], None)).collect();
    parts.push(Part::new("unit tests", &["--lib", "--bins"], None));
    parts.push(Part::new("doc tests", &["--doc"], None));
    for server in ["redis62", "valkey9"] {
        for (name, which) in ON_OTHER_SERVERS {
            parts.push(Part::new(&format!("{server}: {name}"), which, Some(server)));
        }
    }
    parts.sort_by_key(Part::order);
    let parts = Mutex::new(VecDeque::from(parts));
    let next = |from: fn(&mut VecDeque<Part>) -> Option<Part>| {
        let mut outcome = Ok(());
        while let Some(part) = from(&mut parts.lock().unwrap_or_else(PoisonError::into_inner)) {
            outcome = outcome.and(part.run(times));
        }
        outcome
    };
    thread::scope(|scope| {
        let computing = scope.spawn(|| next(VecDeque::pop_back));
        let waiting = next(VecDeque::pop_front);
        waiting.and(computing.join().unwrap_or_else(|_| Err("it panicked".to_owned())))
    })
}

/// The names of all test binaries: a file or a folder in `tests` of a crate.
fn suites() -> Result<BTreeSet<String>, String> {
    let mut suites = BTreeSet::new();
    for package in ["lockkeeper", "lockkeeper-cli", "testkit", "proof"] {
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
const ON_OTHER_SERVERS: [(&str, &[&str]); 2] = [
    ("wire and model", &["--test", "wire", "--test", "model"]),
    (
        "faults",
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
    ),
];

/// Installs what is missing and runs every step.
pub(crate) fn run() -> Outcome {
    let start = Instant::now();
    install::tools(install::TESTS)?;
    servers::install()?;
    install::component("rustfmt", &["cargo", "fmt", "--version"])?;
    install::component("clippy", &["cargo", "clippy", "--version"])?;
    STEPS.iter().try_for_each(Step::run)?;
    let times = Times::default();
    let _ = fs::remove_file(laws_file());
    EXAMPLES.run()?;
    let outcome = all_tests(&times);
    times.print();
    outcome?;
    counts::run()?;
    println!("\n==> all steps passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
