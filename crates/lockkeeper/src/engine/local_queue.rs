//! The local queue: per client and name, the tasks that want the same lock.
//!
//! Only the task at the [`Front`] sends requests about the name: it tries, waits and holds. The others
//! queue in the order of their arrival and cost the store nothing. A dropped front goes to the next
//! waiter, whatever the reason: released, lost, cancelled, failed. So a waiter that is cancelled after
//! a wake-up has passed the wake-up on.
//!
//! An exclusive lock is requested, waited for and held at the front. Permits are waited for at the
//! front, but held without it. Readers and waiters of a fair lock have their own positions in the
//! store: each has a front without a queue ([`LocalQueues::unqueued`]). One acquire loop serves all.
//!
//! **A client keeps a lock for at most 64 handoffs or 10 ms**, then releases it in the store. After
//! that it pauses only if another client listens, which the answer to `PUBLISH` shows (or for one of
//! sixteen milliseconds where that is unknown, as for a mutex). The request of a distant client arrives one
//! round trip after the message, so the pause doubles from 1 ms to 64 ms until another client acquires
//! the lock. Pauses take at most a quarter of the client's time. The client then subscribes anew, behind
//! the others: clients that keep a lock busy take turns.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldhash::HashMap;
use tokio::sync::oneshot;

use super::pending_acquire::PendingAcquire;
use super::terms::{Queueing, Request};
use super::{Core, SUSPICIOUS, Tick, lock, until};
use crate::backend::{Fault, Fenced, Kind, Resource, Subscription};
use crate::{LockName, OwnerId};

/// How often a lock is handed off inside one client before it is released for all.
const MAX_HANDOFFS: u32 = 64;

/// For how long a lock is handed off inside one client before it is released for all.
const MAX_KEPT: Duration = Duration::from_millis(10);

/// The first pause, and the only one for [`Others::Unknown`].
const PAUSE: Duration = Duration::from_millis(1);

/// The longest such pause: enough for a client at 30 ms one way.
const MAX_PAUSE: Duration = Duration::from_millis(64);

/// A pause follows only after this many times its length without one.
const PAUSE_RATIO: u32 = 3;

/// The same where the store does not report its listeners.
const UNKNOWN_RATIO: u32 = 15;

/// Number of shards of the table of local queues, each with a mutex of its own.
const SHARDS: usize = 16;

/// All local queues of a client.
#[derive(Debug, Default)]
pub(crate) struct LocalQueues {
    shards: [Mutex<Table>; SHARDS],
    /// The number of fronts without a queue.
    unqueued: AtomicUsize,
    /// The number of waiters in all queues.
    waiting: AtomicUsize,
    /// The number of the next waiter. Never reused: a waiter that leaves late, after its queue was
    /// removed and created again, must not remove another waiter.
    next_waiter: AtomicU64,
}

type Table = HashMap<Resource, Queue>;

/// The queue of one name; `None` while no other task has asked for it, as for most names. Boxed, so
/// that the table stays small and an uncontended acquire writes and moves one word.
type Queue = Option<Box<LocalQueue>>;

/// The queue of one name. Exists as long as a task has its front.
#[derive(Debug, Default)]
struct LocalQueue {
    /// By number, so that a waiter leaves without visiting the others.
    waiters: BTreeMap<u64, Waiter>,
    /// Kept for the waiters while the lock is held: a client subscribes once for all its waiters, and
    /// not at all without waiters.
    subscription: Option<Subscription>,
    /// Why the last request from the front failed; cleared by the next success.
    failure: Option<Fault>,
    courtesy: Courtesy,
}

impl LocalQueue {
    /// Removes a waiter. Returns the subscription if no other waiter
    /// needs it, to be dropped outside of the table's mutex.
    fn leave(&mut self, number: u64) -> Option<Subscription> {
        self.waiters.remove(&number);
        self.unneeded()
    }

    /// Returns the next waiter that has not left, and the subscription.
    fn next(&mut self) -> Option<(Waiter, Option<Subscription>)> {
        while let Some((_, waiter)) = self.waiters.pop_first() {
            if !waiter.served.is_closed() {
                return Some((waiter, self.subscription.take()));
            }
        }
        None
    }

    fn unneeded(&mut self) -> Option<Subscription> {
        if self.waiters.is_empty() { self.subscription.take() } else { None }
    }

