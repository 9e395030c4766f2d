//! A progress bar while a figure is measured.

use std::fmt::Display;
use std::future::Future;
use std::io::{self, Write};
use std::time::Duration;

use tokio::time::{Instant, interval};

use crate::output;

/// How often it moves: seldom, because it takes time from what is measured.
const STEP: Duration = Duration::from_millis(100);

/// Its columns, without the title.
const WIDTH: usize = 24;

/// On standard error, if that is a terminal with enough columns. Removed when it is dropped.
pub(super) struct Progress {
    title: &'static str,
    time: Duration,
    shown: bool,
}

impl Progress {
    pub(super) fn new(title: &'static str, time: Duration) -> Self {
        let columns = output::columns(io::stderr());
        let shown = columns.is_some_and(|columns| columns > WIDTH + title.len());
        Self { title, time, shown }
    }

    /// Moves while the work is done.
    pub(super) async fn beside<T>(&self, work: impl Future<Output = T>) -> T {
        let start = Instant::now();
        let mut work = std::pin::pin!(work);
        let mut steps = interval(STEP);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = steps.tick() => {
                    let part = start.elapsed().div_duration_f64(self.time).min(1.0);
                    let bar = "━".repeat((part * WIDTH as f64) as usize);
                    self.draw(format_args!("\r{bar:WIDTH$} {}", self.title));
                }
            }
        }
    }

    /// A terminal that does not take it does not matter.
    fn draw(&self, text: impl Display) {
        if self.shown {
            let _ = write!(io::stderr(), "{text}").and_then(|()| io::stderr().flush());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.draw("\r\u{1b}[2K");
    }
}
