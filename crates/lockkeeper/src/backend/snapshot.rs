//! The state of one lock in a store.

use std::time::SystemTime;

use super::{ClientEntry, ClientInfo, Fault, ForcedUnlock, Holding, Seen, Ttl};

/// The state of a lock or a counter in the store.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The holders; a plain lock has at most one.
    pub holders: Vec<HolderEntry>,
    /// The remaining TTL; `None` if the lock is free.
    pub ttl: Option<Ttl>,
    /// The waiters in the queue of a fair lock, the next one first.
    pub queue: Vec<Vec<u8>>,
    /// The value of a counter; `None` if there is none.
    pub count: Option<i64>,
    /// The number of acquired permits of a permit semaphore.
    pub taken: u64,
    /// Whether the semaphore is deleted with its last permit: see
    /// [`Acquire::temporary`](super::Acquire::temporary).
    pub temporary: bool,
    /// The number of waiters, if requested and known: owners for a fair lock, clients for all
    /// others.
    pub waiting: Option<u64>,
    /// The last fencing token, if requested and present.
    pub token: Option<u64>,
    /// The last force-releases, if requested; the newest first.
    pub forced: Vec<ForcedUnlock>,
    /// State of the lock at each member of a quorum, if they differ.
    pub members: Vec<MemberEntry>,
}

/// State of the lock at one member of a quorum.
#[derive(Clone, Debug)]
pub struct MemberEntry {
    /// Its address.
    pub address: String,
    /// The holders that it knows and its remaining TTL, or why it has not answered.
    pub state: Result<(Vec<HolderEntry>, Option<Ttl>), Fault>,
}

impl Snapshot {
    /// Whether the lock has a holder, or a permit of the semaphore is held.
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty() || self.taken > 0
    }
}

/// One holder in a [`Snapshot`].
#[derive(Clone, Debug)]
pub struct HolderEntry {
    /// The identity in the store. Other libraries may use another form.
    pub id: Vec<u8>,
    /// The hold count.
    pub count: u64,
    /// Whether the hold is shared (a read lock).
    pub shared: bool,
    /// The client of the holder, if it is announced.
    pub client: Option<ClientInfo>,
    /// When the lock was acquired, if its client announced that.
    pub since: Option<SystemTime>,
    /// When its client last announced itself.
    pub seen: Option<Seen>,
    /// When its guard was left with `leave_for`, if it was.
    pub left: Option<SystemTime>,
    /// The remaining lease of this holder, where each holder has its own: a permit.
    pub ttl: Option<Ttl>,
}

impl HolderEntry {
    pub(crate) fn new(id: Vec<u8>, count: u64, shared: bool) -> Self {
        let (client, since, seen, left, ttl) = (None, None, None, None, None);
        Self { id, count, shared, client, since, seen, left, ttl }
    }

    /// Adds the announced details of the client and of this hold, except for known ones.
    pub(crate) fn described(mut self, client: &ClientEntry, hold: Option<&Holding>) -> Self {
        self.client.get_or_insert_with(|| client.info.clone());
        self.seen = self.seen.or(client.seen);
        self.since = self.since.or(hold.map(|hold| hold.since));
        self.left = self.left.or(hold.and_then(|hold| hold.left));
        self
    }
}
