//! The benchmark of BENCH.md: starts its own server, lets contenders take turns, prints a table,
//! writes JSON.
//!
//! The machines it runs on are noisy, so nothing here is to be read alone: contenders are
//! interleaved, results are medians of rounds, and what counts is the ratio to a reference of the
//! same run, and the counts that do not vary.

mod args;
mod bench;
mod contenders;
mod docs;
mod form;
mod hold;
mod machine;
mod page;
mod peers;
mod probe;
mod processes;
mod report;
mod wire;
mod workloads;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use args::Args;
use bench::{Bench, Plan, Workload};
use docs::Docs;
use probe::Probe;
use processes::{Peers, raw};
use report::Row;
use testkit::RedisServer;

/// A benchmark that cannot go on says why and stops; no caller handles its errors.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// Above this many cores used by other processes a figure says more about them than about us.
const QUIET: f64 = 0.1;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let outcome = match words.split_first() {
        Some((first, rest)) if first == raw::WORD => raw::serve(rest),
        _ => Args::parse(words).and_then(run),
    };
    match outcome {
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
    if let Some(folder) = &args.page {
        return page::write(folder, args.readme.as_deref());
    }
    let chosen = chosen(&args);
    if args.list {
        chosen.iter().for_each(|workload| println!("{}", workload.name));
        return Ok(());
    }
    if chosen.is_empty() {
        return Err("no workload of that name; see --list".into());
    }
    if args.peers {
        let seconds: u64 = chosen.iter().map(|workload| workload.seconds).sum();
        // By experience: some waits cannot be shortened.
        let seconds = if args.quick { seconds / 5 } else { seconds };
        eprintln!("about {seconds} s on two quiet cores, after the peers are built");
    }
    // Before the first measurement: it may not be readable.
    let docs = args.docs.as_ref().map(|folder| Docs::open(folder, args.only.is_some()));
    let docs = docs.transpose()?;
    // Held until the end: the server stops when it is dropped.
    let server = RedisServer::start();
    let mut bench = prepare(&server, &args)?;
    let versions = bench.peers.as_mut().map_or(Ok(Vec::new()), Peers::versions)?;
    let redis = server.info_field("server", "redis_version");
    let mut facts = machine::facts(&bench.plan, &redis, &versions);
    let start = Instant::now();
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for workload in chosen {
        eprintln!("{} …", workload.name);
        let begun = Instant::now();
        let (measured, others) = match probe::other_cores(|| (workload.run)(&mut bench)) {
            Ok(measured) => measured,
            Err(error) => {
                eprintln!("{} failed: {error}", workload.name);
                machine::note_failure(&mut facts, workload.name, &error.to_string());
                failed.push(workload.name);
                // Their processes are in an unknown state.
                bench.peers = None;
                bench.peers = peers_of(&args, &bench.url())?;
                continue;
            }
        };
        let seconds = begun.elapsed().as_secs();
        eprintln!("… {seconds} s");
        println!("{}", report::markdown(&measured));
        if let Some(cores) = others.filter(|&cores| cores > QUIET) {
            println!("Not quiet: other processes used {cores:.1} cores meanwhile.\n");
            machine::note_other_cores(&mut facts, workload.name, cores);
        }
        machine::note_rows(&mut facts, workload.name, &measured);
        if report_failures(&measured) {
            failed.push(workload.name);
        }
        rows.extend(measured);
        // Each time, so that a run that is cut short leaves what it has.
        if let Some(file) = &args.json {
            std::fs::write(file, report::json(&rows))?;
        }
        if let Some(docs) = &docs {
            facts["seconds"] = start.elapsed().as_secs().into();
            docs.write(&rows, &facts, None)?;
        }
    }
    // Once more, for a failure of the last workload.
    if let Some(docs) = &docs {
        facts["seconds"] = start.elapsed().as_secs().into();
        docs.write(&rows, &facts, args.readme.as_deref())?;
    }
    println!("{}", report::LEGEND);
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// Prints which rows have no result, and why; returns whether there are any.
fn report_failures(rows: &[Row]) -> bool {
    let failures: Vec<_> =
        rows.iter().filter_map(|row| Some((row, row.failure.as_ref()?))).collect();
    for (row, why) in &failures {
        eprintln!("{}, {} failed: {why}", row.workload, row.contender);
    }
    !failures.is_empty()
}

fn chosen(args: &Args) -> Vec<&'static Workload> {
    let list: Vec<_> = match (args.callgrind, args.peers) {
        (true, _) => vec![&workloads::INSTRUCTIONS],
        (false, false) => workloads::ALL.iter().collect(),
        (false, true) => {
            let own = workloads::ALL.iter().filter(|workload| workload.seconds > 0);
            peers::ALL.iter().chain(own).chain([&workloads::INSTRUCTIONS]).collect()
        }
    };
    let named = |workload: &&Workload| {
        args.only.as_ref().is_none_or(|only| workload.name.contains(only.as_str()))
    };
    list.into_iter().filter(named).collect()
}

fn prepare(server: &RedisServer, args: &Args) -> Result<Bench> {
    let address = ([127, 0, 0, 1], server.port()).into();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (rounds, slice) = match (args.quick, args.peers) {
        (true, true) => (2, 100),
        (true, false) => (5, 200),
        // There are more contenders, and more to wait for.
        (false, true) => (5, 200),
        (false, false) => (9, 600),
    };
    let plan = Plan {
        rounds: args.rounds.unwrap_or(rounds),
        slice: Duration::from_millis(slice),
        quick: args.quick,
    };
    let peers = peers_of(args, &format!("redis://{address}"))?;
    Ok(Bench { runtime, address, probe: Probe::connect(&[address])?, plan, peers })
}

/// Other libraries, if they are asked for.
fn peers_of(args: &Args, url: &str) -> Result<Option<Peers>> {
    match args.peers && !args.callgrind {
        true => Peers::build(url.to_owned()).map(Some),
        false => Ok(None),
    }
}
