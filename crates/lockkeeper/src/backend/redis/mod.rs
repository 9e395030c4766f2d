//! One Redis server: Redisson's keys, fields, channels and messages, by scripts of our own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::io::tcp::TcpSettings;
use redis::{Client, ProtocolVersion, Value};
use tokio::sync::Notify;
use uuid::Uuid;

use super::wake::Hub;
use super::{
    Acquire, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, ClientInfo, Fault,
    HolderEntry, Kind, Release, Released, Renew, Renewed, Resource, Snapshot, Subscription, Topic,
    Ttl, model,
};
use crate::OwnerId;
use crate::config::ClientOptions;
use crate::error::{Error, Phase, Result as ClientResult};
use link::Link;
use script::{Command, Script};

mod fault;
mod keys;
mod link;
mod pubsub;
mod script;

/// A Redis server as a store.
#[derive(Clone, Debug)]
pub struct Redis {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    link: Link,
    hub: Hub,
    closing: Arc<Notify>,
    /// The server takes `SET … NX GET`: 7.0 and later do. Assumed until it refuses once.
    set_nx_get: AtomicBool,
    publish_warned: AtomicBool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.closing.notify_one();
    }
}

/// The command that makes a freed lock known. A cluster has another.
const PUBLISH: &str = "PUBLISH";

