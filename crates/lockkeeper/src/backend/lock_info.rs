//! The state of one lock in a store: its holders, waiters and TTL.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::{ClientEntry, ClientInfo, ForcedUnlock, Holding, Kind, Resource, Seen};
use crate::LockName;
use crate::name::Brief;

/// Information about one lock, semaphore or latch.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its name.
    pub name: LockName,
    /// Its kind. A plain and a fair lock look alike in Redis unless there is a waiter or its client
    /// announces the kind; a free name is shown as a lock; a read/write lock by how it is held.
    pub kind: Kind,
    /// Its holders. Of a semaphore with ids the first hundred or so, and only in lists and by
    /// [`Inspector::inspect`](crate::Inspector::inspect).
    pub holders: Vec<Holder>,
    /// Its remaining TTL; `None` if it is free.
    pub ttl: Option<Ttl>,
    /// The number of waiters, if known: of a fair lock single waiters, of others clients that
    /// listen. On Redis no more than about 16 clients listen for one name; further ones wait
    /// without being counted. Only in lists and by `Inspector::inspect`.
    pub waiting: Option<u64>,
    /// The waiters of a fair lock, the next one first. Not in lists.
    pub queue: Vec<Holder>,
    /// The free permits of a semaphore, or the count of a latch; `None` if it does not exist.
    pub count: Option<i64>,
    /// The number of acquired permits of a permit semaphore.
    pub taken: u64,
    /// Whether the permit semaphore is deleted with its last permit.
    pub temporary: bool,
    /// The last token that was issued. Only by `Inspector::inspect`.
    pub token: Option<u64>,
    /// The last force-releases, the newest first. Only by `Inspector::inspect`.
    pub forced: Vec<ForcedUnlock>,
    /// State of the lock at each member of a quorum, if they differ; empty otherwise. A lock that no
    /// majority of the members has is not held.
    pub members: Vec<MemberInfo>,
}

impl LockInfo {
    /// A free lock.
    pub(crate) fn new(resource: &Resource) -> Self {
        Self {
            name: resource.name.clone(),
            kind: resource.kind,
            holders: Vec::new(),
            ttl: None,
            waiting: None,
            queue: Vec::new(),
            count: None,
            taken: 0,
            temporary: false,
            token: None,
            forced: Vec::new(),
            members: Vec::new(),
        }
    }

    pub(crate) fn resource(&self) -> Resource {
        Resource { kind: self.kind, name: self.name.clone() }
    }

    /// Since when it is held, if a holder has announced it: the earliest.
    pub fn since(&self) -> Option<SystemTime> {
        self.holders.iter().filter_map(|holder| holder.since).min()
    }

    /// Whether it has a holder, or permits are acquired.
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty() || self.taken > 0
    }

    /// Whether it has no holder and counts nothing.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.count.is_none()
    }
}

/// State of the lock at one member of a quorum.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct MemberInfo {
    /// Its address.
    pub address: String,
    /// The holders that it knows.
    pub holders: Vec<Holder>,
    /// Its remaining TTL; `None` if it is free.
    pub ttl: Option<Ttl>,
    /// Why it has not answered, if it has not.
    pub error: Option<String>,
}

/// One holder of a lock.
///
/// Two are equal if they are the same hold with the same information. [`seen`](Holder::seen) and
/// [`ttl`](Holder::ttl) do not count: they differ at each look.
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
    /// The remaining TTL of its own lease, where each holder has one: that of a permit.
    pub ttl: Option<Ttl>,
    /// The identity as it is stored, which need not be text.
    pub(crate) stored: Vec<u8>,
}

impl Holder {
    pub(crate) fn new(id: impl Into<Vec<u8>>, hold_count: u64, shared: bool) -> Self {
        let stored = id.into();
        let id = LockName::from(&stored[..]).to_string();
        let (client, since, seen, left, ttl) = (None, None, None, None, None);
        Self { id, hold_count, shared, client, since, seen, left, ttl, stored }
    }

    /// Adds the announced details of the client and of this hold, except for known ones.
    pub(crate) fn describe(&mut self, client: &ClientEntry, hold: Option<&Holding>) {
        self.client.get_or_insert_with(|| client.info.clone());
        self.seen = self.seen.or(client.seen);
        self.since = self.since.or(hold.map(|hold| hold.since));
        self.left = self.left.or(hold.and_then(|hold| hold.left));
    }
}

impl PartialEq for Holder {
    fn eq(&self, other: &Self) -> bool {
        let Self { stored, hold_count, shared, client, since, left, id: _, seen: _, ttl: _ } = self;
        (stored, hold_count, shared) == (&other.stored, &other.hold_count, &other.shared)
            && (client, since, left) == (&other.client, &other.since, &other.left)
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

/// A remaining time to live, as reported by the store. The longer one is greater.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Ttl {
    /// It expires after this time unless it is renewed.
    For(Duration),
    /// It never expires.
    Forever,
}

impl Ttl {
    pub(crate) fn millis(left: u64) -> Self {
        Ttl::For(Duration::from_millis(left))
    }
}
