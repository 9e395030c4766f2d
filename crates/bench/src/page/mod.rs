//! The tables and plots of `docs/bench`, and the table of the README: made from the rows and the machine's facts in
//! `docs/bench` and from nothing else.
//!
//! The text around the tables is written by hand. What lies between `<!-- bench: WHAT -->` and
//! `<!-- end of bench -->` is replaced; [`block`] says what there is.

mod ahead;
mod plot;
mod rows;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::Result;
use crate::machine;
use plot::{Plot, Series};
use rows::{PageRow, Rows};

/// The measured rows.
pub(crate) const ROWS: &str = "rows.json";

/// What they depend on.
pub(crate) const MACHINE: &str = "machine.json";

const PAGE: &str = "README.md";

const BEGIN: &str = "<!-- bench: ";
const END: &str = "<!-- end of bench -->\n";

/// Text, workload and number of workers of each line of the first table. The README has the first ones.
const GLANCE: &[(&str, &str, Option<u64>)] = &[
    ("uncontended, 64 workers, pairs/s", "peers: uncontended", Some(64)),
    ("one hot lock, 64 workers, acquisitions/s", "peers: hot lock, 1 process", None),
    ("one hot lock, 8 processes × 8, acquisitions/s", "peers: hot lock, 8 processes", None),
    ("handoff between processes, p50, µs", "peers: handoff p50", None),
    ("memory per waiter, bytes", "peers: memory per waiter", None),
    ("uncontended, 1024 workers, pairs/s", "peers: uncontended", Some(1024)),
    ("new client until it has a lock, ms", "peers: connect, new client", None),
    ("three independent servers, 64 workers, pairs/s", "quorum: uncontended, 3 members", Some(64)),
];

const IN_README: usize = 5;

/// A plot.
struct Drawing {
    file: &'static str,
    title: &'static str,
    unit: &'static str,
    lines: bool,
    /// The workloads that it shows and what each is called. If there is one without a name, the numbers of
    /// workers are what is compared.
    places: &'static [(&'static str, &'static str)],
}

const DRAWINGS: &[Drawing] = &[
    Drawing {
        file: "uncontended.svg",
        title: "Uncontended: acquire and release",
        unit: "pairs per second over the number of workers; more is better",
        lines: true,
        places: &[("peers: uncontended", "")],
    },
    Drawing {
        file: "hot.svg",
        title: "One hot lock",
        unit: "acquisitions per second; more is better",
        lines: false,
        places: &[
            ("peers: hot lock, 1 process", "64 workers in one process"),
            ("peers: hot lock, 8 processes", "8 processes with 8 workers each"),
        ],
    },
    Drawing {
        file: "handoff.svg",
        title: "Handoff between two processes",
        unit: "microseconds; less is better",
        lines: false,
        places: &[
            ("peers: handoff p50", "p50"),
            ("peers: handoff p99", "p99"),
            ("peers: handoff p99.9", "p99.9"),
        ],
    },
    Drawing {
        file: "fair.svg",
        title: "Fair lock",
        unit: "handoffs per second over the number of workers; more is better",
        lines: true,
        places: &[("peers: fair lock", "")],
    },
    Drawing {
        file: "read_write.svg",
        title: "Readers and writers of one lock",
        unit: "operations per second; more is better",
        lines: false,
        places: &[
            ("peers: read/write 90:10", "90 % reads"),
            ("peers: read/write 50:50", "50 % reads"),
        ],
    },
    Drawing {
        file: "memory.svg",
        title: "Memory per waiter",
        unit: "bytes; less is better",
        lines: false,
        places: &[
            ("peers: memory per waiter", "in the client"),
            ("peers: server memory per waiter", "in the server"),
        ],
    },
    Drawing {
        file: "ceiling.svg",
        title: "Lock: ceiling, driver and lockkeeper",
        unit: "pairs per second over the number of tasks; more is better",
        lines: true,
        places: &[("lock uncontended", "")],
    },
];

/// The results in a folder.
struct Results {
    rows: Rows,
    runs: Vec<Value>,
}

/// Fails if the page in the folder, should there be one, cannot have these rows.
pub(crate) fn check(folder: &Path, rows: &str) -> Result<()> {
    let (rows, page) = (Rows::parse(&serde_json::from_str(rows)?)?, folder.join(PAGE));
    if page.exists() { check_tables(&rows, &read(&page)?) } else { Ok(()) }
}

