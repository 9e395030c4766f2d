//! The reentrant lock and the mutex on Redis.
//!
//! A release is `HDEL` and `PUBLISH`. Removing the last field deletes the key, so no check is needed
//! before it, and a field that another program put there survives.

use std::sync::atomic::Ordering;

use super::resp::Value;

use super::command::{Command, Script};
use super::publish::Wakes;
use super::{Inner, attempt, keys, name, script, unexpected};
use crate::OwnerId;
use crate::backend::{Acquire, Attempt, Fault, Kind, Release, Renew, Resource};

/// Creates a request to acquire a lock.
pub(super) fn acquire(request: &Acquire, wakes: Wakes) -> Command {
    if !request.also.is_empty() {
        return acquire_together(request);
    }
    let script = match (request.from, request.fenced) {
        (Some(_), None) => &script::LOCK_HANDOVER,
        (Some(_), Some(_)) => &script::LOCK_HANDOVER_FENCED,
        (None, None) => &script::LOCK_ACQUIRE,
        (None, Some(_)) => &script::LOCK_ACQUIRE_FENCED,
    };
    acquire_by(script, request, wakes, false)
}

/// Creates a request to acquire a free lock from a member of a quorum with this nonce.
pub(super) fn acquire_from_member(request: &Acquire, wakes: Wakes, nonce: &str) -> Command {
    let script = match request.fenced {
        None => &script::LOCK_ACQUIRE_MEMBER,
        Some(_) => &script::LOCK_ACQUIRE_MEMBER_FENCED,
    };
    acquire_by(script, request, wakes, true).arg(nonce)
}

#[inline(always)]
fn acquire_by(
    script: &'static Script,
    request: &Acquire,
    wakes: Wakes,
    is_member: bool,
) -> Command {
    let mut call = script.call(1 + usize::from(request.fenced.is_some()) + usize::from(is_member));
    call.push(name(&request.resource));
    if request.fenced.is_some() {
        call.push(keys::token(&request.resource.name));
    }
    if is_member {
        call.push(keys::MARKER);
    }
    if let Some(from) = &request.from {
        call.push(from);
    }
    call.push(request.owner);
    call.push(request.ttl);
    if request.from.is_none() {
        call.push(request.count);
    }
    let waits = request.waits && request.from.is_none();
    let channel = waits.then(|| keys::channel(&request.resource.name));
    call.waiting_on(request.fenced, channel, wakes)
}

fn acquire_together(request: &Acquire) -> Command {
    let call = script::LOCK_ACQUIRE_TOGETHER.call(1 + request.also.len());
    let mut call = call.arg(name(&request.resource));
    for (name, _) in &request.also {
        call = call.arg(name.as_bytes());
    }
    call = call.arg(request.ttl).owner(&request.owner);
    for (_, owner) in &request.also {
        call = call.owner(owner);
    }
    call
}

/// Creates a request to release a lock.
pub(super) fn release(request: &Release, wakes: Wakes) -> Command {
    let mut call = script::LOCK_RELEASE.call(1);
    call.push(name(&request.resource));
    call.push(request.owner);
    call.push(request.keep);
    call.push(wakes.publish());
    call.push(keys::channel(&request.resource.name));
    if request.keep > 0 {
        return call.ttl_or_empty(request.ttl).arg(u8::from(request.leave));
    }
    call
}

/// Creates a request to release a mutex.
pub(super) fn release_mutex(request: &Release, wakes: Wakes) -> Command {
    let mut call = script::MUTEX_RELEASE.call(1);
    call.push(name(&request.resource));
    call.push(request.owner);
    call.push(wakes.publish());
    call.push(keys::channel(&request.resource.name));
    call.ttl_or_empty(request.ttl)
}

