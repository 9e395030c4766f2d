//! One handle for every primitive, so that one test covers all of them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::BoxFuture;
use lockkeeper::{
    AnyGuard, AnyLock, Client, ClientOptions, Error, Kind, LostReason, Result, SemaphoreGuard,
};
use testkit::{FaultProxy, RedisServer};
use tokio::time::Instant;

use crate::support::*;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Primitive {
    Lock,
    Mutex,
    Fair,
    Fenced,
    Spin,
    Read,
    Write,
    /// Permits with ids.
    Permits,
    /// Permits without owners.
    Semaphore,
}

/// All primitives whose waiters subscribe.
pub(crate) const SUBSCRIBING: &[Primitive] = Primitive::ALL.split_at(1).1;

/// The primitives that one client at a time can hold, with one permit.
pub(crate) const EXCLUSIVE: &[Primitive] = Primitive::ALL.split_at(7).0;

/// All primitives whose holder has a lease.
pub(crate) const LEASED: &[Primitive] = Primitive::ALL.split_at(8).0;

impl Primitive {
    pub(crate) const ALL: [Primitive; 9] = [
        Primitive::Spin,
        Primitive::Lock,
        Primitive::Mutex,
        Primitive::Fair,
        Primitive::Fenced,
        Primitive::Write,
        Primitive::Permits,
        Primitive::Read,
        Primitive::Semaphore,
    ];

    pub(crate) fn is_leased(self) -> bool {
        self != Primitive::Semaphore
    }

    pub(crate) fn is_reentrant(self) -> bool {
        !matches!(self, Primitive::Mutex | Primitive::Permits | Primitive::Semaphore)
    }

    /// The primitive whose holder keeps every other client out of this one.
    pub(crate) fn exclusive(self) -> Self {
        if self == Primitive::Read { Primitive::Write } else { self }
    }

    /// The channels of its waiters, as a pattern.
    pub(crate) fn channels(self, name: &str) -> String {
        match self {
            Primitive::Fair => format!("{}:*", channel(name)),
            Primitive::Read | Primitive::Write => format!("redisson_rwlock:{{{name}}}"),
            Primitive::Permits | Primitive::Semaphore => format!("redisson_sc:{{{name}}}"),
            _ => channel(name),
        }
    }

    /// The script that acquires it; the acquire of a mutex needs none.
    pub(crate) fn acquire_script(self) -> Option<&'static str> {
        Some(match self {
            Primitive::Mutex => return None,
            Primitive::Lock | Primitive::Spin => lua("LOCK_ACQUIRE"),
            Primitive::Fair => lua("FAIR_ACQUIRE"),
            Primitive::Fenced => lua("LOCK_ACQUIRE_FENCED"),
            Primitive::Read => lua("READ_ACQUIRE"),
            Primitive::Write => lua("WRITE_ACQUIRE"),
            Primitive::Permits => lua("PERMITS_ACQUIRE"),
            Primitive::Semaphore => lua("SEMAPHORE_ACQUIRE"),
        })
    }

    pub(crate) fn release_script(self) -> &'static str {
        match self {
            Primitive::Mutex => lua("MUTEX_RELEASE"),
            Primitive::Fair => lua("FAIR_RELEASE"),
            Primitive::Lock | Primitive::Fenced | Primitive::Spin => lua("LOCK_RELEASE"),
            Primitive::Read => lua("READ_RELEASE"),
            Primitive::Write => lua("WRITE_RELEASE"),
            Primitive::Permits => lua("PERMITS_RELEASE"),
            Primitive::Semaphore => lua("SEMAPHORE_RELEASE"),
        }
    }

    pub(crate) fn renew_script(self) -> &'static str {
        match self {
            Primitive::Mutex => lua("MUTEX_RENEW"),
            Primitive::Lock | Primitive::Fair | Primitive::Fenced | Primitive::Spin => {
                lua("LOCK_RENEW")
            }
            Primitive::Read => lua("READ_RENEW"),
            Primitive::Write => lua("WRITE_RENEW"),
            Primitive::Permits => lua("PERMITS_RENEW"),
            Primitive::Semaphore => panic!("a semaphore has no lease"),
        }
    }
}

/// Runs a scenario for each primitive, a few at the same time: each has a server of its own.
pub(crate) async fn each<F>(primitives: &[Primitive], scenario: impl Fn(Primitive) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    for some in primitives.chunks(AT_ONCE) {
        let running: Vec<_> = some.iter().map(|one| (*one, tokio::spawn(scenario(*one)))).collect();
        for (primitive, task) in running {
            // The last one printed is the one that failed.
            println!("{primitive:?}");
            joined(task).await;
        }
    }
}

