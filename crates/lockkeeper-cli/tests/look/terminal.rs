//! A terminal, as tmux makes one.

use std::process::Command;

use tempfile::TempDir;

use crate::support::{BINARY, Stand, eventually};

/// A terminal that runs the binary; gone after `Drop`.
pub(crate) struct Terminal {
    directory: TempDir,
}

impl Terminal {
    /// So many columns, and enough lines for all that these tests print. After the binary has ended
    /// the terminal shows its exit code.
    pub(crate) fn run(stand: &Stand, columns: u16, args: &[&str]) -> Self {
        Self::run_with(stand, columns, args, &[])
    }

    /// With variables in its environment.
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

    /// What it shows as soon as that contains a text.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) -> String {
        eventually(text, || Some(self.screen(&[])).filter(|screen| screen.contains(text)))
    }

    /// What it shows once the binary has ended, without that line; and the exit code.
    #[track_caller]
    pub(crate) fn ended(&self) -> (String, i32) {
        let screen = self.shows("exit code ");
        let (before, code) = screen.rsplit_once("exit code ").expect("it was just seen");
        (before.to_owned(), code.trim().parse().expect("a code is a number"))
    }

    /// The same with colours, as escape sequences.
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

    /// A server of its own, which no configuration of the user's reaches.
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
