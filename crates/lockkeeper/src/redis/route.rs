//! The way to the primary: how it is found, and how a change is noticed.
//!
//! A [`Shard`] has one connection for requests, which follows its [`Primary`]. A change gives it up, and
//! the next one goes to the new primary. All that outlives a change is the list of connections to kill, by the run
//! id of each server. A cluster has one such connection per shard, and one list for all of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinSet;

use super::cluster::{self, Cluster};
use super::command::Command;
use super::connection::Connection;
use super::connection::committer::{AckTerms, Committer};
use super::connection::given_up::GivenUp;
use super::locked;
use super::member::Membership;
use super::primary::Primary;
use super::replicated::{self, Replicated};
use super::reply::Reply;
use super::sentinel::{self, Sentinel};
use super::server::Server;
use super::shard::{Authority, Shard, Written};
use super::url::Topology;
use super::{keys, slot};
use crate::backend::{Fault, Finding, Lane};
use crate::options::ClientOptions;
use crate::redis_options::Acknowledgement;

pub(super) struct Route {
    way: Way,
    /// Aborted when dropped.
    watcher: Mutex<JoinSet<()>>,
}

enum Way {
    One(Arc<Shard>, Discovery),
    Cluster(Arc<Cluster>),
}

enum Discovery {
    Fixed,
    Sentinel(Arc<Sentinel>),
    Replicated(Arc<Replicated>),
}

/// How long a replica may take by default.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(1);

/// Which replicas must acknowledge a write. `moves` if the primary may be another server later.
fn terms(options: &ClientOptions, moves: bool) -> Option<AckTerms> {
    match options.redis.acknowledgement {
        Acknowledgement::By(replicas, timeout) => {
            Some(AckTerms { replicas, timeout, is_strict: true })
        }
        Acknowledgement::Default if moves => {
            Some(AckTerms { replicas: 1, timeout: ACKNOWLEDGED_WITHIN, is_strict: false })
        }
        Acknowledgement::Default | Acknowledgement::Off => None,
    }
}

impl Route {
    /// Finds the primary for the first time, and connects to it. `reconnected` is called whenever the
    /// connection is back.
    pub(super) async fn open(
        topology: Topology,
        options: &ClientOptions,
        reconnected: impl Fn(Lane) + Send + Sync + 'static,
    ) -> Result<Self, Fault> {
        let mut watcher = JoinSet::new();
        let (primary, finder) = match topology {
            Topology::Single(server) => (Primary::fixed(server), Discovery::Fixed),
            Topology::Sentinel(of) => {
                let primary = Primary::unknown();
                let sentinel = Arc::new(Sentinel::new(of, options));
                sentinel.find_first(&primary).await?;
                watcher.spawn(sentinel::watch(Arc::clone(&sentinel), Arc::clone(&primary)));
                (primary, Discovery::Sentinel(sentinel))
            }
            Topology::Cluster(seeds) => {
                let cluster =
                    Cluster::open(seeds, options, terms(options, true), reconnected).await?;
                watcher.spawn(cluster::refresh::watch(Arc::clone(&cluster)));
                return Ok(Self { way: Way::Cluster(cluster), watcher: Mutex::new(watcher) });
            }
            Topology::Replicated(servers) => {
                let primary = Primary::unknown();
                let replicated = Arc::new(Replicated::new(servers, options));
                replicated.find_first(&primary).await?;
                watcher.spawn(replicated::watch(Arc::clone(&replicated), Arc::clone(&primary)));
                (primary, Discovery::Replicated(replicated))
            }
        };
        let lane = Lane::default();
        let address = primary.address().unwrap_or_default();
        let named = |fault| named(fault, &address);
        let connection = Connection::open(&primary, options, move || reconnected(lane)).await;
        let connection = connection.map_err(named)?;
        let committer = terms(options, !matches!(finder, Discovery::Fixed)).map(|terms| {
            Committer::later(&primary, options, terms, Box::new(|_| Some(keys::commit(0))))
        });
        if let Some(committer) = &committer {
            committer.ensure().await.map_err(named)?;
        }
        let shard = Shard { lane, primary, connection, committer };
        Ok(Self { way: Way::One(Arc::new(shard), finder), watcher: Mutex::new(watcher) })
    }

    /// The way to a member of a quorum. Connects in the background.
    pub(super) fn to_member(
        server: Server,
        options: &ClientOptions,
        membership: &Arc<Membership>,
        reconnected: impl Fn(Lane) + Send + Sync + 'static,
    ) -> Self {
        let (lane, primary) = (Lane::default(), Primary::fixed(server));
        let (membership, on_connect) = (Some(Arc::clone(membership)), move || reconnected(lane));
        let given_up = GivenUp::default();
        let connection = Connection::later(&primary, options, &given_up, membership, on_connect);
        let shard = Shard { lane, primary, connection, committer: None };
        Self { way: Way::One(Arc::new(shard), Discovery::Fixed), watcher: Mutex::default() }
    }

    /// Sends a request that concerns this key. In place for one server, to keep the box of an answer small.
    pub(super) async fn call<T: Reply>(&self, key: &[u8], command: Command<T>) -> Result<T, Fault> {
        match &self.way {
            Way::One(shard, _) => shard.connection.call(command).await,
            Way::Cluster(cluster) => {
                Box::pin(async { Ok(cluster.attempt(key, command, None).await?.answer) }).await
            }
        }
    }

