//! Stores, clients, and one handle for every primitive.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::BoxFuture;
use lockkeeper::stores::Memory;
use lockkeeper::{
    AnyGuard, AnyLock, Client, ClientOptions, Kind, MultiGuard, MultiLock, Owner, Result,
    SemaphoreGuard,
};
use testkit::Flaky;

/// How long another client holds what the operation wants.
pub(crate) const BUSY: Duration = Duration::from_millis(50);

/// How many permits there are; every acquire is for all of them.
pub(crate) const PERMITS: u32 = 2;

/// Two stores, a client of each behind the same gates, and rivals without any.
pub(crate) struct Fixture {
    pub(crate) memory: Arc<Memory>,
    pub(crate) elsewhere: Arc<Memory>,
    pub(crate) flaky: Flaky,
    pub(crate) client: Client,
    pub(crate) rival: Client,
    abroad: Client,
    rival_abroad: Client,
}

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
    /// Waiting for it to open.
    Latch,
    /// Three plain locks of one client, which go in one request.
    Multi,
    /// Three of different kinds.
    Mixed,
    /// Two on different stores.
    Abroad,
}

/// How it is acquired.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Forever,
    Leased(Duration),
    Once,
    Within(Duration),
}

pub(crate) enum Held {
    Guard(AnyGuard),
    Permit(SemaphoreGuard),
    Multi(MultiGuard),
    /// A wait for a latch leaves nothing held.
    Nothing,
}

impl Held {
    /// Not an `async fn`: the release is done even if it is never polled.
    pub(crate) fn release(self) -> BoxFuture<Result<()>> {
        match self {
            Held::Guard(guard) => Box::pin(guard.release()),
            Held::Permit(permit) => Box::pin(permit.release()),
            Held::Multi(guard) => Box::pin(guard.release()),
            Held::Nothing => Box::pin(async { Ok(()) }),
        }
    }

    pub(crate) fn guard(self) -> AnyGuard {
        match self {
            Held::Guard(guard) => guard,
            _ => panic!("it has no guard of its own"),
        }
    }
}

/// One primitive.
#[derive(Clone)]
pub(crate) struct Handle {
    client: Client,
    abroad: Client,
    primitive: Primitive,
    owner: Option<Owner>,
}

impl Handle {
    /// Of a client, at one store.
    pub(crate) fn of(client: &Client, primitive: Primitive) -> Self {
        Self { client: client.clone(), abroad: client.clone(), primitive, owner: None }
    }

    pub(crate) fn owned(mut self) -> Self {
        self.owner = Some(self.client.new_owner());
        self
    }

    /// As a lock.
    pub(crate) fn any(&self) -> AnyLock {
        let client = &self.client;
        let lock: AnyLock = match self.primitive {
            Primitive::Lock => client.lock("it").into(),
            Primitive::Mutex => client.mutex("it").into(),
            Primitive::Fair => client.fair_lock("it").into(),
            Primitive::Fenced => client.fenced_lock("it").into(),
            Primitive::Spin => client.spin_lock("it").into(),
            Primitive::Read => client.rw_lock("it").reader(),
            Primitive::Write => client.rw_lock("it").writer(),
            Primitive::Permits => client.permit_semaphore("it").into(),
            _ => panic!("{:?} is no lock of its own", self.primitive),
        };
        match &self.owner {
            Some(owner) if self.primitive != Primitive::Mutex => lock.as_owner(owner),
            _ => lock,
        }
    }

    /// Acquires what has a guard.
    pub(crate) fn lock(&self) -> BoxFuture<Result<AnyGuard>> {
        if self.primitive == Primitive::Permits {
            let acquire = self.client.permit_semaphore("it").acquire(PERMITS);
            return Box::pin(async move { acquire.await.map(Into::into) });
        }
        Box::pin(self.any().lock())
    }

    /// One attempt at what has a guard.
    pub(crate) fn try_lock(&self) -> BoxFuture<Result<Option<AnyGuard>>> {
        self.try_lock_for(Duration::ZERO)
    }

    pub(crate) fn try_lock_for(&self, wait: Duration) -> BoxFuture<Result<Option<AnyGuard>>> {
        if self.primitive == Primitive::Permits {
            let acquire = self.client.permit_semaphore("it").try_acquire_for(PERMITS, wait);
            return Box::pin(async move { Ok(acquire.await?.map(Into::into)) });
        }
        Box::pin(self.any().try_lock_for(wait))
    }

    /// Acquires it with a fixed lease.
    pub(crate) async fn lock_for(&self, span: Duration) -> Result<AnyGuard> {
        match self.primitive {
            Primitive::Permits => {
                let semaphore = self.client.permit_semaphore("it").lease(span);
                Ok(semaphore.acquire(PERMITS).await?.into())
            }
            _ => self.any().lease(span).lock().await,
        }
    }

