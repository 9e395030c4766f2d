//! `completions` and `man`: what a package wants to install beside the binary.

use std::io::Write;

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::exit::{Code, Failure};

/// A completion script for one shell, on standard output.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Code, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lockkeeper", &mut script);
    print(&script)
}

/// The manual page on standard output, or all pages, one per command, in a directory.
pub(crate) fn man(args: &ManArgs) -> Result<Code, Failure> {
    let Some(directory) = &args.directory else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
        rendered.map_err(|error| Failure::internal(format!("no manual page: {error}")))?;
        return print(&page);
    };
    let made = std::fs::create_dir_all(directory);
    made.and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .map_err(|error| Failure::internal(format!("{}: {error}", directory.display())))?;
    Ok(Code::OK)
}

/// A reader that has seen enough is no failure.
fn print(bytes: &[u8]) -> Result<Code, Failure> {
    match std::io::stdout().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::internal(format!("standard output: {error}")))
        }
        _ => Ok(Code::OK),
    }
}