impl Redis {
    /// Connects, once now and again whenever the connection is lost.
    ///
    /// # Errors
    /// See [`Client::connect_with`](crate::Client::connect_with).
    pub async fn connect(url: &str, options: &ClientOptions) -> ClientResult<Self> {
        let failed = |fault| Error::from_fault(fault, None, Phase::Connect, None);
        let client = client(url, options).map_err(failed)?;
        let (hub, orders) = pubsub::hub();
        let address = client.get_connection_info().addr().to_string();
        let named = |fault| match fault {
            Fault::Unreachable { maybe_ran, detail } => {
                Fault::Unreachable { maybe_ran, detail: format!("{address}: {detail}") }
            }
            fault => fault,
        };
        let link = Link::open(client.clone(), options, hub.clone()).await;
        let link = link.map_err(|fault| failed(named(fault)))?;
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
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// Reads the URL. Its errors never show it: it may hold a password.
fn client(url: &str, options: &ClientOptions) -> Result<Client, Fault> {
    let invalid = |detail: String| Fault::Invalid { detail };
    if url.starts_with("rediss:") && !cfg!(feature = "tls") {
        return Err(invalid("a rediss:// URL needs the feature \"tls\" of lockkeeper".to_owned()));
    }
    let info = redis::IntoConnectionInfo::into_connection_info(url).map_err(|error| {
        let form = "redis://[user:password@]host[:port][/db]";
        invalid(format!("the URL is not of the form {form}: {error}"))
    })?;
    // Reset, not closed: what lies unread in the server's buffer shall not run later.
    let tcp = TcpSettings::default().set_nodelay(true).set_linger_time(Duration::ZERO);
    #[cfg(any(target_os = "android", target_os = "linux"))]
    let tcp = tcp.set_user_timeout(options.response_timeout);
    // Wake-ups and the end of a connection are pushed, for which the newer protocol is needed.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let settings = settings.set_lib_name("lockkeeper", env!("CARGO_PKG_VERSION"));
    let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
    open(info, options).map_err(|error| invalid(error.to_string()))
}

#[cfg(feature = "tls")]
fn open(info: redis::ConnectionInfo, options: &ClientOptions) -> redis::RedisResult<Client> {
    use redis::{ClientTlsConfig, TlsCertificates};
    if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        return Client::open(info);
    }
    // Fails only if one was chosen already, which is then used.
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

fn name(resource: &Resource) -> &[u8] {
    resource.name.as_bytes()
}

impl Inner {
    async fn acquire(&self, request: Acquire) -> Result<Attempt, Fault> {
        if let Some(from) = request.from {
            let script = match request.resource.kind {
                Kind::Lock => &script::LOCK_HANDOVER,
                Kind::Mutex => &script::MUTEX_HANDOVER,
            };
            let call = script.call(1).arg(name(&request.resource));
            let call = call.owner(&from).owner(&request.owner).arg(request.ttl);
            return match self.link.call(call).await {
                // Something else has taken the key: there is nothing to hand over.
                Err(Fault::WrongKind { .. }) => Ok(Attempt::Gone),
                answer => answer.and_then(attempt),
            };
        }
        match request.resource.kind {
            Kind::Lock => {
                let call = script::LOCK_ACQUIRE.call(1).arg(name(&request.resource));
                let call = call.owner(&request.owner).arg(request.ttl).arg(request.count);
                self.link.call(call).await.and_then(attempt)
            }
            Kind::Mutex => self.set_if_free(&request).await,
        }
    }

    async fn set_if_free(&self, request: &Acquire) -> Result<Attempt, Fault> {
        let (owner, key) = (&request.owner, name(&request.resource));
        if self.set_nx_get.load(Ordering::Relaxed) {
            let set = Command::plain("SET").arg(key).owner(owner).arg("NX").arg("GET");
            let answer = self.link.call(set.arg("PX").arg(request.ttl)).await;
            match answer {
                Err(Fault::Server { detail }) if detail.contains("syntax error") => {
                    self.set_nx_get.store(false, Ordering::Relaxed);
                }
                answer => return answer.and_then(|holder| held_by(holder, owner)),
            }
        }
        let call = script::MUTEX_ACQUIRE.call(1).arg(key).owner(owner).arg(request.ttl);
        self.link.call(call).await.and_then(|holder| held_by(holder, owner))
    }

    async fn release(&self, request: Release) -> Result<Released, Fault> {
        let owner = &request.owner;
        let channel = keys::channel(&request.resource.name);
        let ttl = request.ttl.map(|ttl| ttl.to_string()).unwrap_or_default();
        let key = name(&request.resource);
        let call = match request.resource.kind {
            Kind::Lock => {
                let call = script::LOCK_RELEASE.call(1).arg(key).owner(owner).arg(request.keep);
                let call = call.arg(PUBLISH).arg(channel);
                if request.keep > 0 { call.arg(ttl).arg(u8::from(request.leave)) } else { call }
            }
            Kind::Mutex => {
                let call = script::MUTEX_RELEASE.call(1).arg(key).owner(owner);
                call.arg(PUBLISH).arg(channel).arg(ttl)
            }
        };
        match self.link.call(call).await {
            // Something else has taken the key: this hold is gone, which is what a release asks.
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

    /// Holds of one kind in one script. Where the whole is refused because of one (a key that is no
    /// longer permitted, say), each is asked about alone: the others must not be lost with it.
    async fn renew(
        &self,
        script: &'static Script,
        batch: &[&Renew],
    ) -> Vec<Result<Renewed, Fault>> {
        let answers = self.renew_together(script, batch).await;
        let refused = |answer: &Result<_, Fault>| answer.as_ref().is_err_and(|f| !f.may_pass());
        if batch.len() == 1 || !answers.iter().all(refused) {
            return answers;
        }
        let mut answers = Vec::with_capacity(batch.len());
        for renew in batch {
            answers.extend(self.renew_together(script, &[*renew]).await);
        }
        answers
    }

    /// A fault of the whole is the fault of each.
    async fn renew_together(
        &self,
        script: &'static Script,
        batch: &[&Renew],
    ) -> Vec<Result<Renewed, Fault>> {
        let mut call = script.call(batch.len());
        for renew in batch {
            call = call.arg(name(&renew.resource));
        }
        for renew in batch {
            call = call.owner(&renew.owner).arg(renew.ttl.unwrap_or(0));
        }
        match self.link.call(call).await {
            Ok(Value::Array(values)) if values.len() == batch.len() => {
                values.into_iter().map(renewed).collect()
            }
            Ok(other) => vec![Err(unexpected(&other)); batch.len()],
            Err(fault) => vec![Err(fault); batch.len()],
        }
    }

    async fn force_unlock(
        &self,
        resource: Resource,
        reason: String,
        by: ClientInfo,
    ) -> Result<Changed, Fault> {
        let script = match resource.kind {
            Kind::Lock => &script::LOCK_FORCE_UNLOCK,
            Kind::Mutex => &script::MUTEX_FORCE_UNLOCK,
        };
        let call = script.call(1).arg(name(&resource)).arg(PUBLISH);
        let call = call.arg(keys::channel(&resource.name));
        let call = call.arg(keys::NOTICE).arg(model::one_line(&reason));
        let victims = list(self.link.call(call).await?)?;
        if victims.is_empty() {
            return Ok(Changed::Nothing);
        }
        // The lock is open. What follows is for people, and its failure changes nothing of that.
        let log = script::FORCED_LOG.call(1).arg(keys::forced(&resource.name));
        let who = format!("{} pid {} on {}", by.program, by.pid, by.host);
        let mut log = log.arg(who).arg(reason);
        for victim in victims {
            log = log.arg(victim);
        }
        if let Err(fault) = self.link.call(log).await {
            tracing::warn!(?fault, lock = %resource.name, "the forced unlock was not recorded");
        }
        Ok(Changed::Done)
    }

    async fn announce(&self, client: Uuid, info: ClientInfo, ttl: u64) -> Result<Changed, Fault> {
        let started = info.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let call = script::CLIENT_ANNOUNCE.call(1).arg(keys::client(client)).arg(ttl);
        let call = call.arg(info.host).arg(info.pid).arg(info.program).arg(started as u64);
        self.link.call(call).await.map(|_| Changed::Done)
    }

    async fn inspect(&self, resource: Resource) -> Result<Snapshot, Fault> {
        let script = match resource.kind {
            Kind::Lock => &script::LOCK_INSPECT,
            Kind::Mutex => &script::MUTEX_INSPECT,
        };
        let answer = self.link.call(script.call(1).arg(name(&resource))).await?;
        let Value::Array(values) = answer else {
            return Err(unexpected(&answer));
        };
        let mut values = values.into_iter();
        let ttl = match values.next() {
            Some(Value::Int(-2)) | None => return Ok(Snapshot::default()),
            Some(Value::Int(left)) => ttl(left),
            Some(other) => return Err(unexpected(&other)),
        };
        let mut holders = Vec::new();
        while let (Some(id), Some(count)) = (values.next(), values.next()) {
            let id = bulk(id)?;
            let client = self.client_of(&id).await;
            holders.push(HolderEntry { id, count: number(&count), client });
        }
        Ok(Snapshot { holders, ttl: Some(ttl) })
    }

    /// Who the client of an owner id is, if it says so.
    async fn client_of(&self, id: &[u8]) -> Option<ClientInfo> {
        let (client, _) = std::str::from_utf8(id).ok()?.split_once(':')?;
        let key = keys::client(Uuid::try_parse(client).ok()?);
        let get = Command::plain("HMGET").arg(key);
        let answer = self.link.call(get.arg(&["host", "pid", "program", "start"])).await;
        let mut fields = list(answer.ok()?).ok()?.into_iter();
        let mut text = || Some(String::from_utf8_lossy(&fields.next()?).into_owned());
        let (host, pid, program, start) = (text()?, text()?, text()?, text()?);
        let started: SystemTime = UNIX_EPOCH + Duration::from_millis(start.parse().ok()?);
        Some(ClientInfo { host, pid: pid.parse().ok()?, program, started })
    }
}

fn attempt(value: Value) -> Result<Attempt, Fault> {
    match value {
        Value::Nil => Ok(Attempt::Granted),
        Value::Int(-3) => Ok(Attempt::Gone),
        Value::Int(left) => Ok(Attempt::Busy(Some(ttl(left)))),
        other => Err(unexpected(&other)),
    }
}

fn held_by(holder: Value, owner: &OwnerId) -> Result<Attempt, Fault> {
    match holder {
        Value::Nil => Ok(Attempt::Granted),
        Value::BulkString(id) if id == owner.encode(&mut OwnerId::encode_buffer()) => {
            Ok(Attempt::Granted)
        }
        Value::BulkString(_) => Ok(Attempt::Busy(None)),
        other => Err(unexpected(&other)),
    }
}

fn renewed(value: Value) -> Result<Renewed, Fault> {
    match value {
        Value::Int(-2) => Ok(Renewed::Gone),
        Value::Int(-3) => Ok(Renewed::Taken),
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

fn list(value: Value) -> Result<Vec<Vec<u8>>, Fault> {
    match value {
        Value::Array(values) => values.into_iter().map(bulk).collect(),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(value: &Value) -> Fault {
    Fault::Server { detail: format!("unexpected answer: {value:?}") }
}

impl Backend for Redis {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.inner.link.fences())
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
            let is_lock = |renew: &&Renew| renew.resource.kind == Kind::Lock;
            let (locks, mutexes): (Vec<_>, Vec<_>) = batch.iter().partition(is_lock);
            let mut lock_answers = Vec::new().into_iter();
            let mut mutex_answers = Vec::new().into_iter();
            if !locks.is_empty() {
                lock_answers = inner.renew(&script::LOCK_RENEW, &locks).await.into_iter();
            }
            if !mutexes.is_empty() {
                mutex_answers = inner.renew(&script::MUTEX_RENEW, &mutexes).await.into_iter();
            }
            let answer = |renew: &Renew| match renew.resource.kind {
                Kind::Lock => lock_answers.next(),
                Kind::Mutex => mutex_answers.next(),
            };
            batch.iter().map(answer).map(|answer| answer.unwrap_or(Err(Fault::Closed))).collect()
        })
    }

    fn adjust(&self, change: Change) -> BoxFuture<Result<Changed, Fault>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            match change {
                Change::ForceUnlock { resource, reason, by } => {
                    inner.force_unlock(resource, reason, by).await
                }
                Change::Announce { client, info, ttl } => inner.announce(client, info, ttl).await,
                Change::Withdraw { client } => {
                    let del = Command::plain("DEL").arg(keys::client(client));
                    inner.link.call(del).await.map(|_| Changed::Done)
                }
            }
        })
    }

    fn inspect(&self, resource: Resource) -> BoxFuture<Result<Snapshot, Fault>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.inspect(resource).await })
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<Result<Subscription, Fault>> {
        if self.inner.link.is_closed() {
            return Box::pin(std::future::ready(Err(Fault::Closed)));
        }
        let subscription = self.inner.hub.join(topic.clone());
        if topic == Topic::Reconnected {
            // Not of the server's making, so there is nothing to wait for.
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
