//! Holders of locks, and the remaining TTL.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::LockName;
use crate::backend::{ClientInfo, HolderEntry, Seen, Ttl};
use crate::name::Brief;

/// One holder of a lock.
///
/// Two are equal if they are the same hold with the same information. [`seen`](Holder::seen) and
/// [`remaining`](Holder::remaining) do not count: they differ at each look.
///
/// Printed as its process, `api pid 812 on web-3`, where that is known, and otherwise as its id.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The identity in the store: `<client uuid>:<number>` for lockkeeper and Redisson.
    pub id: String,
    /// Its hold count.
    pub hold_count: u64,
    /// Whether it shares the lock: it is a reader of a read/write lock.
    pub shared: bool,
    /// Host, process and program, where the holder is a lockkeeper client.
    pub client: Option<ClientInfo>,
    /// Since when, where the holder is a lockkeeper client that has held it for more than about a
    /// second; by that client's clock.
    pub since: Option<SystemTime>,
    /// When its client last announced itself, where the holder is a lockkeeper client. A client
    /// does so while it holds a lock; one that is not seen for longer was killed, is stopped or
    /// cannot reach the store.
    pub seen: Option<Seen>,
    /// When its guard was given up with [`leave_for`](crate::AnyGuard::leave_for): no work runs
    /// under the lock any more, and it stays held until its lease expires. By that client's clock.
    pub left: Option<SystemTime>,
    /// The remaining time of its own lease, where each holder has one: that of a permit.
    pub remaining: Option<Remaining>,
    /// The identity as it is stored, which need not be text.
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

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.client {
            Some(client) => client.fmt(f),
            None => write!(f, "{}", Brief(&self.stored)),
        }
    }
}

impl Holder {
    pub(crate) fn new(entry: HolderEntry) -> Self {
        Self {
            id: LockName::from(&entry.id[..]).to_string(),
            hold_count: entry.count,
            shared: entry.shared,
            client: entry.client,
            since: entry.since,
            seen: entry.seen,
            left: entry.left,
            remaining: entry.ttl.map(|ttl| Remaining::new(Some(ttl))),
            stored: entry.id,
        }
    }
}

/// The remaining TTL of a lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Remaining {
    /// The lock is free.
    Free,
    /// It expires after this time unless it is renewed.
    For(Duration),
    /// It never expires: it has no TTL.
    Forever,
}

impl Remaining {
    pub(crate) fn new(ttl: Option<Ttl>) -> Self {
        match ttl {
            None => Remaining::Free,
            Some(Ttl::Millis(left)) => Remaining::For(Duration::from_millis(left)),
            Some(Ttl::Forever) => Remaining::Forever,
        }
    }
}
