//! The command line: what `run` adds to a command.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Bench;
use crate::Result;
use crate::processes::sibling;
use crate::report::{Aim, Row};

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
