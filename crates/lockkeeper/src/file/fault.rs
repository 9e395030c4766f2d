//! What an error of SQLite's means.

use rusqlite::ErrorCode;
use rusqlite::ffi::SQLITE_IOERR_SHORT_READ;

use super::path::Location;
use crate::backend::Fault;

/// Converts an error of SQLite. A failed request has changed nothing: its transaction was rolled
/// back.
pub(super) fn of(error: rusqlite::Error, location: &Location) -> Fault {
    meaning(&error, location).caused_by(error)
}

fn meaning(error: &rusqlite::Error, location: &Location) -> Fault {
    let path = location.path().display();
    let server = |why| Fault::Server { detail: format!("{path}: {error}{why}").into() };
    let refused = |why| Fault::refused(format!("{path}: {error}{why}"));
    let rusqlite::Error::SqliteFailure(failure, _) = error else { return server("") };
    match failure.code {
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::OperationInterrupted => {
            let why = "another process is writing to it and does not come to an end";
            Fault::silent(format!("{path}: {why}"))
        }
        ErrorCode::DiskFull => refused(": the disk is full"),
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => location.denied("cannot be written"),
        ErrorCode::CannotOpen if no_descriptors() => {
            refused(": this process has too many files open")
        }
        ErrorCode::CannotOpen | ErrorCode::AuthorizationForStatementDenied => {
            location.denied("cannot be opened")
        }
        // The index belongs to another file that a process still has open.
        ErrorCode::SystemIoFailure if failure.extended_code == SQLITE_IOERR_SHORT_READ => {
            let why = "was deleted or replaced, and a process that has the old one open has not let go of \
                       it yet: they do within seconds, unless they are stopped";
            Fault::refused(format!("{path} {why}"))
        }
        // A quota or a loose cable: may be temporary.
        ErrorCode::SystemIoFailure => refused(""),
        ErrorCode::NotADatabase => {
            Fault::invalid(format!("{path} is no file of locks: name another path"))
        }
        ErrorCode::DatabaseCorrupt => {
            server("; stop all that use it and delete it: locks will be free then")
        }
        _ => server(""),
    }
}

/// Whether another process holds a conflicting lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// Whether the process has no file descriptor left: SQLite does not report that.
fn no_descriptors() -> bool {
    use rustix::fs::{Mode, OFlags, open};
    let opened = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    matches!(opened, Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

/// Makes a fault temporary, for a file that was usable before and may be again.
pub(super) fn for_now(fault: Fault) -> Fault {
    match fault {
        Fault::Denied { detail } | Fault::Invalid { detail } | Fault::Server { detail } => {
            Fault::Refused { detail }
        }
        passing => passing,
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;
    use crate::error::{Error, Phase};

    #[test]
    fn errors_mean_what_a_caller_can_do_about_them() {
        let location = Location::find(&std::env::temp_dir().join("locks.db"), false).unwrap();
        let fault = |code| {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            let fault = of(error, &location);
            assert!(format!("{fault:?}").contains("locks.db"), "{fault:?} names the file");
            fault
        };
        for busy in [ffi::SQLITE_BUSY, ffi::SQLITE_BUSY_RECOVERY, ffi::SQLITE_PROTOCOL] {
            assert!(matches!(fault(busy), Fault::Unreachable { maybe_ran: false, .. }), "{busy}");
        }
        assert!(matches!(fault(ffi::SQLITE_FULL), Fault::Refused { .. }));
        let denied = [ffi::SQLITE_READONLY, ffi::SQLITE_PERM, ffi::SQLITE_CANTOPEN];
        for code in denied.into_iter().chain([ffi::SQLITE_READONLY_DIRECTORY]) {
            assert!(matches!(fault(code), Fault::Denied { .. }), "{code}");
        }
        assert!(matches!(fault(ffi::SQLITE_NOTADB), Fault::Invalid { .. }));
        for code in [ffi::SQLITE_IOERR, ffi::SQLITE_IOERR_WRITE, SQLITE_IOERR_SHORT_READ] {
            assert!(matches!(fault(code), Fault::Refused { .. }), "{code}");
        }
        assert!(matches!(fault(ffi::SQLITE_CORRUPT), Fault::Server { .. }));
        let error = Error::from_fault(fault(ffi::SQLITE_FULL), None, Phase::Acquire, None);
        let source = std::error::Error::source(&error).expect("it has a source");
        let source = source.downcast_ref::<rusqlite::Error>().expect("an error of SQLite");
        assert_eq!(source.sqlite_error_code(), Some(ErrorCode::DiskFull));
    }
}
