//! Exit codes, and what failed.
//!
//! The numbers are those of `sysexits.h` where one fits, as other tools of this kind use them; a
//! script can tell "busy" from "broken" without reading the message.

use std::fmt;
use std::io::ErrorKind;
use std::process::ExitCode;

use lockkeeper::Error;

/// What `lockkeeper` exits with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Code(pub(crate) u8);

impl Code {
    /// All went well.
    pub(crate) const OK: Code = Code(0);
    /// `inspect --quiet`: nobody holds it, as `grep --quiet` says that there is nothing.
    pub(crate) const FREE: Code = Code(1);
    /// `doctor`: something endangers locks.
    pub(crate) const DANGER: Code = Code(1);
    /// The command line, the configuration or the request makes no sense.
    pub(crate) const USAGE: Code = Code(64);
    /// The store cannot be reached.
    pub(crate) const UNREACHABLE: Code = Code(69);
    /// Anything else.
    pub(crate) const INTERNAL: Code = Code(70);
    /// Somebody has the lock, and keeps it.
    pub(crate) const BUSY: Code = Code(75);
    /// The lock was lost while it was needed.
    pub(crate) const LOST: Code = Code(76);
    /// The store refuses this user.
    pub(crate) const DENIED: Code = Code(77);
    /// The command was stopped because its time was over, as `timeout` has it.
    pub(crate) const MAX_HOLD: Code = Code(124);
    /// The command is there but cannot be executed, as a shell has it.
    pub(crate) const NOT_EXECUTABLE: Code = Code(126);
    /// The command is not there, as a shell has it.
    pub(crate) const NOT_FOUND: Code = Code(127);

    /// Ended by a signal, as a shell has it.
    pub(crate) fn signalled(signal: i32) -> Self {
        Code(128u8.saturating_add(signal as u8))
    }

    /// Of a file that was named and cannot be used.
    pub(crate) fn of_io(error: &std::io::Error) -> Self {
        use rustix::io::Errno;
        match error.kind() {
            // Nothing is wrong with the file.
            _ if matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)) => {
                Self::INTERNAL
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::DENIED,
            _ => Self::USAGE,
        }
    }

    /// Where an error of the library belongs.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Invalid { .. } | Error::WrongKind { .. } => Self::USAGE,
            // The answer did not come: to a script that is the same as no store.
            Error::Unreachable { .. } | Error::Refused { .. } | Error::Unconfirmed { .. } => {
                Self::UNREACHABLE
            }
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

/// Why a command failed: a code for scripts, a sentence for people.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// What the user can put right on the command line or in the configuration.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::USAGE, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::INTERNAL, message)
    }

    /// Says it and answers with the code.
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

/// One line on standard error, whatever is in the message: some of it may come out of a store. That it
/// may be closed must not change what is done.
pub(crate) fn say(message: impl fmt::Display) {
    use std::io::Write;
    let message = crate::display::text(&message.to_string());
    let _ = writeln!(std::io::stderr(), "lockkeeper: {message}");
}

/// What clap has to say: help and version are no errors; everything else is exit 64, where clap
/// itself would say 2.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.use_stderr() { Code::USAGE.into() } else { Code::OK.into() }
}
