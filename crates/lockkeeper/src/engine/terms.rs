//! The holds of one lease, each with its term.

use std::time::Duration;

use super::{Tick, lease_millis};
use crate::backend::Resource;
use crate::error::{Error, Result};
use crate::options::{ClientOptions, LeaseTime, MIN_WATCHDOG};

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

    /// The client's renewed lease.
    pub(crate) fn renewed(options: &ClientOptions) -> Self {
        Self { ttl: options.watchdog_timeout.as_millis() as u64, renewed: true }
    }

    pub(crate) fn sent_at(self, sent: Tick) -> Term {
        if self.renewed {
            return Term::Renewed(self.ttl);
        }
        Term::Fixed(sent + Duration::from_millis(self.ttl))
    }
}

/// The number of a hold within its lease: which guard it belongs to.
pub(crate) type HoldId = u32;

/// The first hold needs no allocation: most leases have one.
#[derive(Debug)]
pub(super) struct Holds {
    first: Option<(HoldId, Term)>,
    more: Vec<(HoldId, Term)>,
    next: HoldId,
}

impl Holds {
    /// One hold, with the number 0.
    pub(super) fn one(term: Term) -> Self {
        Self { first: Some((0, term)), more: Vec::new(), next: 1 }
    }

    pub(super) fn add(&mut self, term: Term) -> HoldId {
        let id = self.next;
        self.next = id.wrapping_add(1);
        self.more.push((id, term));
        id
    }

    pub(super) fn set(&mut self, hold: HoldId, term: Term) {
        let mut all = self.first.iter_mut().chain(&mut self.more);
        if let Some(entry) = all.find(|(id, _)| *id == hold) {
            entry.1 = term;
        }
    }

    pub(super) fn remove(&mut self, hold: HoldId) {
        self.first.take_if(|(id, _)| *id == hold);
        self.more.retain(|(id, _)| *id != hold);
    }

    pub(super) fn clear(&mut self) {
        self.first = None;
        self.more.clear();
    }

    pub(super) fn len(&self) -> u32 {
        self.first.iter().len() as u32 + self.more.len() as u32
    }

    pub(super) fn terms(&self) -> impl Iterator<Item = &Term> {
        self.first.iter().chain(&self.more).map(|(_, term)| term)
    }
}
