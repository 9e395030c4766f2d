//! What an acquire asks for, and the holds of one lease, each with its term.

use std::sync::Arc;
use std::time::Duration;

use super::{Core, Tick, lease_millis};
use crate::backend::{Fenced, Kind, Resource, Topic};
use crate::error::{Error, Phase, Result};
use crate::options::{Backoff, ClientOptions, LeaseTime, MIN_WATCHDOG};
use crate::{Owner, OwnerId};

/// The term that one guard asked for: this many milliseconds, once or renewed by the watchdog.
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

    /// The client's renewed lease.
    pub(crate) fn renewed(options: &ClientOptions) -> Self {
        Self { ttl: options.watchdog_timeout.as_millis() as u64, renewed: true }
    }
}

/// The number of a hold within its lease: which guard it belongs to.
pub(crate) type HoldId = u32;

/// The first hold needs no allocation: most leases have one.
#[derive(Debug)]
pub(super) struct Holds {
    first: Option<Hold>,
    more: Vec<Hold>,
    next: HoldId,
}

/// A hold, its term, and when the request for that was sent.
type Hold = (HoldId, TermSpec, Tick);

impl Holds {
    /// One hold, with the number 0.
    pub(super) fn one(term: TermSpec, sent: Tick) -> Self {
        Self { first: Some((0, term, sent)), more: Vec::new(), next: 1 }
    }

    pub(super) fn add(&mut self, term: TermSpec, sent: Tick) -> HoldId {
        let id = self.next;
        self.next = id.wrapping_add(1);
        self.more.push((id, term, sent));
        id
    }

    pub(super) fn set(&mut self, hold: HoldId, term: TermSpec, sent: Tick) {
        let mut all = self.first.iter_mut().chain(&mut self.more);
        if let Some(entry) = all.find(|(id, ..)| *id == hold) {
            *entry = (hold, term, sent);
        }
    }

    pub(super) fn remove(&mut self, hold: HoldId) {
        self.first.take_if(|(id, ..)| *id == hold);
        self.more.retain(|(id, ..)| *id != hold);
    }

    pub(super) fn clear(&mut self) {
        self.first = None;
        self.more.clear();
    }

    pub(super) fn len(&self) -> u32 {
        self.first.iter().len() as u32 + self.more.len() as u32
    }

    fn all(&self) -> impl Iterator<Item = &Hold> {
        self.first.iter().chain(&self.more)
    }

    /// The TTL that the watchdog renews, if any hold has no fixed end.
    pub(super) fn renewed_ttl(&self) -> Option<u64> {
        self.all().filter(|(_, term, _)| term.renewed).map(|(_, term, _)| term.ttl).max()
    }

    /// The TTL that they need from `now` on.
    pub(super) fn remaining_ttl(&self, now: Tick) -> Option<u64> {
        let remaining = |(_, term, sent): &Hold| match term.renewed {
            true => term.ttl,
            false => sent.plus_millis(term.ttl).since(now).as_millis() as u64,
        };
        self.all().map(remaining).max()
    }
}

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
