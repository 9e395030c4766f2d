//! The local queue: per client and name, one seat and a queue behind it.
//!
//! The task that has the seat is the only one of this client that sends requests about the name: it
//! tries, waits and holds. The other tasks queue in the order of their arrival and cost the store
//! nothing. A dropped seat goes to the next task in the queue, whatever the reason: released, lost,
//! cancelled, failed. So a waiter that is cancelled after a wake-up has passed the wake-up on.
//!
//! Exclusive locks are requested, waited for and held on the seat. Permits are waited for on the seat,
//! but held without it. Readers and waiters of a fair lock have their own positions in the store, so
//! each has a seat of its own beside the gate ([`LocalQueues::alone`]). One acquire loop serves all of them.
//!
//! **A client keeps a lock for at most 64 handoffs or 10 ms**, then releases it in the store. After
//! that it pauses only if another client listens, which the answer to `PUBLISH` shows (or for a
//! millisecond where that is unknown, as for a mutex). The request of a distant client arrives one
//! round trip after the message, so the pause doubles from 1 ms to 64 ms until another client acquires
//! the lock. Pauses take at most a quarter of the client's time.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use super::pending_acquire::PendingAcquire;
use super::request::Request;
use super::{Core, Tick, lock};
use crate::OwnerId;
use crate::backend::{Fault, Fenced, Resource, Subscription};

/// How often a lock is handed off inside one client before it is released for all.
const MAX_PASSES: u32 = 64;

/// For how long a lock is handed off inside one client before it is released for all.
const MAX_PASSING: Duration = Duration::from_millis(10);

/// The first pause of this client after a release that another client listens for. The other's
/// request arrives one round trip after the message, and the distance is unknown: the pause doubles
/// while no other client acquires the lock.
const PAUSE: Duration = Duration::from_millis(1);

/// The longest such pause: enough for a client at 30 ms one way.
const MAX_PAUSE: Duration = Duration::from_millis(64);

/// A pause follows only after this many times its length without one, so that pauses take at most a
/// quarter of a client's time.
const PAUSE_RATIO: u32 = 3;

/// Number of shards of the table of local queues, each with a mutex of its own.
const SHARDS: usize = 16;

/// All local queues of a client.
#[derive(Debug, Default)]
pub(crate) struct LocalQueues {
    shards: [Mutex<Table>; SHARDS],
    /// Number of seats beside the local queues.
    alone: AtomicUsize,
    /// The number of the next ticket. Never reused: a waiter that leaves late, after its gate was
    /// removed and created again, must not remove the ticket of another waiter.
    next_ticket: AtomicU64,
}

type Table = HashMap<Resource, Gate>;

/// Exists as long as a task has the seat.
#[derive(Debug, Default)]
struct Gate {
    /// By number, so that a waiter leaves without visiting the others.
    queue: BTreeMap<u64, Ticket>,
    /// Kept for the queue while the lock is held: a client subscribes once for all its waiters, and
    /// not at all without waiters.
    subscription: Option<Subscription>,
    /// Why the last request from the seat failed; cleared by the next success.
    failure: Option<Fault>,
    courtesy: Courtesy,
}

impl Gate {
    /// Removes the ticket of a waiter that leaves. Returns the subscription if no other waiter
    /// needs it, to be dropped outside of the table's mutex.
    fn leave(&mut self, number: u64) -> Option<Subscription> {
        self.queue.remove(&number);
        self.unneeded()
    }

    fn unneeded(&mut self) -> Option<Subscription> {
        if self.queue.is_empty() { self.subscription.take() } else { None }
    }
}

/// One waiter in the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// Boxed to keep the waiter's future small.
    pub(crate) turn: oneshot::Sender<Box<Turn>>,
    pub(crate) offer: Offer,
}

/// The hold that a waiter would get by a handoff.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) owner: OwnerId,
    pub(crate) ttl: u64,
    pub(crate) fenced: Option<Fenced>,
}

