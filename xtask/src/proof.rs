//! The simulation, the soak, the mutants, and the page that they fill.

use std::fs;

use crate::install::{self, REDIS_SERVER};
use crate::run::{Outcome, Step, root};

/// Runs one of them with these arguments.
pub(crate) fn run(command: &str, args: &[String]) -> Outcome {
    if command == "soak" {
        install::tools(&[REDIS_SERVER])?;
    }
    let mut line = vec!["cargo", "run", "--quiet", "--release", "-p", "proof", "--", command];
    line.extend(args.iter().map(String::as_str));
    Step::new(&line).run()
}

/// Runs all, and writes the page.
pub(crate) fn write() -> Outcome {
    let folder = root().join("docs/proof");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let json = |name: &str| folder.join(name).display().to_string();
    let [simulation, soak, mutants] = ["simulation.json", "soak.json", "mutants.json"].map(json);
    for (command, line) in [
        ("mutants", vec!["--json", &mutants]),
        ("simulate", vec!["--seeds", "5000", "--json", &simulation]),
        ("soak", vec!["--hours", "0.25", "--json", &soak]),
        ("page", vec![]),
    ] {
        run(command, &line.into_iter().map(str::to_owned).collect::<Vec<_>>())?;
    }
    Ok(())
}
