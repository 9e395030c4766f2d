//! Acquires: the vote of the members, and what follows a split vote.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::fan::Fan;
use super::leftovers::Tail;
use super::votes::{Votes, maybe_ran};
use super::{QuorumInner, SLOW};
use crate::backend::{Acquire, Answer, Attempt, Backend, Fault, Fenced, Release, Resource, Ttl};
use crate::redis::error_reply::ErrorReply;
use crate::redis::locked;
use crate::redis::member::Trust;
use crate::{LockName, OwnerId};

/// How long a name is asked for in order after a split vote.
const SPLIT: Duration = Duration::from_secs(1);

/// The most names that are remembered as split.
const SPLIT_MAX: usize = 4096;

/// How often the client that got the first member asks the others, which failed attempts of other clients
/// may occupy for a moment.
const TRIES: u32 = 4;

impl QuorumInner {
    /// The members that may grant. A fault if they are no majority, or if one belongs to another quorum.
    pub(super) fn voters(&self) -> Result<Vec<usize>, Fault> {
        let (mut voters, mut quarantine, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for (index, member) in self.members.iter().enumerate() {
            match member.membership().trust() {
                Trust::Trusted => voters.push(index),
                Trust::Quarantined(left) => quarantine.push((index, left)),
                Trust::Down(fault) => faults.push((index, fault)),
                Trust::Unknown => {
                    faults.push((index, Fault::silent("not connected yet")));
                }
                Trust::Refused(fault) => return Err(fault),
            }
        }
        if voters.len() >= self.majority {
            return Ok(voters);
        }
        // Those that are the next to vote.
        quarantine.sort_by_key(|(_, left)| *left);
        let enough = quarantine.get(self.majority - voters.len() - 1).map(|(_, left)| *left);
        let is_cold = quarantine.len() == self.members.len();
        let waits = quarantine.into_iter().map(|(index, left)| (index, quarantined(left)));
        faults.extend(waits);
        let Some(left) = enough else { return Err(self.too_few(&faults)) };
        let said = faults.iter().map(|(member, fault)| self.said(*member, fault));
        let detail = format!(
            "{}a majority of the members grants in {:.1} s, try again then: {}",
            if is_cold { "first use of this quorum, or no member has its data: " } else { "" },
            left.as_secs_f64(),
            said.collect::<Vec<_>>().join("; "),
        );
        Err(Fault::refused(detail))
    }

    pub(super) async fn acquire(self: Arc<Self>, request: Acquire) -> Result<Attempt, Fault> {
        self.fits(request.resource.kind, Some(request.ttl))?;
        if !request.also.is_empty() {
            return Err(Fault::invalid("a quorum acquires one lock at a time"));
        }
        match request.from {
            Some(from) => self.hand_off(request, from).await,
            None if request.count > 1 => self.reenter(request).await,
            None => self.acquire_first(request).await,
        }
    }

    /// Acquires a free lock.
    async fn acquire_first(&self, request: Acquire) -> Result<Attempt, Fault> {
        let mut voters = self.voters()?;
        let (asked, limit) = (voters.len(), self.limit(request.ttl));
        if !self.was_split(&request.resource.name) {
            let mut votes = Votes::default();
            let rest = self.ask(&request, &voters, &mut votes, limit).await;
            if votes.granted.len() >= self.majority {
                return self.granted_first(&request, votes, rest, limit).await;
            }
            if !votes.is_split() {
                self.withdraw(&request, &votes, rest.unanswered(), asked);
                return self.not_granted(&votes, asked);
            }
            self.note_split(&request.resource.name);
            // The same identity asks again only where nothing of it is left.
            let stored = votes.stored(rest.unanswered());
            drop(rest);
            let left = self.clear(&request, stored, request.waits, limit).await;
            voters.retain(|member| !left.contains(member));
            if voters.len() < self.majority || Instant::now() >= limit {
                return Ok(Attempt::busy(Some(Ttl::millis(fastrand::u64(1..20)))));
            }
            tokio::time::sleep(Duration::from_micros(fastrand::u64(1_000..20_000))).await;
        }
        self.acquire_in_order(&request, &voters, limit).await
    }

    /// Asks the members in the order that all clients share: the first one that answers, then all others.
    async fn acquire_in_order(
        &self,
        request: &Acquire,
        voters: &[usize],
        limit: Instant,
    ) -> Result<Attempt, Fault> {
        let (mut votes, mut stored, mut others) = (Votes::default(), Vec::new(), voters);
        while let Some((first, after)) = others.split_first()
            && votes.granted.is_empty()
            && votes.busy.is_empty()
        {
            // A member that does not answer leaves time for the others.
            let until = limit.min(Instant::now() + self.response_timeout / 8);
            stored.extend(self.ask(request, &[*first], &mut votes, until).await.unanswered());
            others = after;
        }
        let faults = std::mem::take(&mut votes.faults);
        if votes.granted.is_empty() {
            votes.faults = faults;
            self.withdraw(request, &votes, stored.into_iter(), voters.len());
            if votes.busy.is_empty() {
                return self.not_granted(&votes, voters.len());
            }
            // The client that has the first member gets the others, or releases all of them and notifies
            // this one. A client that has died does neither: soon all members are asked at once again.
            return Ok(votes.busy_for_now());
        }
        let mut late = 0;
        for tries in 0..TRIES {
            if tries > 0 {
                tokio::time::sleep(Duration::from_micros(fastrand::u64(500..4_000))).await;
            }
            let has_it = |member: &usize| votes.granted.iter().any(|(has_it, _)| has_it == member);
            let missing: Vec<_> = others.iter().copied().filter(|one| !has_it(one)).collect();
            stored.extend(votes.stored(std::iter::empty()));
            (votes.busy, votes.faults) = (Vec::new(), faults.clone());
            let rest = self.ask(request, &missing, &mut votes, limit).await;
            if votes.granted.len() >= self.majority {
                return self.granted_first(request, votes, rest, limit).await;
            }
            stored.extend(rest.unanswered());
            late = rest.unanswered().count();
            if Instant::now() >= limit {
                break;
            }
        }
        // A slow member may have the hold of another client, and the votes that are released wake up no waiter
        // then. In case it has none, this client looks again soon.
        self.withdraw(request, &votes, stored.into_iter(), voters.len() - late);
        if late > 0 && votes.is_split() {
            return Ok(votes.busy_for_now());
        }
        self.not_granted(&votes, voters.len())
    }

    /// Asks these members, until a majority has granted or none can any more. Returns the requests without
    /// an answer.
    async fn ask(
        &self,
        request: &Acquire,
        members: &[usize],
        votes: &mut Votes,
        limit: Instant,
    ) -> Fan<Answer<Attempt>> {
        let ask = |member: &usize| (*member, self.members[*member].acquire(request.clone()));
        let mut fan = Fan::new(members.iter().map(ask));
        let (start, mut until) = (Instant::now(), limit);
        let mut repeats = members.len();
        while votes.granted.len() < self.majority {
            let Some((member, answer)) = fan.next_by(until).await else { break };
            // As one server does, whose connection repeats it: here no release of it has been sent yet.
            if repeats > 0 && says(&answer, NOSCRIPT) {
                repeats -= 1;
                fan.add(ask(&member));
                // Before the caller can release what the others have granted.
                fan.send();
                continue;
            }
            self.count(votes, member, answer);
            // With one member asked alone, the others are still to come.
            let possible = votes.granted.len() + fan.pending();
            if members.len() > 1 && possible < self.majority {
                break;
            }
            // A member that does not answer must not delay the others: the vote is split.
            if votes.is_split() && votes.answers() >= self.majority {
                until = limit.min(Instant::now() + start.elapsed().max(SLOW));
            }
        }
        while let Some((member, answer)) = fan.ready.pop_front() {
            self.count(votes, member, answer);
        }
        if votes.granted.len() < self.majority && Instant::now() >= limit {
            votes.faults.extend(fan.late());
        }
        fan
    }

    fn count(&self, votes: &mut Votes, member: usize, answer: Result<Attempt, Fault>) {
        if says(&answer, REJOIN) {
            self.members[member].rejoin();
        }
        votes.count(member, answer);
    }

    /// Releases an acquire that no majority of the voters has granted, where it may be stored. Does not wait for
    /// the answers.
    fn withdraw(
        &self,
        request: &Acquire,
        votes: &Votes,
        unanswered: impl Iterator<Item = usize>,
        voters: usize,
    ) {
        // The busy members may have votes that are released as silently. A client that waits tries again; after
        // one that does not, the waiters must.
        let is_silent = request.waits && votes.completes_none(voters, self.majority);
        let members = votes.stored(unanswered);
        self.release_of(&request.resource, request.owner, &members, is_silent);
    }

    /// The same, but waits for the answers, as the client goes on trying. Returns the members that have not
    /// answered.
    async fn clear(
        &self,
        request: &Acquire,
        members: Vec<usize>,
        is_silent: bool,
        limit: Instant,
    ) -> Vec<usize> {
        let release = Release::new(request.resource.clone(), request.owner);
        let clear = |of: &usize| (*of, self.members[*of].withdraw(release.clone(), is_silent));
        let mut fan = Fan::new(members.iter().map(clear));
        let (start, mut left) = (Instant::now(), members.clone());
        let mut until = limit;
        while let Some((member, answer)) = fan.next_by(until).await {
            if answer.is_ok() {
                left.retain(|one| *one != member);
            }
            until = limit.min(Instant::now() + start.elapsed().max(SLOW));
        }
        left.iter().for_each(|member| self.left_over(&release, *member));
        left
    }

    /// Releases an identity on these members. Does not wait for the answers.
    fn release_of(&self, resource: &Resource, owner: OwnerId, members: &[usize], is_silent: bool) {
        let release = Release::new(resource.clone(), owner);
        let send = |of: &usize| (*of, self.members[*of].withdraw(release.clone(), is_silent));
        let mut answers = Fan::new(members.iter().map(send));
        answers.send();
        self.leftovers.follow(Tail { release, answers });
    }

    /// Why no majority has granted it: it is busy, or too few members have voted.
    fn not_granted(&self, votes: &Votes, asked: usize) -> Result<Attempt, Fault> {
        match asked - votes.faults.len() < self.majority {
            true => {
                let mut faults = votes.faults.clone();
                let is_named = |index: usize| votes.faults.iter().any(|(named, _)| *named == index);
                let others = self.in_quarantine().filter(|(index, _)| !is_named(*index));
                faults.extend(others.map(|(index, left)| (index, quarantined(left))));
                Err(self.too_few(&faults))
            }
            false => Ok(votes.busy(self.majority)),
        }
    }

    /// The members that were not asked because they may have lost data.
    fn in_quarantine(&self) -> impl Iterator<Item = (usize, Duration)> {
        let members = self.members.iter().enumerate();
        members.filter_map(|(index, member)| match member.membership().trust() {
            Trust::Quarantined(left) => Some((index, left)),
            _ => None,
        })
    }

    /// A majority has granted a free lock. If its token cannot be written, it is released.
    async fn granted_first(
        &self,
        request: &Acquire,
        votes: Votes,
        rest: Fan<Answer<Attempt>>,
        limit: Instant,
    ) -> Result<Attempt, Fault> {
        let granted = self.granted(request, votes, rest, limit).await;
        if granted.is_err() {
            let all: Vec<_> = (0..self.members.len()).collect();
            self.release_of(&request.resource, request.owner, &all, false);
        }
        granted
    }

    /// A majority has granted it. Writes the token back to a majority before it is used, and the hold to
    /// the members that lack it.
    async fn granted(
        &self,
        request: &Acquire,
        votes: Votes,
        rest: Fan<Answer<Attempt>>,
        limit: Instant,
    ) -> Result<Attempt, Fault> {
        let issued = votes.granted.iter().filter_map(|(_, token)| *token).max();
        let mut token = None;
        if let Some((fenced, issued)) = request.fenced.zip(issued) {
            let name = &request.resource.name;
            token = Some(self.keep_token(name, issued, fenced, &votes, limit).await?);
        }
        // What was withdrawn before under this identity is not to be released any more.
        self.leftovers.strike_out(request.owner, self.members.len());
        if votes.granted.len() < self.members.len() {
            self.complete(request, &votes, rest);
        }
        Ok(Attempt::Granted { token })
    }

    /// Makes this the last token of a majority, or a greater one if a member knows one by now. Any later
    /// majority shares a member with this one, and issues a greater token.
    async fn keep_token(
        &self,
        lock: &LockName,
        mut token: u64,
        fenced: Fenced,
        votes: &Votes,
        limit: Instant,
    ) -> Result<u64, Fault> {
        let has_it = |member: &usize| votes.granted.contains(&(*member, Some(token)));
        let mut kept = (0..self.members.len()).filter(has_it).count();
        while kept < self.majority {
            let raise = |member: usize| {
                let (store, lock) = (self.members[member].clone(), lock.clone());
                let raising = async move { store.raise_token(lock, token, fenced).await };
                (member, Box::pin(raising) as Answer<u64>)
            };
            let mut fan = Fan::new((0..self.members.len()).map(raise));
            let (raised, mut last) = (token, token);
            let mut faults = Vec::new();
            kept = 0;
            while let Some((member, answer)) = fan.next_by(limit).await {
                match answer {
                    Ok(stored) if stored == raised => kept += 1,
                    Ok(stored) => last = last.max(stored),
                    Err(fault) => faults.push((member, fault)),
                }
                if kept >= self.majority {
                    break;
                }
            }
            if kept < self.majority && last == raised {
                faults.extend(fan.late());
                return Err(self.too_few(&faults));
            }
            if kept < self.majority {
                token = last + 1;
            }
        }
        Ok(token)
    }

    /// Re-enters a lock that is held.
    async fn reenter(&self, request: Acquire) -> Result<Attempt, Fault> {
        let (limit, mut votes) = (self.limit(request.ttl), Votes::default());
        let all: Vec<_> = (0..self.members.len()).collect();
        let rest = self.ask(&request, &all, &mut votes, limit).await;
        if votes.granted.len() >= self.majority {
            // Without its token it is not re-entered, and what is held stays held.
            return self.granted(&request, votes, rest, limit).await.map_err(maybe_ran);
        }
        // No majority can have it.
        if all.len() - votes.gone - votes.busy.len() < self.majority {
            return Ok(Attempt::Gone);
        }
        Err(maybe_ran(self.too_few(&votes.faults)))
    }

    /// Hands a lock off between two holds of this client. It may be repeated until a majority has answered.
    /// If that majority has not moved it, or its token cannot be written, both are released: the former hold
    /// is to end in any case.
    async fn hand_off(&self, request: Acquire, from: OwnerId) -> Result<Attempt, Fault> {
        let _ending = self.renewing.ending(from);
        let (limit, mut votes) = (self.limit(request.ttl), Votes::default());
        let all: Vec<_> = (0..self.members.len()).collect();
        let mut rest = self.ask(&request, &all, &mut votes, limit).await;
        if votes.granted.len() >= self.majority {
            // Where a member has not moved it, the former hold may remain.
            let old = Release::new(request.resource.clone(), from);
            votes.faults.iter().for_each(|(member, _)| self.left_over(&old, *member));
            if let Some(inner) = self.me.upgrade().filter(|_| rest.pending() > 0) {
                tokio::spawn(async move {
                    while let Some((member, answer)) = rest.next().await {
                        answer.err().iter().for_each(|_| inner.left_over(&old, member));
                    }
                });
            }
            let granted = self.granted(&request, votes, Fan::new([]), limit).await;
            if granted.is_err() {
                self.release_of(&request.resource, request.owner, &all, false);
            }
            return Ok(granted.unwrap_or(Attempt::busy(None)));
        }
        // Enough of them may answer late that they lack it: then another client may have held it in between.
        while votes.gone < self.majority && votes.gone + rest.pending() >= self.majority {
            let Some((member, answer)) = rest.next_by(limit).await else { break };
            self.count(&mut votes, member, answer);
        }
        if votes.granted.len() + votes.gone < self.majority {
            return Err(maybe_ran(self.too_few(&votes.faults)));
        }
        self.release_of(&request.resource, request.owner, &all, false);
        self.release_of(&request.resource, from, &all, false);
        Ok(if votes.gone >= self.majority { Attempt::Gone } else { Attempt::busy(None) })
    }

    fn was_split(&self, name: &LockName) -> bool {
        let split = locked(&self.split);
        split.get(name).is_some_and(|until| *until > Instant::now())
    }

    fn note_split(&self, name: &LockName) {
        let now = Instant::now();
        let mut split = locked(&self.split);
        if split.len() >= SPLIT_MAX {
            split.retain(|_, until| *until > now);
        }
        if split.len() < SPLIT_MAX {
            split.insert(name.clone(), now + SPLIT);
        }
    }
}

/// A member does not know the script.
const NOSCRIPT: &str = "NOSCRIPT";

/// A member has another marker than the client knows.
pub(super) const REJOIN: &str = "REJOIN";

/// Whether a member has answered with an error of this code.
pub(super) fn says(answer: &Result<Attempt, Fault>, code: &str) -> bool {
    answer.as_ref().is_err_and(|fault| ErrorReply::is_behind(fault, code))
}

fn quarantined(left: Duration) -> Fault {
    let left = left.as_secs_f64();
    Fault::refused(format!("may have lost data, and grants nothing for another {left:.1} s"))
}
