//! Small faults of the library, and within how many seeds the simulation finds each: how much its silence means.
//!
//! Each is one replacement in a copy of the workspace. The text that is replaced must stand there exactly once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A fault of the library.
pub struct Mutant {
    /// What is wrong then.
    pub what: &'static str,
    /// A file of the library's sources.
    pub file: &'static str,
    from: &'static str,
    to: &'static str,
}

const fn mutant(
    what: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
) -> Mutant {
    Mutant { what, file, from, to }
}

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    mutant(
        "a deadline is one lease late",
        "engine/lease.rs",
        "sent.plus_millis(ttl).minus(core.drift(ttl))",
        "sent.plus_millis(2 * ttl).minus(core.drift(ttl))",
    ),
    mutant(
        "a lease counts from its answer",
        "engine/lease.rs",
        "let Grant { pending, mut front, token, sent } = grant;",
        "let Grant { pending, mut front, token, .. } = grant;\n        let sent = now;",
    ),
    mutant(
        "a loss wakes no task",
        "engine/lease.rs",
        "        self.ended.notify_waiters();\n        if let Some(owner) = &self.named {",
        "        if let Some(owner) = &self.named {",
    ),
    mutant(
        "the watchdog does not renew",
        "engine/lease.rs",
        "false => state.holds.renewed_ttl(),",
        "false => None,",
    ),
    mutant(
        "a grant after its deadline is a grant",
        "engine/acquire.rs",
        "now < deadline(&self.core, sent, self.term.ttl)",
        "now < deadline(&self.core, sent, self.term.ttl) || now >= sent",
    ),
    mutant(
        "a cancelled acquire is not undone",
        "engine/pending_acquire.rs",
        "        if self.armed {\n            tracing::debug!",
        "        if false {\n            tracing::debug!",
    ),
    mutant(
        "the answer to a dropped acquire is ignored",
        "engine/pending_acquire.rs",
        "                pending.note_answer(&answer, sent, waits);\n            }));",
        "                let _ = (answer, sent, waits);\n                pending.disarm();\n            }));",
    ),
    mutant(
        "work that a caller dropped is not completed",
        "engine/reaper.rs",
        "if let Some(work) = self.work.take().filter(|_| self.started) {",
        "if let Some(work) = self.work.take().filter(|_| false) {",
    ),
    mutant(
        "a handoff is accepted without a look at the time left",
        "engine/wait.rs",
        "Some(Served::Granted(grant)) if self.is_in_time(grant.sent, now) => {",
        "Some(Served::Granted(grant)) => {",
    ),
    mutant(
        "the front of the local queue ends with its waiter",
        "engine/local_queue.rs",
        "if let Some((waiter, kept)) = self.core.local_queues.next_or_close(self) {",
        "if self.released.is_some()\n            && let Some((waiter, kept)) = self.core.local_queues.next_or_close(self)\n        {",
    ),
    mutant(
        "wake-ups of a lock are dropped",
        "model/mod.rs",
        "        self.wake(Topic::Freed(name.clone()), b\"0\");",
        "        let _ = name;",
    ),
    mutant(
        "a waiter sleeps without a try after it has subscribed",
        "engine/wait.rs",
        "Wakes::None => self.subscribe(self.pause(ttl)).await,",
        "Wakes::None => {\n                self.subscribe(self.pause(ttl)).await;\n                if let Some(subscription) = &self.front.subscription {\n                    self.sleep(subscription.seen(), self.pause(ttl)).await;\n                }\n            }",
    ),
    mutant(
        "a repeated countdown counts again",
        "model/counter.rs",
        "        self.remember(name, id, Reply::Changed(changed), now);\n        Ok(changed)",
        "        let _ = id;\n        Ok(changed)",
    ),
    mutant(
        "a repeated acquire of permits takes more",
        "model/counter.rs",
        "Some(Reply::Granted) => return Ok(Attempt::GRANTED),",
        "Some(Reply::Granted) => {}",
    ),
    mutant(
        "a partial release takes one hold off, as often as it is sent",
        "model/lock.rs",
        "        if request.keep == 0 {\n            found.remove();",
        "        let last = matches!(entry.value, Value::Lock { count: 0..=1, .. });\n        if request.keep == 0 || last {\n            found.remove();",
    ),
    mutant(
        "a release frees the lock of another owner",
        "model/lock.rs",
        "        if owner != request.owner {\n            return absent(Some(owner));\n        }\n        if request.keep == 0 {",
        "        if owner != request.owner && !request.undo {\n            return absent(Some(owner));\n        }\n        if request.keep == 0 {",
    ),
    mutant(
        "a token is the time, and nothing more",
        "model/mod.rs",
        "((now + self.epoch) * 1000).max(last.map_or(0, |last| last + 1))",
        "((now + self.epoch) * 1000).max(last.map_or(0, |_| 0))",
    ),
    mutant(
        "a free fair lock goes to the first who asks",
        "model/fair.rs",
        "if left.is_none() && first.is_none_or(|first| first == *owner) {",
        "if left.is_none() && first.is_none_or(|first| first == *owner || !queued) {",
    ),
    mutant(
        "dead waiters of a fair lock are not passed over",
        "model/fair.rs",
        "if !silence_kills || self.is_alive(first, now) {",
        "if !silence_kills || now > 0 {",
    ),
    mutant(
        "a multi-lock keeps out of order what it waits for",
        "engine/multi.rs",
        "let wait = if first == 0 { self.left() } else { GRACE.min(self.left()) };",
        "let wait = self.left();",
    ),
];

