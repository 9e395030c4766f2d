//! The waiters of a read/write lock: new readers wait behind waiting writers, but not forever.

use super::*;

/// The waiting writers of a read/write lock; never empty.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Writers {
    /// Each with the time of its last request.
    waiting: Vec<(OwnerId, u64)>,
    pub(super) expires: u64,
}

/// How long readers have waited for writers.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct WaitingReaders {
    /// Since when a reader waits.
    since: Option<u64>,
    /// Until when writers let readers go first.
    turn: Option<u64>,
    /// Readers preceded waiting writers, and no writer has acquired the lock since.
    batch: bool,
    pub(super) expires: u64,
}

/// How long a writer counts as waiting after its last request.
const WAITS: u64 = 2_000;

/// The maximum number of recorded waiting writers, which bounds the size of the state.
const ENOUGH: usize = 16;

/// How long readers wait for writers before it is their turn.
const READERS_WAIT: u64 = 5_000;

/// How long writers let readers go first; renewed while a reader waits.
const TURN: u64 = 2_500;

/// For how long further readers may follow the first.
const BATCH: u64 = 250;

/// How long waiting readers are remembered after their last request.
const REMEMBERED: u64 = 10_000;

impl Writers {
    /// Whether enough other writers keep readers out, so that this one need not be recorded.
    fn suffice_without(&self, owner: OwnerId, now: u64) -> bool {
        let heard = |(_, heard): &&(OwnerId, u64)| heard + WAITS >= now;
        self.waiting.iter().filter(heard).count() >= ENOUGH
            && self.waiting.iter().all(|(waiting, _)| *waiting != owner)
    }
}

impl WaitingReaders {
    pub(super) fn is_alive(&self, now: u64) -> bool {
        self.expires >= now
    }

    /// Whether a reader waits.
    #[cfg(feature = "file")]
    pub(super) fn is_awaited(&self, now: u64) -> bool {
        self.is_alive(now) && (self.since.is_some() || self.turn.is_some_and(|turn| turn > now))
    }
}

impl State {
    /// Returns the waiting writers. Removes them if they have expired.
    fn waiting(&mut self, name: &LockName, now: u64) -> Option<&mut Writers> {
        if self.writers.get(name).is_some_and(|writers| writers.expires < now) {
            self.writers.remove(name);
        }
        self.writers.get_mut(name)
    }

    /// Records that a writer acquired the lock.
    pub(super) fn written_at_last(&mut self, name: &LockName, owner: OwnerId, now: u64) {
        self.withdraw(name, owner, now);
        if let Some(readers) = self.readers.get_mut(name) {
            readers.batch = false;
        }
    }

    /// Records that a writer waits. The memory of what readers were granted is kept as long.
    pub(super) fn wait(&mut self, name: &LockName, owner: OwnerId, now: u64) {
        if self.waiting(name, now).is_some_and(|writers| writers.suffice_without(owner, now)) {
            return;
        }
        if let Some(readers) = self.readers.get_mut(name).filter(|readers| readers.is_alive(now)) {
            readers.expires = now + REMEMBERED;
        }
        let expires = now + WAITS;
        match self.waiting(name, now) {
            Some(writers) => {
                writers.expires = expires;
                writers.waiting.retain(|(waiting, _)| *waiting != owner);
                writers.waiting.push((owner, now));
            }
            None => {
                let waiting = vec![(owner, now)];
                self.writers.insert(name.clone(), Writers { waiting, expires });
            }
        }
    }

    /// Removes a waiting writer. Returns whether it was the last one with a recent request.
    pub(super) fn withdraw(&mut self, name: &LockName, owner: OwnerId, now: u64) -> bool {
        let Some(writers) = self.waiting(name, now) else { return false };
        let before = writers.waiting.len();
        writers.waiting.retain(|(waiting, _)| *waiting != owner);
        let heard = |(_, heard): &(OwnerId, u64)| heard + WAITS >= now;
        let last = writers.waiting.len() < before && !writers.waiting.iter().any(heard);
        if last {
            self.writers.remove(name);
        }
        last
    }

    /// Returns until when it is the readers' turn, if it is.
    pub(super) fn readers_turn(&mut self, name: &LockName, now: u64) -> Option<u64> {
        self.readers
            .get(name)
            .filter(|readers| readers.is_alive(now))?
            .turn
            .filter(|turn| *turn > now)
    }

    /// How long a new reader waits for waiting writers, or for a writer with `left` of its lease.
    pub(super) fn stays_out(
        &mut self,
        name: &LockName,
        left: Option<Ttl>,
        waits: bool,
        now: u64,
    ) -> Option<Ttl> {
        let turn = self.readers_turn(name, now);
        let behind = self.waiting(name, now).map(|writers| writers.expires - now);
        let comes_back = left.or(behind.filter(|_| turn.is_none()).map(Ttl::millis));
        let Some(comes_back) = comes_back else {
            if let Some(readers) = self.readers.get_mut(name) {
                readers.turn = turn.map(|turn| turn.min(now + BATCH));
                readers.since = None;
            }
            return None;
        };
        let shortest = Ttl::millis(1);
        if !waits {
            return Some(comes_back.max(shortest));
        }
        let readers = self.readers.entry(name.clone()).or_default();
        if !readers.is_alive(now) {
            *readers = WaitingReaders::default();
        }
        readers.expires = now + REMEMBERED;
        let mut rest = (*readers.since.get_or_insert(now) + READERS_WAIT).saturating_sub(now);
        if left.is_none() && readers.batch {
            rest = u64::MAX;
        }
        if turn.is_none() && rest > 0 {
            return Some(comes_back.min(Ttl::millis(rest)).max(shortest));
        }
        readers.turn = Some(now + if left.is_some() { TURN } else { BATCH });
        readers.batch |= left.is_none();
        readers.since = None;
        left.map(|_| Ttl::millis(1000))
    }
}
