//! The benchmark: installs what it needs, then builds and runs it.

use crate::install::{self, GO, JAVA, PYTHON, REDIS_SERVER, VALGRIND};
use crate::run::{Outcome, Step};

/// Runs it with these arguments.
pub(crate) fn run(args: &[String]) -> Outcome {
    let asked = |option: &str| args.iter().any(|arg| arg == option);
    let measures = !(asked("--page") || asked("--list") || asked("--help") || asked("-h"));
    if measures {
        install::tools(match (asked("--peers"), asked("--callgrind")) {
            (true, _) => &[REDIS_SERVER, JAVA, PYTHON, GO, VALGRIND],
            (_, true) => &[REDIS_SERVER, VALGRIND],
            _ => &[REDIS_SERVER],
        })?;
        // It measures the command line, too, and has programs of its own beside it.
        Step::new(&["cargo", "build", "--release", "-p", "lockkeeper-cli"]).run()?;
        Step::new(&["cargo", "build", "--release", "-p", "bench", "--bins"]).run()?;
    }
    let mut line = vec!["cargo", "run", "--release", "-p", "bench", "--"];
    line.extend(args.iter().map(String::as_str));
    Step::new(&line).run()
}
