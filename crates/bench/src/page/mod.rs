//! The page and the plots of `docs/bench`, made from the rows and the machine's facts there and from
//! nothing else.

mod ahead;
mod missed;
mod plot;
mod rows;
mod summary;
mod words;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::Result;
use plot::{Plot, Series};
use rows::{PageAim, PageRow, Rows};

/// The measured rows.
pub(crate) const ROWS: &str = "rows.json";

/// What they depend on.
pub(crate) const MACHINE: &str = "machine.json";

/// A part of the results: a heading, what it says, and the workloads whose names begin so.
struct Section {
    heading: &'static str,
    about: &'static str,
    plot: Option<Drawing>,
    workloads: &'static [&'static str],
}

/// How a section is drawn.
struct Drawing {
    file: &'static str,
    title: &'static str,
    unit: &'static str,
    lines: bool,
    /// The workloads that it shows and what each is called. If there is one without a name, the numbers of
    /// workers are what is compared.
    places: &'static [(&'static str, &'static str)],
}

/// What is made of the rows.
struct Documents {
    page: String,
    /// File names and contents.
    plots: Vec<(&'static str, String)>,
    /// For the README of the repository.
    summary: String,
}

/// Fails if no page can be made of these rows, as they are in the file.
pub(crate) fn check(rows: &str) -> Result<()> {
    check_sections(&Rows::parse(&serde_json::from_str(rows)?)?)
}

/// Writes the page and the plots into the folder of the rows, and the summary into a README if there is one.
pub(crate) fn write(folder: &Path, readme: Option<&Path>) -> Result<()> {
    let documents = Documents::read(folder)?;
    for (file, plot) in documents.plots {
        fs::write(folder.join(file), plot)?;
    }
    fs::write(folder.join("README.md"), documents.page)?;
    if let Some(readme) = readme {
        let text = summary::replaced(&read(readme)?, &documents.summary)?;
        fs::write(readme, text)?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    Ok(fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?)
}

impl Documents {
    fn read(folder: &Path) -> Result<Self> {
        let json =
            |name: &str| -> Result<Value> { Ok(serde_json::from_str(&read(&folder.join(name))?)?) };
        let runs = json(MACHINE)?;
        let runs = runs.as_array().filter(|runs| !runs.is_empty()).ok_or("there are no runs")?;
        Self::of(&Rows::parse(&json(ROWS)?)?, runs)
    }

    fn of(rows: &Rows, runs: &[Value]) -> Result<Self> {
        check_sections(rows)?;
        let mut page = words::head(runs);
        let mut plots = Vec::new();
        page += "## At a glance\n\n";
        page += &glance(rows);
        page += &ahead::section(rows);
        page += &aims(rows);
        page += &missed::section(rows);
        page += &words::machine(runs);
        page += words::METHOD;
        page += words::LIMITS;
        page += "\n## Results\n";
        for section in words::SECTIONS {
            let found: Vec<_> = rows.beginning(section.workloads);
            if found.is_empty() {
                continue;
            }
            let _ = write!(page, "\n### {}\n\n{}\n", section.heading, section.about);
            page += &words::measured(runs, &found);
            if let Some(drawing) = &section.plot {
                plots.push((drawing.file, draw(drawing, rows)));
                let _ =
                    write!(page, "\n![{}, {}]({})\n", drawing.title, drawing.unit, drawing.file);
            }
            let _ = write!(page, "\n{}", table(&found));
        }
        page += &all_aims(rows);
        Ok(Self { page, plots, summary: summary::text(rows, runs) })
    }
}

/// Every row belongs to one section.
fn check_sections(rows: &Rows) -> Result<()> {
    let sections = |row: &PageRow| {
        let begins = |name: &&str| row.workload.starts_with(name);
        words::SECTIONS.iter().filter(|section| section.workloads.iter().any(begins)).count()
    };
    match rows.all().find(|row| sections(row) != 1) {
        Some(row) if sections(row) == 0 => {
            Err(format!("workload “{}” has no section on the page", row.workload).into())
        }
        Some(row) => {
            Err(format!("workload “{}” has several sections on the page", row.workload).into())
        }
        None => Ok(()),
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
fn glance(rows: &Rows) -> String {
    let names = rows.contenders(|row| row.workload == "peers: uncontended");
    let columns: String = names.iter().map(|name| format!(" {name} |")).collect();
    let mut text = format!("| |{columns}\n|---|{}\n", "---:|".repeat(names.len()));
    // Those that were measured.
    let is_known = |workload: &str| rows.all().any(|row| row.workload == workload);
    for (figure, workload, workers) in words::GLANCE.iter().filter(|line| is_known(line.1)) {
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

/// The most important of what was to be reached.
fn aims(rows: &Rows) -> String {
    let reached = rows.aims().filter(|(_, aim)| aim.reached()).count();
    let mut text = format!(
        "\n## Aims\n\nSet before the work began. {reached} of {} are reached; “Where the time goes” \
         says why the others are not, and the last table lists all. In \
         brackets: lowest and highest round.\n\n| what | at least or at most | measured | reached |\n|---|---|---|---|\n",
        rows.aims().count()
    );
    for (name, workload, contender, workers, what) in words::AIMS {
        let found = workers.iter().filter_map(|workers| {
            let row = rows.find(workload, contender, Some(*workers))?;
            row.aims.iter().find(|aim| aim.what == *what)
        });
        let found: Vec<_> = found.collect();
        let joined = |of: fn(&PageAim) -> String| {
            found.iter().map(|aim| of(aim)).collect::<Vec<_>>().join(" / ")
        };
        let _ = match found.is_empty() {
            // Failed, or not part of a quick run.
            true => writeln!(text, "| {name} | – | no result | – |"),
            false => {
                let (bounds, measured) = (joined(PageAim::bound), joined(PageAim::measured));
                writeln!(text, "| {name} | {bounds} | {measured} | {} |", joined(PageAim::verdict))
            }
        };
    }
    text
}

/// Everything that was to be reached.
fn all_aims(rows: &Rows) -> String {
    let mut text = String::from(
        "\n## All aims\n\n| workload | library | workers | aim | measured | reached |\n|---|---|--:|---|---|---|\n",
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
            aim.verdict(),
        );
    }
    text
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

    const MACHINE_FACTS: &str =
        r#"[{"quick": true, "libraries": {"rslock": "1"}, "other_cores": {"a": 0.5}}]"#;

    fn runs(text: &str) -> Vec<Value> {
        serde_json::from_str(text).unwrap()
    }

    fn documents(rows: &[String]) -> Documents {
        let rows = serde_json::from_str(&format!("[{}]", rows.join(", "))).unwrap();
        Documents::of(&Rows::parse(&rows).unwrap(), &runs(MACHINE_FACTS)).unwrap()
    }

    fn row(contender: &str, median: u32) -> String {
        format!(
            "{{\"workload\": \"peers: uncontended\", \"contender\": \"{contender}\", \"workers\": 64, \
             \"median\": {median}, \"unit\": \"pairs/s\", \"spread\": 0.1, \"values\": [{median}], \"aims\": []}}"
        )
    }

    #[test]
    fn a_page_says_where_a_peer_is_ahead() {
        let made = documents(&[row("lockkeeper Lock", 100), row("rslock", 150)]);
        let expected =
            "uncontended, 64 workers: rslock 150 pairs/s, lockkeeper Lock 100 (1.50 times)";
        assert!(made.page.contains(expected), "{}", made.page);
        assert!(made.page.contains("quick") && made.summary.contains("quick"), "it is no result");
        let (_, plot) = &made.plots[0];
        assert!(plot.contains(">rslock<") && plot.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn each_of_our_locks_is_compared() {
        let rows = [row("lockkeeper Lock", 100), row("lockkeeper Mutex", 150), row("rslock", 140)];
        let page = documents(&rows).page;
        assert!(page.contains("rslock 140 pairs/s, lockkeeper Lock 100"), "{page}");
        assert!(!page.contains("rslock 140 pairs/s, lockkeeper Mutex"), "{page}");
    }

    #[test]
    fn a_tenth_is_no_result() {
        let page = documents(&[row("lockkeeper Lock", 100), row("rslock", 109)]).page;
        assert!(page.contains("In no result of this run"), "{page}");
    }

    #[test]
    fn an_aim_is_reached_by_its_median() {
        let aim = |bound: &str| {
            let row = row("lockkeeper Lock", 100);
            let aims = r#""aims": [{"what": "ratio", "values": [1, 2, 9], "bound": "#;
            row.replace("\"aims\": []", &format!("{aims}{bound}, \"at_least\": true}}]"))
        };
        let page = documents(&[aim("2")]).page;
        assert!(page.contains("| ratio ≥ 2 | 2 (1 to 9) | yes |"), "{page}");
        let page = documents(&[aim("2.1")]).page;
        assert!(page.contains("| ratio ≥ 2.10 | 2 (1 to 9) | **no** |"), "{page}");
    }

    #[test]
    fn a_workload_without_a_section_is_refused() {
        let unknown = row("lockkeeper Lock", 1).replace("peers: uncontended", "unknown");
        let rows = serde_json::from_str(&format!("[{unknown}]")).unwrap();
        assert!(Documents::of(&Rows::parse(&rows).unwrap(), &runs(MACHINE_FACTS)).is_err());
    }

    #[test]
    fn a_row_without_a_result_says_why_and_is_compared_with_none() {
        let failed = row("rslock", 1).replace("\"median\": 1,", "\"median\": null,");
        let failed = failed.replace("\"values\": [1]", "\"values\": []");
        let failed = failed.replace("\"aims\": []", r#""aims": [], "failure": "says \n a|b""#);
        let page = documents(&[row("lockkeeper Lock", 100), failed]).page;
        assert!(page.contains(r"| rslock | 64 | no result: says a\|b | pairs/s |"), "{page}");
        assert!(page.contains("In no result of this run"), "{page}");
    }

    #[test]
    fn a_section_of_several_runs_says_which_workload_is_of_which() {
        let workload = |name: &str| row("lockkeeper Lock", 5).replace("peers: uncontended", name);
        let rows = ["failover: worst", "cluster: uncontended", "cluster: renewals"].map(workload);
        let rows = serde_json::from_str(&format!("[{}]", rows.join(", "))).unwrap();
        let rows = Rows::parse(&rows).unwrap();
        let first = r#"{"date": "1 May", "commit": "aaa", "workloads":
            {"failover": ["failover: worst"], "cluster: uncontended": ["cluster: uncontended"]}}"#;
        let second = r#"{"date": "2 May", "commit": "bbb", "rounds": 9, "turn_seconds": 0.6,
            "workloads": {"cluster: renewals": ["cluster: renewals"]}}"#;
        let page = Documents::of(&rows, &runs(&format!("[{first}, {second}]"))).unwrap().page;
        let expected = "Measured in several runs: “cluster: uncontended” on 1 May at commit aaa; \
                        “cluster: renewals” on 2 May at commit bbb.\n";
        assert!(page.contains(expected), "{page}");
        let expected = "2 runs: on 1 May at commit aaa; on 2 May at commit bbb.";
        assert!(page.contains(expected), "{page}");
        assert!(page.contains("9 rounds with turns of 0.6 s"), "{page}");
        let page = Documents::of(&rows, &runs(&format!("[{first}]"))).unwrap().page;
        assert!(!page.contains("runs:"), "{page}");
    }

    #[test]
    fn a_page_of_several_runs_says_what_each_has_measured() {
        let hot =
            row("lockkeeper Lock", 5).replace("peers: uncontended", "peers: hot lock, 1 process");
        let rows = format!("[{}, {hot}]", row("lockkeeper Lock", 100));
        let rows = Rows::parse(&serde_json::from_str(&rows).unwrap()).unwrap();
        let first = r#"{"date": "1 May", "commit": "aaa", "cores": 2, "redis": "7",
            "workloads": {"peers: uncontended": ["peers: uncontended"]}}"#;
        let second = r#"{"date": "2 May", "commit": "bbb", "cores": 2, "redis": "7", "quick": true,
            "workloads": {"peers: hot lock": ["peers: hot lock, 1 process"]}}"#;
        let page = Documents::of(&rows, &runs(&format!("[{first}, {second}]"))).unwrap().page;
        let section =
            |heading: &str| page.split(heading).nth(1).unwrap().split("###").next().unwrap();
        assert!(
            section("### Uncontended").contains("Measured on 1 May at commit aaa.\n"),
            "{page}"
        );
        assert!(
            section("### One hot lock").contains("Measured on 2 May at commit bbb.\n"),
            "{page}"
        );
        assert!(page.contains("**“peers: hot lock” was a quick run"), "{page}");
        assert!(page.contains("The same machine and versions. Measured on 2 May"), "{page}");
        let page = Documents::of(&rows, &runs(&format!("[{first}]"))).unwrap().page;
        assert!(page.matches("Measured").count() == 1, "{page}");
        let other = second.replace("\"redis\": \"7\"", "\"redis\": \"8\"");
        let made = Documents::of(&rows, &runs(&format!("[{first}, {other}]"))).unwrap();
        assert!(made.page.contains("Redis 8;"), "{}", made.page);
        assert!(made.summary.contains("Medians of 2 runs on 2 cores"), "{}", made.summary);
        assert!(made.summary.contains("Redis 7 or 8, 1 May or 2 May"), "{}", made.summary);
    }

    #[test]
    fn the_documents_of_this_repository_are_made_of_its_rows() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (folder, readme) = (root.join("docs/bench"), read(&root.join("README.md")).unwrap());
        if !folder.exists() {
            let named = readme.contains("docs/bench/README.md");
            assert!(!named, "the README names a page that does not exist");
            assert!(
                summary::replaced(&readme, "").is_ok(),
                "the README has no place for a summary"
            );
            return;
        }
        let made = Documents::read(&folder).unwrap();
        let how = "run `cargo xtask bench --page docs/bench --readme README.md`";
        assert!(read(&folder.join("README.md")).unwrap() == made.page, "the page differs: {how}");
        for (file, plot) in made.plots {
            assert!(read(&folder.join(file)).unwrap() == plot, "{file} differs: {how}");
        }
        let replaced = summary::replaced(&readme, &made.summary).unwrap();
        assert!(replaced == readme, "the README differs: {how}");
    }
}
