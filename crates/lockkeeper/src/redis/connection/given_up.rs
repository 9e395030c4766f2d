//! Connections that were given up, on which requests may still execute: the next connection to their server
//! kills them. Shared by all connections that may lead to one server in turn.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::handshake::Identity;
use crate::redis::locked;

/// How long a connection that was given up is remembered if its server is not met again. No request
/// on it is that late.
const REMEMBERED: Duration = Duration::from_secs(600);

#[derive(Clone, Default)]
pub(crate) struct GivenUp(Arc<Mutex<Vec<(Identity, Instant)>>>);

impl GivenUp {
    pub(super) fn add(&self, identity: &Identity) {
        locked(&self.0).push((identity.clone(), Instant::now()));
    }

    pub(super) fn all(&self) -> Vec<Identity> {
        locked(&self.0).iter().map(|(identity, _)| identity.clone()).collect()
    }

    /// Forgets those of `killed` that were to the server of the connection `own`.
    pub(super) fn forget(&self, killed: &[Identity], own: Option<&Identity>) {
        locked(&self.0).retain(|(old, since)| {
            let is_here = killed.contains(old) && own.is_some_and(|own| old.is_beside(own));
            !is_here && since.elapsed() < REMEMBERED
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use testkit::{FaultProxy, RedisServer};

    use super::*;
    use crate::options::ClientOptions;
    use crate::redis::command::Command;
    use crate::redis::connection::Connection;
    use crate::redis::primary::Primary;
    use crate::redis::reply::Word;
    use crate::redis::resp::Value;
    use crate::redis::url;

    #[tokio::test]
    async fn a_connection_kills_what_another_one_has_given_up_on_its_server() {
        let server = RedisServer::start();
        let proxy = FaultProxy::start(server.port()).await;
        let options = ClientOptions::new().response_timeout(Duration::from_millis(300));
        let address = url::server(&proxy.url(), &options).unwrap();
        let given_up = GivenUp::default();
        let open = || {
            let primary = Primary::suspected_by(Arc::default());
            primary.lead_to(&address, false);
            let connection = Connection::later(&primary, &options, &given_up, None, || {});
            (primary, connection)
        };
        let (left, first) = open();
        first.call::<Word>(Command::plain("PING")).await.unwrap();
        let late = proxy.connections()[0];
        proxy.hold_connection(late, true);
        let set = Command::<Value>::plain("SET").arg("key").arg("late");
        assert!(first.call(set).await.unwrap_err().maybe_ran());
        left.park();
        let (_primary, second) = open();
        second.call::<Word>(Command::plain("PING")).await.unwrap();
        proxy.hold_connection(late, false);
        proxy.wait_for_end(late).await;
        assert_eq!(server.cli(&["EXISTS", "key"]).int(), 0);
    }
}
