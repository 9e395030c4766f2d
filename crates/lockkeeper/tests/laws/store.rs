//! The stores on which the laws run, and what a law needs of a store.

use std::future::{Future, IntoFuture};
use std::io::Write as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[cfg(feature = "file")]
use crate::lockfile::LockFile;
use lockkeeper::backend::{Acquire, Attempt, Backend, Release, Released, Resource};
use lockkeeper::blocking::Wait;
use lockkeeper::stores::Memory;
use lockkeeper::stores::Quorum;
use lockkeeper::stores::Redis;
use lockkeeper::{
    AnyGuard, AnyLock, Client, ClientOptions, FairLock, FencedLock, Hold, Kind, Lock, LockInfo,
    LockName, LostReason, Mutex, OwnerId, Result, Ttl,
};
use testkit::{Cluster, RedisServer, Replicated, Sentinels, Shape, Stopwatch};
use tokio::time::{Instant, sleep, timeout};

/// One server for all laws: each law uses its own names.
static SERVER: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);

/// A primary with replicas that acknowledge writes, for all laws.
static SENTINELS: LazyLock<Sentinels> = LazyLock::new(sentinels);

/// The members of a quorum, for all laws.
static QUORUM: LazyLock<[RedisServer; 3]> = LazyLock::new(quorum);

fn quorum() -> [RedisServer; 3] {
    let members = [(); 3].map(|()| RedisServer::start());
    let url = quorum_url(&members);
    // The first client writes the markers. Then they are old enough for any lease.
    std::thread::spawn(move || {
        let client = lockkeeper::blocking::connect_with(&url, quorum_options());
        client.expect("a majority is there").shutdown().wait();
    })
    .join()
    .expect("it has not panicked");
    for member in &members {
        member.cli(&["HSET", "lockkeeper_quorum", "since", "-9000000000000000"]).ok();
    }
    members
}

fn quorum_url(members: &[RedisServer]) -> String {
    format!("quorum:{}", members.iter().map(RedisServer::url).collect::<Vec<_>>().join(","))
}

fn quorum_options() -> ClientOptions {
    ClientOptions::new().longest_lease(lockkeeper::MAX_LEASE)
}

