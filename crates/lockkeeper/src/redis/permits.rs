//! The permit semaphore on Redis.

use super::command::Command;
use super::counter::remembered;
use super::reply::{Counted, Renewals, Reply};
use super::*;
use crate::backend::{CountChange, PermitChange};
use crate::{LockName, PermitId};

pub(super) fn acquire(request: &Acquire, wakes: Wakes) -> Result<Command<Attempt>, Fault> {
    model::check_acquire(request)?;
    let ids = joined(PermitId::of(request.owner, request.count));
    let call = call(&script::PERMITS_ACQUIRE, &request.resource).arg(ids).arg(request.ttl);
    let call = call.arg(wakes.publish()).arg(keys::permits_channel(&request.resource.name));
    let count = wakes.counting().filter(|_| request.waits);
    Ok(call.ttl_or_empty(request.temporary).arg(count.unwrap_or_default()))
}

/// Creates a request to release permits. An undo does no more: an acquire that executes later still
/// acquires permits, which expire with their lease. The engine prevents that with
/// [`revokes_lost_requests`](crate::backend::Capabilities::revokes_lost_requests).
pub(super) fn release(request: &Release, wakes: Wakes) -> Result<Command<Released>, Fault> {
    let lease = match (request.keep, request.ttl) {
        (0, _) => None,
        (_, None) => return Err(unfit(request.resource.kind)),
        (_, ttl) => ttl,
    };
    model::check_count(request.count)?;
    let ids = joined(PermitId::of(request.owner, request.count));
    let call = call(&script::PERMITS_RELEASE, &request.resource);
    Ok(settling(call, &request.resource, ids, lease, lease.is_some(), wakes))
}

impl RedisInner {
    pub(super) async fn change_permits(
        &self,
        resource: &Resource,
        id: OwnerId,
        change: CountChange,
    ) -> Result<Changed, Fault> {
        let call = remembered(&script::SEMAPHORE_CHANGE, 4, resource);
        let call = call.arg(keys::permit_ends(&resource.name));
        let call = call.arg(keys::temporary(&resource.name));
        self.change(call, resource, id, change, keys::permits_channel(&resource.name)).await
    }

    pub(super) async fn change_by_id(
        &self,
        resource: &Resource,
        id: OwnerId,
        ids: &[PermitId],
        change: PermitChange,
    ) -> Result<Changed, Fault> {
        self.fits(&resource.name)?;
        if resource.kind != Kind::Permits {
            return Err(unfit(resource.kind));
        }
        let ids = joined(model::distinct(ids)?);
        let lease = match change {
            PermitChange::Release => None,
            PermitChange::Lease(lease) => Some(lease),
        };
        let call = with_keys(script::PERMITS_CHANGE.call(4), &resource.name);
        let call = call.arg(keys::replies(&resource.name));
        let call = settling(call, resource, ids, lease, true, self.wakes).arg(id);
        let call = self.forgetting(call, &resource.name);
        // A released permit would expire in any case.
        let answer = self.route.write(name(resource), call, |_| lease.is_some()).await?;
        self.settle(&resource.name, id);
        let is_there = !matches!(answer, Released::Absent { .. });
        Ok(if is_there { Changed::Done } else { Changed::Nothing })
    }
}

pub(super) fn inspect(name: &LockName) -> Command<Counted> {
    with_keys(script::COUNTER_INSPECT.call(3), name)
}

/// Appends the arguments that release permits or set their lease.
fn settling(
    call: Command<Released>,
    resource: &Resource,
    ids: Vec<u8>,
    lease: Option<u64>,
    all: bool,
    wakes: Wakes,
) -> Command<Released> {
    let call = call.arg(ids).ttl_or_empty(lease).arg(u8::from(all));
    call.arg(wakes.publish()).arg(keys::permits_channel(&resource.name))
}

/// Renews holds, and sweeps expired permits of the same semaphores.
pub(super) fn renew(batch: &[&Renew], wakes: Wakes) -> Command<Renewals> {
    let mut call = script::PERMITS_RENEW.call(3 * batch.len());
    for renew in batch {
        call = with_keys(call, &renew.resource.name);
    }
    call = call.arg(wakes.publish());
    for renew in batch {
        call = call.arg(joined(PermitId::of(renew.owner, renew.count)));
        call = call.arg(renew.ttl.unwrap_or(0)).arg(keys::permits_channel(&renew.resource.name));
    }
    call
}

/// Renews a hold by one key.
pub(super) fn renew_ends(renew: &Renew) -> Command<Renewed> {
    let call = script::PERMIT_ENDS_RENEW.call(1).arg(keys::permit_ends(&renew.resource.name));
    let ids = joined(PermitId::of(renew.owner, renew.count));
    call.arg(ids).arg(renew.ttl.unwrap_or(0))
}

fn call<T: Reply>(script: &'static Script<T>, resource: &Resource) -> Command<T> {
    with_keys(script.call(3), &resource.name)
}

/// Appends the keys: the semaphore, its acquired permits and the mark of a temporary one.
fn with_keys<T>(call: Command<T>, name: &LockName) -> Command<T> {
    call.arg(name.as_bytes()).arg(keys::permit_ends(name)).arg(keys::temporary(name))
}

/// Joins ids of 16 bytes to one argument.
fn joined(ids: impl IntoIterator<Item = PermitId>) -> Vec<u8> {
    ids.into_iter().flat_map(|id| *id.as_bytes()).collect()
}
