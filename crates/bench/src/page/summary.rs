//! The part of the repository's README that has figures: made of the rows, so that it cannot say anything else.

use std::fmt::Write as _;

use serde_json::Value;

use super::rows::Rows;
use super::{ahead, glance, words};
use crate::Result;

const BEGIN: &str =
    "<!-- bench: `cargo xtask bench --page docs/bench --readme README.md` writes this -->\n";
const END: &str = "<!-- end of bench -->\n";

/// The README with another summary.
pub(super) fn replaced(readme: &str, summary: &str) -> Result<String> {
    let marks = "the README has no marks for the summary";
    let (before, rest) = readme.split_once(BEGIN).ok_or(marks)?;
    let (_, after) = rest.split_once(END).ok_or(marks)?;
    Ok(format!("{before}{BEGIN}\n{summary}\n{END}{after}"))
}

/// The figures, and where to read more.
pub(super) fn text(rows: &Rows, runs: &[Value]) -> String {
    let mut text = words::warning(runs);
    // Runs may differ.
    let each = |name: &str| {
        let mut found: Vec<_> = runs.iter().map(|run| words::fact(run, name)).collect();
        found.dedup();
        found.join(" or ")
    };
    let count = if runs.len() == 1 { "one run".into() } else { format!("{} runs", runs.len()) };
    let _ = write!(
        text,
        "Medians of {count} on {} cores that clients and server share, Redis {}, {}. Only the ratios are meaningful: \
         another machine gives other absolute numbers.\n\n{}",
        each("cores"),
        each("redis"),
        each("date"),
        glance(rows)
    );
    let (behind, all) = ahead::counts(rows);
    let reached = rows.aims().filter(|(_, aim)| aim.reached()).count();
    let _ = write!(
        text,
        "\nOf {all} comparisons of one of our locks with a peer, the peer is ahead by more than 10 % in {behind}. Of \
         {} aims {reached} are reached. `docs/bench/README.md` lists them, with method, limits, versions, plots and all \
         results.\n",
        rows.aims().count()
    );
    text += "\n| | tasks | lockkeeper | ratio to the raw ceiling | ratio to the plain driver |\n|---|--:|--:|--:|--:|\n";
    for (workload, name) in [("lock uncontended", "Lock"), ("mutex uncontended", "Mutex")] {
        let library = format!("lockkeeper {name}");
        for tasks in [1, 8, 64, 1024] {
            let find = |contender: &str| rows.find(workload, contender, Some(tasks));
            let Some(ours) = find(&library) else { continue };
            let [ceiling, driver] = ["raw ceiling", "driver"].map(|reference| {
                let ratio = find(reference).and_then(|reference| ours.over(reference));
                ratio.map_or("–".into(), |ratio| ratio.to_string())
            });
            let rate = ours.median.map_or("–".into(), super::plot::short);
            let _ =
                writeln!(text, "| `{name}`, pairs/s | {tasks} | {rate} | {ceiling} | {driver} |");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let readme = format!("a\n{BEGIN}old\n{END}b\n");
        let new = replaced(&readme, "new").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}\nnew\n{END}b\n"));
        assert_eq!(replaced(&new, "new").unwrap(), new);
        assert!(replaced("a", "new").is_err());
    }
}
