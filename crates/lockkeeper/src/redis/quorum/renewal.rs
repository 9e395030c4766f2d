//! Renewals: a majority must have extended a hold. Members that lack it are repaired then.
//!
//! A hold that is only re-created nowhere counts: if fewer than a majority have extended it, it is lost. So a
//! force-release ends a hold even if its holder missed the notice. What is left of a lost hold still keeps
//! other clients out: the engine releases it once its guards know of the loss.
//!
//! A repair must not follow a release of the same hold, or it would leave a hold behind without an owner.
//! [`Renewing`] knows the holds that are being renewed. A release marks its hold before it is sent; a
//! repair looks for the mark and is sent under the same lock. So either the repair is not sent, or the
//! release follows it on the same connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldhash::HashMap;
use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::QuorumInner;
use super::acquire::{REJOIN, says};
use super::fan::Fan;
use super::votes::Votes;
use crate::OwnerId;
use crate::backend::{Acquire, Answer, Attempt, Backend, BoxFuture, Fault, Renew, Renewed, Ttl};
use crate::redis::locked;

type Answers = Vec<Result<Renewed, Fault>>;

/// The holds that are being renewed.
#[derive(Default)]
pub(super) struct Renewing(Mutex<HashMap<OwnerId, RenewalState>>);

#[derive(Default)]
struct RenewalState {
    /// How many renewals are under way.
    count: u32,
    has_ended: bool,
}

impl Renewing {
    fn begin(&self, owners: impl IntoIterator<Item = OwnerId>) {
        let mut states = locked(&self.0);
        owners.into_iter().for_each(|owner| states.entry(owner).or_default().count += 1);
    }

    fn end(&self, owners: impl IntoIterator<Item = OwnerId>) {
        let mut states = locked(&self.0);
        for owner in owners {
            if let Some(state) = states.get_mut(&owner) {
                state.count -= 1;
                if state.count == 0 {
                    states.remove(&owner);
                }
            }
        }
    }

    /// The hold is about to be released: it is not to be repaired any more.
    pub(super) fn ending(&self, owner: OwnerId) -> Ending<'_> {
        let mut states = locked(&self.0);
        let state = states.entry(owner).or_default();
        (state.count, state.has_ended) = (state.count + 1, true);
        Ending(self, owner)
    }
}

/// A release under way: a renewal that begins meanwhile repairs nothing.
pub(super) struct Ending<'a>(&'a Renewing, OwnerId);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end([self.1]);
    }
}

/// A renewal under way.
struct Renewal {
    inner: Arc<QuorumInner>,
    batch: Vec<Renew>,
    sent: Instant,
    /// The answers of each member.
    answers: Vec<Option<Answers>>,
    verdicts: Vec<Option<Result<Renewed, Fault>>>,
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.inner.renewing.end(self.batch.iter().map(|renew| renew.owner));
    }
}

/// Renews holds. Repairs go on in the background.
pub(super) async fn renew(inner: Arc<QuorumInner>, batch: Vec<Renew>) -> Answers {
    // Those of similar leases together: the shortest one limits how long the members may take.
    let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (entry, renew) in batch.iter().enumerate() {
        groups.entry(renew.ttl.unwrap_or(u64::MAX).max(1).ilog2() / 2).or_default().push(entry);
    }
    let mut answers = vec![Err(Fault::Closed); batch.len()];
    let groups = groups.into_values().map(async |entries: Vec<usize>| {
        let fits = |entry: &usize| inner.fits(batch[*entry].resource.kind, batch[*entry].ttl);
        // What does not fit is a mistake of its caller. The others are renewed.
        let (sound, wrong): (Vec<_>, Vec<_>) = entries.into_iter().partition(|e| fits(e).is_ok());
        let wrong = wrong.into_iter().filter_map(|entry| Some((entry, Err(fits(&entry).err()?))));
        let group = sound.iter().map(|entry| batch[*entry].clone()).collect();
        let renewed = renew_group(Arc::clone(&inner), group).await;
        sound.into_iter().zip(renewed).chain(wrong).collect::<Vec<_>>()
    });
    for (entry, answer) in join_all(groups).await.into_iter().flatten() {
        answers[entry] = answer;
    }
    answers
}

