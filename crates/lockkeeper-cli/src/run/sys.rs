//! What the kernel offers and no safe crate does: the steps between fork and exec, and the
//! dispositions of signals. The only module with `unsafe`.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_current_process_group, kill_process};

/// What whoever started this process decided about signals: the command's, too.
#[derive(Clone, Copy)]
pub(super) struct Inherited {
    mask: libc::sigset_t,
    ignores_children: bool,
}

impl Inherited {
    /// Takes note of it and makes it right for this process: it must hear of its children, and not
    /// be stopped for using the terminal from the background, which it does when it takes the
    /// foreground back.
    pub(super) fn take() -> Self {
        let mask = change_mask(libc::SIG_SETMASK, &set_of(&[Signal::TTOU]));
        Self { mask, ignores_children: is_ignored(Signal::CHILD) }
    }
}

/// What the child does to itself before it becomes the command.
pub(super) struct Preparation {
    /// Who is told of the child before anything of the command's runs.
    pub(super) guardian: OwnedFd,
    /// The terminal whose foreground the child is to be.
    pub(super) terminal: Option<OwnedFd>,
    /// What it is to find about signals.
    pub(super) inherited: Inherited,
    /// When it is too late to begin. This process may have stood still since it got the lock.
    pub(super) not_after: Duration,
}

/// Has `steps` done in the child, between fork and exec; its process group is made by then.
pub(super) fn prepare(command: &mut Command, steps: Preparation) {
    let parent = rustix::process::getpid();
    let prepare = move || child_side(&steps, parent);
    // SAFETY: the closure runs in a forked child, where only async-signal-safe functions may be
    // called: it makes plain system calls on what was set up before, allocates nothing, takes no
    // lock, and panics nowhere.
    unsafe { command.pre_exec(prepare) };
}

fn child_side(steps: &Preparation, parent: Pid) -> io::Result<()> {
    // std has emptied the mask by now. Nothing may stop the child half-way, least of all the
    // SIGTTOU that a background group gets for reaching for the terminal.
    set_mask(&full());
    die_with_parent();
    let own = rustix::process::getpid();
    // From here on the guardian sees to the whole group. That it may be gone is no reason to fail.
    let _ = super::guardian::introduce(steps.guardian.as_fd(), own);
    if let Some(terminal) = &steps.terminal {
        let _ = rustix::termios::tcsetpgrp(terminal, own);
    }
    // The parent may have died before its death was asked to be a signal.
    if rustix::process::getppid() != Some(parent) {
        return Err(Errno::SRCH.into());
    }
    if steps.inherited.ignores_children {
        // SAFETY: the signal may be ignored, and nothing is called when it comes.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    }
    set_mask(&steps.inherited.mask);
    if super::clock::now() >= steps.not_after {
        return Err(Errno::TIMEDOUT.into());
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn die_with_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
}

/// Elsewhere the guardian alone sees to it.
#[cfg(not(target_os = "linux"))]
fn die_with_parent() {}

/// A child that has ended and is not reaped, whichever comes first.
pub(super) fn dead_child() -> Option<Pid> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: there is room for the answer; zeroed, it is a valid value even if there is none, and says
    // then that it is about process 0. If there is one it is about a child, so that it names a process.
    let pid = unsafe {
        libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), look);
        info.assume_init().si_pid()
    };
    Pid::from_raw(pid)
}

/// Blocks every signal that can be.
pub(super) fn block_all() {
    set_mask(&full());
}

/// Whether whoever started this process had the signal ignored, as `nohup` does.
pub(super) fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the signal exists, no new action is given, and there is room for the old one; zeroed,
    // it is a valid value even if the call fails.
    let action = unsafe {
        libc::sigaction(signal.as_raw(), ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Lets the signal do to this process group what it does by default, whatever is set up here.
///
/// For a signal that stops it returns when the group goes on; at once if the kernel will not stop
/// it, because nobody is there who could let it go on.
pub(super) fn suffer(signal: Signal) {
    with_default(signal, || {
        // To one's own group one may always send. The main thread, which this is, takes the signal
        // before the call returns.
        let _ = kill_current_process_group(signal);
    });
}

/// Ends this process by the signal, so that whoever waits for it sees that.
pub(super) fn die_of(signal: Signal) {
    // Not a second core beside the child's.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    with_default(signal, || {
        let _ = kill_process(rustix::process::getpid(), signal);
    });
}

fn with_default(signal: Signal, action: impl FnOnce()) {
    let mut default = MaybeUninit::<libc::sigaction>::zeroed();
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a zeroed action is SIG_DFL without flags and with an empty mask; both places are
    // valid for the call.
    let replaced =
        unsafe { libc::sigaction(signal.as_raw(), default.as_mut_ptr(), before.as_mut_ptr()) };
    let mask = change_mask(libc::SIG_UNBLOCK, &set_of(&[signal]));
    action();
    set_mask(&mask);
    if replaced == 0 {
        // SAFETY: `before` was filled by the call that succeeded, so it is an action that was valid.
        unsafe { libc::sigaction(signal.as_raw(), before.as_ptr(), ptr::null_mut()) };
    }
}

fn set_mask(mask: &libc::sigset_t) {
    change_mask(libc::SIG_SETMASK, mask);
}

fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = empty();
    // SAFETY: both sets are initialised and live for the call; `how` is one of the three.
    unsafe { libc::pthread_sigmask(how, set, &mut before) };
    before
}

fn set_of(signals: &[Signal]) -> libc::sigset_t {
    let mut set = empty();
    for signal in signals {
        // SAFETY: the set is initialised, and the number is that of a signal.
        unsafe { libc::sigaddset(&mut set, signal.as_raw()) };
    }
    set
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn full() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the whole set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}
