//! What the themes share.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use lockkeeper::stores::script_text;
use lockkeeper::{AnyGuard, AnyLock, Client, ClientOptions, Error, Hold, Kind, RedisOptions};
use testkit::{FaultProxy, RedisServer, Reply, Stopwatch};
use tracing::field::{Field, Visit};

/// What happens at once has happened after this, on a machine with two busy cores. Below the
/// shortest re-check of a waiter, 2.5 s. [`within`] and [`eventually`] do not count the time in which the
/// machine stood still.
pub(crate) const SOON: Duration = Duration::from_secs(2);

/// What a test waits for at most where the time itself is not what is tested.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// Too long to end within a test: what ends before it was not ended by a lease.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The response timeout of [`options`].
pub(crate) const RESPONSE: Duration = Duration::from_secs(1);

pub(crate) const KINDS: [Kind; 2] = [Kind::Lock, Kind::Mutex];

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Short timeouts, and leases that do not end during a test.
pub(crate) fn options() -> ClientOptions {
    ClientOptions::new()
        .watchdog_timeout(LONG)
        .connect_timeout(SOON)
        .response_timeout(RESPONSE)
        .retry_backoff(ms(20), ms(200))
}

/// As [`options`], and a write counts as soon as the primary has it.
pub(crate) fn unacknowledged() -> ClientOptions {
    options().redis(RedisOptions::new().unacknowledged())
}

/// As [`options`], and a write counts once this many replicas have it.
pub(crate) fn acknowledged_by(replicas: u32, timeout: Duration) -> ClientOptions {
    options().redis(RedisOptions::new().acknowledged_by(replicas, timeout))
}

pub(crate) async fn connect(url: &str, options: ClientOptions) -> Client {
    within(PATIENCE, "connecting", Client::connect_with(url, options))
        .await
        .expect("the server is there")
}

/// Runs a scenario for a lock and for a mutex, at the same time.
pub(crate) async fn both<F>(scenario: impl Fn(Kind) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let running = KINDS.map(|kind| tokio::spawn(scenario(kind)));
    for task in running {
        joined(task).await;
    }
}

/// The outcome of a task; its panic is the test's.
pub(crate) async fn joined<T>(task: tokio::task::JoinHandle<T>) -> T {
    task.await.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

/// The outcome of `work`, which must come within `limit`.
#[track_caller]
pub(crate) fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = T>,
) -> impl Future<Output = T> {
    let late = format!("not within {limit:?}: {what}");
    async move {
        let (watch, mut work) = (Stopwatch::start(), std::pin::pin!(work));
        loop {
            let left = limit.saturating_sub(watch.elapsed());
            assert!(!left.is_zero(), "{late}");
            if let Ok(done) = tokio::time::timeout(left, work.as_mut()).await {
                return done;
            }
        }
    }
}

