//! Redis: Redisson's keys, fields, channels and messages, by scripts of our own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Notify, OnceCell, mpsc};

use crate::backend::locked;
use crate::backend::subscriptions::Subscriptions;
use crate::backend::{
    Acquire, Answer, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, ClientInfo, Fault,
    Finding, Holder, Kind, Lane, List, LockInfo, Page, Release, Released, Renew, Renewed, Resource,
    Subscription, Topic,
};
use crate::error::{Error, Phase, Result as ClientResult};
use crate::model;
use crate::options::ClientOptions;
use crate::{LockName, OwnerId};
use command::Wakes;
use command::{Command, Script};
use member::Membership;
use pubsub::Order;
use reply::{Forced, Held, unfit};
use resp::Value;
use route::Route;
use server::Server;

mod check;
mod clients;
mod cluster;
mod cluster_pubsub;
mod command;
mod connection;
mod counter;
mod error_reply;
mod fair;
mod keys;
mod list;
mod lock;
pub(crate) mod member;
mod permits;
mod primary;
mod pubsub;
pub(crate) mod quorum;
mod renew;
mod renew_by_key;
mod replicated;
mod reply;
mod resp;
mod role;
mod route;
mod rw;
mod script;
mod sentinel;
mod sentinel_view;
mod server;
mod shard;
mod slot;
mod tls;
pub(crate) mod url;

/// A Redis server as a store.
#[derive(Clone)]
pub struct Redis {
    inner: Arc<RedisInner>,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Redis").field(&self.inner.identity).finish()
    }
}

struct RedisInner {
    route: Route,
    wakes: Wakes,
    hub: Subscriptions,
    closing: Arc<Notify>,
    /// The server accepts `SET … NX GET`, as 7.0 and later do. Assumed until it rejects one.
    set_nx_get: AtomicBool,
    publish_warned: AtomicBool,
    /// Whether the user may kill connections.
    may_kill: OnceCell<bool>,
    /// Address and database, or what finds the primary.
    identity: Arc<str>,
    settled: std::sync::Mutex<counter::Settled>,
    /// Set if it is a member of a quorum.
    membership: Option<Arc<Membership>>,
}

impl Drop for RedisInner {
    fn drop(&mut self) {
        self.closing.notify_one();
    }
}

impl Redis {
    /// Connects, and reconnects whenever the connection is lost.
    ///
    /// # Errors
    /// See [`Client::connect_with`](crate::Client::connect_with).
    pub async fn connect(url: &str, options: &ClientOptions) -> ClientResult<Self> {
        let failed = |fault| Error::from_fault(fault, None, Phase::Connect, None);
        let topology = url::parse(url, options).map_err(failed)?;
        let (hub, orders) = pubsub::hub();
        let route = Route::open(topology, options, reconnected(&hub)).await.map_err(failed)?;
        let cluster = route.cluster().filter(|_| route.only().is_none()).cloned();
        let wakes = match &cluster {
            Some(cluster) => cluster.wakes().await,
            None => Wakes::Plain,
        };
        Ok(Self::on(route, wakes, options, (hub, orders), None))
    }

    /// A server as a member of a quorum. Connects in the background.
    fn member(server: Server, options: &ClientOptions, membership: Arc<Membership>) -> Self {
        let (hub, orders) = pubsub::hub();
        let route = Route::to_member(server, options, &membership, reconnected(&hub));
        Self::on(route, Wakes::Plain, options, (hub, orders), Some(membership))
    }

    fn on(
        route: Route,
        wakes: Wakes,
        options: &ClientOptions,
        (hub, orders): (Subscriptions, mpsc::UnboundedReceiver<Order>),
        membership: Option<Arc<Membership>>,
    ) -> Self {
        let closing = Arc::new(Notify::new());
        let (listeners, end, options) = (hub.clone(), Arc::clone(&closing), options.clone());
        if let Some(shard) = route.only() {
            let primary = Arc::clone(&shard.primary);
            tokio::spawn(pubsub::run(primary, options, listeners, orders, end));
        } else if let Some(cluster) = route.cluster() {
            let cluster = Arc::clone(cluster);
            tokio::spawn(cluster_pubsub::run(cluster, wakes, options, listeners, orders, end));
        }
        let identity = Arc::from(route.identity());
        let inner = Arc::new(RedisInner {
            route,
            wakes,
            hub,
            closing,
            set_nx_get: AtomicBool::new(true),
            publish_warned: AtomicBool::new(false),
            may_kill: OnceCell::new(),
            identity,
            settled: std::sync::Mutex::default(),
            membership,
        });
        Self { inner }
    }
}

