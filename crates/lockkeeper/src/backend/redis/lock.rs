//! The reentrant lock and the mutex on Redis.
//!
//! A release is `HDEL` and `PUBLISH`. Removing the last field deletes the key, so no check is needed
//! before it, and a field that another program put there survives.

use std::sync::atomic::Ordering;

use redis::Value;

use super::script::{self, Command, Script};
use super::{Inner, PUBLISH, attempt, keys, name, unexpected};
use crate::OwnerId;
use crate::backend::{Acquire, Attempt, Fault, Kind, Release, Renew, Resource};

impl Inner {
    pub(super) async fn acquire_lock(&self, request: Acquire) -> Result<Attempt, Fault> {
        if !request.also.is_empty() {
            return self.acquire_together(request).await;
        }
        let script = match (request.from, request.fenced) {
            (Some(_), None) => &script::LOCK_HANDOVER,
            (Some(_), Some(_)) => &script::LOCK_HANDOVER_FENCED,
            (None, None) => &script::LOCK_ACQUIRE,
            (None, Some(_)) => &script::LOCK_ACQUIRE_FENCED,
        };
        let key = name(&request.resource);
        let call = match request.fenced {
            None => script.call(1).arg(key),
            Some(_) => script.call(2).arg(key).arg(keys::token(&request.resource.name)),
        };
        let call = match &request.from {
            Some(from) => call.owner(from).owner(&request.owner).arg(request.ttl),
            None => call.owner(&request.owner).arg(request.ttl).arg(request.count),
        };
        let waits = request.waits && request.from.is_none();
        let channel = waits.then(|| keys::channel(&request.resource.name));
        let answer = self.link.call(call.waiting_on(request.fenced, channel)).await;
        settle(answer, request.from.is_some())
    }

    async fn acquire_together(&self, request: Acquire) -> Result<Attempt, Fault> {
        let call = script::LOCK_ACQUIRE_TOGETHER.call(1 + request.also.len());
        let mut call = call.arg(name(&request.resource));
        for (name, _) in &request.also {
            call = call.arg(name.as_bytes());
        }
        call = call.arg(request.ttl).owner(&request.owner);
        for (_, owner) in &request.also {
            call = call.owner(owner);
        }
        self.link.call(call).await.and_then(attempt)
    }

    pub(super) async fn acquire_mutex(&self, request: Acquire) -> Result<Attempt, Fault> {
        let (owner, key) = (&request.owner, name(&request.resource));
        if let Some(from) = &request.from {
            let call = script::MUTEX_HANDOVER.call(1).arg(key).owner(from).owner(owner);
            return settle(self.link.call(call.arg(request.ttl)).await, true);
        }
        if self.set_nx_get.load(Ordering::Relaxed) {
            let set = Command::plain("SET").arg(key).owner(owner).arg("NX").arg("GET");
            let answer = self.link.call(set.arg("PX").arg(request.ttl)).await;
            match answer {
                Err(Fault::Server { detail }) if detail.contains("syntax error") => {
                    self.set_nx_get.store(false, Ordering::Relaxed);
                }
                answer => return self.held_by(answer?, &request).await,
            }
        }
        let call = script::MUTEX_ACQUIRE.call(1).arg(key).owner(owner).arg(request.ttl);
        self.held_by(self.link.call(call).await?, &request).await
    }

    /// Interprets the value of a busy mutex. A number may be a plain lock of another library, but
    /// one without a TTL is a counter, and waiting for it would never end.
    async fn held_by(&self, holder: Value, request: &Acquire) -> Result<Attempt, Fault> {
        let attempt = held_by(&holder, &request.owner)?;
        let Value::BulkString(holder) = holder else { return Ok(attempt) };
        let is_number = !attempt.is_granted()
            && std::str::from_utf8(&holder).is_ok_and(|text| text.parse::<i64>().is_ok());
        if is_number {
            let left = self.link.call(Command::plain("PTTL").arg(name(&request.resource))).await?;
            if left == Value::Int(-1) {
                let found = "a number that never ends: a semaphore or a latch".to_owned();
                return Err(Fault::WrongKind { found });
            }
        }
        Ok(attempt)
    }

    pub(super) async fn release_lock(&self, request: Release) -> Result<Value, Fault> {
        let key = name(&request.resource);
        let call = script::LOCK_RELEASE.call(1).arg(key).owner(&request.owner).arg(request.keep);
        let call = call.arg(PUBLISH).arg(keys::channel(&request.resource.name));
        let call = if request.keep > 0 {
            call.ttl_or_empty(request.ttl).arg(u8::from(request.leave))
        } else {
            call
        };
        self.link.call(call).await
    }

    pub(super) async fn release_mutex(&self, request: Release) -> Result<Value, Fault> {
        let call = script::MUTEX_RELEASE.call(1).arg(name(&request.resource));
        let call = call.owner(&request.owner).arg(PUBLISH);
        let call = call.arg(keys::channel(&request.resource.name)).ttl_or_empty(request.ttl);
        self.link.call(call).await
    }
}

/// Interprets the answer to an acquire. For a handoff, a key of another kind means that the hold no
/// longer exists.
pub(super) fn settle(answer: Result<Value, Fault>, hand_over: bool) -> Result<Attempt, Fault> {
    match answer {
        Err(Fault::WrongKind { .. }) if hand_over => Ok(Attempt::Gone),
        answer => answer.and_then(attempt),
    }
}

fn held_by(holder: &Value, owner: &OwnerId) -> Result<Attempt, Fault> {
    match holder {
        Value::Nil => Ok(Attempt::GRANTED),
        Value::BulkString(id) if *id == owner.encode(&mut OwnerId::encode_buffer()) => {
            Ok(Attempt::GRANTED)
        }
        Value::BulkString(_) => Ok(Attempt::Busy(None)),
        other => Err(unexpected(other)),
    }
}

/// Whether the entry is a hold of a lock or a fair lock, which are hashes of owners.
pub(super) fn is_hash(renew: &Renew) -> bool {
    matches!(renew.resource.kind, Kind::Lock | Kind::Fair) && !renew.waiting
}

pub(super) fn renew_locks(batch: &[&Renew]) -> Command {
    renew(&script::LOCK_RENEW, batch)
}

pub(super) fn renew_mutexes(batch: &[&Renew]) -> Command {
    renew(&script::MUTEX_RENEW, batch)
}

fn renew(script: &'static Script, batch: &[&Renew]) -> Command {
    let mut call = script.call(batch.len());
    for renew in batch {
        call = call.arg(name(&renew.resource));
    }
    for renew in batch {
        call = call.owner(&renew.owner).arg(renew.ttl.unwrap_or(0));
    }
    call
}

pub(super) fn force_unlock(
    script: &'static Script,
    resource: &Resource,
    reason: String,
) -> Command {
    let call = script.call(1).arg(name(resource)).arg(PUBLISH);
    call.arg(keys::channel(&resource.name)).arg(keys::NOTICE).arg(reason)
}
