//! The parameters of one acquire: the lock, the term, the owner, and how to wait.

use std::time::Duration;

use super::{Core, Tick, lease_millis};
use crate::backend::{Fenced, Kind, Resource, Topic};
use crate::config::{Backoff, LeaseTime, MIN_WATCHDOG};
use crate::error::{Error, Phase, Result};
use crate::{Owner, OwnerId};

/// How long a caller waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wait {
    /// One attempt.
    Never,
    /// Until this time.
    Until(Tick),
    /// Without a limit.
    Forever,
}

impl Wait {
    /// Waits for at most `span`; makes one attempt if it is zero or `None`.
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

/// The term that one guard asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Term {
    /// Renewed by the watchdog, this many milliseconds at a time.
    Renewed(u64),
    /// Until a fixed end, as sent to the store.
    Fixed(Tick),
}

/// The requested term, before its start is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TermSpec {
    pub(crate) ttl: u64,
    pub(crate) renewed: bool,
}

impl TermSpec {
    /// Without an end, and never renewed.
    pub(crate) const ENDLESS: Self = Self { ttl: u64::MAX, renewed: false };

    /// Returns the term of a request: a renewed lease of `default` if none was given.
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

/// The parameters of one acquire.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) resource: Resource,
    pub(crate) term: TermSpec,
    pub(crate) wait: Wait,
    pub(crate) owner: Option<Owner>,
    /// How many permits; 1 for locks.
    pub(crate) count: u32,
    pub(crate) fenced: Option<Fenced>,
    /// Whether the owner may hold it more than once.
    pub(crate) reentrant: bool,
    /// Waits by repeated tries instead of wake-ups.
    pub(crate) spin: Option<Backoff>,
    /// The hold of the same owner on the other side of a read/write lock.
    pub(crate) beside: Option<OwnerId>,
    /// The number of permits of a semaphore that this acquire may create.
    pub(crate) temporary: Option<u64>,
}

/// How tasks of one client that want the same lock use the local queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Queueing {
    /// One task asks, waits or holds at a time.
    Exclusive,
    /// Any task asks and holds; one waits at the store.
    Waiting,
    /// Each task acts for itself.
    None,
}

impl Request {
    pub(super) fn queueing(&self) -> Queueing {
        match self.resource.kind {
            // An upgrade must not queue behind a writer that waits for this very reader.
            Kind::Write if self.beside.is_some() => Queueing::None,
            Kind::Lock | Kind::Mutex | Kind::Write => Queueing::Exclusive,
            Kind::Semaphore | Kind::Permits => Queueing::Waiting,
            Kind::Fair | Kind::Read | Kind::Latch => Queueing::None,
        }
    }

    /// Whether the first attempt needs neither a timer nor an earlier identity.
    pub(super) fn is_simple(&self) -> bool {
        self.wait.limit() == Tick::NEVER && self.resource.kind != Kind::Fair
    }

    pub(super) fn phase(&self) -> Phase {
        match self.resource.kind {
            Kind::Latch => Phase::Wait,
            _ => Phase::Acquire,
        }
    }

    /// Returns the topic of the wake-ups of a waiter.
    pub(super) fn topic(&self, owner: OwnerId) -> Topic {
        let turn = || Topic::Turn(self.resource.name.clone(), owner);
        Topic::told_of(&self.resource).unwrap_or_else(turn)
    }
}

/// Returns one side of a read/write lock; any other kind unchanged.
pub(super) fn other_side(resource: &Resource, side: Kind) -> Resource {
    let kind = match resource.kind {
        Kind::Read | Kind::Write => side,
        kind => kind,
    };
    Resource { kind, name: resource.name.clone() }
}
