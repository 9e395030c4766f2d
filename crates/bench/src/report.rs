//! Rows, and the two ways they leave: a markdown table for people, JSON for scripts.

use std::fmt::Write as _;

use crate::probe::Slice;

/// One contender's result in one workload.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// What was done.
    pub(crate) workload: String,
    /// By whom.
    pub(crate) contender: String,
    /// By how many tasks at once.
    pub(crate) workers: usize,
    /// The result: the median of the rounds.
    pub(crate) median: f64,
    /// Of what.
    pub(crate) unit: &'static str,
    /// The result of each round: `over` pairs them.
    pub(crate) values: Vec<f64>,
    /// (largest − smallest) / median of the rounds: below it a difference is noise. One round has none.
    pub(crate) spread: f64,
    /// Requests per operation, of all rounds together: a count, so there is nothing to take a
    /// median of.
    pub(crate) calls: Option<f64>,
    /// Client CPU in microseconds per operation, median of the rounds.
    pub(crate) client_cpu: Option<f64>,
    /// Requests per server read, of all rounds together. Table only.
    pub(crate) batch: Option<f64>,
    /// Server CPU in microseconds per operation, median of the rounds.
    pub(crate) server_cpu: Option<f64>,
    /// Result over the reference's, and the reference. Table only: a script can form any ratio
    /// itself.
    pub(crate) ratio: Option<(f64, String)>,
    /// What BENCH.md asks of this row.
    pub(crate) aims: Vec<Aim>,
    /// Why there is no result.
    pub(crate) failure: Option<String>,
}

/// Something to reach.
#[derive(Clone, Debug)]
pub(crate) struct Aim {
    what: String,
    /// Of each round; the median counts.
    values: Vec<f64>,
    bound: f64,
    at_least: bool,
}

impl Aim {
    /// The median of `values` must be `bound` or more.
    pub(crate) fn at_least(what: &str, values: impl Into<Vec<f64>>, bound: f64) -> Self {
        Self { what: what.into(), values: values.into(), bound, at_least: true }
    }

    /// The median of `values` must be `bound` or less.
    pub(crate) fn at_most(what: &str, values: impl Into<Vec<f64>>, bound: f64) -> Self {
        Self { what: what.into(), values: values.into(), bound, at_least: false }
    }

    fn cell(&self) -> String {
        let got = median(&self.values);
        let (sign, met) = match self.at_least {
            true => ('≥', got >= self.bound),
            false => ('≤', got <= self.bound),
        };
        let mark = if met { '✓' } else { '✗' };
        format!("{} {} {sign} {} {mark}", self.what, short(got), plain(self.bound))
    }

    fn json(&self) -> String {
        format!(
            "{{\"what\": {}, \"values\": {}, \"bound\": {}, \"at_least\": {}}}",
            json_text(&self.what),
            json_numbers(&self.values),
            self.bound,
            self.at_least
        )
    }
}

impl Row {
    /// A row from one value per round and nothing else known.
    pub(crate) fn of(workload: &str, contender: &str, unit: &'static str, values: &[f64]) -> Self {
        let median = median(values);
        let largest = values.iter().copied().fold(f64::MIN, f64::max);
        let smallest = values.iter().copied().fold(f64::MAX, f64::min);
        Self {
            workload: workload.into(),
            contender: contender.into(),
            workers: 1,
            median,
            unit,
            values: values.to_vec(),
            spread: match values.len() {
                0 | 1 => f64::NAN,
                _ if median == 0.0 => 0.0,
                _ => (largest - smallest) / median.abs(),
            },
            calls: None,
            client_cpu: None,
            batch: None,
            server_cpu: None,
            ratio: None,
            aims: Vec::new(),
            failure: None,
        }
    }

    /// A row without a result, which says why.
    pub(crate) fn failed(workload: &str, contender: &str, unit: &'static str, why: &str) -> Self {
        Self { failure: Some(why.into()), ..Self::of(workload, contender, unit, &[]) }
    }

    /// A row of operations per second from one slice per round.
    pub(crate) fn rate(
        workload: &str,
        contender: &str,
        unit: &'static str,
        slices: &[Slice],
    ) -> Self {
        let rates: Vec<_> = slices.iter().map(Slice::rate).collect();
        Self::of(workload, contender, unit, &rates).costing(slices)
    }

