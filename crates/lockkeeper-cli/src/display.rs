//! Locks and holders as text.
//!
//! Text from a store is untrusted: [`text`] escapes control and bidirectional characters before it
//! reaches a terminal. [`say`](crate::exit::say) escapes all of standard error, and
//! [`json::write`](crate::json::write) uses JSON escapes.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use crate::row::Row;
use lockkeeper::{ClientInfo, ForcedUnlock, Holder, LockInfo, LockName, MemberInfo, Ttl};

/// Shown for a value that is unknown or does not apply.
pub(crate) const UNKNOWN: &str = "-";

/// A name on one line.
pub(crate) fn name(name: &LockName) -> String {
    name.to_string()
}

/// Text from a store, escaped to one line.
pub(crate) fn text(text: &str) -> String {
    LockName::from(text).to_string()
}

/// A holder: `program pid 812 on host` if its client announces itself, otherwise its id in the store.
pub(crate) fn holder(holder: &Holder) -> String {
    match &holder.client {
        Some(client) => process(client),
        None => text(&holder.id),
    }
}

fn process(client: &ClientInfo) -> String {
    text(&format!("{} pid {} on {}", client.program, client.pid, client.host))
}

/// What is known of a holder's process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Presence {
    /// A lockkeeper client that announces itself. It is notified of a force-release at once.
    Announced,
    /// A lockkeeper client whose announcement is overdue: killed, stopped, or without connection.
    Overdue(Duration),
    /// The job has ended and the lock was left (`--at-least`).
    Left,
    /// No lockkeeper client announces the hold: its client uses another library, or has died.
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

/// When a holder's process was last seen.
pub(crate) fn last_seen(holder: &Holder, now: SystemTime) -> String {
    match (presence(holder), holder.seen) {
        (Presence::Left, _) => {
            format!("left {} ago, no job runs under it", age(holder.left, now))
        }
        (Presence::Unknown, _) => "not announced by a lockkeeper client".to_owned(),
        (_, Some(seen)) => format!("last seen {} ago", span(seen.ago)),
        // An older version does not announce the time.
        (_, None) => "seen within its lease".to_owned(),
    }
}

/// What a force-release does to the holders.
pub(crate) fn consequence(holders: &[Holder]) -> String {
    let presences: Vec<_> = holders.iter().map(presence).collect();
    if let [presence] = presences[..] {
        return match presence {
            Presence::Announced => "the holder is notified at once and must stop".to_owned(),
            Presence::Overdue(ago) => {
                format!("the holder was last seen {} ago; it stops if it still runs", span(ago))
            }
            Presence::Left => "no job runs under it".to_owned(),
            Presence::Unknown => {
                "the holder is not notified; it notices at its next renewal, if it renews"
                    .to_owned()
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

/// The holders that lost the lock by a force-release, with their ids.
pub(crate) fn former_holders(forced: &ForcedUnlock) -> Vec<String> {
    let former = forced.holders.iter().zip(&forced.clients);
    former
        .map(|(id, client)| match client {
            Some(client) => format!("{} (id {})", process(client), text(id)),
            None => text(id),
        })
        .collect()
}

/// All holders of a lock in one cell.
pub(crate) fn holders(lock: &LockInfo) -> String {
    Row::of(lock).holders()
}

/// Whether a member of a quorum has answered, and has other holders than the majority.
pub(crate) fn dissents(member: &MemberInfo, lock: &LockInfo) -> bool {
    let ids = |holders: &[Holder]| {
        holders.iter().map(|holder| holder.id.clone()).collect::<BTreeSet<_>>()
    };
    member.error.is_none() && ids(&member.holders) != ids(&lock.holders)
}

/// The remaining TTL.
pub(crate) fn ttl(remaining: Option<Ttl>) -> String {
    match remaining {
        None => UNKNOWN.to_owned(),
        Some(Ttl::For(left)) => span(left),
        Some(Ttl::Forever) => "∞".to_owned(),
    }
}

/// How long the lock has been held.
pub(crate) fn age(since: Option<SystemTime>, now: SystemTime) -> String {
    // The holder's clock may be ahead of this one.
    let age = since.map(|since| now.duration_since(since).unwrap_or_default());
    age.map_or_else(|| UNKNOWN.to_owned(), span)
}

/// A duration in one unit, with about two digits.
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
    fn control_and_bidirectional_characters_are_escaped() {
        assert_eq!(text("a\u{202e}b\u{feff}"), "a\\u{202e}b\\u{feff}");
        assert_eq!(text("a\nb\u{1b}[2J"), "a\\nb\\u{1b}[2J");
        assert_eq!(text("naïve 日本 👩‍👧"), "naïve 日本 👩‍👧", "joined and wide characters are text");
    }
}
