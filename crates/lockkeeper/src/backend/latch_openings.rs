//! How often a latch was opened, as its messages say.
//!
//! A latch may be opened and closed again before a waiter looks at it. So the content of its messages
//! counts, unlike that of other wake-ups, and only that of messages published after the waiter has
//! subscribed. A message and a confirmation of the store are counted in the order of their arrival.

use std::collections::VecDeque;

/// How many confirmations are remembered. A waiter reads its own as soon as it is scheduled.
const CONFIRMATIONS: usize = 64;

/// The messages of one latch.
#[derive(Debug, Default)]
pub(crate) struct Openings {
    /// The number of messages that say "opened".
    count: u64,
    /// The requests to listen, and the confirmations of the store.
    requested: u64,
    confirmed: u64,
    /// The value of `count` at each of the last confirmations.
    at_confirmation: VecDeque<u64>,
}

/// The point from which on the messages count for one waiter.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// The number of openings before it.
    count: u64,
    /// The number of confirmations after which it begins.
    after: Option<u64>,
}

impl Openings {
    pub(crate) fn message(&mut self, payload: &[u8]) {
        self.count += u64::from(payload == b"0");
    }

    pub(crate) fn requested(&mut self) {
        self.requested += 1;
    }

    pub(crate) fn confirmed(&mut self) {
        self.confirmed += 1;
        self.at_confirmation.push_back(self.count);
        if self.at_confirmation.len() > CONFIRMATIONS {
            self.at_confirmation.pop_front();
        }
    }

    /// Pending confirmations will not arrive.
    pub(crate) fn broken(&mut self) {
        self.confirmed = self.requested;
        self.at_confirmation = VecDeque::from([self.count]);
    }

    pub(crate) fn now(&self) -> Beginning {
        Beginning { count: self.count, after: None }
    }

    /// Begins with the confirmation of the next request to listen.
    pub(crate) fn next(&self) -> Beginning {
        Beginning { count: 0, after: Some(self.requested + 1) }
    }

    /// Whether messages count for the waiter already. Fixes the number of openings before it.
    pub(crate) fn has_begun(&self, beginning: &mut Beginning) -> bool {
        let Some(after) = beginning.after else { return true };
        if self.confirmed < after {
            return false;
        }
        // Or the oldest confirmation that is still remembered.
        let first = self.confirmed + 1 - self.at_confirmation.len() as u64;
        let nth = after.saturating_sub(first) as usize;
        beginning.count = self.at_confirmation.get(nth).copied().unwrap_or(beginning.count);
        true
    }

    pub(crate) fn opened_since(&self, beginning: &Beginning) -> bool {
        self.count > beginning.count
    }
}
