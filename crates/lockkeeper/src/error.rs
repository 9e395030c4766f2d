//! Errors, by what the caller can do about them.

use std::fmt;
use std::time::Duration;

use crate::LockName;
use crate::backend::{Fault, Kind};
use crate::name::Brief;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The operation during which an error arose.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Phase {
    /// Opening the store.
    Connect,
    /// Acquiring a lock, or waiting for it.
    Acquire,
    /// Re-entering a lock for the owner that holds it.
    Reenter,
    /// Changing the lease of a lock that is held.
    Extend,
    /// Releasing a lock.
    Release,
    /// Inspecting a lock.
    Inspect,
    /// Force-releasing a lock.
    ForceUnlock,
    /// Changing a counter: permits, or the count of a latch.
    Change,
    /// Waiting for a latch.
    Wait,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Connect => "connecting",
            Phase::Acquire => "acquiring",
            Phase::Reenter => "re-entering",
            Phase::Extend => "extending",
            Phase::Release => "releasing",
            Phase::Inspect => "inspecting",
            Phase::ForceUnlock => "force-unlocking",
            Phase::Change => "changing the count",
            Phase::Wait => "waiting",
        })
    }
}

/// Why a hold is no longer valid.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum LostReason {
    /// The fixed lease expired, by this process's own clock.
    Expired,
    /// Renewals were not answered in time, by this process's own clock.
    Unreachable,
    /// The store no longer knows the lock: deleted, evicted, or lost with the server's data.
    Deleted,
    /// Another owner holds the lock, as the store says.
    Taken,
    /// The lock was force-released, with this reason.
    Revoked(String),
    /// The client was shut down, its runtime ended, or this is a forked child.
    Closed,
    /// The lock was released: by its guard, or the last of its guards.
    Released,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LostReason::Expired => f.write_str("its lease ran out"),
            LostReason::Unreachable => f.write_str("the store did not answer its renewals in time"),
            LostReason::Deleted => f.write_str("the store no longer has it"),
            LostReason::Taken => f.write_str("someone else has it now"),
            LostReason::Revoked(why) if why.is_empty() => f.write_str("it was force-unlocked"),
            LostReason::Revoked(why) => write!(f, "it was force-unlocked: {why}"),
            LostReason::Closed => f.write_str("the client was closed"),
            LostReason::Released => f.write_str("it was released"),
        }
    }
}

