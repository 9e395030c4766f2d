//! The commands of this workspace: `cargo xtask help`.

mod api;
mod install;
mod interop;
mod msrv;
mod pictures;
mod run;
mod test;

use std::env;
use std::process::ExitCode;

use run::{Outcome, Step};

const USAGE: &str = "\
usage: cargo xtask <command>

  test           install what is missing, then format, lint, docs and all tests: what CI runs
  ci             the same
  interop        install what is missing, build the peers and run the tests against Redisson and others
  bench [args]   run the benchmark against a real server; arguments go to it
  pictures       take the pictures of the README anew, from a real terminal, into docs/
  api            write down the public surface anew, in crates/lockkeeper/api.txt
  msrv           check that the library builds with the oldest supported Rust
  help           this text";

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let outcome = match (command.as_str(), rest.is_empty()) {
        ("test" | "ci", true) => test::run(),
        ("interop", true) => interop::run(),
        ("bench", _) => bench(&rest),
        ("msrv", true) => msrv::run(),
        ("pictures", true) => pictures::run(),
        ("api", true) => api::write(),
        ("api", false) if rest == ["--check"] => api::compare(),
        ("help" | "--help" | "-h", true) => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("\nxtask {command}: {message}");
            ExitCode::FAILURE
        }
    }
}

fn bench(args: &[String]) -> Outcome {
    install::redis_server()?;
    // It measures the command line, too.
    Step::new(&["cargo", "build", "--release", "-p", "lockkeeper-cli"]).run()?;
    let mut line = vec!["cargo", "run", "--release", "-p", "bench", "--"];
    line.extend(args.iter().map(String::as_str));
    Step::new(&line).run()
}
