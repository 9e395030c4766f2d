//! `completions` and `man`: files that a package installs beside the binary.

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
    let usage = command.clone().render_usage().to_string().replace('-', "\\-");
    writeln!(page, ".SH SYNOPSIS\n.nf")?;
    for line in usage.trim_start_matches("Usage:").lines() {
        writeln!(page, "{}", line.trim())?;
    }
    writeln!(page, ".fi")?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    man.render_extra_section(&mut page)?;
    Ok(page)
}

/// Prints to standard output. A closed pipe is not a failure.
fn print(bytes: &[u8]) -> Result<Code, Failure> {
    match std::io::stdout().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::internal(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(Code::OK),
    }
}
