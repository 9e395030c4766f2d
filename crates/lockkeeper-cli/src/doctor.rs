//! `doctor`: risks to locks on this store, and its speed.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use lockkeeper::{Client, Finding, Report, Severity};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use unicode_width::UnicodeWidthStr;

use crate::args::{DoctorArgs, Global};
use crate::exit::{Code, Failure};
use crate::inspect::document;
use crate::output::{Output, Stop};
use crate::{display, json, open};

/// The minimum of the library.
const LEAST_LEASE: Duration = Duration::from_millis(30);

/// Pairs are counted with so many tasks, for so long, and so many at most: a store in use hardly notices.
const TASKS: u64 = 64;
const PAIRS: u64 = 16;
const COUNTED: Duration = Duration::from_millis(300);

/// A store that serves none in this time is not measured.
const GIVE_UP: Duration = Duration::from_secs(3);

pub(crate) async fn run(global: &Global, args: &DoctorArgs) -> Result<Code, Failure> {
    let store = open::choose(global)?;
    // Latency is judged relative to the lease.
    let lease = store.lease(args.lease)?;
    if lease < LEAST_LEASE {
        return Err(Failure::usage("the lease must be at least 30ms"));
    }
    let options = store.options.clone().watchdog_timeout(lease);
    let options = store.acknowledged(args.acknowledged_by, options, lease);
    let client = store.connect_with(options).await?;
    let report = client.check().await?;
    let pairs = timeout(GIVE_UP, pairs_per_second(&client)).await.ok().flatten();
    // Releases what a task may have held that was given up.
    client.shutdown().await;
    let code = if report.is_safe() { Code::OK } else { Code::DANGER };
    let mut output = Output::new(global);
    let printed = match args.json {
        true => document(&mut output, &json::Doctor::of(&report, pairs, store.shown())),
        false => print(&mut output, &report, pairs),
    };
    match printed {
        Ok(()) => Ok(code),
        Err(stop) => stop.or(code),
    }
}

/// Acquire/release pairs per second, each task on a lock of its own; `None` if the store does not serve them.
async fn pairs_per_second(client: &Client) -> Option<u64> {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    let run = RandomState::new().hash_one(());
    for task in 0..TASKS {
        let lock = client.lock(format!("lockkeeper:check:{run:016x}:{task}"));
        tasks.spawn(async move {
            let mut pairs = 0;
            while pairs < PAIRS && started.elapsed() < COUNTED {
                lock.try_lock().await.ok()??.release().await.ok()?;
                pairs += 1;
            }
            Some(pairs)
        });
    }
    let pairs: u64 = tasks.join_all().await.into_iter().sum::<Option<u64>>()?;
    Some((pairs as f64 / started.elapsed().as_secs_f64()) as u64)
}

fn print(output: &mut Output, report: &Report, pairs: Option<u64>) -> Result<(), Stop> {
    let findings: Vec<_> = report.findings.iter().map(escaped).collect();
    let widest = findings.iter().map(|finding| finding.subject.width()).max().unwrap_or(0);
    for finding in &findings {
        match output.width {
            Some(width) => on_a_terminal(output, finding, widest, width)?,
            None => in_a_pipe(output, finding, widest)?,
        }
    }
    let (middle, slowest) = (report.round_trip, report.slowest);
    let latency = format!("a request takes {middle:.1?}, the slowest took {slowest:.1?}");
    let dangers = report.findings.iter().filter(|f| f.severity >= Severity::Danger).count();
    let verdict = match dangers {
        0 => "no risks to locks".to_owned(),
        1 => "1 risk to locks".to_owned(),
        many => format!("{many} risks to locks"),
    };
    let speed = pairs.map_or_else(String::new, |pairs| {
        format!("; {TASKS} tasks acquire and release {pairs} locks per second")
    });
    let summary = format!("{verdict}; {latency}{speed}");
    let lines =
        output.width.map_or_else(|| vec![summary.clone()], |width| wrapped(&summary, width));
    for line in lines {
        output.line(&line)?;
    }
    Ok(output.flush()?)
}

/// Escapes the text from the store.
fn escaped(finding: &Finding) -> Finding {
    let mut finding = finding.clone();
    for part in [&mut finding.subject, &mut finding.detail, &mut finding.remedy] {
        *part = display::text(part);
    }
    finding
}

/// Prints one line per finding, for grep.
fn in_a_pipe(output: &mut Output, finding: &Finding, widest: usize) -> Result<(), Stop> {
    let Finding { severity, subject, detail, remedy, .. } = finding;
    let (severity, subject) = (padded(&severity.to_string(), 6), padded(subject, widest));
    let remedy = if remedy.is_empty() { String::new() } else { format!("; remedy: {remedy}") };
    Ok(output.line(&format!("{severity}  {subject}  {detail}{remedy}"))?)
}

fn on_a_terminal(
    output: &mut Output,
    finding: &Finding,
    widest: usize,
    width: usize,
) -> Result<(), Stop> {
    let (symbol, colour) = match finding.severity {
        Severity::Fine => ("✓", AnsiColor::Green),
        Severity::Note => ("!", AnsiColor::Yellow),
        _ => ("✗", AnsiColor::Red),
    };
    let style = colour.on_default();
    let symbol = output.styled(style, symbol);
    let subject = output.styled(Style::new().bold(), &padded(&finding.subject, widest));
    let indent = widest + 4;
    let room = width.saturating_sub(indent).max(20);
    let remedy = match &finding.remedy[..] {
        "" => Vec::new(),
        remedy => wrapped(&format!("→ {remedy}"), room),
    };
    let mut lines = wrapped(&finding.detail, room).into_iter().chain(remedy);
    output.line(&format!("{symbol} {subject}  {}", lines.next().unwrap_or_default()))?;
    for line in lines {
        output.line(&format!("{}{line}", " ".repeat(indent)))?;
    }
    Ok(())
}

fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

/// Breaks text into lines of at most `width` columns; a longer word gets its own line.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("lines is never empty");
        if last.is_empty() {
            last.push_str(word);
        } else if last.width() + 1 + word.width() <= width {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("a unbreakable b", 4), ["a", "unbreakable", "b"]);
        assert_eq!(wrapped("", 4), [""]);
    }
}