    fn multi(&self) -> MultiLock {
        let Self { client, abroad, .. } = self;
        match self.primitive {
            Primitive::Multi => MultiLock::new(["a", "b", "it"].map(|name| client.lock(name))),
            Primitive::Mixed => MultiLock::new([
                AnyLock::from(client.fair_lock("a")),
                client.rw_lock("b").reader(),
                client.lock("it").into(),
            ]),
            Primitive::Abroad => {
                MultiLock::new([AnyLock::from(client.lock("it")), abroad.rw_lock("there").writer()])
            }
            _ => panic!("{:?} is no multi-lock", self.primitive),
        }
    }

    pub(crate) async fn take(&self, how: How) -> Result<Option<Held>> {
        match self.primitive {
            Primitive::Semaphore => self.take_permits(how).await,
            Primitive::Latch => self.pass(how).await,
            Primitive::Multi | Primitive::Mixed | Primitive::Abroad => self.take_all(how).await,
            _ => self.take_one(how).await,
        }
    }

    async fn take_one(&self, how: How) -> Result<Option<Held>> {
        let taken = match how {
            How::Forever => Some(self.lock().await?),
            How::Leased(span) => Some(self.lock_for(span).await?),
            How::Once => self.try_lock().await?,
            How::Within(span) => self.try_lock_for(span).await?,
        };
        Ok(taken.map(Held::Guard))
    }

    async fn take_permits(&self, how: How) -> Result<Option<Held>> {
        let semaphore = self.client.semaphore("it");
        let taken = match how {
            How::Forever | How::Leased(_) => Some(semaphore.acquire(PERMITS).await?),
            How::Once => semaphore.try_acquire(PERMITS).await?,
            How::Within(span) => semaphore.try_acquire_for(PERMITS, span).await?,
        };
        Ok(taken.map(Held::Permit))
    }

    async fn take_all(&self, how: How) -> Result<Option<Held>> {
        let multi = self.multi();
        let taken = match how {
            How::Forever => Some(multi.lock().await?),
            How::Leased(span) => Some(multi.lease(span).lock().await?),
            How::Once => multi.try_lock().await?,
            How::Within(span) => multi.try_lock_for(span).await?,
        };
        Ok(taken.map(Held::Multi))
    }

    async fn pass(&self, how: How) -> Result<Option<Held>> {
        let latch = self.client.count_down_latch("it");
        let opened = match how {
            How::Forever | How::Leased(_) => latch.wait().await.map(|()| true)?,
            How::Once => latch.wait_for(Duration::ZERO).await?,
            How::Within(span) => latch.wait_for(span).await?,
        };
        Ok(opened.then_some(Held::Nothing))
    }

    /// Acquires it, however long that takes.
    pub(crate) async fn taken(&self) -> Held {
        self.take(How::Forever).await.unwrap().expect("it waits for ever")
    }

    pub(crate) async fn run(&self) -> bool {
        let work = tokio::time::sleep(BUSY);
        match self.primitive {
            Primitive::Multi | Primitive::Mixed | Primitive::Abroad => {
                self.multi().run(|_| work).await.is_ok()
            }
            _ => self.any().run(|_| work).await.is_ok(),
        }
    }

    pub(crate) async fn try_run(&self) -> bool {
        let work = tokio::time::sleep(BUSY);
        match self.primitive {
            Primitive::Multi | Primitive::Mixed | Primitive::Abroad => {
                matches!(self.multi().try_run_for(Duration::ZERO, |_| work).await, Ok(Some(_)))
            }
            _ => matches!(self.any().try_run_for(Duration::ZERO, |_| work).await, Ok(Some(_))),
        }
    }
}

impl Primitive {
    pub(crate) const ALL: [Primitive; 13] = [
        Primitive::Lock,
        Primitive::Mutex,
        Primitive::Fair,
        Primitive::Fenced,
        Primitive::Spin,
        Primitive::Read,
        Primitive::Write,
        Primitive::Permits,
        Primitive::Semaphore,
        Primitive::Latch,
        Primitive::Multi,
        Primitive::Mixed,
        Primitive::Abroad,
    ];

    /// Whether it is held by a guard of its own.
    pub(crate) fn guarded(self) -> bool {
        !self.together() && !matches!(self, Primitive::Semaphore | Primitive::Latch)
    }

    /// Whether it is a multi-lock.
    pub(crate) fn together(self) -> bool {
        matches!(self, Primitive::Multi | Primitive::Mixed | Primitive::Abroad)
    }

    pub(crate) fn reentrant(self) -> bool {
        self.guarded() && !matches!(self, Primitive::Mutex | Primitive::Permits)
    }

    /// Whether a client hands it off to its next waiter.
    pub(crate) fn handed_over(self) -> bool {
        matches!(
            self,
            Primitive::Lock
                | Primitive::Mutex
                | Primitive::Fenced
                | Primitive::Spin
                | Primitive::Write
        )
    }

