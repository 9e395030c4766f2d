//! The stores that the laws are held against, and what a law may ask of one.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[cfg(feature = "file")]
use crate::lockfile::LockFile;
use lockkeeper::backend::memory::Memory;
use lockkeeper::backend::redis::Redis;
use lockkeeper::backend::{Acquire, Attempt, Backend, Release, Released, Resource};
use lockkeeper::{
    AnyGuard, AnyLock, Client, ClientOptions, Completed, FairLock, FencedLock, Holder, Kind,
    LeaseTime, Lock, LockName, LostReason, Mutex, Owner, OwnerId, Remaining, Result, RunError,
    RwLock, SpinLock,
};
use testkit::RedisServer;
use tokio::time::{Instant, sleep, timeout};

/// One server for all laws: each uses names of its own.
static SERVER: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A store with room for one law.
pub(crate) struct Store {
    kind: StoreKind,
    url: String,
    number: u64,
}

enum StoreKind {
    Memory(Arc<Memory>),
    Redis(&'static RedisServer),
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

    #[cfg(feature = "file")]
    pub(crate) fn file() -> Self {
        let file = LockFile::new();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { url: file.url(), kind: StoreKind::File(file), number }
    }

    /// Another one with nobody else on it, for laws about all that there is. A server of its own
    /// ends with the process.
    pub(crate) fn apart(&self) -> Self {
        match self.kind {
            StoreKind::Memory(_) => Self::memory(),
            #[cfg(feature = "file")]
            StoreKind::File(_) => Self::file(),
            StoreKind::Redis(_) => {
                let server: &'static RedisServer = Box::leak(Box::new(RedisServer::start()));
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                Self { url: server.url(), kind: StoreKind::Redis(server), number }
            }
        }
    }

    /// Whether time costs nothing, because its clock is paused.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(self.kind, StoreKind::Memory(_))
    }

    /// Runs a law on it; a law that hangs has failed.
    pub(crate) async fn uphold(self, law: impl AsyncFnOnce(&Self)) {
        let limit = match self.kind {
            StoreKind::Memory(_) => Duration::from_secs(3600),
            _ => Duration::from_secs(100),
        };
        if timeout(limit, law(&self)).await.is_err() {
            panic!("the law has not come to its end within {limit:?}");
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The server, in laws that are Redis's alone.
    #[track_caller]
    pub(crate) fn server(&self) -> &'static RedisServer {
        match self.kind {
            StoreKind::Redis(server) => server,
            _ => panic!("there is no server behind an embedded store"),
        }
    }

    /// The server, where there is one.
    pub(crate) fn behind(&self) -> Option<&'static RedisServer> {
        match self.kind {
            StoreKind::Redis(server) => Some(server),
            _ => None,
        }
    }

    /// Whether it counts everything, not only what has to do with a name.
    pub(crate) fn counts_all(&self) -> bool {
        matches!(self.kind, StoreKind::Memory(_))
    }

