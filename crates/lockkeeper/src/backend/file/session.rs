//! One client as a listener, as the other processes know it.

use std::collections::HashMap;
use std::io::PipeReader;
use std::path::Path;
use std::time::Duration;

use super::bell::{Bell, Woken};
use crate::backend::wake::Topic;

/// How long a session outlives the last sign of its process, in milliseconds.
pub(super) const LASTS: u64 = 10_000;

/// How often a process gives that sign.
const REFRESHED: u64 = 3_000;

/// One process, or rather one client, as a listener.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: i64,
    /// What is listened for, by the way it is written.
    pub(super) topics: HashMap<Vec<u8>, Topic>,
    /// What is not any more, which could not be written down yet.
    pub(super) ignored: Vec<Vec<u8>>,
    /// Until when others believe in it; 0 if it is not in the file.
    pub(super) ends: u64,
    /// The last message that was read.
    pub(super) last: i64,
    /// How others wake this client.
    pub(super) bell: Bell,
    /// Sessions whose processes were found dead.
    pub(super) gone: Vec<i64>,
}

impl Session {
    pub(super) fn new() -> Self {
        let (topics, ignored, gone) = (HashMap::new(), Vec::new(), Vec::new());
        let (id, bell) = (fastrand::i64(1..), Bell::Silent);
        Self { id, topics, ignored, ends: 0, last: 0, bell, gone }
    }

    pub(super) fn is_listening(&self) -> bool {
        !self.topics.is_empty()
    }

    /// Sleeps until there is an order, others have woken this client, or `limit` has passed.
    pub(super) fn sleep(&self, orders: &PipeReader, limit: Option<Duration>) -> Woken {
        self.bell.sleep(orders, self.is_listening(), limit)
    }

    /// How long until it must give a sign again, in milliseconds; nothing if nobody listens.
    pub(super) fn due_in(&self, now: u64) -> Option<u64> {
        let due = self.ends.saturating_sub(LASTS - REFRESHED);
        self.is_listening().then(|| due.saturating_sub(now))
    }

    /// Makes it known to others, or to be made known, by a bell that rings.
    pub(super) fn hang_bell(&mut self, database: &Path) {
        self.bell.hang(database, self.id);
        if self.bell.is_missing() {
            self.id = -self.id.abs();
        }
    }

    /// Begins anew, under another id: others may be about to remove what belongs to the old one.
    pub(super) fn start_anew(&mut self, database: &Path) {
        (self.id, self.bell) = (fastrand::i64(1..), Bell::Silent);
        self.hang_bell(database);
    }

    /// Whether others have given it up, or would have.
    pub(super) fn has_lapsed(&self, now: u64) -> bool {
        self.ends < now
    }
}