/// How many primitives are tested at once.
const AT_ONCE: usize = 4;

/// A new server. It starts on a blocking thread, so that the runtime goes on.
pub(crate) async fn started() -> RedisServer {
    joined(tokio::task::spawn_blocking(RedisServer::start)).await
}

/// A new server that keeps its data over a restart.
pub(crate) async fn persistent() -> RedisServer {
    let start = || RedisServer::builder().persistent(true).start();
    joined(tokio::task::spawn_blocking(start)).await
}

/// Restarts a server on a blocking thread, so that the runtime goes on.
pub(crate) async fn restart(server: &Arc<RedisServer>) {
    let server = Arc::clone(server);
    joined(tokio::task::spawn_blocking(move || server.restart())).await;
}

#[derive(Debug)]
pub(crate) enum Held {
    Guard(AnyGuard),
    Permit(SemaphoreGuard),
}

impl Held {
    pub(crate) fn release(self) -> BoxFuture<Result<()>> {
        match self {
            Held::Guard(guard) => Box::pin(guard.release()),
            Held::Permit(permit) => Box::pin(permit.release()),
        }
    }

    pub(crate) fn guard(&self) -> &AnyGuard {
        match self {
            Held::Guard(guard) => guard,
            Held::Permit(_) => panic!("a permit has no lease"),
        }
    }

    /// The loss reason, which must be known soon.
    pub(crate) async fn lost_soon(&self) -> LostReason {
        within(SOON, "the loss", self.guard().lost()).await
    }
}

/// One primitive of one name.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    client: Client,
    primitive: Primitive,
    name: String,
}

impl Handle {
    pub(crate) fn new(client: &Client, primitive: Primitive, name: &str) -> Self {
        Self { client: client.clone(), primitive, name: name.to_owned() }
    }

    /// As a lock; none for permits without owners.
    pub(crate) fn lock(&self) -> Option<AnyLock> {
        let Self { client, name, .. } = self;
        Some(match self.primitive {
            Primitive::Lock => client.lock(name).into(),
            Primitive::Mutex => client.mutex(name).into(),
            Primitive::Fair => client.fair_lock(name).into(),
            Primitive::Fenced => client.fenced_lock(name).into(),
            Primitive::Spin => client.spin_lock(name).into(),
            Primitive::Read => client.rw_lock(name).reader(),
            Primitive::Write => client.rw_lock(name).writer(),
            Primitive::Permits => client.permit_semaphore(name).into(),
            Primitive::Semaphore => return None,
        })
    }

    /// Waits until it is acquired.
    pub(crate) fn acquire(&self) -> BoxFuture<Result<Held>> {
        let (lock, semaphore) = (self.lock(), self.client.semaphore(&self.name));
        Box::pin(async move {
            match lock {
                Some(lock) => lock.lock().await.map(Held::Guard),
                None => semaphore.acquire(1).await.map(Held::Permit),
            }
        })
    }

    /// One attempt.
    pub(crate) async fn attempt(&self) -> Result<Option<Held>> {
        Ok(match self.lock() {
            Some(lock) => lock.try_lock().await?.map(Held::Guard),
            None => self.client.semaphore(&self.name).try_acquire(1).await?.map(Held::Permit),
        })
    }

    /// Acquires what is free.
    pub(crate) async fn held(&self) -> Held {
        within(PATIENCE, "acquiring what is free", self.acquire()).await.expect("it is free")
    }

    /// Acquires what is free with a fixed lease.
    pub(crate) async fn leased(&self, lease: Duration) -> Held {
        let lock = self.lock().expect("a permit has no lease").lease(lease);
        let guard = within(PATIENCE, "acquiring what is free", lock.lock());
        Held::Guard(guard.await.expect("it is free"))
    }

    /// The handle whose holder keeps every other client out of this one.
    pub(crate) fn exclusive(&self) -> Self {
        Self { primitive: self.primitive.exclusive(), ..self.clone() }
    }

    /// Waits until it can be acquired exclusively, which must be within `limit`.
    pub(crate) async fn assert_free_within(&self, limit: Duration) {
        let (exclusive, end) = (self.exclusive(), Instant::now() + limit);
        loop {
            if let Some(held) = exclusive.attempt().await.expect("reachable") {
                return held.release().await.expect("held");
            }
            assert!(Instant::now() < end, "{:?} is not free within {limit:?}", self.primitive);
            tokio::time::sleep(ms(5)).await;
        }
    }
}

