//! One client as a listener, as the other processes know it.

use std::collections::HashMap;
use std::io::PipeReader;
use std::path::Path;
use std::time::Duration;

use super::pipe::WakePipe;
use crate::backend::subscriptions::Topic;

/// How long a session is valid after its last heartbeat, in milliseconds.
pub(super) const LASTS: u64 = 10_000;

/// The interval of heartbeats.
const REFRESHED: u64 = 3_000;

/// The session of one client as a listener.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: i64,
    /// The topics with subscribers, by their stored form.
    pub(super) topics: HashMap<Vec<u8>, Topic>,
    /// Topics without subscribers that could not be removed from the file yet.
    pub(super) ignored: Vec<Vec<u8>>,
    /// The expiry of the session; 0 if it is not in the file.
    pub(super) ends: u64,
    /// The last message that was read.
    pub(super) last: i64,
    /// The pipe by which other processes wake up this client.
    pub(super) bell: WakePipe,
    /// Sessions whose processes have died.
    pub(super) gone: Vec<i64>,
}

impl Session {
    pub(super) fn new() -> Self {
        let (topics, ignored, gone) = (HashMap::new(), Vec::new(), Vec::new());
        let (id, bell) = (fastrand::i64(1..), WakePipe::Silent);
        Self { id, topics, ignored, ends: 0, last: 0, bell, gone }
    }

    pub(super) fn is_listening(&self) -> bool {
        !self.topics.is_empty()
    }

    /// Sleeps until there is an order, another process wakes up this client, or `limit` has passed.
    /// Returns whether there may be messages.
    pub(super) fn sleep(&self, orders: &PipeReader, limit: Option<Duration>) -> bool {
        self.bell.sleep(orders, self.is_listening(), limit)
    }

    /// Returns the time until the next heartbeat in milliseconds; `None` without subscribers.
    pub(super) fn due_in(&self, now: u64) -> Option<u64> {
        let due = self.ends.saturating_sub(LASTS - REFRESHED);
        self.is_listening().then(|| due.saturating_sub(now))
    }

    /// Creates the pipe. A session without one gets a negative id.
    pub(super) fn create_pipe(&mut self, database: &Path) {
        self.bell.hang(database, self.id);
        if self.bell.is_missing() {
            self.id = -self.id.abs();
        }
    }

    /// Starts a new session with another id: other processes may be about to remove the old one.
    pub(super) fn start_anew(&mut self, database: &Path) {
        (self.id, self.bell) = (fastrand::i64(1..), WakePipe::Silent);
        self.create_pipe(database);
    }

    /// Whether the session has expired, so that other processes may have removed it.
    pub(super) fn has_lapsed(&self, now: u64) -> bool {
        self.ends < now
    }
}