/// Notifies all subscribers that a lane is connected again.
fn reconnected(hub: &Subscriptions) -> impl Fn(Lane) + Send + Sync + 'static {
    let hub = hub.clone();
    move |lane| {
        hub.wake(&Topic::Reconnected, &lane.message());
    }
}

/// Returns the text of a script as it is sent, for tests and benchmarks; `None` for an unknown
/// name.
pub fn script_text(name: &str) -> Option<&'static str> {
    let script = script::ALL.iter().find(|(known, _)| *known == name);
    script.map(|(_, script)| script.source)
}

/// How many former holders a force-release records: the number of script arguments is limited.
const VICTIMS_MAX: usize = 1000;

/// How long the announcement of a holder is waited for: it is only for people.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(1);

fn name(resource: &Resource) -> &[u8] {
    resource.name.as_bytes()
}

impl RedisInner {
    /// Rejects a name that the store cannot serve.
    fn fits(&self, name: &LockName) -> Result<(), Fault> {
        if self.wakes.is_cluster() { slot::check(name) } else { Ok(()) }
    }

    /// Creates the request to acquire, for every kind but a mutex that is not handed off.
    fn acquiring(&self, request: &Acquire) -> Result<Command<Attempt>, Fault> {
        self.fits(&request.resource.name)?;
        if self.wakes.is_cluster() && !request.also.is_empty() {
            let others = request.also.iter().map(|(name, _)| name);
            slot::check_together(&request.resource.name, others)?;
        }
        match (request.resource.kind, &self.membership) {
            (kind, Some(membership)) => {
                // Only where it is missing: a hold that is there is re-entered, repeated or handed off.
                let is_first = request.from.is_none() && request.count == 1;
                let command = match is_first.then(|| membership.nonce()).transpose()? {
                    Some(nonce) => lock::acquire_from_member(request, self.wakes, &nonce),
                    None if kind == Kind::Mutex => lock::hand_off_mutex(request),
                    None => lock::acquire(request, self.wakes),
                };
                // Its release follows it, and would find nothing yet.
                Ok(command.in_order())
            }
            (Kind::Mutex, None) => Ok(lock::hand_off_mutex(request)),
            (Kind::Lock, None) => Ok(lock::acquire(request, self.wakes)),
            (Kind::Fair, None) => Ok(fair::acquire(request, self.wakes)),
            (Kind::Read, None) => rw::acquire_read(request, self.wakes),
            (Kind::Write, None) => rw::acquire_write(request, self.wakes),
            (Kind::Semaphore, None) => Ok(self.acquire_counter(request)),
            (Kind::Permits, None) => permits::acquire(request, self.wakes),
            (Kind::Latch, None) => Err(unfit(request.resource.kind)),
        }
    }

    /// Creates the request to release, for every kind that has nothing to do afterwards.
    fn releasing(&self, request: &Release, wakes: Wakes) -> Result<Command<Released>, Fault> {
        self.fits(&request.resource.name)?;
        match request.resource.kind {
            Kind::Lock => Ok(lock::release(request, wakes)),
            Kind::Mutex => Ok(lock::release_mutex(request, wakes)),
            Kind::Fair => Ok(fair::release(request, wakes)),
            Kind::Read => Ok(rw::release_read(request, wakes)),
            Kind::Write => Ok(rw::release_write(request, wakes)),
            Kind::Permits => permits::release(request, wakes),
            Kind::Semaphore | Kind::Latch => Err(unfit(request.resource.kind)),
        }
    }

