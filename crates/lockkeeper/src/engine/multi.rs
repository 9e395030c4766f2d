//! Several locks as one: all or none.
//!
//! All clients acquire the members in one order, and hold the earlier ones while they wait for a later one: in one
//! order that cannot deadlock. A program that keeps another order can still hold what is waited for and wait for
//! what is held here. Its holder stays then. That goes for holders in this client, too: their tasks may keep another
//! order. So a member that one holder has kept for [`MEMBER_WAIT`] ends the round: all is released, and the next
//! round begins with that member, while none is held. For the others it waits for a [`GRACE`] only, because who
//! releases one of them often releases the next a moment later, and cycles of our own must cost little. If
//! another is still busy, the next round begins with that one: in the end with the one that others acquire first.
//! To release it again and go in order would be simpler. But beside a fair queue of holders in the opposite
//! order, each round then ends as the last one did: nearly always, both sides stand still.
//!
//! After as many such rounds as there are members, the next one goes in order again and waits longer for each
//! member: the holder may as well be one that keeps it for long, and the number of rounds must have a limit. Not
//! twice as long, because holders that wait for each other stand still meanwhile.
//!
//! Waiting is not limited by time alone: behind a long queue that moves, each round would give up the
//! positions that the last one had waited for.

use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::acquire::Acquired;
use super::local_queue::{Entered, Grant, LocalQueues};
use super::pending_acquire::PendingAcquire;
use super::reenter::extend;
use super::release::{Releasing, release_later};
use super::terms::Request;
use super::terms::TermSpec;
use super::{Core, Lease, Tick, jittered, no_answer};
use crate::backend::{Acquire, Attempt, HOLDERS_MAX, Kind, List, Resource, Select};
use crate::clock::Clock;
use crate::error::{Error, Phase, Result};

/// How long to wait in the first round for one member that one holder keeps, while others are held.
const MEMBER_WAIT: Duration = Duration::from_millis(1500);

/// How long to wait for each of the others after a round began with the member that blocked.
const GRACE: Duration = Duration::from_millis(50);

/// How long to wait for the answer who the holders of that member are.
const LOOK_WAIT: Duration = Duration::from_secs(1);

/// The pause after a round: holders that gave up at the same moment do not meet again.
const PAUSE: Duration = Duration::from_millis(50);

/// How long to wait for the release of members.
const RELEASE_WAIT: Duration = Duration::from_millis(250);

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
    parts: &[Request],
    terms: Terms,
    wait: Duration,
) -> Result<Option<Vec<Acquired>>> {
    let clock = &parts[0].core.clock;
    let limit = clock.now() + wait;
    // After a failure here, the members are tried one by one: that finds the failing one and retries.
    if let Ok(Some(all)) = together(parts, terms.held).await {
        return Ok(Some(all));
    }
    Assembly { parts, terms, limit, clock }.run().await
}

/// The acquire of several locks, one by one.
struct Assembly<'a> {
    parts: &'a [Request],
    terms: Terms,
    limit: Tick,
    clock: &'a Clock,
}

/// Why a round did not acquire all members.
struct Blocked {
    /// The member that was busy, or whose store did not answer.
    by: usize,
    error: Option<Error>,
}

