//! Identifies the start (boot) of the machine: leases count from it, and expire with it.
//!
//! The kernel has an id for it. Docker and Podman mount the kernel's files, so processes in their containers
//! see that id. Some containers (of LXC or systemd-nspawn) see an id of their own, by a file mounted over
//! the kernel's: leases of the host would seem expired there, and theirs on the host. Such a container is
//! refused, as is a system that does not identify its start.

use std::sync::OnceLock;

use crate::backend::Fault;

/// Returns the id of this boot.
pub(super) fn id() -> Result<&'static str, Fault> {
    static ID: OnceLock<String> = OnceLock::new();
    if let Some(id) = ID.get() {
        return Ok(id);
    }
    let read = read().and_then(|id| match id.trim() {
        "" => Err("it is empty".to_owned()),
        id => Ok(id.to_owned()),
    });
    // A failure is not kept: it may be temporary.
    let id = read.map_err(|why| {
        let needs = "a file store must know which boot of the machine a lease counts from";
        Fault::invalid(format!("{needs}: {why}"))
    })?;
    Ok(ID.get_or_init(|| id))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn read() -> Result<String, String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let failed = |error| format!("{path}: {error}");
    if !is_of_kernel(path).map_err(failed)? {
        return Err(format!(
            "{path} is not the kernel's, but of this container: unmount it, so that all processes of the \
             host see the same id, or use a Redis server"
        ));
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// Whether a file below `/proc` is the kernel's, and not another one that is mounted over it.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_of_kernel(path: &str) -> std::io::Result<bool> {
    Ok(rustix::fs::statfs(path)?.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

/// Runs a program, once per process: the system call would need unsafe code.
#[cfg(target_os = "macos")]
fn read() -> Result<String, String> {
    let asked = std::process::Command::new("/usr/sbin/sysctl")
        .args(["-n", "kern.bootsessionuuid"])
        .output()
        .map_err(|error| format!("/usr/sbin/sysctl: {error}"))?;
    Ok(String::from_utf8_lossy(&asked.stdout).into_owned())
}

/// The boot time by the wall clock is not enough: it changes when the clock is set.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
fn read() -> Result<String, String> {
    Err("this system has no boot id".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_of_another_file_system_is_not_the_kernels() {
        assert!(is_of_kernel("/proc/uptime").unwrap());
        let other = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_of_kernel(other.path().to_str().unwrap()).unwrap());
    }
}
