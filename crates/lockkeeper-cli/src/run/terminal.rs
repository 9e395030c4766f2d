//! The foreground of the terminal.
//!
//! The command has its own process group, so that all of it can be stopped. For a terminal this is
//! another job than `run`: the command can read the keyboard and be interrupted by it only if its group
//! gets the foreground, as a shell does with its jobs.
//!
//! The foreground also serves the other processes in the group of `run`: the `less` of a pipe, or the
//! script around it. Without the foreground they would be stopped when they use the terminal, and `run`
//! with them. So a command gets the foreground at once only if `run` appears to be alone in its group,
//! otherwise when the command uses the terminal. Until then the keyboard's signals go to the group of
//! `run`, which passes them on.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::process::{Pid, getpgrp, getpid};
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The controlling terminal of this process.
pub(super) struct Terminal {
    tty: File,
    /// Whether the command gets the foreground when `run` has it.
    hand_over: bool,
    /// The settings before the command started.
    settings: Option<Termios>,
}

impl Terminal {
    /// `None` without a controlling terminal: then there is no job control either.
    pub(super) fn open() -> Option<Self> {
        let flags = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
        let mut options = OpenOptions::new();
        let tty = options.read(true).write(true).custom_flags(flags).open("/dev/tty").ok()?;
        let settings = tcgetattr(&tty).ok();
        Some(Self { tty, hand_over: is_alone(), settings })
    }

    /// The handle for a child that takes the foreground before it runs.
    pub(super) fn for_child(&self) -> Option<OwnedFd> {
        if self.hand_over && self.is_ours() {
            self.tty.try_clone().ok().map(OwnedFd::from)
        } else {
            None
        }
    }

    /// Whether this process is in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        self.is_of(getpgrp())
    }

    /// Whether the group has the foreground.
    pub(super) fn is_of(&self, group: Pid) -> bool {
        self.foreground() == Some(group)
    }

    pub(super) fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.tty).ok()
    }

    /// Gives the foreground to a group that uses the terminal.
    pub(super) fn give(&mut self, group: Pid) {
        self.hand_over = true;
        self.give_again(group);
    }

    /// Gives the foreground to the group, if `run` has it and the group should have it.
    pub(super) fn give_again(&self, group: Pid) {
        if self.hand_over && self.is_ours() {
            let _ = tcsetpgrp(&self.tty, group);
        }
    }

    /// Takes the foreground back, if the group still has it.
    pub(super) fn take_back(&self, group: Pid) {
        if self.is_of(group) {
            let _ = tcsetpgrp(&self.tty, getpgrp());
        }
    }

    /// Restores the settings after a command that was killed.
    pub(super) fn restore_settings(&self) {
        if let Some(settings) = &self.settings {
            let _ = tcsetattr(&self.tty, OptionalActions::Now, settings);
        }
    }

    /// Takes the foreground back from a group that no longer exists.
    pub(super) fn take(&self) {
        let _ = tcsetpgrp(&self.tty, getpgrp());
    }
}

/// Whether this process appears to be alone in its group: it leads the group, and is not in a pipe.
fn is_alone() -> bool {
    let is_terminal = [stdin(), stdout(), stderr()].into_iter().all(|end| tcgetpgrp(end).is_ok());
    is_terminal && getpgrp() == getpid()
}
