//! Which lock, and how it is waited for.

use std::time::Duration;

use lockkeeper::{
    Client, Error, FairLock, FencedLock, Guard, Holder, Inspector, Kind, Lock, LockName,
    LockRequest, PermitSemaphore, RwLock, TryLockRequest,
};

use crate::args::{RunArgs, WaitOptions};
use crate::exit::Failure;

/// The kinds, with the options that ask for them.
const A_LOCK: &str = "a lock";
const AN_RW_LOCK: &str = "a read/write lock (--shared, --exclusive)";
const A_SEMAPHORE: &str = "a permit semaphore (--permits)";

/// The lock that was asked for, and the means to say why it cannot be had.
pub(super) struct Target {
    handle: Handle,
    name: Vec<u8>,
    inspector: Inspector,
}

/// A handle of the kind that was asked for.
enum Handle {
    Lock(Lock),
    Fenced(FencedLock),
    Fair(FairLock),
    Shared(RwLock),
    Exclusive(RwLock),
    /// One of so many.
    Permits(PermitSemaphore, u32),
}

/// For how long it is waited.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience {
    Endless,
    None,
    For(Duration),
}

impl Patience {
    pub(super) fn new(options: &WaitOptions) -> Self {
        match options.wait {
            _ if options.no_wait => Self::None,
            Some(span) => Self::For(span),
            None => Self::Endless,
        }
    }

    /// What is left of it after `spent`.
    pub(super) fn less(self, spent: Duration) -> Self {
        match self {
            Self::For(span) => Self::For(span.saturating_sub(spent)),
            other => other,
        }
    }
}

impl Target {
    pub(super) fn new(client: &Client, args: &RunArgs) -> Self {
        let name = args.name.bytes().to_owned();
        Self { handle: Handle::new(client, args), name, inspector: client.inspector() }
    }

    /// Takes it; nothing if it was busy for as long as it could be waited for.
    pub(super) async fn take(&self, patience: Patience) -> Result<Option<Guard>, Failure> {
        let taken = match self.handle.another_number().await {
            Ok(Some(failure)) => return Err(failure),
            Ok(None) => self.handle.request(patience).await,
            Err(error) => Err(error),
        };
        match taken {
            Err(Error::WrongKind { found, .. }) => Err(self.in_use(&found).await),
            taken => Ok(taken?),
        }
    }

    /// What the name is in use as, and what can be done about it. The store only says what it is not, so
    /// it is looked at once more; by then it may be free.
    async fn in_use(&self, found: &str) -> Failure {
        let looked = self.inspector.inspect(&self.name).await.ok().filter(|lock| !lock.is_free());
        let (found, instead) = match looked.map(|lock| lock.kind) {
            Some(Kind::Lock | Kind::Fair) => (A_LOCK, "leave that out"),
            Some(Kind::Read | Kind::Write) => (AN_RW_LOCK, "ask for --shared or --exclusive"),
            Some(Kind::Permits) => (A_SEMAPHORE, "ask for --permits"),
            _ => (found, "see `lockkeeper inspect`"),
        };
        let asked = match self.handle {
            Handle::Lock(_) | Handle::Fenced(_) | Handle::Fair(_) => A_LOCK,
            Handle::Shared(_) | Handle::Exclusive(_) => AN_RW_LOCK,
            Handle::Permits(..) => A_SEMAPHORE,
        };
        Failure::usage(format!(
            "\"{}\" is in use as {found}, and was asked for as {asked}: use another name, or {instead}",
            self.handle.name()
        ))
    }

    /// In a few words, who has it; nothing if nobody seems to.
    pub(super) async fn holders(&self) -> Result<Option<String>, Error> {
        self.handle.holders().await
    }
}

impl Handle {
    fn new(client: &Client, args: &RunArgs) -> Self {
        let (name, kind) = (args.name.bytes(), &args.kind);
        if kind.shared {
            return Self::Shared(client.rw_lock(name));
        }
        if kind.exclusive {
            let lock = client.rw_lock(name);
            return Self::Exclusive(if kind.fenced { lock.fenced() } else { lock });
        }
        if kind.fair {
            let lock = client.fair_lock(name);
            return Self::Fair(if kind.fenced { lock.fenced() } else { lock });
        }
        match kind.permits {
            Some(permits) => Self::Permits(client.permit_semaphore(name), permits),
            None if kind.fenced => Self::Fenced(client.fenced_lock(name)),
            None => Self::Lock(client.lock(name)),
        }
    }

    async fn request(&self, patience: Patience) -> Result<Option<Guard>, Error> {
        match patience {
            Patience::Endless => self.lock().await.map(Some),
            Patience::None => self.try_lock().await,
            Patience::For(span) => self.try_lock().wait(span).await,
        }
    }

    /// Makes the semaphore, if it is to be one. If there is one, but of another size than was meant,
    /// says so.
    async fn another_number(&self) -> Result<Option<Failure>, Error> {
        let Self::Permits(semaphore, permits) = self else { return Ok(None) };
        if semaphore.try_set_permits((*permits).into()).await? {
            return Ok(None);
        }
        let found = semaphore.permits().await?;
        Ok((found != i64::from(*permits)).then(|| {
            Failure::usage(format!(
                "\"{}\" has {found} permits in the store, not {permits}: \
                 ask for --permits {found}, or use another name",
                semaphore.name()
            ))
        }))
    }

    fn name(&self) -> &LockName {
        match self {
            Self::Lock(lock) => lock.name(),
            Self::Fenced(lock) => lock.name(),
            Self::Fair(lock) => lock.name(),
            Self::Shared(lock) | Self::Exclusive(lock) => lock.name(),
            Self::Permits(semaphore, _) => semaphore.name(),
        }
    }

    fn lock(&self) -> LockRequest {
        match self {
            Self::Lock(lock) => lock.lock(),
            Self::Fenced(lock) => lock.lock(),
            Self::Fair(lock) => lock.lock(),
            Self::Shared(lock) => lock.read(),
            Self::Exclusive(lock) => lock.write(),
            Self::Permits(semaphore, _) => semaphore.acquire(1),
        }
    }

    fn try_lock(&self) -> TryLockRequest {
        match self {
            Self::Lock(lock) => lock.try_lock(),
            Self::Fenced(lock) => lock.try_lock(),
            Self::Fair(lock) => lock.try_lock(),
            Self::Shared(lock) => lock.try_read(),
            Self::Exclusive(lock) => lock.try_write(),
            Self::Permits(semaphore, _) => semaphore.try_acquire(1),
        }
    }

    async fn holders(&self) -> Result<Option<String>, Error> {
        let holders = match self {
            Self::Lock(lock) => lock.holder().await?.into_iter().collect(),
            Self::Fenced(lock) => lock.holder().await?.into_iter().collect(),
            Self::Fair(lock) => lock.holder().await?.into_iter().collect(),
            Self::Shared(lock) | Self::Exclusive(lock) => lock.holders().await?,
            Self::Permits(semaphore, permits) => {
                let taken = semaphore.acquired().await?;
                return Ok((taken > 0).then(|| format!("{taken} holders of {permits}")));
            }
        };
        Ok((!holders.is_empty()).then(|| holders.iter().map(shown).collect::<Vec<_>>().join(", ")))
    }
}

fn shown(holder: &Holder) -> String {
    match &holder.client {
        Some(client) => format!("{} on {} (process {})", client.program, client.host, client.pid),
        None => holder.id.clone(),
    }
}
