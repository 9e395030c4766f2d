//! Events of the library, on standard error: with `-v` the important ones, with `-vv` all.

use std::io::{self, Write};

use tracing::{Level, Metadata};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;

use crate::exit::say;

/// Prints events of the library from now on, if the user asked for them.
pub(crate) fn listen(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => Level::INFO,
        _ => Level::TRACE,
    };
    let is_printed = move |metadata: &Metadata<'_>| {
        metadata.is_event()
            && *metadata.level() <= level
            && metadata.target().starts_with("lockkeeper")
    };
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_ansi(false)
        .with_writer(|| Line)
        .finish();
    // It fails only if a subscriber is set already, which then prints them.
    let _ = tracing::subscriber::set_global_default(lines.with(filter_fn(is_printed)));
}

/// Receives each event in one piece. Printing never fails: a closed standard error must not end the
/// command.
struct Line;

impl Write for Line {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        say(String::from_utf8_lossy(event).trim_end());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