    fn fail(self, fault: &Fault) {
        for waiter in self.waiters.into_values() {
            let _ = waiter.served.send(Box::new(Served::Failed(fault.clone())));
        }
    }
}

/// A task in the queue.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Boxed to keep the waiter's future small.
    pub(crate) served: oneshot::Sender<Box<Served>>,
    pub(crate) handoff: Handoff,
}

/// The hold that a handoff would grant to a waiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handoff {
    pub(crate) owner: OwnerId,
    pub(crate) ttl: u64,
    pub(crate) fenced: Option<Fenced>,
}

impl Handoff {
    pub(crate) fn new(request: &Request) -> Self {
        let owner = OwnerId::fresh(request.core.id);
        Self { owner, ttl: request.term.ttl, fenced: request.fenced }
    }
}

/// What a waiter receives in the end.
#[derive(Debug)]
pub(crate) enum Served {
    /// Its turn to try.
    Front(Front),
    /// The lock itself, by a handoff.
    Granted(Grant),
    /// The store does not answer, or the client is closed.
    Failed(Fault),
}

/// A granted request, until its lease begins. Undone when dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) pending: PendingAcquire,
    pub(crate) front: Front,
    pub(crate) token: Option<u64>,
    /// From when its TTL counts.
    pub(crate) sent: Tick,
}

/// The result of [`LocalQueues::join`].
pub(crate) enum Entered {
    Front(Front),
    Queued(Position),
    /// Another task has the front, and the caller does not queue.
    Occupied,
}

impl LocalQueues {
    /// Chooses by the last bytes of the name, where related names differ. Any choice is correct; an
    /// even one causes less contention.
    fn shard(&self, resource: &Resource) -> &Mutex<Table> {
        let tail = resource.name.as_bytes().iter().rev().take(4);
        let mix = tail.fold(0usize, |mix, byte| mix.wrapping_mul(31).wrapping_add(*byte as usize));
        &self.shards[mix % SHARDS]
    }

    /// Takes or waits for the front, as the kind of lock requires.
    pub(crate) fn join(request: &Request) -> Entered {
        let Request { core, resource, .. } = request;
        match request.queueing() {
            Queueing::Exclusive => {
                Self::enter(core, resource, || request.waits().then(|| Handoff::new(request)))
            }
            // Waiters queue behind earlier waiters; a mere try acquires what is free.
            Queueing::Waiting if request.waits() => {
                match Self::wait_behind(core, resource, || Handoff::new(request)) {
                    Some(position) => Entered::Queued(position),
                    None => Entered::Front(Self::unqueued(core, resource)),
                }
            }
            Queueing::Waiting | Queueing::None => Entered::Front(Self::unqueued(core, resource)),
        }
    }

    /// Takes the front if it is free; otherwise queues, if there is a handoff to wait for.
    pub(crate) fn enter(
        core: &Arc<Core>,
        resource: &Resource,
        handoff: impl FnOnce() -> Option<Handoff>,
    ) -> Entered {
        match lock(core.local_queues.shard(resource)).entry(resource.clone()) {
            Entry::Occupied(mut queue) => {
                let Some(handoff) = handoff() else { return Entered::Occupied };
                let queue = queue.get_mut().get_or_insert_default();
                return Entered::Queued(Position::new(core, resource, queue, handoff));
            }
            Entry::Vacant(queue) => {
                queue.insert(None);
            }
        }
        Entered::Front(Front::new(core, resource, false))
    }

    /// Queues if another task has the front.
    fn wait_behind(
        core: &Arc<Core>,
        resource: &Resource,
        handoff: impl FnOnce() -> Handoff,
    ) -> Option<Position> {
        let mut queues = lock(core.local_queues.shard(resource));
        let queue = queues.get_mut(resource)?.get_or_insert_default();
        Some(Position::new(core, resource, queue, handoff()))
    }

    /// Returns a front without a queue, for tasks that need not wait for others of this client.
    pub(super) fn unqueued(core: &Arc<Core>, resource: &Resource) -> Front {
        // A shutdown need not wait for a look at a latch.
        if resource.kind != Kind::Latch {
            core.local_queues.unqueued.fetch_add(1, Ordering::Relaxed);
        }
        Front::new(core, resource, true)
    }

