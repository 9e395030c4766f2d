//! System calls that no safe crate offers: the steps between fork and exec, and the dispositions of
//! signals. The only module with `unsafe`.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_current_process_group, kill_process};

/// The signal settings that this process was started with, for the command.
#[derive(Clone, Copy)]
pub(super) struct Inherited {
    mask: libc::sigset_t,
    ignores_children: bool,
    ignores_pipe: bool,
}

impl Inherited {
    /// Saves the settings and unblocks all signals for this process, except SIGTTOU: it must not be
    /// stopped when it takes the foreground back from the background.
    pub(super) fn take() -> Self {
        let mask = change_mask(libc::SIG_SETMASK, &set_of(&[Signal::TTOU]));
        let ignores_pipe = IGNORED_PIPE.load(Ordering::Relaxed);
        Self { mask, ignores_children: is_ignored(Signal::CHILD), ignores_pipe }
    }
}

/// Whether SIGPIPE was ignored when this process started, as under systemd. Read before `main`, because
/// std then ignores it in any case.
static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);

extern "C" fn read_pipe_disposition() {
    IGNORED_PIPE.store(is_ignored(Signal::PIPE), Ordering::Relaxed);
}

// SAFETY: the section is a list of functions that the loader calls before `main`; the static is one
// such pointer. The function makes one system call and stores one value: it uses nothing of std that is
// not initialised yet. On systems where the section has another name the command gets the default.
#[used]
#[cfg_attr(
    any(target_os = "linux", target_os = "android", target_os = "freebsd", target_os = "netbsd"),
    unsafe(link_section = ".init_array")
)]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
static BEFORE_MAIN: extern "C" fn() = read_pipe_disposition;

/// The steps of the child between fork and exec.
pub(super) struct Preparation {
    /// The socket of the guardian, which must know the child before the command runs.
    pub(super) guardian: OwnedFd,
    /// The terminal whose foreground the child takes.
    pub(super) terminal: Option<OwnedFd>,
    /// The signal settings of the command.
    pub(super) inherited: Inherited,
    /// The latest start: this process may have been stopped since it acquired the lock.
    pub(super) not_after: Duration,
}

/// Adds the steps to the child, after its process group is set.
pub(super) fn prepare(command: &mut Command, steps: Preparation) {
    let parent = rustix::process::getpid();
    let prepare = move || child_side(&steps, parent);
    // SAFETY: the closure runs in a forked child, where only async-signal-safe functions may be
    // called: it makes plain system calls on values prepared before, and does not allocate, take a
    // lock or panic.
    unsafe { command.pre_exec(prepare) };
}

