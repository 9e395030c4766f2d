//! A terminal with a shell in it, as tmux makes one.

use std::process::{Command, Output};

use tempfile::TempDir;
use testkit::ChildProcess;

use crate::support::{BINARY, PATIENCE, Stand, directory, eventually};

/// A window of one's own. The server is a child of the test, in the foreground, and guarded as such:
/// however the test ends, it does not outlive it, and neither does what runs in it.
pub(crate) struct Terminal {
    directory: TempDir,
    _server: ChildProcess,
}

impl Terminal {
    /// A window of so many columns and lines with an interactive shell, in which `lk` is the binary on
    /// the stand's store.
    pub(crate) fn open(stand: &Stand, (columns, lines): (u16, u16)) -> Self {
        let directory = directory();
        let mut server = tmux(&directory);
        server.arg("-D");
        let there = Command::new("tmux").arg("-V").output();
        assert!(there.is_ok(), "tmux is missing; install it (Debian: `apt-get install tmux`)");
        let terminal = Self { _server: ChildProcess::from_command(server), directory };
        eventually("the socket of tmux", || terminal.socket().exists().then_some(()));
        let (x, y) = (columns.to_string(), lines.to_string());
        let mut session = terminal.tmux(&["new-session", "-d", "-x", &x, "-y", &y]);
        for variable in [
            format!("LOCKKEEPER_URL={}", stand.url),
            format!("HOME={}", stand.path("").display()),
            format!("TMPDIR={}", stand.path("").display()),
            format!("LK={BINARY}"),
            "TERM=screen-256color".to_owned(),
        ] {
            session.args(["-e", &variable]);
        }
        session.arg(
            "env -u NO_COLOR -u CLICOLOR_FORCE -u CI -u RUST_BACKTRACE bash --norc --noprofile -i",
        );
        succeeded(&mut session);
        terminal.enter("lk() { \"$LK\" \"$@\"; }; set +H; clear; echo rea''dy");
        terminal.shows("ready");
        terminal
    }

    /// Runs the binary. When it has ended the shell says so, with its exit code, and whether it has
    /// left the terminal's settings as they were.
    pub(crate) fn run(&self, line: &str) {
        self.enter(&format!(
            "clear; S=$(stty -g); {line}; C=$?; [ \"$S\" = \"$(stty -g)\" ] && echo en''ded $C as before"
        ));
    }

    /// That the binary has ended with this code and left the terminal as it was.
    #[track_caller]
    pub(crate) fn restored(&self, code: u8) -> String {
        let screen = self.shows(&format!("ended {code} as before"));
        assert_eq!(self.state("#{alternate_on} #{cursor_flag}"), "0 1", "{screen}");
        screen
    }

    /// Waits until a text is on the screen, and answers with all of it.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) -> String {
        self.until(text, |screen| screen.contains(text))
    }

    /// Waits until a text is not on the screen any more.
    #[track_caller]
    pub(crate) fn hides(&self, text: &str) -> String {
        self.until(text, |screen| !screen.contains(text))
    }

    /// Waits until the screen is right.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, right: impl Fn(&str) -> bool) -> String {
        let begun = std::time::Instant::now();
        loop {
            let screen = self.screen(&[]);
            if right(&screen) {
                return screen;
            }
            assert!(begun.elapsed() < PATIENCE, "in vain: {what:?}; the screen is:\n{screen}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// The same with colours, as escape sequences.
    pub(crate) fn colours(&self) -> String {
        self.screen(&["-e"])
    }

    /// Everything since the window was opened.
    pub(crate) fn history(&self) -> String {
        self.screen(&["-S", "-"])
    }

    /// Types a line.
    pub(crate) fn enter(&self, line: &str) {
        self.types(line);
        self.press("Enter");
    }

    /// Types a text.
    pub(crate) fn types(&self, text: &str) {
        succeeded(&mut self.tmux(&["send-keys", "-l", text]));
    }

    /// Presses a key, such as `Enter`, `Escape` or `C-c`.
    pub(crate) fn press(&self, key: &str) {
        succeeded(&mut self.tmux(&["send-keys", key]));
    }

    pub(crate) fn resize(&self, (columns, lines): (u16, u16)) {
        let (x, y) = (columns.to_string(), lines.to_string());
        succeeded(&mut self.tmux(&["resize-window", "-x", &x, "-y", &y]));
    }

    /// What tmux knows of the window.
    pub(crate) fn state(&self, format: &str) -> String {
        let output = succeeded(&mut self.tmux(&["display-message", "-p", format]));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The process that runs in the foreground, if it is the binary.
    #[track_caller]
    pub(crate) fn binary(&self) -> rustix::process::Pid {
        let tty = self.state("#{pane_tty}");
        eventually("the binary runs in the terminal", || {
            let listed = Command::new("ps").args(["-t", &tty, "-o", "pid=,comm="]).output().ok()?;
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            let line = listed.lines().find(|line| line.ends_with("lockkeeper"))?;
            let pid = line.split_whitespace().next()?.parse().ok()?;
            rustix::process::Pid::from_raw(pid)
        })
    }

    fn screen(&self, options: &[&str]) -> String {
        let output = succeeded(self.tmux(&["capture-pane", "-p"]).args(options));
        String::from_utf8(output.stdout).expect("a screen is text")
    }

    fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("socket")
    }

    fn tmux(&self, args: &[&str]) -> Command {
        let mut command = tmux(&self.directory);
        command.args(args);
        command
    }
}

/// On a socket of its own, which no configuration of the user's reaches.
fn tmux(directory: &TempDir) -> Command {
    let mut tmux = Command::new("tmux");
    tmux.arg("-u").arg("-S").arg(directory.path().join("socket")).args(["-f", "/dev/null"]);
    tmux.env("LC_ALL", "C.UTF-8").env_remove("TMUX");
    tmux
}

#[track_caller]
fn succeeded(command: &mut Command) -> Output {
    let output = command.output().expect("tmux can be started");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
