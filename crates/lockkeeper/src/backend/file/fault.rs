//! What an error of SQLite's means.

use rusqlite::ErrorCode;

use super::place::Place;
use crate::backend::Fault;

/// Nothing of a request that failed is in the file: its transaction was rolled back.
pub(super) fn of(error: &rusqlite::Error, place: &Place) -> Fault {
    let detail = format!("{}: {error}", place.path().display());
    let rusqlite::Error::SqliteFailure(failure, _) = error else {
        return Fault::Server { detail };
    };
    match failure.code {
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::OperationInterrupted => Fault::Unreachable {
            maybe_ran: false,
            detail: format!(
                "{}: another process is writing to it and does not come to an end",
                place.path().display()
            ),
        },
        ErrorCode::DiskFull => Fault::Refused { detail: format!("{detail}: the disk is full") },
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => place.denied("cannot be written"),
        ErrorCode::CannotOpen | ErrorCode::AuthorizationForStatementDenied => {
            place.denied("cannot be opened")
        }
        ErrorCode::NotADatabase => Fault::Invalid {
            detail: format!("{} is no file of locks: name another path", place.path().display()),
        },
        ErrorCode::DatabaseCorrupt => Fault::Server {
            detail: format!(
                "{detail}; stop all that use it and delete it: locks will be free then"
            ),
        },
        _ => Fault::Server { detail },
    }
}
