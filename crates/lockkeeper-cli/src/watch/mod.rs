//! `watch`: a live view on a terminal, a line for each change elsewhere.
//!
//! The state of the view ([`view`], [`row`], [`keys`]) does no I/O; [`draw`] renders it, and [`poller`],
//! [`screen`] and [`live`] connect it to the store and the terminal.

mod draw;
#[cfg(test)]
mod fixture;
mod keys;
mod lines;
mod live;
mod poller;
mod row;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use std::io::{IsTerminal, stdout};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use crate::args::{Global, WatchArgs};
use crate::exit::{Code, Failure};
use crate::open;
use crate::output::Output;

const MIN_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) async fn run(global: &Global, args: &WatchArgs) -> Result<Code, Failure> {
    let pattern = args.pattern.as_ref().map_or(&b"*"[..], |pattern| pattern.as_bytes()).to_vec();
    let every = args.interval.max(MIN_INTERVAL);
    // A dumb terminal cannot move its cursor.
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if args.json || dumb || !stdout().is_terminal() {
        return lines::run(global, pattern, every, args.json).await;
    }
    let colours = Output::new(global).colours();
    // crossterm reads NO_COLOR itself, but `--color always` overrides it.
    crossterm::style::force_color_output(colours);
    let theme = draw::Theme::new(colours);
    live::run(open::choose(global)?, pattern, every, theme).await
}
