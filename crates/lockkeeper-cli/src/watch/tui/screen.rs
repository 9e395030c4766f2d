//! The terminal in raw mode, restored on every exit.

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

/// Whether the terminal is in raw mode. A static, because the panic hook needs it.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The screen. Restored on `Drop`, by [`leave`](Screen::leave), and before a panic message.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    pub(super) fn new() -> io::Result<Self> {
        restore_on_panic();
        let mut screen = Self { terminal: blank()? };
        screen.enter()?;
        Ok(screen)
    }

    /// Sets raw mode, also if a shell has changed the settings while this process was stopped.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        let was_taken = TAKEN.swap(true, Ordering::SeqCst);
        if was_taken {
            disable_raw_mode()?;
        }
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, EnableBracketedPaste, Hide)?;
        self.clear()
    }

    /// Restores the terminal.
    pub(super) fn leave(&mut self) {
        restore();
    }

    /// Draws, if the terminal is in raw mode.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        if TAKEN.load(Ordering::SeqCst) {
            self.terminal.draw(draw)?;
        }
        Ok(())
    }

    /// Clears the screen. `Terminal::clear` would query the cursor position, and fail without an answer.
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

/// Ignores errors: they could not be shown.
fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let mut out = stdout();
        let _ = queue!(out, DisableBracketedPaste, LeaveAlternateScreen, Show);
        let _ = out.flush();
        let _ = disable_raw_mode();
    }
}

/// Restores the screen before the panic message, which the alternate screen would hide, and exits: the
/// panic of one task must not leave the others running.
fn restore_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        report(panic);
        std::process::exit(Code::INTERNAL.0.into());
    }));
}