/// Draws the plots into the folder of the rows, and fills the tables of the page there, and of a README, if there are
/// such.
pub(crate) fn write(folder: &Path, readme: Option<&Path>) -> Result<()> {
    let results = Results::read(folder)?;
    for (file, plot) in results.plots() {
        fs::write(folder.join(file), plot)?;
    }
    let page = folder.join(PAGE);
    if page.exists() {
        let text = read(&page)?;
        check_tables(&results.rows, &text)?;
        fs::write(&page, results.filled(&text)?)?;
    }
    if let Some(readme) = readme {
        fs::write(readme, results.filled(&read(readme)?)?)?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    Ok(fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?)
}

/// What the blocks of a text are, and where the content of each begins and ends.
fn blocks(text: &str) -> Result<Vec<(&str, usize, usize)>> {
    let (mut blocks, mut from) = (Vec::new(), 0);
    while let Some(at) = text[from..].find(BEGIN) {
        let (what, rest) = text[from + at + BEGIN.len()..]
            .split_once(" -->\n")
            .ok_or("a mark that is not closed")?;
        let begin = text.len() - rest.len();
        let length = rest.find(END).ok_or_else(|| format!("“{what}” has no end"))?;
        blocks.push((what, begin, begin + length));
        from = begin + length;
    }
    Ok(blocks)
}

/// How the names of the workloads of a table begin.
fn workloads(what: &str) -> Option<Vec<&str>> {
    Some(what.strip_prefix("results of ")?.split(" and of ").collect())
}

/// Every row belongs to one table of the page.
fn check_tables(rows: &Rows, page: &str) -> Result<()> {
    let blocks = blocks(page)?;
    let names: Vec<_> = blocks.iter().filter_map(|(what, ..)| workloads(what)).flatten().collect();
    for row in rows.all() {
        let tables = names.iter().filter(|name| row.workload.starts_with(**name)).count();
        if tables != 1 {
            return Err(format!("“{}” is in {tables} tables of the page", row.workload).into());
        }
    }
    Ok(())
}

impl Results {
    fn read(folder: &Path) -> Result<Self> {
        let json =
            |name: &str| -> Result<Value> { Ok(serde_json::from_str(&read(&folder.join(name))?)?) };
        let runs = json(MACHINE)?.as_array().filter(|runs| !runs.is_empty()).cloned();
        Ok(Self { rows: Rows::parse(&json(ROWS)?)?, runs: runs.ok_or("there are no runs")? })
    }

    /// File names and contents.
    fn plots(&self) -> impl Iterator<Item = (&'static str, String)> {
        let known = |drawing: &&Drawing| !self.rows.beginning(&[drawing.places[0].0]).is_empty();
        DRAWINGS.iter().filter(known).map(|drawing| (drawing.file, draw(drawing, &self.rows)))
    }

    /// The text with other blocks.
    fn filled(&self, text: &str) -> Result<String> {
        let (mut filled, mut copied) = (String::new(), 0);
        for (what, begin, end) in blocks(text)? {
            let _ = write!(filled, "{}\n{}\n", &text[copied..begin], self.block(what)?);
            copied = end;
        }
        Ok(filled + &text[copied..])
    }

    fn block(&self, what: &str) -> Result<String> {
        Ok(match what {
            "the README" => self.summary(),
            "at a glance" => glance(&self.rows, GLANCE),
            "peers ahead" => ahead::table(&self.rows),
            "aims" => aims(&self.rows),
            "runs" => runs(&self.runs),
            _ => {
                let workloads = workloads(what).ok_or_else(|| format!("unknown: “{what}”"))?;
                table(&self.rows.beginning(&workloads))
            }
        })
    }

    fn summary(&self) -> String {
        let run = &self.runs[0];
        let quick = if run["quick"] == true { "**A quick run, not a result.** " } else { "" };
        format!(
            "{quick}{} cores that clients and server share, Redis {}, {}:\n\n{}\n{}: `docs/bench/README.md` lists them, \
             with the method, its limits and all results.\n",
            fact(&run["cores"]),
            fact(&run["redis"]),
            fact(&run["date"]),
            glance(&self.rows, &GLANCE[..IN_README]),
            ahead::count(&self.rows),
        )
    }
}

/// The name of a place, and which rows are there.
type Place = (String, Box<dyn Fn(&PageRow) -> bool>);

fn draw(drawing: &Drawing, rows: &Rows) -> String {
    let places: Vec<Place> = match drawing.places {
        // One workload without a name: its numbers of workers are the places.
        [(workload, "")] => {
            let mut workers: Vec<_> =
                rows.beginning(&[workload]).iter().map(|row| row.workers).collect();
            workers.sort_unstable();
            workers.dedup();
            let place = |workers: u64| -> Place {
                let is = move |row: &PageRow| row.workload == *workload && row.workers == workers;
                (workers.to_string(), Box::new(is))
            };
            workers.into_iter().map(place).collect()
        }
        places => {
            let place = |&(workload, name): &(&'static str, &str)| -> Place {
                (name.to_owned(), Box::new(move |row| row.workload.starts_with(workload)))
            };
            places.iter().map(place).collect()
        }
    };
    let contenders = rows.contenders(|row| places.iter().any(|(_, is)| is(row)));
    let series = contenders.iter().map(|name| {
        let value = |is: &dyn Fn(&PageRow) -> bool| {
            let row = rows.all().find(|row| is(row) && row.contender == *name);
            row.and_then(PageRow::range)
        };
        Series { name, values: places.iter().map(|(_, is)| value(is)).collect() }
    });
    let series = series.collect();
    let names = places.iter().map(|(name, _)| name.clone()).collect();
    let plot = Plot { title: drawing.title, unit: drawing.unit, places: names, series };
    if drawing.lines { plot.lines() } else { plot.dots() }
}

/// One line per figure, one column per library.
fn glance(rows: &Rows, figures: &[(&str, &str, Option<u64>)]) -> String {
    let names = rows.contenders(|row| row.workload == "peers: uncontended");
    let columns: String = names.iter().map(|name| format!(" {name} |")).collect();
    let mut text = format!("| |{columns}\n|---|{}\n", "---:|".repeat(names.len()));
    // Those that were measured.
    let is_known = |workload: &str| rows.all().any(|row| row.workload == workload);
    for (figure, workload, workers) in figures.iter().filter(|line| is_known(line.1)) {
        let _ = write!(text, "| {figure} |");
        for name in &names {
            let row = rows.find(workload, name, *workers);
            let value = row.and_then(|row| row.median).map_or("–".into(), plot::short);
            let _ = write!(text, " {value} |");
        }
        text.push('\n');
    }
    text
}

/// Everything that was to be reached.
fn aims(rows: &Rows) -> String {
    let reached = rows.aims().filter(|(_, aim)| aim.reached()).count();
    let mut text = format!(
        "{reached} of {} are reached.\n\n| workload | library | workers | aim | measured | reached |\n\
         |---|---|--:|---|---|---|\n",
        rows.aims().count()
    );
    for (row, aim) in rows.aims() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} {} | {} | {} |",
            row.title(),
            row.contender,
            row.workers,
            aim.what,
            aim.bound(),
            aim.measured(),
            if aim.reached() { "yes" } else { "**no**" },
        );
    }
    text
}

