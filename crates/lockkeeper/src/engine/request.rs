//! The parameters of one acquire: the lock, the term, the owner, and how to wait.

use std::time::Duration;

use super::{Core, Tick, lease_millis};
use crate::backend::{Fenced, Kind, Resource, Topic};
use crate::config::{Backoff, LeaseTime, MIN_WATCHDOG};
use crate::error::{Error, Result};
use crate::{Owner, OwnerId};

/// How long a caller is ready to wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wait {
    /// One attempt.
    Never,
    /// Until then.
    Until(Tick),
    /// As long as it takes.
    Forever,
}

impl Wait {
    /// For at most so long; not at all if that is nothing.
    pub(crate) fn within(core: &Core, span: Option<Duration>) -> Self {
        match span {
            None | Some(Duration::ZERO) => Wait::Never,
            Some(span) => Wait::Until(core.clock.now() + span),
        }
    }

    pub(super) fn limit(self) -> Tick {
        match self {
            Wait::Until(limit) => limit,
            Wait::Never | Wait::Forever => Tick::NEVER,
        }
    }
}

/// How long one guard asked to hold the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Term {
    /// Renewed by the watchdog, this many milliseconds at a time.
    Renewed(u64),
    /// Until a fixed end, which is what the store was told.
    Fixed(Tick),
}

/// What a request asks for: a term before its clock has started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TermSpec {
    pub(crate) ttl: u64,
    pub(crate) renewed: bool,
}

impl TermSpec {
    /// Without an end, and nothing to renew.
    pub(crate) const ENDLESS: Self = Self { ttl: u64::MAX, renewed: false };

    /// What the lease of a request comes to: one of the client's, if none was given.
    pub(crate) fn new(
        resource: &Resource,
        lease: Option<LeaseTime>,
        default: Duration,
    ) -> Result<Self> {
        let (span, renewed) = match lease.unwrap_or(LeaseTime::Renewed(default)) {
            LeaseTime::Fixed(span) => (span, false),
            LeaseTime::Renewed(span) => (span, true),
        };
        if renewed && span < MIN_WATCHDOG {
            let detail = format!("a renewed lease must be at least {MIN_WATCHDOG:?}, not {span:?}");
            return Err(Error::invalid(Some(&resource.name), detail));
        }
        Ok(Self { ttl: lease_millis(resource, span)?, renewed })
    }

    pub(crate) fn sent_at(self, sent: Tick) -> Term {
        if self.renewed {
            return Term::Renewed(self.ttl);
        }
        Term::Fixed(sent + Duration::from_millis(self.ttl))
    }
}

/// What is to be acquired, and how.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) resource: Resource,
    pub(crate) term: TermSpec,
    pub(crate) wait: Wait,
    pub(crate) owner: Option<Owner>,
    /// How many permits, of what is counted in permits.
    pub(crate) count: u32,
    pub(crate) fenced: Option<Fenced>,
    /// The owner may hold it more than once.
    pub(crate) reentrant: bool,
    /// Waits by trying again and again instead of being told.
    pub(crate) spin: Option<Backoff>,
    /// The hold of the same owner on the other side of a read/write lock.
    pub(crate) beside: Option<OwnerId>,
    /// How many permits a semaphore has that this may make.
    pub(crate) temporary: Option<u64>,
}

/// How those wait on each other who want the same of one client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Seating {
    /// One asks, waits or holds at a time.
    Exclusive,
    /// Anybody asks and holds, one waits.
    Waiting,
    /// Each for itself.
    Alone,
}

impl Request {
    pub(super) fn seating(&self) -> Seating {
        match self.resource.kind {
            // An upgrade is not to wait behind a writer that waits for the very reader.
            Kind::Write if self.beside.is_some() => Seating::Alone,
            Kind::Lock | Kind::Mutex | Kind::Write => Seating::Exclusive,
            Kind::Semaphore | Kind::Permits => Seating::Waiting,
            Kind::Fair | Kind::Read | Kind::Latch => Seating::Alone,
        }
    }

    /// What tells a waiter that it is worth another try.
    pub(super) fn topic(&self, owner: OwnerId) -> Topic {
        let turn = || Topic::Turn(self.resource.name.clone(), owner);
        Topic::told_of(&self.resource).unwrap_or_else(turn)
    }
}

/// One side of a read/write lock; anything else is what it is.
pub(super) fn other_side(resource: &Resource, side: Kind) -> Resource {
    let kind = match resource.kind {
        Kind::Read | Kind::Write => side,
        kind => kind,
    };
    Resource { kind, name: resource.name.clone() }
}
