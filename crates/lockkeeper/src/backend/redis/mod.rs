//! One Redis server: Redisson's keys, fields, channels and messages, by scripts of our own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{Client, ProtocolVersion, Value};
use tokio::sync::Notify;

use super::wake::Subscriptions;
use super::{
    Acquire, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, ClientInfo, Fault,
    Finding, HolderEntry, Kind, List, Page, Release, Released, Renew, Renewed, Resource, Snapshot,
    Subscription, Topic, Ttl, model,
};
use crate::OwnerId;
use crate::config::ClientOptions;
use crate::error::{Error, Phase, Result as ClientResult};
use crate::name::Brief;
use link::Link;
use script::{Command, Script};

mod check;
mod clients;
mod counter;
mod fair;
mod fault;
mod keys;
mod link;
mod list;
mod lock;
mod permits;
mod pubsub;
mod rw;
mod script;
mod shape;

/// A Redis server as a store.
#[derive(Clone, Debug)]
pub struct Redis {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    link: Link,
    hub: Subscriptions,
    closing: Arc<Notify>,
    /// The server accepts `SET … NX GET`, as 7.0 and later do. Assumed until it rejects one.
    set_nx_get: AtomicBool,
    publish_warned: AtomicBool,
    /// Address and database.
    identity: Arc<str>,
    settled: std::sync::Mutex<counter::Settled>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.closing.notify_one();
    }
}

/// The command that publishes a release. A cluster has another one.
const PUBLISH: &str = "PUBLISH";

impl Redis {
    /// Connects, and reconnects whenever the connection is lost.
    ///
    /// # Errors
    /// See [`Client::connect_with`](crate::Client::connect_with).
    pub async fn connect(url: &str, options: &ClientOptions) -> ClientResult<Self> {
        let failed = |fault| Error::from_fault(fault, None, Phase::Connect, None);
        let (client, database) = client(url, options).map_err(failed)?;
        let (hub, orders) = pubsub::hub();
        let address = client.get_connection_info().addr().to_string();
        let named = |fault| match fault {
            Fault::Unreachable { maybe_ran, detail } => {
                Fault::Unreachable { maybe_ran, detail: format!("{address}: {detail}") }
            }
            Fault::Refused { detail } => Fault::Refused { detail: format!("{address}: {detail}") },
            fault => fault,
        };
        let link = Link::open(client.clone(), database, options, hub.clone()).await;
        let link = link.map_err(|fault| failed(named(fault)))?;
        let server = link.server().unwrap_or_else(|| address.clone());
        let identity = Arc::from(format!("{server}/{database}"));
        let closing = Arc::new(Notify::new());
        let listening =
            pubsub::run(client, options.clone(), hub.clone(), orders, Arc::clone(&closing));
        tokio::spawn(listening);
        let inner = Inner {
            link,
            hub,
            closing,
            set_nx_get: AtomicBool::new(true),
            publish_warned: AtomicBool::new(false),
            identity,
            settled: std::sync::Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// Parses the URL into server and database. Errors never contain the URL: it may contain a
/// password.
fn client(url: &str, options: &ClientOptions) -> Result<(Client, i64), Fault> {
    let invalid = |detail: String| Fault::Invalid { detail };
    if url.starts_with("rediss:") && !cfg!(feature = "tls") {
        return Err(invalid("a rediss:// URL needs the feature \"tls\" of lockkeeper".to_owned()));
    }
    if !is_port_valid(url) {
        let form = "the port in the URL must be a number from 1 to 65535, and a password must be \
                    percent-encoded";
        return Err(invalid(form.to_owned()));
    }
    let info = redis::IntoConnectionInfo::into_connection_info(url).map_err(|error| {
        let form = "redis://[user:password@]host[:port][/db]";
        invalid(format!("the URL is not of the form {form}: {error}"))
    })?;
    // Reset instead of close: the server must not execute unread requests in its buffer later.
    let tcp = TcpSettings::default().set_nodelay(true).set_linger_time(Duration::ZERO);
    #[cfg(any(target_os = "android", target_os = "linux"))]
    let tcp = tcp.set_user_timeout(options.response_timeout);
    // RESP3: wake-ups and the end of a connection arrive as push messages.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    // The driver connects with a single command. With more of them, the message of a server that
    // rejects the connection and closes it would be lost.
    let database = settings.db();
    let settings = settings.set_db(0).set_skip_set_lib_name();
    let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
    let client = open(info, options).map_err(|error| invalid(error.to_string()))?;
    Ok((client, database))
}

/// Sets the name that `CLIENT LIST` shows, with three commands. It is only for people, so missing
/// permissions do not matter.
fn say_who(pipeline: &mut redis::Pipeline, options: &ClientOptions) {
    pipeline.cmd("CLIENT").arg("SETNAME").arg(options.shown_name());
    let version = env!("CARGO_PKG_VERSION");
    for (field, value) in [("LIB-NAME", "lockkeeper"), ("LIB-VER", version)] {
        pipeline.cmd("CLIENT").arg("SETINFO").arg(field).arg(value);
    }
}

/// Whether the URL has no port or a valid one. A path has none.
fn is_port_valid(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return true };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    match host.rsplit_once(':') {
        Some((_, port)) if !scheme.ends_with("unix") && !host.ends_with(']') => {
            port.is_empty() || port.parse::<u16>().is_ok_and(|port| port > 0)
        }
        _ => true,
    }
}

#[cfg(feature = "tls")]
fn open(info: redis::ConnectionInfo, options: &ClientOptions) -> redis::RedisResult<Client> {
    use redis::{ClientTlsConfig, TlsCertificates};
    if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        return Client::open(info);
    }
    // Fails only if a provider is installed already, which is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let identity = options.tls.identity.clone();
    let client_tls =
        identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    if client_tls.is_none() && options.tls.ca.is_none() {
        return Client::open(info);
    }
    Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: options.tls.ca.clone() })
}