/// Looks until `condition` holds, which must be within `limit`. For what only the server knows.
pub(crate) async fn eventually(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let watch = Stopwatch::start();
    while !condition() {
        assert!(watch.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(ms(5)).await;
    }
}

/// Polls a future once; it is expected not to be ready.
pub(crate) async fn start<T>(future: &mut Pin<Box<impl Future<Output = T> + ?Sized>>) {
    let pending =
        std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await;
    assert!(pending, "it was ready at its first poll");
}

/// A lock of either kind.
pub(crate) fn lock_of(client: &Client, kind: Kind, name: &str) -> AnyLock {
    match kind {
        Kind::Mutex => client.mutex(name).into(),
        _ => client.lock(name).into(),
    }
}

/// Acquires a lock that is free.
pub(crate) async fn taken(lock: &AnyLock) -> AnyGuard {
    let guard = within(PATIENCE, "acquiring a free lock", lock.lock()).await;
    guard.expect("the lock is free and the server answers")
}

/// Returns a hold once the client is known to listen for notices, and for as long as the hold lasts: the holds from before
/// are checked then, which is a request more.
pub(crate) async fn listening_client(client: &Client) -> AnyGuard {
    let name = |what| format!("{what} {}", client.id());
    let [kept, forced] = ["kept", "forced"].map(|what| AnyLock::from(client.lock(name(what))));
    let (kept, victim) = (taken(&kept).await, taken(&forced).await);
    forced.force_unlock("").await.expect("the server answers");
    within(PATIENCE, "the notice", victim.lost()).await;
    kept
}

/// Owner and hold count, as stored. Not through the library.
pub(crate) fn stored(server: &RedisServer, kind: Kind, name: &str) -> Vec<(String, i64)> {
    match kind {
        Kind::Mutex => match server.cli(&["GET", name]).ok() {
            Reply::Nil => Vec::new(),
            owner => vec![(owner.text().to_owned(), 1)],
        },
        _ => {
            let fields = server.cli(&["HGETALL", name]).ok();
            let pairs = fields.array().chunks(2);
            pairs.map(|pair| (pair[0].text().to_owned(), pair[1].int())).collect()
        }
    }
}

/// Exactly this guard holds it, so often, and with an end.
#[track_caller]
pub(crate) fn assert_held(server: &RedisServer, kind: Kind, name: &str, guard: &Hold, count: i64) {
    assert_eq!(
        stored(server, kind, name),
        [(guard.owner_id().to_string(), count)],
        "{kind} {name}"
    );
    let left = pttl(server, name);
    assert!(left > 0, "{kind} {name} has no end: {left}");
    assert!(!guard.is_lost(), "{guard:?}");
}

#[track_caller]
pub(crate) fn assert_free(server: &RedisServer, kind: Kind, name: &str) {
    assert_eq!(stored(server, kind, name), [], "{kind} {name}");
}

pub(crate) fn pttl(server: &RedisServer, name: &str) -> i64 {
    server.cli(&["PTTL", name]).int()
}

pub(crate) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// How many connections listen for the lock to be freed.
pub(crate) fn listeners(server: &RedisServer, name: &str) -> i64 {
    server.cli(&["PUBSUB", "NUMSUB", channel(name).as_str()]).array()[1].int()
}

/// The server cuts all connections but its own.
pub(crate) fn cut_all(server: &RedisServer) {
    for kind in ["normal", "pubsub"] {
        server.cli(&["CLIENT", "KILL", "TYPE", kind]).ok();
    }
}

/// Refuses new connections and cuts the existing ones.
pub(crate) fn down(proxy: &FaultProxy) {
    proxy.refuse(true);
    proxy.cut();
}

#[track_caller]
pub(crate) fn assert_unreachable<T: std::fmt::Debug>(answer: &Result<T, Error>) -> String {
    match answer {
        Err(error @ (Error::Unreachable { .. } | Error::Refused { .. })) => error.to_string(),
        other => panic!("expected Unreachable, got {other:?}"),
    }
}

#[track_caller]
pub(crate) fn assert_not_held<T: std::fmt::Debug>(answer: &Result<T, Error>) {
    assert!(matches!(answer, Err(Error::NotHeld { .. })), "{answer:?}");
}

/// A script of the library, as it is sent.
pub(crate) fn lua(name: &str) -> &'static str {
    script_text(name).unwrap_or_else(|| panic!("there is no script {name}"))
}

/// What only the acquire of a mutex contains.
pub(crate) const MUTEX_ACQUIRE: &[u8] = b"\r\nNX\r\n$3\r\nGET\r\n";

/// A request of the library.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    Acquire,
    HandOff,
    Release,
    Renew,
}

