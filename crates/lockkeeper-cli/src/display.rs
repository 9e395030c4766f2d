//! Locks in words for people.
//!
//! Everything that comes out of a store was written there by somebody else: before it goes to a
//! terminal, whatever could move the cursor or turn the line around is escaped by [`text`]. Standard
//! error is escaped as a whole where it is written ([`say`](crate::exit::say)), JSON by its own rules
//! ([`json::write`](crate::json::write)).

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use lockkeeper::{ClientInfo, Forced, Holder, LockInfo, LockName, Remaining};

/// What is not known, or does not apply.
pub(crate) const UNKNOWN: &str = "-";

/// A name on one line.
pub(crate) fn name(name: &LockName) -> String {
    name.to_string()
}

/// A text out of a store on one line: nothing in it breaks lines, hides, or turns the line around.
pub(crate) fn text(text: &str) -> String {
    LockName::from(text).to_string()
}

/// Who it is: `host/pid/program` where its client says so, otherwise its identity in the store.
pub(crate) fn holder(holder: &Holder) -> String {
    match &holder.client {
        Some(client) => process(client),
        None => text(&holder.id),
    }
}

fn process(client: &ClientInfo) -> String {
    text(&format!("{}/{}/{}", client.host, client.pid, client.program))
}

/// What is known of the process behind a holder.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Presence {
    /// A lockkeeper client that announces itself: it is notified at once.
    Announced,
    /// One that has not announced itself for this long, though it should have: it was killed, is stopped
    /// or cannot reach the store.
    Overdue(Duration),
    /// A guard that was left (`--at-least`): nothing runs under the lock.
    Left,
    /// No lockkeeper client says that it is its own: it is of another library, or has died.
    Unknown,
}

pub(crate) fn presence(holder: &Holder) -> Presence {
    match (&holder.client, holder.left, holder.seen) {
        (_, Some(_), _) => Presence::Left,
        (None, None, _) => Presence::Unknown,
        (Some(_), None, Some(seen)) if seen.is_overdue() => Presence::Overdue(seen.ago),
        (Some(_), None, _) => Presence::Announced,
    }
}

/// When the process behind a holder was last heard of.
pub(crate) fn last_seen(holder: &Holder, now: SystemTime) -> String {
    match (presence(holder), holder.seen) {
        (Presence::Left, _) => {
            format!("left {} ago, nothing runs under it", age(holder.left, now))
        }
        (Presence::Unknown, _) => "not known to be alive".to_owned(),
        (_, Some(seen)) => format!("last seen {} ago", span(seen.ago)),
        // A version that does not say when.
        (_, None) => "seen within its lease".to_owned(),
    }
}

/// What becomes of the holders when the lock is taken away from them.
pub(crate) fn consequence(holders: &[Holder]) -> String {
    let presences: Vec<_> = holders.iter().map(presence).collect();
    if let [presence] = presences[..] {
        return match presence {
            Presence::Announced => "it is notified at once and has to stop".to_owned(),
            Presence::Overdue(ago) => {
                format!("it was last seen {} ago: it stops if it still runs", span(ago))
            }
            Presence::Left => "nothing runs under it any more".to_owned(),
            Presence::Unknown => {
                "it is not notified: it notices at its next renewal, if it renews".to_owned()
            }
        };
    }
    let count = |is: fn(&Presence) -> bool| presences.iter().filter(|p| is(p)).count();
    let parts = [
        (count(|p| matches!(p, Presence::Announced)), "notified at once"),
        (count(|p| matches!(p, Presence::Overdue(_))), "not seen lately"),
        (count(|p| matches!(p, Presence::Left)), "left"),
        (count(|p| matches!(p, Presence::Unknown)), "not notified"),
    ];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts.map(|(count, what)| format!("{count} {what}")).collect();
    format!("{}, of {}", parts.join(", "), holders.len())
}

/// Whom a forced unlock took the lock from: where that was known `host/pid/program`, and the identity.
pub(crate) fn victims(forced: &Forced) -> Vec<String> {
    let clients = forced.clients.iter().map(Option::as_ref).chain(std::iter::repeat(None));
    let victims = forced.holders.iter().zip(clients);
    victims
        .map(|(id, client)| match client {
            Some(client) => format!("{} (id {})", process(client), text(id)),
            None => text(id),
        })
        .collect()
}

/// All holders in one cell: the first, and how many others. A process with several permits, or
/// several readers, is one.
pub(crate) fn holders(lock: &LockInfo) -> String {
    let Some(first) = lock.holders.first().map(holder) else { return UNKNOWN.to_owned() };
    let others: BTreeSet<_> = lock.holders[1..].iter().map(holder).collect();
    let others = others.iter().filter(|other| **other != first).count() as u64;
    // Of many permits not all are looked at.
    let unseen = lock.taken.saturating_sub(lock.holders.len() as u64);
    match others + unseen {
        0 => first,
        more => format!("{first} +{more}"),
    }
}

/// How often it is held, by all together; of a permit semaphore, how many permits are taken.
pub(crate) fn holds(lock: &LockInfo) -> u64 {
    let sum: u64 = lock.holders.iter().map(|holder| holder.hold_count).sum();
    sum.max(lock.taken)
}

/// How long it stands.
pub(crate) fn ttl(remaining: Remaining) -> String {
    match remaining {
        Remaining::Free => UNKNOWN.to_owned(),
        Remaining::For(left) => span(left),
        Remaining::Forever => "∞".to_owned(),
    }
}

/// For how long it is held.
pub(crate) fn age(since: Option<SystemTime>, now: SystemTime) -> String {
    // The holder's clock may be ahead of ours.
    let age = since.map(|since| now.duration_since(since).unwrap_or_default());
    age.map_or_else(|| UNKNOWN.to_owned(), span)
}

/// A duration in the unit that fits: two digits say enough.
pub(crate) fn span(span: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match span.as_secs() {
        0 => format!("{}ms", span.as_millis()),
        seconds if seconds < 100 => format!("{seconds}s"),
        seconds if seconds < 100 * MINUTE => format!("{}m", seconds / MINUTE),
        seconds if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        seconds => format!("{}d", seconds / DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_one_unit() {
        for (millis, text) in [
            (0, "0ms"),
            (850, "850ms"),
            (1_999, "1s"),
            (99_999, "99s"),
            (100_000, "1m"),
            (185_000, "3m"),
            (5_999_000, "99m"),
            (6_000_000, "1h"),
            (172_799_000, "47h"),
            (172_800_000, "2d"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn nothing_in_a_name_turns_the_line_around_or_hides() {
        assert_eq!(text("a\u{202e}b\u{feff}"), "a\\u{202e}b\\u{feff}");
        assert_eq!(text("a\nb\u{1b}[2J"), "a\\nb\\u{1b}[2J");
        assert_eq!(text("naïve 日本 👩‍👧"), "naïve 日本 👩‍👧", "joined and wide ones are text");
    }
}
