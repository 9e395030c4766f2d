//! A window of tmux.

use std::process::Command;

use super::scene::{STORE, Scene, binary, until};

/// A terminal that runs the binary; gone after `Drop`.
pub(super) struct Terminal {
    socket: String,
}

impl Terminal {
    /// Runs `lockkeeper LINE` in a window of so many columns and lines, as if it had been typed.
    pub(super) fn run(scene: &Scene, size: (u16, u16), line: &str) -> Result<Self, String> {
        // One each: a server that is ending would still answer.
        let command = line.split(' ').next().unwrap_or_default();
        let socket = scene.path(&format!("tmux-{command}")).display().to_string();
        let terminal = Self { socket };
        let (columns, lines) = (size.0.to_string(), size.1.to_string());
        let typed = format!(
            r"printf '\033[32m$\033[0m \033[1mlockkeeper\033[0m {line}\n'; {} {line}; exec sleep 600",
            binary().display()
        );
        // The store by a short name: a picture has no room for where it really is.
        let directory = scene.path("").display().to_string();
        let url = format!("LOCKKEEPER_URL=file:{STORE}");
        terminal.tmux(&[
            "new-session",
            "-d",
            "-x",
            &columns,
            "-y",
            &lines,
            "-c",
            &directory,
            "-e",
            &url,
            "-e",
            "TERM=screen-256color",
            &typed,
        ])?;
        Ok(terminal)
    }

    /// Waits until all of these are on the screen.
    pub(super) fn shows(&self, texts: &[&str]) -> Result<(), String> {
        let right = |screen: &str| texts.iter().all(|text| screen.contains(text));
        until(|| self.tmux(&["capture-pane", "-p"]), right)
    }

    pub(super) fn press(&self, key: &str) -> Result<(), String> {
        self.tmux(&["send-keys", key]).map(drop)
    }

    /// The screen with its colours.
    pub(super) fn colours(&self) -> Result<String, String> {
        self.tmux(&["capture-pane", "-e", "-p"])
    }

    fn tmux(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new("tmux");
        command.args(["-u", "-S", &self.socket, "-f", "/dev/null"]).args(args);
        command.env("LC_ALL", "C.UTF-8").env_remove("TMUX").env_remove("NO_COLOR");
        let output = command.output().map_err(|error| format!("tmux: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("tmux: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}
