//! The folder of the results. A run of some workloads replaces the results of those, and keeps the others
//! with the facts of the run that measured them.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::report::{self, Row};
use crate::{Result, machine, page};

/// The folder, and what was in it before.
pub(crate) struct Docs {
    folder: PathBuf,
    kept: Results,
}

/// The rows as they are in the file, and the runs that measured them.
#[derive(Debug, Default, PartialEq)]
struct Results {
    rows: Vec<String>,
    runs: Vec<Value>,
}

impl Docs {
    /// The folder. Nothing in it is kept if everything is measured anew.
    pub(crate) fn open(folder: &Path, keep: bool) -> Result<Self> {
        let kept = if keep { Results::read(folder)? } else { Results::default() };
        Ok(Self { folder: folder.to_owned(), kept })
    }

    /// Writes what this run has measured, and what is kept; the summary into a README if there is one.
    pub(crate) fn write(&self, rows: &[Row], run: &Value, readme: Option<&Path>) -> Result<()> {
        let results = self.kept.replaced(report::json_rows(rows), run)?;
        let rows = report::json_array(&results.rows);
        // Before anything is replaced.
        page::check(&self.folder, &rows)?;
        fs::create_dir_all(&self.folder)?;
        fs::write(self.folder.join(page::ROWS), rows)?;
        fs::write(self.folder.join(page::MACHINE), machine::text(&results.runs)?)?;
        page::write(&self.folder, readme)
    }
}

impl Results {
    /// Nothing if there is no such folder.
    fn read(folder: &Path) -> Result<Self> {
        let file = |name: &str| match fs::read_to_string(folder.join(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok("[]".into()),
            text => text,
        };
        // A row is a line.
        let (rows, runs) = (file(page::ROWS)?, file(page::MACHINE)?);
        let rows = rows.lines().filter(|line| line.starts_with("  {"));
        let rows = rows.map(|line| line.trim_end_matches(',').to_owned()).collect();
        Ok(Self { rows, runs: serde_json::from_str(&runs)? })
    }

    /// With the rows of this run instead of those that its workloads gave before.
    fn replaced(&self, rows: Vec<String>, run: &Value) -> Result<Self> {
        let measured: Vec<_> = machine::workloads(run).collect();
        let mut stale: HashSet<_> = measured.iter().flat_map(|workload| workload.rows()).collect();
        let mut runs = self.runs.clone();
        for old in &self.runs {
            let again =
                |old: &machine::Measured<'_>| measured.iter().any(|new| new.name == old.name);
            stale
                .extend(machine::workloads(old).filter(again).flat_map(|workload| workload.rows()));
        }
        runs.iter_mut().for_each(|old| machine::forget(old, &measured));
        runs.retain(|old| machine::workloads(old).next().is_some());
        runs.push(run.clone());
        let (mut kept, mut place) = (Vec::new(), None);
        for row in &self.rows {
            let parsed: Value = serde_json::from_str(row)?;
            match stale.contains(parsed["workload"].as_str().unwrap_or_default()) {
                true => place = place.or(Some(kept.len())),
                false => kept.push(row.clone()),
            }
        }
        let place = place.unwrap_or(kept.len());
        kept.splice(place..place, rows);
        Ok(Self { rows: kept, runs })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(workload: &str, value: f64) -> Row {
        Row::of(workload, "lockkeeper Lock", "pairs/s", &[value])
    }

    /// The workloads of a run, and the rows of each.
    fn run(commit: &str, workloads: Value) -> Value {
        json!({ "commit": commit, "workloads": workloads, "other_cores": {"hot": 1}, "failed": {"hot": "why"} })
    }

    #[test]
    fn only_what_is_measured_again_is_replaced() {
        let old = Results::default();
        let rows =
            [row("own", 1.0), row("hot, 2 processes", 2.0), row("hot, fair", 3.0), row("far", 4.0)];
        let workloads =
            json!({"own": ["own"], "hot": ["hot, 2 processes", "hot, fair"], "far": ["far"]});
        let old = old.replaced(report::json_rows(&rows), &run("a", workloads)).unwrap();
        assert_eq!(old.rows.len(), 4);

        // It gives other rows than before.
        let again = [row("hot, 8 processes", 5.0)];
        let hot = run("b", json!({"hot": ["hot, 8 processes"]}));
        let new = old.replaced(report::json_rows(&again), &hot).unwrap();
        let expected = [row("own", 1.0), again[0].clone(), row("far", 4.0)];
        assert_eq!(new.rows, report::json_rows(&expected));
        let first = json!({"commit": "a", "workloads": {"own": ["own"], "far": ["far"]}, "other_cores": {}, "failed": {}});
        assert_eq!(new.runs, [first, hot]);

        // Nothing of the first run is left.
        let rest = run("c", json!({"own": ["own"], "far": ["far"]}));
        let newest = new.replaced(report::json_rows(&[row("own", 6.0), row("far", 7.0)]), &rest);
        let newest = newest.unwrap();
        let commits: Vec<_> = newest.runs.iter().map(|run| &run["commit"]).collect();
        assert_eq!(commits, ["b", "c"]);
        assert_eq!(newest.rows.len(), 3);
    }

    #[test]
    fn a_workload_that_fails_keeps_the_results_that_it_had() {
        let old = run("a", json!({"own": ["own"]}));
        let old = Results::default().replaced(report::json_rows(&[row("own", 1.0)]), &old).unwrap();
        let new = json!({"commit": "b", "workloads": {"far": ["far"]}, "failed": {"own": "why"}});
        let new = old.replaced(report::json_rows(&[row("far", 2.0)]), &new).unwrap();
        assert_eq!(new.rows, report::json_rows(&[row("own", 1.0), row("far", 2.0)]));
        assert_eq!(new.runs[0]["workloads"], json!({"own": ["own"]}));
        assert_eq!(new.runs[1]["failed"], json!({"own": "why"}));
    }

    #[test]
    fn rows_without_a_table_replace_nothing() {
        let name = format!("lockkeeper-docs-refused-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("README.md"), "without tables").unwrap();
        let docs = Docs::open(&folder, true).unwrap();
        let refused = docs.write(&[row("unknown", 1.0)], &run("a", json!({})), None);
        let is_written = folder.join(page::ROWS).exists();
        fs::remove_dir_all(&folder).unwrap();
        assert!(refused.unwrap_err().to_string().contains("“unknown”") && !is_written);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = std::env::temp_dir().join(format!("lockkeeper-docs-{}", std::process::id()));
        let rows = [row("peers: uncontended", 1.0), row("peers: fair lock", 2.0)];
        let workloads = json!({"peers: uncontended": ["peers: uncontended"], "peers: fair lock": ["peers: fair lock"]});
        let written = Docs::open(&folder, true).unwrap().write(&rows, &run("a", workloads), None);
        let read = Docs::open(&folder, true).unwrap().kept;
        let anew = Docs::open(&folder, false).unwrap().kept;
        let _ = fs::remove_dir_all(&folder);
        written.unwrap();
        assert_eq!(read.rows, report::json_rows(&rows));
        assert_eq!(read.runs[0]["commit"], "a");
        assert_eq!(anew, Results::default());
    }
}
