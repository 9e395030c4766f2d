//! The command line.

use std::path::PathBuf;

use crate::Result;

/// What `--help` says.
pub(crate) const HELP: &str = "\
Measures lockkeeper against the raw ceiling and the plain driver on a redis-server of its own, or beside
other lock libraries.

Usage: cargo xtask bench [OPTIONS]

  --quick           fewer and shorter rounds, smaller sizes: a look, not a result
  --only SUBSTRING  only workloads whose name contains SUBSTRING
  --rounds N        rounds per workload (at least 1; results need 5)
  --json FILE       also write the rows as JSON
  --peers           beside Redisson, rslock, redsync, python-redis-lock and flock(1) instead
  --docs FOLDER     also write rows, machine, plots and the tables of README.md into FOLDER; with
                    --only the results of other workloads there are kept
  --page FOLDER     measure nothing; write plots and tables anew from the rows in FOLDER
  --readme FILE     with --docs or --page: also write the table of FILE, between its marks
  --callgrind       only count instructions per uncontended pair
  --list            print the workloads' names
  --help            print this";

/// What was asked for.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Args {
    /// A look, not a result.
    pub(crate) quick: bool,
    /// Workloads whose name contains this.
    pub(crate) only: Option<String>,
    /// Rounds, if not the default.
    pub(crate) rounds: Option<usize>,
    /// Where the JSON goes.
    pub(crate) json: Option<PathBuf>,
    /// Beside other libraries.
    pub(crate) peers: bool,
    /// Where rows, machine, plots and tables go.
    pub(crate) docs: Option<PathBuf>,
    /// Only write plots and tables, from the rows there.
    pub(crate) page: Option<PathBuf>,
    /// Where the summary goes.
    pub(crate) readme: Option<PathBuf>,
    /// Only count instructions.
    pub(crate) callgrind: bool,
    /// Only print the names.
    pub(crate) list: bool,
    /// Only print the help.
    pub(crate) help: bool,
}

impl Args {
    /// Parses the arguments after the program's name.
    pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut args = Self::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--quick" => args.quick = true,
                "--only" => args.only = Some(value()?),
                "--rounds" => {
                    let rounds = value()?.parse().map_err(|_| "--rounds needs a number")?;
                    args.rounds = Some(usize::max(rounds, 1));
                }
                "--json" => args.json = Some(value()?.into()),
                "--peers" => args.peers = true,
                "--docs" => args.docs = Some(value()?.into()),
                "--page" => args.page = Some(value()?.into()),
                "--readme" => args.readme = Some(value()?.into()),
                "--callgrind" => args.callgrind = true,
                "--list" => args.list = true,
                "--help" | "-h" => args.help = true,
                other => return Err(format!("unknown option {other}; see --help").into()),
            }
        }
        Ok(args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args> {
        Args::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn options_are_read_in_any_order() {
        let args = parse("--json out.json --only hot --rounds 7 --quick").unwrap();
        assert_eq!(args.only.as_deref(), Some("hot"));
        assert_eq!((args.rounds, args.quick), (Some(7), true));
        assert_eq!(args.json, Some("out.json".into()));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        assert!(parse("--fast").is_err());
        assert!(parse("--rounds many").is_err());
        assert!(parse("--json").is_err());
    }
}