/// A server with one permit of each semaphore called `a`, a client behind a proxy, and another client
/// that connects directly.
pub(crate) struct Fixture {
    pub(crate) rig: Rig,
    pub(crate) other: Client,
    pub(crate) primitive: Primitive,
}

impl Fixture {
    pub(crate) async fn new(primitive: Primitive, options: ClientOptions) -> Self {
        let rig = Rig::on(started().await, Kind::Lock, options).await;
        let other = rig.direct_client().await;
        set_up(&other, primitive, "a").await;
        Self { rig, other, primitive }
    }

    /// The handle of the client behind the proxy.
    pub(crate) fn proxied(&self) -> Handle {
        Handle::new(&self.rig.client, self.primitive, "a")
    }

    /// The handle of the client that connects directly.
    pub(crate) fn direct(&self) -> Handle {
        Handle::new(&self.other, self.primitive, "a")
    }

    /// A hold of the direct client that keeps every other client out.
    pub(crate) async fn block(&self) -> Held {
        self.direct().exclusive().held().await
    }

    /// How many channels of its waiters have a subscriber.
    pub(crate) fn listeners(&self) -> usize {
        listening(&self.rig.server, self.primitive, "a")
    }

    pub(crate) fn proxy(&self) -> &FaultProxy {
        &self.rig.proxy
    }

    pub(crate) fn server(&self) -> &RedisServer {
        &self.rig.server
    }

    /// What only an acquire of this primitive contains.
    pub(crate) fn acquire_mark(&self) -> Vec<u8> {
        match self.primitive.acquire_script() {
            Some(script) => self.rig.hash(script),
            None => MUTEX_ACQUIRE.to_vec(),
        }
    }

    /// No key of a hold or of a waiter is left.
    #[track_caller]
    pub(crate) fn assert_nothing_stored(&self) {
        let stored = holds(self.server(), self.primitive);
        assert_eq!(stored, Vec::<String>::new(), "{:?}", self.primitive);
    }
}

/// How many channels of waiters have a subscriber.
pub(crate) fn listening(server: &RedisServer, primitive: Primitive, name: &str) -> usize {
    server.cli(&["PUBSUB", "CHANNELS", &primitive.channels(name)]).array().len()
}

/// Until a client waits for `a`.
pub(crate) async fn waiting(server: &RedisServer, primitive: Primitive) {
    if primitive == Primitive::Spin {
        let before = server.commandstats("evalsha");
        let spins = || server.commandstats("evalsha") >= before + 3;
        return eventually(PATIENCE, "spinning", spins).await;
    }
    eventually(PATIENCE, "listening", || listening(server, primitive, "a") == 1).await;
}

/// Makes a semaphore with one permit.
pub(crate) async fn set_up(client: &Client, primitive: Primitive, name: &str) {
    let made = match primitive {
        Primitive::Permits => client.permit_semaphore(name).try_set_permits(1, None).await,
        Primitive::Semaphore => client.semaphore(name).try_set_permits(1, None).await,
        _ => Ok(true),
    };
    assert!(made.expect("reachable"));
}

/// Whether a key belongs to no hold and to no waiter: a client's own data, and what the scripts
/// remember for a while.
pub(crate) fn ends_by_itself(key: &str) -> bool {
    let prefixes = [
        "lockkeeper_client",
        "lockkeeper_commit:",
        "lockkeeper_grace:",
        "lockkeeper_patience:",
        "lockkeeper_replies:",
    ];
    prefixes.iter().any(|prefix| key.starts_with(prefix))
}

/// The keys of holds and of waiters.
pub(crate) fn holds(server: &RedisServer, primitive: Primitive) -> Vec<String> {
    let keys = server.cli(&["KEYS", "*"]).ok();
    let mut names: Vec<_> = keys.array().iter().map(|key| key.text().to_owned()).collect();
    names.retain(|name| {
        let counter = matches!(primitive, Primitive::Permits | Primitive::Semaphore) && name == "a";
        // A permit that is held shows in the number.
        let free = counter && server.cli(&["GET", "a"]).text() == "1";
        !free && !ends_by_itself(name) && !name.starts_with("redisson_lock_token:")
    });
    names.sort();
    names
}

#[track_caller]
pub(crate) fn assert_unconfirmed<T: std::fmt::Debug>(answer: &Result<T>) {
    assert!(matches!(answer, Err(Error::Unconfirmed { .. })), "{answer:?}");
}
