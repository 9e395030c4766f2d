//! What the members say about locks, as one.
//!
//! A lock that a majority holds is missing at a minority of the members, so no single member can list all
//! of them. A list goes through the pages of one member after the other. What it finds is looked up at
//! all members, and belongs on the page of the first one that has it. So a list keeps no state.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;

use super::QuorumInner;
use super::fan::Fan;
use crate::LockName;
use crate::backend::{
    Answer, Backend, Fault, ForcedUnlock, Holder, Kind, List, LockInfo, MemberInfo, Page, Resource,
    Select,
};
use crate::error::{Error, Phase};
use crate::redis::Redis;

/// What each member says about a lock.
type Said = Vec<Result<LockInfo, Fault>>;

/// How many force-releases of a lock are shown: as many as each member records.
const FORCED_MAX: usize = 20;

/// How far apart the members may date one force-release.
const ONE_EVENT: Duration = Duration::from_secs(10);

/// Adds the force-releases that a member has recorded. A member records one only if it had the hold: it may
/// have got the release of the holder, who was notified by another member, before.
fn record(all: &mut Vec<ForcedUnlock>, of_member: Vec<ForcedUnlock>) {
    let apart = |one: SystemTime, other| {
        one.duration_since(other).unwrap_or_else(|earlier| earlier.duration())
    };
    for entry in of_member {
        let same = |known: &ForcedUnlock| {
            (&known.holders, &known.reason) == (&entry.holders, &entry.reason)
                && apart(known.at, entry.at) < ONE_EVENT
        };
        if !all.iter().any(same) {
            all.push(entry);
        }
    }
}

impl QuorumInner {
    /// The state of a lock: what a majority holds.
    pub(super) async fn inspect(&self, resource: Resource) -> Result<LockInfo, Fault> {
        self.fits(resource.kind, None)?;
        let said = self.ask_all(|member| member.inspect(resource.clone())).await;
        self.merged(&resource, said)
    }

    /// The answers of all members, in their order.
    pub(super) async fn ask_all<T>(
        &self,
        ask: impl Fn(&Redis) -> Answer<T>,
    ) -> Vec<Result<T, Fault>> {
        let late = |_| Err(Fault::unanswered("no answer in time"));
        let mut answers: Vec<_> = self.members.iter().map(late).collect();
        let asked = Fan::new(self.members.iter().map(ask).enumerate());
        for (member, answer) in asked.gather(self.majority).await {
            answers[member] = answer;
        }
        answers
    }

    /// Returns how many members have failed; a fault if too few have answered.
    pub(super) fn enough<T>(&self, answers: &[Result<T, Fault>]) -> Result<usize, Fault> {
        let fault = |(member, answer): (usize, &Result<T, Fault>)| {
            Some((member, answer.as_ref().err()?.clone()))
        };
        let faults: Vec<_> = answers.iter().enumerate().filter_map(fault).collect();
        match answers.len() - faults.len() < self.majority {
            true => Err(self.too_few(&faults)),
            false => Ok(faults.len()),
        }
    }

    /// What a majority of the members has in common. A fault if too few have answered.
    fn merged(&self, resource: &Resource, said: Said) -> Result<LockInfo, Fault> {
        let faults = self.enough(&said)?;
        let mut merged = LockInfo::new(resource);
        let mut holders: Vec<(Holder, usize)> = Vec::new();
        let (mut ends, mut tokens) = (Vec::new(), Vec::new());
        let members = self.where_they_differ(&said);
        for lock in said.into_iter().flatten() {
            merged.waiting = merged.waiting.max(lock.waiting);
            tokens.extend(lock.token);
            record(&mut merged.forced, lock.forced);
            ends.extend(lock.ttl);
            for holder in lock.holders {
                match holders.iter_mut().find(|(known, _)| known.stored == holder.stored) {
                    Some((known, count)) => {
                        *count += 1;
                        known.hold_count = known.hold_count.max(holder.hold_count);
                        known.client = known.client.take().or(holder.client);
                        known.seen = known.seen.or(holder.seen);
                        known.since = known.since.or(holder.since);
                        known.left = known.left.or(holder.left);
                    }
                    None => holders.push((holder, 1)),
                }
            }
        }
        let held = holders.into_iter().filter(|(_, count)| *count >= self.majority);
        merged.holders = held.map(|(holder, _)| holder).collect();
        ends.sort_unstable_by(|one, other| other.cmp(one));
        let is_held = !merged.holders.is_empty();
        merged.ttl = ends.get(self.majority - 1).copied().filter(|_| is_held);
        // A token that was returned is at a majority, some of which may not have answered. A greater one was
        // issued by members that granted later, and no holder has it.
        tokens.sort_unstable_by(|one, other| other.cmp(one));
        let at = (self.majority - 1).saturating_sub(faults);
        merged.token = tokens.get(at).or(tokens.last()).copied();
        merged.forced.sort_by_key(|entry| Reverse(entry.at));
        merged.forced.truncate(FORCED_MAX);
        merged.members = members;
        Ok(merged)
    }

