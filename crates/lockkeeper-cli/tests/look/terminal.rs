//! A terminal with a shell, in tmux.

use std::process::{Command, Output};

use tempfile::TempDir;
use testkit::ChildProcess;

use crate::support::{BINARY, Stand, WAIT_LIMIT, eventually};

/// A window of a private tmux server. The server is a guarded child of the test: neither it nor the
/// processes in it outlive the test.
pub(crate) struct Terminal {
    directory: TempDir,
    _server: ChildProcess,
}

impl Terminal {
    /// Opens a window with an interactive shell, in which `lk` is the binary on the stand's store.
    pub(crate) fn open(stand: &Stand, (columns, lines): (u16, u16)) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
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

    /// Runs a line. At the end the shell prints the exit code, if the terminal's settings are unchanged.
    pub(crate) fn run(&self, line: &str) {
        self.enter(&format!(
            "clear; S=$(stty -g); {line}; C=$?; [ \"$S\" = \"$(stty -g)\" ] && echo en''ded $C as before"
        ));
    }

    /// Runs a line in a window of this width.
    pub(crate) fn running(stand: &Stand, columns: u16, line: &str) -> Self {
        let terminal = Self::open(stand, (columns, 60));
        terminal.run(line);
        terminal
    }

    /// Waits for the end of the line; returns the screen and the exit code.
    #[track_caller]
    pub(crate) fn ended(&self) -> (String, u8) {
        let end = |screen: &str| {
            let (before, rest) = screen.rsplit_once("ended ")?;
            let (code, _) = rest.split_once(" as before")?;
            Some((before.to_owned(), code.parse().ok()?))
        };
        let screen = self.until("its end", |screen| end(screen).is_some());
        end(&screen).expect("it was there")
    }

    /// Asserts that the binary has ended with this code and restored the terminal.
    #[track_caller]
    pub(crate) fn restored(&self, code: u8) -> String {
        let screen = self.shows(&format!("ended {code} as before"));
        assert_eq!(self.state("#{alternate_on} #{cursor_flag}"), "0 1", "{screen}");
        screen
    }

    /// Waits until a text is on the screen; returns the screen.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) -> String {
        self.until(text, |screen| screen.contains(text))
    }

    /// Waits until a text is no longer on the screen.
    #[track_caller]
    pub(crate) fn hides(&self, text: &str) -> String {
        self.until(text, |screen| !screen.contains(text))
    }

    /// Waits until the screen meets a condition.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, right: impl Fn(&str) -> bool) -> String {
        let started = std::time::Instant::now();
        loop {
            let screen = self.screen(&[]);
            if right(&screen) {
                return screen;
            }
            assert!(
                started.elapsed() < WAIT_LIMIT,
                "timed out: {what:?}; the screen is:\n{screen}"
            );
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// The screen with escape sequences.
    pub(crate) fn colours(&self) -> String {
        self.screen(&["-e"])
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

    /// A property of the window.
    pub(crate) fn state(&self, format: &str) -> String {
        let output = succeeded(&mut self.tmux(&["display-message", "-p", format]));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The process of the binary in the terminal.
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

/// On a private socket, without the user's configuration.
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
