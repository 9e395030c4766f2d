//! The local gate: per client and name, one seat and a queue behind it.
//!
//! Whoever has the seat is the only one of this client that talks to the store about the name: it
//! tries, waits and holds. The others queue in the order in which they came and cost the store
//! nothing. A seat that is dropped passes to the next in the queue, whatever the reason: granted
//! and released, lost, cancelled, failed. So a waiter that is cancelled after it was woken has
//! passed the wake-up on.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use super::claim::Claim;
use super::{Core, Tick, lock};
use crate::OwnerId;
use crate::backend::{Fault, Resource, Subscription};

/// How often a lock is handed on inside one client before it is put up for everybody.
const MAX_PASSES: u32 = 64;

/// For how long a lock is handed on inside one client before it is put up for everybody.
const MAX_PASSING: Duration = Duration::from_millis(10);

/// How many parts the table of gates has, each with a lock of its own.
const SHARDS: usize = 16;

/// All gates of a client.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    shards: [Mutex<HashMap<Resource, VecDeque<Ticket>>>; SHARDS],
}

/// One waiter in the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// Boxed, because whoever waits carries the room for it.
    pub(crate) turn: oneshot::Sender<Box<Turn>>,
    pub(crate) offer: Offer,
}

/// What a waiter would hold if the lock were handed to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) owner: OwnerId,
    pub(crate) ttl: u64,
}

/// What a waiter in the queue is given in the end.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Its turn to try.
    Seat(Seat),
    /// The lock itself, granted by a request sent at this time.
    Handed(Seat, Claim, Tick),
    /// No hope: the store does not answer, or the client is closed.
    Failed(Fault),
}

/// The answer to [`Gates::enter`].
pub(crate) enum Entered {
    Seat(Seat),
    Queued(oneshot::Receiver<Box<Turn>>),
    /// Taken, and the caller does not want to queue.
    Taken,
}

impl Gates {
    /// By the last bytes of the name, which is where names of one family differ. Any choice is right;
    /// a good one lets more tasks through at once.
    fn shard(&self, resource: &Resource) -> &Mutex<HashMap<Resource, VecDeque<Ticket>>> {
        let tail = resource.name.as_bytes().iter().rev().take(4);
        let mix = tail.fold(0usize, |mix, byte| mix.wrapping_mul(31).wrapping_add(*byte as usize));
        &self.shards[mix % SHARDS]
    }

    /// Takes the seat if it is free; otherwise queues, if there is something to offer.
    pub(crate) fn enter(
        core: &Arc<Core>,
        resource: &Resource,
        offer: impl FnOnce() -> Option<Offer>,
    ) -> Entered {
        match lock(core.gates.shard(resource)).entry(resource.clone()) {
            Entry::Occupied(mut queue) => {
                let Some(offer) = offer() else { return Entered::Taken };
                let (turn, wait) = oneshot::channel();
                queue.get_mut().push_back(Ticket { turn, offer });
                return Entered::Queued(wait);
            }
            Entry::Vacant(gate) => {
                gate.insert(VecDeque::new());
            }
        }
        Entered::Seat(Seat {
            core: Arc::clone(core),
            resource: resource.clone(),
            subscription: None,
            pause: false,
            passes: 0,
            since: Tick::NEVER,
        })
    }

    /// The next waiter that is still there; the gate is taken down if there is none and `close`.
    fn next(&self, resource: &Resource, close: bool) -> Option<Ticket> {
        let mut gates = lock(self.shard(resource));
        let Entry::Occupied(mut queue) = gates.entry(resource.clone()) else { return None };
        let ticket = loop {
            match queue.get_mut().pop_front() {
                Some(ticket) if ticket.turn.is_closed() => {}
                other => break other,
            }
        };
        if ticket.is_none() && close {
            queue.remove();
        }
        ticket
    }

    fn has_waiters(&self, resource: &Resource) -> bool {
        lock(self.shard(resource)).get(resource).is_some_and(|queue| !queue.is_empty())
    }

    /// Everybody in the queue is told the same; the seat stays with whoever has it.
    pub(crate) fn fail(&self, resource: &Resource, fault: &Fault) {
        let tickets = lock(self.shard(resource)).get_mut(resource).map(std::mem::take);
        Self::tell(tickets.unwrap_or_default(), fault);
    }

    pub(crate) fn fail_all(&self, fault: &Fault) {
        for shard in &self.shards {
            let queues: Vec<_> = lock(shard).values_mut().map(std::mem::take).collect();
            for queue in queues {
                Self::tell(queue, fault);
            }
        }
    }

    fn tell(tickets: VecDeque<Ticket>, fault: &Fault) {
        for ticket in tickets {
            let _ = ticket.turn.send(Box::new(Turn::Failed(fault.clone())));
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }
}

/// The right to talk to the store about one name. Dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Seat {
    core: Arc<Core>,
    resource: Resource,
    /// Travels with the seat while others wait behind it, so that a client subscribes once however
    /// many wait.
    pub(crate) subscription: Option<Subscription>,
    /// Others elsewhere wait: let them have a chance before trying again.
    pub(crate) pause: bool,
    passes: u32,
    since: Tick,
}

impl Seat {
    /// The lock was taken from the store, not handed over: the count of passes starts anew.
    pub(crate) fn taken(&mut self, now: Tick) {
        (self.passes, self.since, self.pause) = (0, now, false);
    }

    /// The subscription is for those who wait; without any, a holder needs none.
    pub(crate) fn unsubscribe_if_alone(&mut self) {
        if self.subscription.is_some() && !self.core.gates.has_waiters(&self.resource) {
            self.subscription = None;
        }
    }

    /// The waiter the lock may be handed to, if the client has not kept it for too long.
    pub(crate) fn successor(&mut self, now: Tick) -> Option<Ticket> {
        if self.passes >= MAX_PASSES || now.since(self.since) >= MAX_PASSING {
            return None;
        }
        let ticket = self.core.gates.next(&self.resource, false)?;
        self.passes += 1;
        Some(ticket)
    }

    /// Gives the seat to a certain waiter, or to the next one if it has gone.
    pub(crate) fn give(self, ticket: Ticket) {
        // A refused turn is dropped here, and with it the seat, which then passes on.
        drop(ticket.turn.send(Box::new(Turn::Seat(self))));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // The gates' lock is not held while a turn is sent: a turn that nobody takes is dropped,
        // and its seat comes back here.
        if let Some(ticket) = self.core.gates.next(&self.resource, true) {
            let heir = Seat {
                core: Arc::clone(&self.core),
                resource: self.resource.clone(),
                subscription: self.subscription.take(),
                pause: self.pause,
                passes: 0,
                since: Tick::NEVER,
            };
            heir.give(ticket);
        }
    }
}
