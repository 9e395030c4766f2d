//! Getting what the tests and the benchmark need and the machine lacks.

use std::env;
use std::path::Path;

use crate::run::{Outcome, Step};

/// Something that packages of Debian bring.
pub(crate) struct Tool {
    name: &'static str,
    why: &'static str,
    is_there: fn() -> bool,
    /// Sets of packages: the first that can be installed is the one.
    packages: &'static [&'static [&'static str]],
    /// What works once it is there.
    works: &'static str,
}

pub(crate) const REDIS_SERVER: Tool = Tool {
    name: "redis-server",
    why: "the tests start servers of their own",
    is_there: || has("redis-server"),
    packages: &[&["redis-server"]],
    works: "redis-server --version",
};

pub(crate) const JAVA: Tool = Tool {
    name: "a JDK, 17 or newer, or Maven",
    why: "the tests talk to a real Redisson",
    is_there: || has_jdk() && has("mvn"),
    // A release has some of the long-lived versions, not all of them.
    packages: &[&["openjdk-17-jdk-headless", "maven"], &["default-jdk-headless", "maven"]],
    works: "javac --release 17 -version && mvn --version, with the JDK on the PATH or as JAVA_HOME",
};

pub(crate) const PYTHON: Tool = Tool {
    name: "Python, 3.9 or newer, with venv",
    why: "the tests talk to a real redis-py, and other servers come in its packages",
    is_there: has_python,
    packages: &[&["python3", "python3-venv"]],
    works: "python3 -m venv",
};

pub(crate) const NODE: Tool = Tool {
    name: "Node.js, 18 or newer, or npm",
    why: "the tests talk to a real node-redlock",
    is_there: || has_node() && has("npm"),
    packages: &[&["nodejs", "npm"]],
    works: "node --version && npm --version",
};

pub(crate) const TMUX: Tool = Tool {
    name: "tmux or perl",
    why: "the tests look at the command line in a real terminal, and give it odd commands to run",
    is_there: || Step::new(&["tmux", "-V"]).succeeds() && has("perl"),
    packages: &[&["tmux", "perl"]],
    works: "tmux -V && perl --version",
};

pub(crate) const FAKETIME: Tool = Tool {
    name: "faketime",
    why: "the tests move the clocks of servers",
    is_there: || has("faketime"),
    packages: &[&["faketime"]],
    works: "faketime --version",
};

/// A Go that gets a newer one by itself where a module asks for it. Debian 12 has it in its backports.
pub(crate) const GO: Tool = Tool {
    name: "Go, 1.21 or newer",
    why: "the tests and the benchmark use a library in Go",
    is_there: || Step::new(&["sh", "-c", "go env GOTOOLCHAIN | grep -q ."]).succeeds(),
    packages: &[&["golang-go"]],
    works: "go env GOTOOLCHAIN, and prints something",
};

pub(crate) const VALGRIND: Tool = Tool {
    name: "valgrind",
    why: "the benchmark counts instructions with it",
    is_there: || has("valgrind"),
    packages: &[&["valgrind"]],
    works: "valgrind --version",
};

/// What the tests need.
pub(crate) const TESTS: &[Tool] = &[REDIS_SERVER, JAVA, PYTHON, NODE, GO, TMUX, FAKETIME];

/// Installs what is missing, where the machine has the packages of Debian; says what is missing elsewhere.
pub(crate) fn tools(tools: &[Tool]) -> Outcome {
    let missing = || tools.iter().filter(|tool| !(tool.is_there)());
    missing().for_each(|Tool { name, why, .. }| println!("{name} is not installed; {why}"));
    if missing().next().is_some() && has("apt-get") {
        let sudo: &[&str] = if is_root() { &[] } else { &["sudo"] };
        // Through `env`, since sudo drops variables; without the frontend packages may ask questions.
        let install = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y"];
        Step::new(&[sudo, &["apt-get", "update"]].concat()).run()?;
        for tool in missing() {
            let install = |names: &&[&str]| Step::new(&[sudo, &install, names].concat()).run();
            tool.packages.iter().any(|names| install(names).is_ok());
        }
    }
    let by_hand = missing().map(|Tool { name, packages, works, .. }| {
        format!("\n  {name} (Debian: {}), so that this works: {works}", packages[0].join(" "))
    });
    let by_hand: String = by_hand.collect();
    if by_hand.is_empty() { Ok(()) } else { Err(format!("install these by hand:{by_hand}")) }
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

fn has(program: &str) -> bool {
    Step::new(&[program, "--version"]).succeeds()
}

/// A compiler, and one that is new enough. Maven looks for it in the same order.
fn has_jdk() -> bool {
    let home = env::var("JAVA_HOME").ok().filter(|home| !home.is_empty());
    let compiler = home.map(|home| Path::new(&home).join("bin/javac").display().to_string());
    let compiler = compiler.as_deref().unwrap_or("javac");
    Step::new(&[compiler, "--release", "17", "-version"]).succeeds()
}

/// Some distributions have the interpreter without what makes environments.
fn has_python() -> bool {
    let check = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 9))";
    Step::new(&["python3", "-c", check]).succeeds()
}

fn has_node() -> bool {
    let check = "process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)";
    Step::new(&["node", "-e", check]).succeeds()
}

fn is_root() -> bool {
    let output = std::process::Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
