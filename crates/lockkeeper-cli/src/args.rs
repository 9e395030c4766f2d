//! Definitions of the command line for clap.

mod run;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{
    Arg, Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
    ValueHint,
};
use clap_complete::Shell;
use lockkeeper::{Kind, Wakeups};
use serde::Deserialize;

pub(crate) use run::{RunArgs, WaitOptions};

use crate::acknowledgement::Acknowledgement;
use crate::duration;

/// Run a command under a distributed lock; list, watch and force-release locks
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, max_term_width = 100)]
#[command(arg_required_else_help = true, infer_subcommands = false)]
#[command(after_help = "\
The store is the first of: --url, LOCKKEEPER_URL, `url` in the configuration file, a file of this user \
below XDG_STATE_HOME or ~/.local/state (for the processes of one host). \
LOCKKEEPER_PASSWORD_FILE names a file whose first line is the password for a Redis URL without one, \
LOCKKEEPER_SENTINEL_PASSWORD_FILE one for the sentinels.

DUR is a duration in seconds (30, 2.5) or with units (500ms, 1m30s, 2h, 1d).

Examples:
  lockkeeper run backup -- ./backup.sh  (runs a job on one host at a time)
  lockkeeper ls                         (lists locks and their holders)")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that are accepted before and after the subcommand.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Store: redis://…, rediss://…, redis+unix://…, redis+sentinel://…, redis+replicated://…, redis+cluster://…,
    /// quorum:redis://…,redis://…,redis://… or file:PATH
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Configuration file [default: ~/.config/lockkeeper/config.toml]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// How waiters in a Redis Cluster are notified: as the other clients of the locks do it [default: auto]
    #[arg(long, global = true, value_enum, value_name = "MODE")]
    pub(crate) cluster_wakeups: Option<WakeupsArg>,
    /// Longest lease on a quorum, the same for all its clients [default: 30s]
    #[arg(long, global = true, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) longest_lease: Option<Duration>,
    /// Log to standard error; twice for all details
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value_t)]
    pub(crate) color: ColorChoice,
}

/// Parses the command line.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    // `--wait -1` is a wrong duration, not an unknown option.
    let change = |arg: Arg| {
        let has_value = !arg.is_positional() && arg.get_action().takes_values();
        arg.allow_negative_numbers(has_value)
    };
    let command = Cli::command().mut_args(change);
    let command = command.mut_subcommands(|command| command.mut_args(change));
    command.try_get_matches().and_then(|given| Cli::from_arg_matches(&given)).map_err(advised)
}

/// Adds a tip to an error about an unknown argument, or about a name that stands after `--`.
fn advised(mut error: clap::Error) -> clap::Error {
    let words: Vec<_> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let tip = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(unknown))) => {
            tip(unknown, &words).or_else(|| odd_name(unknown, &words))
        }
        (ErrorKind::MissingRequiredArgument, _) => {
            let command = words.iter().skip_while(|word| *word != "--").nth(1);
            command.and_then(|word| odd_name(word, &words))
        }
        _ => return error,
    };
    if let Some(tip) = tip {
        let _ = error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    // clap would suggest to pass it after `--`, where `run` has its command.
    error.remove(ContextKind::TrailingArg);
    error
}

/// How to write a name or a pattern that begins with a dash. Of `-job`, the unknown option is `-j`.
fn odd_name(unknown: &str, words: &[String]) -> Option<String> {
    let at = words.iter().position(|word| word.starts_with(unknown) && word.starts_with('-'))?;
    let before = Cli::command().ignore_errors(true).try_get_matches_from(&words[..at]).ok()?;
    let (_, given) = before.subcommand()?;
    if ["plain", "pattern"].iter().any(|id| given.try_contains_id(id).unwrap_or(false)) {
        return None;
    }
    let has = |commands: &[&str]| words[..at].iter().any(|word| commands.contains(&&word[..]));
    let word = &words[at];
    if has(&["run", "inspect", "unlock"]) {
        return Some(format!("if '{word}' is the name of the lock, write '--name={word}'"));
    }
    has(&["ls", "watch"]).then(|| format!("if '{word}' is the pattern, write '-- {word}'"))
}

