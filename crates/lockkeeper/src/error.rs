//! Errors, by what the caller can do about them.

use std::fmt;
use std::time::Duration;

use crate::LockName;
use crate::backend::{Detail, Fault, Holder, Kind, Source};

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
    /// Renewals were not acknowledged by enough replicas in time, by this process's own clock.
    Unacknowledged,
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
        f.write_str(match self {
            LostReason::Expired => "its lease expired",
            LostReason::Unreachable => "the store did not answer its renewals in time",
            LostReason::Unacknowledged => "too few replicas acknowledged its renewals in time",
            LostReason::Deleted => "the store no longer has it",
            LostReason::Taken => "another owner holds it",
            LostReason::Revoked(why) if why.is_empty() => "it was force-unlocked",
            LostReason::Revoked(why) => return write!(f, "it was force-unlocked: {why}"),
            LostReason::Closed => "the client was closed",
            LostReason::Released => "it was released",
        })
    }
}

/// An error of lockkeeper. Each variant calls for a different reaction.
///
/// A busy lock is not an error: `try_lock` returns `Ok(None)`.
///
/// The message is complete: [`source`](std::error::Error::source), the error of the system or the store
/// where there is one, is for programs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The lock was no longer held by this guard; nothing was changed in the store.
    NotHeld {
        /// The lock.
        lock: LockName,
        /// What was being done.
        phase: Phase,
        /// The current holder, if the store reported it.
        holder: Option<Box<Holder>>,
    },

    /// The lock was lost while it was held. Loss is final: acquire it again.
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
    Unconfirmed {
        /// The lock.
        lock: LockName,
        /// What was being done.
        phase: Phase,
        /// What is known of the outcome.
        detail: String,
        /// The error of the system or the store behind it.
        source: Option<Source>,
    },

    /// There is no connection to the store, or it did not answer. Nothing is held because of this request.
    Unreachable {
        /// The lock, or nothing when it was the connection itself.
        lock: Option<LockName>,
        /// What was being done.
        phase: Phase,
        /// What the store or the network said.
        detail: String,
        /// For how long the store has not answered.
        silent_for: Option<Duration>,
        /// The error of the system or the store behind it.
        source: Option<Source>,
    },

    /// The store answered that it does not serve for now: loading, read-only, out of memory, busy.
    /// Nothing is held because of this request.
    Refused {
        /// The lock, or nothing when it was the connection itself.
        lock: Option<LockName>,
        /// What was being done.
        phase: Phase,
        /// What the store said.
        detail: String,
        /// For how long the store has not served.
        refused_for: Option<Duration>,
        /// The error of the system or the store behind it.
        source: Option<Source>,
    },

    /// The store made the change, but fewer replicas than asked for have acknowledged it: a failover
    /// may lose it. Nothing is held because of this request: an acquire is undone, and a lease keeps
    /// its old deadline. The change of a counter stays.
    Unacknowledged {
        /// The lock, where there is one.
        lock: Option<LockName>,
        /// What was being done.
        phase: Phase,
        /// How many replicas acknowledged the change, and how many were asked for.
        detail: String,
        /// The error of the system or the store behind it.
        source: Option<Source>,
    },

    /// The name is in use for something else: use another name, or the type that fits.
    WrongKind {
        /// The lock.
        lock: LockName,
        /// The requested kind.
        kind: Kind,
        /// The kind or data found.
        found: String,
    },

    /// The store refuses this user: wrong password, or no permission for a command, key or channel.
    Denied {
        /// The lock, or nothing when it was the connection itself.
        lock: Option<LockName>,
        /// What was being done.
        phase: Phase,
        /// What the store said.
        detail: String,
        /// The error of the system or the store behind it.
        source: Option<Source>,
    },

    /// The request is invalid, or invalid in this state (a semaphore that was not set up); nothing
    /// was changed.
    Invalid {
        /// The lock, where there is one.
        lock: Option<LockName>,
        /// What is wrong, and what would be right.
        detail: String,
    },

    /// The client was shut down, its runtime ended, or its process was forked.
    Closed {
        /// The lock, where there is one.
        lock: Option<LockName>,
    },

    /// The store answered with an error that fits no other variant.
    Server {
        /// The lock, where there is one.
        lock: Option<LockName>,
        /// What was being done.
        phase: Phase,
        /// What the store said.
        detail: String,
        /// The error of the system or the store behind it.
        source: Option<Source>,
    },
}

