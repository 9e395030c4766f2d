//! Whether a process group has live members.
//!
//! The kernel also counts zombies. After the command has ended, init has to reap them, which it never
//! does in many containers, so `run` must not wait for them.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};

/// Whether any process of the group is alive. A process that cannot be seen counts as alive. `alive` is
/// the member that was seen last: all processes of the host are scanned only after it has ended.
pub(super) fn is_alive(group: Pid, alive: &mut Option<Pid>) -> bool {
    if test_kill_process_group(group) == Err(Errno::SRCH) {
        return false;
    }
    if alive.is_some_and(|pid| inspect(pid, group) == Some(Member::Alive)) {
        return true;
    }
    let mut zombies = false;
    for pid in processes() {
        match inspect(pid, group) {
            Some(Member::Alive) => {
                *alive = Some(pid);
                return true;
            }
            Some(Member::Zombie) => zombies = true,
            None => {}
        }
    }
    // The kernel reports a member: without a zombie, it is a hidden process.
    !zombies
}

#[derive(Debug, Eq, PartialEq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "used on Linux only"))]
enum Member {
    Alive,
    Zombie,
}

/// All visible processes.
#[cfg(target_os = "linux")]
pub(super) fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// The state of a member of the group; `None` for other processes.
#[cfg(target_os = "linux")]
fn inspect(pid: Pid, group: Pid) -> Option<Member> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let text = std::fs::read(path).ok()?;
    member(&String::from_utf8_lossy(&text), group)
}

/// Zombies are recognised on Linux only.
#[cfg(not(target_os = "linux"))]
fn processes() -> impl Iterator<Item = Pid> {
    std::iter::empty()
}

#[cfg(not(target_os = "linux"))]
fn inspect(_: Pid, _: Pid) -> Option<Member> {
    None
}

/// Parses `PID (NAME) STATE PARENT GROUP … THREADS …`; the name may contain any character.
#[cfg(target_os = "linux")]
fn member(stat: &str, group: Pid) -> Option<Member> {
    let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
    if fields.get(2)?.parse() != Ok(group.as_raw_nonzero().get()) {
        return None;
    }
    // The state is that of the main thread; other threads may still run.
    let threads = fields.get(17).and_then(|threads| threads.parse().ok()).unwrap_or(2);
    Some(if matches!(fields[0], "Z" | "X") && threads < 2 { Member::Zombie } else { Member::Alive })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn members_and_zombies_are_recognised() {
        let group = Pid::from_raw(7).unwrap();
        let stat = |name: &str, state: char, its: u32, threads: u32| {
            format!("9 ({name}) {state} 1 {its} 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 5 0")
        };
        assert_eq!(member(&stat("a) Z 1", 'S', 7, 1), group), Some(Member::Alive));
        assert_eq!(member(&stat("sh", 'Z', 7, 1), group), Some(Member::Zombie));
        assert_eq!(member(&stat("sh", 'Z', 7, 2), group), Some(Member::Alive));
        assert_eq!(member(&stat("sh", 'S', 8, 1), group), None);
        assert_eq!(member("", group), None);
    }
}
