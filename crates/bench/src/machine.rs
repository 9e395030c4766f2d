//! What a result depends on besides the code: the machine, the versions, and what else ran.

use std::fs;
use std::process::Command;

use serde_json::{Map, Value, json};

use crate::Result;
use crate::bench::Plan;
use crate::report::Row;

/// Facts that are known before the first measurement.
pub(crate) fn facts(plan: &Plan, redis: &str, libraries: &[(String, String)]) -> Value {
    // Our own two locks are of one library.
    let name = |name: &str| name.split(' ').next().unwrap_or_default().to_owned();
    let libraries: Map<_, _> =
        libraries.iter().map(|(library, version)| (name(library), json!(version))).collect();
    json!({
        "quick": plan.quick,
        "rounds": plan.rounds,
        "turn_seconds": plan.slice.as_secs_f64(),
        "date": output(&["date", "-u", "+%Y-%m-%d"]),
        "commit": commit(),
        "cpu": line_of("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_gib": gibibytes(&line_of("/proc/meminfo", "MemTotal")),
        "system": line_of("/etc/os-release", "PRETTY_NAME").trim_matches('"'),
        "kernel": output(&["uname", "-sr"]),
        "rust": output(&["rustc", "--version"]),
        "redis": redis,
        "flock": output(&["flock", "--version"]),
        "valgrind": output(&["valgrind", "--version"]),
        "libraries": libraries,
        "workloads": {},
        "other_cores": {},
        "failed": {},
    })
}

/// Notes how many cores were busy with something else during a workload.
pub(crate) fn note_other_cores(facts: &mut Value, workload: &str, cores: f64) {
    facts["other_cores"][workload] = json!((cores * 100.0).round() / 100.0);
}

/// Notes that a workload has no results, and why.
pub(crate) fn note_failure(facts: &mut Value, workload: &str, error: &str) {
    facts["failed"][workload] = json!(error);
}

/// Notes which rows a workload gave.
pub(crate) fn note_rows(facts: &mut Value, workload: &str, rows: &[Row]) {
    let mut names: Vec<_> = rows.iter().map(|row| row.workload.as_str()).collect();
    names.dedup();
    facts["workloads"][workload] = json!(names);
}

/// A workload that was measured.
pub(crate) struct Measured<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    rows: &'a Value,
}

impl<'a> Measured<'a> {
    /// What its rows say that it is.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.rows.as_array().into_iter().flatten().filter_map(Value::as_str)
    }
}

/// What a run has measured.
pub(crate) fn workloads(run: &Value) -> impl Iterator<Item = Measured<'_>> {
    let workloads = run["workloads"].as_object().into_iter().flatten();
    workloads.map(|(name, rows)| Measured { name, rows })
}

/// Takes back what a run says about workloads that were measured again.
pub(crate) fn forget(run: &mut Value, again: &[Measured<'_>]) {
    for part in ["workloads", "other_cores", "failed"] {
        let part = run[part].as_object_mut();
        part.into_iter()
            .for_each(|part| part.retain(|name, _| again.iter().all(|new| new.name != name)));
    }
}

/// As a file.
pub(crate) fn text(runs: &[Value]) -> Result<String> {
    Ok(serde_json::to_string_pretty(runs)? + "\n")
}

/// Which commit is measured, and whether files differ from it. Those that hold results do not count: the run
/// before may have written them.
fn commit() -> String {
    let commit = output(&["git", "describe", "--always", "--exclude=*"]);
    let results = [":/", ":(top,exclude)docs/bench", ":(top,exclude)README.md"];
    let mut diff = Command::new("git");
    diff.args(["diff", "--quiet", "HEAD", "--"]).args(results);
    // 1 means that there are differences.
    match diff.status().ok().and_then(|status| status.code()) {
        Some(1) => format!("{commit}-dirty"),
        _ => commit,
    }
}

fn output(line: &[&str]) -> String {
    let output = Command::new(line[0]).args(&line[1..]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".into())
}

/// As the kernel writes them: `24684100 kB`.
fn gibibytes(text: &str) -> Option<f64> {
    let kib: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some((kib / 1024.0 / 102.4).round() / 10.0)
}

/// What follows a name and a separator in a file of the system.
fn line_of(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map_or("unknown".into(), |rest| rest.trim_matches([' ', '\t', ':', '=']).to_owned())
}
