//! A store, and the binary on it.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper::blocking::{self, Wait};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{ChildProcess, RedisServer};

use crate::schema;

/// The time limit of every wait.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// The built binary.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// The id of a Java client, which does not announce itself.
pub(crate) const JAVA_CLIENT: &str = "6e0c0000-0000-4000-8000-000000000000";

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
        Self::on(RedisServer::start())
    }

    pub(crate) fn on(server: RedisServer) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        Self { url: server.url(), home, server: Some(server) }
    }

    pub(crate) fn file() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let url = format!("file:{}", home.path().join("locks.db").display());
        Self { url, home, server: None }
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

    /// Writes a file in the home directory.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("the home directory can be written to");
        path.display().to_string()
    }

    /// The binary on this store, with a minimal environment and without a terminal.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.start(BINARY);
        command.args(args);
        command
    }

    /// The binary, executed by another program.
    pub(crate) fn wrapped<S: AsRef<OsStr>>(
        &self,
        wrapper: [&str; 3],
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = self.start(&format!("/bin/{}", wrapper[0]));
        command.args(&wrapper[1..]).arg(BINARY).args(args);
        command
    }

    fn start(&self, program: &str) -> Command {
        testkit::signals::as_at_a_terminal();
        let mut command = Command::new(program);
        command.env_clear().env("LOCKKEEPER_URL", &self.url).env("USER", "tester");
        command.env("HOME", self.home.path()).stdin(Stdio::null());
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Completed {
        Completed::of(&mut self.command(args))
    }

    /// Starts the binary. Its output is read line by line; its errors go to a file.
    pub(crate) fn launch(&self, args: &[&str]) -> (ChildProcess, PathBuf) {
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

    /// The locks of `ls`, checked against its schema.
    pub(crate) fn listed(&self) -> Vec<Value> {
        let document = self.run(["ls", "--json"]).document("ls");
        document["locks"].as_array().expect("locks are an array").clone()
    }

    /// The document of `inspect`, checked against its schema.
    pub(crate) fn inspected(&self, name: &str) -> Value {
        self.run(["inspect", "--json", name]).document("inspect")
    }

    /// Creates the lock of a Java client; returns its owner.
    pub(crate) fn java_holds(&self, name: impl AsRef<[u8]>, number: u32) -> String {
        let owner = format!("{JAVA_CLIENT}:{number}");
        let mut redis = self.server().connection();
        redis.cmd(&[b"HSET", name.as_ref(), owner.as_bytes(), b"1"]).ok();
        redis.cmd(&[b"PEXPIRE", name.as_ref(), b"30000"]).ok();
        owner
    }
}

/// The result of a run of the binary.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Completed {
    pub(crate) fn of(command: &mut Command) -> Self {
        command.output().expect("the binary can be started").into()
    }

    /// Its output; asserts success without errors.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, &self.err[..]), (Some(0), ""), "{self:?}");
        self.out
    }

    /// Its output, checked against a schema.
    #[track_caller]
    pub(crate) fn document(self, schema: &str) -> Value {
        schema::checked(schema, &self.ok())
    }

    /// Asserts that it failed with this code and these parts of a message, and printed nothing.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, parts: &[&str]) {
        assert_eq!((self.code, &self.out[..]), (Some(code), ""), "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not in {self:?}");
        }
    }
}

impl From<Output> for Completed {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the binary writes UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
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

/// This process as a holder.
pub(crate) fn myself() -> String {
    let program = std::env::current_exe().expect("a test has a path");
    let program = program.file_name().expect("it has a name").to_string_lossy().into_owned();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("this is Linux");
    format!("{program} pid {} on {}", std::process::id(), host.trim())
}
