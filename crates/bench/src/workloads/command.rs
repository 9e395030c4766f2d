//! The command line: what `run` adds to a command, and what `ls` takes for many locks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Bench;
use crate::Result;
use crate::processes::sibling;
use crate::report::{Aim, Row};

/// How many locks are listed: the second must not take more memory than the first.
const LISTED: [usize; 2] = [10_000, 100_000];

/// A directory that is gone at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("lockkeeper-bench-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `true` by itself, under flock(1), and under a lock in a file and on the server.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let (place, binary) = (Place::new()?, sibling("lockkeeper")?.display().to_string());
    let (flocked, stored) = (place.file("flock"), format!("file:{}", place.file("locks.db")));
    let url = bench.url();
    let contenders: [(&str, Vec<&str>, Option<f64>); 4] = [
        ("plain exec", vec!["true"], None),
        ("flock(1)", vec!["flock", &flocked, "true"], None),
        ("lockkeeper, file", vec![&binary, "--url", &stored, "run", "a", "--", "true"], Some(5.0)),
        ("lockkeeper, Redis", vec![&binary, "--url", &url, "run", "a", "--", "true"], Some(5.0)),
    ];
    let results = bench.interleave(contenders.len(), |_, contender, time| {
        time_of(&contenders[contender].1, time)
    })?;
    let plain = results[0].clone();
    let rows = contenders.iter().zip(&results).map(|((name, _, aim), values)| {
        let row = Row::of("run adds to `true`", name, "ms", &differences(values, &plain));
        match aim {
            Some(bound) => {
                let added = row.values.clone();
                row.aiming([Aim::at_most("ms", added, *bound)])
            }
            None => row,
        }
    });
    Ok(rows.collect())
}

/// Round by round, so that a slow minute of the machine hits both.
fn differences(values: &[f64], plain: &[f64]) -> Vec<f64> {
    values.iter().zip(plain).map(|(value, plain)| value - plain).collect()
}

/// Runs it again and again for `time`; the median of what one takes, in milliseconds.
fn time_of(line: &[&str], time: Duration) -> Result<f64> {
    let (start, mut spans) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let begun = Instant::now();
        let status = Command::new(line[0]).args(&line[1..]).stdin(Stdio::null()).status()?;
        if !status.success() {
            return Err(format!("{line:?}: {status}").into());
        }
        spans.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    spans.sort_by(f64::total_cmp);
    Ok(spans[spans.len() / 2])
}

/// `ls` into a file, as locks become many.
pub(super) fn list(bench: &mut Bench) -> Result<Vec<Row>> {
    let (place, binary, url) = (Place::new()?, sibling("lockkeeper")?, bench.url());
    let mut rows = Vec::new();
    let mut most = Vec::new();
    for count in LISTED {
        fill(bench, count)?;
        let mut taken = Vec::new();
        for _ in 0..bench.plan.rounds {
            let (span, memory, lines) = listed(&binary, &url, &place.file("list"))?;
            if lines <= count {
                return Err(format!("only {lines} lines for {count} locks").into());
            }
            taken.push(span);
            most.push(memory);
        }
        let row = Row::of(&format!("ls of {count} locks"), "lockkeeper", "s", &taken);
        let spans = row.values.clone();
        rows.push(row.aiming([Aim::at_most("s", spans, 2.0)]));
        let memory = Row::of(&format!("ls of {count} locks"), "memory", "MiB", &most);
        most.clear();
        rows.push(match rows.iter().find(|row| row.unit == "MiB").map(|row| row.median) {
            None => memory,
            Some(few) => {
                let growth = memory.median / few;
                memory.aiming([Aim::at_most("ratio to fewer", [growth], 1.2)])
            }
        });
    }
    let mut connection = redis::Client::open(bench.url())?.get_connection()?;
    redis::cmd("FLUSHALL").query::<()>(&mut connection)?;
    Ok(rows)
}

/// So many locks in the form in which anybody makes them.
fn fill(bench: &Bench, count: usize) -> Result<()> {
    let client = redis::Client::open(bench.url())?;
    let mut connection = client.get_connection()?;
    for from in (0..count).step_by(1000) {
        let mut pipe = redis::pipe();
        for number in from..count.min(from + 1000) {
            let name = format!("bench:list:{number}");
            let owner = format!("6e0c0000-0000-4000-8000-000000000000:{number}");
            pipe.hset(&name, owner, 1).ignore().pexpire(&name, 3_600_000).ignore();
        }
        pipe.query::<()>(&mut connection)?;
    }
    Ok(())
}

/// How long one list takes in seconds, the most memory it had in MiB, and how many lines it has.
fn listed(binary: &Path, url: &str, output: &str) -> Result<(f64, f64, usize)> {
    let begun = Instant::now();
    let mut child = Command::new(binary)
        .args(["--url", url, "ls", "bench:list:*"])
        .stdout(fs::File::create(output)?)
        .spawn()?;
    let mut most = 0.0_f64;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        most = most.max(high_water(child.id()));
        std::thread::sleep(Duration::from_millis(2));
    };
    let span = begun.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("ls: {status}").into());
    }
    Ok((span, most, fs::read(output)?.iter().filter(|byte| **byte == b'\n').count()))
}

/// What the kernel says a process had at most, in MiB; 0 where it does not say.
fn high_water(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