#[cfg(not(feature = "tls"))]
fn open(info: redis::ConnectionInfo, _: &ClientOptions) -> redis::RedisResult<Client> {
    Client::open(info)
}

/// Returns the text of a script as it is sent, for tests and benchmarks; `None` for an unknown
/// name.
pub fn script_text(name: &str) -> Option<&'static str> {
    let script = script::ALL.iter().find(|(known, _)| *known == name);
    script.map(|(_, script)| script.source)
}

/// A script that renews many holds of one kind.
struct Renewal {
    takes: fn(&Renew) -> bool,
    call: fn(&[&Renew]) -> Command,
}

const RENEWALS: &[Renewal] = &[
    Renewal { takes: lock::is_hash, call: lock::renew_locks },
    Renewal { takes: |renew| renew.resource.kind == Kind::Mutex, call: lock::renew_mutexes },
    Renewal { takes: fair::is_place, call: fair::keep_places },
    Renewal { takes: |renew| renew.resource.kind == Kind::Read, call: rw::renew_readers },
    Renewal { takes: |renew| renew.resource.kind == Kind::Write, call: rw::renew_writers },
    Renewal { takes: |renew| renew.resource.kind == Kind::Permits, call: permits::renew },
];

/// How many former holders a force-release records: the number of script arguments is limited.
const VICTIMS_MAX: usize = 1000;

fn name(resource: &Resource) -> &[u8] {
    resource.name.as_bytes()
}

impl Inner {
    async fn acquire(&self, request: Acquire) -> Result<Attempt, Fault> {
        match request.resource.kind {
            Kind::Lock => self.acquire_lock(request).await,
            Kind::Mutex => self.acquire_mutex(request).await,
            Kind::Fair => self.acquire_fair(request).await,
            Kind::Read => self.acquire_read(request).await,
            Kind::Write => self.acquire_write(request).await,
            Kind::Semaphore => self.acquire_counter(request).await,
            Kind::Permits => self.acquire_permits(request).await,
            Kind::Latch => Err(unfit(request.resource.kind)),
        }
    }

