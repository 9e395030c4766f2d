//! Standard output: what it is, how wide, whether it takes colours, and that its reader may leave.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use anstream::AutoStream;
use anstyle::Style;
use clap::ColorChoice;

use crate::args::Global;
use crate::exit::{Code, Failure};

/// Standard output, buffered.
pub(crate) struct Output {
    stream: BufWriter<Stdout>,
    /// Whether a person looks at it: only then is anything cut, coloured or explained.
    pub(crate) terminal: bool,
    /// How many columns it has; nothing where nothing is to be cut.
    pub(crate) width: Option<usize>,
    colours: bool,
}

impl Output {
    pub(crate) fn new(global: &Global) -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        let width = terminal.then(terminal_size::terminal_size).flatten();
        // A terminal that does not know its width says 0.
        let width = width.map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0);
        let colours = colours(global.color, &stdout);
        Self { stream: BufWriter::with_capacity(64 * 1024, stdout), terminal, width, colours }
    }

    /// Whether colours are wanted.
    pub(crate) fn colours(&self) -> bool {
        self.colours
    }

    /// A text in a style, if colours are wanted.
    pub(crate) fn styled(&self, style: Style, text: &str) -> String {
        match self.colours && !text.is_empty() {
            true => format!("{style}{text}{style:#}"),
            false => text.to_owned(),
        }
    }

    /// One line. On a terminal it is seen at once when [`flush`](Write::flush) is called.
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

/// `--color` decides, else `NO_COLOR`, else `CLICOLOR_FORCE`, else whether it is a terminal.
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
    /// Nobody reads any more, as in `ls | head`: that is no failure.
    Unread,
    Failed(Failure),
}

impl Stop {
    /// What to exit with; `code` where all that was missing is a reader.
    pub(crate) fn or(self, code: Code) -> Result<Code, Failure> {
        match self {
            Stop::Unread => Ok(code),
            Stop::Failed(failure) => Err(failure),
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Stop::Unread,
            _ => Stop::Failed(Failure::internal(format!("standard output: {error}"))),
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