/// Creates a request to acquire a mutex: by `SET … NX GET`, if the server accepts it.
pub(super) fn acquire_mutex(request: &Acquire, set_nx_get: bool) -> Command {
    let (owner, key) = (&request.owner, name(&request.resource));
    if let Some(from) = &request.from {
        let call = script::MUTEX_HANDOVER.call(1).arg(key).owner(from).owner(owner);
        return call.arg(request.ttl);
    }
    if set_nx_get {
        let mut set = Command::plain("SET");
        set.push(key);
        set.push(owner);
        ["NX", "GET", "PX"].iter().for_each(|word| set.push(word));
        set.push(request.ttl);
        return set;
    }
    script::MUTEX_ACQUIRE.call(1).arg(key).owner(owner).arg(request.ttl)
}

/// Creates a request to acquire a mutex from a member of a quorum with this nonce.
pub(super) fn acquire_mutex_from_member(request: &Acquire, nonce: &str) -> Command {
    let call = script::MUTEX_ACQUIRE_MEMBER.call(2).arg(name(&request.resource)).arg(keys::MARKER);
    call.owner(&request.owner).arg(request.ttl).arg(nonce)
}

impl Inner {
    pub(super) fn sets_nx_get(&self) -> bool {
        self.set_nx_get.load(Ordering::Relaxed)
    }

    /// Interprets the reply to the acquire of a mutex that is not free.
    pub(super) async fn mutex_reply(
        &self,
        reply: Result<Value, Fault>,
        request: &Acquire,
    ) -> Result<Attempt, Fault> {
        let reply = match reply {
            // Also after another acquire has found that out: this one was sent before.
            Err(Fault::Server { detail }) if detail.contains("syntax error") => {
                self.set_nx_get.store(false, Ordering::Relaxed);
                self.grant(request, acquire_mutex(request, false)).await
            }
            reply => reply,
        };
        self.held_by(reply?, request).await
    }

    /// Interprets the value of a busy mutex. A number may be a plain lock of another library, but
    /// one without a TTL is a counter, and waiting for it would never end.
    async fn held_by(&self, holder: Value, request: &Acquire) -> Result<Attempt, Fault> {
        let attempt = held_by(&holder, &request.owner)?;
        let Value::Bulk(holder) = holder else { return Ok(attempt) };
        let is_number = !attempt.is_granted()
            && std::str::from_utf8(&holder).is_ok_and(|text| text.parse::<i64>().is_ok());
        if is_number {
            let key = name(&request.resource);
            let left = self.route.call(key, Command::plain("PTTL").arg(key)).await?;
            if left == Value::Int(-1) {
                let found = "a number that never ends: a semaphore or a latch".to_owned();
                return Err(Fault::WrongKind { found });
            }
        }
        Ok(attempt)
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

/// Whether this answer to the acquire of a mutex grants it.
pub(super) fn is_granted(answer: &Value, owner: &OwnerId) -> bool {
    held_by(answer, owner).is_ok_and(|attempt| attempt.is_granted())
}

pub(super) fn held_by(holder: &Value, owner: &OwnerId) -> Result<Attempt, Fault> {
    match holder {
        Value::Nil => Ok(Attempt::GRANTED),
        Value::Bulk(id) if *id == owner.encode(&mut OwnerId::encode_buffer()) => {
            Ok(Attempt::GRANTED)
        }
        Value::Bulk(_) => Ok(Attempt::busy(None)),
        other => Err(unexpected(other)),
    }
}

/// Whether the entry is a hold of a lock or a fair lock, which are hashes of owners.
pub(super) fn is_hash(renew: &Renew) -> bool {
    matches!(renew.resource.kind, Kind::Lock | Kind::Fair) && !renew.waiting
}

pub(super) fn renew_locks(batch: &[&Renew], _: Wakes) -> Command {
    renew(&script::LOCK_RENEW, batch)
}

pub(super) fn renew_mutexes(batch: &[&Renew], _: Wakes) -> Command {
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
    wakes: Wakes,
) -> Command {
    let call = script.call(1).arg(name(resource)).arg(wakes.publish());
    call.arg(keys::channel(&resource.name)).arg(keys::NOTICE).arg(reason)
}