/// Returns what to write instead of an unknown argument.
fn tip(unknown: &str, words: &[String]) -> Option<String> {
    let at = words.iter().position(|word| word == unknown)?;
    let is_run = words[..at].iter().any(|word| word == "run");
    let option = unknown.split_once('=').map_or(unknown, |(option, _)| option);
    Some(match option {
        "--ttl" if is_run => "set the lease with '--lease DUR'".to_owned(),
        "--try" if is_run => "use '--no-wait' to fail at once if the lock is busy".to_owned(),
        "--unlock" | "-u" if is_run => "release a lock with 'lockkeeper unlock NAME'".to_owned(),
        "--no-fork" | "-F" if is_run => {
            "omit it: lockkeeper keeps running to renew the lock".to_owned()
        }
        word if is_run && !word.starts_with('-') => {
            let (before, command) = words.split_at(at);
            let line = [&before[1..], &["--".to_owned()], command].concat().join(" ");
            format!("write '--' before the command: 'lockkeeper {line}'")
        }
        _ => return None,
    })
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command under a lock
    Run(Box<RunArgs>),
    /// List locks and their holders
    ///
    /// Locks, fair locks, read/write locks and permit semaphores are found by their form, also those of
    /// other clients. Mutexes and semaphores are plain values: they are listed while a lockkeeper
    /// client announces that it holds them. A list of up to about a thousand locks is sorted; a longer
    /// one is printed as it is read. WAITERS counts waiting clients, or the queue of a fair lock. If a part
    /// of the store does not answer, as a shard of a cluster, the locks of the others are listed, and
    /// the exit code is 69.
    Ls(LsArgs),
    /// Show everything about one lock
    ///
    /// With --quiet, only the exit code is set: 0 if the lock is held, 1 if it is free, higher on an
    /// error. A permit semaphore is held while a permit is held; a semaphore without leases while no
    /// permit is free; a latch while it is closed.
    Inspect(InspectArgs),
    /// Watch locks as they change
    Watch(WatchArgs),
    /// Force-release a lock
    ///
    /// Shows the holder and when its process was last seen, and asks for confirmation. A running
    /// lockkeeper client is notified at once, with the reason; a client of another library notices at
    /// its next renewal, or never. Without confirmation, --yes force-releases holders that no lockkeeper
    /// client has announced within its lease, and --yes --force any holder. Exits with 0 also if the
    /// lock is free, and with 75 if the holder keeps it.
    Unlock(UnlockArgs),
    /// Check this store for risks to locks, and measure its speed
    ///
    /// Acquires and releases locks of its own. Exits with 1 if there is a risk that two clients hold one
    /// lock, or that no client can acquire it.
    Doctor(DoctorArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Print the manual page, or write all pages to a directory
    Man(ManArgs),
}

/// Not a doc comment, which would make links of square brackets.
const PATTERN: &str =
    "Only names that match: * is any text, ? is any character, [abc] is one of a, b, c";

/// `ls`
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkeeper ls --sort age 'orders:*'  (the longest held first)
  lockkeeper ls --kind rw --json")]
pub(crate) struct LsArgs {
    #[arg(value_name = "PATTERN", help = PATTERN)]
    pub(crate) pattern: Option<OsString>,
    /// Only these kinds, separated by commas
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    pub(crate) kind: Vec<KindArg>,
    /// Sort the whole list by this column; for holds, waiters and age the highest comes first
    #[arg(long, value_enum, value_name = "COLUMN")]
    pub(crate) sort: Option<Sort>,
    /// Reverse the order
    #[arg(short, long, requires = "sort")]
    pub(crate) reverse: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `inspect`
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkeeper inspect deploy
  if lockkeeper inspect --quiet deploy; then echo 'a deployment runs'; fi")]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) name: Name,
    /// Kind of the lock, if the store does not show it
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) kind: Option<KindArg>,
    /// Print nothing; exit with 0 if the lock is held, with 1 if it is free
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `watch`
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkeeper watch
  lockkeeper watch --json 'orders:*'")]
pub(crate) struct WatchArgs {
    /// Only names that match
    #[arg(value_name = "PATTERN")]
    pub(crate) pattern: Option<OsString>,
    /// Polling interval
    #[arg(long, value_name = "DUR", default_value = "1", value_parser = duration::parse)]
    pub(crate) interval: Duration,
    /// Print a line of JSON for each change
    #[arg(long)]
    pub(crate) json: bool,
}

/// `unlock`
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkeeper unlock deploy  (shows the holder and asks)
  lockkeeper unlock --yes --force --reason 'host is down' deploy")]
pub(crate) struct UnlockArgs {
    #[command(flatten)]
    pub(crate) name: Name,
    /// Kind of the lock, if the store does not show it
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) kind: Option<KindArg>,
    /// Of a permit semaphore, free only the permit with this id (see inspect); repeatable
    #[arg(long, value_name = "ID")]
    pub(crate) permit: Vec<String>,
    /// With --yes: force-release also a holder that may still run
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
    /// Reason, for the holder and for inspect
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `doctor`
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkeeper doctor --lease 10s")]
pub(crate) struct DoctorArgs {
    /// Lease to judge the store by
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,
    /// Replicas that must acknowledge a lock, as for run
    #[arg(long, value_name = "N[/DUR]")]
    pub(crate) acknowledged_by: Option<Acknowledgement>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `completions`
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkeeper completions bash > ~/.local/share/bash-completion/completions/lockkeeper")]
pub(crate) struct CompletionsArgs {
    /// Shell
    pub(crate) shell: Shell,
}

/// `man`
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkeeper man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Directory for the pages
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: Option<PathBuf>,
}

/// The name of a lock: any non-empty byte string.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Name {
    /// Name of the lock
    #[arg(value_name = "NAME")]
    pub(crate) plain: Option<OsString>,
    /// Name of the lock, if it begins with a dash
    #[arg(long = "name", value_name = "NAME", allow_hyphen_values = true)]
    pub(crate) odd: Option<OsString>,
}