impl Assembly<'_> {
    async fn run(self) -> Result<Option<Vec<Acquired>>> {
        let mut member_wait = MEMBER_WAIT;
        loop {
            let mut first = 0;
            for _ in 0..=self.parts.len() {
                match self.round(first, member_wait).await? {
                    ControlFlow::Continue(by) => first = by,
                    ControlFlow::Break(acquired) => return Ok(acquired),
                }
            }
            member_wait = member_wait.saturating_mul(3) / 2;
        }
    }

    /// Acquires all, beginning with `first`, or returns the member that blocked it. `None` if the wait limit has
    /// passed.
    async fn round(
        &self,
        first: usize,
        member_wait: Duration,
    ) -> Result<ControlFlow<Option<Vec<Acquired>>, usize>> {
        // While none is held, one is waited for until the wait limit passes or its store is unreachable.
        let Some(acquired) = self.one(first, self.left()).await? else {
            return Ok(ControlFlow::Break(None));
        };
        let mut held = Held(vec![acquired]);
        let Blocked { by, error } = match self.others(first, member_wait, &mut held).await {
            Ok(all) => return Ok(ControlFlow::Break(Some(all))),
            Err(blocked) => blocked,
        };
        // Released before the pause: a waiter for one of them gets it now.
        held.release().await;
        match error {
            Some(error) if !error.may_pass() || self.left().is_zero() => return Err(error),
            None if self.left().is_zero() => return Ok(ControlFlow::Break(None)),
            _ => {}
        }
        let pause = self.clock.now() + jittered(PAUSE).min(self.left());
        if let Some(instant) = self.clock.instant(pause) {
            tokio::time::sleep_until(instant).await;
        }
        Ok(ControlFlow::Continue(by))
    }

    /// Acquires the members beside `first`, in order, and gives all their final terms.
    async fn others(
        &self,
        first: usize,
        member_wait: Duration,
        held: &mut Held,
    ) -> Result<Vec<Acquired>, Blocked> {
        for by in (0..self.parts.len()).filter(|i| *i != first) {
            let wait = if first == 0 { self.left() } else { GRACE.min(self.left()) };
            match self.while_others_are_held(by, wait, member_wait).await {
                Ok(Some(acquired)) => held.0.push(acquired),
                Ok(None) => return Err(Blocked { by, error: None }),
                Err(error) => return Err(Blocked { by, error: Some(error) }),
            }
        }
        // Into the common order.
        held.0[..=first].rotate_left(1);
        match held.settle(self.terms).await {
            Ok(true) => Ok(mem::take(&mut held.0)),
            Ok(false) => Err(Blocked { by: 0, error: None }),
            Err(error) => Err(Blocked { by: 0, error: Some(error) }),
        }
    }

    async fn one(&self, i: usize, wait: Duration) -> Result<Option<Acquired>> {
        // The wait limit is by the clock of its own client.
        Request { term: self.terms.assembling, wait, ..self.parts[i].clone() }.acquire().await
    }

    /// Acquires one member while others are held. Gives up when it is kept too long, or when its store
    /// answers nothing for as long.
    async fn while_others_are_held(
        &self,
        i: usize,
        wait: Duration,
        member_wait: Duration,
    ) -> Result<Option<Acquired>> {
        let Request { core, resource, .. } = &self.parts[i];
        tokio::select! {
            biased;
            acquired = self.one(i, wait) => return acquired,
            () = kept(core, resource, member_wait) => {}
        }
        if self.left().is_zero() {
            // It waited for nothing but an answer.
            return Err(core.error(no_answer(), resource, Phase::Acquire));
        }
        Ok(None)
    }

    /// How long the caller still waits.
    fn left(&self) -> Duration {
        match self.limit {
            Tick::NEVER => Duration::MAX,
            limit => limit.since(self.clock.now()),
        }
    }
}

/// Resolves once a holder has kept a lock for so long, or the store has not said who holds it.
async fn kept(core: &Arc<Core>, resource: &Resource, member_wait: Duration) {
    let (start, first_look) = (Instant::now(), member_wait / 3);
    let mut before = None::<Vec<String>>;
    for looks in 0.. {
        tokio::time::sleep_until(start + first_look + (member_wait - first_look) * looks).await;
        if looks > 0 && before.is_none() {
            return;
        }
        // Only a list names the holders of permits.
        let select = Select::Named(resource.name.clone(), Some(resource.kind));
        let list = List { select, cursor: Vec::new(), limit: 1 };
        let looking = core.run_to_completion(core.backend.list(list));
        let look = tokio::time::timeout(LOOK_WAIT, looking).await;
        let Some(now) = look.ok().and_then(Result::ok) else {
            before = None;
            continue;
        };
        let holders = now.locks.into_iter().flat_map(|lock| lock.holders);
        let now: Vec<_> = holders.map(|holder| holder.id).collect();
        if before.is_some_and(|before| stands_still(resource.kind, &before, &now)) {
            return;
        }
        before = Some(now);
    }
}

