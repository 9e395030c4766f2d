//! `bench`: quick figures on one's own store.
//!
//! Everything it locks is below a name that no other program uses, and all of it is gone afterwards, which
//! is checked.

mod figures;
mod progress;

use std::time::Duration;

use anstyle::Style;
use hdrhistogram::Histogram;
use lockkeeper::{Client, WATCHDOG_TIMEOUT};
use serde::Serialize;

use crate::args::{BenchArgs, Global};
use crate::exit::{Code, Failure};
use crate::inspect::document;
use crate::interrupt::Interrupt;
use crate::open;
use crate::output::{Output, Stop};
use crate::table::{Cell, Column, Table};
use figures::{FIGURES, Figure};
use progress::Progress;

/// Less than this measures nothing.
const LEAST_TIME: Duration = Duration::from_millis(50);

/// Figures are only as good as the machine was quiet.
const CAUTION: &str = "These depend on this machine, on what else it does, and on the way to the store; \
                       they differ from run to run.";

/// The outcome, as JSON.
#[derive(Serialize)]
struct Report {
    store: String,
    time_ms: u64,
    figures: Vec<Measured>,
    note: &'static str,
}

/// One figure, as JSON.
#[derive(Serialize)]
struct Measured {
    id: &'static str,
    title: &'static str,
    tasks: u32,
    count: u64,
    per_second: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

impl Measured {
    /// `nanos`: how long each repetition took.
    fn of(figure: &Figure, nanos: &Histogram<u64>, time: Duration) -> Self {
        let tenths = |number: f64| (number * 10.0).round() / 10.0;
        let micros =
            |part| (!nanos.is_empty()).then(|| tenths(nanos.value_at_quantile(part) as f64 / 1e3));
        let rate = tenths(nanos.len() as f64 / time.as_secs_f64());
        Self {
            id: figure.id,
            title: figure.title,
            tasks: figure.tasks,
            count: nanos.len(),
            per_second: figure.counted.then_some(rate),
            p50_us: micros(0.5),
            p99_us: micros(0.99),
        }
    }
}

pub(crate) async fn run(global: &Global, args: &BenchArgs) -> Result<Code, Failure> {
    let mut interrupt = Interrupt::new()?;
    let store = open::choose(global)?;
    let mut output = Output::new(global);
    let by = args.acknowledged_by;
    let options = store.acknowledged(by, store.options.clone(), WATCHDOG_TIMEOUT);
    let connect = || store.connect_with(options.clone());
    let clients = [connect().await?, connect().await?];
    let time = args.time.max(LEAST_TIME);
    // A client's identity is drawn anew for each.
    let prefix = format!("lockkeeper:bench:{}", clients[0].id());
    let measured = tokio::select! {
        measured = measure(&clients, &prefix, time) => measured.map(Some),
        code = interrupt.next() => {
            clear_away(&clients, &connect().await?, &prefix).await?;
            return Ok(code);
        }
    };
    // Also after an error: what it was is worth more than what else may go wrong.
    let cleared = match connect().await {
        Ok(witness) => clear_away(&clients, &witness, &prefix).await,
        Err(failure) => Err(failure),
    };
    let Some(figures) = measured? else { return Ok(Code::OK) };
    cleared?;
    let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let report = Report { store: store.shown(), time_ms, figures, note: CAUTION };
    let printed = match args.json {
        true => document(&mut output, &report),
        false => print(&mut output, &report),
    };
    match printed {
        Ok(()) => Ok(Code::OK),
        Err(stop) => stop.or(Code::OK),
    }
}

async fn measure(
    clients: &[Client; 2],
    prefix: &str,
    time: Duration,
) -> Result<Vec<Measured>, Failure> {
    let mut figures = Vec::new();
    for figure in &FIGURES {
        let progress = Progress::new(figure.title, time);
        let nanos = progress.beside(figure.measure(clients, prefix, time)).await?;
        figures.push(Measured::of(figure, &nanos, time));
    }
    Ok(figures)
}

/// Gives back whatever is still held, and looks whether anything is left.
async fn clear_away(clients: &[Client; 2], witness: &Client, prefix: &str) -> Result<(), Failure> {
    for client in clients {
        client.shutdown().await;
    }
    let mut left = 0;
    let mut pages = witness.inspector().list(format!("{prefix}*"));
    while let Some(page) = pages.next().await? {
        left += page.len();
    }
    witness.shutdown().await;
    match left {
        0 => Ok(()),
        left => Err(Failure::internal(format!("{left} locks below {prefix} were left behind"))),
    }
}

const COLUMNS: [Column; 4] = [
    Column { heading: "", right: false, least: Some(20), rank: 0 },
    Column { heading: "A SECOND", right: true, least: None, rank: 1 },
    Column { heading: "MEDIAN", right: true, least: None, rank: 2 },
    Column { heading: "99 %", right: true, least: None, rank: 3 },
];

fn print(output: &mut Output, report: &Report) -> Result<(), Stop> {
    let rows: Vec<_> = report.figures.iter().map(row).collect();
    let table = Table::fit(COLUMNS, rows.iter(), output.width, false);
    let heading = table.heading(|style, text| output.styled(style, text));
    output.line(&heading)?;
    for row in &rows {
        let line = table.line(row, |style, text| output.styled(style, text));
        output.line(&line)?;
    }
    let time = crate::display::span(Duration::from_millis(report.time_ms));
    let note = format!("\nOn {}, {time} each, one thread. {CAUTION}", report.store);
    let note = output.styled(Style::new().dimmed(), &note);
    output.line(&note)?;
    Ok(std::io::Write::flush(output)?)
}

fn row(measured: &Measured) -> [Cell; 4] {
    let micros = |micros: Option<f64>| micros.map_or("-".to_owned(), in_a_unit);
    let rate = measured.per_second.map_or("-".to_owned(), |rate| grouped(rate.round() as u64));
    [
        Cell::new(measured.title),
        Cell::styled(rate, Style::new().bold()),
        Cell::new(micros(measured.p50_us)),
        Cell::new(micros(measured.p99_us)),
    ]
}

/// Three digits say enough.
fn in_a_unit(micros: f64) -> String {
    match micros {
        micros if micros < 10.0 => format!("{micros:.1} µs"),
        micros if micros < 1_000.0 => format!("{micros:.0} µs"),
        micros if micros < 10_000.0 => format!("{:.1} ms", micros / 1e3),
        micros => format!("{:.0} ms", micros / 1e3),
    }
}

/// With a space between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
        let spans = [0.91, 9.96, 120.4, 1_234.0, 25_000.0].map(in_a_unit);
        assert_eq!(spans, ["0.9 µs", "10.0 µs", "120 µs", "1.2 ms", "25 ms"]);
    }
}
