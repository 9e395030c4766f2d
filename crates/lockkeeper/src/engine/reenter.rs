//! Requests about a lease that is held: one more hold, or a new term for one of its holds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::acquire::Acquired;
use super::lease::Lease;
use super::release::{Turn, release_later};
use super::retry::retry_until;
use super::terms::{HoldId, TermSpec};
use super::{Tick, no_answer, until};
use crate::backend::{Acquire, Attempt, Fault, Fenced, Kind, Renewed};
use crate::error::{LostReason, Phase, Result};

/// Adds a hold to a lease, for as long as the caller waits, and until the wait limit. Runs to completion:
/// if the caller drops the future, the new hold is released again.
pub(crate) async fn reenter(
    lease: Arc<Lease>,
    term: TermSpec,
    fenced: Option<Fenced>,
    (wait, limit): (Duration, Tick),
) -> Result<Acquired> {
    let (core, resource) = (Arc::clone(&lease.core), lease.resource.clone());
    lease.fenced.fetch_or(fenced.is_some(), Ordering::Relaxed);
    let now = core.clock.now();
    let give_up = limit.min(now + core.options.unreachable_after.min(wait));
    let work = async move {
        let hold = add_hold(&lease, term, fenced, give_up).await?;
        Ok(Undo(Some((lease, hold))))
    };
    let answer_by = core.answer_by(&resource.name, limit, now);
    match until(&core.clock, answer_by, core.run_to_completion(work)).await {
        Some(outcome) => outcome.map(Undo::keep),
        None => Err(core.error(no_answer(), &resource, Phase::Reenter)),
    }
}

/// A hold that has no guard yet. Released when dropped.
struct Undo(Option<Acquired>);

impl Undo {
    fn keep(mut self) -> Acquired {
        self.0.take().expect("taken once, here")
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some((lease, hold)) = self.0.take() {
            release_later(lease, hold);
        }
    }
}

/// Asks the store for one more hold. Retries on a store that does not answer, until `give_up`.
async fn add_hold(
    lease: &Arc<Lease>,
    term: TermSpec,
    fenced: Option<Fenced>,
    give_up: Tick,
) -> Result<HoldId> {
    // Before the turn, which never comes in a forked child.
    lease.ensure_held(Phase::Reenter)?;
    let _turn = Turn::take(lease).await;
    lease.ensure_held(Phase::Reenter)?;
    let core = &lease.core;
    let send = || {
        core.backend.acquire(Acquire {
            count: lease.hold_count() + 1,
            // A token belongs to the owner, not to the hold: no second one is issued.
            fenced: fenced.filter(|_| lease.token().is_none() && lease.resource.kind != Kind::Read),
            ..Acquire::new(lease.resource.clone(), lease.owner, term.ttl)
        })
    };
    let (name, times) = (&lease.resource.name, (core.clock.now(), give_up));
    let (failed, stop) = (|fault: &Fault| lease.note(fault), || !lease.is_held());
    let tried = retry_until(core, name, times, None, send, failed, stop).await;
    match tried.answer {
        Ok(Attempt::Granted { token }) => lease.add_hold(term, token, tried.sent),
        Ok(_) => {
            lease.lose(LostReason::Deleted);
            let reason = lease.lost_reason().unwrap_or(LostReason::Deleted);
            Err(lease.lost_error(reason, Phase::Reenter))
        }
        // The store may count one hold too many. That is harmless: a release states how many
        // remain.
        Err(fault) => {
            lease.ensure_held(Phase::Reenter)?;
            Err(core.error(fault, &lease.resource, Phase::Reenter))
        }
    }
}

/// Gives one hold a new term, starting now.
pub(crate) async fn extend(lease: Arc<Lease>, hold: HoldId, term: TermSpec) -> Result<()> {
    lease.ensure_held(Phase::Extend)?;
    let _turn = Turn::take(&lease).await;
    lease.ensure_held(Phase::Extend)?;
    let core = &lease.core;
    let sent = core.clock.now();
    let answer = core.backend.renew(vec![lease.renewal(Some(term.ttl))]).await.pop();
    let answer = answer.unwrap_or(Err(Fault::Closed));
    core.note(&lease.resource.name, sent, &answer);
    match answer {
        Ok(Renewed::Held(_)) => return lease.set_term(hold, term, sent),
        Ok(Renewed::Taken) => lease.lose(LostReason::Taken),
        Ok(_) => lease.lose(LostReason::Deleted),
        Err(fault) => {
            lease.note(&fault);
            return Err(core.error(fault, &lease.resource, Phase::Extend));
        }
    }
    lease.ensure_held(Phase::Extend)
}
