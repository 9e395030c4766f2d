//! Other libraries of the Redlock family on the other side.
//!
//! [`RedlockPeer`] is a process with one client of such a library, and locks of it by worker and name.
//! It is driven as [`JavaPeer`](crate::JavaPeer) is. What it needs is installed below the workspace's
//! `target/peers` when it is first needed.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::peer::{Peer, Pending};
use crate::percent;
use crate::prepared::{self, prepared};

/// A library of the Redlock family.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Redlock {
    /// `redis.lock.Lock` of redis-py, at the version of `python/requirements.txt`.
    RedisPy,
    /// node-redlock, at the version of `node/package.json`.
    NodeRedlock,
    /// redsync, at the version of `go/go.mod`.
    Redsync,
    /// rslock, at the version of `rust/Cargo.toml`.
    Rslock,
}

impl Redlock {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::RedisPy, Self::NodeRedlock, Self::Redsync, Self::Rslock];

    fn how_to_get_it(self) -> &'static str {
        match self {
            Self::RedisPy => {
                "The peer needs Python, 3.9 or newer, with venv: run `cargo xtask interop`, which \
                 installs it (or `apt-get install -y python3 python3-venv`)"
            }
            Self::NodeRedlock => {
                "The peer needs Node.js, 18 or newer, and npm: run `cargo xtask interop`, which \
                 installs them (or `apt-get install -y nodejs npm`)"
            }
            Self::Redsync => {
                "The peer needs Go, 1.21 or newer: run `cargo xtask interop`, which installs it (or \
                 `apt-get install -y golang-go`)"
            }
            Self::Rslock => "The peer needs cargo",
        }
    }

    /// The sources of the peer.
    fn project(self) -> PathBuf {
        let testkit = Path::new(env!("CARGO_MANIFEST_DIR"));
        testkit.join(match self {
            Self::RedisPy => "python",
            Self::NodeRedlock => "node",
            Self::Redsync => "go",
            Self::Rslock => "rust",
        })
    }

    /// What runs the peer, once everything it needs is installed.
    fn command(self) -> Command {
        let project = self.project();
        let folder = project.file_name().expect("a project has a name");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let directory = root.join("target/peers").join(folder);
        prepared(&directory, std::slice::from_ref(&project), || self.install(&directory));
        match self {
            Self::RedisPy => {
                let mut command = Command::new(directory.join("bin/python"));
                command.arg(project.join("peer.py"));
                command
            }
            Self::NodeRedlock => {
                let mut command = Command::new("node");
                command.arg(directory.join("peer.js"));
                command
            }
            Self::Redsync => Command::new(directory.join("peer")),
            Self::Rslock => Command::new(directory.join("debug/peer")),
        }
    }

    fn install(self, directory: &Path) {
        let project = self.project();
        match self {
            Self::RedisPy => {
                self.run(Command::new("python3").args(["-m", "venv"]).arg(directory));
                let mut pip = Command::new(directory.join("bin/python"));
                pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
                self.run(pip.arg("--requirement").arg(project.join("requirements.txt")));
            }
            Self::NodeRedlock => {
                // Node looks for what a program requires beside the program.
                fs::create_dir_all(directory).expect("a directory below target can be made");
                for file in ["package.json", "package-lock.json", "peer.js"] {
                    let copied = fs::copy(project.join(file), directory.join(file));
                    copied.unwrap_or_else(|error| panic!("{file}: {error}"));
                }
                let mut npm = Command::new("npm");
                self.run(npm.args(["ci", "--no-audit", "--no-fund"]).current_dir(directory));
            }
            Self::Redsync => {
                let mut go = Command::new("go");
                go.args(["build", "-o"]).arg(directory.join("peer")).arg(".");
                self.run(go.current_dir(project));
            }
            Self::Rslock => {
                let mut cargo = Command::new("cargo");
                cargo
                    .args(["build", "--locked", "--manifest-path"])
                    .arg(project.join("Cargo.toml"));
                self.run(cargo.arg("--target-dir").arg(directory));
            }
        }
    }

    fn run(self, command: &mut Command) {
        prepared::run(command, self.how_to_get_it()).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A process with a client of such a library; killed and reaped on `Drop`.
///
/// It cannot outlive this process. Its error output goes where this process's goes.
pub struct RedlockPeer {
    peer: Peer,
    library: Redlock,
}

impl RedlockPeer {
    /// Starts a peer. The first call for a library may have to install it.
    ///
    /// # Panics
    ///
    /// If it cannot be installed, started or connected; the message says why and what to do.
    pub fn start(library: Redlock, url: &str) -> Self {
        Self::on_quorum(library, [url])
    }

    /// Starts a peer that uses several independent servers. [`Redlock::RedisPy`] cannot.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn on_quorum<U: AsRef<OsStr>>(library: Redlock, urls: impl IntoIterator<Item = U>) -> Self {
        let mut command = library.command();
        command.args(urls);
        Self { peer: Peer::start(command, library.how_to_get_it()), library }
    }

    /// The version of the library, in full.
    pub fn version(&self) -> &str {
        self.peer.greeting()
    }

    /// A lock, as one worker sees it. A worker does one thing after the other.
    pub fn mutex(&self, worker: &str, name: &str) -> RedlockMutex<'_> {
        RedlockMutex { peer: &self.peer, worker: worker.to_owned(), name: percent::encoded(name) }
    }

    /// Kills it (SIGKILL) and returns when it is gone.
    pub fn kill(self) {
        drop(self);
    }
}

impl fmt::Debug for RedlockPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut peer = f.debug_struct("RedlockPeer");
        peer.field("library", &self.library)
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}

/// A lock of a [`RedlockPeer`].
pub struct RedlockMutex<'a> {
    peer: &'a Peer,
    worker: String,
    /// Encoded.
    name: String,
}

impl RedlockMutex<'_> {
    /// One try: whether it has it.
    pub fn try_acquire(&self, lease: Duration) -> Pending<bool> {
        self.send("acquire", &[lease], |words| words[0] == "true")
    }

    /// Tries again, every 20 ms, for so long.
    pub fn acquire(&self, lease: Duration, wait: Duration) -> Pending<bool> {
        self.send("acquire", &[lease, wait], |words| words[0] == "true")
    }

    /// Releases it; an exception if the worker did not hold it any more. rslock does not report that.
    pub fn release(&self) -> Pending<()> {
        self.send("release", &[], |_| ())
    }

    /// A new lease, from now; an exception if it was not the worker's any more.
    pub fn extend(&self, lease: Duration) -> Pending<()> {
        self.send("extend", &[lease], |_| ())
    }

    fn send<T>(&self, command: &str, times: &[Duration], read: fn(&[String]) -> T) -> Pending<T> {
        let times: Vec<_> = times.iter().map(|time| time.as_millis().to_string()).collect();
        let times = times.iter().map(String::as_str);
        let words: Vec<_> = [command, &self.name].into_iter().chain(times).collect();
        self.peer.send(&self.worker, &words, read)
    }
}

impl fmt::Debug for RedlockMutex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedlockMutex({}: {})", self.worker, self.name)
    }
}