    fn settled_release(&self, answer: Result<Released, Fault>) -> Result<Released, Fault> {
        match answer {
            // The key belongs to something else, so this hold no longer exists.
            Err(Fault::WrongKind { .. }) => Ok(Released::Absent { holder: None }),
            Ok(Released::Freed { listeners }) => {
                if listeners.is_none() && !self.publish_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "no permission to publish wake-ups: waiters find out by polling"
                    );
                }
                Ok(Released::Freed {
                    listeners: listeners.filter(|_| self.wakes.counting().is_some()),
                })
            }
            answer => answer,
        }
    }

    /// Sends an acquire. If it is granted, waits for replicas.
    async fn acquire(&self, request: &Acquire) -> Result<Attempt, Fault> {
        let is_handoff = request.from.is_some();
        if request.resource.kind == Kind::Mutex && !is_handoff {
            return self.acquire_mutex(request).await;
        }
        let command = self.acquiring(request)?;
        match self.route.write(name(&request.resource), command, Attempt::is_granted).await {
            // The hold no longer exists.
            Err(Fault::WrongKind { .. }) if is_handoff => Ok(Attempt::Gone),
            attempt => attempt,
        }
    }

    /// Whether a request that shortens a TTL could be revoked if it is lost: where it cannot, it might arrive after
    /// the lease was extended. The first kill of a lost connection would show that too late.
    async fn may_shorten(&self, key: &[u8]) -> bool {
        let ask = async || {
            // No connection has this id: the command only checks the permission.
            let kill = Command::plain("CLIENT").arg("KILL").arg("ID").arg(i64::MAX);
            match self.route.call::<Value>(key, kill).await {
                Err(fault) if fault.may_pass() => Err(fault),
                answer => Ok(answer.is_ok()),
            }
        };
        self.route.revokes_lost_requests()
            && self.may_kill.get_or_try_init(ask).await.is_ok_and(|may| *may)
    }

    async fn release(&self, request: &Release) -> Result<Released, Fault> {
        let shortens = request.keep > 0 && request.ttl.is_some() && !request.leave;
        let unchanged;
        let request = if shortens && !Box::pin(self.may_shorten(name(&request.resource))).await {
            unchanged = Release { ttl: None, ..request.clone() };
            &unchanged
        } else {
            request
        };
        let answer = match request.resource.kind {
            Kind::Semaphore => Box::pin(self.release_counter(request)).await,
            _ => {
                let command = self.releasing(request, self.wakes)?;
                self.route.call(name(&request.resource), command).await
            }
        };
        self.settled_release(answer)
    }

    async fn force_unlock(
        &self,
        resource: Resource,
        reason: String,
        by: ClientInfo,
        from: Option<Vec<Vec<u8>>>,
    ) -> Result<Changed, Fault> {
        self.fits(&resource.name)?;
        let (line, wakes) = (model::one_line(&reason), self.wakes);
        let mut call = match resource.kind {
            Kind::Lock => lock::force_unlock(&script::LOCK_FORCE_UNLOCK, &resource, line, wakes),
            Kind::Mutex => lock::force_unlock(&script::MUTEX_FORCE_UNLOCK, &resource, line, wakes),
            Kind::Fair => fair::force_unlock(&resource, line, wakes),
            Kind::Read | Kind::Write => rw::force_unlock(&resource, line, wakes),
            Kind::Semaphore | Kind::Permits | Kind::Latch => return Err(unfit(resource.kind)),
        };
        for id in from.into_iter().flatten() {
            call = call.arg(id);
        }
        // Read before the holders are notified: then they may withdraw their announcements.
        let known = self.inspect(resource.clone()).await.map_or(Vec::new(), |lock| lock.holders);
        let Forced(Some(victims)) = self.route.call(name(&resource), call).await? else {
            return Ok(Changed::Other);
        };
        if victims.is_empty() {
            return Ok(Changed::Nothing);
        }
        // The lock is free. The log is for people, and its failure does not matter.
        let log = script::FORCED_LOG.call(1).arg(keys::forced(&resource.name));
        let mut log = log.arg(by.to_string()).arg(reason);
        for victim in victims.into_iter().take(VICTIMS_MAX) {
            let client = known.iter().find(|holder| holder.stored == victim);
            log =
                clients::victim(log.arg(victim), client.and_then(|holder| holder.client.as_ref()));
        }
        if let Err(fault) = self.route.call(name(&resource), log).await {
            tracing::warn!(%fault, lock = %resource.name, "the forced unlock was not recorded");
        }
        Ok(Changed::Done)
    }

    async fn inspect(&self, resource: Resource) -> Result<LockInfo, Fault> {
        let (name, key) = (&resource.name, name(&resource));
        self.fits(name)?;
        let of = |script: &'static Script<Held<2>>| script.call(1).arg(key);
        let mut lock = match resource.kind {
            Kind::Mutex => self.route.call(key, of(&script::MUTEX_INSPECT)).await?.lock(&resource),
            Kind::Lock | Kind::Fair => {
                let queue = match resource.kind {
                    Kind::Fair => self.route.call(key, fair::queue(name)).await?,
                    _ => Vec::new(),
                };
                let held = self.route.call(key, of(&script::LOCK_INSPECT)).await?;
                let queue = queue.into_iter().map(|id| Holder::new(id, 0, false)).collect();
                LockInfo { queue, ..held.lock(&resource) }
            }
            Kind::Read | Kind::Write => {
                self.route.call(key, rw::inspect(name, self.wakes)).await?.lock(&resource)
            }
            Kind::Semaphore | Kind::Latch => {
                self.route.call(key, counter::inspect(name)).await?.lock(&resource)
            }
            Kind::Permits => self.route.call(key, permits::inspect(name)).await?.lock(&resource),
        };
        lock.holders = self.described(lock.holders).await;
        Ok(lock)
    }

    /// Adds what the clients of the holders have announced. In a cluster that may be on another shard,
    /// which may be down: then it stays unknown.
    async fn described(&self, holders: Vec<Holder>) -> Vec<Holder> {
        let described = holders.into_iter().map(async |mut holder: Holder| {
            let found = tokio::time::timeout(ANNOUNCED_WITHIN, self.client_of(&holder.stored));
            if let Ok(Some(client)) = found.await {
                let owner: Option<OwnerId> = holder.id.parse().ok();
                let hold = client.holds.iter().find(|hold| Some(hold.owner) == owner);
                holder.describe(&client, hold);
            }
            holder
        });
        join_all(described).await
    }
}