impl Sent {
    /// The script by which it is made; the acquire of a mutex needs none.
    pub(crate) fn script(self, kind: Kind) -> Option<&'static str> {
        Some(match (self, kind) {
            (Sent::Acquire, Kind::Mutex) => return None,
            (Sent::HandOff, Kind::Mutex) => lua("MUTEX_HANDOFF"),
            (Sent::Release, Kind::Mutex) => lua("MUTEX_RELEASE"),
            (Sent::Renew, Kind::Mutex) => lua("MUTEX_RENEW"),
            (Sent::Acquire, _) => lua("LOCK_ACQUIRE"),
            (Sent::HandOff, _) => lua("LOCK_HANDOFF"),
            (Sent::Release, _) => lua("LOCK_RELEASE"),
            (Sent::Renew, _) => lua("LOCK_RENEW"),
        })
    }
}

/// A server, a proxy before it, and a client behind the proxy.
pub(crate) struct Rig {
    pub(crate) client: Client,
    pub(crate) proxy: FaultProxy,
    pub(crate) server: RedisServer,
    pub(crate) kind: Kind,
}

impl Rig {
    pub(crate) async fn new(kind: Kind, options: ClientOptions) -> Self {
        Self::on(RedisServer::start(), kind, options).await
    }

    pub(crate) async fn on(server: RedisServer, kind: Kind, options: ClientOptions) -> Self {
        let proxy = FaultProxy::start(server.port()).await;
        let client = connect(&proxy.url(), options).await;
        Self { client, proxy, server, kind }
    }

    pub(crate) fn handle(&self, name: &str) -> AnyLock {
        lock_of(&self.client, self.kind, name)
    }

    /// A client that connects to the server directly.
    pub(crate) async fn direct_client(&self) -> Client {
        connect(&self.server.url(), options()).await
    }

    /// The same lock for a client that connects to the server directly.
    pub(crate) async fn direct_lock(&self, name: &str) -> AnyLock {
        lock_of(&self.direct_client().await, self.kind, name)
    }

    /// What only a call of this script contains. The server knows it from here on.
    pub(crate) fn hash(&self, script: &str) -> Vec<u8> {
        let hash = self.server.cli(&["SCRIPT", "LOAD", script]).ok();
        hash.text().as_bytes().to_vec()
    }

    /// What only a request of this primitive contains. The server knows the script from here on, so that
    /// it is sent by its hash.
    pub(crate) fn mark(&self, sent: Sent) -> Vec<u8> {
        match sent.script(self.kind) {
            Some(script) => self.hash(script),
            None => MUTEX_ACQUIRE.to_vec(),
        }
    }

    /// The next request of this primitive is executed, and its answer lost.
    pub(crate) fn lose_reply(&self, sent: Sent) {
        let mark = self.mark(sent);
        self.proxy.drop_replies_once_after_request_matching(&mark);
    }

    pub(crate) fn stored(&self, name: &str) -> Vec<(String, i64)> {
        stored(&self.server, self.kind, name)
    }

    #[track_caller]
    pub(crate) fn assert_held(&self, name: &str, guard: &Hold, count: i64) {
        assert_held(&self.server, self.kind, name, guard, count);
    }

    #[track_caller]
    pub(crate) fn assert_free(&self, name: &str) {
        assert_free(&self.server, self.kind, name);
    }
}

/// Collects the warnings of this thread, for a test on a `current_thread` runtime.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings(Arc<StdMutex<Vec<String>>>);

impl Warnings {
    pub(crate) fn collect() -> (Self, Collecting) {
        let warnings = Self::default();
        let collecting = Collecting {
            _second: tracing::Dispatch::new(warnings.clone()),
            _default: tracing::subscriber::set_default(warnings.clone()),
        };
        (warnings, collecting)
    }

    pub(crate) fn containing(&self, needle: &str) -> usize {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| line.contains(needle)).count()
    }
}

/// Warnings of this thread are collected while it lives.
pub(crate) struct Collecting {
    _default: tracing::subscriber::DefaultGuard,
    /// While there is only one subscriber, a thread that has none and comes first to a place in the
    /// code turns that place off for all. With two, all are asked.
    _second: tracing::Dispatch,
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}
