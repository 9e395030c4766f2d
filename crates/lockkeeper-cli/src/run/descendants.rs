//! Processes below the command that are not in its group: the jobs of a shell with job control have a
//! group each, and would outlive the lease.
//!
//! They are found by their parents. A daemon has none of these any more: it has left the command for
//! good, and is left alone. Each is held by a handle, because its parent may end before it does, and its
//! number may be a stranger's by the time it is signalled again.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};

#[cfg(target_os = "linux")]
use super::clock;

/// Which of the processes below a command are wanted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Depth {
    /// Those that signals for its group do not reach.
    OtherGroups,
    /// All: one of its group may leave that later.
    All,
}

/// How often it is looked for processes that others have begun while they were looked for.
#[cfg(target_os = "linux")]
const ROUNDS: usize = 40;

/// A process that has no environment, and is older, is one of the kernel's.
#[cfg(target_os = "linux")]
const YOUNG: Duration = Duration::from_secs(2);

/// How long a process takes to become another program, more or less.
#[cfg(target_os = "linux")]
const NAP: Duration = Duration::from_millis(5);

/// Those that were found and have not ended.
#[derive(Default)]
pub(super) struct Descendants {
    handles: HashMap<Pid, OwnedFd>,
}

impl Descendants {
    /// Looks for more of them. They must be looked for before the command is killed.
    pub(super) fn look(&mut self, command: Pid, depth: Depth) {
        self.handles.retain(|_, handle| is_alive(handle));
        let mut parents = vec![command];
        while let Some(parent) = parents.pop() {
            for child in children(parent) {
                parents.push(child);
                let known = self.handles.contains_key(&child);
                let wanted =
                    depth == Depth::All || rustix::process::getpgid(Some(child)) != Ok(command);
                if !known && wanted {
                    // If it is still there, it is the one that was seen, and no other of its number.
                    let handle = handle(child).filter(|_| children(parent).contains(&child));
                    self.handles.extend(handle.map(|handle| (child, handle)));
                }
            }
        }
    }

    /// Those that have ended, and those of another user, do not hear it.
    pub(super) fn signal(&self, signal: Signal) {
        for handle in self.handles.values() {
            send(handle, signal);
        }
    }

    /// Whether it is one of them.
    pub(super) fn contains(&self, process: Pid) -> bool {
        self.handles.contains_key(&process)
    }

    /// Whether any of them is left.
    pub(super) fn lives(&self) -> bool {
        self.handles.values().any(is_alive)
    }
}

/// A handle can be read from when its process has ended.
fn is_alive(handle: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(handle, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())) == Ok(0)
}

#[cfg(target_os = "linux")]
fn children(parent: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", parent.as_raw_nonzero()));
    let lists = tasks.into_iter().flatten().flatten().map(|task| task.path().join("children"));
    let lists = lists.filter_map(|list| std::fs::read_to_string(list).ok());
    let numbers = lists.flat_map(|list| {
        list.split_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<i32>>()
    });
    numbers.filter_map(Pid::from_raw).collect()
}

/// Kills the processes that have begun since then and have `mark` in their environment, wherever they are by
/// now. A daemon that young is one of them.
#[cfg(target_os = "linux")]
pub(super) fn kill_marked(mark: &[u8], since: Duration) {
    for _ in 0..ROUNDS {
        let (mut killed, mut unknown) = (false, false);
        for process in super::group::processes() {
            let Some(handle) = handle(process) else { continue };
            match is_marked(process, mark, since) {
                Some(true) if is_alive(&handle) => {
                    send(&handle, Signal::KILL);
                    killed = true;
                }
                None if is_alive(&handle) => unknown = true,
                _ => {}
            }
        }
        match (killed, unknown) {
            (false, false) => return,
            // It may have begun another before it died.
            (true, _) => {}
            (false, true) => std::thread::sleep(NAP),
        }
    }
}

/// Elsewhere they are not looked for.
#[cfg(not(target_os = "linux"))]
pub(super) fn kill_marked(_: &[u8], _: Duration) {}

/// Nothing, if that cannot be seen at this moment: a process that is becoming another program has no
/// environment. Those of the kernel never have.
#[cfg(target_os = "linux")]
fn is_marked(process: Pid, mark: &[u8], since: Duration) -> Option<bool> {
    let read = |file| std::fs::read(format!("/proc/{}/{file}", process.as_raw_nonzero()));
    let begun = read("stat").ok().and_then(|stat| begun(&String::from_utf8_lossy(&stat)));
    let Some(begun) = begun.filter(|begun| *begun >= since) else { return Some(false) };
    match read("environ") {
        Ok(all) if all.is_empty() => (clock::now() > begun + YOUNG).then_some(false),
        Ok(all) => Some(all.split(|byte| *byte == 0).any(|one| one == mark)),
        // It has ended, or is another user's.
        Err(_) => Some(false),
    }
}

/// When a process began, to the tick and not too early: the 22nd field, in ticks since the boot.
#[cfg(target_os = "linux")]
fn begun(stat: &str) -> Option<Duration> {
    let ticks: u64 = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
    Some(Duration::from_secs_f64((ticks + 1) as f64 / super::sys::ticks_per_second()))
}

#[cfg(target_os = "linux")]
fn handle(process: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(target_os = "linux")]
fn send(handle: &OwnedFd, signal: Signal) {
    let _ = rustix::process::pidfd_send_signal(handle, signal);
}

/// Elsewhere they are not looked for.
#[cfg(not(target_os = "linux"))]
fn children(_: Pid) -> Vec<Pid> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
fn handle(_: Pid) -> Option<OwnedFd> {
    None
}

#[cfg(not(target_os = "linux"))]
fn send(_: &OwnedFd, _: Signal) {}