    /// Returns the next waiter that has not left, and the subscription that was kept for it.
    fn next(&self, resource: &Resource) -> Option<(Waiter, Option<Subscription>)> {
        lock(self.shard(resource)).get_mut(resource)?.as_mut()?.next()
    }

    /// The same for a front that is given up. Without a waiter, removes the queue.
    fn next_or_close(&self, front: &Front) -> Option<(Waiter, Option<Subscription>)> {
        let mut queues = lock(self.shard(&front.resource));
        let Entry::Occupied(mut queue) = queues.entry(front.resource.clone()) else { return None };
        if let Some(queue) = queue.get_mut() {
            if let Some(others) = front.released {
                queue.courtesy.released(front.core.clock.now(), others);
            }
            if let Some(next) = queue.next() {
                return Some(next);
            }
        }
        let closed = queue.remove_entry();
        drop(queues);
        drop(closed);
        None
    }

    /// Resolves when no task has a front.
    pub(crate) async fn emptied(&self) {
        while self.unqueued.load(Ordering::Relaxed) > 0
            || self.shards.iter().any(|shard| !lock(shard).is_empty())
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Fails all waiters of one name; the task at the front is not affected.
    pub(crate) fn fail(&self, resource: &Resource, fault: &Fault) {
        let queue = lock(self.shard(resource)).get_mut(resource).and_then(Option::take);
        queue.unwrap_or_default().fail(fault);
    }

    /// Fails all waiters of the names that `affected` selects.
    pub(crate) fn fail_all(&self, fault: &Fault, affected: impl Fn(&LockName) -> bool) {
        for shard in &self.shards {
            let mut table = lock(shard);
            let waited_in = |queue: &LocalQueue| !queue.waiters.is_empty();
            let queues =
                table.iter_mut().filter(|(_, queue)| queue.as_deref().is_some_and(waited_in));
            let queues = queues.filter(|(resource, _)| affected(&resource.name));
            let queues =
                queues.filter_map(|(resource, queue)| Some((&resource.name, queue.take()?)));
            let mut queues: Vec<_> = queues.map(|(name, queue)| (name.clone(), queue)).collect();
            drop(table);
            // The same order in each process.
            queues.sort_by(|(one, _), (other, _)| one.cmp(other));
            for (_, queue) in queues {
                queue.fail(fault);
            }
        }
    }
}

/// The position of a waiter in the local queue. Dropping it removes the waiter.
#[derive(Debug)]
pub(crate) struct Position {
    core: Arc<Core>,
    resource: Resource,
    number: u64,
    served: oneshot::Receiver<Box<Served>>,
    received: bool,
}

impl Position {
    /// Appends to the queue; the caller holds the table's mutex.
    fn new(
        core: &Arc<Core>,
        resource: &Resource,
        queue: &mut LocalQueue,
        handoff: Handoff,
    ) -> Self {
        let (sender, served) = oneshot::channel();
        core.local_queues.waiting.fetch_add(1, Ordering::Relaxed);
        let number = core.local_queues.next_waiter.fetch_add(1, Ordering::Relaxed);
        queue.waiters.insert(number, Waiter { served: sender, handoff });
        let (core, resource) = (Arc::clone(core), resource.clone());
        Self { core, resource, number, served, received: false }
    }

    /// Returns why the last request about the lock failed, if it did: a waiter has sent none itself.
    fn failure(&self) -> Option<Fault> {
        let queues = lock(self.core.local_queues.shard(&self.resource));
        queues.get(&self.resource)?.as_ref()?.failure.clone()
    }

    /// Waits for its turn. Returns `None` when the wait limit passes first.
    pub(crate) async fn serve(mut self, request: &Request) -> Option<Served> {
        let (core, limit) = (Arc::clone(&self.core), request.limit);
        let suspicious = core.clock.now() + SUSPICIOUS;
        let mut served = until(&core.clock, suspicious.min(limit), self.wait()).await;
        if served.is_none() && suspicious < limit {
            if request.queueing() == Queueing::Exclusive {
                core.warn_waiting_for_itself(&request.resource);
            }
            served = until(&core.clock, limit, self.wait()).await;
        }
        served.or_else(|| self.failure().map(Served::Failed))
    }

