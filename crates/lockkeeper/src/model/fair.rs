//! The fair lock: a lock and the queue of its waiters.
//!
//! **Silence removes a waiter only while other waiters send heartbeats.** If no waiter sent one for 1.5 s,
//! the server was stalled or unreachable for all. Then every waiter keeps its queue position for three
//! more seconds, at most once a minute. A queue that has only waiters of lockkeeper expires after a
//! minute without a sign of life.

use std::collections::VecDeque;

use super::counter::FREED;
use super::*;

/// A waiter without a heartbeat for this long is stale.
pub(super) const SILENT: u64 = 3000;

/// A heartbeat within this time after the previous one is not recorded.
const RECENT: u64 = 500;

/// If no waiter sent a heartbeat for this long, the store was stalled or unreachable.
pub(super) const STALLED: u64 = 1500;

/// The end of a grace period for stale waiters, and of the time until the next one may begin.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Grace {
    over: u64,
    pub(super) expires: u64,
}

/// The waiters, the next one first, and the time of each one's last heartbeat.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Queue {
    waiting: VecDeque<OwnerId>,
    heartbeats: HashMap<OwnerId, u64>,
    /// When the queue expires if no more heartbeats arrive.
    pub(super) ends: u64,
}

/// How long a queue is kept after the last heartbeat.
const LASTS: u64 = 60_000;

impl Queue {
    /// Drops stale waiters from the front. Returns the first remaining waiter and whether any was
    /// dropped.
    fn head(&mut self, now: u64, silence_kills: bool) -> (Option<OwnerId>, bool) {
        let before = self.waiting.len();
        while let Some(first) = self.waiting.front().copied() {
            if !silence_kills || self.is_alive(first, now) {
                break;
            }
            self.waiting.pop_front();
            self.heartbeats.remove(&first);
        }
        (self.waiting.front().copied(), self.waiting.len() < before)
    }

    fn is_alive(&self, owner: OwnerId, now: u64) -> bool {
        self.heartbeats.get(&owner).is_some_and(|heard| heard + SILENT >= now)
    }

    /// Records a heartbeat; returns false if the waiter is not in the queue. A heartbeat soon after
    /// the previous one changes nothing, so that a file store answers it without a write.
    fn record_heartbeat(&mut self, owner: OwnerId, now: u64) -> bool {
        let Some(heard) = self.heartbeats.get_mut(&owner) else { return false };
        if *heard + RECENT < now {
            *heard = now;
        }
        true
    }

    fn join(&mut self, owner: OwnerId, now: u64) {
        self.waiting.push_back(owner);
        self.heartbeats.insert(owner, now);
        self.ends = now + LASTS;
    }

    /// Returns each waiter with the time of its last heartbeat, the next one first.
    #[cfg(feature = "file")]
    pub(super) fn positions(&self) -> impl Iterator<Item = (OwnerId, u64)> {
        let heard = |owner: &OwnerId| self.heartbeats.get(owner).copied().unwrap_or(0);
        self.waiting.iter().map(move |owner| (*owner, heard(owner)))
    }

    #[cfg(feature = "file")]
    pub(super) fn of(positions: &[(OwnerId, u64)], ends: u64) -> Self {
        let waiting = positions.iter().map(|(owner, _)| *owner).collect();
        Self { waiting, heartbeats: positions.iter().copied().collect(), ends }
    }

    fn leave(&mut self, owner: OwnerId) -> bool {
        if self.heartbeats.remove(&owner).is_none() {
            return false;
        }
        let index = self.waiting.iter().position(|waiting| *waiting == owner);
        index.and_then(|index| self.waiting.remove(index)).is_some()
    }
}

impl State {
    pub(super) fn acquire_fair(&mut self, request: &Acquire, now: u64) -> Result<Attempt> {
        let Acquire { resource: Resource { name, .. }, owner, ttl, .. } = request;
        let left = match self.living(name, now) {
            None => None,
            Some(entry) if entry.plain_owner(true) == Ok(*owner) => {
                entry.value = Value::Lock { owner: *owner, count: request.count };
                entry.lengthen(*ttl, now);
                return Ok(self.grant(request, now));
            }
            Some(entry) => {
                entry.plain_owner(true)?;
                Some(entry.ttl(now))
            }
        };
        if request.count > 1 {
            return Ok(Attempt::Gone);
        }
        self.forget_queue(name, now);
        let silence_kills = self.deadly(name, now);
        let queue = self.queues.entry(name.clone()).or_default();
        let queued = queue.record_heartbeat(*owner, now);
        let (first, dropped) = queue.head(now, silence_kills);
        if left.is_none() && first.is_none_or(|first| first == *owner) {
            queue.leave(*owner);
            self.tidy_queue(name);
            self.names.insert(name.clone(), Entry::held(true, *owner, *ttl, now));
            return Ok(self.grant(request, now));
        }
        if let (None, Some(first), true) = (left, first, dropped) {
            self.wakes.push(turn(name, first));
        }
        if request.waits && !queued {
            queue.join(*owner, now);
        }
        self.tidy_queue(name);
        // The lock is free, but it is another waiter's turn, and how long that takes is unknown.
        Ok(Attempt::busy(Some(left.unwrap_or(Ttl::Forever))))
    }

