//! The commands of this workspace: `cargo xtask help`.

mod api;
mod bench;
mod counts;
mod install;
mod interop;
mod msrv;
mod pictures;
mod proof;
mod run;
mod servers;
mod test;
mod times;

use std::env;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <command>

  test           install what is missing, then format, lint, docs and all tests: what CI runs
  ci             the same
  check          format, lint, unit tests and the laws in memory: a minute, nothing is installed
  counts         print what the code weighs: files of a way, public surface, crates, lines, allocations
  interop        install what is missing, build the peers and run the tests against Redisson and others
  servers        fetch the other servers that tests start, into target/servers
  bench [args]   run the benchmark against a real server; arguments go to it (--help, --peers, --callgrind)
  simulate       run seeds of the simulated world; arguments go to it (--seeds, --from, --hours, --json)
  soak           lock on real servers that fail; arguments go to it (--hours, --store, --json)
  mutants        plant faults in a copy of the library, and show which seed finds each
  proof          all three, and write docs/proof: about forty minutes
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
        ("check", true) => test::check(),
        ("counts", true) => counts::run(),
        ("interop", true) => interop::run(),
        ("bench", _) => bench::run(&rest),
        ("simulate" | "soak" | "mutants", _) => proof::run(&command, &rest),
        ("proof", true) => proof::write(),
        ("servers", true) => servers::install(),
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
