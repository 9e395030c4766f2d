//! `watch`: a live view on a terminal, a line for each change elsewhere.
//!
//! What is seen ([`view`], [`row`], [`keys`]) is apart from how it is drawn ([`draw`]) and from what
//! happens beside it ([`lookout`], [`screen`], [`live`]).

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

/// More often than this is no help to anybody.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) async fn run(global: &Global, args: &WatchArgs) -> Result<Code, Failure> {
    let pattern = args.pattern.as_ref().map_or(&b"*"[..], |pattern| pattern.as_bytes()).to_vec();
    let every = args.interval.max(LEAST_INTERVAL);
    // A terminal that can do nothing is a roll of paper.
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if args.json || dumb || !stdout().is_terminal() {
        return lines::run(global, pattern, every, args.json).await;
    }
    let colours = Output::new(global).colours();
    // The library that draws has an opinion on NO_COLOR, too; but `--color always` comes first.
    crossterm::style::force_color_output(colours);
    let theme = draw::Theme::new(colours);
    live::run(open::choose(global)?, pattern, every, theme).await
}
