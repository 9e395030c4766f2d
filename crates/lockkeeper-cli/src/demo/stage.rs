//! The output of the demo, with pauses for reading.

use std::io::{self, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};

use super::chart::{Bar, Chart};
use crate::args::Global;
use crate::exit::Failure;
use crate::output::{Output, Stop};

const TITLE: Style = AnsiColor::Cyan.on_default().bold();
const STRONG: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();

/// The pause after a line.
const READING: Duration = Duration::from_millis(1800);

pub(super) struct Stage {
    output: Output,
    fast: bool,
    acts: u32,
}

impl Stage {
    pub(super) fn new(global: &Global, fast: bool) -> Self {
        Self { output: Output::new(global), fast, acts: 0 }
    }

    pub(super) fn begin(&mut self) -> io::Result<()> {
        let title = self.output.styled(TITLE, "lockkeeper");
        self.put(&format!("{title} in a minute: what a distributed lock must guarantee."))?;
        let note = "Everything below runs now, on embedded stores, without a server.";
        let note = self.output.styled(DIM, note);
        self.put(&note)
    }

    /// Begins an act.
    pub(super) async fn act(&mut self, title: &str, about: &str) -> io::Result<()> {
        self.acts += 1;
        let number = self.output.styled(TITLE, &self.acts.to_string());
        let title = self.output.styled(STRONG, title);
        self.put("")?;
        self.put(&format!("{number}  {title}: {about}"))?;
        self.pause().await;
        Ok(())
    }

    /// Reports what a client did or observed.
    pub(super) async fn report(&mut self, who: &str, what: &str) -> io::Result<()> {
        let who = self.output.styled(STRONG, &format!("{who:<5}"));
        self.put(&format!("   {who} {what}"))?;
        self.pause().await;
        Ok(())
    }

    /// Draws waits and holds over time.
    pub(super) async fn chart(&mut self, chart: &Chart) -> io::Result<()> {
        for (name, bars) in chart.lines() {
            let mut line = self.output.styled(STRONG, &format!("   {name:<5} "));
            for (bar, text) in bars {
                let style = match bar {
                    Bar::Absent => Style::new(),
                    Bar::Waiting => DIM,
                    Bar::Holding => GOOD,
                };
                line.push_str(&self.output.styled(style, &text));
            }
            self.put(line.trim_end())?;
        }
        let scale = self.output.styled(DIM, &format!("         {}", chart.scale()));
        self.put(&scale)?;
        self.pause().await;
        Ok(())
    }

    /// Prints a claim. A claim that does not hold ends the demo.
    pub(super) async fn check(&mut self, holds: bool, claim: &str) -> Result<(), Stop> {
        if !holds {
            return Err(Failure::internal(format!("a claim does not hold: {claim}")).into());
        }
        let mark = self.output.styled(GOOD, "✓");
        self.put(&format!("   {mark} {claim}"))?;
        self.pause().await;
        Ok(())
    }

    pub(super) fn end(&mut self) -> io::Result<()> {
        self.put("")?;
        self.put("Try it:")?;
        for (command, what) in [
            ("lockkeeper run backup -- ./backup.sh", "for this host"),
            ("lockkeeper --url redis://HOST run backup -- ./backup.sh", "for all hosts"),
            ("lockkeeper watch", "locks and holders"),
        ] {
            let what = self.output.styled(DIM, &format!("# {what}"));
            self.put(&format!("   {command:<56} {what}"))?;
        }
        Ok(())
    }

    async fn pause(&self) {
        if !self.fast {
            tokio::time::sleep(READING).await;
        }
    }

    fn put(&mut self, line: &str) -> io::Result<()> {
        self.output.line(line)?;
        self.output.flush()
    }
}