    /// With what the slices say an operation cost.
    pub(crate) fn costing(self, slices: &[Slice]) -> Self {
        let per_op = |of: fn(&Slice) -> f64| -> Vec<f64> {
            slices.iter().map(|slice| of(slice) * 1e6 / slice.ops as f64).collect()
        };
        let total = |of: fn(&Slice) -> f64| slices.iter().map(of).sum::<f64>();
        let calls = total(|slice| slice.calls);
        Self {
            calls: Some(calls / total(|slice| slice.ops as f64)),
            client_cpu: Some(median(&per_op(|slice| slice.client_cpu))),
            batch: Some(calls / total(|slice| slice.reads)),
            server_cpu: Some(median(&per_op(|slice| slice.server_cpu))),
            ..self
        }
    }

    /// By so many tasks.
    pub(crate) fn by(self, workers: usize) -> Self {
        Self { workers, ..self }
    }

    /// Which is asked for this.
    pub(crate) fn aiming(self, aims: impl Into<Vec<Aim>>) -> Self {
        Self { aims: aims.into(), ..self }
    }

    /// This row's result over another's, in each round. A slow minute of the machine hits both sides
    /// of such a ratio, but only one of two separate medians.
    pub(crate) fn over(&self, reference: &Self) -> Vec<f64> {
        let pairs = self.values.iter().zip(&reference.values);
        pairs.map(|(own, other)| own / other).collect()
    }

    /// Puts the ratio to `reference` into the table, if both have results.
    pub(crate) fn against(mut self, reference: &Self) -> Self {
        if self.failure.is_none() && reference.failure.is_none() {
            self.ratio = Some((median(&self.over(reference)), reference.contender.clone()));
        }
        self
    }
}

/// The middle value.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[length / 2],
        length => (sorted[length / 2 - 1] + sorted[length / 2]) / 2.0,
    }
}

const HEADER: [&str; 11] = [
    "workload",
    "contender",
    "tasks",
    "median",
    "unit",
    "spread",
    "ratio",
    "calls/op",
    "calls/read",
    "client µs/op",
    "server µs/op",
];

/// What the columns mean, to stand below the tables.
pub(crate) const LEGEND: &str = "\
median and spread ((largest − smallest) / median) of the rounds; ratio: median of the ratios within \
each round, so it need not be the ratio of two medians; calls: requests to the server, those inside \
scripts not counted; calls/read: how many the server found per read of a socket; µs: CPU time of \
this process and of the server. A difference below the spread, or below 10 %, is not a result.";

/// The table, ready for a README; the last column only if some row has an aim.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let aims = rows.iter().any(|row| !row.aims.is_empty());
    let mut lines = vec![HEADER.map(String::from).to_vec()];
    lines.extend(rows.iter().map(cells));
    if aims {
        lines[0].push("aims".into());
        for (line, row) in lines[1..].iter_mut().zip(rows) {
            line.push(aims_cell(&row.aims));
        }
    }
    aligned(&lines)
}

fn cells(row: &Row) -> Vec<String> {
    let number =
        |value: Option<f64>| value.filter(|value| value.is_finite()).map_or("–".into(), short);
    vec![
        row.workload.clone(),
        row.contender.clone(),
        row.workers.to_string(),
        if row.failure.is_some() { "failed".into() } else { short(row.median) },
        row.unit.into(),
        match row.spread.is_finite() {
            true => format!("{:.0} %", row.spread * 100.0),
            false => "–".into(),
        },
        row.ratio.as_ref().map_or("–".into(), |(ratio, to)| format!("{ratio:.2} × {to}")),
        row.calls.map_or("–".into(), |calls| format!("{calls:.3}")),
        number(row.batch),
        number(row.client_cpu),
        number(row.server_cpu),
    ]
}

fn aims_cell(aims: &[Aim]) -> String {
    aims.iter().map(Aim::cell).collect::<Vec<_>>().join("; ")
}

fn aligned(lines: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(out, "| {cell:<width$} ");
        }
        out.push_str("|\n");
        if number == 0 {
            for width in &widths {
                let _ = write!(out, "|{}", "-".repeat(width + 2));
            }
            out.push_str("|\n");
        }
    }
    out
}

