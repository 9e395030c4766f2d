//! A connection for questions to one server, beside those that carry requests. Only reads are asked
//! here, so a question on a connection that has broken is asked again on a new one.

use std::sync::{Mutex, PoisonError};

use super::super::resp::Value;

use super::super::command::Command;
use super::super::server::Server;
use super::handshake::{self, within};
use super::wire::Wire;
use crate::backend::Fault;
use crate::config::ClientOptions;

/// Asks one server. The connection is kept for the next question.
pub(in super::super) struct Asker {
    pub(in super::super) server: Server,
    kept: Mutex<Option<Wire>>,
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Asker").field(&self.server).finish()
    }
}

impl Asker {
    pub(in super::super) fn new(server: Server) -> Self {
        Self { server, kept: Mutex::default() }
    }

    /// Returns one reply for each question, within the connect timeout; errors of the server are values.
    /// If it is dropped, the connection is closed.
    pub(in super::super) async fn ask(
        &self,
        questions: &[Command],
        options: &ClientOptions,
    ) -> Result<Vec<Value>, Fault> {
        within(options.connect_timeout, async {
            let kept = self.kept().take();
            if let Some(mut wire) = kept
                && let Ok(replies) = wire.exchange(questions).await
            {
                *self.kept() = Some(wire);
                return Ok(replies);
            }
            let mut wire = handshake::connect(&self.server, options).await?;
            wire.exchange(&handshake::naming(options)).await?;
            wire.serve();
            let replies = wire.exchange(questions).await?;
            *self.kept() = Some(wire);
            Ok(replies)
        })
        .await
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Option<Wire>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
