//! A lock as a row of a table.

use std::slice;
use std::time::{Duration, SystemTime};

use anstyle::{AnsiColor, Style};
use lockkeeper::{Holder, Kind, LockInfo, MemberInfo, Ttl};

use crate::args::Sort;
use crate::display;
use crate::table::{Cell, Column};

const fn text(heading: &'static str, least: usize, rank: u8) -> Column {
    Column { heading, right: false, least: Some(least), rank }
}

const fn number(heading: &'static str, rank: u8) -> Column {
    Column { heading, right: true, least: None, rank }
}

/// The columns, in the order of [`Sort`]. The kind is short and never cut.
pub(crate) const COLUMNS: [Column; 7] = [
    text("NAME", 12, 0),
    Column { heading: "KIND", right: false, least: None, rank: 4 },
    text("HOLDER", 12, 1),
    number("HOLDS", 6),
    number("TTL", 2),
    number("WAITERS", 5),
    number("AGE", 3),
];

pub(crate) const NAME: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();

/// What a row shows: a lock, one of its permits, or its state at a member of a quorum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    lock: &'a LockInfo,
    member: Option<&'a MemberInfo>,
    holders: &'a [Holder],
    /// The number of acquired permits.
    taken: u64,
    pub(crate) ttl: Option<Ttl>,
    waiting: Option<u64>,
}

impl<'a> Row<'a> {
    pub(crate) fn of(lock: &'a LockInfo) -> Self {
        let LockInfo { holders, taken, ttl, waiting, .. } = lock;
        let (taken, ttl, waiting) = (*taken, *ttl, *waiting);
        Self { lock, member: None, holders, taken, ttl, waiting }
    }

    /// The rows of a lock. A permit semaphore has one per known permit and one for the rest; any other
    /// lock has one, and one for each member of a quorum that disagrees with the majority.
    pub(crate) fn all_of(lock: &'a LockInfo) -> Vec<Self> {
        let whole = Self::of(lock);
        if lock.kind != Kind::Permits || lock.holders.is_empty() {
            let at = |member: &'a MemberInfo| Self {
                member: Some(member),
                holders: &member.holders,
                ttl: member.ttl,
                waiting: None,
                ..whole
            };
            let dissenting = lock.members.iter().filter(|member| display::dissents(member, lock));
            return [whole].into_iter().chain(dissenting.map(at)).collect();
        }
        let permits = |holders, taken, ttl: Option<Ttl>| Self {
            holders,
            taken,
            ttl: ttl.or(Some(Ttl::Forever)),
            ..whole
        };
        let known = lock.holders.iter().map(|one| permits(slice::from_ref(one), 1, one.ttl));
        let unseen = lock.taken.saturating_sub(lock.holders.len() as u64);
        known.chain((unseen > 0).then(|| permits(&[], unseen, None))).collect()
    }

    /// All holders in one cell: the first one and the number of others. A process with several permits
    /// or readers counts once.
    pub(crate) fn holders(&self) -> String {
        let mut shown: Vec<_> = self.holders.iter().map(display::holder).collect();
        if shown.is_empty() {
            return display::UNKNOWN.to_owned();
        }
        let first = shown.swap_remove(0);
        shown.sort_unstable();
        shown.dedup();
        let others = shown.iter().filter(|other| **other != first).count() as u64;
        // Only some of many permits are listed.
        match others + self.taken.saturating_sub(self.holders.len() as u64) {
            0 => first,
            more => format!("{first} +{more}"),
        }
    }

    /// The sum of all hold counts; for a permit semaphore, the number of held permits.
    pub(crate) fn holds(&self) -> u64 {
        let sum: u64 = self.holders.iter().map(|holder| holder.hold_count).sum();
        sum.max(self.taken)
    }

    /// Since when it is held, if a holder has announced it: the earliest.
    fn since(&self) -> Option<SystemTime> {
        self.holders.iter().filter_map(|holder| holder.since).min()
    }

    pub(crate) fn cells(&self, now: SystemTime) -> [Cell; 7] {
        let name = match self.member {
            Some(member) => format!("  at {}", display::text(&member.address)),
            None => display::name(&self.lock.name),
        };
        let unknown = self.holders.first().is_none_or(|holder| holder.client.is_none());
        let holds = match self.holds() {
            0 => Cell::styled(display::UNKNOWN, DIM),
            holds => Cell::new(holds.to_string()),
        };
        let waiters = match self.waiting {
            None => Cell::styled(display::UNKNOWN, DIM),
            Some(0) => Cell::styled("0", DIM),
            Some(waiters) => Cell::styled(waiters.to_string(), WARN),
        };
        let ttl = match (self.ttl, self.lock.kind) {
            // Counters never expire by design, and permits have leases of their own.
            (Some(Ttl::Forever), Kind::Permits | Kind::Semaphore | Kind::Latch) => {
                Cell::styled(display::UNKNOWN, DIM)
            }
            // A lock without expiry blocks all others if its holder dies.
            (Some(Ttl::Forever), _) => Cell::styled(display::ttl(self.ttl), WARN),
            _ => Cell::new(display::ttl(self.ttl)),
        };
        [
            Cell::styled(name, NAME),
            Cell::new(self.lock.kind.as_str()),
            Cell::styled(self.holders(), if unknown { DIM } else { Style::new() }),
            holds,
            ttl,
            waiters,
            Cell::new(display::age(self.since(), now)),
        ]
    }

    /// The sort key of a column.
    pub(crate) fn key(&self, column: Sort, age: Option<Duration>) -> Key {
        match column {
            Sort::Name => Key::Name,
            Sort::Kind => Key::Text(self.lock.kind.as_str().to_owned()),
            Sort::Holder => Key::Text(self.holders()),
            Sort::Holds => Key::Number(self.holds()),
            Sort::Ttl => Key::Ttl(self.ttl.unwrap_or(Ttl::Forever)),
            Sort::Waiters => Key::Number(self.waiting.unwrap_or_default()),
            Sort::Age => Key::Age(age.unwrap_or_default()),
        }
    }
}

/// A sort key. Names break ties.
#[derive(Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Key {
    Name,
    Text(String),
    Number(u64),
    Ttl(Ttl),
    Age(Duration),
}

/// Whether the useful order of a column begins with the greatest: most holds, most waiters, longest held.
pub(crate) fn starts_descending(column: Sort) -> bool {
    matches!(column, Sort::Holds | Sort::Waiters | Sort::Age)
}
