//! Whether anything of a process group is left.
//!
//! The kernel counts its dead, too, until their parent reaps them. That is init, once the command has
//! ended, and in many a container it never does; to wait for them would be to hold the lock for nobody.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};

/// Whether any process of the group lives. Who cannot be seen counts as alive. `witness` is one who was
/// seen the last time: all processes of the host are looked at only when that one is gone.
pub(super) fn lives(group: Pid, witness: &mut Option<Pid>) -> bool {
    if test_kill_process_group(group) == Err(Errno::SRCH) {
        return false;
    }
    if witness.is_some_and(|pid| look(pid, group) == Some(Member::Alive)) {
        return true;
    }
    let mut dead = false;
    for pid in processes() {
        match look(pid, group) {
            Some(Member::Alive) => {
                *witness = Some(pid);
                return true;
            }
            Some(Member::Dead) => dead = true,
            None => {}
        }
    }
    // The kernel says that there is somebody: if it is not the dead, then one who is hidden.
    !dead
}

#[derive(Debug, Eq, PartialEq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "nobody can be looked at there"))]
enum Member {
    Alive,
    Dead,
}

/// All that can be seen.
#[cfg(target_os = "linux")]
pub(super) fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// What the process is to the group; nothing, if it is none of it.
#[cfg(target_os = "linux")]
fn look(pid: Pid, group: Pid) -> Option<Member> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let text = std::fs::read(path).ok()?;
    member(&String::from_utf8_lossy(&text), group)
}

/// Elsewhere the dead are not told apart.
#[cfg(not(target_os = "linux"))]
fn processes() -> impl Iterator<Item = Pid> {
    std::iter::empty()
}

#[cfg(not(target_os = "linux"))]
fn look(_: Pid, _: Pid) -> Option<Member> {
    None
}

/// From `PID (NAME) STATE PARENT GROUP … THREADS …`, where the name may be anything.
#[cfg(target_os = "linux")]
fn member(stat: &str, group: Pid) -> Option<Member> {
    let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
    if fields.get(2)?.parse() != Ok(group.as_raw_nonzero().get()) {
        return None;
    }
    // The state is that of the first thread; others may go on without it.
    let threads = fields.get(17).and_then(|threads| threads.parse().ok()).unwrap_or(2);
    Some(if matches!(fields[0], "Z" | "X") && threads < 2 { Member::Dead } else { Member::Alive })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn members_are_told_from_others_and_the_dead_from_the_living() {
        let group = Pid::from_raw(7).unwrap();
        let stat = |name: &str, state: char, its: u32, threads: u32| {
            format!("9 ({name}) {state} 1 {its} 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 5 0")
        };
        assert_eq!(member(&stat("a) Z 1", 'S', 7, 1), group), Some(Member::Alive));
        assert_eq!(member(&stat("sh", 'Z', 7, 1), group), Some(Member::Dead));
        assert_eq!(member(&stat("sh", 'Z', 7, 2), group), Some(Member::Alive));
        assert_eq!(member(&stat("sh", 'S', 8, 1), group), None);
        assert_eq!(member("", group), None);
    }
}
