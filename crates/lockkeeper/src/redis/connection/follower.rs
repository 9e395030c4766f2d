//! Follows a location: connects to the server there, again when that fails, and to the next server as soon as
//! the location changes.
//!
//! The only loop of this kind, for requests, acknowledgements and messages. An attempt ends with its location: a
//! server that hangs must not hold up the way to the one that has replaced it. No fault is final: a permission
//! that is missing now may be granted later.

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::handshake::within;
use crate::backend::Fault;
use crate::options::ClientOptions;
use crate::redis::primary::{Primary, PrimaryView};
use crate::redis::server::Server;

pub(crate) struct Follower {
    options: ClientOptions,
    location: watch::Receiver<PrimaryView>,
    /// Where the last attempt went, and when it ended.
    pub(crate) tried: PrimaryView,
    since: Instant,
    failures: u32,
}

impl Follower {
    pub(crate) fn new(primary: &Primary, options: &ClientOptions) -> Self {
        let tried = PrimaryView { epoch: 0, server: None, has_replicas: false };
        let (options, location) = (options.clone(), primary.watch());
        Self { options, location, tried, since: Instant::now(), failures: 0 }
    }

    /// Connects to the server in its epoch, once there is one, within the connect timeout. To a server that was
    /// tried before only after a pause, so that many clients do not connect at once, and after a longer one if
    /// the last connection was short-lived: a server that accepts and drops connections is down, too.
    pub(crate) async fn open<T, F>(
        &mut self,
        mut connect: impl FnMut(Server, u64) -> F,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let has_lived = self.since.elapsed() > self.options.max_backoff;
        self.failures = if has_lived { 0 } else { self.failures + 1 };
        let until = Instant::now() + self.options.backoff(self.failures);
        loop {
            let location = self.location.borrow_and_update().clone();
            let is_known =
                |one: &Server| self.tried.server.as_ref().is_some_and(|t| t.is_same(one));
            let pause = location.server.as_ref().is_some_and(is_known);
            let connecting = async {
                let Some(server) = location.server.clone() else {
                    return std::future::pending().await;
                };
                if pause {
                    sleep_until(until).await;
                }
                within(self.options.connect_timeout, connect(server, location.epoch)).await
            };
            let connected = tokio::select! {
                connected = connecting => connected,
                Ok(()) = self.location.changed() => continue,
            };
            // A new server is not to blame for what failed before.
            self.failures = if pause { self.failures } else { 0 };
            (self.tried, self.since) = (location, Instant::now());
            return connected;
        }
    }

    /// Waits until the location has changed since the last attempt.
    pub(crate) async fn changed(&mut self) {
        if self.location.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// The connection was closed because nothing needs it: the next one need not wait.
    pub(crate) fn rest(&mut self) {
        (self.tried.server, self.failures) = (None, 0);
    }
}
