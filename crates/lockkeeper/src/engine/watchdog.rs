//! The watchdog: renews leases, checks fixed leases, and signals every loss.
//!
//! Each request is about one lane, and each lane has its own limit of requests under way: a lane
//! that does not answer delays no renewal of another.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::lease::{Lease, Todo};
use super::registry::TICK;
use super::{Core, Tick};
use crate::backend::{Fault, Renew};

/// How many holds one request renews: it occupies the store for a fraction of a millisecond.
const BATCH: usize = 128;

/// How many permits one request renews; one hold may have thousands.
const PERMITS: u32 = 1024;

/// How many such requests of one tick are under way at once in one lane, so that other requests are
/// served in between.
const BATCHES: usize = 8;

/// Checks the leases that are due, and renews them. Returns when to check again; `None` when
/// nothing is held.
pub(super) fn renew(core: &Arc<Core>, now: Tick, tasks: &mut JoinSet<()>) -> Option<Tick> {
    let mut due = Vec::new();
    let mut next = core.registry.due(now, &mut due)?;
    let mut asked = Vec::new();
    for lease in due {
        match lease.check(now, now + TICK) {
            Todo::Ask(renew, deadline) => {
                next = next.min(deadline);
                asked.push((lease, renew));
            }
            Todo::Later(due) => next = next.min(due),
            Todo::Nothing => {}
        }
    }
    if !asked.is_empty() {
        tracing::debug!(count = asked.len(), "renewing");
    }
    for of_lane in core.by_lane(asked, |(lease, _)| &lease.resource.name) {
        send(core, of_lane, tasks);
    }
    Some(next)
}

/// Sends the renewals of one lane.
fn send(core: &Arc<Core>, asked: Vec<(Arc<Lease>, Renew)>, tasks: &mut JoinSet<()>) {
    let slots = Arc::new(Semaphore::new(BATCHES));
    let mut batch = Vec::new();
    let mut permits = 0;
    for (lease, renew) in asked {
        permits += renew.count;
        batch.push((lease, renew));
        if batch.len() == BATCH || permits >= PERMITS {
            permits = 0;
            let batch = std::mem::take(&mut batch);
            tasks.spawn(ask(Arc::clone(core), Arc::clone(&slots), batch));
        }
    }
    if !batch.is_empty() {
        tasks.spawn(ask(Arc::clone(core), slots, batch));
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
        core.note(&batch[0].0.resource.name, sent, first);
    }
    let mut answers = answers.into_iter();
    for (lease, renew) in batch {
        lease.answered(renew.ttl, answers.next().unwrap_or(Err(Fault::Closed)), sent);
    }
}
