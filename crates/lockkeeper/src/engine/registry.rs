//! The holds and queue positions of a client: every lease with its due time, and every queue position.
//!
//! Due times are in one plain vector, without a tree to keep in order. The watchdog scans it at most
//! four times a second, and takes the leases that are due within the next tick along, for few large
//! batches. A scan of a hundred thousand takes well under a millisecond.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::lease::Lease;
use super::{Tick, lock};
use crate::backend::{Kind, Resource};
use crate::{LockName, OwnerId};

/// The interval of signs of life of waiters: the store skips a waiter after three seconds without
/// one.
pub(super) const SPEAK: Duration = Duration::from_millis(800);

/// The longest sleep of the watchdog while a lock is held.
pub(super) const TICK: Duration = Duration::from_millis(250);

/// How many holds an announcement lists: people read them, and each announcement sends all of them.
pub(super) const TOLD: usize = 128;

/// Of how many holds these are chosen: a scan of a million would delay all other tasks.
const LOOKED_AT: usize = 4096;

/// All leases that are held, and when each must be checked.
#[derive(Debug)]
pub(crate) struct Registry {
    slots: Mutex<Slots>,
    /// The positions in queues of the store. Sorted, so that neighbours share one request.
    places: Mutex<BTreeMap<(LockName, u64), Place>>,
    next_place: AtomicU64,
    /// Until when the watchdog sleeps: an earlier due time must wake it.
    wakes_at: AtomicU64,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Slots {
    due: Vec<Tick>,
    leases: Vec<Option<Arc<Lease>>>,
    free: Vec<usize>,
    stopped: bool,
}

/// A position in a queue that the store keeps.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) resource: Resource,
    pub(super) owner: OwnerId,
    pub(super) due: Arc<Notify>,
}

/// A queue position; given up when dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    registry: Arc<Registry>,
    key: (LockName, u64),
    due: Arc<Notify>,
}

impl Kept {
    /// Resolves when the store reports that a try is worthwhile.
    pub(crate) async fn due(&self) {
        self.due.notified().await;
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        lock(&self.registry.places).remove(&self.key);
    }
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            slots: Mutex::default(),
            places: Mutex::default(),
            next_place: AtomicU64::new(0),
            wakes_at: AtomicU64::new(u64::MAX),
            wake: Notify::new(),
        }
    }

    /// Sends signs of life for a waiter from now on. Its own request has just counted as one.
    pub(crate) fn keep(self: &Arc<Self>, resource: &Resource, owner: OwnerId, now: Tick) -> Kept {
        let key = (resource.name.clone(), self.next_place.fetch_add(1, Ordering::Relaxed));
        let due = Arc::new(Notify::new());
        let place = Place { resource: resource.clone(), owner, due: Arc::clone(&due) };
        lock(&self.places).insert(key.clone(), place);
        self.wake_by(now + SPEAK / 2);
        Kept { registry: Arc::clone(self), key, due }
    }

    pub(crate) fn add(&self, lease: &Arc<Lease>, due: Tick) -> usize {
        let mut slots = lock(&self.slots);
        let lease = Some(Arc::clone(lease));
        let slot = match slots.free.pop() {
            Some(slot) => {
                slots.leases[slot] = lease;
                slot
            }
            None => {
                slots.leases.push(lease);
                slots.due.push(due);
                slots.due.len() - 1
            }
        };
        slots.due[slot] = due;
        drop(slots);
        self.wake_by(due);
        slot
    }

    pub(crate) fn set_due(&self, slot: usize, due: Tick) {
        lock(&self.slots).due[slot] = due;
        self.wake_by(due);
    }

    pub(crate) fn remove(&self, slot: usize) {
        let mut slots = lock(&self.slots);
        let lease = slots.leases[slot].take();
        slots.due[slot] = Tick::NEVER;
        slots.free.push(slot);
        // After the release of a million holds, scans must become short again.
        if slots.free.len() == slots.due.len() && slots.due.len() > 1024 {
            *slots = Slots { stopped: slots.stopped, ..Slots::default() };
        }
        drop(slots);
        // Outside of the mutex: it may be the last handle of the client, and drop the client with
        // it.
        drop(lease);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Lease>> {
        lock(&self.slots).leases.iter().flatten().cloned().collect()
    }

    /// Returns the holds for an announcement: the holds that are at least `old`, and if `all` then
    /// the others after them. Holds whose kind the store does not record come first; otherwise the
    /// order is that of their slots, which is stable. Also returns whether there are more.
    pub(super) fn worth_telling(
        &self,
        now: Tick,
        old: Duration,
        all: bool,
    ) -> (Vec<Arc<Lease>>, bool) {
        let slots = lock(&self.slots);
        let leases = || slots.leases.iter().take(LOOKED_AT).flatten();
        let is_old = |lease: &&Arc<Lease>| now.since(lease.granted) >= old;
        let hidden =
            |lease: &&Arc<Lease>| matches!(lease.resource.kind, Kind::Mutex | Kind::Semaphore);
        let told = leases().filter(|lease| is_old(lease) && hidden(lease));
        let told = told.chain(leases().filter(|lease| is_old(lease) && !hidden(lease)));
        let told = told.chain(leases().filter(|lease| all && !is_old(lease) && hidden(lease)));
        let told = told.chain(leases().filter(|lease| all && !is_old(lease) && !hidden(lease)));
        let told: Vec<_> = told.take(TOLD).cloned().collect();
        let more = told.len() < slots.due.len() - slots.free.len();
        (told, more)
    }

    /// Stops the watchdog.
    pub(crate) fn stop(&self) {
        lock(&self.slots).stopped = true;
        self.wake.notify_one();
    }

    pub(super) fn is_stopped(&self) -> bool {
        lock(&self.slots).stopped
    }

    /// From here on a due time before `until` wakes the watchdog.
    pub(super) fn sleeps_until(&self, until: Tick) {
        self.wakes_at.store(until.as_nanos(), Ordering::SeqCst);
    }

    /// Resolves when the watchdog must act earlier than planned.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Returns all queue positions.
    pub(super) fn places(&self) -> Vec<Place> {
        lock(&self.places).values().cloned().collect()
    }

    pub(super) fn has_places(&self) -> bool {
        !lock(&self.places).is_empty()
    }

    fn wake_by(&self, due: Tick) {
        if due.as_nanos() < self.wakes_at.load(Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Collects the leases that are due within a tick, and returns when to scan again; `None` when
    /// nothing is held. A tick ahead turns many small batches into few large ones, and needs few
    /// scans: a lease of which only the deadline is near is rescheduled by its own check.
    pub(super) fn due(&self, now: Tick, due: &mut Vec<Arc<Lease>>) -> Option<Tick> {
        let slots = lock(&self.slots);
        let mut next = Tick::NEVER;
        let soon = now + TICK;
        for (slot, at) in slots.due.iter().enumerate() {
            if *at <= soon {
                due.extend(slots.leases[slot].clone());
            } else {
                next = next.min(*at);
            }
        }
        (slots.free.len() < slots.due.len()).then_some(next)
    }
}
