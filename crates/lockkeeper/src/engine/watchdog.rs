//! One task a client, whatever the number of locks: renews what is to be renewed, checks the rest,
//! and signals every loss.
//!
//! Due times stand side by side in one vector, so that looking at all of them is a walk over plain
//! memory: a hundred thousand take well under a millisecond, four times a second at most. While
//! anything is held it never sleeps longer than [`TICK`], because a process that was stopped must
//! find out soon after it goes on; while nothing is held it sleeps for good.
//!
//! It also speaks for those who wait in a queue that the store keeps: a waiter that is not heard of
//! for a few seconds is passed over.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use super::lease::Lease;
use super::presence::Presence;
use super::renewal::Todo;
use super::{Core, Tick, lock};
use crate::backend::{Fault, Kind, Renew, Renewed, Resource, Subscription, Topic};
use crate::{LockName, OwnerId};

/// The longest sleep while anything is held.
const TICK: Duration = Duration::from_millis(250);

/// How many holds are renewed by one request: the store is busy with it for a fraction of a
/// millisecond.
const BATCH: usize = 128;

/// The same for permits, of which one hold may have thousands.
const PERMITS: u32 = 1024;

/// How many such requests are under way at once, so that others get in between.
const BATCHES: usize = 8;

/// How often the store hears of those who wait: it passes over who is silent for three seconds.
const SPEAK: Duration = Duration::from_millis(800);

/// How many holds are told of: people look at them, and it is all sent again each time.
pub(super) const TOLD: usize = 128;

/// Of how many holds these are chosen: a walk over a million would be felt by all others.
const LOOKED_AT: usize = 4096;

/// How long notices are listened for after the last hold: short holds in a row must not subscribe
/// each time.
const LINGER: Duration = Duration::from_secs(1);

/// All leases that are held, and when each must be looked at.
#[derive(Debug)]
pub(crate) struct Registry {
    slots: Mutex<Slots>,
    /// Who waits in which queue of the store. Sorted, so that neighbours share one request.
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

/// A place in a queue that the store keeps.
#[derive(Clone, Debug)]
struct Place {
    resource: Resource,
    owner: OwnerId,
    due: Arc<Notify>,
}

/// A place that is kept for as long as this lives.
#[derive(Debug)]
pub(crate) struct Kept {
    registry: Arc<Registry>,
    key: (LockName, u64),
    due: Arc<Notify>,
}

impl Kept {
    /// Resolves when the store says that it is worth a try.
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

    /// Speaks for a waiter from now on. The store has just heard of it.
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
        // A million holds given back should not be walked over for ever.
        if slots.free.len() == slots.due.len() && slots.due.len() > 1024 {
            *slots = Slots { stopped: slots.stopped, ..Slots::default() };
        }
        drop(slots);
        // Outside of the lock: it may be the last of its kind, and take the client with it.
        drop(lease);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Lease>> {
        lock(&self.slots).leases.iter().flatten().cloned().collect()
    }

    /// Holds that people may ask about: those that are at least `old`, and if `all` then the others
    /// behind them. First those of which the store itself does not show what they are; otherwise in
    /// the order of their places, which stays the same for as long as they do.
    /// Also answers whether there are more.
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

    /// The watchdog ends.
    pub(crate) fn stop(&self) {
        lock(&self.slots).stopped = true;
        self.wake.notify_one();
    }

