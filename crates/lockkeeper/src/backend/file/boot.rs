//! Identifies the start (boot) of the machine: leases count from it, and expire with it.
//!
//! The kernel has an id for it. Some containers (of LXC or systemd-nspawn) see an id of their own, by a
//! file mounted over the kernel's, and a lease that is valid for the host must not be expired for them.
//! So all processes use the id that is in the file: that of the process that opened it first since the
//! machine was started. Whether the id is of the current start is decided by the kernel's id where both
//! processes see it, and otherwise by the time of the start by the wall clock, which two starts do not
//! share.
//!
//! Where a system does not identify its start, the store is refused.

use std::path::Path;
use std::sync::OnceLock;

use rusqlite::{Connection, OptionalExtension};

use super::path::mounted_by_itself;
use super::time::signed;
use crate::backend::Fault;

/// How much the boot time by the wall clock may differ for the same boot, in milliseconds: the
/// clock may be set.
const TOLERANCE: u64 = 60_000;

/// How much it may differ before a process that keeps the file open records it again.
pub(super) const NOTED: u64 = TOLERANCE / 4;

/// A boot of the machine, as this process sees it.
#[derive(Clone, Debug)]
pub(super) struct Boot {
    id: String,
    /// Whether the id is that of the kernel.
    genuine: bool,
}

/// The boot that is stored in the file.
struct Stored {
    /// The id that rows are marked with.
    boot: String,
    /// The kernel's id, once a process that sees it has opened the file.
    kernel: Option<String>,
    /// When the machine was booted, by the wall clock.
    epoch: u64,
}

impl Boot {
    pub(super) fn read() -> Result<&'static Self, Fault> {
        static BOOT: OnceLock<Boot> = OnceLock::new();
        if let Some(boot) = BOOT.get() {
            return Ok(boot);
        }
        let read = read_boot_id().and_then(|(id, genuine)| match id.trim() {
            "" => Err("it is empty".to_owned()),
            id => Ok(Self { id: id.to_owned(), genuine }),
        });
        // A failure is not kept: it may be temporary.
        let boot = read.map_err(|why| {
            let needs = "a file store must know which start of the machine a lease counts from";
            Fault::Invalid { detail: format!("{needs}: {why}").into() }
        })?;
        Ok(BOOT.get_or_init(|| boot))
    }

    /// Returns the boot id that all users of this file share. `epoch` is the boot time by the wall
    /// clock.
    pub(super) fn agree(&self, connection: &Connection, epoch: u64) -> rusqlite::Result<String> {
        let stored = stored(connection)?;
        if let Some(known) = stored.filter(|stored| self.is_settled(stored, epoch)) {
            return Ok(known.boot);
        }
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let settled = stored_anew(connection, self, epoch);
        connection.execute_batch(if settled.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        settled
    }

    /// Like `agree` for a process that may only read: if the file is of an earlier boot, all of its
    /// leases have expired.
    pub(super) fn agreed(&self, connection: &Connection, epoch: u64) -> rusqlite::Result<String> {
        let known = stored(connection)?.filter(|stored| self.is(stored, epoch));
        Ok(known.map_or_else(|| self.id.clone(), |known| known.boot))
    }

    /// Records that the wall clock was set, so that no process takes this for another boot.
    pub(super) fn note(connection: &Connection, boot: &str, epoch: u64) -> rusqlite::Result<()> {
        let mut update =
            connection.prepare_cached("UPDATE start SET epoch = ?2 WHERE boot = ?1")?;
        update.execute((boot, signed(epoch))).map(drop)
    }

    /// Whether the file is of this boot.
    fn is(&self, stored: &Stored, epoch: u64) -> bool {
        match &stored.kernel {
            _ if stored.boot == self.id => true,
            Some(kernel) if self.genuine => *kernel == self.id,
            _ => stored.epoch.abs_diff(epoch) <= TOLERANCE,
        }
    }

    /// Whether there is nothing to record.
    fn is_settled(&self, stored: &Stored, epoch: u64) -> bool {
        self.is(stored, epoch)
            && (stored.kernel.is_some() || !self.genuine)
            && stored.epoch.abs_diff(epoch) <= TOLERANCE / 2
    }
}

fn stored(connection: &Connection) -> rusqlite::Result<Option<Stored>> {
    let mut select = connection.prepare_cached("SELECT boot, kernel, epoch FROM start")?;
    let read = |row: &rusqlite::Row<'_>| {
        let epoch = u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0);
        Ok(Stored { boot: row.get(0)?, kernel: row.get(1)?, epoch })
    };
    select.query_row([], read).optional()
}