impl Offer {
    pub(crate) fn new(core: &Core, request: &Request) -> Self {
        let owner = OwnerId::fresh(core.id);
        Self { owner, ttl: request.term.ttl, fenced: request.fenced }
    }
}

/// What a queued waiter receives in the end.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The seat: its turn to try.
    Seat(Seat),
    /// The lock itself, with its token, granted by a request sent at this time.
    Handed(Seat, PendingAcquire, Option<u64>, Tick),
    /// A failure: the store does not answer, or the client is closed.
    Failed(Fault),
}

/// The result of [`LocalQueues::enter`].
pub(crate) enum Entered {
    Seat(Seat),
    Queued(Place),
    /// The seat is taken, and the caller does not queue.
    Taken,
}

impl LocalQueues {
    /// Chooses by the last bytes of the name, where related names differ. Any choice is correct; an
    /// even one causes less contention.
    fn shard(&self, resource: &Resource) -> &Mutex<Table> {
        let tail = resource.name.as_bytes().iter().rev().take(4);
        let mix = tail.fold(0usize, |mix, byte| mix.wrapping_mul(31).wrapping_add(*byte as usize));
        &self.shards[mix % SHARDS]
    }

    /// Takes the seat if it is free; otherwise queues, if there is an offer.
    pub(crate) fn enter(
        core: &Arc<Core>,
        resource: &Resource,
        offer: impl FnOnce() -> Option<Offer>,
    ) -> Entered {
        match lock(core.local_queues.shard(resource)).entry(resource.clone()) {
            Entry::Occupied(mut gate) => {
                let Some(offer) = offer() else { return Entered::Taken };
                return Entered::Queued(Place::new(core, resource, gate.get_mut(), offer));
            }
            Entry::Vacant(gate) => {
                gate.insert(Gate::default());
            }
        }
        Entered::Seat(Seat::new(core, resource, false))
    }

    /// Queues if the seat is taken.
    pub(crate) fn line_up(
        core: &Arc<Core>,
        resource: &Resource,
        offer: impl FnOnce() -> Offer,
    ) -> Option<Place> {
        let mut gates = lock(core.local_queues.shard(resource));
        let gate = gates.get_mut(resource)?;
        Some(Place::new(core, resource, gate, offer()))
    }

    /// Returns a seat beside the gate, for tasks that need not wait for others of this client.
    pub(crate) fn alone(core: &Arc<Core>, resource: &Resource) -> Seat {
        core.local_queues.alone.fetch_add(1, Ordering::Relaxed);
        Seat::new(core, resource, true)
    }

    /// Returns the next waiter that has not left, and the subscription that was kept for it.
    /// Without one, removes the gate if `close`.
    fn next(&self, resource: &Resource, close: bool) -> Option<(Ticket, Option<Subscription>)> {
        let mut gates = lock(self.shard(resource));
        let Entry::Occupied(mut gate) = gates.entry(resource.clone()) else { return None };
        loop {
            match gate.get_mut().queue.pop_first() {
                Some((_, ticket)) if ticket.turn.is_closed() => {}
                Some((_, ticket)) => return Some((ticket, gate.get_mut().subscription.take())),
                None => break,
            }
        }
        let closed = close.then(|| gate.remove());
        drop(gates);
        drop(closed);
        None
    }

