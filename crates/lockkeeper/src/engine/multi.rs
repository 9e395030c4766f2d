//! Several locks as one: all or none.
//!
//! All clients acquire the members in the same order, so that two clients that want the same locks meet
//! at the first of them. That is not enough if a member is known by another address, or is held by a
//! program that keeps no order. So no client holds some members and waits for the rest for longer than
//! [`MEMBER_WAIT`].

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::acquire::{Acquired, is_in_time};
use super::holds::HoldId;
use super::local_queue::{Entered, Grant, LocalQueues};
use super::owners::acquire;
use super::pending_acquire::PendingAcquire;
use super::reenter::extend;
use super::request::{Request, TermSpec, Wait};
use super::{Core, Lease, jittered, no_answer, release, releasing, until};
use crate::backend::{Acquire, Attempt, Kind};
use crate::clock::Clock;
use crate::error::{Error, Phase, Result};

/// How long to wait for one member while others are held.
const MEMBER_WAIT: Duration = Duration::from_millis(1500);

/// How often members that fit in one request are tried without holding one of them, before one is
/// held while waiting for the others: under a stream of other requests one client must wait.
const REFUSALS: u32 = 16;

/// The pause before the next try from the start.
const PAUSE: Duration = Duration::from_millis(50);

/// How long to wait for the release of members.
const RELEASE_WAIT: Duration = Duration::from_millis(250);

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
    let clock = &parts[0].0.clock;
    Assembly { parts, terms, wait, clock, first: 0, refusals: 0 }.run().await
}

/// The acquire of several locks.
struct Assembly<'a> {
    parts: &'a [Part],
    terms: Terms,
    wait: Wait,
    clock: &'a Clock,
    /// The member to wait for while none is held: the one that was busy last.
    first: usize,
    refusals: u32,
}

/// Why a round did not acquire all members.
struct Blocked {
    /// The member that was busy, or whose store did not answer.
    by: usize,
    error: Option<Error>,
}