    async fn wait(&mut self) -> Served {
        let served = (&mut self.served).await;
        self.received = true;
        // A front always goes to the next waiter before it is dropped.
        served.map_or(Served::Failed(Fault::Closed), |served| *served)
    }
}

impl Drop for Position {
    fn drop(&mut self) {
        self.core.local_queues.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.received {
            return;
        }
        self.served.close();
        let unused = {
            let mut queues = lock(self.core.local_queues.shard(&self.resource));
            queues.get_mut(&self.resource).and_then(|queue| queue.as_mut()?.leave(self.number))
        };
        drop(unused);
    }
}

/// The front of the local queue: the right to send requests about one name. Dropping it passes it
/// on.
#[derive(Debug)]
pub(crate) struct Front {
    core: Arc<Core>,
    resource: Resource,
    /// It has no queue.
    pub(crate) unqueued: bool,
    /// The subscription of the task at the front.
    pub(crate) subscription: Option<Subscription>,
    handoffs: u32,
    /// When this client acquired the lock in the store.
    since: Tick,
    /// Whether the queue has a `failure`.
    failing: bool,
    /// Whether others wait for the lock, once it is released in the store and not handed off.
    pub(crate) released: Option<Others>,
}

/// Whether another client waits for a released lock, as far as the store reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Others {
    None,
    /// Some libraries do not subscribe, and not every store reports subscribers.
    Unknown,
    Listen,
}

/// How a client leaves time to others.
#[derive(Clone, Copy, Debug)]
struct Courtesy {
    /// The next pause.
    pause: Duration,
    /// When the last pause ends, or ended.
    until: Tick,
}

impl Default for Courtesy {
    fn default() -> Self {
        Self { pause: PAUSE, until: Tick::from_nanos(0) }
    }
}

impl Courtesy {
    fn released(&mut self, now: Tick, others: Others) {
        match others {
            Others::None => self.pause = PAUSE,
            // A client that does not subscribe polls now and then, near or far: a gap suffices.
            Others::Unknown if now.since(self.until) >= PAUSE * UNKNOWN_RATIO => {
                self.until = now + PAUSE;
            }
            Others::Listen if now.since(self.until) >= self.pause * PAUSE_RATIO => {
                self.until = now + self.pause;
                self.pause = (self.pause * 2).min(MAX_PAUSE);
            }
            Others::Unknown | Others::Listen => {}
        }
    }
}

impl Front {
    fn new(core: &Arc<Core>, resource: &Resource, unqueued: bool) -> Self {
        Self {
            core: Arc::clone(core),
            resource: resource.clone(),
            unqueued,
            subscription: None,
            handoffs: 0,
            since: Tick::NEVER,
            failing: false,
            released: None,
        }
    }

    /// The lock was acquired in the store, not handed off: resets the handoff count.
    pub(crate) fn acquired(&mut self, now: Tick) {
        (self.handoffs, self.since) = (0, now);
        if std::mem::take(&mut self.failing) {
            self.with_queue(|queue| queue.failure = None);
        }
    }

    /// Another client holds the lock: resets the pause and clears the failure.
    pub(crate) fn busy(&mut self) {
        self.failing = false;
        self.with_queue(|queue| (queue.courtesy.pause, queue.failure) = (PAUSE, None));
    }

    /// How long the lock is still left to other clients.
    pub(crate) fn pause(&self, now: Tick) -> Duration {
        self.with_queue(|queue| queue.courtesy.until.since(now)).unwrap_or_default()
    }

    /// Records that a request about the lock failed.
    pub(crate) fn failed(&mut self, fault: &Fault) {
        self.failing = true;
        self.with_queue(|queue| queue.failure = Some(fault.clone()));
    }

    fn with_queue<T>(&self, with: impl FnOnce(&mut LocalQueue) -> T) -> Option<T> {
        if self.unqueued {
            return None;
        }
        let mut queues = lock(self.core.local_queues.shard(&self.resource));
        queues.get_mut(&self.resource).map(|queue| with(queue.get_or_insert_default()))
    }

    /// Leaves the subscription to the queue, or drops it, because the lock is held now.
    pub(crate) fn leave_subscription(&mut self) {
        let Some(subscription) = self.subscription.take().filter(|_| !self.unqueued) else {
            return;
        };
        let mut queues = lock(self.core.local_queues.shard(&self.resource));
        let unused = match queues.get_mut(&self.resource) {
            Some(queue) => {
                let queue = queue.get_or_insert_default();
                queue.subscription = Some(subscription);
                queue.unneeded()
            }
            None => Some(subscription),
        };
        drop(queues);
        drop(unused);
    }

