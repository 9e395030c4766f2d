//! What the themes of the whole family share: one handle for whatever can be held.

use std::future::Future;

use lockkeeper::backend::BoxFuture;
use lockkeeper::{
    AnyGuard, AnyLock, Client, ClientOptions, Error, Kind, LostReason, Permit, Result,
};
use testkit::{FaultProxy, RedisServer};
use tokio::time::Instant;

use crate::support::*;

/// What can be held, beside locks and mutexes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sort {
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

impl Sort {
    pub(crate) const ALL: [Sort; 7] = [
        Sort::Fair,
        Sort::Fenced,
        Sort::Spin,
        Sort::Read,
        Sort::Write,
        Sort::Permits,
        Sort::Semaphore,
    ];

    /// Whether its holder has a lease.
    pub(crate) fn is_leased(self) -> bool {
        self != Sort::Semaphore
    }

    /// The channels on which those who wait for it listen, as a pattern.
    pub(crate) fn channels(self, name: &str) -> String {
        match self {
            Sort::Fair => format!("{}:*", channel(name)),
            Sort::Fenced | Sort::Spin => channel(name),
            Sort::Read | Sort::Write => format!("redisson_rwlock:{{{name}}}"),
            Sort::Permits | Sort::Semaphore => format!("redisson_sc:{{{name}}}"),
        }
    }

    /// The script that takes it, and the one that gives it back.
    pub(crate) fn scripts(self) -> (&'static str, &'static str) {
        match self {
            Sort::Fair => (lua("FAIR_ACQUIRE"), lua("FAIR_RELEASE")),
            Sort::Fenced => (lua("LOCK_ACQUIRE_FENCED"), lua("LOCK_RELEASE")),
            Sort::Spin => (lua("LOCK_ACQUIRE"), lua("LOCK_RELEASE")),
            Sort::Read => (lua("READ_ACQUIRE"), lua("READ_RELEASE")),
            Sort::Write => (lua("WRITE_ACQUIRE"), lua("WRITE_RELEASE")),
            Sort::Permits => (lua("PERMITS_ACQUIRE"), lua("PERMITS_RELEASE")),
            Sort::Semaphore => (lua("SEMAPHORE_ACQUIRE"), lua("SEMAPHORE_RELEASE")),
        }
    }

    pub(crate) fn renewal(self) -> &'static str {
        match self {
            Sort::Fair | Sort::Fenced | Sort::Spin => lua("LOCK_RENEW"),
            Sort::Read => lua("READ_RENEW"),
            Sort::Write => lua("WRITE_RENEW"),
            Sort::Permits => lua("PERMITS_RENEW"),
            Sort::Semaphore => panic!("nothing to renew"),
        }
    }
}

/// Runs a scenario for each sort, a few at the same time: each has a server of its own.
pub(crate) async fn each<F>(sorts: &[Sort], scenario: impl Fn(Sort) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    for some in sorts.chunks(AT_ONCE) {
        let running: Vec<_> =
            some.iter().map(|sort| (*sort, tokio::spawn(scenario(*sort)))).collect();
        for (sort, task) in running {
            // The last one that is named is the one that failed.
            println!("{sort:?}");
            joined(task).await;
        }
    }
}

/// How many sorts are tried at once.
const AT_ONCE: usize = 4;

/// A new server. Starting it takes a while, in which the runtime must go on.
pub(crate) async fn started() -> RedisServer {
    joined(tokio::task::spawn_blocking(RedisServer::start)).await
}

/// A new server that keeps its data over a restart.
pub(crate) async fn persistent() -> RedisServer {
    let start = || RedisServer::builder().persistent(true).start();
    joined(tokio::task::spawn_blocking(start)).await
}

/// What is held.
#[derive(Debug)]
pub(crate) enum Held {
    Guard(AnyGuard),
    Permit(Permit),
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

    /// Why it was lost, which must be soon.
    pub(crate) async fn lost_soon(&self) -> LostReason {
        within(SOON, "the loss", self.guard().lost()).await
    }
}

/// Something that can be held, by its name.
#[derive(Clone, Debug)]
pub(crate) struct Thing {
    client: Client,
    sort: Sort,
    name: String,
}

impl Thing {
    pub(crate) fn new(client: &Client, sort: Sort, name: &str) -> Self {
        Self { client: client.clone(), sort, name: name.to_owned() }
    }

    /// As a lock; nothing for permits without owners.
    fn lock(&self) -> Option<AnyLock> {
        let Self { client, name, .. } = self;
        Some(match self.sort {
            Sort::Fair => client.fair_lock(name).into(),
            Sort::Fenced => client.fenced_lock(name).into(),
            Sort::Spin => client.spin_lock(name).into(),
            Sort::Read => client.rw_lock(name).reader(),
            Sort::Write => client.rw_lock(name).writer(),
            Sort::Permits => client.permit_semaphore(name).into(),
            Sort::Semaphore => return None,
        })
    }