    /// The same, and if its answer says that it `wrote`, waits until replicas have it, where that is asked for.
    pub(super) async fn write<T: Reply>(
        &self,
        key: &[u8],
        command: Command<T>,
        wrote: impl Fn(&T) -> bool + Sync,
    ) -> Result<T, Fault> {
        match &self.way {
            Way::One(shard, _) if shard.committer.is_none() => shard.connection.call(command).await,
            _ => {
                let written = Box::pin(self.attempt(key, command, &wrote)).await?;
                written.acknowledged.map(|()| written.answer)
            }
        }
    }

    /// The same, but returns the answer also if replicas do not have the write.
    pub(super) async fn attempt<T: Reply>(
        &self,
        key: &[u8],
        command: Command<T>,
        wrote: &(dyn Fn(&T) -> bool + Sync),
    ) -> Result<Written<T>, Fault> {
        match &self.way {
            Way::One(shard, _) => shard.write(command, wrote).await,
            Way::Cluster(cluster) => cluster.attempt(key, command, Some(wrote)).await,
        }
    }

    /// Sends many requests that concern this key. Returns one answer for each; an error if the connection
    /// failed.
    pub(super) async fn read<T: Reply>(
        &self,
        key: &[u8],
        reads: Vec<Command<T>>,
    ) -> Result<Vec<Result<T, Fault>>, Fault> {
        if let Way::One(shard, _) = &self.way {
            return shard.connection.read(reads).await;
        }
        let answers = join_all(reads.into_iter().map(|read| self.call(key, read))).await;
        let is_broken =
            |answer: &&Result<_, Fault>| matches!(answer, Err(Fault::Unreachable { .. }));
        match answers.iter().find(is_broken) {
            Some(Err(fault)) => Err(fault.clone()),
            _ => Ok(answers),
        }
    }

    /// The only part of a store that has no others.
    pub(super) fn only(&self) -> Option<&Arc<Shard>> {
        match &self.way {
            Way::One(shard, _) => Some(shard),
            Way::Cluster(_) => None,
        }
    }

    pub(super) fn cluster(&self) -> Option<&Arc<Cluster>> {
        match &self.way {
            Way::One(..) => None,
            Way::Cluster(cluster) => Some(cluster),
        }
    }

    /// The part that serves a key, if there is one.
    pub(super) fn shard(&self, key: &[u8]) -> Option<Arc<Shard>> {
        match &self.way {
            Way::One(shard, _) => Some(Arc::clone(shard)),
            Way::Cluster(cluster) => cluster.owner(slot::of(key)),
        }
    }

    /// Keys of one group may be in one request.
    pub(super) fn group(&self, key: &[u8]) -> u16 {
        match &self.way {
            Way::One(..) => 0,
            Way::Cluster(_) => slot::of(key),
        }
    }

    /// Which server answers for a key now.
    pub(super) fn authority(&self, key: &[u8]) -> Authority {
        match &self.way {
            Way::One(shard, _) => Authority { lane: shard.lane, epoch: shard.primary.epoch() },
            Way::Cluster(cluster) => cluster.authority(key),
        }
    }

    /// The server of a key has answered that it is no primary.
    pub(super) fn leave(&self, key: &[u8], authority: Authority) {
        if let Some(shard) = self.shard(key).filter(|shard| shard.lane == authority.lane) {
            shard.primary.leave(authority.epoch);
        }
    }

    /// Whether a request without an answer can no longer execute once a later request was answered.
    pub(super) fn revokes_lost_requests(&self) -> bool {
        match &self.way {
            Way::One(shard, _) => shard.connection.revokes_lost_requests(),
            // A request may have gone to any of them, by a redirection.
            Way::Cluster(cluster) => cluster.revokes_lost_requests(),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        match &self.way {
            Way::One(shard, _) => shard.connection.is_closed(),
            Way::Cluster(cluster) => cluster.is_closed(),
        }
    }

    /// Identifies the store, whichever servers are primaries.
    pub(super) fn identity(&self) -> String {
        match &self.way {
            Way::One(shard, Discovery::Fixed) => {
                let known = shard.connection.server().or_else(|| shard.primary.address());
                let database = shard.primary.server().map_or(0, |server| server.database);
                format!("{}/{database}", known.unwrap_or_default())
            }
            Way::One(_, Discovery::Sentinel(sentinel)) => sentinel.identity(),
            Way::One(_, Discovery::Replicated(replicated)) => replicated.identity(),
            Way::Cluster(cluster) => cluster.identity(),
        }
    }

    /// What endangers locks on the way to the primary, and how many replicas it should have: those that
    /// could be promoted. `None` if that is not known.
    pub(super) async fn check(&self) -> (Vec<Finding>, Option<usize>) {
        match &self.way {
            Way::One(_, Discovery::Fixed) | Way::Cluster(_) => (Vec::new(), None),
            Way::One(_, Discovery::Sentinel(sentinel)) => sentinel.check().await,
            Way::One(_, Discovery::Replicated(replicated)) => replicated.check().await,
        }
    }

    pub(super) fn close(&self) {
        locked(&self.watcher).abort_all();
        match &self.way {
            Way::One(shard, _) => shard.close(),
            Way::Cluster(cluster) => cluster.close(),
        }
    }
}

/// Names the server in a fault that does not.
fn named(fault: Fault, address: &str) -> Fault {
    fault.map(|text| match text.starts_with(address) {
        true => text,
        false => format!("{address}: {text}"),
    })
}
