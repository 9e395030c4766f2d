//! Standard output: its width, its colours, and a reader that closes it early.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::os::fd::AsFd;

use anstream::AutoStream;
use anstyle::Style;
use clap::ColorChoice;

use crate::args::Global;
use crate::exit::{Code, Failure};

/// Standard output, buffered.
pub(crate) struct Output {
    stream: BufWriter<Stdout>,
    /// Whether it is a terminal: only then is output cut, coloured or explained.
    pub(crate) terminal: bool,
    /// The number of columns, or `None` if lines are not cut.
    pub(crate) width: Option<usize>,
    colours: bool,
}

impl Output {
    pub(crate) fn new(global: &Global) -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        let width = columns(&stdout);
        let colours = colours(global.color, &stdout);
        Self { stream: BufWriter::with_capacity(64 * 1024, stdout), terminal, width, colours }
    }

    #[cfg(feature = "tui")]
    pub(crate) fn colours(&self) -> bool {
        self.colours
    }

    /// Applies a style if colours are on.
    pub(crate) fn styled(&self, style: Style, text: &str) -> String {
        match self.colours && !text.is_empty() {
            true => format!("{style}{text}{style:#}"),
            false => text.to_owned(),
        }
    }

    /// Writes one line to the buffer.
    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes())?;
        self.stream.write_all(b"\n")
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// The width of a terminal; `None` if it is not a terminal or does not report it.
pub(crate) fn columns(terminal: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// The first of `--color`, `NO_COLOR`, `CLICOLOR_FORCE` and "is a terminal" decides.
fn colours(asked: ColorChoice, stdout: &Stdout) -> bool {
    match asked {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => AutoStream::choice(stdout) != anstream::ColorChoice::Never,
    }
}

/// Why a command that prints ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The reader has closed the pipe, as in `ls | head`: not a failure.
    Closed,
    Failed(Failure),
}

impl Stop {
    /// The exit code: `code` if only the reader has gone.
    pub(crate) fn or(self, code: Code) -> Result<Code, Failure> {
        match self {
            Stop::Closed => Ok(code),
            Stop::Failed(failure) => Err(failure),
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Stop::Closed,
            _ => {
                Stop::Failed(Failure::internal(format!("cannot write to standard output: {error}")))
            }
        }
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failed(failure)
    }
}

impl From<lockkeeper::Error> for Stop {
    fn from(error: lockkeeper::Error) -> Self {
        Stop::Failed(error.into())
    }
}

impl From<serde_json::Error> for Stop {
    fn from(error: serde_json::Error) -> Self {
        io::Error::from(error).into()
    }
}
