//! A claim: the right to one wire identity, and the duty to undo it.
//!
//! From the moment a request to acquire may have reached the store until a lease takes over, the
//! claim is *armed*: dropping it hands an undo to the reaper.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::{Core, Tick};
use crate::OwnerId;
use crate::backend::{Acquire, Attempt, BoxFuture, Fault, Kind, Release, Resource};

#[derive(Debug)]
pub(crate) struct Claim {
    core: Arc<Core>,
    pub(crate) resource: Resource,
    pub(crate) owner: OwnerId,
    armed: bool,
    /// A request got no answer: whether the store granted it is not known.
    doubtful: bool,
    /// When the first request without an answer was sent. A mutex's time to live may count from it.
    first_doubt: Option<Tick>,
    /// When what may be stored ends at the latest.
    ends: Tick,
}

impl Claim {
    pub(crate) fn new(core: &Arc<Core>, resource: &Resource) -> Self {
        Self::of(core, resource, OwnerId::fresh(core.id))
    }

    fn of(core: &Arc<Core>, resource: &Resource, owner: OwnerId) -> Self {
        Self {
            core: Arc::clone(core),
            resource: resource.clone(),
            owner,
            armed: false,
            doubtful: false,
            first_doubt: None,
            ends: Tick::from_nanos(0),
        }
    }

    /// A claim to what the store has granted already, by a hand-over.
    pub(crate) fn granted(
        core: &Arc<Core>,
        resource: &Resource,
        owner: OwnerId,
        ends: Tick,
    ) -> Self {
        let mut claim = Self::of(core, resource, owner);
        (claim.armed, claim.ends) = (true, ends);
        claim
    }

    /// A claim to what the store may have granted, or not.
    pub(crate) fn doubtful(
        core: &Arc<Core>,
        resource: &Resource,
        owner: OwnerId,
        ends: Tick,
    ) -> Self {
        let mut claim = Self::granted(core, resource, owner, ends);
        claim.doubtful = true;
        claim
    }

    /// Sends the request once, now, which is `sent`.
    ///
    /// Takes the claim along, so that whoever ends up with the outcome also has the duty to undo.
    pub(crate) fn attempt(mut self, ttl: u64, sent: Tick) -> Attempting {
        self.armed = true;
        self.ends = sent + Duration::from_millis(ttl);
        let request = Acquire {
            resource: self.resource.clone(),
            owner: self.owner,
            count: 1,
            ttl,
            from: None,
        };
        let answer = self.core.backend.acquire(request);
        Attempting { under_way: Some((self, answer)), sent }
    }

    /// Learns from the answer to what was sent at `sent`. Answers from when the time to live counts.
    fn learn(&mut self, answer: &Result<Attempt, Fault>, sent: Tick) -> Tick {
        self.core.note(sent, answer);
        match answer {
            Ok(Attempt::Granted) => {}
            Ok(_) => self.armed = self.doubtful,
            Err(fault) if fault.maybe_ran() => {
                self.doubtful = true;
                self.first_doubt.get_or_insert(sent);
            }
            Err(_) => self.armed = self.doubtful,
        }
        // Scripts refresh the time to live each time they run; a repeated `SET NX` does not.
        match self.resource.kind {
            Kind::Mutex => self.first_doubt.unwrap_or(sent),
            Kind::Lock => sent,
        }
    }

    /// A lease has taken over.
    pub(crate) fn disarm(mut self) {
        self.armed = false;
    }

    fn undo(&self) {
        let (core, ends, doubtful) = (Arc::clone(&self.core), self.ends, self.doubtful);
        let release = Release {
            resource: self.resource.clone(),
            owner: self.owner,
            keep: 0,
            ttl: None,
            leave: false,
        };
        self.core.reaper.adopt(Box::pin(undo(core, release, ends, doubtful)));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.armed {
            tracing::debug!(lock = %self.resource.name, owner = %self.owner, "undoing an acquire");
            self.undo();
        }
    }
}

/// An attempt under way. If its caller walks away, the reaper waits for the answer, and the claim
/// then undoes what was granted.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Attempting {
    under_way: Option<(Claim, BoxFuture<Result<Attempt, Fault>>)>,
    sent: Tick,
}

impl Future for Attempting {
    /// The answer, from when the time to live counts, and the claim.
    type Output = (Result<Attempt, Fault>, Tick, Claim);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (_, answer) = self.under_way.as_mut().expect("polled after it was ready");
        let answer = ready!(answer.as_mut().poll(cx));
        let (mut claim, _) = self.under_way.take().expect("it was there a line ago");
        let counts = claim.learn(&answer, self.sent);
        Poll::Ready((answer, counts, claim))
    }
}

impl Drop for Attempting {
    fn drop(&mut self) {
        if let Some((mut claim, answer)) = self.under_way.take() {
            let (reaper, sent) = (claim.core.reaper.clone(), self.sent);
            reaper.adopt(Box::pin(async move {
                let answer = answer.await;
                claim.learn(&answer, sent);
            }));
        }
    }
}

/// Releases until it is certain that nothing of the claim is left: at the first answer where a lost
/// request cannot come later, otherwise until its time to live would have ended.
pub(crate) async fn undo(core: Arc<Core>, release: Release, ends: Tick, doubtful: bool) {
    let mut failures = 0;
    loop {
        let sent = core.clock.now();
        let answer = core.backend.release(release.clone()).await;
        core.note(sent, &answer);
        match answer {
            Ok(_) if !doubtful || core.backend.capabilities().fences_lost_requests => return,
            Ok(_) => failures = 3,
            Err(fault) if fault.may_pass() => failures += 1,
            Err(_) => return,
        }
        if core.clock.now() >= ends {
            return;
        }
        tokio::time::sleep(core.backoff(failures)).await;
    }
}
