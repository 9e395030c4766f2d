//! Shell completion: the scripts of `completions` call this program, which knows its options and can
//! read names from the store.
//!
//! A script passes the words after the program's name, up to the word being typed. The first line of the
//! answer is a directive; each further line is a word, a tab and its description. On any error the
//! answer has no words.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory, ValueHint};

use crate::args::{Cli, Global};
use crate::store::Store;
use crate::{display, duration};

/// The first argument of such a call.
pub(crate) const ARGUMENT: &str = "__complete";

/// The time limit for names from the store.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// The maximum number of names to offer.
const NAMES_MAX: usize = 500;

/// A directive for the shell.
#[derive(Debug, PartialEq)]
enum Offer {
    /// Words with their descriptions.
    Words(Vec<(String, String)>),
    /// The names of locks that begin with the typed word.
    Names,
    Files,
    /// A command and its arguments, from the word at this index.
    Command(usize),
}

pub(crate) fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(2).collect();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let line = Line::read(&words);
    let mut answer = String::new();
    match line.offer() {
        Offer::Files => answer.push_str("files\n"),
        Offer::Command(at) => answer.push_str(&format!("command {at}\n")),
        Offer::Words(offered) => {
            answer.push_str("words\n");
            for (word, meaning) in offered.iter().filter(|(word, _)| word.starts_with(line.typed)) {
                answer.push_str(&format!("{word}\t{meaning}\n"));
            }
        }
        Offer::Names => {
            answer.push_str("words\n");
            for name in names(line.global(), line.typed) {
                answer.push_str(&format!("{name}\ta lock\n"));
            }
        }
    }
    let _ = std::io::stdout().write_all(answer.as_bytes());
    ExitCode::SUCCESS
}

/// A command line up to the cursor.
struct Line<'a> {
    /// The subcommand; the program itself before one is named.
    command: Command,
    is_root: bool,
    /// The number of positional words so far.
    given: usize,
    /// The option whose value is being typed.
    pending: Option<Arg>,
    /// The index of the first word after `--`.
    after_dashes: Option<usize>,
    /// The values of options, by their ids.
    values: Vec<(String, String)>,
    /// The word being typed.
    typed: &'a str,
}

impl<'a> Line<'a> {
    fn read(words: &'a [String]) -> Self {
        let mut root = Cli::command();
        root.build();
        let (typed, before) = words.split_last().map_or(("", &[][..]), |(last, rest)| (last, rest));
        let (pending, values) = (None, Vec::new());
        let (after_dashes, command) = (None, root);
        let mut line =
            Self { command, is_root: true, given: 0, pending, after_dashes, values, typed };
        for (at, word) in before.iter().enumerate() {
            if word == "--" && line.pending.is_none() {
                line.after_dashes = Some(at + 1);
                break;
            }
            line.take(word);
        }
        line
    }

