//! The parameters of one acquire: the lock, the term, the owner, and how to wait.

use std::sync::Arc;
use std::time::Duration;

use super::terms::TermSpec;
use super::{Core, Tick};
use crate::backend::{Fenced, Kind, Resource, Topic};
use crate::error::Phase;
use crate::options::Backoff;
use crate::{Owner, OwnerId};

/// The parameters of one acquire.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) core: Arc<Core>,
    pub(crate) resource: Resource,
    pub(crate) term: TermSpec,
    /// How long to wait for the lock; zero makes one attempt.
    pub(crate) wait: Duration,
    /// When that has passed: never for one attempt, whose answer is waited for.
    pub(crate) limit: Tick,
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
    /// Counts the wait from now.
    pub(super) fn begin(&mut self) {
        self.limit = match self.wait {
            Duration::ZERO | Duration::MAX => Tick::NEVER,
            span => self.core.clock.now() + span,
        };
    }

    /// Whether it makes more than one attempt.
    pub(super) fn waits(&self) -> bool {
        !self.wait.is_zero()
    }

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
        self.limit == Tick::NEVER && self.resource.kind != Kind::Fair
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
        Topic::shared_by(&self.resource).unwrap_or_else(turn)
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
