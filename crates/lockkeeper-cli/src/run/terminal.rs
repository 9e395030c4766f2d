//! The terminal: whose foreground it is.
//!
//! The command has a process group of its own, so that all of it can be stopped. To a terminal that
//! makes it another job than `run`: it could neither read nor be interrupted from the keyboard,
//! unless its group is made the foreground, as a shell does with its jobs.
//!
//! But the foreground is also that of everybody else in the group of `run`: the `less` behind a pipe,
//! the script or the program that has started it. Whoever of them used the terminal then would be
//! stopped, and `run` with it. So it is handed over at once only to a command that is as good as alone
//! at the terminal, and to any other when it reaches for it. Until then the keyboard's signals go to the
//! group of `run`, which passes them on.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::process::{Pid, getpgrp, getpid};
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The terminal that controls this process.
pub(super) struct Terminal {
    tty: File,
    /// Whether the command gets the foreground whenever `run` has it.
    hand_over: bool,
    /// Its settings as they were before the command.
    settings: Option<Termios>,
}

impl Terminal {
    /// None, if nothing controls this process: then there is no job control either.
    pub(super) fn open() -> Option<Self> {
        let flags = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
        let mut options = OpenOptions::new();
        let tty = options.read(true).write(true).custom_flags(flags).open("/dev/tty").ok()?;
        let settings = tcgetattr(&tty).ok();
        Some(Self { tty, hand_over: is_alone(), settings })
    }

    /// The handle for a child that is to take the foreground by itself, before it begins.
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

    /// Whether the foreground is that group's.
    pub(super) fn is_of(&self, group: Pid) -> bool {
        self.foreground() == Some(group)
    }

    /// Whose the foreground is.
    pub(super) fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.tty).ok()
    }

    /// Gives the foreground to a group that cannot do without.
    pub(super) fn give(&mut self, group: Pid) {
        self.hand_over = true;
        self.give_again(group);
    }

    /// Gives the foreground to the group, if it is ours to give and the group is to have it.
    pub(super) fn give_again(&self, group: Pid) {
        if self.hand_over && self.is_ours() {
            let _ = tcsetpgrp(&self.tty, group);
        }
    }

    /// Takes the foreground back from the group, if it still has it: by now it may be somebody
    /// else's.
    pub(super) fn take_back(&self, group: Pid) {
        if self.is_of(group) {
            let _ = tcsetpgrp(&self.tty, getpgrp());
        }
    }

    /// Undoes what a command has done to the settings that had no chance to do so itself.
    pub(super) fn tidy_up(&self) {
        if let Some(settings) = &self.settings {
            let _ = tcsetattr(&self.tty, OptionalActions::Now, settings);
        }
    }

    /// Takes the foreground back from a group that is not there any more.
    pub(super) fn take(&self) {
        let _ = tcsetpgrp(&self.tty, getpgrp());
    }
}

/// Whether nobody else seems to be in this group: an interactive shell has made it for this process, and
/// no pipe leads to or from it.
fn is_alone() -> bool {
    let is_terminal = [stdin(), stdout(), stderr()].into_iter().all(|end| tcgetpgrp(end).is_ok());
    is_terminal && getpgrp() == getpid()
}
