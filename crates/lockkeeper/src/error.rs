//! What can go wrong, by what the caller can do about it.

use std::fmt;
use std::time::Duration;

use crate::LockName;
use crate::backend::{Fault, Kind};
use crate::name::Brief;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was being done when an error arose.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Phase {
    /// Opening the store.
    Connect,
    /// Taking a lock, or waiting for it.
    Acquire,
    /// Taking a lock once more for the owner that holds it.
    Reenter,
    /// Changing the lease of a lock that is held.
    Extend,
    /// Giving a lock back.
    Release,
    /// Asking who holds a lock and for how long.
    Inspect,
    /// Taking a lock away from whoever holds it.
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

/// Why a lock that was held is held no longer.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum LostReason {
    /// The fixed lease ran out, by this process's own clock.
    Expired,
    /// Renewals were not answered in time, by this process's own clock.
    Unreachable,
    /// The store no longer knows the lock: deleted, evicted, or lost with the server's data.
    Deleted,
    /// The store says that someone else has it.
    Taken,
    /// It was force-unlocked, with the reason that was given.
    Revoked(String),
    /// The client was shut down, the runtime it lived on ended, or this is a forked child.
    Closed,
    /// It was given back: by its guard, or the last of its guards.
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

/// An error of lockkeeper. Each variant is something else for the caller to do.
///
/// A busy lock is not an error: `try_lock` answers `Ok(None)`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock was not held by this guard any more; nothing was changed in the store.
    #[error("lock {lock:?}: not held when {phase}{}", held_by(holder))]
    NotHeld {
        /// The lock.
        lock: LockName,
        /// What was being done.
        phase: Phase,
        /// Who holds it now, where the store could tell.
        holder: Option<String>,
    },

    /// The lock was lost while it was held. Loss is final: acquire it anew.
    #[error("lock {lock:?}: lost before {phase}: {reason}")]
    Lost {
        /// The lock.
        lock: LockName,
        /// What was being done.
        phase: Phase,
        /// Why it was lost.
        reason: LostReason,
    },

    /// The request was sent and its answer never came, so that it is not known whether it took
    /// effect. A release goes on in the background; the lock is free when its lease ends at the
    /// latest.
    #[error("lock {lock:?}: {phase} was not confirmed: {detail}")]
    Unconfirmed {
        /// The lock.
        lock: LockName,
        /// What was being done.
        phase: Phase,
        /// What is known of it.
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

    /// The store answered that it does not serve for the time being: loading, read-only, out of memory, busy.
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
        /// What was asked for.
        kind: Kind,
        /// What is there.
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

    /// The request makes no sense, or not now (a semaphore that was not set up); nothing was changed.
    #[error("{}invalid request: {detail}", of(lock))]
    Invalid {
        /// The lock, where there is one.
        lock: Option<LockName>,
        /// What is wrong with it, and what would be right.
        detail: String,
    },

    /// The client was shut down, its runtime ended, or its process was forked.
    #[error("{}the client is closed", of(lock))]
    Closed {
        /// The lock, where there is one.
        lock: Option<LockName>,
    },

    /// The store answered with an error that lockkeeper has no better word for.
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

    /// Whether it may pass by itself.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::Refused { .. })
    }

    /// What a fault of the store means for the caller who asked for `phase` on `lock`.
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
