//! `completions` and `man`: what a package wants to install beside the binary.

use std::fmt::Write as _;
use std::io::{self, Write};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::complete;
use crate::exit::{Code, Failure};

/// A completion script for one shell, on standard output.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Code, Failure> {
    if let Some(script) = complete::script(args.shell) {
        return print(script.as_bytes());
    }
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lockkeeper", &mut script);
    print(&script)
}

/// The manual page on standard output, or all pages, one per command, in a directory.
pub(crate) fn man(args: &ManArgs) -> Result<Code, Failure> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let Some(directory) = &args.directory else {
        let page = page(&root);
        return print(
            &page.map_err(|error| Failure::internal(format!("no manual page: {error}")))?,
        );
    };
    let write = || {
        std::fs::create_dir_all(directory)?;
        for command in root.get_subcommands().chain([&root]) {
            let path = directory.join(Man::new(command.clone()).get_filename());
            std::fs::write(path, page(command)?)?;
        }
        Ok::<_, io::Error>(())
    };
    write().map_err(|error| Failure::internal(format!("{}: {error}", directory.display())))?;
    Ok(Code::OK)
}

/// One page. What the library writes of itself, but for the synopsis, which would have all options and
/// not where the command of `run` goes.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let man = man.source(concat!("lockkeeper ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    page.extend(synopsis(command).into_bytes());
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend(notes(command).into_bytes());
    page.extend(examples(command).into_bytes());
    Ok(page)
}

fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let mut text = ".SH SYNOPSIS\n.nf\n".to_owned();
    for line in usage.trim_start_matches("Usage:").lines() {
        let _ = writeln!(text, "{}", escaped(line.trim()));
    }
    text + ".fi\n"
}

/// What stands below the help: a text, and a table if there is one.
fn notes(command: &Command) -> String {
    let Some(after) = command.get_after_help() else { return String::new() };
    let mut text = ".SH NOTES\n".to_owned();
    for part in after.to_string().split("\n\n") {
        // Tables are indented, and stay as they are.
        let table = part.lines().any(|line| line.starts_with("  "));
        let (before, after) = if table { (".PP\n.nf\n", ".fi\n") } else { (".PP\n", "") };
        text.push_str(before);
        for line in part.lines() {
            let _ = writeln!(text, "{}", escaped(line));
        }
        text.push_str(after);
    }
    text
}

fn examples(command: &Command) -> String {
    let mut text = ".SH EXAMPLES\n".to_owned();
    let known = EXAMPLES.iter().filter(|(of, _, _)| *of == command.get_name());
    for (_, meaning, line) in known {
        let _ =
            writeln!(text, ".PP\n{}\n.PP\n.nf\n.RS\n{}\n.RE\n.fi", escaped(meaning), escaped(line));
    }
    text
}

/// A line as it is: no hyphen is broken or turned into another one, and nothing is a request.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

/// For which command, what it does, and how it is written.
const EXAMPLES: &[(&str, &str, &str)] = &[
    ("lockkeeper", "Run a job on one host at a time:", "lockkeeper run backup -- ./backup.sh"),
    ("lockkeeper", "See who holds what:", "lockkeeper ls"),
    (
        "run",
        "Run a job, or do nothing if it runs already:",
        "lockkeeper run -n backup -- ./backup.sh",
    ),
    (
        "run",
        "Wait for a minute at most, and stop the job after an hour:",
        "lockkeeper run -w 1m --max-hold 1h backup -- ./backup.sh",
    ),
    (
        "run",
        "A cron job of several hosts that runs once a night:",
        "lockkeeper run -n --at-least 10m nightly -- ./nightly.sh",
    ),
    ("run", "Let at most three run at once:", "lockkeeper run --permits 3 encode -- ./encode.sh"),
    ("run", "A line of the shell:", "lockkeeper run deploy -c 'git pull && make'"),
    (
        "ls",
        "All locks whose names begin with orders, the longest held first:",
        "lockkeeper ls --sort age 'orders:*'",
    ),
    ("ls", "Read/write locks only, for a program:", "lockkeeper ls --kind rw --json"),
    ("inspect", "Everything about a lock:", "lockkeeper inspect deploy"),
    (
        "inspect",
        "Do something only while it is held:",
        "if lockkeeper inspect --quiet deploy; then echo 'a deployment runs'; fi",
    ),
    ("watch", "Watch on a terminal:", "lockkeeper watch"),
    ("watch", "A line of JSON for each change:", "lockkeeper watch --json 'orders:*'"),
    ("unlock", "See who holds it, and decide:", "lockkeeper unlock deploy"),
    (
        "unlock",
        "In a script, and from a holder that may still run:",
        "lockkeeper unlock --yes --force --reason 'host is gone' deploy",
    ),
    (
        "doctor",
        "Look for what endangers locks with a lease of ten seconds:",
        "lockkeeper doctor --lease 10s",
    ),
    ("bench", "Measure for five seconds each:", "lockkeeper bench --time 5s"),
    ("demo", "Take the tour without pauses:", "lockkeeper demo --fast"),
    (
        "completions",
        "For bash, of one user:",
        "lockkeeper completions bash > ~/.local/share/bash-completion/completions/lockkeeper",
    ),
    ("man", "Install all pages:", "lockkeeper man /usr/local/share/man/man1"),
];

/// A reader that has seen enough is no failure.
fn print(bytes: &[u8]) -> Result<Code, Failure> {
    match std::io::stdout().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::internal(format!("standard output: {error}")))
        }
        _ => Ok(Code::OK),
    }
}
