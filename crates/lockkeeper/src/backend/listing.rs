//! Lists of the contents of a store: pages of locks and of clients.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::{ClientInfo, Fault, Kind, LockInfo, Resource};
use crate::{LockName, OwnerId};

/// How many fields of a hash, or permits of a semaphore, a store lists as holders: enough to determine the kind.
pub(crate) const HOLDERS_MAX: usize = 128;

/// A request for one page.
#[derive(Clone, Debug)]
pub struct List {
    /// The entries to list.
    pub select: Select,
    /// Where the page begins: empty, or the `next` of the previous page.
    pub cursor: Vec<u8>,
    /// About how many entries to examine. A page may contain more, fewer or none.
    pub limit: u32,
}

/// Selects the entries of a list.
#[derive(Clone, Debug)]
pub enum Select {
    /// The announced clients.
    Clients,
    /// The locks whose names match.
    Matching(Pattern),
    /// The lock of this name with all details, on one page. If no kind is given, the store derives
    /// it from the key.
    Named(LockName, Option<Kind>),
}

/// One page of a list.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The clients.
    pub clients: Vec<ClientEntry>,
    /// The locks. A lock that exists during the whole listing is on at least one page, and may be
    /// on two.
    pub locks: Vec<LockInfo>,
    /// The cursor of the next page; `None` after the last one.
    pub next: Option<Vec<u8>>,
    /// Entries that belong on this page may be missing.
    pub incomplete: bool,
    /// Parts of the store that did not answer. The list goes on without them, and is incomplete.
    pub faults: Vec<Fault>,
}

/// An announced client.
#[derive(Clone, Debug)]
pub struct ClientEntry {
    /// Its identity.
    pub id: Uuid,
    /// Its host, process and program.
    pub info: ClientInfo,
    /// Its announced holds; incomplete if there are many.
    pub holds: Vec<Holding>,
    /// The client has more holds than it announced.
    pub more: bool,
    /// When it last announced itself, if that is known.
    pub seen: Option<Seen>,
}

/// When a client last announced itself in the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Seen {
    /// The time since then, by the store's clock.
    pub ago: Duration,
    /// The interval of its announcements while it holds any lock.
    pub every: Duration,
}

/// How late an announcement may be: the client, the network or the store may be slow.
const SEEN_SLACK: Duration = Duration::from_secs(1);

impl Seen {
    pub(crate) fn new(ago_ms: u64, every_ms: u64) -> Self {
        Self { ago: Duration::from_millis(ago_ms), every: Duration::from_millis(every_ms) }
    }

    /// Whether the next announcement is overdue: the client was killed, is stopped or cannot reach
    /// the store.
    pub fn is_overdue(&self) -> bool {
        self.ago > self.every + SEEN_SLACK
    }
}

/// One hold as announced by its client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Holding {
    /// The identity of the hold.
    pub owner: OwnerId,
    /// The held resource.
    pub resource: Resource,
    /// The number of permits.
    pub count: u32,
    /// When it was acquired, by the client's clock.
    pub since: SystemTime,
    /// When its guard was left with `leave_for`, if it was: the lock stays held, and no code runs
    /// under it.
    pub left: Option<SystemTime>,
}

/// A recorded [`force_unlock`](crate::Inspector::force_unlock).
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct ForcedUnlock {
    /// When it happened.
    pub at: SystemTime,
    /// The client that did it.
    pub by: String,
    /// The reason given by the operator.
    pub reason: String,
    /// The former holders.
    pub holders: Vec<String>,
    /// The processes of the former holders in the same order, if their clients were announced.
    pub clients: Vec<Option<ClientInfo>>,
}

/// A name pattern with the syntax of Redis: `*` matches any bytes, `?` one byte, `[a-z]` and
/// `[^a-z]` one byte of a set; `\` escapes the next byte.
#[derive(Clone, Eq, PartialEq)]
pub struct Pattern(Vec<u8>);

impl Pattern {
    /// Creates a pattern.
    pub fn new(pattern: impl Into<Vec<u8>>) -> Self {
        Self(pattern.into())
    }

    /// Puts a literal prefix before the pattern.
    pub(crate) fn behind(&self, prefix: &[u8]) -> Self {
        let mut pattern = Vec::with_capacity(prefix.len() + self.0.len());
        for byte in prefix {
            if b"*?[]^\\-".contains(byte) {
                pattern.push(b'\\');
            }
            pattern.push(*byte);
        }
        pattern.extend_from_slice(&self.0);
        Self(pattern)
    }

    /// Returns the pattern in the syntax of Redis.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether a name matches. Takes at most time proportional to the product of both lengths:
    /// after a mismatch the last star takes one more byte, and earlier stars never move.
    pub fn matches(&self, name: &[u8]) -> bool {
        let (pattern, mut p, mut n) = (&self.0[..], 0, 0);
        let mut star: Option<(usize, usize)> = None;
        loop {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p + 1, n));
                    p += 1;
                    continue;
                }
                Some(_) if n < name.len() => {
                    if let Some(next) = one(pattern, p, name[n]) {
                        (p, n) = (next, n + 1);
                        continue;
                    }
                }
                None if n == name.len() => return true,
                _ => {}
            }
            match &mut star {
                Some((after, from)) if *from < name.len() => {
                    *from += 1;
                    (p, n) = (*after, *from);
                }
                _ => return false,
            }
        }
    }
}

impl std::fmt::Debug for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", LockName::from(&self.0[..]))
    }
}

/// Matches one byte against the pattern at `p`. Returns where the pattern continues.
fn one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match pattern[p] {
        b'?' => Some(p + 1),
        b'[' => one_of(pattern, p + 1, byte),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        literal => (literal == byte).then_some(p + 1),
    }
}

/// Matches one byte against a set in brackets. As in Redis, an unclosed set ends with the pattern.
fn one_of(pattern: &[u8], mut p: usize, byte: u8) -> Option<usize> {
    let not = pattern.get(p) == Some(&b'^');
    p += usize::from(not);
    let mut found = false;
    while let Some(&first) = pattern.get(p) {
        match first {
            b']' => break,
            b'\\' if p + 1 < pattern.len() => {
                found |= pattern[p + 1] == byte;
                p += 2;
            }
            _ if pattern.get(p + 1) == Some(&b'-') && p + 2 < pattern.len() => {
                let (low, high) = (first.min(pattern[p + 2]), first.max(pattern[p + 2]));
                found |= (low..=high).contains(&byte);
                p += 3;
            }
            _ => {
                found |= first == byte;
                p += 1;
            }
        }
    }
    (found != not).then_some((p + 1).min(pattern.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_taken_as_it_is() {
        let pattern = Pattern::new("*").behind(b"[a-z]*\\");
        assert!(pattern.matches(b"[a-z]*\\x"));
        assert!(!pattern.matches(b"bxx"));
    }

    #[test]
    fn a_nasty_pattern_takes_no_longer_than_both_lengths_multiplied() {
        let pattern = Pattern::new("*a".repeat(200));
        assert!(!pattern.matches(&b"a".repeat(199)));
        assert!(!pattern.matches(&[&b"a".repeat(10_000)[..], b"b"].concat()));
    }
}
