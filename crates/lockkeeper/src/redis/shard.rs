//! A part of the store that one primary serves at a time: the whole store, or a shard of a cluster.

use std::sync::Arc;

use super::resp::Value;

use super::command::Command;
use super::connection::Connection;
use super::connection::committer::Committer;
use super::primary::Primary;
use crate::backend::{Fault, Lane};

/// Which server answers for a key at a time: an answer counts only if that has not changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Standing {
    pub(super) lane: Lane,
    pub(super) epoch: u64,
}

/// A part of the store. See the module.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) lane: Lane,
    pub(super) primary: Arc<Primary>,
    pub(super) connection: Connection,
    /// `None` if writes need no acknowledgement.
    pub(super) committer: Option<Committer>,
}

impl Shard {
    /// Sends a request. If its answer tells that it was a write, waits until replicas have it, and
    /// returns whether they do.
    pub(super) async fn write(
        &self,
        command: Command,
        is_write: impl Fn(&Value) -> bool,
    ) -> Result<(Value, Result<(), Fault>), Fault> {
        let Some(committer) = &self.committer else {
            return Ok((self.connection.call(command).await?, Ok(())));
        };
        let due = self.connection.due();
        let ticket = committer.ticket(&self.connection, due).await?;
        let epoch = self.primary.epoch();
        let answer = self.connection.call(command).await?;
        if !is_write(&answer) {
            return Ok((answer, Ok(())));
        }
        let acknowledged = committer.commit(ticket, &self.connection, None).await;
        if self.primary.epoch() != epoch {
            let detail = "the primary has changed".into();
            return Err(Fault::Unreachable { maybe_ran: true, detail });
        }
        Ok((answer, acknowledged))
    }

    /// Ends its connections.
    pub(super) fn close(&self) {
        self.connection.close();
        self.committer.iter().for_each(Committer::close);
    }
}
