//! A store, and the binary on it.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper::blocking::{self, Wait};
use tempfile::TempDir;
use testkit::{ChildProcess, RedisServer};

/// The time limit of every wait.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// The built binary.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// A store, and a home directory for the binary.
pub(crate) struct Stand {
    pub(crate) url: String,
    home: TempDir,
    server: Option<RedisServer>,
}

/// Runs a test on every kind of store.
pub(crate) fn on_every_store(test: impl Fn(&Stand)) {
    for stand in [Stand::redis(), Stand::file()] {
        eprintln!("on {}", stand.url);
        test(&stand);
    }
}

impl Stand {
    pub(crate) fn redis() -> Self {
        let server = RedisServer::start();
        Self { url: server.url(), home: directory(), server: Some(server) }
    }

    pub(crate) fn file() -> Self {
        let home = directory();
        Self { url: format!("file:{}", home.path().join("locks.db").display()), home, server: None }
    }

    /// The Redis server.
    pub(crate) fn server(&self) -> &RedisServer {
        self.server.as_ref().expect("this test is for Redis")
    }

    pub(crate) fn client(&self) -> Client {
        blocking::connect(&self.url).expect("the store is there")
    }

    /// A path in the home directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The binary on this store, with a minimal environment and without a terminal.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        testkit::signals::as_at_a_terminal();
        let mut command = Command::new(BINARY);
        command.args(args).env_clear().env("LOCKKEEPER_URL", &self.url);
        command.env("HOME", self.home.path()).stdin(Stdio::null());
        command
    }

    /// Starts the binary. Its output is read line by line; its errors go to a file.
    pub(crate) fn start(&self, args: &[&str]) -> (ChildProcess, PathBuf) {
        let errors = self.path("errors");
        let mut command = self.command(args);
        command.stderr(std::fs::File::create(&errors).expect("a file can be made"));
        (ChildProcess::from_command(command), errors)
    }

    /// Waits until the holder of a lock has announced itself, which takes about a second.
    #[track_caller]
    pub(crate) fn knows_holder(&self, name: &[u8]) {
        let client = self.client();
        eventually("the holder is announced", || {
            client.inspector().inspect(name).wait().expect("the store answers").since()
        });
    }

    /// The number of locks.
    pub(crate) fn locks(&self) -> usize {
        let client = self.client();
        let page = client.inspector().list("*").next().wait().expect("the store answers");
        let locks = page.into_iter().flatten();
        locks.count()
    }
}

pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

/// Polls until there is a result.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        match poll() {
            Some(result) => return result,
            None => assert!(started.elapsed() < WAIT_LIMIT, "timed out: {what}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