async fn renew_group(inner: Arc<QuorumInner>, batch: Vec<Renew>) -> Answers {
    inner.renewing.begin(batch.iter().map(|renew| renew.owner));
    let sent = Instant::now();
    let requests = inner.members.iter().map(|member| member.renew(batch.clone())).enumerate();
    let mut fan = Fan::new(requests);
    fan.send();
    let (count, members) = (batch.len(), inner.members.len());
    let (answers, verdicts) = (vec![None; members], vec![None; count]);
    let renewal = Renewal { inner, batch, sent, answers, verdicts };
    let (answer, verdicts) = oneshot::channel();
    tokio::spawn(renewal.run(fan, answer));
    verdicts.await.unwrap_or_else(|_| vec![Err(Fault::Closed); count])
}

impl Renewal {
    async fn run(mut self, mut fan: Fan<BoxFuture<Answers>>, answer: oneshot::Sender<Answers>) {
        let shortest = self.batch.iter().filter_map(|renew| renew.ttl).min();
        let limit = self.inner.limit(shortest.unwrap_or(u64::MAX / 2));
        while self.verdicts.iter().any(Option::is_none) {
            let Some((member, answers)) = fan.next_by(limit).await else { break };
            self.answers[member] = Some(answers);
            self.decide();
        }
        let verdicts: Vec<_> = (0..self.batch.len()).map(|entry| self.verdict(entry)).collect();
        // The caller may be gone.
        let _ = answer.send(verdicts.clone());
        let answered: Vec<_> =
            (0..self.answers.len()).filter(|member| self.answers[*member].is_some()).collect();
        for member in answered {
            self.tidy(member, &verdicts).await;
        }
        while let Some((member, answers)) = fan.next().await {
            self.answers[member] = Some(answers);
            self.tidy(member, &verdicts).await;
        }
    }

    fn decide(&mut self) {
        for entry in 0..self.batch.len() {
            if self.verdicts[entry].is_none() {
                self.verdicts[entry] = self.decided(entry);
            }
        }
    }

    fn of(&self, entry: usize) -> impl Iterator<Item = (usize, &Result<Renewed, Fault>)> {
        let answers = self.answers.iter().enumerate();
        answers.filter_map(move |(member, all)| Some((member, all.as_ref()?.get(entry)?)))
    }

    /// What a majority says, whatever the others will say.
    fn decided(&self, entry: usize) -> Option<Result<Renewed, Fault>> {
        let (majority, all) = (self.inner.majority, self.inner.members.len());
        let (mut held, mut lacking, mut is_taken) = (Vec::new(), 0, false);
        for (_, answer) in self.of(entry) {
            match answer {
                Ok(Renewed::Held(ttl)) => held.push(*ttl),
                Ok(answer) => {
                    lacking += 1;
                    is_taken |= *answer == Renewed::Taken;
                }
                Err(_) => {}
            }
        }
        if held.len() >= majority {
            // A majority had it until then.
            held.sort_unstable_by(|one, other| other.cmp(one));
            return Some(Ok(Renewed::Held(held[majority - 1])));
        }
        let lost = if is_taken { Renewed::Taken } else { Renewed::Gone };
        (all - lacking < majority).then_some(Ok(lost))
    }

    fn verdict(&self, entry: usize) -> Result<Renewed, Fault> {
        self.verdicts[entry].clone().unwrap_or_else(|| {
            let faults = self.answers.iter().enumerate().filter_map(|(member, answers)| {
                match answers.as_ref().and_then(|answers| answers.get(entry)) {
                    Some(Ok(_)) => None,
                    Some(Err(fault)) => Some((member, fault.clone())),
                    None => Some((member, Fault::unanswered("no answer in time"))),
                }
            });
            Err(self.inner.too_few(&faults.collect::<Vec<_>>()))
        })
    }

