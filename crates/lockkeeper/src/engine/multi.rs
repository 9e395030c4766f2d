//! Several locks as one: all or none.
//!
//! All clients acquire the members in the same order, so that two clients that want the same locks meet
//! at the first of them. That is not enough if a member is known by another address, or is held by a
//! program that keeps no order. So no client holds some members and waits for the rest for longer than
//! [`PATIENCE`].

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::acquire::Acquired;
use super::claim::Claim;
use super::gate::{Entered, Gates};
use super::lease::HoldId;
use super::owners::acquire;
use super::request::{Request, TermSpec, Wait};
use super::{Core, Lease, jittered, no_answer, release, until};
use crate::backend::{Acquire, Attempt, BoxFuture, Kind};
use crate::error::{Phase, Result};

/// How long one member is waited for while others are held.
const PATIENCE: Duration = Duration::from_millis(1500);

/// How often members that go in one request are tried with nothing held meanwhile, before one is held
/// and the others are waited for: under a stream of others somebody must wait.
const REFUSALS: u32 = 16;

/// The pause before all is tried again from the start.
const PAUSE: Duration = Duration::from_millis(50);

/// How long it is waited for that members are given back.
const GIVING_BACK: Duration = Duration::from_millis(250);

/// What is to be acquired on which client.
pub(crate) type Part = (Arc<Core>, Request);

/// How the members are to be held.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// While they are assembled: renewed, so that the first is not lost before the last is there.
    pub(crate) assembling: TermSpec,
    /// From then on.
    pub(crate) held: TermSpec,
}

/// Acquires all of `parts`, which are in the order that everybody keeps; nothing when that did not
/// work out within `wait`, which counts by the clock of the first.
pub(crate) async fn acquire_all(
    parts: &[Part],
    terms: Terms,
    wait: Wait,
) -> Result<Option<Vec<Acquired>>> {
    let clock = parts[0].0.clock.clone();
    // The member that is waited for with empty hands: the one that blocked last.
    let mut first = 0;
    let mut refusals = 0;
    loop {
        let mut silent = None;
        // Whatever fails here: one after the other finds out which it is, and bears with it.
        if let Ok(Some(all)) = together(parts, terms.held).await {
            return Ok(Some(all));
        }
        let left = match wait {
            Wait::Never => Duration::ZERO,
            Wait::Until(limit) => limit.since(clock.now()),
            Wait::Forever => Duration::MAX,
        };
        let mut taken = Taken { all: Vec::new(), by: vec![None; parts.len()] };
        let mut blocked = None;
        let others = (0..parts.len()).filter(|i| *i != first);
        let since = clock.now();
        // Where the others go in one request, nothing is held while one of them is waited for.
        let mut at_once = refusals < REFUSALS && go_together(parts);
        refusals += 1;
        for i in std::iter::once(first).chain(others) {
            if at_once && !taken.all.is_empty() {
                match taken.rest(parts, first, terms.assembling).await {
                    Ok(true) => break,
                    Ok(false) => {
                        blocked = Some((first + 1) % parts.len());
                        break;
                    }
                    Err(_) => at_once = false,
                }
            }
            let left = left.saturating_sub(clock.now().since(since));
            let patience = if i == first { left } else { left.min(PATIENCE) };
            let acquiring = one(&parts[i], terms.assembling, patience, wait);
            let acquired = match i == first {
                true => acquiring.await,
                // With others held, not even for an answer.
                false => match until(&clock, clock.now() + PATIENCE, acquiring).await {
                    Some(acquired) => acquired,
                    None if patience < PATIENCE => Err(unanswered(&parts[i])),
                    None => Ok(None),
                },
            };
            match acquired {
                Ok(Some(acquired)) => taken.add(i, acquired),
                Ok(None) => {
                    blocked = Some(i);
                    break;
                }
                // Its patience was short; whether the store is gone is found out with empty hands.
                Err(error) if error.may_pass() && i != first && wait != Wait::Never => {
                    (blocked, silent) = (Some(i), Some(error));
                    break;
                }
                Err(error) => {
                    taken.give_back().await;
                    return Err(error);
                }
            }
        }
        first = match blocked {
            Some(blocked) => blocked,
            None => match taken.settle(terms).await {
                Ok(Some(all)) => return Ok(Some(all)),
                Ok(None) => 0,
                Err(error) if error.may_pass() && wait != Wait::Never => {
                    silent = Some(error);
                    0
                }
                Err(error) => {
                    taken.give_back().await;
                    return Err(error);
                }
            },
        };
        // Given back before it is tried again: who waits for one of them gets it now.
        taken.give_back().await;
        let out_of_time = match wait {
            Wait::Never => true,
            Wait::Until(limit) => clock.now() >= limit,
            Wait::Forever => false,
        };
        if out_of_time {
            return silent.map_or(Ok(None), Err);
        }
        let pause = clock.now() + jittered(PAUSE);
        let pause = if let Wait::Until(limit) = wait { pause.min(limit) } else { pause };
        if let Some(instant) = clock.instant(pause) {
            tokio::time::sleep_until(instant).await;
        }
    }
}

fn unanswered((core, request): &Part) -> crate::Error {
    core.error(no_answer("the store does not answer"), &request.resource, Phase::Acquire)
}

async fn one(
    (core, request): &Part,
    term: TermSpec,
    patience: Duration,
    wait: Wait,
) -> Result<Option<Acquired>> {
    let wait = match (wait, patience) {
        (Wait::Never, _) => Wait::Never,
        (Wait::Forever, Duration::MAX) => Wait::Forever,
        (_, patience) => Wait::within(core, Some(patience)),
    };
    acquire(core, &Request { term, wait, ..request.clone() }).await
}