impl Assembly<'_> {
    async fn run(mut self) -> Result<Option<Vec<Acquired>>> {
        loop {
            // After a failure here, the members are tried one by one: that finds the failing one
            // and retries.
            if let Ok(Some(all)) = together(self.parts, self.terms.held).await {
                return Ok(Some(all));
            }
            let mut held = Held { all: Vec::new(), by: vec![None; self.parts.len()] };
            let blocked = match self.collect(&mut held).await {
                Ok(None) => match held.settle(self.terms).await {
                    Ok(Some(all)) => return Ok(Some(all)),
                    Ok(None) => Ok(Blocked { by: 0, error: None }),
                    Err(error) => self.blocked(0, error),
                },
                Ok(Some(blocked)) => Ok(blocked),
                Err(error) => Err(error),
            };
            // Released before the next try: a waiter for one of them gets it now.
            held.release_hold().await;
            let Blocked { by, error } = blocked?;
            self.first = by;
            if self.left().is_zero() {
                return error.map_or(Ok(None), Err);
            }
            let pause = self.clock.now() + jittered(PAUSE).min(self.left());
            if let Some(instant) = self.clock.instant(pause) {
                tokio::time::sleep_until(instant).await;
            }
        }
    }

    /// Acquires the members one by one, starting with the first to wait for. Returns the member that
    /// blocked it, if one did.
    async fn collect(&mut self, held: &mut Held) -> Result<Option<Blocked>> {
        let (parts, first) = (self.parts, self.first);
        // Where the others fit in one request, none is held while waiting for one of them.
        let mut at_once = self.refusals < REFUSALS && go_together(parts);
        self.refusals += 1;
        let others = (0..parts.len()).filter(|i| *i != first);
        for i in std::iter::once(first).chain(others) {
            if at_once && !held.all.is_empty() {
                match held.rest(parts, first, self.terms.assembling).await {
                    Ok(true) => return Ok(None),
                    Ok(false) => {
                        return Ok(Some(Blocked { by: (first + 1) % parts.len(), error: None }));
                    }
                    Err(_) => at_once = false,
                }
            }
            match self.member(i).await {
                Ok(Some(acquired)) => held.add(i, acquired),
                Ok(None) => return Ok(Some(Blocked { by: i, error: None })),
                // Its wait limit was short; whether the store is unreachable is found out while
                // none is held.
                Err(error) if i != first => return self.blocked(i, error).map(Some),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Acquires one member. While others are held, does not wait longer than [`MEMBER_WAIT`] for it,
    /// not even for an answer.
    async fn member(&self, i: usize) -> Result<Option<Acquired>> {
        let (core, request) = &self.parts[i];
        let left = self.left();
        if i == self.first {
            return one(&self.parts[i], self.terms.assembling, left, self.wait).await;
        }
        let limit = left.min(MEMBER_WAIT);
        let acquiring = one(&self.parts[i], self.terms.assembling, limit, self.wait);
        match until(self.clock, self.clock.now() + MEMBER_WAIT, acquiring).await {
            Some(acquired) => acquired,
            None if limit < MEMBER_WAIT => {
                Err(core.error(no_answer(), &request.resource, Phase::Acquire))
            }
            None => Ok(None),
        }
    }

    /// A temporary error blocks only this round, if the caller waits.
    fn blocked(&self, by: usize, error: Error) -> Result<Blocked> {
        match error.may_pass() && self.wait != Wait::Never {
            true => Ok(Blocked { by, error: Some(error) }),
            false => Err(error),
        }
    }

    /// How long the caller still waits.
    fn left(&self) -> Duration {
        match self.wait {
            Wait::Never => Duration::ZERO,
            Wait::Until(limit) => limit.since(self.clock.now()),
            Wait::Forever => Duration::MAX,
        }
    }
}

async fn one(
    (core, request): &Part,
    term: TermSpec,
    limit: Duration,
    wait: Wait,
) -> Result<Option<Acquired>> {
    let wait = match (wait, limit) {
        (Wait::Never, _) => Wait::Never,
        (Wait::Forever, Duration::MAX) => Wait::Forever,
        (_, limit) => Wait::within(core, Some(limit)),
    };
    acquire(core, &Request { term, wait, ..request.clone() }).await
}

/// Members that are held without a guard yet. Released when dropped.
struct Held {
    all: Vec<Acquired>,
    /// Indices into `all`, by position in the common order.
    by: Vec<Option<usize>>,
}

impl Held {
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
        let settling = self.all.iter().map(|(lease, hold)| {
            lease.core.run_to_completion(extend(Arc::clone(lease), *hold, terms.held))
        });
        let mut lost = false;
        for settled in join_all(settling).await {
            match settled {
                Ok(()) => {}
                Err(Error::Lost { .. }) => lost = true,
                Err(error) => return Err(error),
            }
        }
        if lost || self.all.iter().any(|(lease, _)| !lease.is_held()) {
            return Ok(None);
        }
        let mut all: Vec<_> = std::mem::take(&mut self.all).into_iter().map(Some).collect();
        Ok(Some(self.by.iter().filter_map(|place| all[(*place)?].take()).collect()))
    }

    async fn release_hold(mut self) {
        let releases = std::mem::take(&mut self.all)
            .into_iter()
            .map(|(lease, hold)| releasing::release(lease, hold, None));
        // A lost member needs no release; where the store does not answer, the release continues in
        // the background.
        let _ = tokio::time::timeout(RELEASE_WAIT, join_all(releases)).await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (lease, hold) in self.all.drain(..) {
            release::release_later(lease, hold);
        }
    }
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
    let name = &parts[0].1.resource.name;
    parts.iter().all(plain) && core.backend.capabilities(name).takes_together
}

/// Acquires plain locks of one client in one request. Returns `None` where that is impossible or
/// one is busy: then one by one.
async fn together(parts: &[Part], term: TermSpec) -> Result<Option<Vec<Acquired>>> {
    if !go_together(parts) {
        return Ok(None);
    }
    let core = &parts[0].0;
    let mut fronts = Vec::with_capacity(parts.len());
    for (core, request) in parts {
        core.ensure_open(&request.resource)?;
        match LocalQueues::enter(core, &request.resource, || None) {
            Entered::Front(front) => fronts.push(front),
            Entered::Queued(_) | Entered::Occupied => return Ok(None),
        }
    }
    let sent = core.clock.now();
    let mut pending: Vec<_> =
        parts.iter().map(|(core, request)| PendingAcquire::new(core, request)).collect();
    let ttl = term.ttl;
    pending.iter_mut().for_each(|one| one.arm(ttl, sent));
    let also = pending[1..].iter().map(|one| (one.resource.name.clone(), one.owner)).collect();
    let request =
        Acquire { also, ..Acquire::new(pending[0].resource.clone(), pending[0].owner, ttl) };
    let asking = core.backend.acquire(request);
    // The request owns fronts and pending: the receiver of the answer undoes a grant.
    let work = async move {
        let answer = asking.await;
        for one in &mut pending {
            one.learn(&answer, sent, false);
        }
        (answer, pending, fronts)
    };
    let (answer, pending, fronts) = core.run_to_completion(work).await;
    match answer {
        Ok(Attempt::Granted { .. }) => {}
        Ok(_) => return Ok(None),
        Err(fault) => return Err(core.error(fault, &parts[0].1.resource, Phase::Acquire)),
    }
    let now = core.clock.now();
    let mut held = Held { all: Vec::new(), by: Vec::new() };
    for ((pending, mut front), (_, request)) in pending.into_iter().zip(fronts).zip(parts) {
        front.acquired(now);
        let request = Request { term, ..request.clone() };
        if !is_in_time(core, &request, sent, now) {
            return Ok(None);
        }
        let grant = Grant { pending, front, token: None, sent };
        held.all.push((Lease::begin(grant, &request, now), 0 as HoldId));
    }
    Ok(Some(std::mem::take(&mut held.all)))
}