impl Name {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.given().as_bytes()
    }

    pub(crate) fn given(&self) -> &OsStr {
        // The group is required, so there is one.
        self.plain.as_deref().or(self.odd.as_deref()).unwrap_or_default()
    }
}

/// A column of a list, in the order of [`COLUMNS`](crate::row::COLUMNS).
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Sort {
    Name,
    Kind,
    Holder,
    Holds,
    Ttl,
    Waiters,
    Age,
}

/// How waiters in a Redis Cluster are notified.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WakeupsArg {
    /// Sharded messages where the servers support them, as Redisson 3.28 and later
    Auto,
    /// Plain messages, as Redisson before 3.22, or with shardedSubscriptionMode OFF
    Classic,
    /// Both, for Redisson 3.22 to 3.27 or a mixture of clients
    Both,
}

impl From<WakeupsArg> for Wakeups {
    fn from(given: WakeupsArg) -> Self {
        match given {
            WakeupsArg::Auto => Wakeups::Auto,
            WakeupsArg::Classic => Wakeups::Classic,
            WakeupsArg::Both => Wakeups::Both,
        }
    }
}

/// A kind of lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum KindArg {
    /// Reentrant lock
    Lock,
    /// Lock in one plain string
    Mutex,
    /// Fair lock
    Fair,
    /// Read/write lock
    Rw,
    /// Semaphore without leases
    Semaphore,
    /// Semaphore whose permits have leases
    Permits,
    /// Count-down latch
    Latch,
}

impl KindArg {
    /// Whether a listed lock is of this kind.
    pub(crate) fn is(self, kind: Kind) -> bool {
        self.kind() == kind || self == KindArg::Rw && kind == Kind::Read
    }

    /// The kind in the library. Either side stands for a read/write lock.
    pub(crate) fn kind(self) -> Kind {
        match self {
            KindArg::Lock => Kind::Lock,
            KindArg::Mutex => Kind::Mutex,
            KindArg::Fair => Kind::Fair,
            KindArg::Rw => Kind::Write,
            KindArg::Semaphore => Kind::Semaphore,
            KindArg::Permits => Kind::Permits,
            KindArg::Latch => Kind::Latch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn tips_name_the_right_syntax() {
        let tip = |line: &str, unknown: &str| {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            tip(unknown, &words)
        };
        let expected = "write '--' before the command: 'lockkeeper run -n a -- echo hi'";
        assert_eq!(tip("lockkeeper run -n a echo hi", "echo").unwrap(), expected);
        assert!(tip("lockkeeper run a --ttl=5", "--ttl=5").unwrap().contains("--lease"));
        assert_eq!(tip("lockkeeper ls a b", "b"), None);
        assert_eq!(tip("lockkeeper run --colour", "--colour"), None, "clap has a suggestion");
    }
}