impl Backend for Redis {
    fn capabilities(&self, name: &LockName) -> Capabilities {
        let identity = Arc::clone(&self.inner.identity);
        let (key, route) = (name.as_bytes(), &self.inner.route);
        Capabilities {
            takes_together: true,
            lane: route.authority(key).lane,
            group: route.group(key),
            permission_advice: "allow the user the commands, keys and channels that the manual \
                                lists (manual::redis)",
            ..Capabilities::new(route.revokes_lost_requests(), identity)
        }
    }

    fn acquire(&self, request: Acquire) -> Answer<Attempt> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.acquire(&request).await })
    }

    fn release(&self, request: Release) -> Answer<Released> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.release(&request).await })
    }

    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.renew(&batch).await })
    }

    fn adjust(&self, change: Change) -> Answer<Changed> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            match change {
                Change::ForceUnlock { resource, reason, by, from } => {
                    inner.force_unlock(resource, reason, by, from).await
                }
                Change::Count { resource, id, change } => match resource.kind {
                    Kind::Permits => inner.change_permits(&resource, id, change).await,
                    _ => inner.change_count(&resource, id, change).await,
                },
                Change::Permits { resource, id, ids, change } => {
                    inner.change_by_id(&resource, id, &ids, change).await
                }
                Change::Announce { client, ttl } => inner.announce(client, ttl).await,
                Change::Withdraw { client } => inner.withdraw(client).await,
            }
        })
    }

    fn inspect(&self, resource: Resource) -> Answer<LockInfo> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.inspect(resource).await })
    }

    fn list(&self, request: List) -> Answer<Page> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.list(request).await })
    }

    fn check(&self) -> Answer<Vec<Finding>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.check().await })
    }

    fn subscribe(&self, topic: Topic) -> Answer<Subscription> {
        let is_closed = self.inner.route.is_closed().then_some(Fault::Closed);
        let is_unfit = || self.inner.fits(topic.name()?).err();
        if let Some(fault) = is_closed.or_else(is_unfit) {
            return Box::pin(std::future::ready(Err(fault)));
        }
        self.inner.hub.subscribe(topic)
    }

    fn close(&self) -> BoxFuture<()> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            inner.route.close();
            inner.closing.notify_one();
        })
    }
}
