//! A scene: a store, a directory, and runs in it.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lockkeeper::{Client, Ttl};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::{ChildProcess, RedisServer, Stopwatch};

/// The time limit of every wait.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// The store of a scene.
pub(crate) enum Store {
    Redis(Box<RedisServer>),
    /// A file in the scene's directory.
    File,
    /// Servers that the test keeps, by their URL.
    At(String),
}

/// A store and a directory, which is `HOME`, the current directory and `$D` of all commands.
pub(crate) struct Scene {
    pub(crate) store: Store,
    directory: TempDir,
    errors: Cell<u32>,
}

impl Scene {
    pub(crate) fn redis() -> Self {
        Self::with(RedisServer::start())
    }

    pub(crate) fn with(server: RedisServer) -> Self {
        Self::new(Store::Redis(Box::new(server)))
    }

    pub(crate) fn file() -> Self {
        Self::new(Store::File)
    }

    pub(crate) fn at(url: impl Into<String>) -> Self {
        Self::new(Store::At(url.into()))
    }

    fn new(store: Store) -> Self {
        testkit::signals::as_at_a_terminal();
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        Self { store, directory, errors: Cell::new(0) }
    }

    pub(crate) fn url(&self) -> String {
        match &self.store {
            Store::Redis(server) => server.url(),
            Store::File => format!("file:{}", self.path("locks.db").display()),
            Store::At(url) => url.clone(),
        }
    }

