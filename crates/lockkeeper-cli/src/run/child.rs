//! The command: started in a process group of its own, signalled and looked at as a whole.
//!
//! It may leave that group, but it cannot leave its number: as long as it is not reaped nobody else has
//! that, and so the command itself is always reached.

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
use crate::store::{PASSWORD_VARIABLE, URL_VARIABLE};

/// The command, running.
pub(super) struct Child {
    process: std::process::Child,
    group: Pid,
    reaped: bool,
    /// One of the group that was seen alive.
    witness: Option<Pid>,
}

/// What a look at it shows.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum State {
    /// Nothing new.
    Running,
    /// A signal has stopped it since the last look.
    Stopped(Signal),
    /// It has ended. It is not reaped by looking.
    Ended,
}

impl Child {
    /// Starts it. Must be called from the main thread: the child dies with the thread that made it.
    pub(super) fn spawn(mut command: Command, steps: Preparation) -> io::Result<Self> {
        command.process_group(0);
        prepare(&mut command, steps);
        let process = command.spawn()?;
        let group = Pid::from_child(&process);
        Ok(Self { process, group, reaped: false, witness: None })
    }

    /// Its process group, which has the number of its first process: this one.
    pub(super) fn group(&self) -> Pid {
        self.group
    }

    /// Sends a signal to all of the group, and to the command if it has left it.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        // Only then: what is counted must not come twice. Death does not, and it may be leaving now.
        let apart = signal == Signal::KILL || getpgid(Some(self.group)) != Ok(self.group);
        let itself = match self.reaped {
            false if apart => kill_process(self.group, signal),
            _ => Ok(()),
        };
        match kill_process_group(self.group, signal).and(itself) {
            // All of it has ended.
            Err(Errno::SRCH) => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    /// What has become of it.
    pub(super) fn state(&self) -> State {
        let look = |options| waitid(WaitId::Pid(self.group), options | WaitIdOptions::NOHANG);
        match look(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(None) => {}
            // An error would be that there is no such child: somebody else has reaped it.
            _ => return State::Ended,
        }
        match look(WaitIdOptions::STOPPED) {
            Ok(Some(status)) => {
                let signal = status.stopping_signal().and_then(Signal::from_named_raw);
                State::Stopped(signal.unwrap_or(Signal::STOP))
            }
            _ => State::Running,
        }
    }

    /// Reaps it; to be called when it has ended.
    pub(super) fn reap(&mut self) -> ExitStatus {
        self.reaped = true;
        // Reaped by somebody else, nothing is known of how it ended.
        self.process.wait().unwrap_or_else(|_| ExitStatus::from_raw(0xff00))
    }

    /// Whether its number may be somebody else's by now.
    pub(super) fn is_reaped(&self) -> bool {
        self.reaped
    }

    /// Whether any process of the group is left. Once the first process is reaped, the last one to
    /// end gives the number free; it comes round again only after all others were used.
    pub(super) fn has_group(&mut self) -> bool {
        group::lives(self.group, &mut self.witness)
    }
}

/// The command as a `Command`: what was given after `--`, or a shell with a line.
pub(super) fn command(words: &[OsString], line: Option<&OsStr>) -> Option<Command> {
    if let Some(line) = line {
        return Some(shell(line));
    }
    let (program, arguments) = words.split_first()?;
    let mut command = Command::new(program);
    command.args(arguments);
    Some(command)
}

/// What those who ask are told that holds the lock: the command, without its arguments, which may be
/// secret; nothing if there is none, or only a line for a shell.
pub(super) fn shown(words: &[OsString]) -> Option<String> {
    let name = Path::new(words.first()?).file_name()?;
    Some(name.to_string_lossy().into_owned())
}

/// `sh -c`, for lines that the user wrote.
pub(super) fn shell(line: &OsStr) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(line);
    command
}

/// What the command, and the lines for busy and lost, are told; and what is kept from them.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment {
    pub(super) name: OsString,
    pub(super) owner: Option<String>,
    pub(super) token: Option<u64>,
    /// The holders of the runs around this one, the outermost first.
    pub(super) around: Vec<String>,
}

/// The variable that names the holders of all runs around a process.
const HELD_VARIABLE: &str = "LOCKKEEPER_HELD";

impl Environment {
    pub(super) fn new(name: &OsStr) -> Self {
        let held = std::env::var(HELD_VARIABLE).unwrap_or_default();
        let around = held.split_whitespace().map(str::to_owned).collect();
        Self { name: name.to_owned(), around, ..Self::default() }
    }

    /// What shows the guardian that a process runs below the command. The lines for busy and lost do not
    /// have it.
    pub(super) fn mark(&self) -> String {
        format!("{HELD_VARIABLE}={}", self.held(&self.owner).unwrap_or_default())
    }

    fn held(&self, owner: &Option<String>) -> Option<String> {
        let held: Vec<_> = self.around.iter().chain(owner).map(String::as_str).collect();
        Some(held.join(" ")).filter(|held| !held.is_empty())
    }

    /// For a line that does not run under the lock.
    pub(super) fn apply_outside(&self, command: &mut Command) {
        self.apply(command);
        match self.held(&None) {
            Some(held) => command.env(HELD_VARIABLE, held),
            None => command.env_remove(HELD_VARIABLE),
        };
    }

    pub(super) fn apply(&self, command: &mut Command) {
        // The URL may hold a password.
        command.env_remove(URL_VARIABLE).env_remove(PASSWORD_VARIABLE);
        command.env("LOCKKEEPER_NAME", &self.name);
        // What stands there may be of another `run` around this one.
        let token = self.token.map(|token| token.to_string());
        let held = self.held(&self.owner);
        let told = [
            ("LOCKKEEPER_OWNER", &self.owner),
            ("LOCKKEEPER_TOKEN", &token),
            (HELD_VARIABLE, &held),
        ];
        for (variable, value) in told {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
    }
}

/// The exit code of a command that has ended: its own, or 128 and the signal, as in a shell.
pub(super) fn code(status: ExitStatus) -> Code {
    match (status.code(), status.signal()) {
        (Some(code), _) => Code(code as u8),
        (None, signal) => Code::signalled(signal.unwrap_or_default()),
    }
}

/// What it means that a command could not be started, in the words and codes of a shell.
pub(super) fn not_started(program: &OsStr, error: &io::Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::NotFound => Code::NOT_FOUND,
        // Nothing is wrong with the command: there is no room for another process.
        ErrorKind::WouldBlock | ErrorKind::OutOfMemory => Code::INTERNAL,
        _ => Code::NOT_EXECUTABLE,
    };
    Failure::new(code, format!("{}: {error}", program.display()))
}
