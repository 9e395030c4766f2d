//! The command line of `run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;

use super::Name;
use crate::acknowledgement::Acknowledgement;
use crate::duration;
use crate::run::signals;

/// `run`
#[derive(Args, Debug)]
#[command(override_usage = "lockkeeper run [OPTIONS] NAME [-- CMD [ARG]...]\n       \
                            lockkeeper run [OPTIONS] NAME -c LINE")]
#[command(after_help = AFTER_HELP)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) name: Name,
    /// Command and its arguments; without one, the lock is held until a signal
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
    /// Run this line with sh -c
    #[arg(short = 'c', long = "command", value_name = "LINE", conflicts_with = "command")]
    #[arg(id = "line", allow_hyphen_values = true)]
    pub(crate) line: Option<OsString>,

    /// For compatibility with flock; has no effect: no command inherits the lock
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

#[derive(Args, Debug)]
#[command(next_help_heading = "Kind of lock")]
pub(crate) struct KindOptions {
    /// Shared (read) lock
    #[arg(short, long, group = "kind")]
    pub(crate) shared: bool,
    /// Exclusive (write) lock, which also excludes shared holders
    #[arg(short = 'x', long, visible_short_alias = 'e', group = "kind")]
    pub(crate) exclusive: bool,
    /// Fair lock: waiters acquire it in the order of their requests
    #[arg(long, group = "kind")]
    pub(crate) fair: bool,
    /// Hold one of N permits. The semaphore exists while a permit is held; a run with another N changes
    /// the number, and reports it
    #[arg(long, value_name = "N", group = "kind", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// Put a fencing token, which grows with each grant, into LOCKKEEPER_TOKEN
    #[arg(long, conflicts_with_all = ["shared", "permits"])]
    pub(crate) fenced: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "If the lock is busy")]
pub(crate) struct WaitOptions {
    /// Do not wait
    #[arg(short, long, visible_aliases = ["nb", "nonblock"], alias = "nonblocking")]
    #[arg(conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait limit [default: none]; also of the wait until a new quorum grants locks
    #[arg(short, long, visible_alias = "timeout", value_name = "DUR", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// Exit code if the lock is busy or the wait timed out
    #[arg(short = 'E', long, visible_alias = "conflict-exit-code", value_name = "N")]
    #[arg(default_value_t = 75)]
    pub(crate) busy_exit_code: u8,
    /// Run this line with sh -c in that case; it does not change the exit code
    #[arg(long, value_name = "LINE")]
    pub(crate) on_busy: Option<OsString>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "While the lock is held")]
pub(crate) struct HoldOptions {
    /// Lease: how long the lock outlives a host that dies; `run` renews it [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,
    /// Replicas that must acknowledge the lock and each renewal within DUR (1s); 0 for none [default: one,
    /// if the URL names sentinels, several servers or a cluster]
    #[arg(long, value_name = "N[/DUR]")]
    pub(crate) acknowledged_by: Option<Acknowledgement>,
    /// Keep the lock held for at least DUR, even if the command ends sooner
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) at_least: Option<Duration>,
    /// Stop the command after DUR and exit with 124
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "If the command must be stopped")]
pub(crate) struct LossOptions {
    /// Signal for its process group, by name or number
    #[arg(long, value_name = "SIG", default_value = "TERM", value_parser = signals::parse)]
    pub(crate) signal: Signal,
    /// Time until it is killed; at most a third of the lease [default: 5s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,
    /// Run this line with sh -c when the lock is lost; it does not change the exit code
    #[arg(long, value_name = "LINE")]
    pub(crate) on_lost: Option<OsString>,
}

const AFTER_HELP: &str = "\
Exit codes:
  that of the command, or 128+n if signal n ended it, or:
   64  invalid command line, or a lock is requested as a semaphore or the reverse
   69  the store is unreachable, too few replicas acknowledge the lock, or too few members of a
       quorum vote, at present or until the wait limit
   70  any other error
   75  the lock is busy, or the wait timed out (see -E)
   76  the lock was lost while the command ran; the command was stopped
   77  the store denies permission
  124  stopped by --max-hold
  126  the command cannot be executed
  127  the command was not found

Environment of the command: LOCKKEEPER_NAME, LOCKKEEPER_OWNER, LOCKKEEPER_TOKEN (with --fenced), and \
LOCKKEEPER_HELD, the owners of all runs around it. The lines of --on-lost and --on-busy also get \
LOCKKEEPER_REASON. LOCKKEEPER_URL, LOCKKEEPER_PASSWORD_FILE and LOCKKEEPER_SENTINEL_PASSWORD_FILE are \
removed.

If the command or this process is stopped (Ctrl-Z) for longer than the lease, the lock is lost: the \
command is killed before the lease can expire.

Examples:
  lockkeeper run -n backup -- ./backup.sh  (does nothing if it is already running)
  lockkeeper run -w 1m --max-hold 1h backup -- ./backup.sh
  lockkeeper run -n --at-least 10m nightly -- ./nightly.sh  (on one of several hosts)
  lockkeeper run --permits 3 encode -- ./encode.sh  (at most three at once)
  lockkeeper run deploy -c 'git pull && make'";
