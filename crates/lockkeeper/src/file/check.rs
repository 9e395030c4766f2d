//! What of a file endangers locks.

use super::db::{Db, LOG_LONG};
use crate::backend::{Fault, Finding};

/// With less free space than this, a commit may soon fail.
const ROOM: u64 = 16 << 20;

impl Db {
    pub(super) fn check(&mut self) -> Result<Vec<Finding>, Fault> {
        let path = self.location.path().to_owned();
        let shown = path.display();
        let means = "for the processes of this host; what a process has taken outlives its death, \
                     and ends with the machine's";
        let mut findings = vec![Finding::fine("store", format!("{shown}, {means}"))];
        let sound: String = self.read(|db, _| {
            Ok(db.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?)
        })?;
        findings.push(if sound == "ok" {
            Finding::fine("file", "it is sound")
        } else {
            let detail = format!("{shown} is damaged: {sound}");
            Finding::danger("file", detail, "stop all programs that use it, and remove it")
        });
        findings.push(room(&path));
        findings.extend(log(self.location.wal()));
        Ok(findings)
    }
}

/// Returns a finding if the log has become long.
fn log(path: &std::path::Path) -> Option<Finding> {
    let length = std::fs::metadata(path).ok()?.len();
    (length >> 12 > LOG_LONG as u64).then(|| {
        let detail = format!(
            "{} has {} MiB: it grows for as long as a process has a transaction open that reads the file",
            path.display(),
            length >> 20
        );
        Finding::note("log", detail, "end that process: `fuser -v` on the file lists those that have it open")
    })
}

fn room(path: &std::path::Path) -> Finding {
    let folder = path.parent().unwrap_or(path);
    match rustix::fs::statvfs(folder) {
        Ok(system) => {
            let free = system.f_bavail.saturating_mul(system.f_frsize);
            let detail = format!("{} MiB are free on the disk", free >> 20);
            if free < ROOM {
                let means = ": on a full one no lock can be acquired, renewed or released";
                Finding::danger("disk", detail + means, "make room, or use another disk")
            } else {
                Finding::fine("disk", detail)
            }
        }
        Err(error) => Finding::note("disk", format!("cannot be looked at: {error}"), ""),
    }
}
