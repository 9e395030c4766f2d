//! A child process that cannot outlive the test that started it.
//!
//! `Drop` is not enough: it does not run for a server kept in a `static`, nor when the test process
//! is killed. So each process gets a guardian, a shell that blocks reading a pipe whose other end
//! only this process holds. However this process ends, the pipe closes, and the guardian kills what
//! it guards. (`PR_SET_PDEATHSIG` would do it in the kernel, but needs `unsafe`, and it fires when the
//! spawning *thread* ends, which in a test is too early.)

use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Signals that a terminal sends to the whole process group must not take the guardian away first.
const GUARDIAN: &str =
    r#"trap "" INT TERM HUP; read _; kill -9 "$1" 2>/dev/null; [ -z "$2" ] || rm -rf "$2""#;

/// How often a process is asked whether it has ended, or answers.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// What a node of a topology does comes within this, or the test has failed.
const NODES_LIMIT: Duration = Duration::from_secs(30);

/// Waits for something that is not signalled.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + NODES_LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {NODES_LIMIT:?}: {what}");
        thread::sleep(POLL_INTERVAL);
    }
}

/// A running process; dead and reaped after `Drop`.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    guardian: Child,
}

impl Process {
    /// Starts `command`. `directory` is removed by the guardian if this process dies before it can.
    pub(crate) fn spawn(command: &mut Command, directory: Option<&Path>) -> io::Result<Self> {
        let mut child = command.spawn()?;
        match guard(child.id(), directory) {
            Ok(guardian) => Ok(Self { child, guardian }),
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How it ended, if it has.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the state of a child of ours is readable")
    }

    /// Waits until it ends by itself; `None` when it has not within `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.exit_status() {
                None if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
                status => return status,
            }
        }
    }

    /// SIGSTOP; returns when the process has stopped (or ended).
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        // A stop signal is only pending when `kill` returns. NOWAIT: reaping is `Child`'s business.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.handle()), stopped).expect("a child of ours can be waited for");
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.handle(), signal)
            .unwrap_or_else(|error| panic!("process {} cannot be signalled: {error}", self.pid()));
    }

    /// The id stays ours until the child is reaped, so a signal cannot hit a stranger.
    fn handle(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The guardian first: after the child is reaped, its id may belong to somebody else.
        end(&mut self.guardian);
        end(&mut self.child);
    }
}

/// SIGKILL works on a stopped process too. Errors mean that it has already ended.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn guard(pid: u32, directory: Option<&Path>) -> io::Result<Child> {
    Command::new("sh")
        .args(["-c", GUARDIAN, "guardian", &pid.to_string()])
        .arg(directory.unwrap_or(Path::new("")))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}