    /// Repairs the valid holds that a member lacks.
    async fn tidy(&self, member: usize, verdicts: &[Result<Renewed, Fault>]) {
        let Some(answers) = &self.answers[member] else { return };
        let mut repairs = Vec::new();
        for ((renew, verdict), answer) in self.batch.iter().zip(verdicts).zip(answers) {
            // A vote of a waiter is soon withdrawn.
            if let (Ok(Renewed::Held(Ttl::For(left))), Ok(Renewed::Gone | Renewed::Taken)) =
                (verdict, answer)
            {
                let ends = self.sent + renew.ttl.map_or(*left, Duration::from_millis);
                repairs.push((member, renew.clone(), ends));
            }
        }
        self.inner.repair(repairs).await;
    }
}

/// How long after a grant the members that lack it are repaired: a release by the former holder may be on
/// its way to them, or the vote of another waiter. One that still has it is left to the next renewal.
const COMPLETED_AFTER: Duration = Duration::from_millis(100);

/// How often a repair is tried before the next renewal.
const REPAIRS: usize = 4;

impl QuorumInner {
    /// Stores a hold that was just granted on the members that have not granted it, in the background:
    /// then it survives the loss of a minority.
    pub(super) fn complete(
        &self,
        request: &Acquire,
        votes: &Votes,
        mut rest: Fan<Answer<Attempt>>,
    ) {
        let Some(inner) = self.me.upgrade() else { return };
        let renew = Renew::new(request.resource.clone(), request.owner, Some(request.ttl));
        let is_asked = |member: &usize| !rest.unanswered().any(|one| one == *member);
        let has_it = |member: &usize| votes.granted.iter().any(|(one, _)| one == member);
        let lacking = (0..self.members.len()).filter(|member| !has_it(member) && is_asked(member));
        let mut lacking: Vec<_> = lacking.filter(|member| self.is_up(*member)).collect();
        if lacking.is_empty() && rest.pending() == 0 {
            return;
        }
        self.renewing.begin([renew.owner]);
        let ends = Instant::now() + Duration::from_millis(request.ttl);
        tokio::spawn(async move {
            while let Some((member, answer)) = rest.next().await {
                if says(&answer, REJOIN) {
                    inner.members[member].rejoin();
                }
                if !answer.is_ok_and(|attempt| attempt.is_granted()) {
                    lacking.push(member);
                }
            }
            if !lacking.is_empty() {
                tokio::time::sleep(COMPLETED_AFTER).await;
                let lacking = lacking.into_iter().filter(|member| inner.is_up(*member));
                inner.repair(lacking.map(|member| (member, renew.clone(), ends)).collect()).await;
            }
            inner.renewing.end([renew.owner]);
        });
    }

    /// Stores holds where they are missing until they end, unless they were released meanwhile. Where another hold is
    /// in the way, it tries again: the vote of a waiter is soon withdrawn.
    async fn repair(&self, mut repairs: Vec<(usize, Renew, Instant)>) {
        for _ in 0..REPAIRS {
            let mut fan = {
                let states = locked(&self.renewing.0);
                let is_valid =
                    |one: &OwnerId| states.get(one).is_some_and(|state| !state.has_ended);
                // Each time anew: this process may have been stopped, and nothing releases what outlives the lease.
                let now = Instant::now();
                let left = move |ends: Instant| (ends - now).as_millis() as u64;
                repairs.retain(|(_, renew, ends)| is_valid(&renew.owner) && left(*ends) > 0);
                let boxed =
                    repairs.iter().cloned().enumerate().map(|(n, (member, renew, ends))| {
                        let store = self.members[member].clone();
                        let repair = async move { store.repair(renew, left(ends)).await };
                        (n, Box::pin(repair) as Answer<Attempt>)
                    });
                let mut fan = Fan::new(boxed);
                fan.send();
                fan
            };
            let mut blocked = Vec::new();
            while let Some((n, repaired)) = fan.next().await {
                let fault = repaired.as_ref().err().map(tracing::field::display);
                tracing::debug!(member = repairs[n].0, fault, "repaired a hold");
                if matches!(repaired, Ok(Attempt::Busy { .. })) {
                    blocked.push(repairs[n].clone());
                }
            }
            if blocked.is_empty() {
                return;
            }
            repairs = blocked;
            tokio::time::sleep(COMPLETED_AFTER.mul_f64(0.5 + fastrand::f64())).await;
        }
    }
}
