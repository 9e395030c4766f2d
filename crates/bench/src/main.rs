//! The benchmark of BENCH.md: starts its own server, lets contenders take turns, prints a table,
//! writes JSON.
//!
//! The machines it runs on are noisy, so nothing here is to be read alone: contenders are
//! interleaved, results are medians of rounds, and what counts is the ratio to a reference of the
//! same run, and the counts that do not vary.

mod args;
mod contenders;
mod form;
mod probe;
mod report;
mod wire;
mod workloads;

use std::process::ExitCode;
use std::time::Duration;

use args::Args;
use probe::Probe;
use testkit::RedisServer;
use workloads::{ALL, Bench, Plan, Workload};

/// A benchmark that cannot go on says why and stops; nobody handles its errors.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// Above this many cores used by strangers a figure says more about them than about us.
const QUIET: f64 = 0.1;

fn main() -> ExitCode {
    match Args::parse(std::env::args().skip(1)).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<()> {
    if args.help {
        println!("{}", args::HELP);
        return Ok(());
    }
    let chosen: Vec<_> = ALL.iter().filter(|workload| is_chosen(workload, &args)).collect();
    if args.list {
        chosen.iter().for_each(|workload| println!("{}", workload.name));
        return Ok(());
    }
    if chosen.is_empty() {
        return Err("no workload of that name; see --list".into());
    }
    // Held until the end: the server stops when it is dropped.
    let server = RedisServer::start();
    let mut bench = bench(&server, &args)?;
    let mut rows = Vec::new();
    for workload in chosen {
        eprintln!("{} …", workload.name);
        let mut gauge = Probe::connect(bench.address)?;
        let (measured, others) = gauge
            .strangers(|| (workload.run)(&mut bench))
            .map_err(|error| format!("{}: {error}", workload.name))?;
        println!("{}", report::markdown(&measured));
        if let Some(cores) = others.filter(|&cores| cores > QUIET) {
            println!("Not quiet: other processes used {cores:.1} cores meanwhile.\n");
        }
        rows.extend(measured);
        // Each time, so that a workload that fails does not take the others' results along.
        if let Some(file) = &args.json {
            std::fs::write(file, report::json(&rows))?;
        }
    }
    println!("{}", report::LEGEND);
    Ok(())
}

fn is_chosen(workload: &Workload, args: &Args) -> bool {
    args.only.as_ref().is_none_or(|only| workload.name.contains(only.as_str()))
}

fn bench(server: &RedisServer, args: &Args) -> Result<Bench> {
    let address = ([127, 0, 0, 1], server.port()).into();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (rounds, slice) = if args.quick { (5, 200) } else { (9, 600) };
    let plan = Plan {
        rounds: args.rounds.unwrap_or(rounds),
        slice: Duration::from_millis(slice),
        quick: args.quick,
    };
    Ok(Bench { runtime, address, probe: Probe::connect(address)?, plan })
}
