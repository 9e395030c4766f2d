//! The command line, as clap reads it: definitions only.

mod run;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, ColorChoice, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use lockkeeper::Kind;

pub(crate) use run::{RunArgs, WaitOptions};

use crate::duration;

/// Distributed locks on the command line.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, about, max_term_width = 100)]
#[command(arg_required_else_help = true, infer_subcommands = false)]
#[command(after_help = "\
The store is chosen by --url, else LOCKKEEPER_URL, else `url` in the configuration file, else it is a \
file of this user's own (below XDG_STATE_HOME or ~/.local/state), for the processes of one host. \
LOCKKEEPER_PASSWORD_FILE names a file whose first line is the password of a Redis URL without one.

DUR is seconds, with a fraction if need be (30, 2.5), or has units (500ms, 1m30s, 2h, 1d).")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that go before or after the command's name.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The store: redis://…, rediss://…, redis+unix://…, file:PATH
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The configuration file [default: ~/.config/lockkeeper/config.toml]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Say on standard error what happens; twice: everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value_t)]
    pub(crate) color: ColorChoice,
}

/// The same error with what was probably meant, where clap cannot know.
pub(crate) fn advised(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let words: Vec<_> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(tip) = tip(unknown, &words) {
        let _ = error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        // It would be said to be a name.
        error.remove(ContextKind::TrailingArg);
    }
    error
}

/// What to write instead of a word that is not known.
fn tip(unknown: &str, words: &[String]) -> Option<String> {
    let at = words.iter().position(|word| word == unknown)?;
    let is_run = words[..at].iter().any(|word| word == "run");
    let option = unknown.split_once('=').map_or(unknown, |(option, _)| option);
    Some(match option {
        "--ttl" if is_run => "the lease is set with '--lease DUR'".to_owned(),
        "--try" if is_run => "not to wait is '--no-wait'".to_owned(),
        "--unlock" | "-u" if is_run => "a lock is freed with 'lockkeeper unlock NAME'".to_owned(),
        "--no-fork" | "-F" if is_run => {
            "leave it out: lockkeeper stays beside the command to renew the lock".to_owned()
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
    /// List locks and who holds them
    ///
    /// Locks, fair locks, read/write locks and permit semaphores are found by their form, whoever
    /// made them; mutexes and semaphores are plain values, and found while a lockkeeper client says
    /// that it holds them. A list that fits a thousand rows is sorted; a longer one is printed as it
    /// is read. Waiters are clients that listen; of a fair lock, places in its queue.
    Ls(LsArgs),
    /// Show everything about one lock
    ///
    /// With --quiet it only says whether the lock is held: exit code 0 if it is, 1 if it is free, and
    /// above that if it could not be found out. A semaphore is held while a permit is taken (one whose
    /// permits have no leases: while none is free), a latch while it is closed.
    Inspect(InspectArgs),
    /// Watch locks as they change
    Watch(WatchArgs),
    /// Take a lock away from its holder
    ///
    /// Shows who holds it and when that process was last seen, and asks. The holder is notified at
    /// once, and why, if it is a lockkeeper client that runs; a client of another library notices at
    /// its next renewal, or not at all. Where no one can be asked, --yes takes the lock from a holder
    /// that no lockkeeper client has announced within its lease, and --yes --force from any. Exits
    /// with 0 also if the lock is free, and with 75 if it stays where it is.
    Unlock(UnlockArgs),
    /// Look for what endangers locks on this store
    ///
    /// Takes locks of its own and gives them back. Exits with 1 if something endangers locks: two may
    /// hold one, or nobody can.
    Doctor(DoctorArgs),
    /// Measure this store
    Bench(BenchArgs),
    /// Take a tour, in about a minute
    Demo(DemoArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write all pages to a directory
    Man(ManArgs),
}

/// Not a comment, where square brackets are links.
const PATTERN: &str = "Only names that match: * is any text, ? any character, [abc] one of them";

/// `ls`
#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    #[arg(value_name = "PATTERN", help = PATTERN)]
    pub(crate) pattern: Option<OsString>,
    /// Only these kinds, separated by commas
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    pub(crate) kind: Vec<KindArg>,
    /// Sort by this column, all of the list; most holds, most waiters and highest age come first
    #[arg(long, value_enum, value_name = "COLUMN")]
    pub(crate) sort: Option<Sort>,
    /// The other way round
    #[arg(short, long, requires = "sort")]
    pub(crate) reverse: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `inspect`
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) name: Name,
    /// What the name is used as, where the store cannot tell
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) kind: Option<KindArg>,
    /// Print nothing; exit with 0 if it is held, and with 1 if it is free
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `watch`
#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// Only names that match
    #[arg(value_name = "PATTERN")]
    pub(crate) pattern: Option<OsString>,
    /// How often to look
    #[arg(long, value_name = "DUR", default_value = "1", value_parser = duration::parse)]
    pub(crate) interval: Duration,
    /// Print a line of JSON for each change
    #[arg(long)]
    pub(crate) json: bool,
}

/// `unlock`
#[derive(Args, Debug)]
pub(crate) struct UnlockArgs {
    #[command(flatten)]
    pub(crate) name: Name,
    /// What the name is used as, where the store cannot tell
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) kind: Option<KindArg>,
    /// Of a semaphore with permits: free only this one, by its id (see inspect); may be repeated
    #[arg(long, value_name = "ID")]
    pub(crate) permit: Vec<String>,
    /// With --yes: take it from a holder that may still run, too
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// Why, for the holder and for those who look later
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `doctor`
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// The lease that the locks on this store will have
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `bench`
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// How long each figure is measured
    #[arg(long, value_name = "DUR", default_value = "2", value_parser = duration::parse)]
    pub(crate) time: Duration,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `demo`
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Do not wait for anybody to read along
    #[arg(long)]
    pub(crate) fast: bool,
}

