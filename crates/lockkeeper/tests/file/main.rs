//! The file store where it is more than a store like any other: other processes, which die, stop or
//! wait; starts of the machine; and the file itself, which may be gone, or be something else.
//!
//! What holds for every store is in the laws, which run on it, too.

#![cfg(all(feature = "file", target_os = "linux"))]

mod crashes;
mod idle;
mod lockfile;
mod places;
mod processes;
mod replaced;
mod restart;
mod sweep;
mod wakes;

use std::future::{Future, IntoFuture};
use std::process::Command;
use std::time::{Duration, Instant};

use lockfile::LockFile;
use lockkeeper::backend::{Kind, Resource};
use lockkeeper::{Client, ClientOptions, LockName};
use testkit::ChildProcess;
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
    let limit = Instant::now() + PATIENCE;
    while !so().await {
        assert!(Instant::now() < limit, "never: {what}");
        tokio::time::sleep(ms(2)).await;
    }
}

async fn within<T>(limit: Duration, what: &str, work: impl IntoFuture<Output = T>) -> T {
    let done = timeout(limit, work.into_future()).await;
    done.unwrap_or_else(|_| panic!("{what}: not within {limit:?}"))
}

/// Which file a child is to use.
const URL: &str = "LOCKKEEPER_TEST_URL";

/// What else it needs to know.
const MORE: &str = "LOCKKEEPER_TEST_MORE";

/// Starts a part of this very program, a test that is ignored otherwise, as another process.
fn child(part: &str, url: &str, more: &str) -> ChildProcess {
    ChildProcess::from_command(command(part, url, more))
}

fn command(part: &str, url: &str, more: &str) -> Command {
    let program = std::env::current_exe().expect("the path of this program is known");
    let mut command = Command::new(program);
    command.args(["--exact", part, "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(URL, url).env(MORE, more);
    command
}

/// What a child was given; nothing where it was started by mistake.
fn given() -> Option<(String, String)> {
    Some((std::env::var(URL).ok()?, std::env::var(MORE).ok()?))
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
