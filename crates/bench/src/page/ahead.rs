//! Where a peer is better than lockkeeper.

use std::fmt::Write as _;

use super::plot::short;
use super::rows::{PageRow, Rows};

/// Below this a difference is not a result.
const TENTH: f64 = 1.1;

/// Each result of ours that a peer beats by more than a tenth, with that peer.
fn pairs(rows: &Rows) -> Vec<(&PageRow, &PageRow)> {
    let mut pairs = Vec::new();
    for group in rows.groups() {
        for ours in group.iter().filter(|row| row.is_ours()) {
            let ahead = |row: &&&PageRow| row.is_peer() && row.badness() * TENTH < ours.badness();
            pairs.extend(group.iter().filter(ahead).map(|peer| (*ours, *peer)));
        }
    }
    pairs
}

/// In how many comparisons a peer is ahead, and of how many.
pub(super) fn count(rows: &Rows) -> String {
    let of =
        |group: &[&PageRow], is: fn(&PageRow) -> bool| group.iter().filter(|row| is(row)).count();
    let groups = rows.groups();
    let all = groups.iter().map(|group| of(group, PageRow::is_ours) * of(group, PageRow::is_peer));
    let (ahead, all) = (pairs(rows).len(), all.sum::<usize>());
    format!(
        "A peer is ahead by more than 10 % in {ahead} of {all} comparisons of one of our locks with a peer"
    )
}

/// All of these.
pub(super) fn table(rows: &Rows) -> String {
    let mut text = count(rows)
        + ".\n\n| workload | workers | peer | | lockkeeper | | unit | times |\n|---|--:|---|--:|---|--:|---|--:|\n";
    for (ours, peer) in pairs(rows) {
        let times = ours.badness() / peer.badness();
        // Both vary; a difference that is smaller than that may be an accident.
        let spread = peer.spread.unwrap_or(0.0).max(ours.spread.unwrap_or(0.0));
        let number = |row: &PageRow| row.median.map_or("∞".into(), short);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {}{} |",
            peer.title(),
            peer.workers,
            peer.contender,
            number(peer),
            ours.contender,
            number(ours),
            peer.unit,
            if times.is_finite() { short(times) } else { "∞".into() },
            if times - 1.0 < spread { ", within the spread" } else { "" },
        );
    }
    text
}