    /// The Redis server.
    pub(crate) fn server(&self) -> &RedisServer {
        match &self.store {
            Store::Redis(server) => server,
            Store::File | Store::At(_) => panic!("the scene has no server"),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `lockkeeper` in the environment of this scene.
    pub(crate) fn lockkeeper(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        self.surround(&mut command);
        command
    }

    /// Sets the environment of this scene for a command.
    pub(crate) fn surround(&self, command: &mut Command) {
        let home = self.directory.path();
        command
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("LOCKKEEPER_PASSWORD_FILE")
            .env_remove("LOCKKEEPER_SENTINEL_PASSWORD_FILE")
            .env("LOCKKEEPER_URL", self.url())
            .env("HOME", home)
            .env("D", home)
            .current_dir(home);
    }

    /// Starts `lockkeeper run ARGS`.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let mut command = self.lockkeeper();
        command.arg("run").args(args);
        self.launch(command)
    }

    /// Starts a command. Its output is read line by line; its errors go to a file.
    pub(crate) fn launch(&self, mut command: Command) -> Running {
        let number = self.errors.replace(self.errors.get() + 1);
        let errors = self.path(&format!("stderr.{number}"));
        command.stderr(fs::File::create(&errors).expect("a file can be made"));
        Running { process: ChildProcess::from_command(command), errors }
    }

    /// Runs `lockkeeper run ARGS` to its end, without input.
    #[track_caller]
    pub(crate) fn run(&self, args: &[&str]) -> Outcome {
        self.start(args).outcome()
    }

    /// Runs a command to its end, without input.
    #[track_caller]
    pub(crate) fn finish(&self, command: Command) -> Outcome {
        self.launch(command).outcome()
    }

    /// Waits until a file ends with a whole line; returns its text.
    #[track_caller]
    pub(crate) fn evidence(&self, name: &str) -> String {
        let path = self.path(name);
        let mut found = String::new();
        eventually(&format!("a line in {name}"), || {
            found = fs::read_to_string(&path).unwrap_or_default();
            found.ends_with('\n')
        });
        found
    }

    /// Waits for a process id in a file.
    #[track_caller]
    pub(crate) fn process(&self, name: &str) -> Process {
        let text = self.evidence(name);
        let number = text.trim().parse().expect("a process id");
        Process(Pid::from_raw(number).expect("a process id"))
    }

    /// The present text of a file.
    pub(crate) fn evidence_now(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Creates a named pipe. A shell that reads from it waits without starting a process, so that it can be
    /// stopped at any time.
    pub(crate) fn gate(&self, name: &str) {
        let made = Command::new("mkfifo").arg(self.path(name)).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo is there and works");
    }

    /// Waits for the reader of the pipe, and lets it continue.
    pub(crate) fn open_gate(&self, name: &str) {
        write(&self.path(name), "\n");
    }

    /// Uses the store through the library.
    pub(crate) fn ask<T>(&self, work: impl AsyncFnOnce(Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let client = Client::connect(&self.url()).await.expect("the store is there");
            let answer = work(client.clone()).await;
            client.shutdown().await;
            answer
        })
    }

    /// The remaining TTL of the lock.
    pub(crate) fn remaining(&self, name: &str) -> Option<Ttl> {
        self.ask(async |client| client.lock(name).inspect().await.expect("the store answers").ttl)
    }

    /// When the lease expires unless it is renewed, in milliseconds of the wall clock.
    pub(crate) fn lease_end(&self, name: &str) -> u128 {
        let Some(Ttl::For(left)) = self.remaining(name) else { panic!("{name} is not held") };
        let now = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970");
        (now + left).as_millis()
    }

    /// The last heartbeat of a [`beating`] command.
    #[track_caller]
    pub(crate) fn last_beat(&self) -> u128 {
        let beats = self.evidence_now("beats");
        beats.lines().last().expect("it has beaten").parse().expect("a time")
    }

    /// Asserts that the last heartbeat was 200 ms before the lease expired, less the time that the machine
    /// stood still.
    #[track_caller]
    pub(crate) fn assert_died_before(&self, end: u128, watch: &Stopwatch) {
        let (last, still) = (self.last_beat(), watch.stood_still().as_millis());
        assert!(last + 200 <= end + still, "alive {last}, the end {end}, stood still for {still}");
    }

    #[track_caller]
    pub(crate) fn assert_free(&self, name: &str) {
        assert_eq!(self.remaining(name), None, "{name} is still held");
    }
}

/// A running command. Killed with its children on `Drop`.
pub(crate) struct Running {
    pub(crate) process: ChildProcess,
    errors: PathBuf,
}

impl Running {
    pub(crate) fn pid(&self) -> Process {
        let pid = i32::try_from(self.process.pid()).expect("a process id");
        Process(Pid::from_raw(pid).expect("a process id"))
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn outcome(mut self) -> Outcome {
        self.process.close_input();
        let status = self.process.wait(WAIT_LIMIT);
        let errors = fs::read_to_string(&self.errors).unwrap_or_default();
        let status = status.unwrap_or_else(|| panic!("it does not end; its errors: {errors}"));
        let mut output = String::new();
        // A process that it left behind may keep its output open.
        while let Some(line) = self.process.next_line(Duration::from_millis(200)) {
            output.push_str(&line);
            output.push('\n');
        }
        Outcome { code: status.code(), output, errors }
    }

    /// Its errors so far.
    pub(crate) fn errors(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn says(&self, what: &str) {
        eventually(&format!("the message {what:?}"), || self.errors().contains(what));
    }

    /// Waits until it is subscribed to force-release notices, shortly after it has acquired the lock.
    #[track_caller]
    pub(crate) fn settled(&self, scene: &Scene) {
        eventually("its subscription to notices", || match &scene.store {
            Store::Redis(server) => {
                !server.cli(&["PUBSUB", "CHANNELS", "lockkeeper_notice:*"]).array().is_empty()
            }
            Store::At(_) => panic!("the scene has no server to ask"),
            Store::File => {
                let file = rusqlite::Connection::open(scene.path("locks.db")).unwrap();
                let sql = "SELECT count(*) FROM listeners WHERE CAST(topic AS TEXT) LIKE 'notice%'";
                // The database may be busy.
                file.query_row(sql, [], |row| row.get::<_, i64>(0)).is_ok_and(|count| count > 0)
            }
        });
    }

    #[track_caller]
    pub(crate) fn guardian(&self) -> Process {
        let mut found = None;
        eventually("its guardian", || {
            found = self.pid().children().into_iter().find(|child| child.name() == "lk-guardian");
            found.is_some()
        });
        found.expect("it was found")
    }
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Outcome {
    #[track_caller]
    pub(crate) fn assert_code(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{self:?}");
    }

    /// Asserts success with only the output of the command.
    #[track_caller]
    pub(crate) fn assert_quiet(&self, output: &str) {
        self.assert_code(0);
        assert_eq!((self.output.as_str(), self.errors.as_str()), (output, ""));
    }

    #[track_caller]
    pub(crate) fn assert_says(&self, what: &str) {
        assert!(self.errors.contains(what), "not {what:?}: {self:?}");
    }
}

/// A process, by its number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Process(Pid);

impl Process {
    /// False for a zombie.
    pub(crate) fn is_alive(self) -> bool {
        !matches!(self.stat(0).as_deref(), None | Some("Z" | "X"))
    }

    /// True for a zombie.
    pub(crate) fn is_there(self) -> bool {
        self.stat(0).is_some()
    }

    pub(crate) fn is_stopped(self) -> bool {
        self.stat(0).as_deref() == Some("T")
    }

    pub(crate) fn group(self) -> Option<i32> {
        self.stat(2)?.parse().ok()
    }

    /// Whether its group has the foreground of its terminal.
    pub(crate) fn is_in_foreground(self) -> bool {
        self.group().is_some() && self.group() == self.stat(5).and_then(|group| group.parse().ok())
    }

    pub(crate) fn parent(self) -> Process {
        let parent = self.stat(1).and_then(|parent| Pid::from_raw(parent.parse().ok()?));
        Process(parent.expect("a living process has a parent"))
    }

    pub(crate) fn number(self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    /// Whether it blocks the signal.
    pub(crate) fn blocks(self, signal: Signal) -> bool {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.number())).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
    }

    #[track_caller]
    pub(crate) fn signal(self, signal: Signal) {
        kill_process(self.0, signal).expect("it is there");
    }

    /// Waits until it is dead.
    #[track_caller]
    pub(crate) fn dies(self) {
        eventually(&format!("the death of {self:?}"), || !self.is_alive());
    }

    fn name(self) -> String {
        fs::read_to_string(format!("/proc/{}/comm", self.number()))
            .unwrap_or_default()
            .trim()
            .into()
    }

    pub(crate) fn children(self) -> Vec<Process> {
        let number = self.number();
        let path = format!("/proc/{number}/task/{number}/children");
        let list = fs::read_to_string(path).unwrap_or_default();
        let ids = list.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?));
        ids.map(Process).collect()
    }

