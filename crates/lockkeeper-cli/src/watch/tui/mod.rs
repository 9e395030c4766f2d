//! The live view on a terminal.
//!
//! The state of the view ([`view`], [`row`], [`keys`]) does no I/O; [`draw`] renders it, and [`poller`],
//! [`screen`] and [`live`] connect it to the store and the terminal.

mod draw;
#[cfg(test)]
mod fixture;
mod keys;
mod live;
mod poller;
mod row;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use std::time::Duration;

use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::open;
use crate::output::Output;

/// Runs until the user quits.
pub(super) async fn run(
    global: &Global,
    pattern: Vec<u8>,
    every: Duration,
) -> Result<Code, Failure> {
    let colours = Output::new(global).colours();
    // crossterm reads NO_COLOR itself, but `--color always` overrides it.
    crossterm::style::force_color_output(colours);
    let theme = draw::Theme::new(colours);
    live::run(open::choose(global)?, pattern, every, theme).await
}
