//! Counters without owners: changes that must not be applied twice.
//!
//! The store remembers the answer to each change for as long as the change may be repeated, and answers
//! a repetition without applying it.

use std::sync::Arc;

use super::retry::retry_until;
use super::{Core, RETRY_COUNTERS};
use crate::OwnerId;
use crate::backend::{Change, Changed, CountChange, Fault, Resource};
use crate::error::{Error, Phase, Result};

/// Changes a counter once, however often the request is sent. Runs to completion: a dropped future
/// is completed in the background.
pub(crate) async fn change(
    core: &Arc<Core>,
    resource: &Resource,
    change: CountChange,
) -> Result<Changed> {
    let id = OwnerId::fresh(core.id);
    let request = Change::Count { resource: resource.clone(), id, change };
    insist(core, resource, request).await
}

/// Sends a change that is safe to repeat until it is answered, for as long as the store would
/// recognise a repetition.
pub(crate) async fn insist(
    core: &Arc<Core>,
    resource: &Resource,
    request: Change,
) -> Result<Changed> {
    core.ensure_not_closed(resource)?;
    let (this, resource) = (Arc::clone(core), resource.clone());
    core.run_to_completion(async move {
        let core = this;
        let now = core.clock.now();
        let ends = now + core.options.unreachable_after.min(RETRY_COUNTERS);
        let send = || core.backend.adjust(request.clone());
        let (name, stop) = (&resource.name, || core.is_closed());
        let tried = retry_until(&core, name, (now, ends), None, send, |_| {}, stop).await;
        tried.answer.map_err(|fault| {
            let maybe_ran = tried.maybe_ran || fault.maybe_ran();
            match fault {
                Fault::Unreachable { detail, .. } | Fault::Refused { detail } if maybe_ran => {
                    Error::unconfirmed(&resource.name, Phase::Change, detail)
                }
                fault => core.error(fault, &resource, Phase::Change),
            }
        })
    })
    .await
}
