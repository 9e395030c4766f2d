//! Capabilities of a store.

use std::sync::Arc;
use std::time::Duration;

use super::{Fault, Kind, Lane};

/// The capabilities of a store.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// A request without an answer can no longer take effect once a later request was answered.
    ///
    /// If false, the engine repeats an undo until the lease of the lost request would have expired,
    /// and a release of some holds of several does not shorten the TTL.
    pub revokes_lost_requests: bool,
    /// Identifies the store, so that all clients acquire several locks in the same order.
    pub identity: Arc<str>,
    /// The store can acquire several locks in one request. Where it cannot for some names, it rejects
    /// the request as [`Fault::Invalid`](super::Fault::Invalid) before it sends anything.
    pub takes_together: bool,
    /// An acquire that was not granted may be repeated with the same identity. If false, the store has
    /// withdrawn it, which may execute late: each attempt needs an identity of its own. Then the store
    /// has several members, and some of them may have a hold that it reports as lost: the engine
    /// releases it.
    pub keeps_identities: bool,
    /// Advice for people if the user lacks a permission; empty if no permission is needed.
    pub permission_advice: &'static str,
    /// The lane that serves the name at present.
    pub lane: Lane,
    /// Renewals of names of one lane and group share a request. Those of several groups are separate
    /// requests, and the answer to one may take longer: the engine waits for each alone.
    pub group: u16,
    /// The kinds that the store does not have: it rejects their requests as [`Fault::Invalid`](super::Fault::Invalid).
    pub lacks: &'static [Kind],
    /// The longest TTL that the store accepts: it rejects a longer one as [`Fault::Invalid`](super::Fault::Invalid).
    pub longest_lease: Duration,
}

impl Capabilities {
    /// Creates the capabilities of a store with one lane and all kinds, that acquires one lock per request.
    pub fn new(revokes_lost_requests: bool, identity: Arc<str>) -> Self {
        Self {
            revokes_lost_requests,
            identity,
            takes_together: false,
            keeps_identities: true,
            permission_advice: "",
            lane: Lane::default(),
            group: 0,
            lacks: &[],
            longest_lease: Duration::MAX,
        }
    }
}

/// Rejects a TTL above the longest lease of a quorum.
pub(crate) fn ensure_ttl(ttl: u64, longest: Duration) -> Result<(), Fault> {
    let ttl = Duration::from_millis(ttl);
    if ttl <= longest {
        return Ok(());
    }
    let detail = format!(
        "a lease of {ttl:?} is longer than the longest lease of the quorum, {longest:?}: see \
         ClientOptions::longest_lease"
    );
    Err(Fault::invalid(detail))
}