/// Sentinels that do not take a busy server for a dead one.
fn sentinels() -> Sentinels {
    Replicated::builder().sentinels().down_after(Duration::from_secs(60)).start()
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A store for one law.
pub(crate) struct Store {
    kind: StoreKind,
    url: String,
    number: u64,
}

enum StoreKind {
    Memory(Arc<Memory>),
    Redis(&'static RedisServer),
    /// The primary that sentinels know.
    Sentinel(&'static RedisServer),
    /// Three shards with a replica each.
    Cluster(&'static Cluster),
    Quorum(&'static [RedisServer; 3]),
    #[cfg(feature = "file")]
    File(LockFile),
}

impl Store {
    pub(crate) fn memory() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("law-{number}");
        Self {
            url: format!("memory:{name}"),
            kind: StoreKind::Memory(Memory::named(&name)),
            number,
        }
    }

    pub(crate) fn redis() -> Self {
        Self {
            url: SERVER.url(),
            kind: StoreKind::Redis(&SERVER),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(crate) fn sentinel() -> Self {
        Self::behind_sentinels(&SENTINELS)
    }

    fn behind_sentinels(sentinels: &'static Sentinels) -> Self {
        Self {
            url: sentinels.url(),
            kind: StoreKind::Sentinel(sentinels.servers().primary().server()),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(crate) fn cluster() -> Self {
        Self::of_cluster(Cluster::shared())
    }

    fn of_cluster(cluster: &'static Cluster) -> Self {
        Self {
            url: cluster.url(),
            kind: StoreKind::Cluster(cluster),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Whether it has only locks, spin locks, fenced locks and mutexes.
    pub(crate) fn is_quorum(&self) -> bool {
        matches!(self.kind, StoreKind::Quorum(_))
    }

    pub(crate) fn quorum() -> Self {
        Self::of_quorum(&QUORUM)
    }

    fn of_quorum(members: &'static [RedisServer; 3]) -> Self {
        Self {
            url: quorum_url(members),
            kind: StoreKind::Quorum(members),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    #[cfg(feature = "file")]
    pub(crate) fn file() -> Self {
        let file = LockFile::new();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { url: file.url(), kind: StoreKind::File(file), number }
    }

    /// Another store without other clients, for laws about all its locks. A server that it starts ends with
    /// the process.
    pub(crate) fn apart(&self) -> Self {
        match self.kind {
            StoreKind::Memory(_) => Self::memory(),
            #[cfg(feature = "file")]
            StoreKind::File(_) => Self::file(),
            StoreKind::Sentinel(_) => Self::behind_sentinels(Box::leak(Box::new(sentinels()))),
            StoreKind::Cluster(_) => {
                Self::of_cluster(Box::leak(Box::new(Cluster::start(Shape::Primaries))))
            }
            StoreKind::Quorum(_) => Self::of_quorum(Box::leak(Box::new(quorum()))),
            StoreKind::Redis(_) => {
                let server: &'static RedisServer = Box::leak(Box::new(RedisServer::start()));
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                Self { url: server.url(), kind: StoreKind::Redis(server), number }
            }
        }
    }

    /// Whether its clock is paused, so that waiting costs no time.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(self.kind, StoreKind::Memory(_))
    }

    /// Runs a law; a law that hangs fails.
    pub(crate) async fn uphold(self, law: impl AsyncFnOnce(&Self)) {
        let limit = match self.kind {
            StoreKind::Memory(_) => Duration::from_secs(3600),
            _ => Duration::from_secs(100),
        };
        let start = std::time::Instant::now();
        if timeout(limit, law(&self)).await.is_err() {
            panic!("the law has not come to its end within {limit:?}");
        }
        if let Some(file) = std::env::var_os("LOCKKEEPER_LAW_TIMES") {
            // Named after its test, as the thread is.
            let law = std::thread::current().name().unwrap_or_default().to_owned();
            let mut file = std::fs::File::options().append(true).create(true).open(file).unwrap();
            writeln!(file, "{law}\t{}", start.elapsed().as_millis()).unwrap();
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The server, in laws that are Redis's alone.
    #[track_caller]
    pub(crate) fn server(&self) -> &'static RedisServer {
        match self.kind {
            StoreKind::Redis(server) | StoreKind::Sentinel(server) => server,
            _ => panic!("there is no server behind an embedded store"),
        }
    }

    /// The server of a name, where there is one.
    pub(crate) fn behind(&self, name: &str) -> Option<&'static RedisServer> {
        match self.kind {
            StoreKind::Redis(server) | StoreKind::Sentinel(server) => Some(server),
            StoreKind::Cluster(cluster) => Some(cluster.owner_of(name).server()),
            StoreKind::Quorum(members) => members.first(),
            _ => None,
        }
    }

    /// All servers that may have keys and subscribers.
    pub(crate) fn servers(&self) -> Vec<&'static RedisServer> {
        match self.kind {
            StoreKind::Redis(server) | StoreKind::Sentinel(server) => vec![server],
            StoreKind::Cluster(cluster) => {
                (0..3).map(|shard| cluster.primary(shard).server()).collect()
            }
            StoreKind::Quorum(members) => members.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Whether it has this kind of primitive.
    pub(crate) fn has(&self, kind: Kind) -> bool {
        !matches!(self.kind, StoreKind::Quorum(_)) || matches!(kind, Kind::Lock | Kind::Mutex)
    }

    /// Whether it serves locks of this name. A cluster serves no name whose keys would be in several
    /// slots: with braces, but nothing between the first one and the next closing one.
    pub(crate) fn serves(&self, name: &[u8]) -> bool {
        let open = name.iter().position(|byte| *byte == b'{');
        let tag = &name[open.map_or(0, |open| open + 1)..];
        let close = tag.iter().position(|byte| *byte == b'}');
        let fits = match open {
            Some(_) => close.is_some_and(|close| close > 0),
            None => close.is_none(),
        };
        fits || !matches!(self.kind, StoreKind::Cluster(_))
    }

    /// Whether it counts everything, not only what has to do with a name.
    pub(crate) fn counts_all(&self) -> bool {
        matches!(self.kind, StoreKind::Memory(_))
    }

    /// How many keys belong to `name`, with those of single readers and permits, and without those that
    /// outlive it (on Redis); how much is stored in total (in memory).
    pub(crate) fn traces(&self, name: &str) -> usize {
        match &self.kind {
            StoreKind::Memory(memory) => memory.usage().0,
            #[cfg(feature = "file")]
            StoreKind::File(file) => file.stored(name, false),
            StoreKind::Redis(_)
            | StoreKind::Sentinel(_)
            | StoreKind::Cluster(_)
            | StoreKind::Quorum(_) => {
                let outlive = ["lockkeeper_replies", "lockkeeper_forced", "redisson_lock_token"];
                let outlive = [&outlive[..], &["lockkeeper_patience"]].concat();
                let outlives =
                    |key: &str| outlive.iter().any(|what| key.starts_with(&format!("{what}:")));
                let left = self.servers().into_iter().map(|server| {
                    let keys = server.cli(&["KEYS", &format!("*{name}*")]);
                    keys.array().iter().filter(|key| !outlives(key.text())).count()
                });
                left.sum()
            }
        }
    }

    /// A name that no other law uses.
    pub(crate) fn name(&self, what: &str) -> String {
        format!("law-{}:{what}", self.number)
    }

    /// A client of its own, whose watchdog timeout is [`watchdog`](Self::watchdog).
    pub(crate) async fn client(&self) -> Client {
        self.client_with(self.options()).await
    }

    pub(crate) async fn client_with(&self, options: ClientOptions) -> Client {
        let client = Client::connect_with(&self.url, options).await;
        client.expect("the store can be opened")
    }

    /// The options of [`client`](Self::client).
    pub(crate) fn options(&self) -> ClientOptions {
        let options = match self.kind {
            StoreKind::Quorum(_) => quorum_options(),
            _ => ClientOptions::new(),
        };
        options.watchdog_timeout(self.watchdog())
    }

    /// The store below the clients, for decorators and for holds of other clients.
    pub(crate) async fn backend(&self) -> Arc<dyn Backend> {
        match &self.kind {
            StoreKind::Memory(memory) => Arc::clone(memory) as Arc<dyn Backend>,
            StoreKind::Redis(_) | StoreKind::Sentinel(_) | StoreKind::Cluster(_) => {
                let redis = Redis::connect(&self.url, &self.options()).await;
                Arc::new(redis.expect("the server can be reached"))
            }
            StoreKind::Quorum(members) => {
                let urls = members.each_ref().map(RedisServer::url);
                let urls: Vec<_> = urls.iter().map(String::as_str).collect();
                let quorum = Quorum::connect(&urls, &self.options()).await;
                Arc::new(quorum.expect("a majority can be reached"))
            }
            #[cfg(feature = "file")]
            StoreKind::File(file) => file.backend(&self.options()).await,
        }
    }

    /// A lease whose expiry a law waits for. Also how long a law waits for what must not happen.
    pub(crate) fn lease(&self) -> Duration {
        match self.kind {
            StoreKind::Memory(_) => Duration::from_secs(10),
            _ => Duration::from_secs(1),
        }
    }

    /// The same for a lease that a law uses before it expires: nothing expires too early while the machine stands
    /// still for two seconds.
    pub(crate) fn steady_lease(&self) -> Duration {
        self.lease().max(Duration::from_secs(3))
    }

    /// The watchdog timeout of its clients: the default on the paused clock. In real time long enough that no
    /// lock is lost while the machine stands still for two seconds.
    pub(crate) fn watchdog(&self) -> Duration {
        match self.kind {
            StoreKind::Memory(_) => lockkeeper::WATCHDOG_TIMEOUT,
            _ => Duration::from_secs(3),
        }
    }

    /// A lease that does not expire during a law.
    pub(crate) fn long(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// The outcome of work that must not wait for a lease, a re-check or a renewal. On the paused clock that takes
    /// no time except for the millisecond of courtesy after a release.
    pub(crate) async fn promptly<T>(&self, what: &str, work: impl IntoFuture<Output = T>) -> T {
        self.within(what, Duration::ZERO, work).await
    }

    /// Waiters are woken and need no re-check.
    pub(crate) async fn is_notified(&self, what: &str, turn: impl AsyncFnMut() -> Duration) {
        self.is_within(what, Duration::from_millis(500), turn).await;
    }

    /// The quickest of several rounds is within `limit`, however busy the machine is in the others.
    pub(crate) async fn is_within(
        &self,
        what: &str,
        limit: Duration,
        mut turn: impl AsyncFnMut() -> Duration,
    ) {
        let mut quickest = Duration::MAX;
        for _ in 0..20 {
            quickest = quickest.min(turn().await);
            if quickest < limit {
                return;
            }
        }
        panic!("{what}: not within {quickest:?}");
    }

    /// The same for a waiter of `L` that has waited for a while: a waiter that is not notified wakes up after
    /// its re-check interval.
    pub(crate) async fn after_wake_up<L: Exclusive, T>(
        &self,
        what: &str,
        work: impl IntoFuture<Output = T>,
    ) -> T {
        let pause = if L::NOTIFIED { Duration::ZERO } else { L::RECHECK };
        self.within(what, pause, work).await
    }

    async fn within<T>(&self, what: &str, more: Duration, work: impl IntoFuture<Output = T>) -> T {
        let limit = match self.kind {
            StoreKind::Memory(_) => Duration::from_millis(20) + more,
            _ => self.long() / 6,
        };
        let start = self.timer();
        let done = timeout(self.long(), work).await;
        let (done, took) = (done.unwrap_or_else(|_| panic!("{what}: never")), start.elapsed());
        assert!(took < limit, "{what} took {took:?}");
        done
    }

    /// Measures by two clocks: lower bounds by that of the machine, upper bounds without the time in which it
    /// stood still.
    pub(crate) fn timer(&self) -> Timer {
        let watch = (!self.is_paused()).then(Stopwatch::start);
        Timer { begun: Instant::now(), watch, slack: self.slack() }
    }

    /// Until the watchdog has renewed `lock`: after several timeouts on the paused clock, or when the TTL has
    /// grown in real time.
    pub(crate) async fn is_renewed(&self, lock: &AnyLock) {
        if let StoreKind::Memory(_) = self.kind {
            sleep(self.watchdog() * 5 / 2).await;
            assert!(lock.is_locked().await.unwrap(), "it was not renewed");
            return;
        }
        let mut least = Duration::MAX;
        eventually("the time to live grows", async || {
            let now = left(lock.inspect().await);
            let grown = now > least;
            least = least.min(now);
            grown
        })
        .await;
    }

    /// Returns when a notice to this client has arrived: its first hold is checked once more when it begins to listen,
    /// which would come between two changes of a law.
    pub(crate) async fn listens(&self, client: &Client) {
        let first = client.lock(self.name("first"));
        let forced = first.lock().await.unwrap();
        assert!(first.force_unlock("").await.unwrap());
        self.signalled(forced.lost()).await;
    }

    /// The loss reason; the loss must be signalled.
    pub(crate) async fn signalled(&self, lost: impl Future<Output = LostReason>) -> LostReason {
        timeout(self.long() * 3, lost).await.expect("the loss is signalled")
    }

    /// What a busy machine may add to a measured time; almost nothing on the paused clock.
    pub(crate) fn slack(&self) -> Duration {
        match self.kind {
            StoreKind::Memory(_) => Duration::from_millis(20),
            _ => Duration::from_secs(3),
        }
    }

    /// How many clients have subscribed to wake-ups of `name` (on Redis), or the number of topics (in memory).
    pub(crate) fn listeners(&self, name: &str) -> usize {
        match &self.kind {
            StoreKind::Memory(memory) => memory.usage().1,
            #[cfg(feature = "file")]
            StoreKind::File(file) => file.listeners(name),
            StoreKind::Redis(_)
            | StoreKind::Sentinel(_)
            | StoreKind::Cluster(_)
            | StoreKind::Quorum(_) => {
                // Whatever the kind: a waiter of a fair lock has a channel of its own.
                let pattern = format!("redisson_*:{{{name}}}*");
                let heard = |server: &RedisServer, sharded: &str| -> usize {
                    let channels = server.cli(&["PUBSUB", &format!("{sharded}CHANNELS"), &pattern]);
                    let channels = channels.array();
                    let count = |channel: &str| subscribers(server, sharded, channel);
                    channels.iter().map(|channel| count(channel.text())).sum()
                };
                let sharded = match self.kind {
                    StoreKind::Cluster(_) => "SHARD",
                    _ => "",
                };
                let heard = self.servers().into_iter().map(|server| heard(server, sharded));
                match self.kind {
                    // Each waiter listens at all members.
                    StoreKind::Quorum(_) => heard.max().unwrap_or_default(),
                    _ => heard.sum(),
                }
            }
        }
    }

    /// How many clients have subscribed to a channel (on Redis), or the number of topics (in memory).
    pub(crate) fn subscribers(&self, channel: &str) -> usize {
        match &self.kind {
            StoreKind::Cluster(cluster) => {
                subscribers(cluster.owner_of(channel).server(), "SHARD", channel)
            }
            StoreKind::Redis(server) | StoreKind::Sentinel(server) => {
                subscribers(server, "", channel)
            }
            StoreKind::Quorum(members) => subscribers(&members[0], "", channel),
            _ => self.listeners(""),
        }
    }

    /// Until the subscriptions of former waiters for `name` have ended, so that they are not counted. In memory
    /// they end at once.
    pub(crate) async fn subscriptions_have_ended(&self, name: &str) {
        let left = async || self.counts_all() || self.listeners(name) == 0;
        eventually("those who have waited listen no longer", left).await;
    }

    /// How many locks and queues are stored under `name` (on Redis) or at all (in memory).
    pub(crate) fn stored(&self, name: &str) -> usize {
        match &self.kind {
            StoreKind::Memory(memory) => memory.usage().0,
            #[cfg(feature = "file")]
            StoreKind::File(file) => file.stored(name, true),
            StoreKind::Redis(_)
            | StoreKind::Sentinel(_)
            | StoreKind::Cluster(_)
            | StoreKind::Quorum(_) => {
                let server = self.behind(name).expect("it is on a server");
                let beside = ["redisson_lock_queue", "redisson_lock_timeout", "lockkeeper_seen"];
                let beside = beside.into_iter().chain(["lockkeeper_writers"]);
                let mut command = vec!["EXISTS".to_owned(), name.to_owned()];
                command.extend(beside.map(|key| format!("{key}:{{{name}}}")));
                server.cli(&command).int() as usize
            }
        }
    }

    /// Waits until a hold has arrived at all members of a quorum. What arrives after a force-release is undone
    /// a moment later.
    pub(crate) async fn is_everywhere(&self, name: &str) {
        let StoreKind::Quorum(members) = &self.kind else { return };
        let has_it = |server: &RedisServer| server.cli(&["EXISTS", name]).int() == 1;
        eventually("on all members", async || members.iter().all(has_it)).await;
    }

    /// Waits until the client of `guard` has subscribed to its notices, soon after the acquire.
    pub(crate) async fn receives_notices_of(&self, guard: &Hold) {
        self.receives_notices(guard.owner_id()).await;
    }

    async fn receives_notices(&self, holder: OwnerId) {
        let client = holder.client();
        eventually("the holder hears notices", async || match &self.kind {
            StoreKind::Memory(memory) => memory.usage().1 >= 1,
            #[cfg(feature = "file")]
            StoreKind::File(file) => file.listeners(&format!("notice {client}")) > 0,
            StoreKind::Redis(_) | StoreKind::Sentinel(_) | StoreKind::Cluster(_) => {
                let channel = format!("lockkeeper_notice:{client}");
                self.servers().iter().any(|server| subscribers(server, "", &channel) > 0)
            }
            StoreKind::Quorum(members) => {
                let channel = format!("lockkeeper_notice:{client}");
                members.iter().all(|server| subscribers(server, "", &channel) > 0)
            }
        })
        .await;
    }

    /// The same for the holder of `lock`.
    pub(crate) async fn receives_notices_for(&self, lock: &AnyLock) {
        let holder = lock.inspect().await.unwrap().holders.remove(0).id;
        self.receives_notices(holder.parse().expect("it is held by one of us")).await;
    }

    /// Deletes the hold of `lock` without a notice.
    pub(crate) async fn delete_held<L: Exclusive>(&self, lock: &AnyLock) {
        let holder = lock.inspect().await.unwrap().holders.remove(0).id;
        let owner = holder.parse().expect("it is held by one of us");
        self.delete_hold::<L>(lock.name(), owner).await;
    }

    /// Deletes the hold of `guard` without a notice.
    pub(crate) async fn delete<L: Exclusive>(&self, guard: &AnyGuard) {
        self.delete_hold::<L>(guard.name(), guard.owner_id()).await;
    }

    async fn delete_hold<L: Exclusive>(&self, name: &LockName, owner: OwnerId) {
        let release = Release::new(resource::<L>(name), owner);
        let answer = self.backend().await.release(release).await;
        assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
    }

    /// Puts a hold of another client on a free lock, for [`long`](Self::long).
    pub(crate) async fn other_holds<L: Exclusive>(&self, name: &LockName) -> OwnerId {
        self.other_holds_for::<L>(name, self.long()).await
    }

    /// Puts a hold on a free lock that is neither released nor renewed.
    pub(crate) async fn other_holds_for<L: Exclusive>(
        &self,
        name: &LockName,
        span: Duration,
    ) -> OwnerId {
        let backend = self.backend().await;
        let unused = Client::memory();
        let owner = OwnerId::fresh(unused.id());
        let request = Acquire::new(resource::<L>(name), owner, span.as_millis() as u64);
        let answer = backend.acquire(request).await;
        assert_eq!(answer, Ok(Attempt::GRANTED));
        owner
    }
}

impl Store {
    /// The queue of a fair lock.
    pub(crate) async fn queue(&self, name: &LockName) -> Vec<String> {
        let asked = self.backend().await.inspect(resource::<FairLock>(name));
        let lock = asked.await.expect("it can be looked at");
        lock.queue.into_iter().map(|waiter| waiter.id).collect()
    }
}

fn resource<L: Exclusive>(name: &LockName) -> Resource {
    let (kind, name) = (L::KIND, name.clone());
    Resource { kind, name }
}

fn subscribers(server: &RedisServer, sharded: &str, channel: &str) -> usize {
    let answer = server.cli(&["PUBSUB", &format!("{sharded}NUMSUB"), channel]);
    answer.array()[1].int() as usize
}

/// A kind of exclusive lock, so that one law covers all kinds.
pub(crate) trait Exclusive: Send + 'static {
    /// Its kind at the store.
    const KIND: Kind;
    /// Another kind.
    type Other: Exclusive;
    /// Whether its waiters are woken by a message.
    const NOTIFIED: bool = true;
    /// The longest re-check interval of its waiters.
    const RECHECK: Duration = lockkeeper::RECHECK;
    /// How often a waiter tries before that interval applies.
    const TRIES: u64 = 3;
    /// Whether the waiters of one client queue locally.
    const QUEUED: bool = true;

    fn of(client: &Client, name: impl AsRef<[u8]>) -> AnyLock;
}

/// A kind whose owners can hold it more than once.
pub(crate) trait Reentrant: Exclusive {}

macro_rules! exclusive {
    ($Type:ident, $kind:ident, $Other:ident, $make:expr $(, $differs:item)*) => {
        impl Exclusive for $Type {
            const KIND: Kind = Kind::$kind;
            type Other = $Other;
            $($differs)*

            fn of(client: &Client, name: impl AsRef<[u8]>) -> AnyLock {
                let make: fn(&Client, &[u8]) -> AnyLock = $make;
                make(client, name.as_ref())
            }
        }
    };
}

/// A lock whose waiters poll.
pub(crate) struct Polling;

/// The write side of a read/write lock.
pub(crate) struct WriteSide;

exclusive!(Lock, Lock, Mutex, |client, name| client.lock(name).into());
// Other libraries of the Redlock family do not publish.
exclusive!(
    Mutex,
    Mutex,
    Lock,
    |client, name| client.mutex(name).into(),
    const RECHECK: Duration = Duration::from_millis(100);
);
// The store keeps the queue.
exclusive!(
    FairLock,
    Fair,
    Mutex,
    |client, name| client.fair_lock(name).into(),
    const QUEUED: bool = false;
);
exclusive!(FencedLock, Lock, Mutex, |client, name| client.fenced_lock(name).into());
exclusive!(
    Polling,
    Lock,
    Mutex,
    |client, name| client.spin_lock(name).into(),
    const NOTIFIED: bool = false;,
    const RECHECK: Duration = Duration::from_millis(128);,
    const TRIES: u64 = 11;
);
// A waiting writer announces itself at this interval.
exclusive!(
    WriteSide,
    Write,
    Lock,
    |client, name| client.rw_lock(name).writer(),
    const RECHECK: Duration = Duration::from_millis(1200);
);

impl Reentrant for Lock {}
impl Reentrant for FairLock {}
impl Reentrant for FencedLock {}
impl Reentrant for Polling {}
impl Reentrant for WriteSide {}

/// See [`Store::timer`].
pub(crate) struct Timer {
    begun: Instant,
    watch: Option<Stopwatch>,
    slack: Duration,
}

impl Timer {
    /// For an upper bound.
    pub(crate) fn elapsed(&self) -> Duration {
        self.watch.as_ref().map_or_else(|| self.begun.elapsed(), Stopwatch::elapsed)
    }

    /// It took at least so long, and no longer than `most` on a machine that is not busy.
    #[track_caller]
    pub(crate) fn took(&self, least: Duration, most: Duration) {
        let (took, awake) = (self.begun.elapsed(), self.elapsed());
        assert!(took >= least && awake < most + self.slack, "{took:?}, not {least:?} to {most:?}");
    }
}

/// Handles of two clients to one lock.
pub(crate) async fn pair<L: Exclusive>(store: &Store) -> (AnyLock, AnyLock) {
    let name = store.name("lock");
    let (ours, theirs) = (store.client().await, store.client().await);
    (L::of(&ours, &name), L::of(&theirs, &name))
}

/// A handle of a new client to the same lock.
pub(crate) async fn one<L: Exclusive>(store: &Store) -> AnyLock {
    L::of(&store.client().await, store.name("lock"))
}

/// Polls until the condition holds. For what another task does at an unknown time.
pub(crate) async fn eventually(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(30);
    while !so().await {
        assert!(Instant::now() < limit, "never: {what}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Until when the hold is valid.
pub(crate) fn deadline(hold: &Hold) -> Instant {
    Instant::now() + hold.remaining()
}

/// Polls once.
pub(crate) fn poll_once<F: Future + Unpin>(work: &mut F) -> Poll<F::Output> {
    Pin::new(work).poll(&mut Context::from_waker(Waker::noop()))
}

/// The remaining time at the store.
#[track_caller]
pub(crate) fn left(lock: Result<LockInfo>) -> Duration {
    match lock.map(|lock| lock.ttl) {
        Ok(Some(Ttl::For(left))) => left,
        other => panic!("expected a time to live, got {other:?}"),
    }
}

/// Asserts that a value matches a pattern, and shows it where it does not.
macro_rules! assert_is {
    ($value:expr, $pattern:pat $(if $guard:expr)?) => {
        match $value {
            $pattern $(if $guard)? => {}
            other => panic!("expected {}, got {other:?}", stringify!($pattern $(if $guard)?)),
        }
    };
}
pub(crate) use assert_is;