    async fn release(&self, request: Release) -> Result<Released, Fault> {
        let answer = match request.resource.kind {
            Kind::Lock => self.release_lock(request).await,
            Kind::Mutex => self.release_mutex(request).await,
            Kind::Fair => self.release_fair(request).await,
            Kind::Read => self.release_read(request).await,
            Kind::Write => self.release_write(request).await,
            Kind::Semaphore => self.release_counter(request).await,
            Kind::Permits => self.release_permits(request).await,
            Kind::Latch => Err(unfit(request.resource.kind)),
        };
        match answer {
            // The key belongs to something else, so this hold no longer exists.
            Err(Fault::WrongKind { .. }) => Ok(Released::Absent { holder: None }),
            answer => answer.and_then(|value| self.released(value)),
        }
    }

    fn released(&self, value: Value) -> Result<Released, Fault> {
        Ok(match value {
            Value::Int(told) if told >= 0 => {
                Released::Freed { listeners: Some(told.unsigned_abs()) }
            }
            Value::Int(_) => {
                if !self.publish_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "no permission to publish wake-ups: waiters find out by polling"
                    );
                }
                Released::Freed { listeners: None }
            }
            Value::Nil => Released::Absent { holder: None },
            Value::BulkString(id) => {
                Released::Absent { holder: Some(String::from_utf8_lossy(&id).into_owned()) }
            }
            Value::SimpleString(word) if word == "KEPT" => Released::Kept,
            other => return Err(unexpected(&other)),
        })
    }

    /// Renews holds of one kind with one script. If the whole script is rejected because of one
    /// entry (for example a key without permission), each hold is renewed alone, so that the others
    /// are not lost.
    async fn renew(&self, step: &Renewal, batch: &[&Renew]) -> Vec<Result<Renewed, Fault>> {
        let answers = self.renew_together(step, batch).await;
        let refused = |answer: &Result<_, Fault>| answer.as_ref().is_err_and(|f| !f.may_pass());
        if batch.len() == 1 || !answers.iter().all(refused) {
            return answers;
        }
        let mut answers = Vec::with_capacity(batch.len());
        for renew in batch {
            answers.extend(self.renew_together(step, &[*renew]).await);
        }
        answers
    }

    /// A fault of the request is the fault of each entry.
    async fn renew_together(
        &self,
        step: &Renewal,
        batch: &[&Renew],
    ) -> Vec<Result<Renewed, Fault>> {
        match self.link.call((step.call)(batch).answering_each(batch.len())).await {
            Ok(Value::Array(values)) => values.into_iter().map(renewed).collect(),
            Ok(other) => vec![Err(unexpected(&other)); batch.len()],
            Err(fault) => vec![Err(fault); batch.len()],
        }
    }

    async fn force_unlock(
        &self,
        resource: Resource,
        reason: String,
        by: ClientInfo,
        from: Option<Vec<Vec<u8>>>,
    ) -> Result<Changed, Fault> {
        let line = model::one_line(&reason);
        let mut call = match resource.kind {
            Kind::Lock => lock::force_unlock(&script::LOCK_FORCE_UNLOCK, &resource, line),
            Kind::Mutex => lock::force_unlock(&script::MUTEX_FORCE_UNLOCK, &resource, line),
            Kind::Fair => fair::force_unlock(&resource, line),
            Kind::Read | Kind::Write => rw::force_unlock(&resource, line),
            Kind::Semaphore | Kind::Permits | Kind::Latch => return Err(unfit(resource.kind)),
        };
        for id in from.into_iter().flatten() {
            call = call.arg(id);
        }
        // Read before the holders are notified: then they may withdraw their announcements.
        let known = self.inspect(resource.clone()).await.unwrap_or_default().holders;
        let answer = self.link.call(call).await?;
        if matches!(&answer, Value::BulkString(said) if said == b"other") {
            return Ok(Changed::Other);
        }
        let victims = strings(answer)?;
        if victims.is_empty() {
            return Ok(Changed::Nothing);
        }
        // The lock is free. The log is for people, and its failure does not matter.
        let log = script::FORCED_LOG.call(1).arg(keys::forced(&resource.name));
        let mut log = log.arg(by.in_a_line()).arg(reason);
        for victim in victims.into_iter().take(VICTIMS_MAX) {
            let client = known.iter().find(|holder| holder.id == victim);
            log =
                clients::victim(log.arg(victim), client.and_then(|holder| holder.client.as_ref()));
        }
        if let Err(fault) = self.link.call(log).await {
            tracing::warn!(?fault, lock = %resource.name, "the forced unlock was not recorded");
        }
        Ok(Changed::Done)
    }

    async fn inspect(&self, resource: Resource) -> Result<Snapshot, Fault> {
        match resource.kind {
            Kind::Lock => self.inspect_holders(&script::LOCK_INSPECT, &resource).await,
            Kind::Mutex => self.inspect_holders(&script::MUTEX_INSPECT, &resource).await,
            Kind::Fair => self.inspect_fair(&resource).await,
            Kind::Read | Kind::Write => self.inspect_rw(&resource).await,
            Kind::Semaphore | Kind::Latch => self.inspect_counter(&resource).await,
            Kind::Permits => self.inspect_permits(&resource).await,
        }
    }

    /// Parses the TTL, then alternating owner and hold count.
    async fn inspect_holders(
        &self,
        script: &'static Script,
        resource: &Resource,
    ) -> Result<Snapshot, Fault> {
        let answer = self.link.call(script.call(1).arg(name(resource))).await?;
        let Some((ttl, mut values)) = standing(answer)? else {
            return Ok(Snapshot::default());
        };
        let mut holders = Vec::new();
        while let (Some(id), Some(count)) = (values.next(), values.next()) {
            holders.push(self.holder(bulk(id)?, number(&count), false).await);
        }
        Ok(Snapshot { holders, ttl: Some(ttl), ..Snapshot::default() })
    }

    async fn holder(&self, id: Vec<u8>, count: u64, shared: bool) -> HolderEntry {
        let client = self.client_of(&id).await;
        let owner: Option<OwnerId> = std::str::from_utf8(&id).ok().and_then(|id| id.parse().ok());
        let holder = HolderEntry::new(id, count, shared);
        let Some(client) = client else { return holder };
        holder.described(&client, client.holds.iter().find(|hold| Some(hold.owner) == owner))
    }
}

