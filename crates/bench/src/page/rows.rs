//! The rows as they are in the file.

use std::fmt;

use serde_json::Value;

use super::plot::short;
use crate::Result;
use crate::report::median;

/// One contender's result in one workload.
pub(super) struct PageRow {
    pub(super) workload: String,
    pub(super) contender: String,
    pub(super) workers: u64,
    pub(super) median: Option<f64>,
    pub(super) unit: String,
    pub(super) spread: Option<f64>,
    pub(super) calls: Option<f64>,
    pub(super) client_cpu: Option<f64>,
    pub(super) server_cpu: Option<f64>,
    pub(super) aims: Vec<PageAim>,
    /// Why there is no result.
    pub(super) failure: Option<String>,
    values: Vec<f64>,
}

/// What was to be reached, and what each round gave.
pub(super) struct PageAim {
    pub(super) what: String,
    pub(super) bound: f64,
    pub(super) at_least: bool,
    values: Vec<f64>,
}

/// All rows, in the order of the file.
pub(super) struct Rows(Vec<PageRow>);

impl Rows {
    pub(super) fn parse(json: &Value) -> Result<Self> {
        let rows = json.as_array().ok_or("the rows are not an array")?;
        let text = |row: &Value, name: &str| -> Result<String> {
            Ok(row[name].as_str().ok_or_else(|| format!("a row without {name}"))?.to_owned())
        };
        let numbers = |values: &Value| -> Vec<f64> {
            let values = values.as_array().into_iter().flatten();
            values.map(|value| value.as_f64().unwrap_or(f64::NAN)).collect()
        };
        let rows = rows.iter().map(|row| {
            let aims = row["aims"].as_array().into_iter().flatten().map(|aim| {
                Ok(PageAim {
                    what: text(aim, "what")?,
                    bound: aim["bound"].as_f64().ok_or("an aim without a bound")?,
                    at_least: aim["at_least"] == true,
                    values: numbers(&aim["values"]),
                })
            });
            Ok(PageRow {
                workload: text(row, "workload")?,
                contender: text(row, "contender")?,
                workers: row["workers"].as_u64().ok_or("a row without workers")?,
                median: row["median"].as_f64(),
                unit: text(row, "unit")?,
                spread: row["spread"].as_f64(),
                calls: row["server_calls_per_op"].as_f64(),
                client_cpu: row["client_cpu_us_per_op"].as_f64(),
                server_cpu: row["server_cpu_us_per_op"].as_f64(),
                aims: aims.collect::<Result<_>>()?,
                failure: row["failure"].as_str().map(str::to_owned),
                values: numbers(&row["values"]),
            })
        });
        Ok(Self(rows.collect::<Result<_>>()?))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &PageRow> {
        self.0.iter()
    }

    /// Those of workloads whose names begin so.
    pub(super) fn beginning(&self, workloads: &[&str]) -> Vec<&PageRow> {
        let is = |row: &&PageRow| workloads.iter().any(|name| row.workload.starts_with(name));
        self.0.iter().filter(is).collect()
    }

    /// What was to be reached, with its row.
    pub(super) fn aims(&self) -> impl Iterator<Item = (&PageRow, &PageAim)> {
        self.0.iter().flat_map(|row| row.aims.iter().map(move |aim| (row, aim)))
    }

    /// The result of a contender, with any number of workers if none is given.
    pub(super) fn find(
        &self,
        workload: &str,
        contender: &str,
        workers: Option<u64>,
    ) -> Option<&PageRow> {
        self.0.iter().find(|row| {
            row.workload == workload
                && row.contender == contender
                && workers.is_none_or(|workers| row.workers == workers)
        })
    }

    /// Names of contenders in the order in which they come.
    pub(super) fn contenders(&self, of: impl Fn(&PageRow) -> bool) -> Vec<&str> {
        let mut names = Vec::new();
        for row in self.0.iter().filter(|row| of(row)) {
            if !names.contains(&row.contender.as_str()) {
                names.push(row.contender.as_str());
            }
        }
        names
    }

    /// Rows that can be compared: results of the same workload and number of workers.
    pub(super) fn groups(&self) -> Vec<Vec<&PageRow>> {
        let mut groups: Vec<Vec<&PageRow>> = Vec::new();
        for row in self.0.iter().filter(|row| row.failure.is_none()) {
            let same = |group: &&mut Vec<&PageRow>| {
                group[0].workload == row.workload && group[0].workers == row.workers
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.push(row),
                None => groups.push(vec![row]),
            }
        }
        groups
    }
}

impl PageRow {
    /// The workload as a heading.
    pub(super) fn title(&self) -> &str {
        self.workload.strip_prefix("peers: ").unwrap_or(&self.workload)
    }

    /// The result for a table.
    pub(super) fn result(&self) -> String {
        match (&self.failure, self.median) {
            // A table has no lines in a cell, and a bar ends it.
            (Some(why), _) => {
                let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
                format!("no result: {}", why.replace('|', "\\|"))
            }
            (None, median) => median.map_or("∞".into(), short),
        }
    }

    pub(super) fn is_ours(&self) -> bool {
        self.contender.starts_with("lockkeeper")
    }

    /// Whether it is something to use instead, and not a reference such as a bare command.
    pub(super) fn is_peer(&self) -> bool {
        let peers = ["Redisson", "rslock", "redsync", "python-redis-lock", "flock", "driver"];
        peers.iter().any(|peer| self.contender.starts_with(peer))
    }

    /// A number that is smaller for a better result. A result that is not finite is the worst.
    pub(super) fn badness(&self) -> f64 {
        let Some(median) = self.median else { return f64::INFINITY };
        if self.unit.ends_with("/s") { 1.0 / median } else { median }
    }

    /// The ratio within each round, as the tables of the benchmark have it; or that of the medians, if the two
    /// have not as many rounds.
    pub(super) fn over(&self, first: &Self) -> Option<Range> {
        let ratios = match self.values.len() == first.values.len() {
            true => self.values.iter().zip(&first.values).map(|(own, other)| own / other).collect(),
            false => vec![self.median? / first.median?],
        };
        Range::of(&ratios)
    }

    /// Of the rounds.
    pub(super) fn range(&self) -> Option<Range> {
        Range::of(&self.values)
    }
}

/// The middle of some values, and between which they are.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Range {
    /// None if there is no finite median.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let fold = |of: fn(f64, f64) -> f64| values.iter().copied().reduce(of);
        let (low, high) = (fold(f64::min)?, fold(f64::max)?);
        Some(Self { median: median(values), low, high }).filter(|range| range.median.is_finite())
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, low, high] = [self.median, self.low, self.high].map(short);
        match low == high {
            true => f.write_str(&median),
            false => write!(f, "{median} ({low} to {high})"),
        }
    }
}

impl PageAim {
    /// `≥ 0.9`
    pub(super) fn bound(&self) -> String {
        format!("{} {}", if self.at_least { '≥' } else { '≤' }, short(self.bound))
    }

    pub(super) fn measured(&self) -> String {
        self.range().map_or("∞".into(), |range| range.to_string())
    }

    /// Of the rounds.
    pub(super) fn range(&self) -> Option<Range> {
        Range::of(&self.values)
    }

    pub(super) fn reached(&self) -> bool {
        let got = median(&self.values);
        if self.at_least { got >= self.bound } else { got <= self.bound }
    }
}
