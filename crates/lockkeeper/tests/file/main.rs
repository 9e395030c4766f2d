//! The file store where it is more than a store like any other: other processes, which die, stop or
//! wait; starts of the machine; and the file itself, which may be gone, or be something else.
//!
//! What holds for every store is in the laws, which run on it, too.

#![cfg(all(feature = "file", target_os = "linux"))]

mod checks;
mod crashes;
mod idle;
mod lockfile;
mod paths;
mod processes;
mod replaced;
mod restart;
mod sweep;
mod wakeups;

use std::future::{Future, IntoFuture};
use std::process::Command;
use std::time::Duration;

use lockfile::LockFile;
use lockkeeper::backend::{Kind, Resource};
use lockkeeper::{Client, ClientOptions, LockName};
use testkit::{ChildProcess, Stopwatch};
use tokio::time::timeout;

/// What comes at once comes within this, on any machine; what is looked for after a pause does not.
const SOON: Duration = Duration::from_secs(2);

/// What does not come within this never comes.
const PATIENCE: Duration = Duration::from_secs(30);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A client whose watchdog renews every second.
async fn connect(file: &LockFile) -> Client {
    connect_with(file, ClientOptions::new().watchdog_timeout(ms(3000))).await
}

async fn connect_with(file: &LockFile, options: ClientOptions) -> Client {
    Client::connect_with(&file.url(), options).await.expect("the file can be opened")
}

fn resource(kind: Kind, name: &str) -> Resource {
    Resource { kind, name: LockName::from(name) }
}

/// Looks until it is so.
async fn eventually(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let watch = Stopwatch::start();
    while !so().await {
        assert!(watch.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(ms(2)).await;
    }
}

/// Time in which the machine stood still does not count.
async fn within<T>(limit: Duration, what: &str, work: impl IntoFuture<Output = T>) -> T {
    let (watch, mut work) = (Stopwatch::start(), std::pin::pin!(work.into_future()));
    loop {
        let left = limit.saturating_sub(watch.elapsed());
        assert!(!left.is_zero(), "{what}: not within {limit:?}");
        if let Ok(done) = timeout(left, work.as_mut()).await {
            return done;
        }
    }
}

/// Which file a child is to use.
const URL: &str = "LOCKKEEPER_TEST_URL";

/// What else it needs to know.
const MORE: &str = "LOCKKEEPER_TEST_MORE";

/// Which part of this program it is to be.
const PART: &str = "LOCKKEEPER_TEST_PART";

/// The parts that run as processes of their own.
const PARTS: &[(&str, fn())] = &[
    ("crashes::worker", crashes::worker),
    ("idle::ten_waiters", idle::ten_waiters),
    ("paths::one_with_fewer_rights", paths::one_with_fewer_rights),
    ("paths::one_that_looks", paths::one_that_looks),
    ("processes::one_that_waits", processes::one_that_waits),
    ("processes::one_in_a_transaction", processes::one_in_a_transaction),
    ("processes::one_that_opens", processes::one_that_opens),
    ("replaced::one_that_is_idle", replaced::one_that_is_idle),
    ("wakeups::one_that_waits", wakeups::one_that_waits),
];

fn part(name: &str) -> Option<fn()> {
    PARTS.iter().find(|(part, _)| *part == name).map(|(_, run)| *run)
}

/// The entry of all of them: this program, started once more, runs this test and nothing else.
#[test]
fn a_child_process_runs_its_part() {
    match std::env::var(PART) {
        Ok(name) => part(&name).expect("it is told a part that there is")(),
        Err(_) => {
            assert!(part("another").is_none());
            let doubled =
                |(name, _): &&(&str, _)| PARTS.iter().filter(|p| p.0 == *name).count() > 1;
            assert_eq!(PARTS.iter().find(doubled).map(|(name, _)| *name), None);
        }
    }
}

/// Starts a part of this very program as another process.
fn child(part: &str, url: &str, more: &str) -> ChildProcess {
    ChildProcess::from_command(command(part, url, more))
}

fn command(part: &str, url: &str, more: &str) -> Command {
    let program = std::env::current_exe().expect("the path of this program is known");
    let mut command = Command::new(program);
    let entry = "a_child_process_runs_its_part";
    command.args(["--exact", entry, "--nocapture", "--test-threads=1"]);
    command.env(PART, part).env(URL, url).env(MORE, more);
    command
}

/// What a child was given.
fn given() -> (String, String) {
    let variable = |name| std::env::var(name).expect("a child is told what it needs");
    (variable(URL), variable(MORE))
}

/// The rest of a child's life.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be built");
    runtime.block_on(work)
}
