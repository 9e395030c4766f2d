//! The lock libraries that are compared, and how each is built and started.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testkit::Redisson;

use crate::Result;

/// A library, and which of its locks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Library {
    /// lockkeeper's `Lock`.
    Lock,
    /// lockkeeper's `Lock`, acknowledged by one replica.
    Acknowledged,
    /// lockkeeper's `Mutex`.
    Mutex,
    /// Redisson's `RLock`, in Java.
    Redisson,
    /// rslock, in Rust.
    Rslock,
    /// redsync, in Go.
    Redsync,
    /// python-redis-lock, in Python.
    PythonRedisLock,
    /// No library: the least that a handoff between processes takes.
    Raw,
}

/// Where the built peers are. lockkeeper itself needs none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Built {
    folder: PathBuf,
    class_path: OsString,
}

impl Library {
    /// All of them, ours first: it is the reference of the ratios.
    pub(crate) const ALL: [Self; 6] = [
        Self::Lock,
        Self::Mutex,
        Self::Redisson,
        Self::Rslock,
        Self::Redsync,
        Self::PythonRedisLock,
    ];

    /// Those that have fair locks and read/write locks.
    pub(crate) const COMPLETE: [Self; 2] = [Self::Lock, Self::Redisson];

    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lock => "lockkeeper Lock",
            Self::Acknowledged => "lockkeeper Lock, acknowledged",
            Self::Mutex => "lockkeeper Mutex",
            Self::Redisson => "Redisson",
            Self::Rslock => "rslock",
            Self::Redsync => "redsync",
            Self::PythonRedisLock => "python-redis-lock",
            Self::Raw => "raw subscriber",
        }
    }

    /// Part of the names of its locks. All have three letters, so all names are as long.
    pub(crate) fn tag(self) -> &'static str {
        match self {
            Self::Lock => "lkl",
            Self::Acknowledged => "lka",
            Self::Mutex => "lkm",
            Self::Redisson => "rdn",
            Self::Rslock => "rsl",
            Self::Redsync => "rsy",
            Self::PythonRedisLock => "prl",
            Self::Raw => "raw",
        }
    }

    /// Whether it is compiled while it runs, and so must run for a while before it is measured.
    pub(crate) fn warms_up(self) -> bool {
        self == Self::Redisson
    }

    /// The key of a lock.
    pub(crate) fn key(self, name: &str) -> String {
        match self {
            Self::PythonRedisLock => format!("lock:{name}"),
            _ => name.to_owned(),
        }
    }

    /// Of a lease, the part after which it renews a lock; none if it does not.
    pub(crate) fn renews_after(self) -> Option<f64> {
        match self {
            Self::Lock | Self::Acknowledged | Self::Mutex | Self::Redisson => Some(1.0 / 3.0),
            Self::PythonRedisLock => Some(2.0 / 3.0),
            Self::Rslock | Self::Redsync | Self::Raw => None,
        }
    }

    /// The most locks that it can hold here: python-redis-lock has a thread for each.
    pub(crate) fn most_held(self) -> usize {
        if self == Self::PythonRedisLock { 1_000 } else { usize::MAX }
    }

    /// The command that starts it.
    pub(crate) fn command(self, built: &Built, url: &str, lease: Duration) -> Result<Command> {
        let mut command = match self {
            Self::Lock => contender("lock")?,
            Self::Acknowledged => contender("acknowledged")?,
            Self::Mutex => contender("mutex")?,
            Self::Redisson => {
                let mut command = Command::new(java("java"));
                command.arg("-cp").arg(&built.class_path).arg("peer.Peer");
                command
            }
            Self::Rslock => Command::new(built.folder.join("rslock/release/rslock-peer")),
            Self::Redsync => Command::new(built.folder.join("redsync")),
            Self::PythonRedisLock => {
                let mut command = Command::new(built.folder.join("python-redis-lock/bin/python"));
                command.arg("-u").arg(sources().join("python-redis-lock/peer.py"));
                command
            }
            Self::Raw => {
                let mut command = Command::new(env::current_exe()?);
                command.arg(super::raw::WORD);
                command
            }
        };
        command.arg(url).arg(lease.as_millis().to_string());
        Ok(command)
    }
}

impl Built {
    /// Builds every peer. Each tool finds out itself what is up to date.
    pub(crate) fn all() -> Result<Self> {
        let folder = folder()?;
        rslock(&folder)?;
        redsync(&folder)?;
        python(&folder)?;
        let class_path = redisson(&folder)?;
        Ok(Self { folder, class_path })
    }

    /// Only what callgrind can look at.
    pub(crate) fn rust() -> Result<Self> {
        let folder = folder()?;
        rslock(&folder)?;
        Ok(Self { folder, class_path: OsString::new() })
    }
}

/// target/release/bench → target/peers
fn folder() -> Result<PathBuf> {
    let binary = env::current_exe()?;
    let target = binary.ancestors().nth(2).ok_or("this binary is not in a target folder")?;
    let folder = target.join("peers");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Another program of this package, or of the workspace: `cargo xtask bench` builds them.
pub(crate) fn sibling(name: &str) -> Result<PathBuf> {
    let path = env::current_exe()?.with_file_name(name);
    if path.exists() {
        return Ok(path);
    }
    Err(format!("{} is missing: cargo build --release -p bench -p lockkeeper-cli", path.display())
        .into())
}

fn contender(kind: &str) -> Result<Command> {
    let mut command = Command::new(sibling("bench-contender")?);
    command.arg(kind);
    Ok(command)
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

fn rslock(folder: &Path) -> Result<()> {
    let manifest = sources().join("rslock/Cargo.toml");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--locked", "--quiet", "--manifest-path"]).arg(manifest);
    run(cargo.arg("--target-dir").arg(folder.join("rslock")))
}

fn redsync(folder: &Path) -> Result<()> {
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(folder.join("redsync")).arg(".");
    run(go.current_dir(sources().join("redsync")))
}

fn python(folder: &Path) -> Result<()> {
    let environment = folder.join("python-redis-lock");
    let requirements = sources().join("python-redis-lock/requirements.txt");
    // Written last, so that what was cut short is done again.
    let stamp = environment.join("installed");
    let wanted = fs::read(&requirements)?;
    if fs::read(&stamp).ok().as_ref() == Some(&wanted) {
        return Ok(());
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    let mut pip = Command::new(environment.join("bin/pip"));
    run(pip.args(["install", "--quiet", "--requirement"]).arg(requirements))?;
    Ok(fs::write(stamp, wanted)?)
}

/// The version of Redisson is the one that the interop tests call the newest.
fn redisson(folder: &Path) -> Result<OsString> {
    let libraries = Redisson::Newest.build();
    let classes = folder.join("redisson");
    let mut javac = Command::new(java("javac"));
    javac.arg("-cp").arg(&libraries).arg("-d").arg(&classes);
    run(javac.arg(sources().join("redisson/Peer.java")))?;
    let paths = std::iter::once(classes).chain(env::split_paths(&libraries));
    Ok(env::join_paths(paths)?)
}

/// A tool of the JDK that Maven uses, too.
fn java(tool: &str) -> PathBuf {
    match env::var_os("JAVA_HOME") {
        Some(home) if !home.is_empty() => Path::new(&home).join("bin").join(tool),
        _ => PathBuf::from(tool),
    }
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}