    /// Waits until it is held.
    pub(crate) fn take(&self) -> BoxFuture<Result<Held>> {
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

    pub(crate) async fn taken(&self) -> Held {
        within(PATIENCE, "taking what is free", self.take()).await.expect("it is free")
    }

    /// The same for a fixed time.
    pub(crate) async fn leased(&self, span: std::time::Duration) -> Held {
        let lock = self.lock().expect("a permit has no lease").lease(span);
        let guard = within(PATIENCE, "taking what is free", lock.lock());
        Held::Guard(guard.await.expect("it is free"))
    }

    /// What only one can have at a time, where it is not that already.
    fn whole(&self) -> Self {
        let sort = if self.sort == Sort::Read { Sort::Write } else { self.sort };
        Self { sort, ..self.clone() }
    }

    /// Waits until it can be had as a whole, which must be within `limit`.
    pub(crate) async fn assert_free_within(&self, limit: std::time::Duration) {
        let (whole, end) = (self.whole(), Instant::now() + limit);
        loop {
            if let Some(held) = whole.attempt().await.expect("reachable") {
                return held.release().await.expect("held");
            }
            assert!(Instant::now() < end, "{:?} is not free within {limit:?}", self.sort);
            tokio::time::sleep(ms(5)).await;
        }
    }
}

/// A server with one permit of each semaphore called `a`, a proxy before it, a client behind the
/// proxy, and one past it.
pub(crate) struct Set {
    pub(crate) rig: Rig,
    pub(crate) stranger: Client,
    pub(crate) sort: Sort,
}

impl Set {
    pub(crate) async fn new(sort: Sort, options: ClientOptions) -> Self {
        Self::on(started().await, sort, options).await
    }

    pub(crate) async fn on(server: RedisServer, sort: Sort, options: ClientOptions) -> Self {
        let rig = Rig::on(server, Kind::Lock, options).await;
        let stranger = rig.stranger().await;
        set_up(&stranger, sort, "a").await;
        Self { rig, stranger, sort }
    }

    pub(crate) fn mine(&self) -> Thing {
        Thing::new(&self.rig.client, self.sort, "a")
    }

    pub(crate) fn strangers(&self) -> Thing {
        Thing::new(&self.stranger, self.sort, "a")
    }

    /// What keeps everybody else from it, held by the stranger.
    pub(crate) async fn block(&self) -> Held {
        self.strangers().whole().taken().await
    }

    /// How many listen for it to be freed.
    pub(crate) fn listeners(&self) -> usize {
        listening(&self.rig.server, self.sort, "a")
    }

    pub(crate) fn proxy(&self) -> &FaultProxy {
        &self.rig.proxy
    }

    pub(crate) fn server(&self) -> &RedisServer {
        &self.rig.server
    }

    /// Nobody has anything of it: no key is left that should not be.
    #[track_caller]
    pub(crate) fn assert_nothing_stored(&self) {
        assert_eq!(holds(self.server(), self.sort), Vec::<String>::new(), "{:?}", self.sort);
    }
}

/// How many channels are listened to for it.
pub(crate) fn listening(server: &RedisServer, sort: Sort, name: &str) -> usize {
    server.cli(&["PUBSUB", "CHANNELS", &sort.channels(name)]).array().len()
}

/// Makes a semaphore with one permit.
pub(crate) async fn set_up(client: &Client, sort: Sort, name: &str) {
    let made = match sort {
        Sort::Permits => client.permit_semaphore(name).try_set_permits(1).await,
        Sort::Semaphore => client.semaphore(name).try_set_permits(1).await,
        _ => Ok(true),
    };
    assert!(made.expect("reachable"));
}

/// Whether a key is one that says of nobody that it holds something, or waits: who a client is, and
/// what is remembered for a while.
pub(crate) fn ends_by_itself(key: &str) -> bool {
    let prefixes =
        ["lockkeeper_client", "lockkeeper_replies:", "lockkeeper_grace:", "lockkeeper_patience:"];
    prefixes.iter().any(|prefix| key.starts_with(prefix))
}

/// The keys that say that somebody holds or waits for something.
pub(crate) fn holds(server: &RedisServer, sort: Sort) -> Vec<String> {
    let keys = server.cli(&["KEYS", "*"]).ok();
    let mut names: Vec<_> = keys.array().iter().map(|key| key.text().to_owned()).collect();
    names.retain(|name| {
        let counter = matches!(sort, Sort::Permits | Sort::Semaphore) && name == "a";
        // A permit that is taken shows in the number.
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
