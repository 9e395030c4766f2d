//! Renewals in steps of one key each, for a slot that is being migrated.
//!
//! There a script runs only if all of its keys are at one node, and a script that declares a key that
//! does not exist never does. A step has one key, and the node that has the key runs it. No step
//! shortens a TTL, so steps that ran before one failed do no harm. A key that is missing at both nodes
//! has expired.

use super::command::Command;
use super::{RedisInner, keys, name, permits, script};
use crate::OwnerId;
use crate::backend::{Fault, Kind, Renew, Renewed};

/// The most holds of a reader, as in the scripts.
const HOLDS_MAX: u32 = 65_535;

impl RedisInner {
    /// Renews or checks a hold key by key. Returns `None` for an entry that has no such form: its
    /// renewal has one key anyway, or it is a queue position.
    pub(super) async fn renew_in_steps(&self, renew: &Renew) -> Option<Result<Renewed, Fault>> {
        match renew.resource.kind {
            Kind::Read => Some(self.renew_reader(renew).await),
            Kind::Permits => Some(self.renew_permits(renew).await),
            _ => None,
        }
    }

    /// The keys of the single holds come first: without one of them the reader has expired. They have
    /// the numbers from 1 on without a gap, and one TTL.
    async fn renew_reader(&self, renew: &Renew) -> Result<Renewed, Fault> {
        let mut own = Renewed::Gone;
        for number in 1..=HOLDS_MAX {
            let key = keys::read_hold(&renew.resource.name, &renew.owner, number);
            match self.step(&key, renew, key_step(&key, renew, None)).await? {
                held @ Renewed::Held(_) if number == 1 => own = held,
                Renewed::Held(_) => {}
                _ => break,
            }
        }
        if own == Renewed::Gone {
            return Ok(own);
        }
        let lock = name(&renew.resource);
        match self.step(lock, renew, key_step(lock, renew, Some(&renew.owner))).await? {
            Renewed::Held(_) => Ok(own),
            lost => Ok(lost),
        }
    }

    /// A temporary semaphore must not expire before its permits: its keys come first.
    async fn renew_permits(&self, renew: &Renew) -> Result<Renewed, Fault> {
        let semaphore = &renew.resource.name;
        let ends = keys::permit_ends(semaphore).to_vec();
        let mark = keys::temporary(semaphore).to_vec();
        for key in [&mark[..], semaphore.as_bytes(), &ends] {
            let found = self.step(key, renew, key_step(key, renew, None)).await?;
            if key == mark && found == Renewed::Gone {
                break;
            }
        }
        self.step(&ends, renew, permits::renew_ends(renew)).await
    }

    /// Sends one step. Where replicas must acknowledge a renewal, they acknowledge each step.
    async fn step(
        &self,
        key: &[u8],
        renew: &Renew,
        step: Command<Renewed>,
    ) -> Result<Renewed, Fault> {
        let is_renewal =
            |answer: &Renewed| renew.ttl.is_some() && matches!(answer, Renewed::Held(_));
        self.route.write(key, step, is_renewal).await
    }
}

/// Creates a request to renew or check one key, which must have a field for `owner` if one is given.
fn key_step(key: &[u8], renew: &Renew, owner: Option<&OwnerId>) -> Command<Renewed> {
    let call = script::KEY_RENEW.call(1).arg(key).arg(renew.ttl.unwrap_or(0));
    match owner {
        Some(owner) => call.arg(owner),
        None => call,
    }
}
