//! Descendants of the command outside of its process group: each job of a shell with job control has
//! its own group, and would outlive the lease.
//!
//! They are found by their parents. A daemon has left its parents on purpose and is not stopped. Each
//! process is kept as a handle (pidfd), because its number may be reused after it has ended.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};

#[cfg(target_os = "linux")]
use super::clock;

/// Which descendants to find.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Depth {
    /// Those outside of the command's group.
    OtherGroups,
    /// All: a member of the group may leave it later.
    All,
}

/// The maximum number of scans for processes that were started during a scan.
#[cfg(target_os = "linux")]
const ROUNDS: usize = 40;

/// An older process without an environment is a kernel thread.
#[cfg(target_os = "linux")]
const YOUNG: Duration = Duration::from_secs(2);

/// The approximate duration of an exec.
#[cfg(target_os = "linux")]
const EXEC_TIME: Duration = Duration::from_millis(5);

/// The descendants that were found and have not ended.
#[derive(Default)]
pub(super) struct Descendants {
    handles: HashMap<Pid, OwnedFd>,
}

impl Descendants {
    /// Adds further descendants. Must be called before the command is killed.
    pub(super) fn find(&mut self, command: Pid, depth: Depth) {
        self.handles.retain(|_, handle| is_alive(handle));
        let mut parents = vec![command];
        while let Some(parent) = parents.pop() {
            for child in children(parent) {
                parents.push(child);
                let known = self.handles.contains_key(&child);
                let wanted =
                    depth == Depth::All || rustix::process::getpgid(Some(child)) != Ok(command);
                if !known && wanted {
                    // If it is still a child, the handle is not of another process with its number.
                    let handle = handle(child).filter(|_| children(parent).contains(&child));
                    self.handles.extend(handle.map(|handle| (child, handle)));
                }
            }
        }
    }

    /// Signals all of them, except those of another user.
    pub(super) fn signal(&self, signal: Signal) {
        for handle in self.handles.values() {
            send(handle, signal);
        }
    }

    pub(super) fn contains(&self, process: Pid) -> bool {
        self.handles.contains_key(&process)
    }

    pub(super) fn any_alive(&self) -> bool {
        self.handles.values().any(is_alive)
    }
}

/// A pidfd becomes readable when its process ends.
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

/// Kills all processes that started after `since` with `mark` in their environment, also daemons.
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
            // A killed process may have started another one before.
            (true, _) => {}
            (false, true) => std::thread::sleep(EXEC_TIME),
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn kill_marked(_: &[u8], _: Duration) {}

/// Whether the process is marked; `None` if unknown: during an exec a process has no environment.
#[cfg(target_os = "linux")]
fn is_marked(process: Pid, mark: &[u8], since: Duration) -> Option<bool> {
    let read = |file| std::fs::read(format!("/proc/{}/{file}", process.as_raw_nonzero()));
    let started = read("stat").ok().and_then(|stat| started(&String::from_utf8_lossy(&stat)));
    let Some(started) = started.filter(|started| *started >= since) else { return Some(false) };
    match read("environ") {
        Ok(all) if all.is_empty() => (clock::now() > started + YOUNG).then_some(false),
        Ok(all) => Some(all.split(|byte| *byte == 0).any(|one| one == mark)),
        // It has ended, or belongs to another user.
        Err(_) => Some(false),
    }
}

/// The start time of a process since boot, rounded up: the 22nd field, in ticks.
#[cfg(target_os = "linux")]
fn started(stat: &str) -> Option<Duration> {
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

/// Descendants are found on Linux only.
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