    /// Resolves when no seat is taken.
    pub(crate) async fn emptied(&self) {
        while self.alone.load(Ordering::Relaxed) > 0
            || self.shards.iter().any(|shard| !lock(shard).is_empty())
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Fails all waiters in the queue; the seat stays with its task.
    pub(crate) fn fail(&self, resource: &Resource, fault: &Fault) {
        let gate = lock(self.shard(resource)).get_mut(resource).map(std::mem::take);
        Self::tell(gate.unwrap_or_default(), fault);
    }

    pub(crate) fn fail_all(&self, fault: &Fault) {
        for shard in &self.shards {
            let gates: Vec<_> = lock(shard).values_mut().map(std::mem::take).collect();
            for gate in gates {
                Self::tell(gate, fault);
            }
        }
    }

    fn tell(gate: Gate, fault: &Fault) {
        for ticket in gate.queue.into_values() {
            let _ = ticket.turn.send(Box::new(Turn::Failed(fault.clone())));
        }
    }
}

/// A position in the local queue. Dropping it removes the ticket.
#[derive(Debug)]
pub(crate) struct Place {
    core: Arc<Core>,
    resource: Resource,
    number: u64,
    turn: oneshot::Receiver<Box<Turn>>,
    served: bool,
}

impl Place {
    /// Appends to the queue; the caller holds the table's mutex.
    fn new(core: &Arc<Core>, resource: &Resource, gate: &mut Gate, offer: Offer) -> Self {
        let (ticket, turn) = oneshot::channel();
        let number = core.local_queues.next_ticket.fetch_add(1, Ordering::Relaxed);
        gate.queue.insert(number, Ticket { turn: ticket, offer });
        let (core, resource) = (Arc::clone(core), resource.clone());
        Self { core, resource, number, turn, served: false }
    }

    /// Returns why the last request about the lock failed, if it did: a queued waiter has sent none
    /// itself.
    pub(crate) fn failure(&self) -> Option<Fault> {
        lock(self.core.local_queues.shard(&self.resource)).get(&self.resource)?.failure.clone()
    }

    pub(crate) async fn wait(&mut self) -> Turn {
        let turn = (&mut self.turn).await;
        self.served = true;
        // A seat always sends a turn before it is dropped.
        turn.map_or(Turn::Failed(Fault::Closed), |turn| *turn)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.served {
            return;
        }
        self.turn.close();
        let unused = {
            let mut gates = lock(self.core.local_queues.shard(&self.resource));
            gates.get_mut(&self.resource).and_then(|gate| gate.leave(self.number))
        };
        drop(unused);
    }
}

/// The right to send requests about one name. Dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Seat {
    core: Arc<Core>,
    resource: Resource,
    /// It is beside the gate, without a queue.
    pub(crate) alone: bool,
    /// The subscription of the task that waits on this seat.
    pub(crate) subscription: Option<Subscription>,
    passes: u32,
    since: Tick,
    /// Whether the gate has a `failure`.
    failing: bool,
}

/// Whether another client waits for a released lock, as far as the store tells.
#[derive(Clone, Copy, Debug)]
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
            Others::Unknown => self.until = now + PAUSE,
            Others::Listen if now.since(self.until) >= self.pause * PAUSE_RATIO => {
                self.until = now + self.pause;
                self.pause = (self.pause * 2).min(MAX_PAUSE);
            }
            Others::Listen => {}
        }
    }
}

impl Seat {
    fn new(core: &Arc<Core>, resource: &Resource, alone: bool) -> Self {
        Self {
            core: Arc::clone(core),
            resource: resource.clone(),
            alone,
            subscription: None,
            passes: 0,
            since: Tick::NEVER,
            failing: false,
        }
    }

    /// The lock was acquired in the store, not handed off: resets the handoff count.
    pub(crate) fn taken(&mut self, now: Tick) {
        (self.passes, self.since) = (0, now);
        if std::mem::take(&mut self.failing) {
            self.gate(|gate| gate.failure = None);
        }
    }

    /// Another client holds the lock: resets the pause and clears the failure.
    pub(crate) fn busy(&mut self) {
        self.failing = false;
        self.gate(|gate| (gate.courtesy.pause, gate.failure) = (PAUSE, None));
    }

    /// The lock was released in the store, not handed off.
    pub(crate) fn released(&self, now: Tick, others: Others) {
        self.gate(|gate| gate.courtesy.released(now, others));
    }

    /// How long the lock is still left to other clients.
    pub(crate) fn pause(&self, now: Tick) -> Duration {
        self.gate(|gate| gate.courtesy.until.since(now)).unwrap_or_default()
    }