/// Whether a holder stays that may be what is waited for.
fn stands_still(kind: Kind, before: &[String], now: &[String]) -> bool {
    let mut before = before.iter();
    match kind {
        // Any permit that was released is one to acquire.
        // A list that is cut off shows those that expire soonest, which renewals change.
        Kind::Permits => now.len() >= HOLDERS_MAX || before.all(|id| now.contains(id)),
        // Readers may come and go beside one that stays. Between two holders a lock is free for a moment.
        _ => before.any(|id| now.contains(id)),
    }
}

/// Members that are held without a guard yet. Released when dropped.
struct Held(Vec<Acquired>);

impl Held {
    /// Gives all members their final terms, starting now. A renewed lease that was acquired just now has
    /// them already. Returns whether none was lost meanwhile.
    async fn settle(&self, terms: Terms) -> Result<bool> {
        let is_fresh = |lease: &Lease| {
            terms.held.renewed && lease.core.clock.now().since(lease.granted) < MEMBER_WAIT
        };
        let stale = self.0.iter().filter(|(lease, _)| !is_fresh(lease));
        let settling = stale.map(|(lease, hold)| {
            lease.core.run_to_completion(extend(Arc::clone(lease), *hold, terms.held))
        });
        for settled in join_all(settling).await {
            match settled {
                Ok(()) | Err(Error::Lost { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.0.iter().all(|(lease, _)| lease.is_held()))
    }

    async fn release(mut self) {
        let held = mem::take(&mut self.0).into_iter();
        let releases: Vec<_> =
            held.map(|(lease, hold)| Releasing::new(lease, hold, None).released()).collect();
        // A lost member needs no release; where the store does not answer, the release continues in
        // the background.
        let _ = tokio::time::timeout(RELEASE_WAIT, join_all(releases)).await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (lease, hold) in self.0.drain(..) {
            release_later(lease, hold);
        }
    }
}

/// Whether these are plain locks of one client, which one request can acquire.
fn go_together(parts: &[Request]) -> bool {
    let core = &parts[0].core;
    let plain = |request: &Request| {
        Arc::ptr_eq(core, &request.core)
            && request.resource.kind == Kind::Lock
            && request.owner.is_none()
            && request.fenced.is_none()
    };
    let name = &parts[0].resource.name;
    parts.iter().all(plain) && core.backend.capabilities(name).takes_together
}

/// Acquires plain locks of one client in one request. Returns `None` where that is impossible or
/// one is busy: then one by one.
async fn together(parts: &[Request], term: TermSpec) -> Result<Option<Vec<Acquired>>> {
    if !go_together(parts) {
        return Ok(None);
    }
    let core = &parts[0].core;
    let mut fronts = Vec::with_capacity(parts.len());
    for Request { resource, .. } in parts {
        core.ensure_open(resource)?;
        match LocalQueues::enter(core, resource, || None) {
            Entered::Front(front) => fronts.push(front),
            Entered::Queued(_) | Entered::Occupied => return Ok(None),
        }
    }
    let sent = core.clock.now();
    let mut pending: Vec<_> = parts.iter().map(PendingAcquire::new).collect();
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
            one.note_answer(&answer, sent, false);
        }
        (answer, pending, fronts)
    };
    let (answer, pending, fronts) = core.run_to_completion(work).await;
    match answer {
        Ok(Attempt::Granted { .. }) => {}
        Ok(_) => return Ok(None),
        Err(fault) => return Err(core.error(fault, &parts[0].resource, Phase::Acquire)),
    }
    let now = core.clock.now();
    let mut held = Held(Vec::new());
    for ((pending, mut front), request) in pending.into_iter().zip(fronts).zip(parts) {
        front.acquired(now);
        let request = Request { term, ..request.clone() };
        if !request.is_in_time(sent, now) {
            return Ok(None);
        }
        let grant = Grant { pending, front, token: None, sent };
        held.0.push((Lease::begin(grant, &request, now), 0));
    }
    Ok(Some(mem::take(&mut held.0)))
}
