//! A lock as a row of a table.

use std::time::SystemTime;

use anstyle::{AnsiColor, Style};
use lockkeeper::{Holder, Kind, LockInfo, LockName, MemberInfo, Ttl};

use crate::display;
use crate::table::{Cell, Column};

const fn text(heading: &'static str, least: usize, rank: u8) -> Column {
    Column { heading, right: false, least: Some(least), rank }
}

const fn number(heading: &'static str, rank: u8) -> Column {
    Column { heading, right: true, least: None, rank }
}

/// The columns. The kind is short and never cut.
pub(crate) const COLUMNS: [Column; 7] = [
    text("NAME", 12, 0),
    Column { heading: "KIND", right: false, least: None, rank: 4 },
    text("HOLDER", 12, 1),
    number("HOLDS", 6),
    number("TTL", 2),
    number("WAITERS", 5),
    number("AGE", 3),
];

/// The rows of a lock. A permit semaphore has one per known permit and one for the rest; any other lock
/// has one, and one for each member of a quorum that disagrees with the majority.
pub(crate) fn rows_of(lock: &LockInfo) -> Vec<LockInfo> {
    if lock.kind != Kind::Permits || lock.holders.is_empty() {
        let dissenting = lock.members.iter().filter(|member| display::dissents(member, lock));
        let at = |member: &MemberInfo| {
            let mut row = lock.clone();
            row.name = LockName::from(&format!("  at {}", member.address)[..]);
            (row.holders, row.ttl) = (member.holders.clone(), member.ttl);
            row.waiting = None;
            row
        };
        return [lock.clone()].into_iter().chain(dissenting.map(at)).collect();
    }
    let unseen = lock.taken.saturating_sub(lock.holders.len() as u64);
    let row = |holders: Vec<Holder>, taken, ttl| {
        let mut row = lock.clone();
        (row.holders, row.taken, row.ttl) = (holders, taken, ttl);
        row
    };
    let single = lock.holders.iter().map(|holder| {
        let ttl = holder.ttl.or(Some(Ttl::Forever));
        row(vec![holder.clone()], 1, ttl)
    });
    let rest = (unseen > 0).then(|| row(Vec::new(), unseen, Some(Ttl::Forever)));
    single.chain(rest).collect()
}

pub(crate) const NAME: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();

/// The cells of a row.
pub(crate) fn cells(lock: &LockInfo, now: SystemTime) -> [Cell; 7] {
    let unknown = lock.holders.first().is_none_or(|holder| holder.client.is_none());
    let holds = match display::holds(lock) {
        0 => Cell::styled(display::UNKNOWN, DIM),
        holds => Cell::new(holds.to_string()),
    };
    let waiters = match lock.waiting {
        None => Cell::styled(display::UNKNOWN, DIM),
        Some(0) => Cell::styled("0", DIM),
        Some(waiters) => Cell::styled(waiters.to_string(), WARN),
    };
    let ttl = match (lock.ttl, lock.kind) {
        // Counters never expire by design, and permits have leases of their own.
        (Some(Ttl::Forever), Kind::Permits | Kind::Semaphore | Kind::Latch) => {
            Cell::styled(display::UNKNOWN, DIM)
        }
        // A lock without expiry blocks all others if its holder dies.
        (Some(Ttl::Forever), _) => Cell::styled(display::ttl(lock.ttl), WARN),
        _ => Cell::new(display::ttl(lock.ttl)),
    };
    [
        Cell::styled(display::name(&lock.name), NAME),
        Cell::new(lock.kind.as_str()),
        Cell::styled(display::holders(lock), if unknown { DIM } else { Style::new() }),
        holds,
        ttl,
        waiters,
        Cell::new(display::age(lock.since(), now)),
    ]
}
