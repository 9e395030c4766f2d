//! Getting what the tests need and the machine lacks.

use crate::run::{Outcome, Step};

/// How to ask whether a package manager is there, and what it takes to install the server.
struct Manager {
    program: &'static str,
    lines: &'static [&'static [&'static str]],
    /// Homebrew refuses to run as root; the others need it.
    needs_root: bool,
}

const MANAGERS: &[Manager] = &[
    Manager {
        program: "apt-get",
        lines: &[
            &["apt-get", "update"],
            // The frontend, or packages may ask questions; through `env`, since sudo drops variables.
            &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "redis-server"],
        ],
        needs_root: true,
    },
    Manager { program: "dnf", lines: &[&["dnf", "install", "-y", "redis"]], needs_root: true },
    Manager { program: "apk", lines: &[&["apk", "add", "redis"]], needs_root: true },
    Manager { program: "brew", lines: &[&["brew", "install", "redis"]], needs_root: false },
];

const BY_HAND: &str = "install redis-server (Debian: `apt-get install redis-server`) so that \
                       `redis-server --version` works, then run this again";

/// Makes sure that `redis-server` can be run.
pub(crate) fn redis_server() -> Outcome {
    if has("redis-server") {
        return Ok(());
    }
    println!("redis-server is not installed; the tests start servers of their own");
    let manager = MANAGERS.iter().find(|manager| has(manager.program));
    let manager = manager.ok_or(format!("no package manager that is known here: {BY_HAND}"))?;
    manager.install().map_err(|error| format!("{error}\n{BY_HAND}"))?;
    if has("redis-server") {
        Ok(())
    } else {
        Err(format!("{} has not brought redis-server: {BY_HAND}", manager.program))
    }
}

/// Makes sure that a component of the Rust toolchain can be run.
pub(crate) fn component(name: &str, check: &[&str]) -> Outcome {
    if Step::new(check).succeeds() {
        return Ok(());
    }
    println!("{name} is not installed");
    Step::new(&["rustup", "component", "add", name])
        .run()
        .map_err(|error| format!("{error}\ninstall {name} for your Rust toolchain by hand"))
}

impl Manager {
    fn install(&self) -> Outcome {
        let sudo: &[&str] = if self.needs_root && !is_root() { &["sudo"] } else { &[] };
        self.lines.iter().try_for_each(|line| Step::new(&[sudo, line].concat()).run())
    }
}

fn has(program: &str) -> bool {
    Step::new(&[program, "--version"]).succeeds()
}

fn is_root() -> bool {
    let output = std::process::Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
