//! What the watchdog does with one lease: check it, ask the store, process the answer.

use std::time::Duration;

use super::lease::{Lease, State, Status};
use super::release::owed;
use super::{Tick, lock};
use crate::backend::{Fault, Kind, Renew, Renewed, Ttl};
use crate::error::LostReason;

/// What the watchdog must do with a lease.
pub(crate) enum Todo {
    /// It has ended.
    Nothing,
    /// Check again at this time.
    Later(Tick),
    /// Ask the store, and check again at this time whatever the outcome.
    Ask(Renew, Tick),
}

impl Lease {
    /// Checks it: signals the loss when the deadline is near, and asks the store when that is due
    /// by `soon`, so that one request covers many leases.
    pub(crate) fn look(&self, now: Tick, soon: Tick) -> Todo {
        let mut state = lock(&self.state);
        if state.status != Status::Held {
            return Todo::Nothing;
        }
        if now + state.ahead() >= state.deadline {
            let reason = state.why_late();
            drop(state);
            self.lose(reason);
            return Todo::Nothing;
        }
        // Ahead of time by no more than a fraction of the lease.
        let soon = soon.min(now + state.period(&self.core) / 4);
        if state.asking || soon < state.ask_at {
            let due = state.due();
            return Todo::Later(due);
        }
        state.asking = true;
        let ttl = state.renewed_ttl().or_else(|| self.reasserted(&state, now));
        state.reschedule(&self.core);
        let renew = self.renewal(ttl);
        Todo::Ask(renew, state.due())
    }

    /// Whether the watchdog still has to ask about it.
    pub(crate) fn is_asked_about(&self) -> bool {
        lock(&self.state).status == Status::Held
    }

    /// Processes the store's answer to the request that [`look`](Lease::look) returned, sent at
    /// `sent`.
    pub(crate) fn answered(&self, ttl: Option<u64>, answer: Result<Renewed, Fault>, sent: Tick) {
        let now = self.core.clock.now();
        let mut state = lock(&self.state);
        state.asking = false;
        let revived = ttl.is_some() && matches!(answer, Ok(Renewed::Held(_)));
        let lost = match (&state.status, answer) {
            (Status::Released, _) => return,
            (Status::Lost(_), _) => {
                drop(state);
                // A late renewal has extended it at the store: no guard would release it.
                if revived {
                    self.undo();
                }
                return;
            }
            // The process was stopped past the deadline, and the answer had arrived meanwhile.
            (Status::Held, _) if now >= state.deadline => Some(state.why_late()),
            (Status::Held, Ok(Renewed::Held(found))) => {
                state.failures = 0;
                state.ask_after(&self.core, sent);
                self.confirmed(&mut state, ttl, found, (sent, now));
                None
            }
            (Status::Held, Ok(Renewed::Gone | Renewed::Waiting | Renewed::Due)) => {
                Some(LostReason::Deleted)
            }
            (Status::Held, Ok(Renewed::Taken) | Err(Fault::WrongKind { .. })) => {
                Some(LostReason::Taken)
            }
            (Status::Held, Err(_)) => {
                let pause = self.core.backoff(state.failures).min(state.period(&self.core) / 4);
                state.ask_at = now + pause;
                state.failures += 1;
                None
            }
        };
        let Some(reason) = lost else { return state.reschedule(&self.core) };
        drop(state);
        self.lose(reason);
        if revived {
            self.undo();
        }
    }

    /// Returns the rest of a fixed lease where its TTL at the store may have been cut, to set it
    /// again. A late partial release cuts it; or, for a reader, the renewal of a Java reader, which
    /// sets the lock to its own 30 s, and before 4.4.0 the leases of all its readers.
    fn reasserted(&self, state: &State, now: Tick) -> Option<u64> {
        let may_be_cut = self.resource.kind == Kind::Read || state.cut(&self.core).is_some();
        if may_be_cut { owed(state, now) } else { None }
    }

    fn confirmed(
        &self,
        state: &mut State,
        ttl: Option<u64>,
        found: Ttl,
        (sent, now): (Tick, Tick),
    ) {
        // The TTL that the store found at some time between `sent` and `now`. If even the later
        // time puts its end before the deadline, the clock of the store has jumped.
        if let Ttl::Millis(found) = found {
            let left = Duration::from_millis(found);
            // The same request restores what a Java reader has cut.
            let cut = self.resource.kind == Kind::Read && ttl.is_some();
            if now + left < state.deadline && !cut {
                tracing::warn!(lock = %self.resource.name, found_ms = found,
                    "the store's clock runs ahead: less of the lease was left than was due");
                state.deadline = (sent + left).minus(self.core.drift(found));
            }
        }
        // Only by the terms that remain: the release of another hold meanwhile has cut the TTL
        // after this renewal.
        let due = match state.cut(&self.core) {
            Some(_) => owed(state, sent),
            None => state.renewed_ttl(),
        };
        if let Some(ttl) = ttl.min(due) {
            tracing::trace!(lock = %self.resource.name, owner = %self.owner, "renewed");
            state.deadline = state.deadline.max(state.safe_until(&self.core, sent, ttl));
        }
    }

    /// Makes the watchdog ask the store at once, because the connection was lost for a while.
    pub(crate) fn hurry(&self) {
        let mut state = lock(&self.state);
        if state.deadline == Tick::NEVER {
            return;
        }
        state.ask_at = Tick::from_nanos(0);
        state.reschedule(&self.core);
    }
}
