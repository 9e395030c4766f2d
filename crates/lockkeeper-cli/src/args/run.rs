//! The command line of `run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;

use super::Name;
use crate::duration;
use crate::run::signals;

/// `run`
#[derive(Args, Debug)]
#[command(override_usage = "lockkeeper run [OPTIONS] NAME [-- CMD [ARG]...]\n       \
                            lockkeeper run [OPTIONS] NAME -c LINE")]
#[command(after_help = EXIT_CODES)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) name: Name,
    /// The command and its arguments; with none, the lock is held until interrupted
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
    /// Run this line with sh -c
    #[arg(short = 'c', long = "command", value_name = "LINE", conflicts_with = "command")]
    #[arg(id = "line", allow_hyphen_values = true)]
    pub(crate) line: Option<OsString>,

    /// Of flock: nothing to do here, for no command ever inherits the lock
    #[arg(short = 'o', long, hide = true)]
    #[allow(dead_code, reason = "accepted so that lines written for flock work")]
    close: bool,

    #[command(flatten)]
    pub(crate) kind: KindOptions,
    #[command(flatten)]
    pub(crate) waiting: WaitOptions,
    #[command(flatten)]
    pub(crate) holding: HoldOptions,
    #[command(flatten)]
    pub(crate) loss: LossOptions,
}

/// What kind of lock.
#[derive(Args, Debug)]
#[command(next_help_heading = "What kind of lock")]
pub(crate) struct KindOptions {
    /// Share it with others that do (the reading side of a read/write lock)
    #[arg(short, long, group = "kind")]
    pub(crate) shared: bool,
    /// Have it alone, also against those who share it (the writing side)
    #[arg(short = 'x', long, visible_short_alias = 'e', group = "kind")]
    pub(crate) exclusive: bool,
    /// First come, first served
    #[arg(long, group = "kind")]
    pub(crate) fair: bool,
    /// Hold one of N permits. The semaphore is there as long as a permit is held; a run with another N
    /// counts by its own, and says that it changes the number
    #[arg(long, value_name = "N", group = "kind", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// Give the command a token that grows with each holder, in LOCKKEEPER_TOKEN
    #[arg(long, conflicts_with_all = ["shared", "permits"])]
    pub(crate) fenced: bool,
}

/// How it is waited for.
#[derive(Args, Debug)]
#[command(next_help_heading = "If it is busy")]
pub(crate) struct WaitOptions {
    /// Do not wait
    #[arg(short, long, visible_aliases = ["nb", "nonblock"], alias = "nonblocking")]
    #[arg(conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait for at most so long [default: for ever]
    #[arg(short, long, visible_alias = "timeout", value_name = "DUR", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// Exit with N when it is busy or was waited for in vain
    #[arg(short = 'E', long, visible_alias = "conflict-exit-code", value_name = "N")]
    #[arg(default_value_t = 75)]
    pub(crate) busy_exit_code: u8,
    /// Run this line with sh -c then; it does not change the exit code
    #[arg(long, value_name = "LINE")]
    pub(crate) on_busy: Option<OsString>,
}

/// How long it is held.
#[derive(Args, Debug)]
#[command(next_help_heading = "While it is held")]
pub(crate) struct HoldOptions {
    /// How long the lock outlives a host that dies; it is renewed meanwhile [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,
    /// Leave the lock standing until DUR after it was taken, even if the command ends sooner
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) at_least: Option<Duration>,
    /// Stop the command after DUR and exit with 124
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,
}

/// What happens when it is lost.
#[derive(Args, Debug)]
#[command(next_help_heading = "If the command must be stopped")]
pub(crate) struct LossOptions {
    /// The signal for its process group, by name or number
    #[arg(long, value_name = "SIG", default_value = "TERM", value_parser = signals::parse)]
    pub(crate) signal: Signal,
    /// How long it has until it is killed; a third of the lease at most [default: 5s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,
    /// Run this line with sh -c when the lock is lost; it does not change the exit code
    #[arg(long, value_name = "LINE")]
    pub(crate) on_lost: Option<OsString>,
}

const EXIT_CODES: &str = "\
Exit codes:
  that of the command, or 128+n if signal n ended it; and
   64  the command line makes no sense, or a semaphore and a lock are to have one name
   69  the store cannot be reached
   70  anything else that went wrong here
   75  the lock is busy, or was waited for in vain (see -E)
   76  the lock was lost while the command ran; it has been stopped
   77  no permission on the store
  124  --max-hold is over; the command has been stopped
  126  the command cannot be executed
  127  the command was not found

Environment of the command: LOCKKEEPER_NAME, LOCKKEEPER_OWNER, LOCKKEEPER_TOKEN (with --fenced), and \
LOCKKEEPER_HELD, the owners of all runs around it; of the line for --on-lost also LOCKKEEPER_REASON. LOCKKEEPER_URL and LOCKKEEPER_PASSWORD_FILE are taken out.

If the command stops (Ctrl-Z) for longer than the lease, or this process does, the lock is lost: the \
command is killed before the lease can end.";
