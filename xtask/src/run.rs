//! Running a command, announced and timed.

use std::env;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

/// Nothing, or what to tell the user.
pub(crate) type Outcome = Result<(), String>;

/// A command line with its environment.
#[derive(Clone, Copy)]
pub(crate) struct Step<'a> {
    line: &'a [&'a str],
    environment: &'a [(&'a str, &'a str)],
}

impl<'a> Step<'a> {
    /// `line` is the program and its arguments.
    pub(crate) const fn new(line: &'a [&'a str]) -> Self {
        Self { line, environment: &[] }
    }

    pub(crate) const fn environment(self, environment: &'a [(&'a str, &'a str)]) -> Self {
        Self { environment, ..self }
    }

    /// Runs it in the root of the workspace.
    pub(crate) fn run(&self) -> Outcome {
        println!("\n==> {}", self.shown());
        let start = Instant::now();
        let status = self.command().status();
        self.outcome(status, start)
    }

    /// Runs it beside others: shows what it prints once it has ended.
    pub(crate) fn run_aside(&self) -> Outcome {
        let start = Instant::now();
        let output = self.command().stdin(Stdio::null()).output();
        let mut text = format!("\n==> {}\n", self.shown()).into_bytes();
        let status = output.map(|output| {
            text.extend([output.stderr, output.stdout].concat());
            output.status
        });
        let _ = io::stdout().lock().write_all(&text);
        self.outcome(status, start)
    }

    fn outcome(&self, status: io::Result<ExitStatus>, start: Instant) -> Outcome {
        let seconds = start.elapsed().as_secs_f64();
        match status {
            Ok(status) if status.success() => {
                println!("==> done in {seconds:.1} s");
                Ok(())
            }
            Ok(status) => {
                Err(format!("failed after {seconds:.1} s with {status}: {}", self.shown()))
            }
            Err(error) => Err(format!("cannot be run: {}: {error}", self.shown())),
        }
    }

    /// Whether it can be run and succeeds; shows nothing.
    pub(crate) fn succeeds(&self) -> bool {
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.line[0]);
        // What cargo says of this package. Build scripts that look at these names would run again each time
        // that a build by hand follows one from here.
        let of_xtask =
            |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_xtask)) {
            command.env_remove(name);
        }
        command.args(&self.line[1..]).envs(self.environment.iter().copied()).current_dir(root());
        command
    }

    /// As one would type it.
    fn shown(&self) -> String {
        let environment = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let line = self.line.iter().map(|word| match word.contains(' ') {
            true => format!("'{word}'"),
            false => (*word).to_owned(),
        });
        environment.chain(line).collect::<Vec<_>>().join(" ")
    }
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Cargo says where this package is; the root is its parent.
pub(crate) fn root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(package).join("..")
}
