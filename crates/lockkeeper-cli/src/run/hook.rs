//! The lines of `--on-busy` and `--on-lost`, for example to notify an operator. They get no input and
//! never change the exit code.

use std::ffi::OsStr;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, kill_process};

use super::child::{Environment, shell};
use super::signals::Signals;
use crate::display;
use crate::exit::say;

/// How long `run` waits for the line of `--on-lost`, then leaves it running.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

/// A running line.
pub(super) struct Hook {
    process: Option<Child>,
}

impl Hook {
    /// Starts the line, if there is one. `reason` becomes `LOCKKEEPER_REASON`.
    pub(super) fn start(line: Option<&OsStr>, environment: &Environment, reason: &str) -> Self {
        let Some(line) = line else {
            return Self { process: None };
        };
        let mut command = shell(line);
        environment.apply_outside(&mut command);
        // The reason may come from the store, and a variable cannot contain a NUL.
        command.env("LOCKKEEPER_REASON", display::text(reason)).stdin(Stdio::null());
        let process = command.spawn();
        Self {
            process: process.inspect_err(|error| say(format_args!("cannot run sh: {error}"))).ok(),
        }
    }

    /// Waits for the end of the line, and passes signals on to it.
    pub(super) async fn finish(mut self, signals: &mut Signals) {
        while self.is_running() {
            if let Some(signal) = signals.any().await
                && let Some(process) = self.pid()
            {
                let _ = kill_process(process, signal);
            }
        }
    }

    /// Waits for the end of the line within the limit.
    pub(super) async fn finish_soon(self, signals: &mut Signals) {
        let _ = tokio::time::timeout(WAIT_LIMIT, self.finish(signals)).await;
    }

    pub(super) fn pid(&self) -> Option<Pid> {
        self.process.as_ref().map(Pid::from_child)
    }

    /// Reaps the process if it has ended.
    pub(super) fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| matches!(process.try_wait(), Ok(None)))
    }
}
