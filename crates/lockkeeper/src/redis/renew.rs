//! Renewals: many holds in few requests.
//!
//! One script renews all holds of one kind; in a cluster those of one slot, and all these scripts leave
//! together. An answer counts only if the server that gave it still serves the name.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use super::command::Command;
use super::command::Wakes;
use super::error_reply::ErrorReply;
use super::reply::Renewals;
use super::shard::Written;
use super::{RedisInner, fair, lock, name, permits, rw, script};
use crate::backend::{Fault, Kind, Renew, Renewed};

/// One script for holds, or queue positions, of one kind.
fn request(batch: &[&Renew], wakes: Wakes) -> Option<Command<Renewals>> {
    Some(match (batch[0].resource.kind, batch[0].waiting) {
        (Kind::Lock | Kind::Fair, false) => lock::renew(&script::LOCK_RENEW, batch),
        (Kind::Mutex, _) => lock::renew(&script::MUTEX_RENEW, batch),
        (Kind::Fair, true) => fair::keep_positions(batch, wakes),
        (Kind::Read, _) => rw::renew_readers(batch, wakes),
        (Kind::Write, _) => rw::renew(&script::WRITE_RENEW, batch, None),
        (Kind::Permits, _) => permits::renew(batch, wakes),
        (Kind::Lock | Kind::Semaphore | Kind::Latch, _) => return None,
    })
}

impl RedisInner {
    /// Renews holds with one script for each kind, and in a cluster for each slot.
    pub(super) async fn renew(&self, batch: &[Renew]) -> Renewals {
        let authority = |renew: &Renew| self.route.authority(name(&renew.resource));
        let mut before: Vec<_> = batch.iter().map(authority).collect();
        let fits = |renew: &Renew| self.fits(&renew.resource.name);
        let mut answers: Vec<_> =
            batch.iter().map(|renew| fits(renew).and(Err(Fault::Closed))).collect();
        let mut groups: BTreeMap<_, (Vec<usize>, Vec<&Renew>)> = BTreeMap::new();
        for (index, renew) in batch.iter().enumerate().filter(|(_, renew)| fits(renew).is_ok()) {
            let group = self.route.group(name(&renew.resource));
            // A lock and a fair lock are hashes of owners.
            let kind = Some(renew.resource.kind).filter(|kind| *kind != Kind::Fair);
            let kind = kind.unwrap_or(Kind::Lock);
            let group = groups.entry((group, kind, renew.waiting)).or_default();
            group.0.push(index);
            group.1.push(renew);
        }
        let scripts = groups.into_values().map(async |(indices, renews)| {
            let renewed = self.renew_kind(&renews).await;
            // In a cluster it is the answer of the owner, which a redirection may have named.
            let owner = self.route.cluster().map(|_| authority(renews[0]));
            (indices, renewed, owner)
        });
        for (indices, renewed, owner) in join_all(scripts).await {
            for (index, answer) in indices.into_iter().zip(renewed) {
                answers[index] = answer;
                before[index] = owner.unwrap_or(before[index]);
            }
        }
        for ((renew, before), answer) in batch.iter().zip(before).zip(&mut answers) {
            if authority(renew) != before {
                // Perhaps the answer of an old primary.
                *answer = Err(Fault::unanswered("the primary has changed"));
            }
        }
        answers
    }

    /// Renews holds of one kind with one script. If the whole script is rejected because of one
    /// entry (for example a key without permission), each hold is renewed alone, so that the others
    /// are not lost.
    async fn renew_kind(&self, batch: &[&Renew]) -> Renewals {
        let answers = self.renew_together(batch).await;
        // In a slot that is being moved, keys on both sides cannot be in one request.
        let is_split = |answer: &Result<_, Fault>| answer.as_ref().is_err_and(Fault::is_moving);
        let refused = |answer: &Result<_, Fault>| answer.as_ref().is_err_and(|f| !f.may_pass());
        if let ([renew], [answer]) = (batch, &answers[..])
            && is_split(answer)
            && let Some(answer) = self.renew_in_steps(renew).await
        {
            return vec![answer];
        }
        if batch.len() == 1 || !answers.iter().all(|answer| refused(answer) || is_split(answer)) {
            return answers;
        }
        let alone = batch.iter().enumerate().map(async |(n, renew)| {
            (n, Box::pin(self.renew_kind(std::slice::from_ref(renew))).await)
        });
        let mut alone: FuturesUnordered<_> = alone.collect();
        let mut answers = vec![Err(Fault::unanswered("no answer in time")); batch.len()];
        let mut next = alone.next().await;
        // A key may have moved to a node that hangs.
        let until = Instant::now() + Renew::patience(batch.iter().copied());
        while let Some((n, answer)) = next {
            answers.splice(n..=n, answer);
            next = timeout_at(until, alone.next()).await.unwrap_or(None);
        }
        answers
    }

    /// A fault of the request is the fault of each entry.
    async fn renew_together(&self, batch: &[&Renew]) -> Renewals {
        let key = name(&batch[0].resource);
        let authority = self.route.authority(key);
        // A renewal moves a deadline only once it is acknowledged; a check moves none.
        let is_renewal = |renew: &Renew, answer: &Result<Renewed, Fault>| {
            renew.ttl.is_some() && !renew.waiting && matches!(answer, Ok(Renewed::Held(_)))
        };
        let has_renewal = |answers: &Renewals| {
            batch.iter().zip(answers).any(|(renew, answer)| is_renewal(renew, answer))
        };
        let Some(command) = request(batch, self.wakes) else {
            return vec![Err(Fault::Closed); batch.len()];
        };
        let command = command.answering_each(batch.len());
        let Written { answer, acknowledged } =
            match self.route.attempt(key, command, &has_renewal).await {
                Ok(written) => written,
                Err(fault) => return vec![Err(fault); batch.len()],
            };
        let is_of_replica =
            |fault| ErrorReply::behind(fault).is_some_and(ErrorReply::is_of_replica);
        if answer.iter().any(|answer| answer.as_ref().is_err_and(is_of_replica)) {
            self.route.leave(key, authority);
        }
        let answers = answer.into_iter().zip(batch).map(|(answer, renew)| match &acknowledged {
            Err(fault) if is_renewal(renew, &answer) => Err(fault.clone()),
            _ => answer,
        });
        answers.collect()
    }
}
