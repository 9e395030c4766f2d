//! The background task of a client: one per client, whatever the number of locks. At each tick it runs
//! the duties: the watchdog renews, waiters get their heartbeats, holds are announced, and an outage
//! fails waiters.
//!
//! While a lock is held it never sleeps longer than [`TICK`], because a process that was stopped must
//! notice soon after it continues. While none is held it sleeps until it is woken.

use std::future::Future;
use std::sync::{Arc, Weak};

use futures_util::future::OptionFuture;
use tokio::task::JoinSet;

use super::announcer::{Announcer, subscribe};
use super::heartbeat::Heartbeat;
use super::registry::{Registry, TICK};
use super::{Core, Tick, watchdog};
use crate::backend::{Lane, Subscription, Topic};

/// Returns the task. It ends with the client; if the runtime ends first, every lease is lost.
///
/// Not an `async fn`: a runtime may end before it polls the task even once.
pub(super) fn run(
    registry: Arc<Registry>,
    core: Weak<Core>,
) -> impl Future<Output = ()> + Send + 'static {
    let abandon_on_drop = AbandonOnDrop(Arc::clone(&registry), core.clone());
    let ticker = Ticker {
        registry,
        core,
        tasks: JoinSet::new(),
        announcer: None,
        heartbeat: Heartbeat::default(),
        reconnects: None,
        woken: false,
    };
    async move {
        let _abandon_on_drop = abandon_on_drop;
        ticker.run().await;
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

struct Ticker {
    registry: Arc<Registry>,
    core: Weak<Core>,
    /// The requests under way.
    tasks: JoinSet<()>,
    announcer: Option<Announcer>,
    heartbeat: Heartbeat,
    reconnects: Option<(Subscription, u64)>,
    /// A lock was held since the last tick, even if it is released by now: locks that are held for
    /// an instant each, in a row, must not wake the task each time.
    woken: bool,
}

impl Ticker {
    /// Runs until the client ends. Subscribes to reconnections first: the leases of a lane are
    /// checked after one, because the server may have lost its data.
    async fn run(mut self) {
        let reconnects = subscribe(&self.core, |_| Topic::Reconnected).await;
        self.reconnects = reconnects.map(|subscription| {
            let (seen, _) = subscription.unread();
            (subscription, seen)
        });
        while self.tick().await {}
    }

    /// Runs the duties once, then sleeps. Returns false when the client has ended.
    async fn tick(&mut self) -> bool {
        while self.tasks.try_join_next().is_some() {}
        let Some(core) = self.core.upgrade() else { return false };
        if self.registry.is_stopped() {
            return false;
        }
        let now = core.clock.now();
        // From here on a new due time wakes the task, even during this tick.
        self.registry.sleeps_until(Tick::NEVER);
        let next = watchdog::renew(&core, now, &mut self.tasks);
        core.fail_waiters_in_outage();
        let lingering = core.identities.sweep(now);
        let waiting = self.heartbeat.send(&core, now, &mut self.tasks);
        let holding = next.is_some() || self.woken;
        let announcing = Announcer::run(&mut self.announcer, &core, now, holding, &mut self.tasks);
        let until = match next {
            Some(next) => next.min(now + TICK),
            None if waiting || announcing || lingering => now + TICK,
            None => Tick::NEVER,
        };
        self.registry.sleeps_until(until);
        let sleep = core.clock.instant(until);
        drop(core);
        self.sleep(sleep).await;
        true
    }

    async fn sleep(&mut self, until: Option<tokio::time::Instant>) {
        let nap = OptionFuture::from(until.map(tokio::time::sleep_until));
        let reconnects = self.reconnects.as_ref();
        let reconnected = reconnects.map(|(subscription, seen)| subscription.beyond(*seen));
        let reconnected = OptionFuture::from(reconnected);
        self.woken = false;
        tokio::select! {
            biased;
            // First: new holds may wake it all the time.
            Some(_) = reconnected => self.reconnected(),
            () = self.registry.woken() => self.woken = true,
            Some(()) = nap => {}
        }
    }

    /// Checks the leases of the lanes that have reconnected at once.
    fn reconnected(&mut self) {
        let (Some((subscription, seen)), Some(core)) = (&mut self.reconnects, self.core.upgrade())
        else {
            return;
        };
        let (seen_now, messages) = subscription.unread();
        let hints = seen_now - std::mem::replace(seen, seen_now);
        let lanes: Option<Vec<_>> = messages.iter().map(|lane| Lane::of_message(lane)).collect();
        // A wake-up without a message may concern every lane.
        let lanes = lanes.filter(|lanes| lanes.len() as u64 >= hints);
        match &lanes {
            Some(lanes) => core.answered(lanes.iter().copied()),
            None => core.all_answered(),
        }
        for lease in self.registry.all() {
            let is_of = |lanes: &Vec<_>| lanes.contains(&core.lane(&lease.resource.name));
            if lanes.as_ref().is_none_or(is_of) {
                lease.check_now();
            }
        }
    }
}
