//! The holds of a client: every lease with its due time.
//!
//! Due times are in one plain vector, without a tree to keep in order. The background task scans it at most
//! four times a second, and takes the leases that are due within the next tick along, for few large
//! batches. A scan of a hundred thousand takes well under a millisecond.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::lease::Lease;
use super::terms::other_side;
use super::{Tick, lock};
use crate::OwnerId;
use crate::backend::{Kind, Resource};

/// The longest sleep of the background task while a lock is held.
pub(super) const TICK: Duration = Duration::from_millis(250);

/// How many holds an announcement lists: people read them, and each announcement sends all of them.
pub(super) const ANNOUNCED_MAX: usize = 128;

/// Of how many holds these are chosen: a scan of a million would delay all other tasks.
const SCANNED_MAX: usize = 4096;

/// All leases that are held, and when each must be checked.
#[derive(Debug)]
pub(crate) struct Registry {
    slots: Mutex<Slots>,
    /// Until when the background task sleeps: an earlier due time must wake it.
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

impl Registry {
    pub(crate) fn new() -> Self {
        Self { slots: Mutex::default(), wakes_at: AtomicU64::new(u64::MAX), wake: Notify::new() }
    }

    /// Adds a lease, and returns its slot.
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

    /// Returns the lease that a notice is about.
    pub(super) fn of(&self, owner: OwnerId) -> Option<Arc<Lease>> {
        lock(&self.slots).leases.iter().flatten().find(|lease| lease.owner == owner).cloned()
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

    /// Resolves when nothing is held.
    pub(super) async fn emptied(&self) {
        let is_empty = |slots: &Slots| slots.free.len() == slots.due.len();
        while !is_empty(&lock(&self.slots)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Lease>> {
        lock(&self.slots).leases.iter().flatten().cloned().collect()
    }

    /// Whether this client holds either side of a lock.
    pub(super) fn holds(&self, resource: &Resource) -> bool {
        let side = other_side(resource, Kind::Write);
        let same = |lease: &Arc<Lease>| other_side(&lease.resource, Kind::Write) == side;
        self.all().iter().any(same)
    }

    /// Returns the holds for an announcement: the holds that are at least `old`, and if `all` then
    /// the others after them. Holds whose kind the store does not record come first; otherwise the
    /// order is that of their slots, which is stable. Also returns whether there are more.
    pub(super) fn worth_announcing(
        &self,
        now: Tick,
        old: Duration,
        all: bool,
    ) -> (Vec<Arc<Lease>>, bool) {
        let slots = lock(&self.slots);
        let is_old = |lease: &Lease| now.since(lease.granted) >= old;
        let hidden = |lease: &Lease| matches!(lease.resource.kind, Kind::Mutex | Kind::Semaphore);
        let leases = slots.leases.iter().take(SCANNED_MAX).flatten();
        let mut chosen: Vec<_> = leases.filter(|lease| all || is_old(lease)).collect();
        chosen.sort_by_key(|lease| (!is_old(lease), !hidden(lease)));
        let chosen: Vec<_> = chosen.into_iter().take(ANNOUNCED_MAX).cloned().collect();
        let more = chosen.len() < slots.due.len() - slots.free.len();
        (chosen, more)
    }

    /// Stops the background task.
    pub(crate) fn stop(&self) {
        lock(&self.slots).stopped = true;
        self.wake.notify_one();
    }

    pub(super) fn is_stopped(&self) -> bool {
        lock(&self.slots).stopped
    }

    /// From here on a due time before `until` wakes the background task.
    pub(super) fn sleeps_until(&self, until: Tick) {
        self.wakes_at.store(until.as_nanos(), Ordering::SeqCst);
    }

    /// Resolves when the background task must act earlier than planned.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Wakes the task if it sleeps beyond `due`.
    pub(super) fn wake_by(&self, due: Tick) {
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
