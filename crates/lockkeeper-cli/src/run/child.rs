//! The command, started in its own process group and signalled as a group.
//!
//! It may leave that group. Its process number stays its own until it is reaped, so a signal always
//! reaches the command itself.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, kill_process, kill_process_group, waitid,
};

use super::group;
use super::sys::{Preparation, prepare};
use crate::exit::{Code, Failure};
use crate::store::{PASSWORD_VARIABLE, SENTINEL_PASSWORD_VARIABLE, URL_VARIABLE};

/// The running command.
pub(super) struct Child {
    process: std::process::Child,
    group: Pid,
    reaped: bool,
    /// The member of the group that was last seen alive.
    alive: Option<Pid>,
}

/// The state of the command.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum State {
    /// It runs, or was already reported as stopped.
    Running,
    /// A signal has stopped it since the last check.
    Stopped(Signal),
    /// It has ended, and is not reaped.
    Ended,
}

impl Child {
    /// Starts the command. Must be called on the main thread: the child dies with the thread that started
    /// it.
    pub(super) fn spawn(mut command: Command, steps: Preparation) -> io::Result<Self> {
        command.process_group(0);
        prepare(&mut command, steps);
        let process = command.spawn()?;
        let group = Pid::from_child(&process);
        Ok(Self { process, group, reaped: false, alive: None })
    }

    /// The process group, which has the number of the command.
    pub(super) fn group(&self) -> Pid {
        self.group
    }

    /// Signals the group, and the command itself if it has left the group.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        // Otherwise the command would get a signal twice. Twice KILL is harmless, and covers a command
        // that leaves its group at this moment.
        let apart = signal == Signal::KILL || getpgid(Some(self.group)) != Ok(self.group);
        let itself = match self.reaped {
            false if apart => kill_process(self.group, signal),
            _ => Ok(()),
        };
        match kill_process_group(self.group, signal).and(itself) {
            // The whole group has ended.
            Err(Errno::SRCH) => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    pub(super) fn state(&self) -> State {
        let wait = |options| waitid(WaitId::Pid(self.group), options | WaitIdOptions::NOHANG);
        match wait(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(None) => {}
            // An error means that there is no such child: other code has reaped it.
            _ => return State::Ended,
        }
        match wait(WaitIdOptions::STOPPED) {
            Ok(Some(status)) => {
                let signal = status.stopping_signal().and_then(Signal::from_named_raw);
                State::Stopped(signal.unwrap_or(Signal::STOP))
            }
            _ => State::Running,
        }
    }

    /// Reaps the command. To be called when it has ended.
    pub(super) fn reap(&mut self) -> ExitStatus {
        self.reaped = true;
        // If other code has reaped it, its status is unknown.
        self.process.wait().unwrap_or_else(|_| ExitStatus::from_raw(0xff00))
    }

    /// Whether its number may already belong to another process.
    pub(super) fn is_reaped(&self) -> bool {
        self.reaped
    }

    /// Whether any process of the group is left. After the command is reaped, the number stays in use
    /// until the last member ends.
    pub(super) fn has_group(&mut self) -> bool {
        group::is_alive(self.group, &mut self.alive)
    }
}

/// The command after `--`, or a shell with a line.
pub(super) fn command(words: &[OsString], line: Option<&OsStr>) -> Option<Command> {
    if let Some(line) = line {
        return Some(shell(line));
    }
    let (program, arguments) = words.split_first()?;
    let mut command = Command::new(program);
    command.args(arguments);
    Some(command)
}

/// The program name that the holder announces. Without arguments, which may be secret; `None` without a
/// command or with a shell line.
pub(super) fn program_name(words: &[OsString]) -> Option<String> {
    let name = Path::new(words.first()?).file_name()?;
    Some(name.to_string_lossy().into_owned())
}

/// `sh -c LINE`.
pub(super) fn shell(line: &OsStr) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(line);
    command
}

/// The environment of the command and of the hooks.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment {
    pub(super) name: OsString,
    pub(super) owner: Option<String>,
    pub(super) token: Option<u64>,
    /// The owners of the runs around this one, the outermost first.
    pub(super) around: Vec<String>,
}

/// Lists the owners of all runs around a process.
const HELD_VARIABLE: &str = "LOCKKEEPER_HELD";

impl Environment {
    pub(super) fn new(name: &OsStr) -> Self {
        let held = std::env::var(HELD_VARIABLE).unwrap_or_default();
        let around = held.split_whitespace().map(str::to_owned).collect();
        Self { name: name.to_owned(), around, ..Self::default() }
    }

    /// The entry by which the guardian recognises descendants of the command. Hooks do not have it.
    pub(super) fn mark(&self) -> String {
        format!("{HELD_VARIABLE}={}", self.held(&self.owner).unwrap_or_default())
    }

    fn held(&self, owner: &Option<String>) -> Option<String> {
        let held: Vec<_> = self.around.iter().chain(owner).map(String::as_str).collect();
        Some(held.join(" ")).filter(|held| !held.is_empty())
    }

    /// For a hook, which does not run under the lock.
    pub(super) fn apply_outside(&self, command: &mut Command) {
        self.apply(command);
        match self.held(&None) {
            Some(held) => command.env(HELD_VARIABLE, held),
            None => command.env_remove(HELD_VARIABLE),
        };
    }

    pub(super) fn apply(&self, command: &mut Command) {
        // The URL may contain a password.
        for secret in [URL_VARIABLE, PASSWORD_VARIABLE, SENTINEL_PASSWORD_VARIABLE] {
            command.env_remove(secret);
        }
        command.env("LOCKKEEPER_NAME", &self.name);
        // Values of a `run` around this one must not remain.
        let token = self.token.map(|token| token.to_string());
        let held = self.held(&self.owner);
        let variables = [
            ("LOCKKEEPER_OWNER", &self.owner),
            ("LOCKKEEPER_TOKEN", &token),
            (HELD_VARIABLE, &held),
        ];
        for (variable, value) in variables {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
    }
}

/// The exit code of the ended command: its own, or 128 + signal, as in a shell.
pub(super) fn code(status: ExitStatus) -> Code {
    match (status.code(), status.signal()) {
        (Some(code), _) => Code(code as u8),
        (None, signal) => Code::signalled(signal.unwrap_or_default()),
    }
}

/// The failure to start a command, with the code of a shell.
pub(super) fn not_started(program: &OsStr, error: &io::Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::NotFound => Code::NOT_FOUND,
        // The command itself is fine: the system cannot start another process.
        ErrorKind::WouldBlock | ErrorKind::OutOfMemory => Code::INTERNAL,
        _ => Code::NOT_EXECUTABLE,
    };
    Failure::new(code, format!("cannot start {}: {error}", program.display()))
}
