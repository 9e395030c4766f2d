//! Counters without owners: changes that must not be applied twice, and waiting for a latch.
//!
//! The store remembers the answer to each change for as long as the change may be repeated, and answers
//! a repetition without applying it.

use std::sync::Arc;
use std::time::Duration;

use super::request::Wait;
use super::{Core, RETRY_COUNTERS, Tick, jittered, no_answer, until};
use crate::OwnerId;
use crate::backend::{
    Change, Changed, CountChange, Fault, Resource, Snapshot, Subscription, Topic,
};
use crate::config::RECHECK;
use crate::error::{Error, Phase, Result};

/// Changes a counter once, however often the request is sent. Runs to completion: a dropped future
/// is completed in the background.
pub(crate) async fn change(
    core: &Arc<Core>,
    resource: &Resource,
    change: CountChange,
) -> Result<Changed> {
    let id = OwnerId::fresh(core.id);
    let request = Change::Count { resource: resource.clone(), id, change };
    insist(core, resource, request).await
}

/// Sends a change that is safe to repeat until it is answered, for as long as the store would
/// recognise a repetition.
pub(crate) async fn insist(
    core: &Arc<Core>,
    resource: &Resource,
    request: Change,
) -> Result<Changed> {
    core.ensure_open(resource)?;
    let (inner, resource) = (Arc::clone(core), resource.clone());
    let work = async move {
        let core = inner;
        let bears = core.options.unreachable_after.min(RETRY_COUNTERS);
        let give_up = core.clock.now() + bears;
        let (mut failures, mut doubtful) = (0, false);
        loop {
            let sent = core.clock.now();
            let answer = core.backend.adjust(request.clone()).await;
            core.note(sent, &answer);
            let fault = match answer {
                Ok(changed) => return Ok(changed),
                Err(fault) => fault,
            };
            doubtful |= fault.maybe_ran();
            if fault.may_pass() && core.clock.now() < give_up && !core.is_closed() {
                tokio::time::sleep(core.backoff(failures)).await;
                failures += 1;
                continue;
            }
            return Err(match fault {
                Fault::Unreachable { detail, .. } | Fault::Refused { detail } if doubtful => {
                    Error::Unconfirmed { lock: resource.name.clone(), phase: Phase::Change, detail }
                }
                fault => core.error(fault, &resource, Phase::Change),
            });
        }
    };
    core.unbroken(work).await
}

/// Waits until a latch is open. Returns false when the wait limit passes first.
///
/// A latch may be opened and set again before the next look at it, so a message that it was opened
/// suffices here, and is not only a hint.
pub(crate) async fn opened(core: &Arc<Core>, resource: &Resource, wait: Wait) -> Result<bool> {
    core.ensure_open(resource)?;
    let limit = wait.limit();
    let mut listening: Option<Subscription> = None;
    let (mut failures, mut failing_since, mut polling) = (0, None, false);
    loop {
        let seen = listening.as_ref().map(Subscription::seen);
        let sent = core.clock.now();
        let patience =
            failing_since.map_or(Tick::NEVER, |since: Tick| since + core.options.unreachable_after);
        let asking = core.unbroken(core.backend.inspect(resource.clone()));
        let answer_by = core.answer_by(limit, sent).min(patience);
        let answer = until(&core.clock, answer_by, asking).await;
        if listening.as_ref().is_some_and(Subscription::said_zero) {
            return Ok(true);
        }
        if let Some(answer) = &answer {
            core.note(sent, answer);
        }
        let now = core.clock.now();
        match answer {
            Some(Ok(snapshot)) if is_open(&snapshot) => return Ok(true),
            Some(Ok(_)) if now >= limit || wait == Wait::Never => return Ok(false),
            Some(Ok(_)) => (failures, failing_since) = (0, None),
            Some(Err(fault)) if !fault.may_pass() => {
                return Err(core.error(fault, resource, Phase::Wait));
            }
            answer => {
                failing_since.get_or_insert(sent);
                if now >= limit || now >= patience || wait == Wait::Never {
                    let silent = || no_answer("the store does not answer");
                    let fault = answer.and_then(std::result::Result::err).unwrap_or_else(silent);
                    return Err(core.error(fault, resource, Phase::Wait));
                }
                pause(core, core.backoff(failures), limit).await;
                failures += 1;
                continue;
            }
        }
        match (&listening, seen) {
            (Some(subscription), Some(seen)) => {
                let wake = (now + jittered(RECHECK)).min(limit);
                let mut closing = std::pin::pin!(core.closing.notified());
                closing.as_mut().enable();
                if !core.is_closed() {
                    tokio::select! {
                        _ = until(&core.clock, wake, subscription.beyond(seen)) => {}
                        () = closing => {}
                    }
                }
                if let Some(fault) = subscription.failure() {
                    listening = None;
                    polling |= core.polls_instead(&fault);
                }
            }
            _ if polling => pause(core, jittered(super::acquire::POLL), limit).await,
            _ => {
                let patience = (now + core.options.response_timeout).min(limit);
                let subscribing = core.backend.subscribe(Topic::Latch(resource.name.clone()));
                match until(&core.clock, patience, subscribing).await {
                    Some(Ok(subscription)) => listening = Some(subscription),
                    Some(Err(fault)) if !fault.may_pass() => {
                        polling |= core.polls_instead(&fault);
                    }
                    _ => pause(core, core.backoff(failures), limit).await,
                }
            }
        }
        core.ensure_open(resource)?;
    }
}

fn is_open(snapshot: &Snapshot) -> bool {
    snapshot.count.is_none_or(|count| count <= 0)
}

/// Sleeps, at most until `limit`.
async fn pause(core: &Core, span: Duration, limit: Tick) {
    let wake = (core.clock.now() + span).min(limit);
    if let Some(instant) = core.clock.instant(wake) {
        tokio::select! {
            () = tokio::time::sleep_until(instant) => {}
            () = core.closing.notified() => {}
        }
    }
}
