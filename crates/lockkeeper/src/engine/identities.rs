//! Identities of waiters of fair locks, kept with their subscriptions for the next waiter of the same
//! lock.
//!
//! The store notifies each waiter of a fair lock on a channel of its own, which the identity names. A
//! client that queues again would subscribe and unsubscribe for every hold. So an identity is kept for
//! a second after its release, and a cycle takes three requests: queue, acquire, release.
//!
//! All other identities are used for one hold only ([`pending_acquire`](super::pending_acquire)). One is
//! kept only if nothing of its earlier hold can take effect on the next one:
//!
//! - every request about it was answered at its first try, and none is under way, not even a renewal;
//! - the store confirmed that the release freed the lock: it was not lost before, nor left held;
//! - no guard of the earlier hold is left, which would release it once more;
//! - its subscription is intact, and the client is open;
//! - the store keeps identities ([`Capabilities`](crate::backend::Capabilities)).
//!
//! A store that loses the release afterwards, in a failover or when a snapshot is restored, has the
//! earlier hold again. The next acquire then is granted at once, as a repetition of the earlier one:
//! no other owner holds the lock there, and like every first acquire it issues a new token.
//!
//! An operator who force-releases a holder that was shown may hit a later hold of the same client.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use super::{Tick, lock};
use crate::backend::Subscription;
use crate::backend::unpoisoned;
use crate::{LockName, OwnerId};

/// How long an identity is kept.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// How many identities are kept per lock.
const MAX: usize = 64;

/// The idle identities of a client.
#[derive(Debug, Default)]
pub(super) struct Identities {
    idle: Mutex<BTreeMap<LockName, Vec<Idle>>>,
}

#[derive(Debug)]
struct Idle {
    owner: OwnerId,
    subscription: Subscription,
    since: Tick,
}

impl Identities {
    /// Returns an identity for the next waiter, the one that was used last.
    pub(super) fn take(&self, name: &LockName) -> Option<(OwnerId, Subscription)> {
        let mut idle = lock(&self.idle);
        if idle.is_empty() {
            return None;
        }
        let of_name = idle.get_mut(name)?;
        let found = of_name.pop();
        if of_name.is_empty() {
            idle.remove(name);
        }
        let Idle { owner, subscription, .. } = found?;
        // A broken subscription is made anew, under a new identity.
        subscription.failure().is_none().then_some((owner, subscription))
    }

    /// Keeps an identity whose hold was released.
    pub(super) fn put(
        &self,
        name: &LockName,
        owner: OwnerId,
        subscription: Subscription,
        since: Tick,
    ) {
        let mut idle = lock(&self.idle);
        let of_name = idle.entry(name.clone()).or_default();
        let unkept = match of_name.len() < MAX {
            true => {
                of_name.push(Idle { owner, subscription, since });
                None
            }
            false => Some(subscription),
        };
        drop(idle);
        drop(unkept);
    }

    /// Drops the identities that were idle for too long. Returns whether there are others.
    pub(super) fn sweep(&self, now: Tick) -> bool {
        let mut old = Vec::new();
        let mut idle = lock(&self.idle);
        idle.retain(|_, of_name| {
            let end = of_name.partition_point(|one| now.since(one.since) >= LINGER);
            old.extend(of_name.drain(..end));
            !of_name.is_empty()
        });
        let left = !idle.is_empty();
        drop(idle);
        drop(old);
        left
    }

    /// Forgets all of them in a forked child: they are the parent's.
    pub(super) fn forget(&mut self) {
        let idle = unpoisoned(self.idle.get_mut());
        std::mem::forget(std::mem::take(idle));
    }

    /// Drops all of them.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *lock(&self.idle));
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::backend::subscriptions::Subscriptions;
    use crate::backend::{Fault, Topic};

    #[test]
    fn an_identity_whose_subscription_has_failed_is_not_used_again() {
        let (hub, identities) = (Subscriptions::new(|_, _| {}), Identities::default());
        let (name, owner) = (LockName::from("it"), OwnerId::fresh(Uuid::new_v4()));
        for has_failed in [false, true] {
            let topic = Topic::Reconnected;
            identities.put(&name, owner, hub.join(topic.clone()), Tick::NEVER);
            if has_failed {
                hub.fail(&topic, Fault::Closed);
            }
            assert_eq!(identities.take(&name).is_none(), has_failed);
        }
    }
}