/// Members on the way to their guard; whoever walks away gives them back.
struct Taken {
    all: Vec<Acquired>,
    /// By their place in the order.
    by: Vec<Option<usize>>,
}

impl Taken {
    fn add(&mut self, place: usize, acquired: Acquired) {
        self.by[place] = Some(self.all.len());
        self.all.push(acquired);
    }

    /// Takes all but `first`, which is there, in one request; whether that worked.
    async fn rest(&mut self, parts: &[Part], first: usize, term: TermSpec) -> Result<bool> {
        let places: Vec<_> = (0..parts.len()).filter(|i| *i != first).collect();
        let rest: Vec<_> = places.iter().map(|i| parts[*i].clone()).collect();
        if rest.is_empty() {
            return Ok(true);
        }
        let Some(acquired) = together(&rest, term).await? else { return Ok(false) };
        for (place, acquired) in places.into_iter().zip(acquired) {
            self.add(place, acquired);
        }
        Ok(true)
    }

    /// All are there: gives them their terms, all from now on. Nothing if one was lost meanwhile.
    async fn settle(&mut self, terms: Terms) -> Result<Option<Vec<Acquired>>> {
        let settling = self.all.iter().map(|(lease, hold)| -> BoxFuture<_> {
            Box::pin(lease.core.unbroken(Arc::clone(lease).extend(*hold, terms.held)))
        });
        let mut lost = false;
        for settled in side_by_side(settling.collect()).await {
            match settled {
                Ok(()) => {}
                Err(crate::Error::Lost { .. }) => lost = true,
                Err(error) => return Err(error),
            }
        }
        if lost || self.all.iter().any(|(lease, _)| !lease.is_held()) {
            return Ok(None);
        }
        let mut all: Vec<_> = std::mem::take(&mut self.all).into_iter().map(Some).collect();
        Ok(Some(self.by.iter().filter_map(|place| all[(*place)?].take()).collect()))
    }

    async fn give_back(mut self) {
        let releases = std::mem::take(&mut self.all)
            .into_iter()
            .map(|(lease, hold)| -> BoxFuture<_> { Box::pin(release::release(lease, hold, None)) });
        // What was lost is given back already; where the store is silent it goes on by itself.
        let _ = tokio::time::timeout(GIVING_BACK, side_by_side(releases.collect())).await;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        for (lease, hold) in self.all.drain(..) {
            release::release_later(lease, hold);
        }
    }
}

/// Polls all of them in turn, so that their requests leave together; their outcomes in order.
pub(crate) async fn side_by_side(mut work: Vec<BoxFuture<Result<()>>>) -> Vec<Result<()>> {
    let mut outcomes: Vec<_> = work.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (work, outcome) in work.iter_mut().zip(&mut outcomes) {
            if outcome.is_none()
                && let Poll::Ready(done) = work.as_mut().poll(cx)
            {
                *outcome = Some(done);
            }
        }
        if outcomes.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outcomes.into_iter().flatten().collect()
}

/// Whether these are plain locks of one client, which can be taken in one request.
fn go_together(parts: &[Part]) -> bool {
    let core = &parts[0].0;
    let plain = |(other, request): &Part| {
        Arc::ptr_eq(core, other)
            && request.resource.kind == Kind::Lock
            && request.owner.is_none()
            && request.fenced.is_none()
    };
    parts.iter().all(plain) && core.backend.capabilities().takes_together
}

/// Plain locks of one client in one request. Nothing where that is not to be had: then one after
/// the other.
async fn together(parts: &[Part], term: TermSpec) -> Result<Option<Vec<Acquired>>> {
    if !go_together(parts) {
        return Ok(None);
    }
    let core = &parts[0].0;
    let mut seats = Vec::with_capacity(parts.len());
    for (core, request) in parts {
        core.ensure_open(&request.resource)?;
        match Gates::enter(core, &request.resource, || None) {
            Entered::Seat(seat) => seats.push(seat),
            Entered::Queued(_) | Entered::Taken => return Ok(None),
        }
    }
    let sent = core.clock.now();
    let mut claims: Vec<_> =
        parts.iter().map(|(core, request)| Claim::new(core, request)).collect();
    let ttl = term.ttl;
    claims.iter_mut().for_each(|claim| claim.arm(ttl, sent));
    let also = claims[1..].iter().map(|claim| (claim.resource.name.clone(), claim.owner)).collect();
    let request =
        Acquire { also, ..Acquire::new(claims[0].resource.clone(), claims[0].owner, ttl) };
    let asking = core.backend.acquire(request);
    // Seats and claims go with the request: whoever ends up with the answer undoes what was granted.
    let work = async move {
        let answer = asking.await;
        for claim in &mut claims {
            claim.learn(&answer, sent, false);
        }
        (answer, claims, seats)
    };
    let (answer, claims, seats) = core.unbroken(work).await;
    match answer {
        Ok(Attempt::Granted { .. }) => {}
        Ok(_) => return Ok(None),
        Err(fault) => return Err(core.error(fault, &parts[0].1.resource, crate::Phase::Acquire)),
    }
    let now = core.clock.now();
    let mut taken = Taken { all: Vec::new(), by: Vec::new() };
    for ((claim, mut seat), (_, request)) in claims.into_iter().zip(seats).zip(parts) {
        seat.taken(now);
        let request = Request { term, ..request.clone() };
        match Lease::begin(claim, seat, true, &request, None, (sent, now)) {
            Ok(lease) => taken.all.push((lease, 0 as HoldId)),
            // The answer took longer than the lease lasts.
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(std::mem::take(&mut taken.all)))
}
