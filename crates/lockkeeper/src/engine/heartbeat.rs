//! Heartbeats of waiters in a queue that the store keeps: a waiter without one for three seconds is
//! skipped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{Core, Tick, lock};
use crate::backend::{Renew, Renewed, Resource};
use crate::{LockName, OwnerId};

/// The interval of heartbeats.
const INTERVAL: Duration = Duration::from_millis(800);

/// How many waiters of one group share one request.
const BATCH: usize = 128;

type Key = (LockName, u64);

/// The positions of a client in queues of the store. Sorted, so that neighbours share one request.
#[derive(Debug, Default)]
pub(super) struct Positions {
    all: Mutex<BTreeMap<Key, Waiter>>,
    next: AtomicU64,
}

#[derive(Clone, Debug)]
struct Waiter {
    resource: Resource,
    owner: OwnerId,
    due: Arc<Notify>,
}

/// A position in a queue of the store. Heartbeats end when it is dropped.
#[derive(Debug)]
pub(super) struct QueuePosition {
    core: Arc<Core>,
    key: Key,
    due: Arc<Notify>,
}

impl QueuePosition {
    /// Starts heartbeats. The waiter's own request has just counted as one.
    pub(super) fn keep(core: &Arc<Core>, resource: &Resource, owner: OwnerId, now: Tick) -> Self {
        let positions = &core.positions;
        let key = (resource.name.clone(), positions.next.fetch_add(1, Ordering::Relaxed));
        let due = Arc::new(Notify::new());
        let waiter = Waiter { resource: resource.clone(), owner, due: Arc::clone(&due) };
        lock(&positions.all).insert(key.clone(), waiter);
        core.registry.wake_by(now + INTERVAL / 2);
        Self { core: Arc::clone(core), key, due }
    }

    /// Resolves when the store reports that a try is worthwhile.
    pub(super) async fn due(&self) {
        self.due.notified().await;
    }
}

impl Drop for QueuePosition {
    fn drop(&mut self) {
        lock(&self.core.positions.all).remove(&self.key);
    }
}

/// Sends the heartbeats of one client.
#[derive(Default)]
pub(super) struct Heartbeat {
    last: Option<Tick>,
}

impl Heartbeat {
    /// Sends them when due. Returns whether there are waiters.
    pub(super) fn send(&mut self, core: &Arc<Core>, now: Tick, tasks: &mut JoinSet<()>) -> bool {
        if lock(&core.positions.all).is_empty() {
            self.last = None;
            return false;
        }
        if now.since(*self.last.get_or_insert(now)) < INTERVAL {
            return true;
        }
        self.last = Some(now);
        let waiters: Vec<_> = lock(&core.positions.all).values().cloned().collect();
        for groups in core.by_lane(waiters, |waiter| &waiter.resource) {
            let core = Arc::clone(core);
            tasks.spawn(async move {
                let batches = groups.iter().flat_map(|group| group.chunks(BATCH));
                join_all(batches.map(|batch| send_batch(&core, batch))).await;
            });
        }
        true
    }
}

async fn send_batch(core: &Core, waiters: &[Waiter]) {
    let requests = waiters.iter().map(|waiter| Renew {
        waiting: true,
        ..Renew::new(waiter.resource.clone(), waiter.owner, None)
    });
    let sent = core.clock.now();
    let answers = core.backend.renew(requests.collect()).await;
    if let (Some(waiter), Some(first)) = (waiters.first(), answers.first()) {
        core.note(&waiter.resource.name, sent, first);
    }
    for (waiter, answer) in waiters.iter().zip(answers) {
        if answer == Ok(Renewed::Due) {
            waiter.due.notify_one();
        }
    }
}