fn child_side(steps: &Preparation, parent: Pid) -> io::Result<()> {
    // std has cleared the mask. No signal may stop the child between the steps, in particular not
    // the SIGTTOU for a background group that uses the terminal.
    set_mask(&full());
    die_with_parent();
    let own = rustix::process::getpid();
    // From here on the guardian guards the whole group. A dead guardian is replaced later.
    let _ = super::guardian::introduce(steps.guardian.as_fd(), own);
    if let Some(terminal) = &steps.terminal {
        let _ = rustix::termios::tcsetpgrp(terminal, own);
    }
    // The parent may have died before the death signal was set.
    if rustix::process::getppid() != Some(parent) {
        return Err(Errno::SRCH.into());
    }
    reset_handlers();
    let ignored = [
        (steps.inherited.ignores_children, libc::SIGCHLD),
        (steps.inherited.ignores_pipe, libc::SIGPIPE),
    ];
    for (_, signal) in ignored.into_iter().filter(|(ignored, _)| *ignored) {
        // SAFETY: SIG_IGN is valid for these signals and calls no function.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    set_mask(&steps.inherited.mask);
    if super::clock::now() >= steps.not_after {
        return Err(Errno::TIMEDOUT.into());
    }
    Ok(())
}

/// Resets the handlers of `run`, as exec will: a signal for the command that arrives before exec would
/// run a handler of the parent, and be lost.
fn reset_handlers() {
    for signal in 1..=last_signal() {
        if !matches!(disposition(signal), libc::SIG_DFL | libc::SIG_IGN) {
            // SAFETY: SIG_DFL is valid for every signal and calls no function.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

#[cfg(target_os = "linux")]
fn last_signal() -> libc::c_int {
    libc::SIGRTMAX()
}

/// The highest handled number. An invalid number is rejected without effect.
#[cfg(not(target_os = "linux"))]
fn last_signal() -> libc::c_int {
    32
}

#[cfg(target_os = "linux")]
fn die_with_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
}

/// On other systems only the guardian kills the child.
#[cfg(not(target_os = "linux"))]
fn die_with_parent() {}

/// A child that has ended and is not reaped.
pub(super) fn zombie_child() -> Option<Pid> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is valid for the answer. A zeroed siginfo_t is a valid value and has process
    // id 0; an answer is about a child, so that it has a process id.
    let pid = unsafe {
        libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options);
        info.assume_init().si_pid()
    };
    Pid::from_raw(pid)
}

/// The unit of process start times.
#[cfg(target_os = "linux")]
pub(super) fn ticks_per_second() -> f64 {
    // SAFETY: sysconf only returns a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    ticks.max(1) as f64
}

/// Blocks all signals that can be blocked.
pub(super) fn block_all() {
    set_mask(&full());
}

/// Whether the signal is ignored, as under `nohup`.
pub(super) fn is_ignored(signal: Signal) -> bool {
    disposition(signal.as_raw()) == libc::SIG_IGN
}

/// The handler of a signal; the default for an invalid number.
fn disposition(signal: libc::c_int) -> libc::sighandler_t {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is passed, and the pointer is valid for the old one. A zeroed sigaction is
    // valid even if the call fails.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction
}

/// The real-time signals, except the last one, which tokio does not support.
#[cfg(target_os = "linux")]
pub(super) fn real_time() -> Vec<Signal> {
    let numbers = libc::SIGRTMIN()..libc::SIGRTMAX();
    // SAFETY: the C library reserves these numbers as signals for programs.
    numbers.map(|number| unsafe { Signal::from_raw_unchecked(number) }).collect()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn real_time() -> Vec<Signal> {
    Vec::new()
}

/// Consumes a blocked signal if it is pending; returns whether it was.
///
/// For SIGTTOU, which cannot have a handler: a background process with one that uses the terminal gets
/// the signal again and again, and its call never succeeds.
pub(super) fn take_pending(signal: Signal) -> bool {
    let mut pending = empty();
    let mut taken = 0;
    // SAFETY: the sets are initialised and the pointer is valid for the answer. sigwait does not block:
    // the signal is pending, and only this thread consumes it.
    unsafe {
        libc::sigpending(&mut pending);
        libc::sigismember(&pending, signal.as_raw()) == 1
            && libc::sigwait(&set_of(&[signal]), &mut taken) == 0
    }
}

/// Sends a signal to this process group with its default action.
///
/// For a signal that stops the group, returns when the group continues; at once if the group is
/// orphaned, which the kernel does not stop.
pub(super) fn apply_default(signal: Signal) {
    with_default(signal, || {
        // The main thread, which calls this, takes the signal before the call returns.
        let _ = kill_current_process_group(signal);
    });
}

/// Ends this process by the signal, so that its parent sees it in the status.
pub(super) fn die_of(signal: Signal) {
    // No second core dump beside the child's.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    with_default(signal, || {
        let _ = kill_process(rustix::process::getpid(), signal);
    });
}

fn with_default(signal: Signal, action: impl FnOnce()) {
    let mut default = MaybeUninit::<libc::sigaction>::zeroed();
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a zeroed action is SIG_DFL without flags and with an empty mask; both pointers are
    // valid.
    let replaced =
        unsafe { libc::sigaction(signal.as_raw(), default.as_mut_ptr(), before.as_mut_ptr()) };
    let mask = change_mask(libc::SIG_UNBLOCK, &set_of(&[signal]));
    action();
    set_mask(&mask);
    if replaced == 0 {
        // SAFETY: the successful call has filled `before` with a valid action.
        unsafe { libc::sigaction(signal.as_raw(), before.as_ptr(), ptr::null_mut()) };
    }
}

fn set_mask(mask: &libc::sigset_t) {
    change_mask(libc::SIG_SETMASK, mask);
}

fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = empty();
    // SAFETY: both sets are initialised, and `how` is a valid operation.
    unsafe { libc::pthread_sigmask(how, set, &mut before) };
    before
}

fn set_of(signals: &[Signal]) -> libc::sigset_t {
    let mut set = empty();
    for signal in signals {
        // SAFETY: the set is initialised, and the number is valid.
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
