//! Locks that are held while the pictures are taken.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::run::{Outcome, target};

/// A store in a directory of its own, and processes that hold locks on it.
pub(super) struct Scene {
    directory: PathBuf,
    holders: Vec<Holder>,
}

/// A process that holds a lock or waits for one; killed on `Drop`.
pub(super) struct Holder(Child);

/// The file of the store, in the directory.
pub(super) const STORE: &str = "locks.db";

/// Who holds or waits for what: program, name, options of `run`.
const CAST: &[(&str, &str, &[&str])] = &[
    ("checkout", "orders:4711", &[]),
    ("checkout", "orders:4711", &[]),
    ("backup", "nightly-backup", &["--lease", "2m"]),
    ("printer", "invoices", &["--fair"]),
    ("billing", "invoices", &["--fair"]),
    ("reminder", "invoices", &["--fair"]),
    ("export", "report", &["--shared"]),
    ("dashboard", "report", &["--shared"]),
    ("resize", "thumbnails", &["--permits", "3"]),
    ("resize", "thumbnails", &["--permits", "3"]),
    ("sync", "warehouse", &["--fenced"]),
];

impl Scene {
    /// Returns when everybody holds, or waits for, what he should, and the store knows who they are.
    pub(super) fn new() -> Result<Self, String> {
        let directory = env::temp_dir().join(format!("lockkeeper-pictures-{}", std::process::id()));
        fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        let mut scene = Self { directory, holders: Vec::new() };
        for (at, (program, name, options)) in CAST.iter().enumerate() {
            let holder = scene.hold(program, name, options)?;
            scene.holders.push(holder);
            // One after another: a queue has an order.
            scene.until(|listed| listed.contains(name) && seen(listed) > at)?;
        }
        // A lock that is a moment old is seldom seen.
        scene.until(|listed| ages(listed).all(|millis| millis > 10_000))?;
        Ok(scene)
    }

    /// Runs a program of this name under a lock. It does nothing, but a holder is shown with its name.
    pub(super) fn hold(
        &self,
        program: &str,
        name: &str,
        options: &[&str],
    ) -> Result<Holder, String> {
        let path = self.path(program);
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        if !path.exists() {
            fs::write(&path, "#!/bin/sh\nexec sleep 600\n").map_err(failed)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        }
        let mut command = Command::new(binary());
        command.args(["run", name]).args(options).arg("--").arg(&path);
        command.env("LOCKKEEPER_URL", self.url()).stdin(Stdio::null());
        command.spawn().map(Holder).map_err(failed)
    }

    pub(super) fn url(&self) -> String {
        format!("file:{}", self.path(STORE).display())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn until(&self, right: impl Fn(&str) -> bool) -> Outcome {
        let list = || {
            let mut command = Command::new(binary());
            command.args(["ls", "--json", "--url", &self.url()]);
            let listed = command.output().map_err(|error| error.to_string())?;
            Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
        };
        until(list, right)
    }
}

/// Polls for a minute until what `look` returns is right.
pub(super) fn until(
    look: impl Fn() -> Result<String, String>,
    right: impl Fn(&str) -> bool,
) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let seen = look()?;
        match right(&seen) {
            true => return Ok(()),
            false if Instant::now() > deadline => return Err(format!("timed out at:\n{seen}")),
            false => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// How many hold something or wait for it, as far as a list tells.
fn seen(listed: &str) -> usize {
    let waiting: u64 = numbers(listed, r#""waiters":"#).map(Option::unwrap_or_default).sum();
    listed.matches(r#""host":"#).count() + usize::try_from(waiting).unwrap_or(0)
}

/// What is not known counts as nothing.
fn ages(listed: &str) -> impl Iterator<Item = u64> + use<'_> {
    numbers(listed, r#""age_ms":"#).map(Option::unwrap_or_default)
}

/// The number behind each field of this name; nothing where it is null.
fn numbers(listed: &str, field: &str) -> impl Iterator<Item = Option<u64>> {
    let digits = |part: &str| part.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    listed.split(field).skip(1).map(digits)
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.holders.clear();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Asked, not killed, so that it gives its lock back.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// Where cargo has put it.
pub(super) fn binary() -> PathBuf {
    target().join("debug/lockkeeper")
}