fn stored_anew(connection: &Connection, seen: &Boot, epoch: u64) -> rusqlite::Result<String> {
    let known = stored(connection)?.filter(|stored| seen.is(stored, epoch));
    let (boot, kernel) = known.map_or((seen.id.clone(), None), |known| (known.boot, known.kernel));
    let kernel = kernel.or_else(|| seen.genuine.then(|| seen.id.clone()));
    connection.execute("DELETE FROM start", [])?;
    connection.execute("INSERT INTO start VALUES (?1, ?2, ?3)", (&boot, kernel, signed(epoch)))?;
    Ok(boot)
}

/// Returns the id, and whether it is that of the kernel.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn read_boot_id() -> Result<(String, bool), String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    // If that is unknown, the wall clock decides, as in a container.
    Ok((id, mounted_by_itself(Path::new(path)) == Some(false)))
}

/// Runs a program, once per process: the system call would need unsafe code.
#[cfg(target_os = "macos")]
fn read_boot_id() -> Result<(String, bool), String> {
    let asked = std::process::Command::new("/usr/sbin/sysctl")
        .args(["-n", "kern.bootsessionuuid"])
        .output()
        .map_err(|error| format!("/usr/sbin/sysctl: {error}"))?;
    Ok((String::from_utf8_lossy(&asked.stdout).into_owned(), true))
}

/// The boot time by the wall clock is not enough: it changes when the clock is set.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
fn read_boot_id() -> Result<(String, bool), String> {
    Err("this system does not tell".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(super::super::db::SECOND).unwrap();
        connection
    }

    fn host(id: &str) -> Boot {
        Boot { id: id.to_owned(), genuine: true }
    }

    fn container(id: &str) -> Boot {
        Boot { id: id.to_owned(), genuine: false }
    }

    const STARTED: u64 = 1_700_000_000_000;
    const HOUR: u64 = 3_600_000;

    #[test]
    fn the_kernels_id_decides_whatever_the_clock_says() {
        let file = file();
        assert_eq!(host("a").agree(&file, STARTED).unwrap(), "a");
        assert_eq!(host("a").agree(&file, STARTED + HOUR).unwrap(), "a", "the clock was set");
        assert_eq!(host("b").agree(&file, STARTED + HOUR).unwrap(), "b", "a clock without battery");
    }

    #[test]
    fn a_container_goes_by_what_the_host_goes_by() {
        let file = file();
        assert_eq!(host("a").agree(&file, STARTED).unwrap(), "a");
        assert_eq!(container("x").agree(&file, STARTED + 5).unwrap(), "a");
        assert_eq!(container("y").agree(&file, STARTED - 5).unwrap(), "a");
        // The clock is set, and a process of the host has seen it.
        assert_eq!(host("a").agree(&file, STARTED + HOUR).unwrap(), "a");
        assert_eq!(container("z").agree(&file, STARTED + HOUR).unwrap(), "a");
        // The same, seen by a process that kept the file open.
        Boot::note(&file, "a", STARTED + 2 * HOUR).unwrap();
        assert_eq!(container("z").agree(&file, STARTED + 2 * HOUR).unwrap(), "a");
    }

    #[test]
    fn the_host_goes_by_what_a_container_goes_by_that_was_first() {
        let file = file();
        assert_eq!(container("x").agree(&file, STARTED).unwrap(), "x");
        assert_eq!(container("y").agree(&file, STARTED).unwrap(), "x");
        assert_eq!(host("a").agree(&file, STARTED).unwrap(), "x");
        assert_eq!(host("a").agree(&file, STARTED + HOUR).unwrap(), "x", "known by now");
        assert_eq!(host("b").agree(&file, STARTED + HOUR).unwrap(), "b");
    }

    #[test]
    fn after_a_restart_a_container_begins_anew() {
        let file = file();
        assert_eq!(container("x").agree(&file, STARTED).unwrap(), "x");
        assert_eq!(container("y").agree(&file, STARTED + HOUR).unwrap(), "y");
        assert_eq!(host("a").agree(&file, STARTED + 2 * HOUR).unwrap(), "a");
        assert_eq!(container("z").agree(&file, STARTED + 3 * HOUR).unwrap(), "z");
    }

    #[test]
    fn this_machine_tells() {
        assert!(!Boot::read().unwrap().id.is_empty());
    }
}
