//! Instructions of the client per uncontended pair, as callgrind counts them: they do not depend on what
//! else the machine does.
//!
//! A contender runs twice, with few pairs and with many; the difference is what pairs cost, without the
//! start. callgrind runs one thread at a time and slows the client down, so fewer replies arrive together
//! than in reality.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use super::Bench;
use crate::Result;
use crate::processes::{Built, LEASE, Library};
use crate::report::{Aim, Row};

const TASKS: usize = 64;
const PAIRS: [u64; 2] = [1_280, 7_680];
const PAIRS_QUICK: [u64; 2] = [640, 2_560];

/// Of the contenders in Rust.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let built = Built::rust()?;
    let mut rows = Vec::new();
    for library in [Library::Lock, Library::Mutex, Library::Rslock] {
        let counts = if bench.plan.quick { PAIRS_QUICK } else { PAIRS };
        let [few, many] = counts.map(|pairs| instructions(bench, library, &built, pairs));
        let per_pair = (many? - few?) as f64 / (counts[1] - counts[0]) as f64;
        let row =
            Row::of("instructions per pair", library.name(), "instructions", &[per_pair]).by(TASKS);
        rows.push(match library {
            Library::Rslock => row,
            _ => row.aiming([Aim::at_most("instructions", [per_pair], 9_000.0)]),
        });
    }
    let reference = rows[0].clone();
    Ok(rows.into_iter().map(|row| row.against(&reference)).collect())
}

/// All instructions of a process that does so many pairs.
fn instructions(bench: &Bench, library: Library, built: &Built, pairs: u64) -> Result<u64> {
    let contender = library.command(built, &bench.url(), LEASE)?;
    let profile = std::env::temp_dir().join(format!("lockkeeper-callgrind-{}", std::process::id()));
    let mut out = std::ffi::OsString::from("--callgrind-out-file=");
    out.push(&profile);
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--tool=callgrind").arg(out).arg(contender.get_program());
    valgrind.args(contender.get_args());
    let mut child = valgrind
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("valgrind: {error}; `cargo xtask bench` installs it"))?;
    let mut input = child.stdin.take().ok_or("its input is piped")?;
    writeln!(input, "pairs bench:{}:inst {TASKS} {pairs}", library.tag())?;
    drop(input);
    let output = child.wait_with_output()?;
    let _ = fs::remove_file(profile);
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{}: {}\n{said}", library.name(), output.status).into());
    }
    let collected = said.lines().find_map(|line| line.split_once("Collected : "));
    let collected = collected.and_then(|(_, count)| count.trim().parse().ok());
    collected.ok_or_else(|| format!("callgrind does not say what it counted:\n{said}").into())
}