/// Returns the TTL of a held lock and the remaining values; `None` if it is free.
fn standing(answer: Value) -> Result<Option<(Ttl, std::vec::IntoIter<Value>)>, Fault> {
    let Value::Array(values) = answer else {
        return Err(unexpected(&answer));
    };
    let mut values = values.into_iter();
    match values.next() {
        Some(Value::Int(-2)) | None => Ok(None),
        Some(Value::Int(left)) => Ok(Some((ttl(left), values))),
        Some(other) => Err(unexpected(&other)),
    }
}

fn attempt(value: Value) -> Result<Attempt, Fault> {
    match value {
        Value::Nil => Ok(Attempt::GRANTED),
        Value::BulkString(token) => {
            let number = String::from_utf8_lossy(&token).parse();
            let not_one = |_| Fault::Server { detail: format!("not a token: {}", Brief(&token)) };
            number.map(|token| Attempt::Granted { token: Some(token) }).map_err(not_one)
        }
        Value::Int(-3) => Ok(Attempt::Gone),
        Value::Int(left) => Ok(Attempt::Busy(Some(ttl(left)))),
        Value::Array(parts) => match parts.first() {
            Some(Value::Int(left)) => Ok(Attempt::Busy(Some(ttl(*left))).among(listeners(&parts))),
            _ => Err(unexpected(&Value::Array(parts))),
        },
        other => Err(unexpected(&other)),
    }
}

/// Returns the number of listeners, the second part of a busy answer.
fn listeners(parts: &[Value]) -> u64 {
    parts.get(1).map_or(0, number)
}

