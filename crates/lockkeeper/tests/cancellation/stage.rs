//! Where everything happens: stores, clients, and one handle for whatever can be held.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::BoxFuture;
use lockkeeper::backend::memory::Memory;
use lockkeeper::{
    AnyGuard, AnyLock, Client, ClientOptions, Kind, MultiGuard, MultiLock, Owner, Permit, Result,
};
use testkit::Flaky;

/// How long somebody else keeps what the operation wants.
pub(crate) const BUSY: Duration = Duration::from_millis(50);

/// How many permits there are; whoever wants some wants them all.
pub(crate) const PERMITS: u32 = 2;

/// Two stores, a client of each behind the same gates, and rivals without any.
pub(crate) struct Stage {
    pub(crate) memory: Arc<Memory>,
    pub(crate) elsewhere: Arc<Memory>,
    pub(crate) flaky: Flaky,
    pub(crate) client: Client,
    pub(crate) rival: Client,
    abroad: Client,
    rival_abroad: Client,
}

/// What it is done to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sort {
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

/// How it is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Forever,
    Leased(Duration),
    Once,
    Within(Duration),
}

/// What is held then.
pub(crate) enum Held {
    Guard(AnyGuard),
    Permit(Permit),
    Multi(MultiGuard),
    /// Whoever has waited for a latch has nothing.
    Nothing,
}

impl Held {
    /// Not an `async fn`: it is to be done even if it is never polled.
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

/// Something that can be held, for the calls that most have.
#[derive(Clone)]
pub(crate) struct Handle {
    client: Client,
    abroad: Client,
    sort: Sort,
    owner: Option<Owner>,
}

impl Handle {
    /// Of a client, at one store.
    pub(crate) fn of(client: &Client, sort: Sort) -> Self {
        Self { client: client.clone(), abroad: client.clone(), sort, owner: None }
    }

    pub(crate) fn owned(mut self) -> Self {
        self.owner = Some(self.client.new_owner());
        self
    }

    /// What has a guard of its own, but for permits.
    pub(crate) fn any(&self) -> AnyLock {
        let client = &self.client;
        let lock: AnyLock = match self.sort {
            Sort::Lock => client.lock("it").into(),
            Sort::Mutex => client.mutex("it").into(),
            Sort::Fair => client.fair_lock("it").into(),
            Sort::Fenced => client.fenced_lock("it").into(),
            Sort::Spin => client.spin_lock("it").into(),
            Sort::Read => client.rw_lock("it").reader(),
            Sort::Write => client.rw_lock("it").writer(),
            Sort::Permits => client.permit_semaphore("it").into(),
            _ => panic!("{:?} is no lock of its own", self.sort),
        };
        match &self.owner {
            Some(owner) if self.sort != Sort::Mutex => lock.as_owner(owner),
            _ => lock,
        }
    }

