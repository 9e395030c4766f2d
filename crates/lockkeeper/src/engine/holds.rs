//! The holds of one lease, each with its term. The first one needs no allocation: most leases have one.

use super::request::Term;

/// The number of a hold within its lease: which guard it belongs to.
pub(crate) type HoldId = u32;

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