/// `completions`
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

/// `man`
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Where to write the pages to
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: Option<PathBuf>,
}

/// The name of a lock: any bytes but none.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Name {
    /// The name of the lock
    #[arg(value_name = "NAME")]
    pub(crate) plain: Option<OsString>,
    /// The name of the lock, if it begins with a dash
    #[arg(long = "name", value_name = "NAME", allow_hyphen_values = true)]
    pub(crate) odd: Option<OsString>,
}

impl Name {
    /// The bytes of the name.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.given().as_bytes()
    }

    /// The name as it was given.
    pub(crate) fn given(&self) -> &OsStr {
        // clap has seen to it that there is one.
        self.plain.as_deref().or(self.odd.as_deref()).unwrap_or_default()
    }
}

/// A column of a list.
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

/// What a name is used as.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum KindArg {
    /// The re-entrant lock
    Lock,
    /// The plain string lock
    Mutex,
    /// The fair lock
    Fair,
    /// The read/write lock
    Rw,
    /// The semaphore without owners
    Semaphore,
    /// The semaphore whose permits have leases
    Permits,
    /// The count-down latch
    Latch,
}

impl KindArg {
    /// Whether this is what a list says.
    pub(crate) fn is(self, kind: Kind) -> bool {
        self.kind() == kind || self == KindArg::Rw && kind == Kind::Read
    }

    /// As the library says it. A read/write lock is asked about by either of its sides.
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
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_make_sense() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_tip_says_what_to_write() {
        let tip = |line: &str, unknown: &str| {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            tip(unknown, &words)
        };
        let said = "write '--' before the command: 'lockkeeper run -n a -- echo hi'";
        assert_eq!(tip("lockkeeper run -n a echo hi", "echo").unwrap(), said);
        assert!(tip("lockkeeper run a --ttl=5", "--ttl=5").unwrap().contains("--lease"));
        assert_eq!(tip("lockkeeper ls a b", "b"), None);
        assert_eq!(tip("lockkeeper run --colour", "--colour"), None, "clap knows one like it");
    }
}
