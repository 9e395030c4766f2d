//! The watchdog: renews leases, checks fixed leases, and signals every loss.
//!
//! Each request is about one kind in one group of a lane, and each lane has its own limit of holds under way: a lane
//! that does not answer delays no renewal of another. A slot of a cluster that is being moved to a node that hangs
//! delays the other slots of its lane by their [`patience`](Renew::patience) at most.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::lease::{Lease, Todo};
use super::registry::TICK;
use super::{Core, Tick};
use crate::backend::{Fault, Renew, Renewed};

/// How many holds one request renews: it occupies the store for a fraction of a millisecond.
const BATCH: usize = 128;

/// How many permits one request renews; one hold may have thousands.
const PERMITS: u32 = 1024;

/// How many holds or permits of one lane are renewed at once, so that other requests are served in between.
const AT_ONCE: usize = 8 * BATCH;

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
    for groups in core.by_lane(asked, |(lease, _)| &lease.resource) {
        tasks.spawn(send(Arc::clone(core), groups));
    }
    Some(next)
}

/// A lease, and the request about it.
type Asked = (Arc<Lease>, Renew);

/// Sends the renewals of one lane.
async fn send(core: Arc<Core>, groups: Vec<Vec<Asked>>) {
    let permits = Semaphore::new(AT_ONCE);
    let batches = groups.into_iter().flat_map(batches);
    join_all(batches.map(|batch| ask(&core, &permits, batch))).await;
}

fn batches(group: Vec<Asked>) -> Vec<Vec<Asked>> {
    let (mut batches, mut last, mut permits) = (Vec::new(), Vec::new(), 0);
    for (lease, renew) in group {
        permits += renew.count;
        last.push((lease, renew));
        if last.len() == BATCH || permits >= PERMITS {
            batches.push(std::mem::take(&mut last));
            permits = 0;
        }
    }
    batches.push(last);
    batches
}

async fn ask(core: &Core, permits: &Semaphore, batch: Vec<Asked>) {
    let size: u32 = batch.iter().map(|(_, renew)| renew.count).sum();
    let permits = permits.acquire_many(size.clamp(1, AT_ONCE as u32));
    let patience = Renew::patience(batch.iter().map(|(_, renew)| renew));
    let _permits = tokio::time::timeout(patience, permits).await;
    // Leases that were released while this waited must not be renewed.
    let sent = core.clock.now();
    let (batch, ended): (Vec<_>, Vec<_>) =
        batch.into_iter().partition(|(lease, _)| lease.is_held());
    ended
        .into_iter()
        .for_each(|(lease, renew)| lease.answered(renew.ttl, Err(Fault::Closed), sent));
    if batch.is_empty() {
        return;
    }
    let requests: Vec<_> = batch.iter().map(|(_, renew)| renew.clone()).collect();
    let answers = core.backend.renew(requests).await;
    if let Some(first) = answers.first() {
        core.note(&batch[0].0.resource.name, sent, first);
    }
    let is_gone = |answer: &_| matches!(answer, Ok(Renewed::Gone | Renewed::Taken));
    let mut answers = answers.into_iter();
    for (lease, renew) in batch {
        let answer = answers.next().unwrap_or(Err(Fault::Closed));
        let looks = is_gone(&answer) && lease.may_have_missed_notice(sent);
        match Arc::clone(&core.lookups).try_acquire_owned() {
            Ok(permit) if looks => {
                lease.vanish();
                core.reaper.adopt(Box::pin(async move {
                    lease.look_for_record().await;
                    lease.answered(renew.ttl, answer, sent);
                    drop(permit);
                }));
            }
            _ => lease.answered(renew.ttl, answer, sent),
        }
    }
}