    pub(super) fn release_fair(&mut self, request: &Release, now: u64) -> Result<Released> {
        let released = self.release_plain(request, now);
        if request.keep > 0 {
            return released;
        }
        let name = &request.resource.name;
        let free = self.living(name, now).is_none();
        self.forget_queue(name, now);
        let Some(queue) = self.queues.get_mut(name) else { return released };
        let queued = queue.leave(request.owner);
        if free && (queued || released == Ok(FREED)) {
            // The next waiter, instead of any.
            self.wakes.clear();
            match self.first_waiter(name, now) {
                Some(next) => self.wakes.push(turn(name, next)),
                None => self.wake_freed(name),
            }
        }
        self.tidy_queue(name);
        released
    }

    /// Records the heartbeats of the whole batch before any waiter is dropped as stale.
    pub(super) fn record_heartbeats(&mut self, batch: &[Renew], now: u64) {
        for Renew { resource, .. } in batch.iter().filter(|renew| renew.waiting) {
            self.forget_queue(&resource.name, now);
            self.deadly(&resource.name, now);
        }
        for Renew { resource, owner, .. } in batch.iter().filter(|renew| renew.waiting) {
            if let Some(queue) = self.queues.get_mut(&resource.name) {
                queue.record_heartbeat(*owner, now);
            }
        }
    }

    /// Records the heartbeat of a waiter.
    pub(super) fn keep_position(&mut self, request: &Renew, now: u64) -> Renewed {
        let name = &request.resource.name;
        let free = self.living(name, now).is_none();
        let silence_kills = self.deadly(name, now);
        let Some(queue) = self.queues.get_mut(name) else { return Renewed::Due };
        let queued = queue.record_heartbeat(request.owner, now);
        let first = queue.head(now, silence_kills).0;
        queue.ends = now + LASTS;
        self.tidy_queue(name);
        self.wakes.extend(first.filter(|_| free).map(|first| turn(name, first)));
        let due = !queued || free && first == Some(request.owner);
        if due { Renewed::Due } else { Renewed::Waiting }
    }

    pub(super) fn force_fair(&mut self, resource: &Resource, now: u64) -> Result<Vec<OwnerId>> {
        let victims = self.force_plain(resource, now)?;
        if !victims.is_empty() {
            self.forget_queue(&resource.name, now);
            let first = self.first_waiter(&resource.name, now);
            self.wakes.extend(first.map(|first| turn(&resource.name, first)));
            self.tidy_queue(&resource.name);
        }
        Ok(victims)
    }

    pub(super) fn inspect_fair(&mut self, resource: &Resource, now: u64) -> Result<LockInfo> {
        let mut lock = self.inspect_plain(resource, now)?;
        if let Some(queue) = self.queues.get(&resource.name) {
            let alive = queue.waiting.iter().filter(|owner| queue.is_alive(**owner, now));
            lock.queue = alive.map(|owner| Holder::new(owner.to_string(), 0, false)).collect();
        }
        Ok(lock)
    }

    /// Returns the first waiter that is not stale.
    fn first_waiter(&mut self, name: &LockName, now: u64) -> Option<OwnerId> {
        let silence_kills = self.deadly(name, now);
        self.queues.get_mut(name)?.head(now, silence_kills).0
    }

    /// Whether waiters without a heartbeat are stale. If no waiter at all sent one, the store was
    /// stalled or unreachable, and all waiters get more time, once.
    fn deadly(&mut self, name: &LockName, now: u64) -> bool {
        if let Some(grace) = self.graces.get(name).filter(|grace| grace.expires >= now) {
            return now >= grace.over;
        }
        let newest = self.queues.get(name).and_then(|queue| queue.heartbeats.values().max());
        if newest.is_none_or(|newest| newest + STALLED >= now) {
            return true;
        }
        self.graces.insert(name.clone(), Grace { over: now + SILENT, expires: now + LASTS });
        false
    }

    fn forget_queue(&mut self, name: &LockName, now: u64) {
        if self.queues.get(name).is_some_and(|queue| queue.ends < now) {
            self.queues.remove(name);
        }
    }

    fn tidy_queue(&mut self, name: &LockName) {
        if self.queues.get(name).is_some_and(|queue| queue.waiting.is_empty()) {
            self.queues.remove(name);
        }
    }
}

fn turn(name: &LockName, owner: OwnerId) -> Wake {
    Wake { topic: Topic::Turn(name.clone(), owner), payload: Cow::Borrowed(b"0") }
}
