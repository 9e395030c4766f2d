//! A connection for questions to one server, beside those that carry requests. Only reads are asked
//! here, so a question on a connection that has broken is asked again on a new one.

use std::sync::Mutex;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::handshake::{self, within};
use super::socket::Wire;
use crate::backend::Fault;
use crate::options::ClientOptions;
use crate::redis::command::Command;
use crate::redis::locked;
use crate::redis::resp::Value;
use crate::redis::server::Server;

/// Collects the answers of servers that are asked at once, until the time that `until` derives from those that
/// have arrived.
pub(crate) async fn collect<T: 'static>(
    mut asked: JoinSet<T>,
    mut until: impl FnMut(&[T]) -> Instant,
) -> Vec<T> {
    let mut answers = Vec::new();
    while let Ok(Some(answer)) = timeout_at(until(&answers), asked.join_next()).await {
        answers.extend(answer);
    }
    // Late answers are dropped, and the connections are kept.
    asked.detach_all();
    answers
}

/// Repeats `attempt` until it succeeds or fails for good, within the connect timeout.
pub(crate) async fn until_found<F: Future<Output = Result<(), Fault>>>(
    options: &ClientOptions,
    pause: Duration,
    attempt: impl Fn() -> F,
) -> Result<(), Fault> {
    let until = Instant::now() + options.connect_timeout;
    loop {
        match attempt().await {
            Err(fault) if fault.may_pass() && Instant::now() + pause < until => sleep(pause).await,
            found => return found,
        }
    }
}

/// Asks one server. The connection is kept for the next question.
pub(crate) struct Asker {
    pub(crate) server: Server,
    kept: Mutex<Option<Wire>>,
}

impl Asker {
    pub(crate) fn new(server: Server) -> Self {
        Self { server, kept: Mutex::default() }
    }

    /// Returns one reply for each question, within the connect timeout; errors of the server are values.
    /// If it is dropped, the connection is closed.
    pub(crate) async fn ask(
        &self,
        questions: &[Command],
        options: &ClientOptions,
    ) -> Result<Vec<Value>, Fault> {
        within(options.connect_timeout, async {
            let kept = locked(&self.kept).take();
            if let Some(mut wire) = kept
                && let Ok(replies) = wire.exchange(questions).await
            {
                *locked(&self.kept) = Some(wire);
                return Ok(replies);
            }
            let mut wire = handshake::connect(&self.server, options).await?;
            wire.exchange(&handshake::naming(options)).await?;
            wire.serve();
            let replies = wire.exchange(questions).await?;
            *locked(&self.kept) = Some(wire);
            Ok(replies)
        })
        .await
    }
}
