//! The reentrant lock and the mutex on Redis.
//!
//! A release is `HDEL` and `PUBLISH`. Removing the last field deletes the key, so no check is needed
//! before it, and a field that another program put there survives.

use std::sync::atomic::Ordering;

use super::command::Wakes;
use super::command::{Command, Script};
use super::error_reply::ErrorReply;
use super::reply::{Forced, Renewals};
use super::{RedisInner, keys, name, script};
use crate::OwnerId;
use crate::backend::{Acquire, Attempt, Fault, Release, Released, Renew, Resource};

/// The holder of a mutex that is not free.
type Holder = Option<Vec<u8>>;

pub(super) fn acquire(request: &Acquire, wakes: Wakes) -> Command<Attempt> {
    if !request.also.is_empty() {
        return acquire_together(request);
    }
    let script = match (request.from, request.fenced) {
        (Some(_), None) => &script::LOCK_HANDOFF,
        (Some(_), Some(_)) => &script::LOCK_HANDOFF_FENCED,
        (None, None) => &script::LOCK_ACQUIRE,
        (None, Some(_)) => &script::LOCK_ACQUIRE_FENCED,
    };
    acquire_by(script, request, wakes, false)
}

/// Creates a request to acquire a free lock from a member of a quorum with this nonce.
pub(super) fn acquire_from_member(
    request: &Acquire,
    wakes: Wakes,
    nonce: &str,
) -> Command<Attempt> {
    let script = match request.fenced {
        None => &script::LOCK_ACQUIRE_MEMBER,
        Some(_) => &script::LOCK_ACQUIRE_MEMBER_FENCED,
    };
    acquire_by(script, request, wakes, true).arg(nonce)
}

#[inline(always)]
fn acquire_by(
    script: &'static Script<Attempt>,
    request: &Acquire,
    wakes: Wakes,
    is_member: bool,
) -> Command<Attempt> {
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

fn acquire_together(request: &Acquire) -> Command<Attempt> {
    let call = script::LOCK_ACQUIRE_TOGETHER.call(1 + request.also.len());
    let mut call = call.arg(name(&request.resource));
    for (name, _) in &request.also {
        call = call.arg(name.as_bytes());
    }
    call = call.arg(request.ttl).arg(request.owner);
    for (_, owner) in &request.also {
        call = call.arg(owner);
    }
    call
}

pub(super) fn release(request: &Release, wakes: Wakes) -> Command<Released> {
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

pub(super) fn release_mutex(request: &Release, wakes: Wakes) -> Command<Released> {
    let mut call = script::MUTEX_RELEASE.call(1);
    call.push(name(&request.resource));
    call.push(request.owner);
    call.push(wakes.publish());
    call.push(keys::channel(&request.resource.name));
    call.ttl_or_empty(request.ttl)
}

/// Creates a request to acquire a mutex: by `SET … NX GET`, if the server accepts it.
pub(super) fn acquire_mutex(request: &Acquire, set_nx_get: bool) -> Command<Holder> {
    let (owner, key) = (&request.owner, name(&request.resource));
    if set_nx_get {
        let mut set = Command::plain("SET");
        set.push(key);
        set.push(owner);
        ["NX", "GET", "PX"].iter().for_each(|word| set.push(word));
        set.push(request.ttl);
        return set;
    }
    script::MUTEX_ACQUIRE.call(1).arg(key).arg(owner).arg(request.ttl)
}

/// Creates a request to acquire a mutex from a member of a quorum with this nonce.
fn acquire_mutex_from_member(request: &Acquire, nonce: &str) -> Command<Holder> {
    let call = script::MUTEX_ACQUIRE_MEMBER.call(2).arg(name(&request.resource)).arg(keys::MARKER);
    // Its release follows it, and would find nothing yet.
    call.arg(request.owner).arg(request.ttl).arg(nonce).in_order()
}

pub(super) fn hand_off_mutex(request: &Acquire) -> Command<Attempt> {
    let call = script::MUTEX_HANDOFF.call(1).arg(name(&request.resource));
    request.from.iter().fold(call, Command::arg).arg(request.owner).arg(request.ttl)
}

impl RedisInner {
    /// Acquires a mutex. What one server answers at once is in place, as for other locks.
    pub(super) async fn acquire_mutex(&self, request: &Acquire) -> Result<Attempt, Fault> {
        self.fits(&request.resource.name)?;
        let command = match &self.membership {
            Some(membership) => acquire_mutex_from_member(request, &membership.nonce()?),
            None => acquire_mutex(request, self.set_nx_get.load(Ordering::Relaxed)),
        };
        match self.send_mutex(request, command).await {
            // A free mutex needs nothing more.
            Ok(None) => Ok(Attempt::GRANTED),
            holder => Box::pin(self.busy_mutex(request, holder)).await,
        }
    }

    fn send_mutex(
        &self,
        request: &Acquire,
        command: Command<Holder>,
    ) -> impl Future<Output = Result<Holder, Fault>> {
        let is_granted = |holder: &Holder| held_by(holder, &request.owner).is_granted();
        self.route.write(name(&request.resource), command, is_granted)
    }

    /// Interprets the reply to the acquire of a mutex that is not free. A number may be a plain lock of another
    /// library, but one without a TTL is a counter, and waiting for it would never end.
    async fn busy_mutex(
        &self,
        request: &Acquire,
        holder: Result<Holder, Fault>,
    ) -> Result<Attempt, Fault> {
        let holder = match holder {
            // Also after another acquire has found that out: this one was sent before.
            Err(fault) if ErrorReply::behind(&fault).is_some_and(ErrorReply::is_syntax_error) => {
                self.set_nx_get.store(false, Ordering::Relaxed);
                self.send_mutex(request, acquire_mutex(request, false)).await?
            }
            holder => holder?,
        };
        let attempt = held_by(&holder, &request.owner);
        let text = holder.as_deref().and_then(|holder| std::str::from_utf8(holder).ok());
        if !attempt.is_granted() && text.is_some_and(|text| text.parse::<i64>().is_ok()) {
            let key = name(&request.resource);
            if self.route.call::<i64>(key, Command::plain("PTTL").arg(key)).await? == -1 {
                let found = "a number that never ends: a semaphore or a latch".to_owned();
                return Err(Fault::WrongKind { found });
            }
        }
        Ok(attempt)
    }
}

pub(super) fn held_by(holder: &Holder, owner: &OwnerId) -> Attempt {
    match holder {
        Some(id) if *id != owner.to_string().into_bytes() => Attempt::busy(None),
        _ => Attempt::GRANTED,
    }
}

pub(super) fn renew(script: &'static Script<Renewals>, batch: &[&Renew]) -> Command<Renewals> {
    let mut call = script.call(batch.len());
    for renew in batch {
        call = call.arg(name(&renew.resource));
    }
    for renew in batch {
        call = call.arg(renew.owner).arg(renew.ttl.unwrap_or(0));
    }
    call
}

pub(super) fn force_unlock(
    script: &'static Script<Forced>,
    resource: &Resource,
    reason: String,
    wakes: Wakes,
) -> Command<Forced> {
    let call = script.call(1).arg(name(resource)).arg(wakes.publish());
    call.arg(keys::channel(&resource.name)).arg(keys::NOTICE).arg(reason)
}