    /// Adds a complete word.
    fn take(&mut self, word: &str) {
        if let Some(option) = self.pending.take() {
            self.values.push((option.get_id().to_string(), word.to_owned()));
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (long, None),
            };
            match (self.long(name), value) {
                (Some(option), Some(value)) => {
                    self.values.push((option.get_id().to_string(), value.to_owned()));
                }
                (option, None) => self.pending = option.filter(takes_value),
                (None, Some(_)) => {}
            }
        } else if let Some(cluster) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) {
            // The rest of a cluster is the value of the first option that takes one.
            for (at, c) in cluster.char_indices() {
                let Some(option) = self.short(c).filter(takes_value) else { continue };
                if at + c.len_utf8() == cluster.len() {
                    self.pending = Some(option);
                }
                break;
            }
        } else if self.is_root {
            if let Some(command) = self.command.find_subcommand(word).cloned() {
                (self.command, self.is_root) = (command, false);
            }
        } else {
            self.given += 1;
        }
    }

    fn long(&self, name: &str) -> Option<Arg> {
        let is_called = |arg: &&Arg| {
            arg.get_long() == Some(name)
                || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
        };
        self.command.get_arguments().find(is_called).cloned()
    }

    fn short(&self, c: char) -> Option<Arg> {
        self.command.get_arguments().find(|arg| arg.get_short() == Some(c)).cloned()
    }

    fn offer(&self) -> Offer {
        if let Some(at) = self.after_dashes {
            return match self.command.get_name() {
                "run" => Offer::Command(at),
                _ => self.positional(),
            };
        }
        if let Some(option) = &self.pending {
            return values(option, "");
        }
        if let Some((name, _)) = self.typed.strip_prefix("--").and_then(|w| w.split_once('=')) {
            return self
                .long(name)
                .map_or(Offer::Words(Vec::new()), |option| values(&option, &format!("--{name}=")));
        }
        if self.typed.starts_with('-') {
            return Offer::Words(self.options());
        }
        if self.is_root {
            let commands = self.command.get_subcommands().filter(|command| !command.is_hide_set());
            let about = |command: &Command| {
                let about = command.get_about().map(ToString::to_string).unwrap_or_default();
                (command.get_name().to_owned(), about)
            };
            return Offer::Words(commands.map(about).collect());
        }
        self.positional()
    }

    fn positional(&self) -> Offer {
        let has_name = self.values.iter().any(|(id, _)| id == "odd");
        let given = self.given + usize::from(has_name);
        let next = self.command.get_positionals().filter(|arg| !arg.is_last_set()).nth(given);
        match next {
            Some(arg) => values(arg, ""),
            // Options and the command can follow a name.
            None => Offer::Words(self.options()),
        }
    }

    fn options(&self) -> Vec<(String, String)> {
        let mut options = Vec::new();
        for arg in self.command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let names = arg.get_long().into_iter();
            let names = names.chain(arg.get_visible_aliases().into_iter().flatten());
            options.extend(names.map(|name| (format!("--{name}"), help.clone())));
        }
        if self.command.get_name() == "run" {
            options.push(("--".to_owned(), "the command follows".to_owned()));
        }
        options
    }

    /// The options that select the store.
    fn global(&self) -> Global {
        let value = |id: &str| {
            let mut given = self.values.iter().rev();
            given.find(|(known, _)| known == id).map(|(_, value)| value.clone())
        };
        Global {
            url: value("url"),
            config: value("config").map(Into::into),
            cluster_wakeups: None,
            longest_lease: value("longest_lease").and_then(|span| duration::parse(&span).ok()),
            verbose: 0,
            color: clap::ColorChoice::Never,
        }
    }
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

/// The possible values of an argument, each after `prefix`.
fn values(arg: &Arg, prefix: &str) -> Offer {
    let is_name =
        |names: &[clap::builder::Str]| names.iter().any(|n| n == "NAME" || n == "PATTERN");
    if prefix.is_empty() && arg.get_value_names().is_some_and(is_name) {
        return Offer::Names;
    }
    if prefix.is_empty() && matches!(arg.get_value_hint(), ValueHint::FilePath | ValueHint::DirPath)
    {
        return Offer::Files;
    }
    let possible = arg.get_possible_values();
    let possible = possible.iter().filter(|value| !value.is_hide_set()).map(|value| {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        (format!("{prefix}{}", value.get_name()), help)
    });
    Offer::Words(possible.collect())
}

/// The names of locks that the store returns within the time limit.
fn names(global: Global, typed: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let mut names = Vec::new();
    let _ = runtime.block_on(async {
        tokio::time::timeout(TIME_LIMIT, gather(&global, typed, &mut names)).await
    });
    runtime.shutdown_background();
    names.sort();
    names.dedup();
    names
}

