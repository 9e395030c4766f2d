//! A store, the binary on it, and patience.

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::blocking::Client;
use serde_json::Value;
use tempfile::TempDir;
use testkit::RedisServer;

use crate::schema;

/// What is not there by then will not come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The built binary.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// A client id as a Java client has it: nobody says who that is.
pub(crate) const STRANGER: &str = "6e0c0000-0000-4000-8000-000000000000";

/// A store of its own, and a home directory for the binary.
pub(crate) struct Stand {
    pub(crate) url: String,
    home: TempDir,
    server: Option<RedisServer>,
}

/// Runs a test on every store that the binary is built with.
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

    /// The server behind it.
    pub(crate) fn server(&self) -> &RedisServer {
        self.server.as_ref().expect("this test is for Redis")
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.url).expect("the store is there")
    }

    /// A file in the home directory.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).expect("the home directory can be written to");
        path.display().to_string()
    }

    /// The binary on this store, with nothing else in its environment; no terminal in sight.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.start(BINARY);
        command.args(args);
        command
    }

    /// The same as the arguments of another program, which is to execute it.
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

    /// What `ls` gives, checked against its schema.
    pub(crate) fn listed(&self) -> Vec<Value> {
        let document = self.run(["ls", "--json"]).document("ls");
        document["locks"].as_array().expect("locks are an array").clone()
    }

    /// What `inspect` gives, checked against its schema.
    pub(crate) fn inspected(&self, name: &str) -> Value {
        self.run(["inspect", "--json", name]).document("inspect")
    }

    /// Makes what a Java client leaves in Redis: a lock that it holds once.
    pub(crate) fn stranger_holds(&self, name: impl AsRef<[u8]>, number: u32) -> String {
        let owner = format!("{STRANGER}:{number}");
        let mut redis = self.server().connection();
        redis.cmd(&[b"HSET", name.as_ref(), owner.as_bytes(), b"1"]).ok();
        redis.cmd(&[b"PEXPIRE", name.as_ref(), b"30000"]).ok();
        owner
    }
}

/// How the binary ended.
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

    /// Its output, if all went well and nothing was complained about.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, &self.err[..]), (Some(0), ""), "{self:?}");
        self.out
    }

    /// Its output as a document of this schema.
    #[track_caller]
    pub(crate) fn document(self, schema: &str) -> Value {
        schema::checked(schema, &self.ok())
    }

    /// That it failed with this code, said this, and printed nothing.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, said: &[&str]) {
        assert_eq!((self.code, &self.out[..]), (Some(code), ""), "{self:?}");
        for part in said {
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

/// Asks until there is an answer.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        match ask() {
            Some(answer) => return answer,
            None => assert!(begun.elapsed() < PATIENCE, "in vain: {what}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How this process is shown as a holder.
pub(crate) fn myself() -> String {
    let program = std::env::current_exe().expect("a test has a path");
    let program = program.file_name().expect("it has a name").to_string_lossy().into_owned();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("this is Linux");
    format!("{}/{}/{program}", host.trim(), std::process::id())
}