    /// How many keys have to do with `name`, those of single readers and permits included, but for
    /// what is meant to outlive it (on Redis); how much is stored at all (in memory).
    pub(crate) fn traces(&self, name: &str) -> usize {
        match &self.kind {
            StoreKind::Memory(memory) => memory.usage().0,
            #[cfg(feature = "file")]
            StoreKind::File(file) => file.stored(name, false),
            StoreKind::Redis(server) => {
                let outlive = ["lockkeeper_replies", "lockkeeper_forced", "redisson_lock_token"];
                let outlive = [&outlive[..], &["lockkeeper_patience"]].concat();
                let keys = server.cli(&["KEYS", &format!("*{name}*")]);
                let outlives =
                    |key: &str| outlive.iter().any(|what| key.starts_with(&format!("{what}:")));
                keys.array().iter().filter(|key| !outlives(key.text())).count()
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
        ClientOptions::new().watchdog_timeout(self.watchdog())
    }

    /// The store below the clients, for decorators and for strangers.
    pub(crate) async fn backend(&self) -> Arc<dyn Backend> {
        match &self.kind {
            StoreKind::Memory(memory) => Arc::clone(memory) as Arc<dyn Backend>,
            StoreKind::Redis(_) => {
                let redis = Redis::connect(&self.url, &self.options()).await;
                Arc::new(redis.expect("the server can be reached"))
            }
            #[cfg(feature = "file")]
            StoreKind::File(file) => file.backend(&self.options()).await,
        }
    }

    /// A lease that a law can wait out: long for a test, nothing on the paused clock. Also how long a law
    /// waits for what does not come.
    pub(crate) fn lease(&self) -> Duration {
        match self.kind {
            StoreKind::Memory(_) => Duration::from_secs(10),
            _ => Duration::from_secs(1),
        }
    }

    /// The watchdog timeout of its clients: the real one where time costs nothing. In real time
    /// long enough that a machine may stand still for two seconds without a lock being lost.
    pub(crate) fn watchdog(&self) -> Duration {
        match self.kind {
            StoreKind::Memory(_) => lockkeeper::WATCHDOG_TIMEOUT,
            _ => Duration::from_secs(3),
        }
    }

    /// A lease that no law waits out: what takes a fraction of it did not wait for its end.
    pub(crate) fn long(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// What comes without waiting for a lease, a re-check or a renewal. On the paused clock that
    /// is no time at all but for the millisecond of courtesy after a release.
    pub(crate) async fn promptly<T>(&self, what: &str, work: impl IntoFuture<Output = T>) -> T {
        self.within(what, Duration::ZERO, work).await
    }

    /// Who waits is told and need not look again: the quickest of several turns takes no time, however
    /// busy the machine is in the others.
    pub(crate) async fn is_told(&self, what: &str, mut turn: impl AsyncFnMut() -> Duration) {
        let mut quickest = Duration::MAX;
        for _ in 0..5 {
            quickest = quickest.min(turn().await);
            if quickest < Duration::from_millis(500) {
                return;
            }
        }
        panic!("{what}: not within {quickest:?}");
    }

    /// The same for what a waiter for `L` does that has waited for a while: who is told comes at
    /// once, who is not after its pause.
    pub(crate) async fn in_turn<L: Exclusive, T>(
        &self,
        what: &str,
        work: impl IntoFuture<Output = T>,
    ) -> T {
        let pause = if L::TOLD { Duration::ZERO } else { L::RECHECK };
        self.within(what, pause, work).await
    }

    async fn within<T>(&self, what: &str, more: Duration, work: impl IntoFuture<Output = T>) -> T {
        let limit = match self.kind {
            StoreKind::Memory(_) => Duration::from_millis(20) + more,
            _ => self.long() / 6,
        };
        let start = Instant::now();
        let done = timeout(self.long(), work).await;
        let (done, took) = (done.unwrap_or_else(|_| panic!("{what}: never")), start.elapsed());
        assert!(took < limit, "{what} took {took:?}");
        done
    }

    /// Until the watchdog has kept `lock` alive: for several of its timeouts on the paused clock,
    /// until the time to live is seen to grow in real time.
    pub(crate) async fn is_renewed<L: Exclusive>(&self, lock: &L) {
        if let StoreKind::Memory(_) = self.kind {
            sleep(self.watchdog() * 5 / 2).await;
            assert!(lock.is_locked().await.unwrap(), "it was not renewed");
            return;
        }
        let mut least = Duration::MAX;
        eventually("the time to live grows", async || {
            let now = left(lock.remaining().await);
            let grown = now > least;
            least = least.min(now);
            grown
        })
        .await;
    }

    /// The reason of a loss that must come.
    pub(crate) async fn signalled(&self, lost: impl Future<Output = LostReason>) -> LostReason {
        timeout(self.long() * 3, lost).await.expect("the loss is signalled")
    }

    /// What a busy machine may add to a time that is measured; nothing on the paused clock.
    pub(crate) fn slack(&self) -> Duration {
        match self.kind {
            StoreKind::Memory(_) => Duration::from_millis(20),
            _ => Duration::from_secs(3),
        }
    }

    /// How many clients listen for the freeing of `name` (on Redis), or how many topics are
    /// listened to beside those of holders (in memory).
    pub(crate) fn listeners(&self, name: &str) -> usize {
        match &self.kind {
            StoreKind::Memory(memory) => memory.usage().1,
            #[cfg(feature = "file")]
            StoreKind::File(file) => file.listeners(name),
            StoreKind::Redis(server) => {
                // Whatever the kind: a waiter of a fair lock has a channel of its own.
                let pattern = format!("redisson_*:{{{name}}}*");
                let channels = server.cli(&["PUBSUB", "CHANNELS", &pattern]);
                channels.array().iter().map(|channel| subscribers(server, channel.text())).sum()
            }
        }
    }

    /// Until those who waited for `name` have stopped listening, which nobody waits for: who counts
    /// listeners must not count them. In memory they stop at once.
    pub(crate) async fn all_have_left(&self, name: &str) {
        let left = async || self.counts_all() || self.listeners(name) == 0;
        eventually("those who have waited listen no longer", left).await;
    }

    /// How many locks and queues are stored under `name` (on Redis) or at all (in memory).
    pub(crate) fn stored(&self, name: &str) -> usize {
        match &self.kind {
            StoreKind::Memory(memory) => memory.usage().0,
            #[cfg(feature = "file")]
            StoreKind::File(file) => file.stored(name, true),
            StoreKind::Redis(server) => {
                let beside = ["redisson_lock_queue", "redisson_lock_timeout", "lockkeeper_seen"];
                let beside = beside.into_iter().chain(["lockkeeper_writers"]);
                let mut command = vec!["EXISTS".to_owned(), name.to_owned()];
                command.extend(beside.map(|key| format!("{key}:{{{name}}}")));
                server.cli(&command).int() as usize
            }
        }
    }

    /// Waits until the client of `guard` hears what is said to it in private, which begins soon
    /// after it holds something.
    pub(crate) async fn hears_notices_of(&self, guard: impl AsRef<AnyGuard>) {
        self.hears_notices(guard.as_ref().owner_id()).await;
    }

    async fn hears_notices(&self, holder: OwnerId) {
        let client = holder.client();
        eventually("the holder hears notices", async || match &self.kind {
            StoreKind::Memory(memory) => memory.usage().1 >= 1,
            #[cfg(feature = "file")]
            StoreKind::File(file) => file.listeners(&format!("notice {client}")) > 0,
            StoreKind::Redis(server) => {
                subscribers(server, &format!("lockkeeper_notice:{client}")) > 0
            }
        })
        .await;
    }

    /// The same for whoever holds `lock`.
    pub(crate) async fn hears_notices_for<L: Exclusive>(&self, lock: &L) {
        let holder = lock.holder().await.unwrap().expect("it is held").id;
        self.hears_notices(holder.parse().expect("it is held by one of us")).await;
    }

    /// Deletes what `guard` holds, behind its back and without a notice.
    pub(crate) async fn delete<L: Exclusive>(&self, guard: &AnyGuard) {
        self.delete_hold::<L>(guard.name(), guard.owner_id()).await;
    }

    async fn delete_hold<L: Exclusive>(&self, name: &LockName, owner: OwnerId) {
        let release = Release::new(resource::<L>(name), owner);
        let answer = self.backend().await.release(release).await;
        assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
    }

    /// Puts a stranger's hold on a free lock, for the length of [`long`](Self::long).
    pub(crate) async fn stranger_takes<L: Exclusive>(&self, name: &LockName) -> OwnerId {
        self.stranger_takes_for::<L>(name, self.long()).await
    }

    /// Puts a hold on a free lock that nobody releases, renews or looks after.
    pub(crate) async fn stranger_takes_for<L: Exclusive>(
        &self,
        name: &LockName,
        span: Duration,
    ) -> OwnerId {
        let backend = self.backend().await;
        let nobody = Client::memory();
        let owner = OwnerId::fresh(nobody.id());
        let request = Acquire::new(resource::<L>(name), owner, span.as_millis() as u64);
        let answer = backend.acquire(request).await;
        assert_eq!(answer, Ok(Attempt::GRANTED));
        owner
    }
}

impl Store {
    /// Who waits in the queue of a fair lock.
    pub(crate) async fn queue(&self, name: &LockName) -> Vec<Vec<u8>> {
        let asked = self.backend().await.inspect(resource::<FairLock>(name));
        asked.await.expect("it can be looked at").queue
    }
}

fn resource<L: Exclusive>(name: &LockName) -> Resource {
    let (kind, name) = (L::KIND, name.clone());
    Resource { kind, name }
}

fn subscribers(server: &RedisServer, channel: &str) -> usize {
    server.cli(&["PUBSUB", "NUMSUB", channel]).array()[1].int() as usize
}

/// What all locks have in common that one holds alone, so that a law can be one for all.
pub(crate) trait Exclusive: Clone + Send + Sync + 'static {
    /// What the store calls it.
    const KIND: Kind;
    /// A kind that it is not.
    type Other: Exclusive;
    /// Those who wait are told when it is worth another try.
    const TOLD: bool = true;
    /// Those who wait look again after this at the latest, told or not.
    const RECHECK: Duration = lockkeeper::RECHECK;
    /// How often they try before they settle to that.
    const TRIES: u64 = 3;
    /// Of those of one client who wait, one asks the store for all.
    const SEATED: bool = true;

    fn of(client: &Client, name: impl AsRef<[u8]>) -> Self;
    fn any(&self) -> AnyLock;
    fn name(&self) -> &LockName;

    fn lease(&self, lease: impl Into<LeaseTime>) -> AnyLock {
        self.any().lease(lease)
    }
    fn lock(&self) -> impl Future<Output = Result<AnyGuard>> + Send + Unpin + 'static {
        self.any().lock()
    }
    fn try_lock(&self) -> impl Future<Output = Result<Option<AnyGuard>>> + Send + Unpin + 'static {
        self.any().try_lock()
    }
    fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<AnyGuard>>> + Send + Unpin + 'static {
        self.any().try_lock_for(wait)
    }
    fn is_locked(&self) -> impl Future<Output = Result<bool>> + Send {
        let lock = self.any();
        async move { lock.is_locked().await }
    }
    fn remaining(&self) -> impl Future<Output = Result<Remaining>> + Send {
        let lock = self.any();
        async move { lock.remaining().await }
    }
    fn holder(&self) -> impl Future<Output = Result<Option<Holder>>> + Send {
        let lock = self.any();
        async move { lock.holder().await }
    }
    fn force_unlock(&self) -> impl Future<Output = Result<bool>> + Send {
        let lock = self.any();
        async move { lock.force_unlock().await }
    }
    fn force_unlock_because(&self, why: &str) -> impl Future<Output = Result<bool>> + Send {
        let (lock, why) = (self.any(), why.to_owned());
        async move { lock.force_unlock_because(why).await }
    }
    fn run<T, W: Future<Output = T>>(
        &self,
        work: impl FnOnce(lockkeeper::Hold) -> W,
    ) -> impl Future<Output = Result<Completed<T>, RunError<T>>> {
        let lock = self.any();
        async move { lock.run(work).await }
    }
    fn try_run<T, W: Future<Output = T>>(
        &self,
        work: impl FnOnce(lockkeeper::Hold) -> W,
    ) -> impl Future<Output = Result<Option<Completed<T>>, RunError<T>>> {
        let lock = self.any();
        async move { lock.try_run(work).await }
    }
    fn try_run_for<T, W: Future<Output = T>>(
        &self,
        wait: Duration,
        work: impl FnOnce(lockkeeper::Hold) -> W,
    ) -> impl Future<Output = Result<Option<Completed<T>>, RunError<T>>> {
        let lock = self.any();
        async move { lock.try_run_for(wait, work).await }
    }

    /// Deletes it behind its holder's back and without a notice.
    fn force_quietly(&self, store: &Store) -> impl Future<Output = ()> {
        async {
            let holder = self.holder().await.unwrap().expect("it is held").id;
            let owner = holder.parse().expect("it is held by one of us");
            store.delete_hold::<Self>(self.name(), owner).await;
        }
    }
}

