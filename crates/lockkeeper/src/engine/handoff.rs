//! Handoff of a released lock to a waiter of this client, in one request.

use std::sync::Arc;
use std::time::Duration;

use super::lease::Lease;
use super::local_queue::{Front, Grant, Handoff, Served, Waiter};
use super::pending_acquire::PendingAcquire;
use super::retry::{Retried, retry_until};
use crate::OwnerId;
use crate::backend::{Acquire, Attempt, Fault, Release, Released};
use crate::error::Result;

/// Hands the lock off to a waiter of this client in one request. If that waiter has left when the
/// answer arrives, hands it off to the next one, or releases it.
pub(super) async fn hand_off(
    lease: &Arc<Lease>,
    mut front: Front,
    mut successor: Waiter,
) -> Result<()> {
    let core = &lease.core;
    let mut from = lease.owner;
    let mut outcome = None;
    loop {
        let tried = send_handoff(lease, from, &successor).await;
        let token = match tried.answer {
            Ok(Attempt::Granted { token }) => token,
            // Released, but not handed off: readers of the owner remain.
            Ok(Attempt::Busy { .. }) if !core.leaves_remains(&lease.resource.name) => {
                front.give(successor);
                return Ok(());
            }
            Ok(answer @ (Attempt::Busy { .. } | Attempt::Gone)) => {
                let Retried { sent, maybe_ran, .. } = tried;
                // Busy of several members: those that have moved it may be too few to have held it.
                let maybe_ran = maybe_ran || answer != Attempt::Gone;
                let answer = Ok(Released::Absent { holder: None });
                let released = lease.verdict(Retried { answer, sent, maybe_ran });
                front.give(successor);
                return outcome.unwrap_or(released);
            }
            Err(_) => {
                let released = give_up_handoff(lease, front, successor, from, tried).await;
                return outcome.unwrap_or(released);
            }
        };
        outcome = Some(Ok(()));
        let Waiter { served, handoff } = successor;
        let ends = tried.sent + Duration::from_millis(handoff.ttl);
        let pending = PendingAcquire::handed_off(core, &lease.resource, handoff.owner, ends);
        let grant = Grant { pending, front, token, sent: tried.sent };
        let refused = served.send(Box::new(Served::Granted(grant))).err().map(|served| *served);
        let Some(Served::Granted(returned)) = refused else { return Ok(()) };
        front = returned.front;
        match front.successor(core.clock.now()) {
            Some(next) => {
                from = returned.pending.owner;
                returned.pending.disarm();
                successor = next;
            }
            // Dropping the grant releases the lock, and passes the front on.
            None => return Ok(()),
        }
    }
}

/// Gives up a handoff: the waiters fail or try for themselves, and both holds that may be stored
/// are released.
async fn give_up_handoff(
    lease: &Arc<Lease>,
    front: Front,
    successor: Waiter,
    from: OwnerId,
    Retried { answer, sent, maybe_ran }: Retried<Attempt>,
) -> Result<()> {
    let core = &lease.core;
    let Err(fault) = answer else { return Ok(()) };
    if maybe_ran || fault.maybe_ran() {
        let Handoff { owner, ttl, .. } = successor.handoff;
        let ends = sent + Duration::from_millis(ttl);
        let mut pending = PendingAcquire::handed_off(core, &lease.resource, owner, ends);
        pending.late = Some(ends);
        drop(pending);
    }
    if fault.may_pass() {
        core.local_queues.fail(&lease.resource, &fault);
        let _ = successor.served.send(Box::new(Served::Failed(fault)));
        drop(front);
    } else {
        front.give(successor);
    }
    let request = Release { owner: from, ..lease.release_of(0) };
    let mut tried = lease.send_release(request, core.clock.now(), None).await;
    // The handoff may have been executed after all; the undo from above removes it.
    tried.maybe_ran |= maybe_ran;
    lease.verdict(tried)
}

/// Sends a handoff until it is answered, or until the waiters have waited for an answer for
/// `unreachable_after`.
async fn send_handoff(lease: &Lease, from: OwnerId, successor: &Waiter) -> Retried<Attempt> {
    let core = &lease.core;
    let now = core.clock.now();
    let ends = now + lease.longest(now).min(core.options.unreachable_after);
    let Handoff { owner, ttl, fenced } = successor.handoff;
    let send = || {
        let acquire = Acquire::new(lease.resource.clone(), owner, ttl);
        core.backend.acquire(Acquire { from: Some(from), fenced, ..acquire })
    };
    let failed = |fault: &Fault| lease.note_release(fault);
    let stop = || core.is_abandoned();
    retry_until(core, &lease.resource.name, (now, ends), None, send, failed, stop).await
}
