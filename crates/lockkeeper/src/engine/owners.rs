//! Acquires with an owner: a named one may re-enter its lease, a new one acquires anew.
//!
//! Requests for one owner and name go one at a time: the task that has the slot's turn may look up,
//! acquire or re-enter.
//!
//! **A nested read has an identity of its own**, sent beside the write hold that contains it. A Java
//! thread shares the number of its write hold instead. So nested reads have fresh identities, too, and
//! Redisson sees one more reader. A downgrade is a nested read and a release; an upgrade is a write
//! beside a read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;

use super::acquire::Acquired;
use super::reenter::reenter;
use super::terms::{Request, other_side};
use super::{Core, Lease, Tick, lock, until};
use crate::Owner;
use crate::backend::{Kind, Resource};
use crate::error::{Error, LostReason, Result};

type Key = (Resource, u64);

/// The slots of all named owners of a client.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    slots: Mutex<HashMap<Key, Slot>>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    turn: Arc<AsyncMutex<()>>,
    lease: Weak<Lease>,
}

impl Owners {
    /// Returns the turn of `owner` on `resource`; lock it, then look up its
    /// [`lease`](Owners::lease).
    pub(crate) fn turn(&self, resource: &Resource, owner: &Owner) -> Arc<AsyncMutex<()>> {
        let key = (resource.clone(), owner.number);
        Arc::clone(&lock(&self.slots).entry(key).or_default().turn)
    }

    pub(crate) fn lease(&self, resource: &Resource, owner: &Owner) -> Option<Arc<Lease>> {
        let key = (resource.clone(), owner.number);
        let lease = lock(&self.slots).get(&key)?.lease.upgrade()?;
        lease.is_held().then_some(lease)
    }

    pub(crate) fn set(&self, owner: &Owner, lease: &Arc<Lease>) {
        let key = (lease.resource.clone(), owner.number);
        lock(&self.slots).entry(key).or_default().lease = Arc::downgrade(lease);
    }

    /// Removes the slot if it is unused: called at the end of an acquire and of a lease.
    pub(crate) fn tidy(&self, resource: &Resource, owner: &Owner) {
        let key = (resource.clone(), owner.number);
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(&key) {
            let held = slot.lease.upgrade().is_some_and(|lease| lease.is_held());
            if !held && Arc::strong_count(&slot.turn) == 1 {
                slots.remove(&key);
            }
        }
    }
}

impl Request {
    /// Acquires for a named owner: re-enters its lease if there is one. One request at a time per
    /// owner and name.
    pub(super) async fn acquire_as(&mut self, owner: &Owner) -> Result<Option<Acquired>> {
        let core = Arc::clone(&self.core);
        core.ensure_not_closed(&self.resource)?;
        core.ensure_own(owner, &self.resource)?;
        // The two sides of a read/write lock share one turn: what one side may do depends on the other.
        let turns = other_side(&self.resource, Kind::Write);
        // Declared first, so that it is dropped last: a slot in use is not removed.
        let _tidy = Tidy(&core, &turns, owner);
        let slot = core.owners.turn(&turns, owner);
        let turn = match self.waits() {
            false => slot.try_lock().ok(),
            true => until(&core.clock, self.limit, slot.lock()).await,
        };
        let Some(_turn) = turn else { return Ok(None) };
        if let Some(lease) = core.owners.lease(&self.resource, owner) {
            if !(self.reentrant && lease.reentrant) {
                return Err(twice(&self.resource));
            }
            match reenter(lease, self.term, self.fenced, (self.wait, self.limit)).await {
                // Released while this waited for its turn: there is nothing left to re-enter.
                Err(Error::Lost { reason: LostReason::Released, .. }) => {}
                outcome => return outcome.map(Some),
            }
        }
        match self.resource.kind {
            Kind::Write
                if core.owners.lease(&other_side(&self.resource, Kind::Read), owner).is_some() =>
            {
                let detail = "its owner holds it for reading and would wait for itself for ever: \
                              release that first, or use try_upgrade";
                return Err(Error::invalid(Some(&self.resource.name), detail));
            }
            Kind::Read => self.beside = core.owners.lease(&turns, owner).map(|lease| lease.owner),
            _ => {}
        }
        self.acquire_anew().await
    }

    /// Acquires one side of a read/write lock beside a hold of the other side, for the named owner of
    /// that hold, if it has one.
    pub(crate) async fn acquire_beside(self) -> Result<Option<Acquired>> {
        let Self { core, resource, .. } = &self;
        core.ensure_not_closed(resource)?;
        let Some(owner) = &self.owner else { return self.acquire_anew().await };
        let turns = other_side(resource, Kind::Write);
        let _tidy = Tidy(core, &turns, owner);
        let slot = core.owners.turn(&turns, owner);
        let _turn = slot.lock().await;
        if let Some(lease) = core.owners.lease(resource, owner) {
            let wait = (Duration::MAX, Tick::NEVER);
            return reenter(lease, self.term, self.fenced, wait).await.map(Some);
        }
        self.acquire_anew().await
    }
}

/// The error for an owner that asks again for a lock that is not reentrant.
pub(crate) fn twice(resource: &Resource) -> Error {
    let detail = "its owner holds it already, and it was asked for as not re-entrant";
    Error::invalid(Some(&resource.name), detail)
}

/// Removes an unused slot when the acquire of a named owner ends or is dropped.
struct Tidy<'a>(&'a Arc<Core>, &'a Resource, &'a Owner);

impl Drop for Tidy<'_> {
    fn drop(&mut self) {
        self.0.owners.tidy(self.1, self.2);
    }
}