macro_rules! exclusive {
    ($Type:ident, $kind:ident, $Other:ident, $make:ident $(, $differs:item)*) => {
        impl Exclusive for $Type {
            const KIND: Kind = Kind::$kind;
            type Other = $Other;
            $($differs)*

            fn of(client: &Client, name: impl AsRef<[u8]>) -> Self {
                client.$make(name)
            }
            fn any(&self) -> AnyLock {
                self.clone().into()
            }
            fn name(&self) -> &LockName {
                $Type::name(self)
            }
        }
    };
}

exclusive!(Lock, Lock, Mutex, lock);
// Other libraries of its family tell nobody.
exclusive!(Mutex, Mutex, Lock, mutex, const RECHECK: Duration = Duration::from_millis(100););
// Each has a place in the queue that the store keeps.
exclusive!(FairLock, Fair, Mutex, fair_lock, const SEATED: bool = false;);
exclusive!(FencedLock, Lock, Mutex, fenced_lock);
exclusive!(
    SpinLock,
    Lock,
    Mutex,
    spin_lock,
    const TOLD: bool = false;,
    const RECHECK: Duration = Duration::from_millis(128);,
    const TRIES: u64 = 11;
);

/// The side of a read/write lock that one holds alone.
#[derive(Clone, Debug)]
pub(crate) struct WriteSide(RwLock);