    /// Acquires what has a guard.
    pub(crate) fn lock(&self) -> BoxFuture<Result<AnyGuard>> {
        if self.sort == Sort::Permits {
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
        if self.sort == Sort::Permits {
            let acquire = self.client.permit_semaphore("it").try_acquire_for(PERMITS, wait);
            return Box::pin(async move { Ok(acquire.await?.map(Into::into)) });
        }
        Box::pin(self.any().try_lock_for(wait))
    }

    /// Acquires it with a fixed lease.
    pub(crate) async fn lock_for(&self, span: Duration) -> Result<AnyGuard> {
        match self.sort {
            Sort::Permits => {
                let semaphore = self.client.permit_semaphore("it").lease(span);
                Ok(semaphore.acquire(PERMITS).await?.into())
            }
            _ => self.any().lease(span).lock().await,
        }
    }

    fn multi(&self) -> MultiLock {
        let Self { client, abroad, .. } = self;
        match self.sort {
            Sort::Multi => MultiLock::new(["a", "b", "it"].map(|name| client.lock(name))),
            Sort::Mixed => MultiLock::new([
                AnyLock::from(client.fair_lock("a")),
                client.rw_lock("b").reader(),
                client.lock("it").into(),
            ]),
            Sort::Abroad => {
                MultiLock::new([AnyLock::from(client.lock("it")), abroad.rw_lock("there").writer()])
            }
            _ => panic!("{:?} is no multi-lock", self.sort),
        }
    }

    pub(crate) async fn take(&self, how: How) -> Result<Option<Held>> {
        match self.sort {
            Sort::Semaphore => self.take_permits(how).await,
            Sort::Latch => self.pass(how).await,
            Sort::Multi | Sort::Mixed | Sort::Abroad => self.take_all(how).await,
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

    /// Takes it, waiting for as long as need be.
    pub(crate) async fn taken(&self) -> Held {
        self.take(How::Forever).await.unwrap().expect("it waits for ever")
    }

    pub(crate) async fn run(&self) -> bool {
        let work = tokio::time::sleep(BUSY);
        match self.sort {
            Sort::Multi | Sort::Mixed | Sort::Abroad => self.multi().run(|_| work).await.is_ok(),
            _ => self.any().run(|_| work).await.is_ok(),
        }
    }

    pub(crate) async fn try_run(&self) -> bool {
        let work = tokio::time::sleep(BUSY);
        match self.sort {
            Sort::Multi | Sort::Mixed | Sort::Abroad => {
                matches!(self.multi().try_run(|_| work).await, Ok(Some(_)))
            }
            _ => matches!(self.any().try_run(|_| work).await, Ok(Some(_))),
        }
    }
}

impl Sort {
    pub(crate) const ALL: [Sort; 13] = [
        Sort::Lock,
        Sort::Mutex,
        Sort::Fair,
        Sort::Fenced,
        Sort::Spin,
        Sort::Read,
        Sort::Write,
        Sort::Permits,
        Sort::Semaphore,
        Sort::Latch,
        Sort::Multi,
        Sort::Mixed,
        Sort::Abroad,
    ];

    /// Whether it is held by a guard of its own.
    pub(crate) fn guarded(self) -> bool {
        !self.together() && !matches!(self, Sort::Semaphore | Sort::Latch)
    }

    /// Several as one.
    pub(crate) fn together(self) -> bool {
        matches!(self, Sort::Multi | Sort::Mixed | Sort::Abroad)
    }

    pub(crate) fn reentrant(self) -> bool {
        self.guarded() && !matches!(self, Sort::Mutex | Sort::Permits)
    }

    /// Whether a client hands it from one of its holds to the next.
    pub(crate) fn handed_over(self) -> bool {
        matches!(self, Sort::Lock | Sort::Mutex | Sort::Fenced | Sort::Spin | Sort::Write)
    }

    /// What it is to the store, where it is one thing.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Sort::Lock | Sort::Fenced | Sort::Spin => Kind::Lock,
            Sort::Mutex => Kind::Mutex,
            Sort::Fair => Kind::Fair,
            Sort::Read => Kind::Read,
            Sort::Write => Kind::Write,
            Sort::Permits => Kind::Permits,
            Sort::Semaphore => Kind::Semaphore,
            Sort::Latch => Kind::Latch,
            Sort::Multi | Sort::Mixed | Sort::Abroad => panic!("{self:?} is several"),
        }
    }

    /// What must be free when nobody has it: of a read/write lock its exclusive side.
    pub(crate) fn whole(self) -> Sort {
        if self == Sort::Read { Sort::Write } else { self }
    }

    /// How much of it stands in the store when nobody has it.
    pub(crate) fn stands(self) -> usize {
        usize::from(matches!(self, Sort::Permits | Sort::Semaphore))
    }
}

impl Stage {
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

    pub(crate) fn mine(&self, sort: Sort) -> Handle {
        Handle { abroad: self.abroad.clone(), ..Handle::of(&self.client, sort) }
    }

    pub(crate) fn rivals(&self, sort: Sort) -> Handle {
        Handle { abroad: self.rival_abroad.clone(), ..Handle::of(&self.rival, sort) }
    }

    /// What must be there before anybody can ask for it.
    pub(crate) async fn set_up(&self, sort: Sort) {
        let permits = u64::from(PERMITS);
        let made = match sort {
            Sort::Permits => self.rival.permit_semaphore("it").try_set_permits(permits).await,
            Sort::Semaphore => self.rival.semaphore("it").try_set_permits(permits).await,
            _ => Ok(true),
        };
        assert!(made.unwrap());
    }

    /// Takes what stands in the way of it; whoever waits is let in when that is let go.
    pub(crate) async fn blocked(&self, sort: Sort) -> Blocker {
        match sort {
            Sort::Latch => {
                let latch = self.rival.count_down_latch("it");
                assert!(latch.try_set_count(1).await.unwrap());
                Blocker::Latch(latch)
            }
            // The last that is taken, or the one that is not at the other store.
            sort if sort.together() => Blocker::Held(self.rivals(Sort::Lock).taken().await),
            sort => Blocker::Held(self.rivals(sort.whole()).taken().await),
        }
    }

    /// [`blocked`](Stage::blocked) for a while.
    pub(crate) async fn blocked_for_a_while(&self, sort: Sort) {
        let blocker = self.blocked(sort).await;
        tokio::spawn(async move {
            tokio::time::sleep(BUSY).await;
            blocker.let_go().await;
        });
    }

    /// Nobody has it: how many permits are free.
    pub(crate) async fn free_permits(&self, sort: Sort) -> i64 {
        match sort {
            Sort::Permits => self.rival.permit_semaphore("it").available().await.unwrap(),
            Sort::Semaphore => self.rival.semaphore("it").available().await.unwrap(),
            _ => panic!("{sort:?} has no permits"),
        }
    }

    /// Forgets what has expired, which is counted until somebody asks about it.
    pub(crate) async fn ask(&self, sort: Sort) {
        if sort.guarded() {
            let guard = self.rivals(sort.whole()).try_lock().await.unwrap();
            guard.expect("it is free").release().await.unwrap();
        }
        for name in ["a", "b", "it"] {
            if sort.together() {
                let _ = self.rival.lock(name).is_locked().await;
                let _ = self.rival.rw_lock(name).holders().await;
                let _ = self.rival_abroad.rw_lock("there").holders().await;
            }
        }
    }
}

/// What stands in the way.
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
