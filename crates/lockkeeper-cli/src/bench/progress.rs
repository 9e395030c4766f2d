//! A bar while something is measured, where somebody looks.

use std::future::Future;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, interval};

/// How often it moves: seldom, because it takes time from what is measured.
const STEP: Duration = Duration::from_millis(100);

/// On standard error, and only if that is a terminal. Gone when it is done.
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new(title: &'static str, time: Duration, colours: bool) -> Self {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let colour = if colours { ".cyan/black.bright" } else { "" };
        let template = format!("{{bar:30{colour}}} {{msg}}");
        let bar = ProgressBar::new(millis).with_message(title);
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style.progress_chars(if colours { "━╸━" } else { "━╸ " }));
        }
        Self { bar }
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
                    let millis = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                    self.bar.set_position(millis.min(self.bar.length().unwrap_or(millis)));
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