    /// Records that a request about the lock failed.
    pub(crate) fn failed(&mut self, fault: &Fault) {
        self.failing = true;
        self.gate(|gate| gate.failure = Some(fault.clone()));
    }

    fn gate<T>(&self, with: impl FnOnce(&mut Gate) -> T) -> Option<T> {
        if self.alone {
            return None;
        }
        lock(self.core.local_queues.shard(&self.resource)).get_mut(&self.resource).map(with)
    }

    /// Leaves the subscription to the queue, or drops it, because the lock is held now.
    pub(crate) fn leave_subscription(&mut self) {
        let Some(subscription) = self.subscription.take().filter(|_| !self.alone) else { return };
        let mut gates = lock(self.core.local_queues.shard(&self.resource));
        let unused = match gates.get_mut(&self.resource) {
            Some(gate) => {
                gate.subscription = Some(subscription);
                gate.unneeded()
            }
            None => Some(subscription),
        };
        drop(gates);
        drop(unused);
    }

    /// How many subscriptions this client has for the lock.
    pub(crate) fn subscriptions(&self) -> u64 {
        let gates = lock(self.core.local_queues.shard(&self.resource));
        let kept = gates.get(&self.resource).is_some_and(|gate| gate.subscription.is_some());
        u64::from(kept || self.subscription.is_some())
    }

    /// Returns the waiter for a handoff, unless the client has kept the lock for too long.
    pub(crate) fn successor(&mut self, now: Tick) -> Option<Ticket> {
        if self.alone || self.passes >= MAX_PASSES || now.since(self.since) >= MAX_PASSING {
            return None;
        }
        let (ticket, subscription) = self.core.local_queues.next(&self.resource, false)?;
        self.subscription = subscription.or(self.subscription.take());
        self.passes += 1;
        Some(ticket)
    }

    /// Gives the seat to this waiter, or to the next one if it has left.
    pub(crate) fn give(self, ticket: Ticket) {
        // A refused turn is dropped here, and with it the seat, which then passes on.
        drop(ticket.turn.send(Box::new(Turn::Seat(self))));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.alone {
            self.core.local_queues.alone.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        // The table's mutex is not held while a turn is sent: a refused turn is dropped, and its
        // seat returns to this function.
        if let Some((ticket, kept)) = self.core.local_queues.next(&self.resource, true) {
            let mut heir = Seat::new(&self.core, &self.resource, false);
            heir.subscription = kept.or(self.subscription.take());
            heir.failing = self.failing;
            heir.give(ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(gate: &mut Gate, number: u64) -> oneshot::Receiver<Box<Turn>> {
        let (turn, receiver) = oneshot::channel();
        let offer = Offer { owner: OwnerId::fresh(uuid::Uuid::nil()), ttl: 1, fenced: None };
        gate.queue.insert(number, Ticket { turn, offer });
        receiver
    }

    /// Visiting the others would find that they have left, and remove them.
    #[test]
    fn a_waiter_leaves_without_a_look_at_the_others() {
        let mut gate = Gate::default();
        for number in 0..1000 {
            drop(queued(&mut gate, number));
        }
        for (left, number) in (0..1000).rev().zip(0..1000) {
            assert!(gate.leave(number).is_none());
            assert_eq!(gate.queue.len(), left);
        }
    }

    #[test]
    fn a_waiter_that_leaves_twice_or_late_removes_no_other() {
        let mut gate = Gate::default();
        let _waiters = [queued(&mut gate, 7), queued(&mut gate, 9)];
        for number in [7, 7, 8] {
            gate.leave(number);
        }
        assert_eq!(gate.queue.keys().copied().collect::<Vec<_>>(), [9]);
    }

    /// At most 64 ms, at most a quarter of the time, and short again once another client had the lock.
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
        courtesy.released(millis(now + 400), Others::Unknown);
        assert_eq!(courtesy.until, millis(now + 401));
    }
}
