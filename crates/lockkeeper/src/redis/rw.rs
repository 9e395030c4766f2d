//! The read/write lock on Redis.
//!
//! **The writer's lease expires with the lock, unless a nested reader outlasts it.** Only then a
//! separate key records when the writer's lease expires, so that a plain writer costs nothing more. A
//! script that finds this lease expired turns the lock into one in read mode.
//!
//! **After five seconds of waiting the readers take precedence, and writers comply**: they leave a free
//! lock to a waiting reader, and do not hand it off among themselves. A window that opens by the clock
//! alone would be missed again and again under a stream of writers.

use super::resp::Value;

use super::command::{Command, Script};
use super::keys::Derived;
use super::publish::Wakes;
use super::{Inner, bulk, keys, name, number, script, standing, unfit};
use crate::backend::{Acquire, Fault, Holder, LockInfo, Release, Renew, Resource};
use crate::{LockName, OwnerId};

/// Creates a call with the lock, other keys of it and, in a cluster, [`keys::whole`]: the scripts use
/// keys that they cannot declare, and must not run while some of them are at another node.
fn call(script: &'static Script, name: &LockName, others: &[Derived<'_>], wakes: Wakes) -> Command {
    let whole = wakes.is_cluster().then(|| keys::whole(name));
    let count = 1 + others.len() + usize::from(whole.is_some());
    let keys = others.iter().chain(&whole);
    keys.fold(script.call(count).arg(name.as_bytes()), |call, key| call.arg(*key))
}

/// Creates a request to acquire the read side.
pub(super) fn acquire_read(request: &Acquire, wakes: Wakes) -> Result<Command, Fault> {
    if request.from.is_some() || !request.also.is_empty() {
        return Err(unfit(request.resource.kind));
    }
    let Acquire { resource, owner, ttl, count, .. } = request;
    let others = [keys::writers(&resource.name), keys::patience(&resource.name)];
    let call = call(&script::READ_ACQUIRE, &resource.name, &others, wakes);
    let call = call.owner(owner).arg(ttl).arg(count).arg(keys::tagged(&resource.name));
    Ok(owner_or_empty(call, request.beside).arg(u8::from(request.waits)))
}

/// Creates a request to acquire the write side.
pub(super) fn acquire_write(request: &Acquire, wakes: Wakes) -> Result<Command, Fault> {
    let Acquire { resource, owner, ttl, count, fenced, .. } = request;
    if !request.also.is_empty() {
        return Err(unfit(resource.kind));
    }
    let script = match (request.from, fenced) {
        (Some(_), None) => &script::WRITE_HANDOVER,
        (Some(_), Some(_)) => &script::WRITE_HANDOVER_FENCED,
        (None, None) => &script::WRITE_ACQUIRE,
        (None, Some(_)) => &script::WRITE_ACQUIRE_FENCED,
    };
    let name = &resource.name;
    let others = [keys::writers(name), keys::patience(name), keys::token(name)];
    let others = if fenced.is_some() { &others[..] } else { &others[..2] };
    let (call, prefix) = (call(script, name, others, wakes), keys::tagged(name));
    let call = match &request.from {
        Some(from) => {
            let call = call.owner(from).owner(owner).arg(ttl).arg(prefix);
            call.arg(wakes.publish()).arg(keys::rw_channel(&resource.name))
        }
        None => {
            let call = call.owner(owner).arg(ttl).arg(count).arg(prefix);
            owner_or_empty(call, request.beside).arg(u8::from(request.waits))
        }
    };
    let waits = request.waits && request.from.is_none();
    let channel = waits.then(|| keys::rw_channel(&resource.name));
    Ok(call.waiting_on(*fenced, channel, wakes))
}

/// Creates a request to release the read side.
pub(super) fn release_read(request: &Release, wakes: Wakes) -> Command {
    release(call(&script::READ_RELEASE, &request.resource.name, &[], wakes), request, wakes)
}