/// Three significant digits or so, with the thousands grouped.
fn short(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 1000.0 => {
            let digits = format!("{:.0}", value);
            let mut grouped = String::new();
            for (place, digit) in digits.chars().enumerate() {
                if place > 0 && (digits.len() - place) % 3 == 0 {
                    grouped.push(' ');
                }
                grouped.push(digit);
            }
            grouped
        }
        magnitude if magnitude >= 100.0 => format!("{value:.0}"),
        magnitude if magnitude >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A bound as it was written down.
fn plain(value: f64) -> String {
    if value >= 1000.0 { short(value) } else { value.to_string() }
}

/// The rows as BENCH.md defines them; what a row does not have is `null`.
pub(crate) fn json(rows: &[Row]) -> String {
    json_array(&json_rows(rows))
}

/// Each as a line.
pub(crate) fn json_rows(rows: &[Row]) -> Vec<String> {
    rows.iter().map(json_row).collect()
}

/// Lines of rows as a file.
pub(crate) fn json_array(rows: &[String]) -> String {
    format!("[\n{}\n]\n", rows.join(",\n"))
}

fn json_row(row: &Row) -> String {
    let aims: Vec<_> = row.aims.iter().map(Aim::json).collect();
    let failure = row.failure.as_ref();
    let failure = failure.map(|why| format!(", \"failure\": {}", json_text(why)));
    format!(
        "  {{\"workload\": {}, \"contender\": {}, \"workers\": {}, \"median\": {}, \"unit\": {}, \
         \"spread\": {}, \"server_calls_per_op\": {}, \"client_cpu_us_per_op\": {}, \
         \"server_cpu_us_per_op\": {}, \"values\": {}, \"aims\": [{}]{}}}",
        json_text(&row.workload),
        json_text(&row.contender),
        row.workers,
        json_number(Some(row.median)),
        json_text(row.unit),
        json_number(Some(row.spread)),
        json_number(row.calls),
        json_number(row.client_cpu),
        json_number(row.server_cpu),
        json_numbers(&row.values),
        aims.join(", "),
        failure.unwrap_or_default(),
    )
}

fn json_numbers(values: &[f64]) -> String {
    let values: Vec<_> = values.iter().map(|value| json_number(Some(*value))).collect();
    format!("[{}]", values.join(", "))
}

/// JSON has no NaN.
fn json_number(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or("null".into(), |value| format!("{value:.4}"))
}

fn json_text(text: &str) -> String {
    let mut out = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            control if control.is_control() => {
                let _ = write!(out, "\\u{:04x}", control as u32);
            }
            _ => out.push(letter),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_an_even_number_of_values_is_between_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn a_json_row_has_the_agreed_names_and_null_for_what_is_unknown() {
        let row = Row::of("hot \"lock\"", "raw", "pairs/s", &[1.0, 2.0, 4.0]);
        assert_eq!(
            json(&[row]),
            "[\n  {\"workload\": \"hot \\\"lock\\\"\", \"contender\": \"raw\", \"workers\": 1, \
             \"median\": 2.0000, \"unit\": \"pairs/s\", \"spread\": 1.5000, \
             \"server_calls_per_op\": null, \"client_cpu_us_per_op\": null, \
             \"server_cpu_us_per_op\": null, \"values\": [1.0000, 2.0000, 4.0000], \"aims\": []}\n]\n"
        );
    }

    #[test]
    fn a_row_without_a_result_says_why() {
        let ours = Row::of("memory", "lockkeeper Lock", "bytes", &[1.0]);
        let failed = Row::failed("memory", "redsync", "bytes", "says \"no\"").against(&ours);
        assert!(failed.ratio.is_none());
        assert!(markdown(std::slice::from_ref(&failed)).contains("| failed "));
        let json = json(&[failed]);
        assert!(json.contains("\"median\": null"), "{json}");
        assert!(json.contains("\"aims\": [], \"failure\": \"says \\\"no\\\"\"}"), "{json}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(1_234_567.8), "1 234 568");
        assert_eq!(short(123.4), "123");
        assert_eq!(short(1.0), "1.00");
    }
}
