//! A part of the store that one primary serves at a time: the whole store, or a shard of a cluster.

use std::fmt;
use std::sync::Arc;

use super::command::Command;
use super::connection::Connection;
use super::connection::committer::Committer;
use super::primary::Primary;
use super::reply::Reply;
use crate::backend::{Fault, Lane};

/// Which server answers for a key at a time: an answer counts only if that has not changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Authority {
    pub(super) lane: Lane,
    pub(super) epoch: u64,
}

pub(super) struct Shard {
    pub(super) lane: Lane,
    pub(super) primary: Arc<Primary>,
    pub(super) connection: Connection,
    /// `None` if writes need no acknowledgement.
    pub(super) committer: Option<Committer>,
}

/// The answer to a request that may be a write, and whether replicas have it.
pub(super) struct Written<T> {
    pub(super) answer: T,
    pub(super) acknowledged: Result<(), Fault>,
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.primary.fmt(f)
    }
}

impl Shard {
    /// Sends a request. If its answer says that it `wrote`, waits until replicas have it.
    pub(super) async fn write<T: Reply>(
        &self,
        command: Command<T>,
        wrote: impl Fn(&T) -> bool,
    ) -> Result<Written<T>, Fault> {
        let Some(committer) = &self.committer else {
            let answer = self.connection.call(command).await?;
            return Ok(Written { answer, acknowledged: Ok(()) });
        };
        let due = self.connection.due();
        let ticket = committer.ticket(&self.connection, due).await?;
        let epoch = self.primary.epoch();
        let answer = self.connection.call(command).await?;
        if !wrote(&answer) {
            return Ok(Written { answer, acknowledged: Ok(()) });
        }
        let acknowledged = committer.commit(ticket, &self.connection, None).await;
        if self.primary.epoch() != epoch {
            return Err(Fault::unanswered("the primary has changed"));
        }
        Ok(Written { answer, acknowledged })
    }

    pub(super) fn close(&self) {
        self.connection.close();
        self.committer.iter().for_each(Committer::close);
    }
}
