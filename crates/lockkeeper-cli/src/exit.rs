//! Exit codes and failures.
//!
//! The codes are those of `sysexits.h` where one fits, so that a script can distinguish a busy lock
//! from an error without parsing the message.

use std::fmt;
use std::io::ErrorKind;
use std::process::ExitCode;

use lockkeeper::Error;

/// An exit code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Code(pub(crate) u8);

impl Code {
    pub(crate) const OK: Code = Code(0);
    /// `inspect --quiet`: the lock is free.
    pub(crate) const FREE: Code = Code(1);
    /// `doctor`: locks are at risk.
    pub(crate) const DANGER: Code = Code(1);
    /// The command line, the configuration or the request is invalid.
    pub(crate) const USAGE: Code = Code(64);
    /// The store is unreachable.
    pub(crate) const UNREACHABLE: Code = Code(69);
    /// Any other error.
    pub(crate) const INTERNAL: Code = Code(70);
    /// Another holder keeps the lock.
    pub(crate) const BUSY: Code = Code(75);
    /// The lock was lost while the command ran.
    pub(crate) const LOST: Code = Code(76);
    /// The store denies permission.
    pub(crate) const DENIED: Code = Code(77);
    /// The command was stopped by `--max-hold`, as with timeout(1).
    pub(crate) const MAX_HOLD: Code = Code(124);
    /// The command cannot be executed, as in a shell.
    pub(crate) const NOT_EXECUTABLE: Code = Code(126);
    /// The command was not found, as in a shell.
    pub(crate) const NOT_FOUND: Code = Code(127);

    /// Ended by a signal, as in a shell.
    pub(crate) fn signalled(signal: i32) -> Self {
        Code(128u8.saturating_add(signal as u8))
    }

    /// The code for a file that cannot be used.
    pub(crate) fn of_io(error: &std::io::Error) -> Self {
        use rustix::io::Errno;
        match error.kind() {
            // The file itself is fine.
            _ if matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)) => {
                Self::INTERNAL
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::DENIED,
            _ => Self::USAGE,
        }
    }

    /// The code for an error of the library.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Invalid { .. } | Error::WrongKind { .. } => Self::USAGE,
            // Without an answer, a script has to react as to an unreachable store.
            Error::Unreachable { .. }
            | Error::Refused { .. }
            | Error::Unconfirmed { .. }
            | Error::Unacknowledged { .. } => Self::UNREACHABLE,
            Error::Denied { .. } => Self::DENIED,
            Error::NotHeld { .. } | Error::Lost { .. } => Self::LOST,
            _ => Self::INTERNAL,
        }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        code.0.into()
    }
}

/// Why a subcommand failed: a code for scripts, a message for people.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// An error that the user can correct on the command line or in the configuration.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::USAGE, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::INTERNAL, message)
    }

    /// Prints the message and returns the code.
    pub(crate) fn report(&self) -> ExitCode {
        say(&self.message);
        self.code.into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(Code::of(&error), error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Prints one line on standard error, escaped: parts of the message may come from a store. A closed
/// standard error is ignored.
pub(crate) fn say(message: impl fmt::Display) {
    use std::io::Write;
    let message = crate::display::text(&message.to_string());
    let _ = writeln!(std::io::stderr(), "lockkeeper: {message}");
}

/// Prints help, version or an error of clap. An error exits with 64 instead of clap's 2.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.use_stderr() { Code::USAGE.into() } else { Code::OK.into() }
}