    /// A field of its state, from the third of /proc/PID/stat on, which follows the name.
    fn stat(self, field: usize) -> Option<String> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.number())).ok()?;
        let rest = text.rsplit_once(") ")?.1;
        rest.split(' ').nth(field).map(str::to_owned)
    }
}

/// Waits for a condition.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WAIT_LIMIT, "timed out: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// A shell line that writes its process id to a file, atomically.
pub(crate) fn announce(file: &str) -> String {
    format!("echo $$ > $D/{file}.new && mv $D/{file}.new $D/{file}")
}

/// A shell line that announces itself as `pid` and sleeps, as one process.
pub(crate) fn sleeper() -> String {
    format!("{}; exec sleep 60", announce("pid"))
}

/// A command with a child. Both ignore TERM (the command records it), and both write the time to a file
/// while they live, so that a test can check it later.
pub(crate) fn beating() -> String {
    let beat = "i=0; while [ $((i+=1)) -le 3000 ]; do date +%s%3N >> $D/beats; sleep 0.02; done";
    let child = format!("trap \"\" TERM; {}; {beat}", announce("child"));
    format!("sh -c '{child}' & trap 'echo trapped > $D/trapped' TERM; {}; {beat}", announce("pid"))
}

/// A shell with a job that has its own group and ignores TERM.
pub(crate) fn job_control(scene: &Scene) -> String {
    let beat = "i=0; while [ $((i+=1)) -le 3000 ]; do date +%s%3N >> $D/beats; sleep 0.02; done";
    let line = format!("trap 'echo trapped > $D/trapped' TERM; {}; {beat}", announce("child"));
    write(&scene.path("job.sh"), line);
    format!("exec bash -c 'set -m; sh job.sh & {}; wait'", announce("pid"))
}

/// A command that has joined the group of `run`, writes the time to a file, and ignores TERM.
pub(crate) fn group_leaver(scene: &Scene) -> String {
    let beat = "i=0; while [ $((i+=1)) -le 3000 ]; do date +%s%3N >> $D/beats; sleep 0.02; done";
    let line = format!("trap 'echo trapped > $D/trapped' TERM; {}; {beat}", announce("pid"));
    write(&scene.path("group_leaver.sh"), line);
    "exec perl -e 'setpgrp(0, getpgrp(getppid)) or die; exec qw(sh group_leaver.sh)'".into()
}

/// Writes a file.
pub(crate) fn write(path: &Path, text: impl AsRef<OsStr>) {
    fs::write(path, text.as_ref().as_encoded_bytes()).expect("a file can be written");
}

/// One test per function and store.
macro_rules! on_every_store {
    ($($test:ident),* $(,)?) => {
        mod redis {
            $(#[test]
            fn $test() {
                super::$test(&crate::support::Scene::redis());
            })*
        }
        mod file {
            $(#[test]
            fn $test() {
                super::$test(&crate::support::Scene::file());
            })*
        }
    };
}

pub(crate) use on_every_store;
