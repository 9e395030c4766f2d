//! `completions` and `man`: files that a package installs beside the binary.

use std::fmt::Write as _;
use std::io::{self, Write};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::complete;
use crate::exit::{Code, Failure};

/// Prints a completion script.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Code, Failure> {
    if let Some(script) = complete::script(args.shell) {
        return print(script.as_bytes());
    }
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lockkeeper", &mut script);
    print(&script)
}

/// Prints the manual page, or writes one page per subcommand to a directory.
pub(crate) fn man(args: &ManArgs) -> Result<Code, Failure> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let Some(directory) = &args.directory else {
        let page = page(&root);
        return print(&page.map_err(|error| {
            Failure::internal(format!("cannot create the manual page: {error}"))
        })?);
    };
    let write = || {
        std::fs::create_dir_all(directory)?;
        for command in root.get_subcommands().chain([&root]) {
            let path = directory.join(Man::new(command.clone()).get_filename());
            std::fs::write(path, page(command)?)?;
        }
        Ok::<_, io::Error>(())
    };
    write().map_err(|error| {
        Failure::internal(format!("cannot write to {}: {error}", directory.display()))
    })?;
    Ok(Code::OK)
}

/// Renders one page. The synopsis of clap_mangen would list all options and omit the command of `run`,
/// so it is replaced.
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

/// The text below the help, and its table.
fn notes(command: &Command) -> String {
    let Some(after) = command.get_after_help() else { return String::new() };
    let mut text = ".SH NOTES\n".to_owned();
    for part in after.to_string().split("\n\n") {
        // Tables are indented, and are not filled.
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

/// Escapes a line for roff: hyphens stay, and no line is a request.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

/// Subcommand, description, command line.
const EXAMPLES: &[(&str, &str, &str)] = &[
    ("lockkeeper", "Run a job on one host at a time:", "lockkeeper run backup -- ./backup.sh"),
    ("lockkeeper", "List locks and their holders:", "lockkeeper ls"),
    (
        "run",
        "Run a job, or do nothing if it is already running:",
        "lockkeeper run -n backup -- ./backup.sh",
    ),
    (
        "run",
        "Wait for at most a minute, and stop the job after an hour:",
        "lockkeeper run -w 1m --max-hold 1h backup -- ./backup.sh",
    ),
    (
        "run",
        "Run a nightly cron job on one of several hosts:",
        "lockkeeper run -n --at-least 10m nightly -- ./nightly.sh",
    ),
    ("run", "Run at most three jobs at once:", "lockkeeper run --permits 3 encode -- ./encode.sh"),
    ("run", "Run a shell line:", "lockkeeper run deploy -c 'git pull && make'"),
    (
        "ls",
        "List locks whose names begin with orders:, the longest held first:",
        "lockkeeper ls --sort age 'orders:*'",
    ),
    ("ls", "List only read/write locks, as JSON:", "lockkeeper ls --kind rw --json"),
    ("inspect", "Show everything about a lock:", "lockkeeper inspect deploy"),
    (
        "inspect",
        "Test whether a lock is held:",
        "if lockkeeper inspect --quiet deploy; then echo 'a deployment runs'; fi",
    ),
    ("watch", "Watch all locks:", "lockkeeper watch"),
    ("watch", "Print a line of JSON for each change:", "lockkeeper watch --json 'orders:*'"),
    ("unlock", "Show the holder and ask for confirmation:", "lockkeeper unlock deploy"),
    (
        "unlock",
        "Force-release in a script, even if the holder may still run:",
        "lockkeeper unlock --yes --force --reason 'host is down' deploy",
    ),
    (
        "doctor",
        "Check for risks to locks with a lease of ten seconds:",
        "lockkeeper doctor --lease 10s",
    ),
    (
        "completions",
        "Install bash completions for one user:",
        "lockkeeper completions bash > ~/.local/share/bash-completion/completions/lockkeeper",
    ),
    ("man", "Install all pages:", "lockkeeper man /usr/local/share/man/man1"),
];

/// Prints to standard output. A closed pipe is not a failure.
fn print(bytes: &[u8]) -> Result<Code, Failure> {
    match std::io::stdout().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::internal(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(Code::OK),
    }
}
