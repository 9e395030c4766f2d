//! Getting what the tests and the benchmark need and the machine lacks.

use std::env;
use std::path::Path;

use crate::run::{Outcome, Step};

/// A package manager, and what its packages are called.
struct Manager {
    program: &'static str,
    /// What must be run first, if anything.
    update: Option<&'static [&'static str]>,
    /// The packages follow.
    install: &'static [&'static str],
    /// Homebrew refuses to run as root; the others need it.
    needs_root: bool,
    redis_server: Alternatives,
    java: Alternatives,
    python: Alternatives,
    node: Alternatives,
    tmux: Alternatives,
    faketime: Alternatives,
    go: Alternatives,
    valgrind: Alternatives,
}

/// Sets of packages: the first that can be installed is the one.
type Alternatives = &'static [&'static [&'static str]];

const MANAGERS: &[Manager] = &[
    Manager {
        program: "apt-get",
        update: Some(&["apt-get", "update"]),
        // The frontend, or packages may ask questions; through `env`, since sudo drops variables.
        install: &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y"],
        needs_root: true,
        redis_server: &[&["redis-server"]],
        // A release has some of the long-lived versions, not all of them.
        java: &[&["openjdk-17-jdk-headless", "maven"], &["default-jdk-headless", "maven"]],
        python: &[&["python3", "python3-venv"]],
        node: &[&["nodejs", "npm"]],
        tmux: &[&["tmux", "perl"]],
        faketime: &[&["faketime"]],
        go: &[&["golang-go"]],
        valgrind: &[&["valgrind"]],
    },
    Manager {
        program: "dnf",
        update: None,
        install: &["dnf", "install", "-y"],
        needs_root: true,
        redis_server: &[&["redis"]],
        java: &[&["java-17-openjdk-devel", "maven"], &["java-21-openjdk-devel", "maven"]],
        python: &[&["python3"]],
        node: &[&["nodejs", "npm"]],
        tmux: &[&["tmux", "perl"]],
        faketime: &[&["libfaketime"]],
        go: &[&["golang"]],
        valgrind: &[&["valgrind"]],
    },
    Manager {
        program: "apk",
        update: None,
        install: &["apk", "add"],
        needs_root: true,
        redis_server: &[&["redis"]],
        java: &[&["openjdk17", "maven"], &["openjdk21", "maven"]],
        python: &[&["python3"]],
        node: &[&["nodejs", "npm"]],
        tmux: &[&["tmux", "perl"]],
        faketime: &[&["libfaketime"]],
        go: &[&["go"]],
        valgrind: &[&["valgrind"]],
    },
    Manager {
        program: "brew",
        update: None,
        install: &["brew", "install"],
        needs_root: false,
        redis_server: &[&["redis"]],
        java: &[&["openjdk@17", "maven"]],
        python: &[&["python"]],
        node: &[&["node"]],
        tmux: &[&["tmux", "perl"]],
        faketime: &[&["libfaketime"]],
        go: &[&["go"]],
        valgrind: &[&["valgrind"]],
    },
];

/// Something that packages bring.
struct Tool {
    name: &'static str,
    why: &'static str,
    is_there: fn() -> bool,
    packages: fn(&Manager) -> Alternatives,
    by_hand: &'static str,
}

const REDIS_SERVER: Tool = Tool {
    name: "redis-server",
    why: "the tests start servers of their own",
    is_there: || has("redis-server"),
    packages: |manager| manager.redis_server,
    by_hand: "install redis-server (Debian: `apt-get install redis-server`) so that \
              `redis-server --version` works, then run this again",
};

const JAVA: Tool = Tool {
    name: "a JDK, 17 or newer, or Maven",
    why: "the tests talk to a real Redisson",
    is_there: || has_jdk() && has("mvn"),
    packages: |manager| manager.java,
    by_hand: "install both (Debian: `apt-get install -y openjdk-17-jdk-headless maven`) so that \
              `javac --release 17 -version` and `mvn --version` work, with the JDK on the PATH or \
              as JAVA_HOME, then run this again",
};

const PYTHON: Tool = Tool {
    name: "Python, 3.9 or newer, with venv",
    why: "the tests talk to a real redis-py, and other servers come in its packages",
    is_there: has_python,
    packages: |manager| manager.python,
    by_hand: "install it (Debian: `apt-get install -y python3 python3-venv`) so that \
              `python3 -m venv` works, then run this again",
};

const NODE: Tool = Tool {
    name: "Node.js, 18 or newer, or npm",
    why: "the tests talk to a real node-redlock",
    is_there: || has_node() && has("npm"),
    packages: |manager| manager.node,
    by_hand: "install both (Debian: `apt-get install -y nodejs npm`) so that `node --version` and \
              `npm --version` work, then run this again",
};

const TMUX: Tool = Tool {
    name: "tmux or perl",
    why: "the tests look at the command line in a real terminal, and give it odd commands to run",
    is_there: || Step::new(&["tmux", "-V"]).succeeds() && has("perl"),
    packages: |manager| manager.tmux,
    by_hand: "install both (Debian: `apt-get install -y tmux perl`) so that `tmux -V` and \
              `perl --version` work, then run this again",
};

const FAKETIME: Tool = Tool {
    name: "faketime",
    why: "the tests move the clocks of servers",
    is_there: || has("faketime"),
    packages: |manager| manager.faketime,
    by_hand: "install it (Debian: `apt-get install -y faketime`) so that `faketime --version` works, then \
              run this again",
};

/// A Go that gets a newer one by itself where a module asks for it.
const GO: Tool = Tool {
    name: "Go, 1.21 or newer",
    why: "the tests and the benchmark use a library in Go",
    is_there: || Step::new(&["sh", "-c", "go env GOTOOLCHAIN | grep -q ."]).succeeds(),
    packages: |manager| manager.go,
    by_hand: "install it (Debian 13: `apt-get install -y golang-go`; Debian 12: from bookworm-backports) so \
              that `go env GOTOOLCHAIN` prints something, then run this again",
};

const VALGRIND: Tool = Tool {
    name: "valgrind",
    why: "the benchmark counts instructions with it",
    is_there: || has("valgrind"),
    packages: |manager| manager.valgrind,
    by_hand: "install it (Debian: `apt-get install -y valgrind`), then run this again",
};

/// Makes sure that a terminal can be driven.
pub(crate) fn tmux() -> Outcome {
    TMUX.install()
}

/// Makes sure that the clock of a server can be moved.
pub(crate) fn faketime() -> Outcome {
    FAKETIME.install()
}

/// Makes sure that `redis-server` can be run.
pub(crate) fn redis_server() -> Outcome {
    REDIS_SERVER.install()
}

/// Makes sure that the Java peer can be built and run.
pub(crate) fn java() -> Outcome {
    JAVA.install()
}

/// Makes sure that the peers of the Redlock family can be installed and run.
pub(crate) fn redlock() -> Outcome {
    python()?;
    NODE.install()?;
    GO.install()
}

/// Makes sure that Python can make environments.
pub(crate) fn python() -> Outcome {
    PYTHON.install()
}

/// Makes sure that the benchmark can build and run the libraries beside which it measures.
pub(crate) fn peers() -> Outcome {
    java()?;
    python()?;
    GO.install()
}

/// Makes sure that instructions can be counted.
pub(crate) fn valgrind() -> Outcome {
    VALGRIND.install()
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

impl Tool {
    fn install(&self) -> Outcome {
        if (self.is_there)() {
            return Ok(());
        }
        let Self { name, why, by_hand, .. } = self;
        println!("{name} is not installed; {why}");
        let manager = MANAGERS.iter().find(|manager| has(manager.program));
        let manager = manager.ok_or(format!("no package manager that is known here: {by_hand}"))?;
        manager.install((self.packages)(manager)).map_err(|error| format!("{error}\n{by_hand}"))?;
        if (self.is_there)() {
            Ok(())
        } else {
            Err(format!("{} has not brought it: {by_hand}", manager.program))
        }
    }
}

impl Manager {
    fn install(&self, alternatives: Alternatives) -> Outcome {
        let sudo: &[&str] = if self.needs_root && !is_root() { &["sudo"] } else { &[] };
        if let Some(update) = self.update {
            Step::new(&[sudo, update].concat()).run()?;
        }
        let mut outcome = Err("no packages are known".to_owned());
        for packages in alternatives {
            outcome = Step::new(&[sudo, self.install, packages].concat()).run();
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }
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