/// Creates a request to release the write side.
pub(super) fn release_write(request: &Release, wakes: Wakes) -> Command {
    let name = &request.resource.name;
    let call = call(&script::WRITE_RELEASE, name, &[keys::writers(name)], wakes);
    release(call, request, wakes)
}

impl Inner {
    pub(super) async fn inspect_rw(&self, resource: &Resource) -> Result<LockInfo, Fault> {
        let mut lock = self.inspected_rw(resource).await?;
        lock.holders = self.described(lock.holders).await;
        Ok(lock)
    }

    pub(super) async fn inspected_rw(&self, resource: &Resource) -> Result<LockInfo, Fault> {
        let name = &resource.name;
        inspected(resource, self.route.call(name.as_bytes(), inspect(name, self.wakes)).await?)
    }
}

/// Creates a request for the holders.
pub(super) fn inspect(name: &LockName, wakes: Wakes) -> Command {
    call(&script::RW_INSPECT, name, &[], wakes).arg(keys::tagged(name))
}

/// Parses the TTL, then alternating owner, hold count and whether the hold is shared.
pub(super) fn inspected(resource: &Resource, answer: Value) -> Result<LockInfo, Fault> {
    let Some((ttl, mut values)) = standing(answer)? else {
        return Ok(LockInfo::new(resource));
    };
    let mut holders = Vec::new();
    while let (Some(id), Some(count), Some(shared)) = (values.next(), values.next(), values.next())
    {
        let (id, count, shared) = (bulk(id)?, number(&count), shared == Value::Int(1));
        holders.push(Holder::new(id, count, shared));
    }
    Ok(LockInfo { holders, ttl: Some(ttl), ..LockInfo::new(resource) })
}

fn owner_or_empty(call: Command, owner: Option<OwnerId>) -> Command {
    match owner {
        Some(owner) => call.owner(&owner),
        None => call.arg(""),
    }
}

/// Appends the release arguments of both sides.
fn release(call: Command, request: &Release, wakes: Wakes) -> Command {
    let call = call.owner(&request.owner).arg(request.keep).arg(wakes.publish());
    let call = call.arg(keys::rw_channel(&request.resource.name));
    let call = call.arg(keys::tagged(&request.resource.name));
    call.ttl_or_empty(request.ttl).arg(u8::from(request.leave))
}

pub(super) fn renew_readers(batch: &[&Renew], wakes: Wakes) -> Command {
    // In a cluster, all names of a batch are in one slot.
    let whole = batch.first().filter(|_| wakes.is_cluster());
    renew(&script::READ_RENEW, batch, whole.map(|renew| keys::whole(&renew.resource.name)))
}

fn renew(script: &'static Script, batch: &[&Renew], whole: Option<Derived<'_>>) -> Command {
    let mut call = script.call(batch.len() + usize::from(whole.is_some()));
    for renew in batch {
        call = call.arg(name(&renew.resource));
    }
    if let Some(whole) = whole {
        call = call.arg(whole);
    }
    for renew in batch {
        call = call.owner(&renew.owner).arg(renew.ttl.unwrap_or(0));
        call = call.arg(keys::tagged(&renew.resource.name));
    }
    call
}

pub(super) fn renew_writers(batch: &[&Renew], _: Wakes) -> Command {
    renew(&script::WRITE_RENEW, batch, None)
}

/// Force-releases the whole lock, whichever side is given.
pub(super) fn force_unlock(resource: &Resource, reason: String, wakes: Wakes) -> Command {
    let call = call(&script::RW_FORCE_UNLOCK, &resource.name, &[], wakes).arg(wakes.publish());
    let call = call.arg(keys::rw_channel(&resource.name)).arg(keys::NOTICE).arg(reason);
    call.arg(keys::tagged(&resource.name))
}

#[cfg(test)]
mod tests {
    use testkit::{RedisServer, Reply};
    use uuid::Uuid;

    use super::*;
    use crate::backend::{Fenced, Kind};
    use crate::redis::testing::{cluster, declared, run};

    /// What the reply to a request must be.
    type Expected = fn(&Reply) -> bool;

