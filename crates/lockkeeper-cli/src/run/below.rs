//! Processes below the command that are not in its group: the jobs of a shell with job control have a
//! group each, and would outlive the lease.
//!
//! They are found by their parents. A daemon has none of these any more: it has left the command for
//! good, and is left alone. Each is held by a handle, because its parent may end before it does, and its
//! number may be a stranger's by the time it is signalled again.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};

/// Those that were found and have not ended.
#[derive(Default)]
pub(super) struct Below {
    handles: HashMap<Pid, OwnedFd>,
}

impl Below {
    /// Looks for more of them. They must be looked for before the command is killed.
    pub(super) fn look(&mut self, command: Pid) {
        self.handles.retain(|_, handle| is_alive(handle));
        let mut parents = vec![command];
        while let Some(parent) = parents.pop() {
            for child in children(parent) {
                parents.push(child);
                let known = self.handles.contains_key(&child);
                if !known && rustix::process::getpgid(Some(child)) != Ok(command) {
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