/// What each run ran on, and which results are of which run.
fn runs(runs: &[Value]) -> String {
    let mut text = String::new();
    for run in runs {
        let names: Vec<_> = machine::workloads(run).map(|workload| workload.name).collect();
        let _ = writeln!(text, "- **{}**", names.join(", "));
        for (name, value) in run.as_object().into_iter().flatten() {
            let of_each = value.as_object();
            if name != "workloads" && of_each.is_none_or(|each| !each.is_empty()) {
                let _ = writeln!(text, "  - {}: {}", name.replace('_', " "), fact(value));
            }
        }
    }
    text
}

/// A fact as text.
fn fact(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(of_each) => {
            let each = of_each.iter().map(|(name, value)| format!("{name} {}", fact(value)));
            each.collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    }
}

fn table(rows: &[&PageRow]) -> String {
    let mut text = String::from(
        "| workload | library | workers | median | unit | spread | of the first | requests/op | \
         client CPU µs/op | server CPU µs/op |\n|---|---|--:|--:|---|--:|--:|--:|--:|--:|\n",
    );
    let number = |value: Option<f64>| value.map_or("–".into(), plot::short);
    for row in rows {
        let same =
            |other: &&&PageRow| other.workload == row.workload && other.workers == row.workers;
        let ratio = rows.iter().find(same).and_then(|first| row.over(first));
        let ratio = ratio.map_or("–".into(), |ratio| ratio.to_string());
        let spread = row.spread.map_or("–".into(), |spread| format!("{:.0} %", spread * 100.0));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {spread} | {ratio} | {} | {} | {} |",
            row.title(),
            row.contender,
            row.workers,
            row.result(),
            row.unit,
            number(row.calls),
            number(row.client_cpu),
            number(row.server_cpu),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(rows: &[String]) -> Results {
        let rows = serde_json::from_str(&format!("[{}]", rows.join(", "))).unwrap();
        let runs = serde_json::json!([{"quick": true, "cores": 2, "other_cores": {"a": 0.5}}]);
        Results { rows: Rows::parse(&rows).unwrap(), runs: runs.as_array().unwrap().clone() }
    }

    fn block(rows: &[String], what: &str) -> String {
        results(rows).block(what).unwrap()
    }

    fn row(contender: &str, median: u32) -> String {
        format!(
            "{{\"workload\": \"peers: uncontended\", \"contender\": \"{contender}\", \"workers\": 64, \
             \"median\": {median}, \"unit\": \"pairs/s\", \"spread\": 0.1, \"values\": [{median}], \"aims\": []}}"
        )
    }

    #[test]
    fn each_of_our_locks_is_compared_and_a_tenth_is_no_result() {
        let rows = [row("lockkeeper Lock", 100), row("lockkeeper Mutex", 128), row("rslock", 140)];
        let text = block(&rows, "peers ahead");
        assert!(text.contains("in 1 of 2 comparisons"), "{text}");
        let expected =
            "| uncontended | 64 | rslock | 140 | lockkeeper Lock | 100 | pairs/s | 1.40 |\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn the_readme_says_that_a_quick_run_is_no_result() {
        let text = block(&[row("lockkeeper Lock", 100), row("rslock", 150)], "the README");
        assert!(text.starts_with("**A quick run, not a result.** 2 cores"), "{text}");
        assert!(text.contains("in 1 of 1 comparisons"), "{text}");
    }

    #[test]
    fn an_aim_is_reached_by_its_median() {
        let aim = |bound: &str| {
            let row = row("lockkeeper Lock", 100);
            let aims = r#""aims": [{"what": "ratio", "values": [1, 2, 9], "bound": "#;
            row.replace("\"aims\": []", &format!("{aims}{bound}, \"at_least\": true}}]"))
        };
        let text = block(&[aim("2")], "aims");
        assert!(text.contains("| ratio ≥ 2 | 2 (1 to 9) | yes |"), "{text}");
        let text = block(&[aim("2.1")], "aims");
        assert!(text.contains("| ratio ≥ 2.10 | 2 (1 to 9) | **no** |"), "{text}");
    }

    #[test]
    fn a_row_without_a_result_says_why_and_is_compared_with_none() {
        let failed = row("rslock", 1).replace("\"median\": 1,", "\"median\": null,");
        let failed = failed.replace("\"values\": [1]", "\"values\": []");
        let failed = failed.replace("\"aims\": []", r#""aims": [], "failure": "says \n a|b""#);
        let rows = [row("lockkeeper Lock", 100), failed];
        let text = block(&rows, "results of peers: un");
        assert!(text.contains(r"| rslock | 64 | no result: says a\|b | pairs/s |"), "{text}");
        assert!(block(&rows, "peers ahead").contains("in 0 of 0"));
    }

    #[test]
    fn every_row_is_in_one_table() {
        let rows = results(&[row("lockkeeper Lock", 1)]).rows;
        let block = |what: &str| format!("{BEGIN}{what} -->\n{END}");
        check_tables(&rows, &block("results of a and of peers: ")).unwrap();
        let unknown = check_tables(&rows, &block("results of a")).unwrap_err();
        assert!(unknown.to_string().contains("“peers: uncontended” is in 0 tables"));
        assert!(check_tables(&rows, &block("results of p").repeat(2)).is_err());
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let results = results(&[row("lockkeeper Lock", 1)]);
        let page = format!("a\n{BEGIN}aims -->\nold\n{END}b\n");
        let filled = results.filled(&page).unwrap();
        assert!(filled.starts_with(&format!("a\n{BEGIN}aims -->\n\n0 of 0 are reached.")));
        assert!(filled.ends_with(&format!("|\n\n{END}b\n")), "{filled}");
        assert_eq!(results.filled(&filled).unwrap(), filled);
        assert!(results.filled(&page.replace(END, "")).is_err());
        assert!(results.filled(&page.replace("aims", "else")).is_err());
    }

    #[test]
    fn the_documents_of_this_repository_are_made_of_its_rows() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = root.join("docs/bench");
        let results = Results::read(&folder).unwrap();
        let how = "run `cargo xtask bench --page docs/bench --readme README.md`";
        for file in [folder.join(PAGE), root.join("README.md")] {
            let text = read(&file).unwrap();
            let blocks = blocks(&text).unwrap().len();
            assert!(
                blocks > 0 && results.filled(&text).unwrap() == text,
                "{file:?} differs: {how}"
            );
        }
        check_tables(&results.rows, &read(&folder.join(PAGE)).unwrap()).unwrap();
        for (file, plot) in results.plots() {
            assert!(read(&folder.join(file)).unwrap() == plot, "{file} differs: {how}");
        }
    }
}