    /// All requests for two locks of one slot, each with what its reply must be.
    fn steps(wakes: Wakes) -> Vec<(Command, Expected)> {
        let client = Uuid::new_v4();
        let [one, other] = [(); 2].map(|()| OwnerId::fresh(client));
        let of = |kind, name: &str| Resource { kind, name: name.into() };
        let (read, read_too, write) =
            (of(Kind::Read, "{s}a"), of(Kind::Read, "{s}b"), of(Kind::Write, "{s}a"));
        let first = |resource: &Resource| Acquire::new(resource.clone(), one, 60_000);
        let waiter = Acquire { owner: other, waits: true, ..first(&write) };
        let hand_off = Acquire { owner: other, from: Some(one), ..first(&write) };
        let fenced = |request: &Acquire| {
            let fenced = Some(Fenced { ttl: None });
            acquire_write(&Acquire { fenced, ..request.clone() }, wakes).unwrap()
        };
        let renew = |resource: &Resource, owner| Renew::new(resource.clone(), owner, Some(90_000));
        let (one_reads, one_reads_too) = (renew(&read, one), renew(&read_too, one));
        let release = |resource: &Resource, owner| Release::new(resource.clone(), owner);
        let is_held = |reply: &Reply| reply.array().iter().all(|left| left.int() > 0);
        vec![
            (acquire_read(&first(&read), wakes).unwrap(), Reply::is_nil),
            (acquire_read(&first(&read_too), wakes).unwrap(), Reply::is_nil),
            (renew_readers(&[&one_reads, &one_reads_too], wakes), |reply| {
                reply.array().len() == 2 && reply.array().iter().all(|left| left.int() > 0)
            }),
            (inspect(&read.name, wakes), |reply| reply.array().len() == 4),
            (acquire_write(&waiter, wakes).unwrap(), |reply| reply.int() > 60_000),
            (release_write(&release(&write, other), wakes), |reply| !reply.text().is_empty()),
            (release_read(&release(&read, one), wakes), |reply| reply.int() == 0),
            (acquire_write(&first(&write), wakes).unwrap(), Reply::is_nil),
            (acquire_write(&hand_off, wakes).unwrap(), Reply::is_nil),
            (renew_writers(&[&renew(&write, other)], wakes), is_held),
            (release_write(&release(&write, other), wakes), |reply| reply.int() == 0),
            (fenced(&first(&write)), |reply| !reply.text().is_empty()),
            (fenced(&hand_off), |reply| !reply.text().is_empty()),
            (force_unlock(&write, String::new(), wakes), |reply| reply.array().len() == 1),
        ]
    }

    #[test]
    fn all_requests_declare_the_whole_slot_in_a_cluster_and_mean_the_same() {
        let (single, cluster) = (RedisServer::start(), cluster());
        let servers =
            [(Wakes::Plain, &single), (Wakes::Classic, &cluster), (Wakes::Sharded, &cluster)];
        for (wakes, server) in servers {
            server.cli(&["FLUSHALL"]).ok();
            for (number, (command, is_right)) in steps(wakes).into_iter().enumerate() {
                let reply = run(server, command);
                assert!(is_right(&reply), "{wakes:?}: {number} answers {reply:?}");
                let names = server.cli(&["KEYS", "*_whole*"]);
                assert_eq!(names.array().len(), 0, "it never exists");
            }
            for (number, (command, _)) in steps(wakes).into_iter().enumerate() {
                let keys = declared(command);
                let is_whole = |key: &Vec<u8>| key.starts_with(b"lockkeeper_whole:{s}");
                // A renewal of a writer is served throughout a migration.
                let expected = wakes.is_cluster() && number != 9;
                assert_eq!(keys.last().is_some_and(is_whole), expected, "{wakes:?}: {number}");
                let count = keys.iter().filter(|key| is_whole(key)).count();
                assert_eq!(count, usize::from(expected), "{wakes:?}: {number}");
            }
        }
    }
}