/// For how long the store has not served, if that is long enough to say something.
fn write_span(f: &mut fmt::Formatter<'_>, span: Option<Duration>) -> fmt::Result {
    let long = span.filter(|span| *span >= Duration::from_secs(1));
    long.iter().try_for_each(|span| write!(f, " (not served for {span:.1?})"))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(lock) = self.lock() {
            write!(f, "lock {lock:?}: ")?;
        }
        match self {
            Error::NotHeld { phase, holder, .. } => {
                write!(f, "not held when {phase}")?;
                holder.iter().try_for_each(|holder| write!(f, " (now held by {holder})"))
            }
            Error::Lost { phase, reason, .. } => write!(f, "lost before {phase}: {reason}"),
            Error::Unconfirmed { phase, detail, .. } => {
                write!(f, "{phase} was not confirmed: {detail}")
            }
            Error::Unreachable { phase, detail, silent_for: span, .. } => {
                write!(f, "store unreachable when {phase}: {detail}")?;
                write_span(f, *span)
            }
            Error::Refused { phase, detail, refused_for: span, .. } => {
                write!(f, "the store refused when {phase}: {detail}")?;
                write_span(f, *span)
            }
            Error::Unacknowledged { phase, detail, .. } => write!(
                f,
                "{phase} was not acknowledged: the change is on fewer replicas than asked for \
                 ({detail}); restore the replicas or ask for fewer"
            ),
            Error::WrongKind { kind, found, .. } => {
                write!(f, "the name is in use as {found}, not as a {kind}")
            }
            Error::Denied { phase, detail, .. } => {
                write!(f, "permission denied when {phase}: {detail}")
            }
            Error::Invalid { detail, .. } => write!(f, "invalid request: {detail}"),
            Error::Closed { .. } => f.write_str("the client is closed"),
            Error::Server { phase, detail, .. } => {
                write!(f, "the store answered with an error when {phase}: {detail}")
            }
        }
    }
}

// Written by hand: derived, the source would be the `Arc`, of which no program knows the type.
impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let source = match self {
            Error::Unconfirmed { source, .. }
            | Error::Unreachable { source, .. }
            | Error::Refused { source, .. }
            | Error::Unacknowledged { source, .. }
            | Error::Denied { source, .. }
            | Error::Server { source, .. } => source.as_deref(),
            _ => None,
        };
        source.map(|source| source as _)
    }
}

impl Error {
    fn lock(&self) -> Option<&LockName> {
        match self {
            Error::NotHeld { lock, .. }
            | Error::Lost { lock, .. }
            | Error::Unconfirmed { lock, .. }
            | Error::WrongKind { lock, .. } => Some(lock),
            Error::Unreachable { lock, .. }
            | Error::Refused { lock, .. }
            | Error::Unacknowledged { lock, .. }
            | Error::Denied { lock, .. }
            | Error::Invalid { lock, .. }
            | Error::Closed { lock }
            | Error::Server { lock, .. } => lock.as_ref(),
        }
    }

    pub(crate) fn invalid(lock: Option<&LockName>, detail: impl Into<String>) -> Self {
        Error::Invalid { lock: lock.cloned(), detail: detail.into() }
    }

    pub(crate) fn unconfirmed(lock: &LockName, phase: Phase, detail: impl Into<Detail>) -> Self {
        let (detail, source) = detail.into().into_parts();
        Error::Unconfirmed { lock: lock.clone(), phase, detail, source }
    }

    /// Whether it may be temporary.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(
            self,
            Error::Unreachable { .. } | Error::Refused { .. } | Error::Unacknowledged { .. }
        )
    }

    /// Converts a fault of the store for the caller of `phase` on `lock`.
    pub(crate) fn from_fault(
        fault: Fault,
        lock: Option<(&LockName, Kind)>,
        phase: Phase,
        silent_for: Option<Duration>,
    ) -> Self {
        let (lock, kind) = lock.map(|(name, kind)| (name.clone(), kind)).unzip();
        let (detail, source) = fault.detail().cloned().map(Detail::into_parts).unwrap_or_default();
        match fault {
            Fault::Unreachable { .. } => {
                Error::Unreachable { lock, phase, detail, silent_for, source }
            }
            Fault::Refused { .. } => {
                Error::Refused { lock, phase, detail, refused_for: silent_for, source }
            }
            Fault::Unacknowledged { .. } => Error::Unacknowledged { lock, phase, detail, source },
            Fault::Denied { .. } => Error::Denied { lock, phase, detail, source },
            Fault::WrongKind { found } => match lock.zip(kind) {
                Some((lock, kind)) => Error::WrongKind { lock, kind, found },
                None => Error::Server { lock: None, phase, detail: found, source },
            },
            Fault::Invalid { .. } => Error::Invalid { lock, detail },
            Fault::Server { .. } => Error::Server { lock, phase, detail, source },
            Fault::Closed => Error::Closed { lock },
        }
    }
}
