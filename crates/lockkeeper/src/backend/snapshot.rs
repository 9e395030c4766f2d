//! What a store knows of one lock.

use std::time::SystemTime;

use super::{ClientEntry, ClientInfo, Forced, Holding, Seen, Ttl};

/// What a store knows of a lock or a counter.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Its holders; a plain lock has at most one.
    pub holders: Vec<HolderEntry>,
    /// How long it stands; nothing when it is free.
    pub ttl: Option<Ttl>,
    /// Who waits in the queue of a fair lock, the next one first.
    pub queue: Vec<Vec<u8>>,
    /// What a counter says; nothing where there is none.
    pub count: Option<i64>,
    /// How many permits of a permit semaphore are taken.
    pub taken: u64,
    /// Whether it goes with its last permit: see [`Acquire::temporary`](super::Acquire::temporary).
    pub temporary: bool,
    /// How many wait, where that was asked for and is known: of a fair lock owners, of others
    /// clients.
    pub waiting: Option<u64>,
    /// The last token, where that was asked for and there is one.
    pub token: Option<u64>,
    /// The last forced unlocks, where that was asked for; the newest first.
    pub forced: Vec<Forced>,
}

/// One holder in a [`Snapshot`].
#[derive(Clone, Debug)]
pub struct HolderEntry {
    /// The identity in the store, which need not be one of ours.
    pub id: Vec<u8>,
    /// How often it holds the lock.
    pub count: u64,
    /// Whether it shares the lock with others.
    pub shared: bool,
    /// Who that is, where its client says so.
    pub client: Option<ClientInfo>,
    /// Since when, where its client says so.
    pub since: Option<SystemTime>,
    /// When its client last announced itself.
    pub seen: Option<Seen>,
    /// When its guard was left with `leave_for`, if it was.
    pub left: Option<SystemTime>,
    /// How long its own lease lasts, where each holder has one: of a permit.
    pub ttl: Option<Ttl>,
}

impl HolderEntry {
    pub(crate) fn new(id: Vec<u8>, count: u64, shared: bool) -> Self {
        let (client, since, seen, left, ttl) = (None, None, None, None, None);
        Self { id, count, shared, client, since, seen, left, ttl }
    }

    /// The same with what its client says of itself and of this hold, unless that is known already.
    pub(crate) fn described(mut self, client: &ClientEntry, hold: Option<&Holding>) -> Self {
        self.client.get_or_insert_with(|| client.info.clone());
        self.seen = self.seen.or(client.seen);
        self.since = self.since.or(hold.map(|hold| hold.since));
        self.left = self.left.or(hold.and_then(|hold| hold.left));
        self
    }
}
