//! The answers of the members to one request, and what they mean together.

use super::QuorumInner;
use crate::backend::{Attempt, Fault, Ttl};
use crate::redis::member::Trust;

/// The answers of the members to an acquire.
#[derive(Default)]
pub(super) struct Votes {
    /// The members that granted it, with their tokens.
    pub(super) granted: Vec<(usize, Option<u64>)>,
    /// When the members that are busy expect to be free; [`Ttl::Forever`] if they do not know.
    pub(super) busy: Vec<Ttl>,
    /// The most clients that listen at one member.
    pub(super) listeners: u64,
    pub(super) gone: usize,
    pub(super) faults: Vec<(usize, Fault)>,
}

impl Votes {
    pub(super) fn count(&mut self, member: usize, answer: Result<Attempt, Fault>) {
        match answer {
            Ok(Attempt::Granted { token }) => self.granted.push((member, token)),
            Ok(Attempt::Busy { ttl, listeners }) => {
                self.busy.push(ttl.unwrap_or(Ttl::Forever));
                self.listeners = self.listeners.max(listeners);
            }
            Ok(Attempt::Gone) => self.gone += 1,
            Err(fault) => self.faults.push((member, fault)),
        }
    }

    /// The members that may have stored it: those that have granted it, those whose answer is missing, and
    /// those that may have executed it nevertheless.
    pub(super) fn stored(&self, unanswered: impl Iterator<Item = usize>) -> Vec<usize> {
        let may_have = self.faults.iter().filter(|(_, fault)| fault.maybe_ran());
        let granted = self.granted.iter().map(|(member, _)| *member);
        let mut members: Vec<_> =
            unanswered.chain(granted).chain(may_have.map(|(member, _)| *member)).collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    /// How many members have answered.
    pub(super) fn answers(&self) -> usize {
        self.granted.len() + self.busy.len() + self.gone + self.faults.len()
    }

    /// Some members have granted it, and others had granted it to another client.
    pub(super) fn is_split(&self) -> bool {
        !self.granted.is_empty() && !self.busy.is_empty()
    }

    /// Whether so many members are busy that no client can have a majority with the votes that are released:
    /// then these notify no waiter. While a lock is on a bare majority, its waiters would wake up each other, and
    /// themselves, without end.
    pub(super) fn completes_none(&self, voters: usize, majority: usize) -> bool {
        voters - self.busy.len() < majority
    }

    /// The busy answer, to ask again soon.
    pub(super) fn busy_for_now(mut self) -> Attempt {
        self.busy.push(Ttl::millis(fastrand::u64(250..500)));
        self.busy(1)
    }

    /// The busy answer: until a majority may be free.
    pub(super) fn busy(&self, majority: usize) -> Attempt {
        let free = self.granted.len();
        let mut busy = self.busy.clone();
        busy.sort_unstable();
        let ttl = busy.get(majority.saturating_sub(free + 1)).or(busy.last()).copied();
        Attempt::Busy { ttl: ttl.filter(|ttl| *ttl < Ttl::Forever), listeners: self.listeners }
    }
}

impl QuorumInner {
    /// The fault of a request for which too few members voted.
    pub(super) fn too_few(&self, faults: &[(usize, Fault)]) -> Fault {
        let is_named = |member: &usize| faults.iter().any(|(named, _)| named == member);
        let down = |member: usize| match self.members[member].membership().trust() {
            Trust::Down(fault) => Some((member, fault)),
            _ => None,
        };
        // Those that were not asked are named, too.
        let others = (0..self.members.len()).filter(|member| !is_named(member)).filter_map(down);
        let faults = &faults.iter().cloned().chain(others.collect::<Vec<_>>()).collect::<Vec<_>>();
        let said = faults.iter().map(|(member, fault)| self.said(*member, fault));
        let said = said.collect::<Vec<_>>().join("; ");
        let (needed, all) = (self.majority, self.members.len());
        let detail = format!("{needed} of {all} members must answer: {said}");
        let maybe_ran = faults.iter().any(|(_, fault)| fault.maybe_ran());
        let last = |wanted: fn(&Fault) -> bool| {
            faults.iter().find(|(_, fault)| wanted(fault)).map(|(_, fault)| fault.clone())
        };
        // What does not pass comes first, unless enough members remain without it.
        let lasting = faults.iter().filter(|(_, fault)| !fault.may_pass()).count();
        let first = (self.members.len() - lasting < self.majority)
            .then(|| last(|fault| !fault.may_pass()))
            .flatten();
        match first {
            Some(Fault::WrongKind { found }) => Fault::WrongKind { found },
            Some(Fault::Closed) => Fault::Closed,
            Some(Fault::Denied { .. }) => Fault::Denied { detail: detail.into() },
            Some(Fault::Invalid { .. }) => Fault::invalid(detail),
            Some(_) => Fault::Server { detail: detail.into() },
            None if maybe_ran || last(|f| matches!(f, Fault::Unreachable { .. })).is_some() => {
                Fault::Unreachable { maybe_ran, detail: detail.into() }
            }
            None => Fault::refused(detail),
        }
    }

    /// A member and what it said.
    pub(super) fn said(&self, member: usize, fault: &Fault) -> String {
        let address = self.members[member].membership().address();
        let said = fault.to_string();
        if said.contains(address) { said } else { format!("{address}: {said}") }
    }
}

/// Some members may have executed it.
pub(super) fn maybe_ran(fault: Fault) -> Fault {
    match fault {
        Fault::Unreachable { detail, .. } | Fault::Refused { detail } => {
            Fault::Unreachable { maybe_ran: true, detail }
        }
        fault => fault,
    }
}
