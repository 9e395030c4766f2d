//! The holds of one lease, each with its term.

use std::time::Duration;

use super::{Tick, lease_millis};
use crate::backend::Resource;
use crate::error::{Error, Result};
use crate::options::{ClientOptions, LeaseTime, MIN_WATCHDOG};

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
