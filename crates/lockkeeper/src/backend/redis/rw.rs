//! The read/write lock on Redis.
//!
//! **The writer's lease expires with the lock, unless a nested reader outlasts it.** Only then a
//! separate key records when the writer's lease expires, so that a plain writer costs nothing more. A
//! script that finds this lease expired turns the lock into one in read mode.
//!
//! **After five seconds of waiting the readers take precedence, and writers comply**: they leave a free
//! lock to a waiting reader, and do not hand it off among themselves. A window that opens by the clock
//! alone would be missed again and again under a stream of writers.

use redis::Value;

use super::lock::settle;
use super::script::{self, Command, Script};
use super::{Inner, PUBLISH, attempt, bulk, keys, name, number, standing, unfit};
use crate::backend::{Acquire, Attempt, Fault, HolderEntry, Release, Renew, Resource, Snapshot};
use crate::{LockName, OwnerId};

impl Inner {
    pub(super) async fn acquire_read(&self, request: Acquire) -> Result<Attempt, Fault> {
        if request.from.is_some() || !request.also.is_empty() {
            return Err(unfit(request.resource.kind));
        }
        let Acquire { resource, owner, ttl, count, .. } = &request;
        let call = script::READ_ACQUIRE.call(3).arg(name(resource));
        let call = call.arg(keys::writers(&resource.name)).arg(keys::patience(&resource.name));
        let call = call.owner(owner).arg(ttl).arg(count).arg(keys::tagged(&resource.name));
        let call = owner_or_empty(call, request.beside).arg(u8::from(request.waits));
        self.link.call(call).await.and_then(attempt)
    }

    pub(super) async fn acquire_write(&self, request: Acquire) -> Result<Attempt, Fault> {
        let Acquire { resource, owner, ttl, count, fenced, .. } = &request;
        if !request.also.is_empty() {
            return Err(unfit(resource.kind));
        }
        let script = match (request.from, fenced) {
            (Some(_), None) => &script::WRITE_HANDOVER,
            (Some(_), Some(_)) => &script::WRITE_HANDOVER_FENCED,
            (None, None) => &script::WRITE_ACQUIRE,
            (None, Some(_)) => &script::WRITE_ACQUIRE_FENCED,
        };
        let call = script.call(if fenced.is_some() { 4 } else { 3 });
        let call = call.arg(name(resource)).arg(keys::writers(&resource.name));
        let call = call.arg(keys::patience(&resource.name));
        let call = match fenced {
            Some(_) => call.arg(keys::token(&resource.name)),
            None => call,
        };
        let prefix = keys::tagged(&resource.name);
        let call = match &request.from {
            Some(from) => {
                let call = call.owner(from).owner(owner).arg(ttl).arg(prefix);
                call.arg(PUBLISH).arg(keys::rw_channel(&resource.name))
            }
            None => {
                let call = call.owner(owner).arg(ttl).arg(count).arg(prefix);
                owner_or_empty(call, request.beside).arg(u8::from(request.waits))
            }
        };
        let waits = request.waits && request.from.is_none();
        let call = call.waiting_on(*fenced, waits.then(|| keys::rw_channel(&resource.name)));
        settle(self.link.call(call).await, request.from.is_some())
    }

    pub(super) async fn release_read(&self, request: Release) -> Result<Value, Fault> {
        let call = script::READ_RELEASE.call(1).arg(name(&request.resource));
        self.link.call(release(call, &request)).await
    }

    pub(super) async fn release_write(&self, request: Release) -> Result<Value, Fault> {
        let call = script::WRITE_RELEASE.call(2).arg(name(&request.resource));
        let call = call.arg(keys::writers(&request.resource.name));
        self.link.call(release(call, &request)).await
    }

    pub(super) async fn inspect_rw(&self, resource: &Resource) -> Result<Snapshot, Fault> {
        let mut snapshot = inspected(self.link.call(inspect(&resource.name)).await?)?;
        for holder in &mut snapshot.holders {
            let HolderEntry { id, count, shared, .. } = holder;
            *holder = self.holder(std::mem::take(id), *count, *shared).await;
        }
        Ok(snapshot)
    }
}

/// Creates a request for the holders.
pub(super) fn inspect(name: &LockName) -> Command {
    script::RW_INSPECT.call(1).arg(name.as_bytes()).arg(keys::tagged(name))
}

/// Parses the TTL, then alternating owner, hold count and whether the hold is shared.
pub(super) fn inspected(answer: Value) -> Result<Snapshot, Fault> {
    let Some((ttl, mut values)) = standing(answer)? else {
        return Ok(Snapshot::default());
    };
    let mut holders = Vec::new();
    while let (Some(id), Some(count), Some(shared)) = (values.next(), values.next(), values.next())
    {
        let (id, count, shared) = (bulk(id)?, number(&count), shared == Value::Int(1));
        holders.push(HolderEntry::new(id, count, shared));
    }
    Ok(Snapshot { holders, ttl: Some(ttl), ..Snapshot::default() })
}

fn owner_or_empty(call: Command, owner: Option<OwnerId>) -> Command {
    match owner {
        Some(owner) => call.owner(&owner),
        None => call.arg(""),
    }
}

/// Appends the release arguments of both sides.
fn release(call: Command, request: &Release) -> Command {
    let call = call.owner(&request.owner).arg(request.keep).arg(PUBLISH);
    let call = call.arg(keys::rw_channel(&request.resource.name));
    let call = call.arg(keys::tagged(&request.resource.name));
    call.ttl_or_empty(request.ttl).arg(u8::from(request.leave))
}

pub(super) fn renew_readers(batch: &[&Renew]) -> Command {
    renew(&script::READ_RENEW, batch)
}

fn renew(script: &'static Script, batch: &[&Renew]) -> Command {
    let mut call = script.call(batch.len());
    for renew in batch {
        call = call.arg(name(&renew.resource));
    }
    for renew in batch {
        call = call.owner(&renew.owner).arg(renew.ttl.unwrap_or(0));
        call = call.arg(keys::tagged(&renew.resource.name));
    }
    call
}

pub(super) fn renew_writers(batch: &[&Renew]) -> Command {
    renew(&script::WRITE_RENEW, batch)
}

/// Force-releases the whole lock, whichever side is given.
pub(super) fn force_unlock(resource: &Resource, reason: String) -> Command {
    let call = script::RW_FORCE_UNLOCK.call(1).arg(name(resource)).arg(PUBLISH);
    let call = call.arg(keys::rw_channel(&resource.name)).arg(keys::NOTICE).arg(reason);
    call.arg(keys::tagged(&resource.name))
}