impl Mutant {
    /// The file with the fault.
    ///
    /// # Errors
    /// If what is to be replaced does not stand there exactly once.
    pub fn apply(&self, text: &str) -> Result<String, String> {
        match text.matches(self.from).count() {
            1 => Ok(text.replacen(self.from, self.to, 1)),
            count => Err(format!("{}: {} times in {}: {}", self.what, count, self.file, self.from)),
        }
    }
}

/// Where the sources of the library are in a workspace.
pub const SOURCES: &str = "crates/lockkeeper/src";

/// Runs the seeds against each mutant, in a copy of the workspace below `target`. Returns what was found, and what was
/// not.
///
/// # Errors
/// If one cannot be built.
pub fn run(root: &Path, target: &Path, seeds: u64) -> Result<(Value, Vec<&'static str>), String> {
    let copy = target.join("mutants");
    copy_workspace(root, &copy)?;
    let mut rows = Vec::new();
    let mut missed = Vec::new();
    for mutant in MUTANTS {
        let file = copy.join(SOURCES).join(mutant.file);
        let healthy =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        fs::write(&file, mutant.apply(&healthy)?).map_err(|error| error.to_string())?;
        let found = build(&copy).and_then(|()| find(&copy, seeds));
        fs::write(&file, healthy).map_err(|error| error.to_string())?;
        let found = found.map_err(|error| format!("{}: {error}", mutant.what))?;
        match &found {
            Some((seed, violation)) => println!("{seed:>6} seeds  {}: {violation}", mutant.what),
            None => {
                println!("not found    {}", mutant.what);
                missed.push(mutant.what);
            }
        }
        let (within, by) = found.unzip();
        rows.push(json!({ "what": mutant.what, "file": mutant.file, "seeds": within, "by": by }));
    }
    Ok((Value::from(rows), missed))
}

/// The tracked files, without those of earlier copies.
fn copy_workspace(root: &Path, copy: &Path) -> Result<(), String> {
    let listed = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard"])
        .current_dir(root)
        .output();
    let listed = listed.map_err(|error| format!("git: {error}"))?.stdout;
    for file in String::from_utf8_lossy(&listed).lines().map(PathBuf::from) {
        let to = copy.join(&file);
        let text = fs::read(root.join(&file)).unwrap_or_default();
        // What is the same keeps its time, and is not built again.
        if fs::read(&to).is_ok_and(|there| there == text) {
            continue;
        }
        let folder = to.parent().unwrap_or(copy);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&to, text))
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Fast to build rather than to run.
fn build(copy: &Path) -> Result<(), String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--release", "-p", "proof"]).current_dir(copy);
    cargo.env("CARGO_TARGET_DIR", copy.join("target")).env("RUSTFLAGS", "-Awarnings");
    for (key, value) in
        [("LTO", "off"), ("INCREMENTAL", "true"), ("OPT_LEVEL", "1"), ("CODEGEN_UNITS", "16")]
    {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{key}"), value);
    }
    let status = cargo.status().map_err(|error| format!("cargo: {error}"))?;
    status.success().then_some(()).ok_or_else(|| "it cannot be built".to_owned())
}

/// How long the seeds may take: a mutant in which virtual time stands still is not found.
const LONGEST: Duration = Duration::from_secs(600);

/// The number of seeds until a violation, and what it was.
fn find(copy: &Path, seeds: u64) -> Result<Option<(u64, String)>, String> {
    let program = copy.join("target/release/proof");
    let line = ["simulate", "--until-failure", "--seeds", &seeds.to_string()];
    let mut command = Command::new(program);
    command.args(line).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let started = Instant::now();
    while child.try_wait().is_ok_and(|ended| ended.is_none()) {
        std::thread::sleep(Duration::from_millis(50));
        if started.elapsed() > LONGEST {
            let _ = child.kill();
        }
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let failed = lines.find_map(|line| line.strip_prefix("seed ")?.split(' ').next()?.parse().ok());
    Ok(failed.map(|seed| (seed, lines.next().unwrap_or_default().trim().to_owned())))
}