/// An error of lockkeeper. Each variant calls for a different reaction.
///
/// A busy lock is not an error: `try_lock` returns `Ok(None)`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock was no longer held by this guard; nothing was changed in the store.
    #[error("lock {lock:?}: not held when {phase}{}", held_by(holder))]
    NotHeld {
        /// The lock.
        lock: LockName,
        /// What was being done.
        phase: Phase,
        /// The current holder, if the store reported it.
        holder: Option<String>,
    },

    /// The lock was lost while it was held. Loss is final: acquire it again.
    #[error("lock {lock:?}: lost before {phase}: {reason}")]
    Lost {
        /// The lock.
        lock: LockName,
        /// What was being done.
        phase: Phase,
        /// Why it was lost.
        reason: LostReason,
    },

    /// The outcome is unknown: the request was sent, and no answer came. A release continues in the
    /// background; the lock is free when its lease expires at the latest.
    #[error("lock {lock:?}: {phase} was not confirmed: {detail}")]
    Unconfirmed {
        /// The lock.
        lock: LockName,
        /// What was being done.
        phase: Phase,
        /// What is known of the outcome.
        detail: String,
    },

    /// There is no connection to the store, or it did not answer. Nothing is held because of this request.
    #[error("{}store unreachable when {phase}: {detail}{}", of(lock), for_so_long(*silent_for))]
    Unreachable {
        /// The lock, or nothing when it was the connection itself.
        lock: Option<LockName>,
        /// What was being done.
        phase: Phase,
        /// What the store or the network said.
        detail: String,
        /// For how long the store has not answered.
        silent_for: Option<Duration>,
    },

    /// The store answered that it does not serve for now: loading, read-only, out of memory, busy.
    /// Nothing is held because of this request.
    #[error("{}the store refused when {phase}: {detail}{}", of(lock), for_so_long(*refused_for))]
    Refused {
        /// The lock, or nothing when it was the connection itself.
        lock: Option<LockName>,
        /// What was being done.
        phase: Phase,
        /// What the store said.
        detail: String,
        /// For how long the store has not served.
        refused_for: Option<Duration>,
    },

    /// The name is in use for something else: use another name, or the type that fits.
    #[error("lock {lock:?}: the name is in use as {found}, not as a {kind}")]
    WrongKind {
        /// The lock.
        lock: LockName,
        /// The requested kind.
        kind: Kind,
        /// The kind or data found.
        found: String,
    },

    /// The store refuses this user: wrong password, or no permission for a command, key or channel.
    #[error("{}permission denied when {phase}: {detail}", of(lock))]
    Denied {
        /// The lock, or nothing when it was the connection itself.
        lock: Option<LockName>,
        /// What was being done.
        phase: Phase,
        /// What the store said.
        detail: String,
    },

    /// The request is invalid, or invalid in this state (a semaphore that was not set up); nothing
    /// was changed.
    #[error("{}invalid request: {detail}", of(lock))]
    Invalid {
        /// The lock, where there is one.
        lock: Option<LockName>,
        /// What is wrong, and what would be right.
        detail: String,
    },

    /// The client was shut down, its runtime ended, or its process was forked.
    #[error("{}the client is closed", of(lock))]
    Closed {
        /// The lock, where there is one.
        lock: Option<LockName>,
    },

    /// The store answered with an error that fits no other variant.
    #[error("{}the store answered with an error when {phase}: {detail}", of(lock))]
    Server {
        /// The lock, where there is one.
        lock: Option<LockName>,
        /// What was being done.
        phase: Phase,
        /// What the store said.
        detail: String,
    },
}

fn of(lock: &Option<LockName>) -> String {
    lock.as_ref().map(|name| format!("lock {name:?}: ")).unwrap_or_default()
}

fn held_by(holder: &Option<String>) -> String {
    holder.as_ref().map(|id| format!(" (now held by {})", Brief(id.as_bytes()))).unwrap_or_default()
}

fn for_so_long(silent: Option<Duration>) -> String {
    silent.map(|d| format!(" (not served for {d:.1?})")).unwrap_or_default()
}

impl Error {
    pub(crate) fn invalid(lock: Option<&LockName>, detail: impl Into<String>) -> Self {
        Error::Invalid { lock: lock.cloned(), detail: detail.into() }
    }

    /// Whether it may be temporary.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::Refused { .. })
    }

    /// Converts a fault of the store for the caller of `phase` on `lock`.
    pub(crate) fn from_fault(
        fault: Fault,
        lock: Option<(&LockName, Kind)>,
        phase: Phase,
        silent_for: Option<Duration>,
    ) -> Self {
        let name = lock.map(|(name, _)| name.clone());
        match fault {
            Fault::Unreachable { detail, .. } => {
                Error::Unreachable { lock: name, phase, detail, silent_for }
            }
            Fault::Refused { detail } => {
                Error::Refused { lock: name, phase, detail, refused_for: silent_for }
            }
            Fault::Denied { detail } => Error::Denied { lock: name, phase, detail },
            Fault::WrongKind { found } => match lock {
                Some((name, kind)) => Error::WrongKind { lock: name.clone(), kind, found },
                None => Error::Server { lock: None, phase, detail: found },
            },
            Fault::Invalid { detail } => Error::Invalid { lock: name, detail },
            Fault::Server { detail } => Error::Server { lock: name, phase, detail },
            Fault::Closed => Error::Closed { lock: name },
        }
    }
}
