//! Which lease a named owner has on a name, so that its acquires re-enter it.
//!
//! Requests for one owner and name go one at a time: whoever has the slot's turn may look, acquire
//! or re-enter.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Mutex as AsyncMutex;

use super::{Lease, lock};
use crate::Owner;
use crate::backend::Resource;

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
    /// The turn of `owner` on `resource`; lock it, then look for a [`lease`](Owners::lease).
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

    /// Forgets slots that nobody uses: called when an acquire ends and when a lease does.
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
