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
use super::lease::HoldId;
use super::local_queue::{Entered, LocalQueues};
use super::owners::acquire;
use super::pending_acquire::PendingAcquire;
use super::request::{Request, TermSpec, Wait};
use super::{Core, Lease, jittered, no_answer, release, until};
use crate::backend::{Acquire, Attempt, BoxFuture, Kind};
use crate::error::{Phase, Result};

/// How long to wait for one member while others are held.
const PATIENCE: Duration = Duration::from_millis(1500);

/// How often members that fit in one request are tried without holding one of them, before one is
/// held while waiting for the others: under a stream of other requests one client must wait.
const REFUSALS: u32 = 16;

/// The pause before the next try from the start.
const PAUSE: Duration = Duration::from_millis(50);

/// How long to wait for the release of members.
const GIVING_BACK: Duration = Duration::from_millis(250);

/// One member: its client and its request.
pub(crate) type Part = (Arc<Core>, Request);

/// The terms of the members.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// While they are acquired: renewed, so that the first is not lost before the last is acquired.
    pub(crate) assembling: TermSpec,
    /// After all are acquired.
    pub(crate) held: TermSpec,
}

/// Acquires all of `parts`, which are in the common order. Returns `None` if that did not succeed
/// within `wait`, which counts by the clock of the first.
pub(crate) async fn acquire_all(
    parts: &[Part],
    terms: Terms,
    wait: Wait,
) -> Result<Option<Vec<Acquired>>> {
    let clock = parts[0].0.clock.clone();
    // The member to wait for while none is held: the one that was busy last.
    let mut first = 0;
    let mut refusals = 0;
    loop {
        let mut silent = None;
        // After a failure here, the members are tried one by one: that finds the failing one and
        // retries.
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
        // Where the others fit in one request, none is held while waiting for one of them.
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
                // While others are held, do not wait longer even for an answer.
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
                // Its wait limit was short; whether the store is unreachable is found out while
                // none is held.
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
        // Released before the next try: a waiter for one of them gets it now.
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

/// Acquired members without a guard yet. Released when dropped.
struct Taken {
    all: Vec<Acquired>,
    /// Indices into `all`, by position in the common order.
    by: Vec<Option<usize>>,
}

impl Taken {
    fn add(&mut self, place: usize, acquired: Acquired) {
        self.by[place] = Some(self.all.len());
        self.all.push(acquired);
    }

    /// Acquires all but `first`, which is held, in one request. Returns whether that succeeded.
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

    /// Gives all members their final terms, starting now. Returns `None` if one was lost meanwhile.
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
        // A lost member needs no release; where the store does not answer, the release continues in
        // the background.
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

/// Polls all of them in turn, so that their requests leave together. Returns their outcomes in
/// order.
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

/// Whether these are plain locks of one client, which one request can acquire.
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

/// Acquires plain locks of one client in one request. Returns `None` where that is impossible or
/// one is busy: then one by one.
async fn together(parts: &[Part], term: TermSpec) -> Result<Option<Vec<Acquired>>> {
    if !go_together(parts) {
        return Ok(None);
    }
    let core = &parts[0].0;
    let mut seats = Vec::with_capacity(parts.len());
    for (core, request) in parts {
        core.ensure_open(&request.resource)?;
        match LocalQueues::enter(core, &request.resource, || None) {
            Entered::Seat(seat) => seats.push(seat),
            Entered::Queued(_) | Entered::Taken => return Ok(None),
        }
    }
    let sent = core.clock.now();
    let mut claims: Vec<_> =
        parts.iter().map(|(core, request)| PendingAcquire::new(core, request)).collect();
    let ttl = term.ttl;
    claims.iter_mut().for_each(|claim| claim.arm(ttl, sent));
    let also = claims[1..].iter().map(|claim| (claim.resource.name.clone(), claim.owner)).collect();
    let request =
        Acquire { also, ..Acquire::new(claims[0].resource.clone(), claims[0].owner, ttl) };
    let asking = core.backend.acquire(request);
    // The request owns seats and claims: the receiver of the answer undoes a grant.
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
            // The answer took longer than the lease.
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(std::mem::take(&mut taken.all)))
}