    /// What each member says, unless all say the same.
    fn where_they_differ(&self, said: &Said) -> Vec<MemberInfo> {
        let ids = |lock: &LockInfo| {
            let mut ids: Vec<_> = lock.holders.iter().map(|one| one.stored.clone()).collect();
            ids.sort();
            ids
        };
        let mut all = said.iter().map(|one| one.as_ref().ok().map(ids));
        let first = all.next().flatten();
        if first.is_some() && all.all(|one| one == first) {
            return Vec::new();
        }
        let error = |fault: &Fault| {
            Error::from_fault(fault.clone(), None, Phase::Inspect, None).to_string()
        };
        let entry = |(member, said): (&Redis, &Result<LockInfo, Fault>)| MemberInfo {
            address: member.membership().address().to_owned(),
            holders: said.as_ref().map_or(Vec::new(), |lock| lock.holders.clone()),
            ttl: said.as_ref().ok().and_then(|lock| lock.ttl),
            error: said.as_ref().err().map(error),
        };
        self.members.iter().zip(said).map(entry).collect()
    }

    pub(super) async fn list(&self, request: List) -> Result<Page, Fault> {
        match &request.select {
            Select::Named(name, kind) => self.named(name, *kind).await,
            Select::Clients | Select::Matching(_) => self.page(request).await,
        }
    }

    async fn named(&self, name: &LockName, kind: Option<Kind>) -> Result<Page, Fault> {
        kind.map_or(Ok(()), |kind| self.fits(kind, None))?;
        let select = Select::Named(name.clone(), kind);
        let request = List { select, cursor: Vec::new(), limit: 1 };
        let mut said = Said::new();
        for page in self.ask_all(|member| member.list(request.clone())).await {
            let unknown = || Fault::Server { detail: "the member returned no entry".into() };
            let found = page.and_then(|page| page.locks.into_iter().next().ok_or_else(unknown));
            said.push(found);
        }
        // A free name shows no kind.
        let known: Vec<_> = said.iter().flatten().collect();
        let seen = known.iter().find(|lock| lock.is_held()).or(known.first());
        let kind = kind.or(seen.map(|lock| lock.kind)).unwrap_or(Kind::Lock);
        let resource = Resource { kind, name: name.clone() };
        Ok(Page { locks: vec![self.merged(&resource, said)?], ..Page::default() })
    }

    /// One page of one member. The cursor names the member.
    async fn page(&self, request: List) -> Result<Page, Fault> {
        let (member, cursor) = match request.cursor.split_first() {
            Some((member, cursor)) => (usize::from(*member), cursor.to_vec()),
            None => (0, Vec::new()),
        };
        let Some(store) = self.members.get(member) else {
            return Err(Fault::invalid("not a cursor of this list"));
        };
        let is_up: Vec<_> = (0..self.members.len()).map(|member| self.is_up(member)).collect();
        if is_up.iter().filter(|is_up| **is_up).count() < self.majority {
            self.voters()?;
        }
        let mut page = match is_up[member] {
            true => match store.list(List { cursor, ..request }).await {
                // It fails at this moment, and perhaps not it alone.
                Err(fault) if fault.may_pass() => Page { incomplete: true, ..Page::default() },
                page => page?,
            },
            // Every lock that a majority holds is at another member, too.
            false => Page::default(),
        };
        let found = std::mem::take(&mut page.locks).into_iter();
        let found = found.filter(|lock| self.fits(lock.kind, None).is_ok());
        for lock in join_all(found.map(|lock| self.look_up(member, lock))).await {
            page.locks.extend(lock?);
        }
        let of_member = |member: usize, rest: Vec<u8>| [vec![member as u8], rest].concat();
        page.next = match page.next {
            Some(next) => Some(of_member(member, next)),
            None if member + 1 < self.members.len() => Some(of_member(member + 1, Vec::new())),
            None => None,
        };
        Ok(page)
    }

    /// Looks up a lock that one member has at the others. `None` if an earlier one has it, too.
    async fn look_up(&self, member: usize, lock: LockInfo) -> Result<Option<LockInfo>, Fault> {
        let resource = lock.resource();
        let mut said = self.ask_all(|member| member.inspect(resource.clone())).await;
        let has_it = |said: &Result<LockInfo, _>| said.as_ref().is_ok_and(LockInfo::is_held);
        if said[..member].iter().any(has_it) {
            return Ok(None);
        }
        said[member] = Ok(lock);
        self.merged(&resource, said).map(Some)
    }
}