    fn wake_by(&self, due: Tick) {
        if due.as_nanos() < self.wakes_at.load(Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Those that are due, or will be within a tick, and when to look again; nothing when nothing is
    /// held at all. Looking a tick ahead makes few large batches out of many small ones, and few
    /// walks: a lease that only has its deadline ahead is put back by its own look.
    fn due(&self, now: Tick, due: &mut Vec<Arc<Lease>>) -> Option<Tick> {
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

/// The task. Ends when the client does; if the runtime ends first, every lease is lost.
///
/// Not an `async fn`: a runtime may end before it polls the task even once.
pub(crate) fn run(
    registry: Arc<Registry>,
    core: Weak<Core>,
) -> impl Future<Output = ()> + Send + 'static {
    let last_words = LastWords(Arc::clone(&registry), core.clone());
    let watchdog = Watchdog {
        registry,
        core,
        renewals: JoinSet::new(),
        presence: None,
        reconnects: None,
        woken: false,
        spoke: None,
    };
    async move {
        let _last_words = last_words;
        watchdog.run().await;
    }
}

struct LastWords(Arc<Registry>, Weak<Core>);

impl Drop for LastWords {
    fn drop(&mut self) {
        if lock(&self.0.slots).stopped {
            return;
        }
        // The runtime has ended: no task is left to send anything.
        if let Some(core) = self.1.upgrade() {
            core.abandon();
        }
    }
}

struct Watchdog {
    registry: Arc<Registry>,
    core: Weak<Core>,
    renewals: JoinSet<()>,
    presence: Option<Presence>,
    reconnects: Option<(Subscription, u64)>,
    /// Something was held since the last look, even if it is gone by now: locks that are held for an
    /// instant each, one after the other, must not wake the watchdog each time.
    woken: bool,
    /// When the store last heard of those who wait.
    spoke: Option<Tick>,
}

impl Watchdog {
    /// Hears of reconnections from its first turn on: whatever is held is then asked about at once,
    /// for the server may have come back without its data.
    async fn run(mut self) {
        let reconnects = subscribe(&self.core, |_| Topic::Reconnected).await;
        self.reconnects = reconnects.map(|subscription| {
            let seen = subscription.seen();
            (subscription, seen)
        });
        while self.turn().await {}
    }

    /// One look at everything; false when it is over.
    async fn turn(&mut self) -> bool {
        while self.renewals.try_join_next().is_some() {}
        let Some(core) = self.core.upgrade() else {
            return false;
        };
        if lock(&self.registry.slots).stopped {
            return false;
        }
        let now = core.clock.now();
        // From here on a new due time wakes the watchdog, also while it still looks.
        self.registry.wakes_at.store(u64::MAX, Ordering::SeqCst);
        let mut due = Vec::new();
        let next = self.registry.due(now, &mut due);
        let next = next.map(|next| next.min(self.renew(&core, now, due)));
        core.despair();
        let waiting = self.speak_for_waiters(&core, now);
        self.show_presence(&core, now, next.is_some() || self.woken);
        let until = match (next, &self.presence) {
            (Some(next), _) => next.min(now + TICK),
            (None, Some(_)) => now + TICK,
            (None, None) if waiting => now + TICK,
            (None, None) => Tick::NEVER,
        };
        self.registry.wakes_at.store(until.as_nanos(), Ordering::SeqCst);
        let sleep = core.clock.instant(until);
        drop(core);
        self.sleep(sleep).await;
        true
    }

    async fn sleep(&mut self, until: Option<tokio::time::Instant>) {
        let nap = async {
            match until {
                Some(instant) => tokio::time::sleep_until(instant).await,
                None => std::future::pending().await,
            }
        };
        let reconnected = async {
            match &self.reconnects {
                Some((subscription, seen)) => subscription.beyond(*seen).await,
                None => std::future::pending().await,
            }
        };
        self.woken = false;
        let seen_now = tokio::select! {
            () = self.registry.wake.notified() => {
                self.woken = true;
                return;
            }
            () = nap => return,
            seen = reconnected => seen,
        };
        if let Some((_, seen)) = &mut self.reconnects {
            *seen = seen_now;
        }
        if let Some(core) = self.core.upgrade() {
            core.answered();
        }
        for lease in self.registry.all() {
            lease.hurry();
        }
    }

    /// Looks at each; answers when the first of those that were left alone must be looked at again.
    fn renew(&mut self, core: &Arc<Core>, now: Tick, due: Vec<Arc<Lease>>) -> Tick {
        let mut next = Tick::NEVER;
        let mut asked = Vec::new();
        for lease in due {
            match lease.look(now, now + TICK) {
                Todo::Ask(renew, deadline) => {
                    next = next.min(deadline);
                    asked.push((lease, renew));
                }
                Todo::Later(due) => next = next.min(due),
                Todo::Nothing => {}
            }
        }
        if asked.is_empty() {
            return next;
        }
        tracing::debug!(count = asked.len(), "renewing");
        let slots = Arc::new(Semaphore::new(BATCHES));
        let mut batch = Vec::new();
        let mut permits = 0;
        for (lease, renew) in asked {
            permits += renew.count;
            batch.push((lease, renew));
            if batch.len() == BATCH || permits >= PERMITS {
                permits = 0;
                let batch = std::mem::take(&mut batch);
                self.renewals.spawn(ask(Arc::clone(core), Arc::clone(&slots), batch));
            }
        }
        if !batch.is_empty() {
            self.renewals.spawn(ask(Arc::clone(core), slots, batch));
        }
        next
    }

    /// About once a second; answers whether anybody waits.
    fn speak_for_waiters(&mut self, core: &Arc<Core>, now: Tick) -> bool {
        let places: Vec<Place> = {
            let places = lock(&self.registry.places);
            if places.is_empty() {
                self.spoke = None;
                return false;
            }
            // Whoever came just now has spoken for itself.
            if now.since(*self.spoke.get_or_insert(now)) < SPEAK {
                return true;
            }
            places.values().cloned().collect()
        };
        self.spoke = Some(now);
        for batch in places.chunks(BATCH) {
            self.renewals.spawn(speak(Arc::clone(core), batch.to_vec()));
        }
        true
    }

    /// Keeps the note of who this client is, and an ear open for notices, while anything is held.
    fn show_presence(&mut self, core: &Arc<Core>, now: Tick, holding: bool) {
        if holding && self.presence.is_none() {
            self.presence = Some(Presence::new(core, now));
        }
        let Some(presence) = &mut self.presence else {
            return;
        };
        if holding {
            presence.last_held = now;
            presence.announce(core, &self.registry, now, &mut self.renewals);
        } else if now.since(presence.last_held) >= LINGER {
            self.presence = None;
        }
    }
}

async fn ask(core: Arc<Core>, slots: Arc<Semaphore>, batch: Vec<(Arc<Lease>, Renew)>) {
    let _slot = slots.acquire().await;
    // Some may have been given back while this waited: what is left of them is not to be lengthened.
    let batch: Vec<_> = batch.into_iter().filter(|(lease, _)| lease.is_asked_about()).collect();
    if batch.is_empty() {
        return;
    }
    let sent = core.clock.now();
    let requests: Vec<_> = batch.iter().map(|(_, renew)| renew.clone()).collect();
    let answers = core.backend.renew(requests).await;
    if let Some(first) = answers.first() {
        core.note(sent, first);
    }
    let mut answers = answers.into_iter();
    for (lease, renew) in batch {
        lease.answered(renew.ttl, answers.next().unwrap_or(Err(Fault::Closed)), sent);
    }
}

async fn speak(core: Arc<Core>, places: Vec<Place>) {
    let requests = places.iter().map(|place| Renew {
        waiting: true,
        ..Renew::new(place.resource.clone(), place.owner, None)
    });
    let sent = core.clock.now();
    let answers = core.backend.renew(requests.collect()).await;
    if let Some(first) = answers.first() {
        core.note(sent, first);
    }
    for (place, answer) in places.iter().zip(answers) {
        if answer == Ok(Renewed::Due) {
            place.due.notify_one();
        }
    }
}

pub(super) async fn subscribe(
    core: &Weak<Core>,
    topic: impl Fn(&Core) -> Topic,
) -> Option<Subscription> {
    let subscribing = {
        let core = core.upgrade()?;
        core.backend.subscribe(topic(&core))
    };
    let subscription = subscribing.await;
    if let Err(fault) = &subscription {
        tracing::debug!(?fault, "cannot listen");
    }
    subscription.ok()
}
