//! `cargo xtask simulate`, `mutants`: runs them, prints what they have shown, and writes it as JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use proof::simulation::{self, Report};
use proof::soak::{self, Store};
use proof::{mutants, page};
use serde_json::{Value, json};

const USAGE: &str = "\
usage: cargo xtask simulate [--seeds N] [--from SEED] [--hours H] [--until-failure] [--json FILE]
       cargo xtask soak [--hours H] [--store redis|sentinel|cluster|quorum3|quorum5|file] [--json FILE]
       cargo xtask mutants [--seeds N] [--json FILE]";

/// The options of all commands.
#[derive(Default)]
struct Options {
    seeds: Option<u64>,
    from: Option<u64>,
    hours: Option<f64>,
    until_failure: bool,
    store: Option<Store>,
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    if command == "worker" {
        return work(&args.collect::<Vec<_>>());
    }
    let done = match (command.as_str(), options(args)) {
        ("simulate", Some(options)) => simulate(&options),
        ("soak", Some(options)) => soak(&options),
        ("page", Some(_)) => page::write(&root()),
        ("mutants", Some(options)) => find_mutants(&options),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{command}: {message}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The commit that this was built from, as far as git tells.
fn commit() -> String {
    let line = ["describe", "--always", "--dirty", "--exclude", "*"];
    let output = Command::new("git").args(line).current_dir(root()).output();
    output
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}

/// A process of the soak.
fn work(words: &[String]) -> ExitCode {
    let [url, store, log] = words else { return ExitCode::from(2) };
    let Some(store) = Store::of(store) else { return ExitCode::from(2) };
    match soak::worker::run(url, store, Path::new(log)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options::default();
    while let Some(word) = args.next() {
        let mut value = || args.next();
        match word.as_str() {
            "--seeds" => options.seeds = Some(value()?.parse().ok()?),
            "--from" => options.from = Some(value()?.parse().ok()?),
            "--hours" => options.hours = Some(value()?.parse().ok()?),
            "--store" => options.store = Some(Store::of(&value()?)?),
            "--until-failure" => options.until_failure = true,
            "--json" => options.json = Some(value()?.into()),
            _ => return None,
        }
    }
    Some(options)
}

fn write(json: &Value, file: Option<&Path>) -> Result<(), String> {
    let Some(file) = file else { return Ok(()) };
    fs::write(file, format!("{json:#}\n")).map_err(|error| format!("{}: {error}", file.display()))
}

fn simulate(options: &Options) -> Result<(), String> {
    let (started, from) = (Instant::now(), options.from.unwrap_or(1));
    let limit = options.hours.map(|hours| Duration::from_secs_f64(hours * 3600.0));
    let seeds = options.seeds.unwrap_or(if limit.is_some() { u64::MAX } else { 100 });
    let (mut sum, mut failed, mut seed) = (Report::default(), 0, from);
    while seed - from < seeds && limit.is_none_or(|limit| started.elapsed() < limit) {
        let report = simulation::run(seed, false);
        if !report.violations.is_empty() {
            failed += 1;
            println!(
                "seed {seed} fails; to replay it: cargo xtask simulate --seeds 1 --from {seed}"
            );
            // Alone, with the last events of the name.
            let shown = if seeds == 1 {
                simulation::run(seed, true).violations
            } else {
                report.violations.clone()
            };
            shown.iter().take(5).for_each(|violation| println!("    {violation}"));
            if options.until_failure {
                return Err("a seed has failed".to_owned());
            }
        }
        sum.add(report);
        seed += 1;
    }
    let (seconds, seeds) = (started.elapsed().as_secs_f64(), seed - from);
    let rate = sum.operations as f64 / seconds;
    println!(
        "{seeds} seeds: {} operations, {} holds, {} requests",
        sum.operations, sum.grants, sum.requests
    );
    println!(
        "{rate:.0} operations a second; the longest wait without faults: {:?}",
        sum.longest_wait
    );
    for (fault, count) in &sum.faults {
        println!("{count:>12}  {fault}");
    }
    let json = json!({
        "commit": commit(), "from": from, "seeds": seeds, "failed": failed, "seconds": seconds, "operations": sum.operations,
        "holds": sum.grants, "requests": sum.requests, "faults": sum.faults,
        "longest_wait_ms": sum.longest_wait.as_millis() as u64, "violations": sum.violations,
    });
    write(&json, options.json.as_deref())?;
    if failed == 0 { Ok(()) } else { Err(format!("{failed} seeds have failed")) }
}

/// Soaks one store, or each in turn; the hours are those of all.
fn soak(options: &Options) -> Result<(), String> {
    let stores = options
        .store
        .map_or_else(|| Store::ALL.map(|(_, store)| store).to_vec(), |store| vec![store]);
    let span = Duration::from_secs_f64(options.hours.unwrap_or(0.2) * 3600.0 / stores.len() as f64);
    let (mut rows, mut failed) = (Vec::new(), 0);
    for store in stores {
        println!("{store:?}, for {span:?}");
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let (row, violations) = soak::run(&program, store, span)?;
        println!("{row:#}");
        violations.iter().take(20).for_each(|violation| println!("    {violation}"));
        failed += violations.len();
        rows.push(row);
        write(&Value::from(rows.clone()), options.json.as_deref())?;
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} violations")) }
}

fn find_mutants(options: &Options) -> Result<(), String> {
    let root = root();
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let seeds = options.seeds.unwrap_or(800);
    let (json, missed) = mutants::run(&root, &target, seeds)?;
    write(&json, options.json.as_deref())?;
    match &missed[..] {
        [] => Ok(()),
        missed => Err(format!("not found within {seeds} seeds: {}", missed.join("; "))),
    }
}
