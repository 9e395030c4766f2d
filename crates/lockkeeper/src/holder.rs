//! Who holds a lock, and for how long.

use std::time::{Duration, SystemTime};

use crate::LockName;
use crate::backend::{ClientInfo, HolderEntry, Seen, Ttl};

/// Who holds a lock.
///
/// Two are equal if they are the same hold and the same is known of it; when its client was last
/// [`seen`](Holder::seen) and what is [`remaining`](Holder::remaining) do not count: they differ at each look.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The identity in the store: `<client uuid>:<number>` for lockkeeper and Redisson.
    pub id: String,
    /// How often it holds the lock.
    pub hold_count: u64,
    /// Whether it shares the lock: it is a reader of a read/write lock.
    pub shared: bool,
    /// Host, process and program, where the holder is a lockkeeper client.
    pub client: Option<ClientInfo>,
    /// Since when, where the holder is a lockkeeper client that has held it for more than about a
    /// second; by that client's clock.
    pub since: Option<SystemTime>,
    /// When its client last announced itself, where the holder is a lockkeeper client: it does so for as
    /// long as it holds anything, and one that is not seen for longer than that was killed, is stopped or
    /// cannot reach the store.
    pub seen: Option<Seen>,
    /// When its guard was left with [`leave_for`](crate::AnyGuard::leave_for): nothing runs under the lock
    /// any more, and it stands until its lease ends. By that client's clock.
    pub left: Option<SystemTime>,
    /// How long its own lease lasts unless it is renewed, where each holder has one: that of a permit.
    pub remaining: Option<Remaining>,
    /// The identity as it is stored, which need not be a text.
    pub(crate) stored: Vec<u8>,
}

impl PartialEq for Holder {
    fn eq(&self, other: &Self) -> bool {
        let Self { id, hold_count, shared, client, since, left, stored, seen: _, remaining: _ } =
            self;
        (id, hold_count, shared) == (&other.id, &other.hold_count, &other.shared)
            && (client, since, left) == (&other.client, &other.since, &other.left)
            && *stored == other.stored
    }
}

impl Eq for Holder {}

impl From<HolderEntry> for Holder {
    fn from(entry: HolderEntry) -> Self {
        Self {
            id: LockName::from(&entry.id[..]).to_string(),
            hold_count: entry.count,
            shared: entry.shared,
            client: entry.client,
            since: entry.since,
            seen: entry.seen,
            left: entry.left,
            remaining: entry.ttl.map(|ttl| Some(ttl).into()),
            stored: entry.id,
        }
    }
}

/// How long a lock stands if nobody renews it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Remaining {
    /// Nobody holds it.
    Free,
    /// So long.
    For(Duration),
    /// It has no end: someone took its time to live away.
    Forever,
}

impl From<Option<Ttl>> for Remaining {
    fn from(ttl: Option<Ttl>) -> Self {
        match ttl {
            None => Remaining::Free,
            Some(Ttl::Millis(left)) => Remaining::For(Duration::from_millis(left)),
            Some(Ttl::Forever) => Remaining::Forever,
        }
    }
}
