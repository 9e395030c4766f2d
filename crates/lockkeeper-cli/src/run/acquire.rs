//! Which lock, and how it is waited for.

use std::time::Duration;

use lockkeeper::{
    Client, Error, FairLock, FencedLock, Guard, Holder, Lock, LockRequest, PermitSemaphore, RwLock,
    TryLockRequest,
};

use crate::args::{RunArgs, WaitOptions};
use crate::exit::{Code, Failure};

/// A handle of the kind that was asked for.
pub(super) enum Target {
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

    /// Takes it; nothing if it was busy for as long as it could be waited for.
    pub(super) async fn take(&self, patience: Patience) -> Result<Option<Guard>, Failure> {
        if let Self::Permits(semaphore, permits) = self {
            set_up(semaphore, *permits).await?;
        }
        let guard = match patience {
            Patience::Endless => Some(self.lock().await?),
            Patience::None => self.try_lock().await?,
            Patience::For(span) => self.try_lock().wait(span).await?,
        };
        Ok(guard)
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

    /// In a few words, who has it; nothing if nobody seems to.
    pub(super) async fn holders(&self) -> Result<Option<String>, Error> {
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

/// Makes the semaphore, or sees to it that it is the one that was meant.
async fn set_up(semaphore: &PermitSemaphore, permits: u32) -> Result<(), Failure> {
    if semaphore.try_set_permits(permits.into()).await? {
        return Ok(());
    }
    let found = semaphore.permits().await?;
    if found == i64::from(permits) {
        return Ok(());
    }
    Err(Failure::new(
        Code::USAGE,
        format!(
            "\"{}\" has {found} permits in the store, not {permits}: \
             ask for --permits {found}, or use another name",
            semaphore.name()
        ),
    ))
}
