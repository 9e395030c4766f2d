//! A terminal with a shell, for tests of the keyboard.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{Scene, eventually};

/// A private tmux server with one window; killed on `Drop`.
pub(crate) struct Tmux {
    socket: String,
}

impl Tmux {
    /// An interactive bash in the scene, in which `lk` is `lockkeeper`.
    pub(crate) fn start(scene: &Scene) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let tmux = Self { socket: format!("lockkeeper-{}-{number}", std::process::id()) };
        let mut command = tmux.command();
        scene.surround(&mut command);
        // The server and its shell inherit the environment of this command.
        command.env("LK", env!("CARGO_BIN_EXE_lockkeeper")).env("PS1", "> ").env_remove("TMUX");
        let shell = ["new-session", "-d", "-x", "150", "-y", "50", "bash --norc --noprofile -i"];
        let output = command.args(["-f", "/dev/null"]).args(shell).output();
        let output = output.unwrap_or_else(|error| {
            panic!("tmux: {error}; install it (Debian: `apt-get install tmux`)")
        });
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        tmux.enter("lk() { \"$LK\" \"$@\"; }; set +H; echo rea''dy");
        tmux.shows("ready");
        tmux
    }

    /// Types a line.
    pub(crate) fn enter(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.tmux(&["send-keys", "Enter"]);
    }

    /// Presses a key: `C-c`, `C-z`, ….
    pub(crate) fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Waits until the text is on the screen.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        let mut screen = String::new();
        let start = std::time::Instant::now();
        while !screen.contains(text) {
            assert!(
                start.elapsed() < crate::support::WAIT_LIMIT,
                "not shown: {text:?}; the screen is:\n{screen}"
            );
            screen = self.screen();
        }
    }

    pub(crate) fn screen(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn tmux(&self, args: &[&str]) -> Output {
        let output = self.command().args(args).output().expect("tmux runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.socket]);
        command
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.command().arg("kill-server").output();
    }
}

/// Waits until a file exists.
#[track_caller]
pub(crate) fn appears(scene: &Scene, file: &str) {
    eventually(&format!("{file} to appear"), || scene.exists(file));
}