impl Exclusive for WriteSide {
    const KIND: Kind = Kind::Write;
    type Other = Lock;
    // It says that it still waits.
    const RECHECK: Duration = Duration::from_millis(1200);

    fn of(client: &Client, name: impl AsRef<[u8]>) -> Self {
        Self(client.rw_lock(name))
    }
    fn any(&self) -> AnyLock {
        self.0.writer()
    }
    fn name(&self) -> &LockName {
        self.0.name()
    }
    async fn is_locked(&self) -> Result<bool> {
        self.0.is_write_locked().await
    }
    async fn holder(&self) -> Result<Option<Holder>> {
        Ok(self.0.holders().await?.into_iter().find(|holder| !holder.shared))
    }
}

impl Reentrant for WriteSide {
    fn as_owner(&self, owner: &Owner) -> Self {
        Self(self.0.as_owner(owner))
    }
    async fn hold_count(&self, owner: &Owner) -> Result<u64> {
        self.0.write_count(owner).await
    }
    async fn is_held_by(&self, owner: &Owner) -> Result<bool> {
        Ok(self.0.write_count(owner).await? > 0)
    }
}

/// What an owner can hold more than once.
pub(crate) trait Reentrant: Exclusive {
    fn as_owner(&self, owner: &Owner) -> Self;
    fn hold_count(&self, owner: &Owner) -> impl Future<Output = Result<u64>> + Send;
    fn is_held_by(&self, owner: &Owner) -> impl Future<Output = Result<bool>> + Send;
}

