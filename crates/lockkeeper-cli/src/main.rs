//! `lockkeeper`: runs a command under a distributed lock, and shows which process holds which lock.
//!
//! One module per subcommand; all of them use only the public API of the library.

#[cfg(not(unix))]
compile_error!("lockkeeper-cli requires Unix: it uses process groups and signals");

mod acknowledgement;
mod args;
mod complete;
mod config;
mod display;
mod docs;
mod doctor;
mod duration;
mod exit;
mod inspect;
mod json;
mod log;
mod ls;
mod open;
mod output;
mod row;
mod run;
mod secret;
mod store;
mod table;
mod timestamp;
mod unlock;
mod watch;

use std::process::ExitCode;

use args::{Cli, Command};
use exit::{Code, Failure};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == run::guardian::ARGUMENT) {
        return run::guardian::main();
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == complete::ARGUMENT) {
        return complete::main();
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    match execute(&cli) {
        Ok(code) => code.into(),
        Err(failure) => failure.report(),
    }
}

/// Runs on one thread: it keeps the start fast, and is enough for renewals.
fn execute(cli: &Cli) -> Result<Code, Failure> {
    check_descriptors()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| Failure::internal(format!("cannot start the async runtime: {error}")))?;
    let outcome = runtime.block_on(command(cli));
    // Does not wait for blocking tasks such as a DNS lookup.
    runtime.shutdown_background();
    outcome
}

/// Enough file descriptors for any subcommand; `run` on a file store needs the most.
const DESCRIPTORS: usize = 24;

/// Checked first: without descriptors the runtime panics, and a store appears unusable.
fn check_descriptors() -> Result<(), Failure> {
    use rustix::io::Errno;
    let needed = (0..DESCRIPTORS).map(|_| rustix::io::dup(rustix::stdio::stderr()));
    match needed.collect::<Result<Vec<_>, _>>() {
        Err(error @ (Errno::MFILE | Errno::NFILE)) => Err(Failure::internal(format!(
            "cannot open {DESCRIPTORS} more file descriptors: {error}; raise `ulimit -n`"
        ))),
        // A closed standard error is not a failure here.
        _ => Ok(()),
    }
}

async fn command(cli: &Cli) -> Result<Code, Failure> {
    let global = &cli.global;
    match &cli.command {
        Command::Run(args) => run::run(global, args).await,
        Command::Ls(args) => ls::run(global, args).await,
        Command::Inspect(args) => inspect::run(global, args).await,
        Command::Watch(args) => watch::run(global, args).await,
        Command::Unlock(args) => unlock::run(global, args).await,
        Command::Doctor(args) => doctor::run(global, args).await,
        Command::Completions(args) => docs::completions(args),
        Command::Man(args) => docs::man(args),
    }
}
