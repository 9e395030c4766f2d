//! Detects that a lane of the store does not answer.
//!
//! An error reply is an answer. A failure long ago, with no request since, says nothing about the
//! present.
//!
//! While all lanes answer, a request costs one load: it looks up neither its lane nor a table.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use foldhash::HashMap;

use super::{Core, Tick, lock, no_answer};
use crate::LockName;
use crate::backend::{Fault, Lane};

/// The lanes whose last request got no answer.
#[derive(Debug, Default)]
pub(super) struct Outages {
    /// Whether there is any.
    pub(super) any: AtomicBool,
    lanes: Mutex<HashMap<Lane, Outage>>,
}

/// Since when a lane has not answered, and when that was last noticed.
#[derive(Clone, Copy, Debug)]
struct Outage {
    since: Tick,
    last_failure: Tick,
}

impl Outages {
    fn change<T>(&self, change: impl FnOnce(&mut HashMap<Lane, Outage>) -> T) -> T {
        let mut lanes = lock(&self.lanes);
        let changed = change(&mut lanes);
        self.any.store(!lanes.is_empty(), Relaxed);
        changed
    }
}

impl Core {
    /// Returns the lane of `name`, unless all lanes answer.
    fn suspect(&self, name: &LockName) -> Option<Lane> {
        self.outages.any.load(Relaxed).then(|| self.lane(name))
    }

    /// Records whether the lane of `name` answers a request that was sent at `sent`, with this fault if with one.
    pub(super) fn note_outage(&self, name: &LockName, sent: Tick, fault: Option<&Fault>) {
        match fault {
            Some(Fault::Unreachable { .. }) => {}
            // Rejected before it was sent: that says nothing about the lane.
            Some(Fault::Invalid { .. }) => return,
            _ => return self.answered(self.suspect(name)),
        }
        let (now, lane) = (self.clock.now(), self.lane(name));
        // Before that the request was not under way yet: it waited for its turn.
        let sent = sent.max(now.minus(self.options.response_timeout));
        self.outages.change(|lanes| {
            let new = Outage { since: sent, last_failure: now };
            let outage = lanes.entry(lane).or_insert(new);
            if sent.since(outage.last_failure) > self.failures_apart() {
                outage.since = sent;
            }
            outage.last_failure = now;
        });
    }

    /// Records that these lanes answer.
    pub(super) fn answered(&self, lanes: impl IntoIterator<Item = Lane>) {
        for lane in lanes {
            self.outages.change(|outages| outages.remove(&lane));
        }
    }

    /// Records that all lanes answer.
    pub(super) fn all_answered(&self) {
        self.outages.change(HashMap::clear);
    }

    /// Since when the lane of `name` has not answered, if its last request got no answer.
    pub(super) fn silent_since(&self, name: &LockName) -> Option<Tick> {
        let lane = self.suspect(name)?;
        let outage = self.outages.change(|lanes| lanes.get(&lane).copied())?;
        let known = self.clock.now().since(outage.last_failure) <= self.failures_apart();
        known.then_some(outage.since)
    }

    pub(super) fn silent_for(&self, name: &LockName) -> Option<Duration> {
        self.silent_since(name).map(|since| self.clock.now().since(since))
    }

    /// Whether the lane of `name` has not answered for a response timeout. A connection that has
    /// just broken says nothing: the next answer may arrive at once.
    pub(super) fn is_silent(&self, name: &LockName) -> bool {
        self.silent_for(name).is_some_and(|silent| silent >= self.options.response_timeout)
    }

    /// Until when to wait for the answer to a request sent at `sent`, with the wait limit `limit`.
    /// The limit applies to the wait for a lock and cuts no round trip, unless the lane is known
    /// not to answer.
    pub(super) fn answer_by(&self, name: &LockName, limit: Tick, sent: Tick) -> Tick {
        match self.is_silent(name) {
            true => limit,
            false => limit.max(sent + self.options.response_timeout),
        }
    }

    /// Fails the waiters in local queues whose lane has not answered for `unreachable_after`. The
    /// task at the front notices by itself.
    pub(super) fn fail_waiters_in_outage(&self) {
        if !self.outages.any.load(Relaxed) {
            return;
        }
        let (now, after) = (self.clock.now(), self.options.unreachable_after);
        let apart = self.failures_apart();
        // After that, the next failure begins a new outage.
        let forgotten = apart.saturating_add(self.options.response_timeout);
        let silent: Vec<_> = self.outages.change(|lanes| {
            lanes.retain(|_, outage| now.since(outage.last_failure) <= forgotten);
            let is_silent = |outage: &Outage| {
                now.since(outage.last_failure) <= apart && now.since(outage.since) >= after
            };
            lanes.iter().filter(|(_, outage)| is_silent(outage)).map(|(lane, _)| *lane).collect()
        });
        if !silent.is_empty() {
            self.local_queues.fail_all(&no_answer(), |name| silent.contains(&self.lane(name)));
        }
    }

    /// The longest time between two failures of a repeated request.
    fn failures_apart(&self) -> Duration {
        self.options.response_timeout.saturating_add(self.options.max_backoff.saturating_mul(2))
    }
}
