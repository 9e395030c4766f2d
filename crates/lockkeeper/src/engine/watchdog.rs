//! The watchdog: one task per client, whatever the number of locks. It renews leases, checks fixed
//! leases, and signals every loss.
//!
//! While a lock is held it never sleeps longer than [`TICK`], because a process that was stopped must
//! notice soon after it continues. While none is held it sleeps until it is woken.
//!
//! It also sends the signs of life of waiters in a queue that the store keeps: a waiter without one for
//! a few seconds is skipped.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::announcer::{Announcer, subscribe};
use super::lease::Lease;
use super::registry::{Place, Registry, SPEAK, TICK};
use super::renewal::Todo;
use super::{Core, Tick};
use crate::backend::{Fault, Renew, Renewed, Subscription, Topic};

/// How many holds one request renews: it occupies the store for a fraction of a millisecond.
const BATCH: usize = 128;

/// How many permits one request renews; one hold may have thousands.
const PERMITS: u32 = 1024;

/// How many such requests are under way at once, so that other requests are served in between.
const BATCHES: usize = 8;

/// How long the client listens for notices after its last hold: short holds in a row must not
/// subscribe each time.
const LINGER: Duration = Duration::from_secs(1);

/// Returns the watchdog's task. It ends with the client; if the runtime ends first, every lease is
/// lost.
///
/// Not an `async fn`: a runtime may end before it polls the task even once.
pub(crate) fn run(
    registry: Arc<Registry>,
    core: Weak<Core>,
) -> impl Future<Output = ()> + Send + 'static {
    let abandon_on_drop = AbandonOnDrop(Arc::clone(&registry), core.clone());
    let watchdog = Watchdog {
        registry,
        core,
        renewals: JoinSet::new(),
        announcer: None,
        reconnects: None,
        woken: false,
        spoke: None,
    };
    async move {
        let _last_words = abandon_on_drop;
        watchdog.run().await;
    }
}

struct AbandonOnDrop(Arc<Registry>, Weak<Core>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        if self.0.is_stopped() {
            return;
        }
        // The runtime has ended: no task is left that could send a request.
        if let Some(core) = self.1.upgrade() {
            core.abandon();
        }
    }
}

struct Watchdog {
    registry: Arc<Registry>,
    core: Weak<Core>,
    renewals: JoinSet<()>,
    announcer: Option<Announcer>,
    reconnects: Option<(Subscription, u64)>,
    /// A lock was held since the last turn, even if it is released by now: locks that are held for
    /// an instant each, in a row, must not wake the watchdog each time.
    woken: bool,
    /// When the last signs of life of waiters were sent.
    spoke: Option<Tick>,
}

impl Watchdog {
    /// Runs until the client ends. Subscribes to reconnections first: all leases are checked after
    /// one, because the server may have lost its data.
    async fn run(mut self) {
        let reconnects = subscribe(&self.core, |_| Topic::Reconnected).await;
        self.reconnects = reconnects.map(|subscription| {
            let seen = subscription.seen();
            (subscription, seen)
        });
        while self.turn().await {}
    }

    /// Checks everything once, then sleeps. Returns false when the client has ended.
    async fn turn(&mut self) -> bool {
        while self.renewals.try_join_next().is_some() {}
        let Some(core) = self.core.upgrade() else {
            return false;
        };
        if self.registry.is_stopped() {
            return false;
        }
        let now = core.clock.now();
        // From here on a new due time wakes the watchdog, even during this turn.
        self.registry.sleeps_until(Tick::NEVER);
        let mut due = Vec::new();
        let next = self.registry.due(now, &mut due);
        let next = next.map(|next| next.min(self.renew(&core, now, due)));
        core.fail_all_waiters();
        let waiting = self.speak_for_waiters(&core, now);
        self.announce(&core, now, next.is_some() || self.woken);
        let until = match (next, &self.announcer) {
            (Some(next), _) => next.min(now + TICK),
            (None, Some(_)) => now + TICK,
            (None, None) if waiting => now + TICK,
            (None, None) => Tick::NEVER,
        };
        self.registry.sleeps_until(until);
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
            () = self.registry.woken() => {
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

    /// Checks each lease and renews where due. Returns when the first of the others must be checked
    /// again.
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

    /// Sends the signs of life of waiters about once a second. Returns whether there are waiters.
    fn speak_for_waiters(&mut self, core: &Arc<Core>, now: Tick) -> bool {
        if !self.registry.has_places() {
            self.spoke = None;
            return false;
        }
        // A waiter that has just arrived gave a sign of life by its own request.
        if now.since(*self.spoke.get_or_insert(now)) < SPEAK {
            return true;
        }
        self.spoke = Some(now);
        for batch in self.registry.places().chunks(BATCH) {
            self.renewals.spawn(speak(Arc::clone(core), batch.to_vec()));
        }
        true
    }

    /// Keeps the announcement up to date and listens for notices, while a lock is held.
    fn announce(&mut self, core: &Arc<Core>, now: Tick, holding: bool) {
        if holding && self.announcer.is_none() {
            self.announcer = Some(Announcer::new(core, now));
        }
        let Some(presence) = &mut self.announcer else {
            return;
        };
        if holding {
            presence.last_held = now;
            presence.announce(core, &self.registry, now, &mut self.renewals);
        } else if now.since(presence.last_held) >= LINGER {
            self.announcer = None;
        }
    }
}

async fn ask(core: Arc<Core>, slots: Arc<Semaphore>, batch: Vec<(Arc<Lease>, Renew)>) {
    let _slot = slots.acquire().await;
    // Leases that were released while this waited must not be renewed.
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