macro_rules! reentrant {
    ($($Type:ident)+) => {
        $(impl Reentrant for $Type {
            fn as_owner(&self, owner: &Owner) -> Self {
                $Type::as_owner(self, owner)
            }
            async fn hold_count(&self, owner: &Owner) -> Result<u64> {
                $Type::hold_count(self, owner).await
            }
            async fn is_held_by(&self, owner: &Owner) -> Result<bool> {
                $Type::is_held_by(self, owner).await
            }
        })+
    };
}

reentrant!(Lock FairLock FencedLock SpinLock);

/// Two clients' handles to one lock of the law's own.
pub(crate) async fn pair<L: Exclusive>(store: &Store) -> (L, L) {
    let name = store.name("lock");
    let (ours, theirs) = (store.client().await, store.client().await);
    (L::of(&ours, &name), L::of(&theirs, &name))
}

/// A handle of a client of its own to a lock of the law's own.
pub(crate) async fn one<L: Exclusive>(store: &Store) -> L {
    L::of(&store.client().await, store.name("lock"))
}

/// Looks until it is so. For what another task does in its own time and nobody announces.
pub(crate) async fn eventually(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(30);
    while !so().await {
        assert!(Instant::now() < limit, "never: {what}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Polls once, as a task does that is then interrupted.
pub(crate) fn poll_once<F: Future + Unpin>(work: &mut F) -> Poll<F::Output> {
    Pin::new(work).poll(&mut Context::from_waker(Waker::noop()))
}

/// How much of the lease the store says is left.
#[track_caller]
pub(crate) fn left(remaining: Result<Remaining>) -> Duration {
    match remaining {
        Ok(Remaining::For(left)) => left,
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
