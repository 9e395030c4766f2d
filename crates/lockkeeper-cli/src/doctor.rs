//! `doctor`: what endangers locks on this store.

use std::io::Write;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use lockkeeper::{Finding, Report, Severity};
use unicode_width::UnicodeWidthStr;

use crate::args::{DoctorArgs, Global};
use crate::exit::{Code, Failure};
use crate::inspect::document;
use crate::output::{Output, Stop};
use crate::{display, json, open};

/// The library takes no less.
const LEAST_LEASE: Duration = Duration::from_millis(30);

pub(crate) async fn run(global: &Global, args: &DoctorArgs) -> Result<Code, Failure> {
    let store = open::choose(global)?;
    let mut options = store.options.clone();
    // What is slow for a short lease is not for a long one.
    if let Some(lease) = args.lease.or(store.lease) {
        if lease < LEAST_LEASE {
            return Err(Failure::usage("a lease is at least 30 ms"));
        }
        options = options.watchdog_timeout(lease);
    }
    let client = store.connect_with(options).await?;
    let report = client.check().await?;
    let code = if report.is_safe() { Code::OK } else { Code::DANGER };
    let mut output = Output::new(global);
    let printed = match args.json {
        true => document(&mut output, &json::Doctor::of(&report, store.shown())),
        false => print(&mut output, &report),
    };
    match printed {
        Ok(()) => Ok(code),
        Err(stop) => stop.or(code),
    }
}

fn print(output: &mut Output, report: &Report) -> Result<(), Stop> {
    let findings: Vec<_> = report.findings.iter().map(harmless).collect();
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
        0 => "nothing endangers locks".to_owned(),
        1 => "one thing endangers locks".to_owned(),
        many => format!("{many} things endanger locks"),
    };
    let summary = format!("{verdict}; {latency}");
    let lines =
        output.width.map_or_else(|| vec![summary.clone()], |width| wrapped(&summary, width));
    for line in lines {
        output.line(&line)?;
    }
    Ok(output.flush()?)
}

/// The same with what the store says escaped.
fn harmless(finding: &Finding) -> Finding {
    let mut finding = finding.clone();
    for part in [&mut finding.subject, &mut finding.detail, &mut finding.remedy] {
        *part = display::text(part);
    }
    finding
}

/// One line for each, so that it can be searched.
fn in_a_pipe(output: &mut Output, finding: &Finding, widest: usize) -> Result<(), Stop> {
    let Finding { severity, subject, detail, remedy, .. } = finding;
    let (severity, subject) = (padded(&severity.to_string(), 6), padded(subject, widest));
    let remedy = if remedy.is_empty() { String::new() } else { format!("; to do: {remedy}") };
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

/// Lines of at most so many columns; a word that is longer has a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always one");
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
    fn lines_are_broken_between_words() {
        assert_eq!(wrapped("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("a unbreakable b", 4), ["a", "unbreakable", "b"]);
        assert_eq!(wrapped("", 4), [""]);
    }
}