async fn gather(global: &Global, typed: &str, names: &mut Vec<String>) -> Option<()> {
    let store = Store::resolve(global).ok()?;
    // A completion must not create the file.
    let shown = store.shown();
    if shown.strip_prefix("file:").is_some_and(|path| !Path::new(path).exists()) {
        return None;
    }
    let client = store.connect_to_look().await.ok()?;
    let pattern: String = typed.chars().flat_map(literal).chain(['*']).collect();
    let mut listing = client.inspector().list(pattern);
    while let Some(page) = listing.next().await.ok()? {
        names.extend(page.iter().filter_map(|lock| word(lock.name.as_bytes())));
        if names.len() >= NAMES_MAX {
            break;
        }
    }
    Some(())
}

/// Escapes a character for a pattern.
fn literal(c: char) -> impl Iterator<Item = char> {
    let special = matches!(c, '*' | '?' | '[' | ']' | '^' | '\\' | '-');
    special.then_some('\\').into_iter().chain([c])
}

/// The name, if it needs no quoting: a shell inserts it as it is.
fn word(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:@%+,".contains(c);
    let is_word = name.chars().all(is_plain) && !name.starts_with('-');
    (is_word && display::text(name) == name).then(|| name.to_owned())
}

/// The script for a shell that can call this program.
pub(crate) fn script(shell: clap_complete::Shell) -> Option<&'static str> {
    match shell {
        clap_complete::Shell::Bash => Some(include_str!("complete/lockkeeper.bash")),
        clap_complete::Shell::Zsh => Some(include_str!("complete/lockkeeper.zsh")),
        clap_complete::Shell::Fish => Some(include_str!("complete/lockkeeper.fish")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(line: &str) -> Offer {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        Line::read(&words).offer()
    }

    fn words(line: &str) -> Vec<String> {
        match offer(line) {
            Offer::Words(words) => words.into_iter().map(|(word, _)| word).collect(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn subcommands_come_first() {
        assert!(words("").contains(&"run".to_owned()) && words("r").contains(&"ls".to_owned()));
        assert!(words("--url redis://a ").contains(&"inspect".to_owned()));
        assert!(!words("").iter().any(|word| word.starts_with('-') || word == ARGUMENT));
    }

    #[test]
    fn names_then_options_then_the_command() {
        for line in
            ["run ", "run -n a", "run --wait 5 ", "inspect --name ", "unlock ", "ls ", "watch "]
        {
            assert_eq!(offer(line), Offer::Names, "{line}");
        }
        for line in ["run a --w", "run a ", "run --no-wait a -"] {
            let offered = words(line);
            for option in ["--wait", "--timeout", "--max-hold", "--url", "--"] {
                assert!(offered.contains(&option.to_owned()), "{line}: {option}");
            }
            assert!(!offered.contains(&"--close".to_owned()), "it is hidden");
        }
        assert!(words("inspect a --").contains(&"--quiet".to_owned()));
        assert!(!words("inspect a --").contains(&"--".to_owned()));
        assert_eq!(offer("run a -- "), Offer::Command(3));
        assert_eq!(offer("run -w 5 a -- ls -l /"), Offer::Command(5));
        assert_eq!(offer("inspect -- "), Offer::Names);
    }

    #[test]
    fn possible_values_are_offered() {
        assert!(words("inspect a --kind ").contains(&"permits".to_owned()));
        assert!(words("ls --sort=").contains(&"--sort=age".to_owned()));
        assert_eq!(words("run a --cluster-wakeups "), ["auto", "classic", "both"]);
        assert!(words("completions ").contains(&"bash".to_owned()));
        assert_eq!(words("run a --wait "), [""; 0], "a duration has no possible values");
        assert_eq!(offer("ls --config "), Offer::Files);
        assert_eq!(offer("man "), Offer::Files);
    }

    #[test]
    fn only_plain_words_are_offered_as_names() {
        for plain in ["orders:42", "a-b_c.d/e", "日本"] {
            assert_eq!(word(plain.as_bytes()).as_deref(), Some(plain));
        }
        for odd in ["two words", "$(reboot)", "a;b", "it's", "-x", "a\u{1b}", "*", "~root", "=ls"] {
            assert_eq!(word(odd.as_bytes()), None, "{odd}");
        }
        assert_eq!(word(b"\xff"), None);
    }
}
