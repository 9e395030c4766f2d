//! The lines that are run when the lock is busy or lost.
//!
//! They are for telling somebody. They get no input, and whatever becomes of them, the exit code
//! stays.

use std::ffi::OsStr;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, kill_process};

use super::child::{Environment, shell};
use super::signals::Signals;
use crate::display;
use crate::exit::say;

/// How long the line for a lost lock is waited for, once there is nothing else to do. It is then left
/// to itself, not killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A line that runs.
pub(super) struct Hook {
    process: Option<Child>,
}

impl Hook {
    /// Starts it, if there is one. `reason` is what it can read in `LOCKKEEPER_REASON`.
    pub(super) fn start(line: Option<&OsStr>, environment: &Environment, reason: &str) -> Self {
        let Some(line) = line else {
            return Self { process: None };
        };
        let mut command = shell(line);
        environment.apply_outside(&mut command);
        // It may come out of the store, and a variable cannot hold a NUL.
        command.env("LOCKKEEPER_REASON", display::text(reason)).stdin(Stdio::null());
        let process = command.spawn();
        Self { process: process.inspect_err(|error| say(format_args!("sh: {error}"))).ok() }
    }

    /// Waits until it has ended. Signals that are listened for reach it, too.
    pub(super) async fn finish(mut self, signals: &mut Signals) {
        while self.is_running() {
            if let Some(signal) = signals.any().await
                && let Some(process) = self.pid()
            {
                let _ = kill_process(process, signal);
            }
        }
    }

    /// The same, but not for long.
    pub(super) async fn finish_soon(self, signals: &mut Signals) {
        let _ = tokio::time::timeout(PATIENCE, self.finish(signals)).await;
    }

    /// Its process, if there is one.
    pub(super) fn pid(&self) -> Option<Pid> {
        self.process.as_ref().map(Pid::from_child)
    }

    /// Reaps it if it has ended.
    pub(super) fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| matches!(process.try_wait(), Ok(None)))
    }
}
