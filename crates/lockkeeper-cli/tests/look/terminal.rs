//! A terminal in tmux.

use std::process::Command;

use tempfile::TempDir;

use crate::support::{BINARY, Stand, eventually};

/// A terminal that runs the binary; killed on `Drop`.
pub(crate) struct Terminal {
    directory: TempDir,
}

impl Terminal {
    /// Starts the binary in a terminal of this width, which shows the exit code at the end.
    pub(crate) fn run(stand: &Stand, columns: u16, args: &[&str]) -> Self {
        Self::run_with(stand, columns, args, &[])
    }

    /// The same, with environment variables.
    pub(crate) fn run_with(stand: &Stand, columns: u16, args: &[&str], env: &[&str]) -> Self {
        let terminal = Self { directory: tempfile::tempdir().expect("a temporary directory") };
        let width = columns.to_string();
        let mut tmux = terminal.tmux(&["new-session", "-d", "-x", &width, "-y", "60", "--"]);
        tmux.args(["env", "-u", "NO_COLOR", "-u", "CLICOLOR_FORCE", "-u", "CI"]);
        tmux.arg(format!("LOCKKEEPER_URL={}", stand.url)).args(env);
        tmux.args(["sh", "-c", "\"$@\"; echo \"exit code $?\"; exec cat", "sh", BINARY]).args(args);
        succeeded(&mut tmux);
        terminal
    }

    /// Waits until a text is on the screen; returns the screen.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) -> String {
        eventually(text, || Some(self.screen(&[])).filter(|screen| screen.contains(text)))
    }

    /// Waits for the end of the binary; returns the screen and the exit code.
    #[track_caller]
    pub(crate) fn ended(&self) -> (String, i32) {
        let screen = self.shows("exit code ");
        let (before, code) = screen.rsplit_once("exit code ").expect("it is on the screen");
        (before.to_owned(), code.trim().parse().expect("a code is a number"))
    }

    /// The final screen with escape sequences.
    #[track_caller]
    pub(crate) fn ended_in_colour(&self) -> String {
        self.ended();
        self.screen(&["-e"])
    }

    /// Types a line.
    pub(crate) fn types(&self, line: &str) {
        succeeded(&mut self.tmux(&["send-keys", "-l", line]));
        succeeded(&mut self.tmux(&["send-keys", "Enter"]));
    }

    fn screen(&self, options: &[&str]) -> String {
        let output = succeeded(self.tmux(&["capture-pane", "-p"]).args(options));
        String::from_utf8(output).expect("a screen is text")
    }

    /// A private server, without the user's configuration.
    fn tmux(&self, args: &[&str]) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.arg("-u")
            .arg("-S")
            .arg(self.directory.path().join("socket"))
            .args(["-f", "/dev/null"]);
        tmux.args(args).env("LC_ALL", "C.UTF-8").env_remove("TMUX");
        tmux
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).output();
    }
}

#[track_caller]
fn succeeded(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| {
        panic!(
            "tmux: {error}; install it (Debian: `apt-get install -y tmux`, or `cargo xtask test`)"
        )
    });
    assert!(output.status.success(), "tmux: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