    /// How many subscriptions this client has for the lock.
    pub(crate) fn subscriptions(&self) -> u64 {
        let queues = lock(self.core.local_queues.shard(&self.resource));
        let queue = queues.get(&self.resource).and_then(Option::as_ref);
        let kept = queue.is_some_and(|queue| queue.subscription.is_some());
        u64::from(kept || self.subscription.is_some())
    }

    /// Returns the waiter for a handoff, unless the client has kept the lock for too long.
    pub(crate) fn successor(&mut self, now: Tick) -> Option<Waiter> {
        if self.unqueued || self.handoffs >= MAX_HANDOFFS || now.since(self.since) >= MAX_KEPT {
            return None;
        }
        // A waiter that arrives just now gets the front when this one is dropped.
        if self.core.local_queues.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let (waiter, subscription) = self.core.local_queues.next(&self.resource)?;
        self.subscription = subscription.or(self.subscription.take());
        self.handoffs += 1;
        Some(waiter)
    }

    /// Gives the front to this waiter, or to the next one if it has left.
    pub(crate) fn give(self, waiter: Waiter) {
        // A front that the waiter refuses is dropped here, and goes to the next one.
        drop(waiter.served.send(Box::new(Served::Front(self))));
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if self.unqueued {
            if self.resource.kind != Kind::Latch {
                self.core.local_queues.unqueued.fetch_sub(1, Ordering::Relaxed);
            }
            return;
        }
        // The table's mutex is not held while a front is sent: a refused front is dropped, and
        // returns to this function.
        if let Some((waiter, kept)) = self.core.local_queues.next_or_close(self) {
            let mut next = Front::new(&self.core, &self.resource, false);
            let subscription = kept.or(self.subscription.take());
            // Redis notifies subscribers in the order in which they subscribed. The first of them
            // would acquire the lock again and again, so it subscribes anew, behind the others.
            let others_listen = self.released == Some(Others::Listen);
            next.subscription = subscription.filter(|_| !others_listen);
            next.failing = self.failing;
            next.give(waiter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(queue: &mut LocalQueue, number: u64) -> oneshot::Receiver<Box<Served>> {
        let (served, receiver) = oneshot::channel();
        let handoff = Handoff { owner: OwnerId::fresh(uuid::Uuid::nil()), ttl: 1, fenced: None };
        queue.waiters.insert(number, Waiter { served, handoff });
        receiver
    }

    /// Visiting the others would find that they have left, and remove them.
    #[test]
    fn a_waiter_leaves_without_a_look_at_the_others() {
        let mut queue = LocalQueue::default();
        for number in 0..1000 {
            drop(queued(&mut queue, number));
        }
        for (left, number) in (0..1000).rev().zip(0..1000) {
            assert!(queue.leave(number).is_none());
            assert_eq!(queue.waiters.len(), left);
        }
    }

    #[test]
    fn the_pause_for_others_grows_while_none_of_them_acquires_the_lock() {
        let millis = |n: u64| Tick::from_nanos(n * 1_000_000);
        let (mut courtesy, mut now) = (Courtesy::default(), 1_000);
        for pause in [1, 2, 4, 8, 16, 32, 64, 64] {
            courtesy.released(millis(now), Others::Listen);
            assert_eq!(courtesy.until, millis(now + pause));
            now += pause;
            let next = 3 * (2 * pause).min(64);
            courtesy.released(millis(now + next - 1), Others::Listen);
            assert_eq!(courtesy.until, millis(now), "too soon after the last");
            now += next;
        }
        courtesy.released(millis(now), Others::None);
        courtesy.released(millis(now + 300), Others::Listen);
        assert_eq!(courtesy.until, millis(now + 301), "no one listened meanwhile");
        courtesy.released(millis(now + 315), Others::Unknown);
        assert_eq!(courtesy.until, millis(now + 301), "too soon after the last");
        courtesy.released(millis(now + 316), Others::Unknown);
        assert_eq!(courtesy.until, millis(now + 317));
    }
}