fn renewed(value: Value) -> Result<Renewed, Fault> {
    match value {
        Value::Int(-2) => Ok(Renewed::Gone),
        Value::Int(-3) => Ok(Renewed::Taken),
        Value::Int(-4) => Ok(Renewed::Waiting),
        Value::Int(-5) => Ok(Renewed::Due),
        Value::Int(left) => Ok(Renewed::Held(ttl(left))),
        Value::BulkString(error) => {
            let error = String::from_utf8_lossy(&error).into_owned();
            let (code, detail) = error.split_once(' ').unwrap_or((&error, ""));
            Err(fault::of_words(code, detail))
        }
        other => Err(unexpected(&other)),
    }
}

fn ttl(left: i64) -> Ttl {
    u64::try_from(left).map_or(Ttl::Forever, Ttl::Millis)
}

fn number(value: &Value) -> u64 {
    match value {
        Value::Int(number) => number.unsigned_abs(),
        Value::BulkString(text) => String::from_utf8_lossy(text).parse().unwrap_or(0),
        _ => 0,
    }
}

fn bulk(value: Value) -> Result<Vec<u8>, Fault> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        other => Err(unexpected(&other)),
    }
}

fn strings(value: Value) -> Result<Vec<Vec<u8>>, Fault> {
    match value {
        Value::Array(values) => values.into_iter().map(bulk).collect(),
        other => Err(unexpected(&other)),
    }
}

fn unfit(kind: Kind) -> Fault {
    Fault::Invalid { detail: format!("a {kind} has no such request") }
}

fn unexpected(value: &Value) -> Fault {
    let shown = format!("{value:?}");
    Fault::Server { detail: format!("unexpected answer: {}", Brief(shown.as_bytes())) }
}

impl Backend for Redis {
    fn capabilities(&self) -> Capabilities {
        let identity = Arc::clone(&self.inner.identity);
        Capabilities::new(self.inner.link.fences(), identity).taking_together().advising(
            "allow the user the commands, keys and channels that the manual lists (manual::redis)",
        )
    }

    fn acquire(&self, request: Acquire) -> BoxFuture<Result<Attempt, Fault>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.acquire(request).await })
    }

    fn release(&self, request: Release) -> BoxFuture<Result<Released, Fault>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.release(request).await })
    }

    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let mut answers: Vec<_> = batch.iter().map(|_| Err(Fault::Closed)).collect();
            for step in RENEWALS {
                let of_step = |(_, renew): &(usize, &Renew)| (step.takes)(renew);
                let (places, renews): (Vec<_>, Vec<_>) =
                    batch.iter().enumerate().filter(of_step).unzip();
                if renews.is_empty() {
                    continue;
                }
                for (place, answer) in places.into_iter().zip(inner.renew(step, &renews).await) {
                    answers[place] = answer;
                }
            }
            answers
        })
    }

    fn adjust(&self, change: Change) -> BoxFuture<Result<Changed, Fault>> {
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

    fn inspect(&self, resource: Resource) -> BoxFuture<Result<Snapshot, Fault>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.inspect(resource).await })
    }

    fn list(&self, request: List) -> BoxFuture<Result<Page, Fault>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.list(request).await })
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Fault>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.check().await })
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<Result<Subscription, Fault>> {
        if self.inner.link.is_closed() {
            return Box::pin(std::future::ready(Err(Fault::Closed)));
        }
        let subscription = match topic {
            // A `0` published earlier must not open the latch.
            Topic::Latch(_) => self.inner.hub.join_anew(topic.clone()),
            _ => self.inner.hub.join(topic.clone()),
        };
        if topic == Topic::Reconnected {
            // A local topic: there is no confirmation by the server to wait for.
            self.inner.hub.confirm(&topic);
        }
        Box::pin(subscription.confirmed())
    }

    fn close(&self) -> BoxFuture<()> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            inner.link.close();
            inner.closing.notify_one();
        })
    }
}
