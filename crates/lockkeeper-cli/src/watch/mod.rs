//! `watch`: a live view on a terminal, with the feature `tui`; a line for each change elsewhere.

mod lines;
#[cfg(feature = "tui")]
mod tui;

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use crate::args::{Global, WatchArgs};
use crate::exit::{Code, Failure};

const MIN_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) async fn run(global: &Global, args: &WatchArgs) -> Result<Code, Failure> {
    let pattern = args.pattern.as_ref().map_or(&b"*"[..], |pattern| pattern.as_bytes()).to_vec();
    let every = args.interval.max(MIN_INTERVAL);
    #[cfg(feature = "tui")]
    if !args.json && can_draw() {
        return tui::run(global, pattern, every).await;
    }
    lines::run(global, pattern, every, args.json).await
}

/// Whether the output is a terminal that can move its cursor: a dumb one cannot.
#[cfg(feature = "tui")]
fn can_draw() -> bool {
    use std::io::{IsTerminal, stdout};
    stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}
