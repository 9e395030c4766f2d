//! `cargo xtask counts`: what the code weighs, so that a change sees what it costs.
//!
//! The files of a way are counted by callgrind in a debug build, where every call is one: a process acquires
//! and releases an uncontended lock on a real server, on one thread, and only these two calls are counted.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::install;
use crate::run::{Outcome, Step, root, target};

/// What the ways are counted in.
const SOURCES: &str = "crates/lockkeeper/src/";

/// How often a way is counted.
const RUNS: usize = 3;

/// Counts and prints everything.
pub(crate) fn run() -> Outcome {
    println!("\n==> counts");
    still()?;
    install::tools(&[install::REDIS_SERVER, install::VALGRIND])?;
    moving()
}

/// What needs no server.
fn still() -> Outcome {
    let api = read(&root().join("crates/lockkeeper/api.txt"))?;
    let items = api.lines().filter(|line| !line.starts_with(' ')).count();
    let is_method = |line: &&str| line.starts_with("  pub ") && line.contains("fn ");
    row("public items / methods", &[items, api.lines().filter(is_method).count()]);
    let crates = [
        tree(&["-p", "lockkeeper"])?,
        tree(&["-p", "lockkeeper", "--features", "tls"])?,
        tree(&["-p", "lockkeeper", "--features", "tls,file"])?,
        tree(&["-p", "lockkeeper-cli"])?,
    ];
    row("crates: default / tls / tls,file / command line", &crates);
    let lines = |folder: &str| lines(&root().join("crates").join(folder));
    let (library, tests) = (lines("lockkeeper/src"), lines("lockkeeper/tests"));
    let programs = lines("lockkeeper-cli/src") + lines("bench");
    row("lines: library / its tests / command line and bench", &[library, tests, programs]);
    let readme = read(&root().join("README.md"))?;
    row("README: words / lines", &[readme.split_whitespace().count(), readme.lines().count()]);
    Ok(())
}

/// What a client does at a server.
fn moving() -> Outcome {
    // With the features of the tests, which have built most of it.
    let program = ["--workspace", "--all-features", "--bin", "bench-allocations"];
    Step::new(&[&["cargo", "build", "--quiet"][..], &program].concat()).run()?;
    let server = Server::start()?;
    let ways = ["acquire_once", "release_once"].map(|way| server.way(way));
    let [acquire, release] = ways;
    let (acquire, release) = (acquire?, release?);
    row("files of an acquire / a release", &[acquire.0, release.0]);
    row("calls from file to file", &[acquire.1, release.1]);
    println!("{:>24}  allocations per pair, 64 tasks", server.count(&["lock", "64", "200"])?);
    println!("{:>24}  bytes per waiter", server.count(&["waiting", "2000"])?);
    // It needs a release build of the benchmark.
    println!("{:>24}  instructions per pair", "xtask bench --callgrind");
    Ok(())
}

fn row(what: &str, numbers: &[usize]) {
    let numbers: Vec<_> = numbers.iter().map(usize::to_string).collect();
    println!("{:>24}  {what}", numbers.join(" / "));
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The crates behind a package, without itself.
fn tree(of: &[&str]) -> Result<usize, String> {
    let line = ["tree", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let output = Command::new("cargo").args(line).args(of).current_dir(root()).output();
    let output = output.map_err(|error| format!("cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout).replace(" (*)", "");
    Ok(text.lines().filter(|line| !line.is_empty()).collect::<BTreeSet<_>>().len() - 1)
}

/// The lines of Rust below a folder.
fn lines(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let count = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => lines(&path),
        Some(ending) if ending == "rs" => {
            fs::read_to_string(&path).map_or(0, |t| t.lines().count())
        }
        _ => 0,
    };
    entries.map(|entry| count(entry.path())).sum()
}

/// A server for the count; it ends with this.
struct Server {
    child: Child,
    folder: PathBuf,
}

impl Server {
    fn start() -> Result<Self, String> {
        let folder = target().join("counts");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let socket = folder.join("socket");
        let line = ["--port", "0", "--save", "", "--unixsocket"];
        let mut command = Command::new("redis-server");
        command.args(line).arg(&socket).current_dir(&folder).stdout(Stdio::null());
        let child = command.spawn().map_err(|error| format!("redis-server: {error}"))?;
        let server = Self { child, folder };
        for _ in 0..200 {
            if socket.exists() {
                return Ok(server);
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Err("redis-server has not made its socket".to_owned())
    }

    /// Runs the counting program.
    fn program(&self, before: &[String], words: &[&str]) -> Result<String, String> {
        let program = target().join("debug/bench-allocations").display().to_string();
        let url = format!("redis+unix://{}", self.folder.join("socket").display());
        let line: Vec<_> = before.iter().cloned().chain([program, url]).collect();
        let output = Command::new(&line[0]).args(&line[1..]).args(words).output();
        let output = output.map_err(|error| format!("{}: {error}", line[0]))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn count(&self, words: &[&str]) -> Result<String, String> {
        self.program(&[], words)
    }

    /// The fewest of some runs: the client's background task may run during a call.
    fn way(&self, function: &str) -> Result<(usize, usize), String> {
        let mut fewest = self.counted(function)?;
        for _ in 1..RUNS {
            fewest = fewest.min(self.counted(function)?);
        }
        Ok(fewest)
    }

    /// The files that a call passes through, and how often one of them calls another.
    fn counted(&self, function: &str) -> Result<(usize, usize), String> {
        let profile = self.folder.join(function);
        let valgrind = [
            "valgrind".to_owned(),
            "--tool=callgrind".to_owned(),
            format!("--toggle-collect=*{function}*"),
            format!("--callgrind-out-file={}", profile.display()),
        ];
        self.program(&valgrind, &["pair"])?;
        let counted = files_and_entries(&read(&profile)?);
        match counted {
            (0, _) => Err(format!("callgrind has seen no file of {SOURCES} in {function}")),
            counted => Ok(counted),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Reads a profile of callgrind. Names stand in full at their first use: `fl=(7) /path`, then `fl=(7)`.
fn files_and_entries(profile: &str) -> (usize, usize) {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let (mut files, mut entries) = (BTreeSet::new(), 0);
    let (mut here, mut called) = ("", "");
    for line in profile.lines() {
        if let Some(calls) = line.strip_prefix("calls=") {
            let count = calls.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
            if [here, called].iter().all(|file| file.contains(SOURCES)) && called != here {
                entries += count;
            }
            // It is said only where it differs from the caller's.
            called = here;
            continue;
        }
        let Some((key @ ("fl" | "cfi" | "cfl"), name)) = line.split_once('=') else { continue };
        let (id, full) = name.split_once(' ').unwrap_or((name, ""));
        if !full.is_empty() {
            names.insert(id, full);
        }
        let file = names.get(id).copied().unwrap_or_default();
        if key == "fl" {
            (here, called) = (file, file);
        } else {
            called = file;
        }
        if file.contains(SOURCES) {
            files.insert(file);
        }
    }
    (files.len(), entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_as_files_and_entries() {
        let profile = "fl=(1) /x/crates/lockkeeper/src/lock.rs\nfn=(1) lock\n3 10\n\
            cfi=(2) /x/crates/lockkeeper/src/engine/acquire.rs\ncfn=(2) run\ncalls=4 7\n3 40\n\
            cfn=(3) own\ncalls=9 8\n3 90\nfl=(2)\nfn=(2)\n7 40\ncfi=(3) /rustc/core.rs\ncfn=(4)\ncalls=5 1\n";
        assert_eq!(files_and_entries(profile), (2, 4));
    }
}