    /// Its kind at the store.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Primitive::Lock | Primitive::Fenced | Primitive::Spin => Kind::Lock,
            Primitive::Mutex => Kind::Mutex,
            Primitive::Fair => Kind::Fair,
            Primitive::Read => Kind::Read,
            Primitive::Write => Kind::Write,
            Primitive::Permits => Kind::Permits,
            Primitive::Semaphore => Kind::Semaphore,
            Primitive::Latch => Kind::Latch,
            Primitive::Multi | Primitive::Mixed | Primitive::Abroad => {
                panic!("{self:?} is several")
            }
        }
    }

    /// What can be acquired when it is free: the write side of a read/write lock.
    pub(crate) fn whole(self) -> Primitive {
        if self == Primitive::Read { Primitive::Write } else { self }
    }

    /// How many entries the store has for it when it is free.
    pub(crate) fn stands(self) -> usize {
        usize::from(matches!(self, Primitive::Permits | Primitive::Semaphore))
    }
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let (memory, elsewhere) = (Memory::new(), Memory::new());
        let flaky = Flaky::new(memory.clone());
        // Short, so that what is repeated is soon over.
        let back_off = (Duration::from_millis(2), Duration::from_millis(20));
        let options = ClientOptions::new().retry_backoff(back_off.0, back_off.1);
        let client = |backend| Client::with_backend(backend, options.clone()).unwrap();
        Self {
            client: client(flaky.backend()),
            rival: client(memory.clone()),
            abroad: client(flaky.beside(elsewhere.clone()).backend()),
            rival_abroad: client(elsewhere.clone()),
            memory,
            elsewhere,
            flaky,
        }
    }

    pub(crate) fn mine(&self, primitive: Primitive) -> Handle {
        Handle { abroad: self.abroad.clone(), ..Handle::of(&self.client, primitive) }
    }

    pub(crate) fn rivals(&self, primitive: Primitive) -> Handle {
        Handle { abroad: self.rival_abroad.clone(), ..Handle::of(&self.rival, primitive) }
    }

    /// Creates what an acquire needs.
    pub(crate) async fn set_up(&self, primitive: Primitive) {
        let permits = u64::from(PERMITS);
        let made = match primitive {
            Primitive::Permits => {
                self.rival.permit_semaphore("it").try_set_permits(permits, None).await
            }
            Primitive::Semaphore => self.rival.semaphore("it").try_set_permits(permits, None).await,
            _ => Ok(true),
        };
        assert!(made.unwrap());
    }

    /// Holds it as another client; a waiter acquires it after the release.
    pub(crate) async fn blocked(&self, primitive: Primitive) -> Blocker {
        match primitive {
            Primitive::Latch => {
                let latch = self.rival.count_down_latch("it");
                assert!(latch.try_set_count(1).await.unwrap());
                Blocker::Latch(latch)
            }
            // The last member, or the one that is not at the other store.
            primitive if primitive.together() => {
                Blocker::Held(self.rivals(Primitive::Lock).taken().await)
            }
            primitive => Blocker::Held(self.rivals(primitive.whole()).taken().await),
        }
    }

    /// [`blocked`](Fixture::blocked) for a while.
    pub(crate) async fn blocked_for_a_while(&self, primitive: Primitive) {
        let blocker = self.blocked(primitive).await;
        tokio::spawn(async move {
            tokio::time::sleep(BUSY).await;
            blocker.let_go().await;
        });
    }

    /// How many permits are free.
    pub(crate) async fn free_permits(&self, primitive: Primitive) -> i64 {
        match primitive {
            Primitive::Permits => self.rival.permit_semaphore("it").available().await.unwrap(),
            Primitive::Semaphore => self.rival.semaphore("it").available().await.unwrap(),
            _ => panic!("{primitive:?} has no permits"),
        }
    }

    /// Removes what has expired, which is counted until the next request for it.
    pub(crate) async fn ask(&self, primitive: Primitive) {
        if primitive.guarded() {
            let guard = self.rivals(primitive.whole()).try_lock().await.unwrap();
            guard.expect("it is free").release().await.unwrap();
        }
        for name in ["a", "b", "it"] {
            if primitive.together() {
                let _ = self.rival.lock(name).is_locked().await;
                let _ = self.rival.rw_lock(name).inspect().await;
                let _ = self.rival_abroad.rw_lock("there").inspect().await;
            }
        }
    }
}

/// A hold of another client, or a closed latch.
pub(crate) enum Blocker {
    Held(Held),
    Latch(lockkeeper::CountDownLatch),
}

impl Blocker {
    pub(crate) async fn let_go(self) {
        match self {
            Blocker::Held(held) => held.release().await.unwrap(),
            Blocker::Latch(latch) => assert_eq!(latch.count_down().await.unwrap(), 0),
        }
    }
}
