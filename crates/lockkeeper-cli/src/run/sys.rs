//! What the kernel offers and no safe crate does: the steps between fork and exec, and the
//! dispositions of signals. The only module with `unsafe`.

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

/// What whoever started this process decided about signals: the command's, too.
#[derive(Clone, Copy)]
pub(super) struct Inherited {
    mask: libc::sigset_t,
    ignores_children: bool,
    ignores_pipe: bool,
}

impl Inherited {
    /// Takes note of it and makes it right for this process: it must hear of its children, and not
    /// be stopped for using the terminal from the background, which it does when it takes the
    /// foreground back.
    pub(super) fn take() -> Self {
        let mask = change_mask(libc::SIG_SETMASK, &set_of(&[Signal::TTOU]));
        let ignores_pipe = IGNORED_PIPE.load(Ordering::Relaxed);
        Self { mask, ignores_children: is_ignored(Signal::CHILD), ignores_pipe }
    }
}

/// Whether SIGPIPE was ignored when this process began, as systemd has it for all that it starts. Before
/// `main` std has it ignored in any case, and no longer knows what was before.
static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);

extern "C" fn look_at_pipe() {
    IGNORED_PIPE.store(is_ignored(Signal::PIPE), Ordering::Relaxed);
}

// SAFETY: the section is a list of functions that the loader calls before `main`; the static is such a
// pointer and nothing else. The function makes one system call and stores one value: it needs nothing
// of std that is not there yet. Where the section has another name the command gets the default.
#[used]
#[cfg_attr(
    any(target_os = "linux", target_os = "android", target_os = "freebsd", target_os = "netbsd"),
    unsafe(link_section = ".init_array")
)]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
static BEFORE_MAIN: extern "C" fn() = look_at_pipe;

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
    forget_handlers();
    let ignored = [
        (steps.inherited.ignores_children, libc::SIGCHLD),
        (steps.inherited.ignores_pipe, libc::SIGPIPE),
    ];
    for (_, signal) in ignored.into_iter().filter(|(ignored, _)| *ignored) {
        // SAFETY: the signal may be ignored, and nothing is called when it comes.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    set_mask(&steps.inherited.mask);
    if super::clock::now() >= steps.not_after {
        return Err(Errno::TIMEDOUT.into());
    }
    Ok(())
}

/// Undoes what `run` has set up, as exec will: a signal that has come for the command in the meantime would
/// be taken for one of its parent's, and lost.
fn forget_handlers() {
    for signal in 1..=last_signal() {
        if !matches!(disposition(signal), libc::SIG_DFL | libc::SIG_IGN) {
            // SAFETY: the default is what every signal may have, and nothing of this process is called.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

#[cfg(target_os = "linux")]
fn last_signal() -> libc::c_int {
    libc::SIGRTMAX()
}

/// The last that is listened for; a number that is no signal is refused, which does no harm.
#[cfg(not(target_os = "linux"))]
fn last_signal() -> libc::c_int {
    32
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

/// In what the kernel counts the age of processes.
#[cfg(target_os = "linux")]
pub(super) fn ticks_per_second() -> f64 {
    // SAFETY: it asks for a number and changes nothing.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    ticks.max(1) as f64
}

/// Blocks every signal that can be.
pub(super) fn block_all() {
    set_mask(&full());
}

/// Whether whoever started this process had the signal ignored, as `nohup` does.
pub(super) fn is_ignored(signal: Signal) -> bool {
    disposition(signal.as_raw()) == libc::SIG_IGN
}

/// What is called when the signal comes; the default for what is no signal.
fn disposition(signal: libc::c_int) -> libc::sighandler_t {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is given, and there is room for the old one; zeroed, it is a valid value
    // even if the call fails.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction
}

/// The signals without a name, which mean what two programs have agreed on. All but the last one, for
/// which tokio has no room.
#[cfg(target_os = "linux")]
pub(super) fn real_time() -> Vec<Signal> {
    let numbers = libc::SIGRTMIN()..libc::SIGRTMAX();
    // SAFETY: the C library says that these are signals, and that it does not use them itself.
    numbers.map(|number| unsafe { Signal::from_raw_unchecked(number) }).collect()
}

/// Elsewhere there are none, or nobody uses them.
#[cfg(not(target_os = "linux"))]
pub(super) fn real_time() -> Vec<Signal> {
    Vec::new()
}

/// Takes a signal that is blocked and has come; false if it has not.
///
/// That is how SIGTTOU is heard of. It cannot be listened for: who has a handler for it and uses the
/// terminal from the background is sent it again and again, instead of being let through.
pub(super) fn take_pending(signal: Signal) -> bool {
    let mut pending = empty();
    let mut taken = 0;
    // SAFETY: the sets are initialised and there is room for the answer. It does not wait: it is called
    // for a signal that has come, and that no thread but this one takes.
    unsafe {
        libc::sigpending(&mut pending);
        libc::sigismember(&pending, signal.as_raw()) == 1
            && libc::sigwait(&set_of(&[signal]), &mut taken) == 0
    }
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
