//! `docs/proof/README.md`: what the simulation, the soak and the mutants have shown, from their JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Where the page is in the workspace, and the JSON beside it.
pub const FOLDER: &str = "docs/proof";

/// The line of the README is between these.
const BEGIN: &str = "<!-- proof -->";
const END: &str = "<!-- end of proof -->";

/// Writes the page and the README's line.
///
/// # Errors
/// If a file cannot be read or written.
pub fn write(root: &Path) -> Result<(), String> {
    let folder = root.join(FOLDER);
    let read = |name: &str| -> Result<Value, String> {
        let file = folder.join(name);
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))
    };
    let (simulation, soak, mutants) =
        (read("simulation.json")?, read("soak.json")?, read("mutants.json")?);
    let page = page(&simulation, &soak, &mutants);
    fs::write(folder.join("README.md"), page).map_err(|error| error.to_string())?;
    let readme = root.join("README.md");
    let text = fs::read_to_string(&readme).map_err(|error| error.to_string())?;
    let (before, rest) = text.split_once(BEGIN).ok_or("README.md has no place for the line")?;
    let (_, after) = rest.split_once(END).ok_or("README.md has no end of the line")?;
    let line = line(&simulation, &soak, &mutants);
    fs::write(readme, format!("{before}{BEGIN}{line}{END}{after}"))
        .map_err(|error| error.to_string())
}

fn rows(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The sum of a number over all kinds of all stores.
fn total(soak: &Value, key: &str) -> u64 {
    let kinds = rows(soak).iter().filter_map(|row| row["kinds"].as_object());
    kinds.flat_map(|kinds| kinds.values()).filter_map(|kind| kind[key].as_u64()).sum()
}

/// A number with its thousands apart.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups =
        digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group).into_owned());
    groups.collect::<Vec<_>>().join(",")
}

fn number(value: &Value) -> String {
    value.as_u64().map_or_else(|| "–".to_owned(), count)
}

fn line(simulation: &Value, soak: &Value, mutants: &Value) -> String {
    format!(
        "[Proof](docs/proof/README.md): {} locks acquired in a simulation with {} failing seeds and {} on real servers under faults: {} overlaps. {} planted \
         faults, all found.",
        number(&simulation["holds"]),
        number(&simulation["failed"]),
        count(total(soak, "holds")),
        count(total(soak, "overlaps")),
        rows(mutants).len(),
    )
}

fn page(simulation: &Value, soak: &Value, mutants: &Value) -> String {
    let mut page = format!(
        "# Proof\n\nWritten by `cargo xtask proof` from the JSON beside this page, at commit {}. Anyone can repeat it.\n\n\
         ## Simulation\n\nThe real engine and many clients in a world whose network, servers and clocks fail, in virtual time. One \
         seed decides everything: `cargo xtask simulate --from SEED --seeds 1` replays it. Checked: no two holders while both \
         hold by their own clocks, loss signalled before the next grant, growing tokens, the order of fair waiters, nothing \
         left behind, no free lock that a waiter does not get, counters that count once.\n\n\
         | seeds | operations | locks acquired | requests | seconds | seeds that failed | longest wait without faults |\n\
         |--:|--:|--:|--:|--:|--:|--:|\n| {} | {} | {} | {} | {:.0} | {} | {} ms |\n\n| fault | times |\n|---|--:|\n",
        simulation["commit"].as_str().unwrap_or("unknown"),
        number(&simulation["seeds"]),
        number(&simulation["operations"]),
        number(&simulation["holds"]),
        number(&simulation["requests"]),
        simulation["seconds"].as_f64().unwrap_or_default(),
        number(&simulation["failed"]),
        number(&simulation["longest_wait_ms"]),
    );
    for (fault, times) in simulation["faults"].as_object().into_iter().flatten() {
        let _ = writeln!(page, "| {fault} | {} |", number(times));
    }
    page += "\n## Real servers\n\nProcesses lock on real servers, while the processes are killed and paused and the servers are \
        killed, paused, cut off, failed over, resharded, flushed and restarted. An overlap is *documented* if the server had lost \
        its data, as the manual's chapter on guarantees says. Sentinel and Cluster run with acknowledgement by every replica.\n";
    for row in rows(soak) {
        let faults = row["faults"].as_object().into_iter().flatten();
        let faults: Vec<_> =
            faults.map(|(fault, times)| format!("{fault} {}", number(times))).collect();
        let _ = write!(
            page,
            "\n### {}: {} locks acquired in {} s, {} left behind\n\nFaults: {}.\n\n| kind | acquired | overlaps | documented | \
             late signals | lost wake-ups | tokens | tokens that went back | longest wait |\n\
             |---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
            row["store"].as_str().unwrap_or_default(),
            number(&row["holds"]),
            number(&row["seconds"]),
            number(&row["orphans"]),
            faults.join(", "),
        );
        for (kind, sums) in row["kinds"].as_object().into_iter().flatten() {
            let keys = [
                "holds",
                "overlaps",
                "documented",
                "late_signals",
                "lost_wakeups",
                "tokens",
                "tokens_back",
            ];
            let cells: Vec<_> = keys.iter().map(|key| number(&sums[*key])).collect();
            let _ = writeln!(
                page,
                "| {kind} | {} | {} ms |",
                cells.join(" | "),
                number(&sums["longest_wait_ms"])
            );
        }
    }
    page += "\n## Planted faults\n\n`cargo xtask mutants` plants each in a copy of the library and runs seeds until one fails.\n\n\
        | fault | found by seed | as |\n|---|--:|---|\n";
    for row in rows(mutants) {
        let by = row["by"].as_str().unwrap_or_default();
        let by = by.split_once(": ").map_or(by, |(_, what)| what);
        let _ = writeln!(
            page,
            "| {} | {} | {by} |",
            row["what"].as_str().unwrap_or_default(),
            number(&row["seeds"])
        );
    }
    page += "\n## What this does not show\n\nReal networks between hosts, real disks and loss of power, virtual machines that are \
        suspended or moved, other versions of Redis than the one installed, and clients that do not follow the protocol. The \
        simulation runs the model, not the scripts of Redis; a property test compares the two. The quorum runs on real servers \
        only.\n";
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!([0, 999, 1_000, 12_345_678].map(count), ["0", "999", "1,000", "12,345,678"]);
    }
}
