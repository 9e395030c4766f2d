//! What is to be acquired, for how long, for whom, and how it is waited for.

use std::time::Duration;

use super::lease::TermSpec;
use super::{Core, Tick};
use crate::backend::{Fenced, Kind, Resource, Topic};
use crate::config::Backoff;
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
