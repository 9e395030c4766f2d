//! Another process of ours, for tests that need more than one.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::process::Process;

/// A child that says nothing for this long, when something is expected of it, is stuck.
const LINE_LIMIT: Duration = Duration::from_secs(20);

/// A child process whose output is read line by line; killed and reaped on `Drop`.
///
/// Its error output goes where this process's goes, so a child's panic is seen.
#[derive(Debug)]
pub struct ChildProcess {
    process: Process,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl ChildProcess {
    /// Starts a program, such as [`example_path`] or the test's own binary.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn spawn(
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Self {
        let mut command = Command::new(program);
        command.args(args);
        Self::from_command(command)
    }

    /// Starts a command, for what [`spawn`](Self::spawn) does not take, such as its environment.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn from_command(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command, None)
            .unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
        let input = process.child_mut().stdin.take();
        let output = process.child_mut().stdout.take().expect("its output is piped");
        Self { process, input, lines: read_lines(output) }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The next line of output; `None` when none came within `timeout`, or none will come any more.
    pub fn next_line(&self, timeout: Duration) -> Option<String> {
        self.lines.recv_timeout(timeout).ok()
    }

    /// The next line that contains `needle`; lines before it are skipped.
    ///
    /// # Panics
    ///
    /// If the output ends first, or pauses for more than twenty seconds.
    #[track_caller]
    pub fn expect_line(&self, needle: &str) -> String {
        loop {
            match self.lines.recv_timeout(LINE_LIMIT) {
                Ok(line) if line.contains(needle) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("no line for {LINE_LIMIT:?}: {needle:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("output ended without {needle:?}"),
            }
        }
    }

    /// Writes a line to its standard input.
    ///
    /// # Panics
    ///
    /// If it does not take it any more.
    pub fn write_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its standard input has been closed");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("the child reads its input");
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Stops it (SIGSTOP); returns when it has stopped.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Continues it (SIGCONT).
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Kills it (SIGKILL), even if it is paused, and returns when it is gone.
    pub fn kill(self) {
        drop(self);
    }

    /// Waits until it ends by itself; `None` when it has not within `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        self.process.wait(timeout)
    }
}

/// The path of an example of the package under test. `cargo test` builds examples too.
///
/// # Panics
///
/// If it has not been built.
pub fn example_path(name: &str) -> PathBuf {
    // target/<profile>/deps/<test> → target/<profile>/examples/<name>
    let test = env::current_exe().expect("the path of this binary is known");
    let profile = test.ancestors().nth(2).expect("a test binary lies in target/<profile>/deps");
    let path = profile.join("examples").join(name);
    assert!(path.exists(), "{} is missing: cargo build --example {name}", path.display());
    path
}

/// A thread, because a pipe cannot be read with a time limit. It ends when the child does.
fn read_lines(output: ChildStdout) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}
