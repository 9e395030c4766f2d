//! The terminal: taken, and given back as it was found on every way out.

use std::io::{self, Stdout, Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::{Hide, Show};
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;

use crate::exit::Code;

/// Whether the terminal is ours. Of the process, as the terminal is: a panic hook must know it, too.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The whole screen. Given back on `Drop`, on [`leave`](Screen::leave) and before a panic is told.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal.
    pub(super) fn new() -> io::Result<Self> {
        restore_on_panic();
        let mut screen = Self { terminal: blank()? };
        screen.enter()?;
        Ok(screen)
    }

    /// Takes the terminal, also one that somebody changed behind our back: a shell does while we are
    /// stopped.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        let was_taken = TAKEN.swap(true, Ordering::SeqCst);
        if was_taken {
            disable_raw_mode()?;
        }
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, EnableBracketedPaste, Hide)?;
        self.clear()
    }

    /// Gives it back.
    pub(super) fn leave(&mut self) {
        restore();
    }

    /// Draws, if the terminal is ours.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        if TAKEN.load(Ordering::SeqCst) {
            self.terminal.draw(draw)?;
        }
        Ok(())
    }

    /// What was drawn before counts for nothing. (`Terminal::clear` would ask the terminal where its
    /// cursor is, and fail if it does not answer.)
    pub(super) fn clear(&mut self) -> io::Result<()> {
        execute!(stdout(), Clear(ClearType::All))?;
        self.terminal = blank()?;
        Ok(())
    }
}

fn blank() -> io::Result<Terminal<CrosstermBackend<Stdout>>> {
    Terminal::new(CrosstermBackend::new(stdout()))
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Nothing that fails here can be told any more.
fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let mut out = stdout();
        let _ = queue!(out, DisableBracketedPaste, LeaveAlternateScreen, Show);
        let _ = out.flush();
        let _ = disable_raw_mode();
    }
}

/// A message that is printed on the alternate screen goes away with it; and a program of which one
/// task is dead and the screen is gone is of no use to anybody.
fn restore_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        tell(panic);
        std::process::exit(Code::INTERNAL.0.into());
    }));
}
