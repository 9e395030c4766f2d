//! The terminal: whose foreground it is.
//!
//! The command has a process group of its own, so that all of it can be stopped. To a terminal that
//! makes it another job than `run`: it could neither read nor be interrupted from the keyboard,
//! unless its group is made the foreground, as a shell does with its jobs.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal that controls this process.
pub(super) struct Terminal {
    tty: File,
    /// Whether the command gets the foreground whenever `run` has it: when its input is the terminal,
    /// or once it has reached for it. Otherwise (`cat | lockkeeper run …`) it belongs to whoever else
    /// is in this group.
    hand_over: bool,
}

impl Terminal {
    /// None, if nothing controls this process: then there is no job control either.
    pub(super) fn open() -> Option<Self> {
        let flags = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
        let mut options = OpenOptions::new();
        let tty = options.read(true).write(true).custom_flags(flags).open("/dev/tty").ok()?;
        Some(Self { tty, hand_over: tcgetpgrp(rustix::stdio::stdin()).is_ok() })
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
        tcgetpgrp(&self.tty) == Ok(group)
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

    /// Takes the foreground back from a group that is not there any more.
    pub(super) fn take(&self) {
        let _ = tcsetpgrp(&self.tty, getpgrp());
    }
}
