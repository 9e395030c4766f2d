//! What is told, and how: with colours and time to read on a terminal, plainly elsewhere.

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

/// How long a line takes to be read.
const READING: Duration = Duration::from_millis(1800);

/// The stage.
pub(super) struct Stage {
    output: Output,
    hurry: bool,
    acts: u32,
}

impl Stage {
    pub(super) fn new(global: &Global, fast: bool) -> Self {
        Self { output: Output::new(global), hurry: fast, acts: 0 }
    }

    pub(super) fn begin(&mut self) -> io::Result<()> {
        let title = self.output.styled(TITLE, "lockkeeper");
        self.put(&format!("{title} in a minute: what a distributed lock has to get right."))?;
        let note = "All of this happens now, on embedded stores: there is no server.";
        let note = self.output.styled(DIM, note);
        self.put(&note)
    }

    /// A new act.
    pub(super) async fn act(&mut self, title: &str, about: &str) -> io::Result<()> {
        self.acts += 1;
        let number = self.output.styled(TITLE, &self.acts.to_string());
        let title = self.output.styled(STRONG, title);
        self.put("")?;
        self.put(&format!("{number}  {title}: {about}"))?;
        self.pause().await;
        Ok(())
    }

    /// Something that somebody did, or that happened to him.
    pub(super) async fn tell(&mut self, who: &str, what: &str) -> io::Result<()> {
        let who = self.output.styled(STRONG, &format!("{who:<5}"));
        self.put(&format!("   {who} {what}"))?;
        self.pause().await;
        Ok(())
    }

    /// Who waited and who held, over time.
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

    /// What was to be shown. If it is not so, the tour is over.
    pub(super) async fn check(&mut self, holds: bool, claim: &str) -> Result<(), Stop> {
        if !holds {
            return Err(Failure::internal(format!("this does not hold here: {claim}")).into());
        }
        let mark = self.output.styled(GOOD, "✓");
        self.put(&format!("   {mark} {claim}"))?;
        self.pause().await;
        Ok(())
    }

    pub(super) fn end(&mut self) -> io::Result<()> {
        self.put("")?;
        self.put("Now with something of your own:")?;
        for (command, what) in [
            ("lockkeeper run backup -- ./backup.sh", "on this host"),
            ("lockkeeper --url redis://HOST run backup -- ./backup.sh", "on all hosts"),
            ("lockkeeper watch", "who holds what"),
        ] {
            let what = self.output.styled(DIM, &format!("# {what}"));
            self.put(&format!("   {command:<56} {what}"))?;
        }
        Ok(())
    }

    async fn pause(&self) {
        if !self.hurry {
            tokio::time::sleep(READING).await;
        }
    }

    fn put(&mut self, line: &str) -> io::Result<()> {
        self.output.line(line)?;
        self.output.flush()
    }
}
