//! The read/write lock on Redis.
//!
//! **The writer's lease expires with the lock, unless a nested reader outlasts it.** Only then a
//! separate key records when the writer's lease expires, so that a plain writer costs nothing more. A
//! script that finds this lease expired turns the lock into one in read mode.
//!
//! **After five seconds of waiting the readers take precedence, and writers comply**: they leave a free
//! lock to a waiting reader, and do not hand it off among themselves. A window that opens by the clock
//! alone would be missed again and again under a stream of writers.

use super::command::Wakes;
use super::command::{Command, Script};
use super::keys::Derived;
use super::reply::{Forced, Held, Renewals, Reply, unfit};
use super::{keys, name, script};
use crate::backend::{Acquire, Attempt, Fault, Release, Released, Renew, Resource};
use crate::{LockName, OwnerId};

/// Creates a call with the lock, other keys of it and, in a cluster, [`keys::whole`]: the scripts use
/// keys that they cannot declare, and must not run while some of them are at another node.
fn call<T: Reply>(
    script: &'static Script<T>,
    name: &LockName,
    others: &[Derived<'_>],
    wakes: Wakes,
) -> Command<T> {
    let whole = wakes.is_cluster().then(|| keys::whole(name));
    let count = 1 + others.len() + usize::from(whole.is_some());
    let keys = others.iter().chain(&whole);
    keys.fold(script.call(count).arg(name.as_bytes()), |call, key| call.arg(*key))
}

pub(super) fn acquire_read(request: &Acquire, wakes: Wakes) -> Result<Command<Attempt>, Fault> {
    if request.from.is_some() || !request.also.is_empty() {
        return Err(unfit(request.resource.kind));
    }
    let Acquire { resource, owner, ttl, count, .. } = request;
    let others = [keys::writers(&resource.name), keys::patience(&resource.name)];
    let call = call(&script::READ_ACQUIRE, &resource.name, &others, wakes);
    let call = call.arg(owner).arg(ttl).arg(count).arg(keys::tagged(&resource.name));
    Ok(owner_or_empty(call, request.beside).arg(u8::from(request.waits)))
}

pub(super) fn acquire_write(request: &Acquire, wakes: Wakes) -> Result<Command<Attempt>, Fault> {
    let Acquire { resource, owner, ttl, count, fenced, .. } = request;
    if !request.also.is_empty() {
        return Err(unfit(resource.kind));
    }
    let script = match (request.from, fenced) {
        (Some(_), None) => &script::WRITE_HANDOFF,
        (Some(_), Some(_)) => &script::WRITE_HANDOFF_FENCED,
        (None, None) => &script::WRITE_ACQUIRE,
        (None, Some(_)) => &script::WRITE_ACQUIRE_FENCED,
    };
    let name = &resource.name;
    let others = [keys::writers(name), keys::patience(name), keys::token(name)];
    let others = if fenced.is_some() { &others[..] } else { &others[..2] };
    let (call, prefix) = (call(script, name, others, wakes), keys::tagged(name));
    let call = match &request.from {
        Some(from) => {
            let call = call.arg(from).arg(owner).arg(ttl).arg(prefix);
            call.arg(wakes.publish()).arg(keys::rw_channel(&resource.name))
        }
        None => {
            let call = call.arg(owner).arg(ttl).arg(count).arg(prefix);
            owner_or_empty(call, request.beside).arg(u8::from(request.waits))
        }
    };
    let waits = request.waits && request.from.is_none();
    let channel = waits.then(|| keys::rw_channel(&resource.name));
    Ok(call.waiting_on(*fenced, channel, wakes))
}

pub(super) fn release_read(request: &Release, wakes: Wakes) -> Command<Released> {
    release(call(&script::READ_RELEASE, &request.resource.name, &[], wakes), request, wakes)
}

pub(super) fn release_write(request: &Release, wakes: Wakes) -> Command<Released> {
    let name = &request.resource.name;
    let call = call(&script::WRITE_RELEASE, name, &[keys::writers(name)], wakes);
    release(call, request, wakes)
}

pub(super) fn inspect(name: &LockName, wakes: Wakes) -> Command<Held<3>> {
    call(&script::RW_INSPECT, name, &[], wakes).arg(keys::tagged(name))
}

fn owner_or_empty<T>(call: Command<T>, owner: Option<OwnerId>) -> Command<T> {
    match owner {
        Some(owner) => call.arg(owner),
        None => call.arg(""),
    }
}

fn release(call: Command<Released>, request: &Release, wakes: Wakes) -> Command<Released> {
    let call = call.arg(request.owner).arg(request.keep).arg(wakes.publish());
    let call = call.arg(keys::rw_channel(&request.resource.name));
    let call = call.arg(keys::tagged(&request.resource.name));
    call.ttl_or_empty(request.ttl).arg(u8::from(request.leave))
}

pub(super) fn renew_readers(batch: &[&Renew], wakes: Wakes) -> Command<Renewals> {
    // In a cluster, all names of a batch are in one slot.
    let whole = batch.first().filter(|_| wakes.is_cluster());
    renew(&script::READ_RENEW, batch, whole.map(|renew| keys::whole(&renew.resource.name)))
}

pub(super) fn renew(
    script: &'static Script<Renewals>,
    batch: &[&Renew],
    whole: Option<Derived<'_>>,
) -> Command<Renewals> {
    let mut call = script.call(batch.len() + usize::from(whole.is_some()));
    for renew in batch {
        call = call.arg(name(&renew.resource));
    }
    if let Some(whole) = whole {
        call = call.arg(whole);
    }
    for renew in batch {
        call = call.arg(renew.owner).arg(renew.ttl.unwrap_or(0));
        call = call.arg(keys::tagged(&renew.resource.name));
    }
    call
}

/// Force-releases the whole lock, whichever side is given.
pub(super) fn force_unlock(resource: &Resource, reason: String, wakes: Wakes) -> Command<Forced> {
    let call = call(&script::RW_FORCE_UNLOCK, &resource.name, &[], wakes).arg(wakes.publish());
    let call = call.arg(keys::rw_channel(&resource.name)).arg(keys::NOTICE).arg(reason);
    call.arg(keys::tagged(&resource.name))
}
