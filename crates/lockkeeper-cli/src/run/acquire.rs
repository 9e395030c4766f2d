//! Which lock, and how it is waited for.

use std::time::{Duration, Instant};

use lockkeeper::{
    AnyGuard, AnyLock, Client, Error, Holder, Inspector, Kind, LockName, PermitSemaphore,
};

use crate::args::{RunArgs, WaitOptions};
use crate::display;
use crate::exit::{Failure, say};

/// How often a name is tried that is held as another kind: no message says when it is free.
const OTHER_KIND: Duration = Duration::from_millis(100);

/// The kinds, with the options that ask for them.
const A_LOCK: &str = "a lock";
const AN_RW_LOCK: &str = "a read/write lock (--shared, --exclusive)";
const A_SEMAPHORE: &str = "a permit semaphore (--permits)";

/// The lock that was asked for, and the means to say why it cannot be had.
pub(super) struct Target {
    lock: AnyLock,
    asked: Asked,
    name: Vec<u8>,
    inspector: Inspector,
}

/// The kind that was asked for.
enum Asked {
    Lock,
    Shared,
    Exclusive,
    /// One of so many permits, of a semaphore that is removed with the last of them.
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
        let (lock, asked) = chosen(client, args);
        let name = args.name.bytes().to_owned();
        Self { lock, asked, name, inspector: client.inspector() }
    }

    /// Acquires it; nothing if it was busy until the wait limit.
    pub(super) async fn take(&self, patience: Patience) -> Result<Option<AnyGuard>, Failure> {
        let started = Instant::now();
        let number = self.other_number().await?;
        loop {
            let left = patience.less(started.elapsed());
            match self.attempt(left).await {
                Err(Error::WrongKind { found, .. }) => self.clash(&found).await?,
                outcome => {
                    let guard = outcome?;
                    if let (Some(_), Some((before, now))) = (&guard, number) {
                        let name = self.lock.name();
                        say(format_args!("\"{name}\" had {before} permits, and has {now} now"));
                    }
                    return Ok(guard);
                }
            }
            match left {
                Patience::None => return Ok(None),
                Patience::For(left) if left.is_zero() => return Ok(None),
                Patience::For(left) => tokio::time::sleep(left.min(OTHER_KIND)).await,
                Patience::Endless => tokio::time::sleep(OTHER_KIND).await,
            }
        }
    }

    /// The number of permits that a semaphore has and the one it is to have, where they differ. That is
    /// refused for one that `run` has not made.
    async fn other_number(&self) -> Result<Option<(i64, i64)>, Failure> {
        let Asked::Permits(semaphore, permits) = &self.asked else { return Ok(None) };
        let permits = i64::from(*permits);
        loop {
            let found = match semaphore.permits().await {
                Err(Error::WrongKind { found, .. }) => {
                    self.clash(&found).await?;
                    return Ok(None);
                }
                found => found?,
            };
            if found == 0 || found == permits {
                return Ok(None);
            }
            if semaphore.is_temporary().await? {
                return Ok(Some((found, permits)));
            }
            // It may have gone, and come again, between the two.
            if semaphore.permits().await? == found {
                return Err(Failure::usage(format!(
                    "\"{}\" is a lasting semaphore with {found} permits, made by another program or by an \
                     earlier version: ask for --permits {found}, or use another name",
                    semaphore.name()
                )));
            }
        }
    }

    /// The name is in use as another kind than was asked for. Locks and read/write locks exclude each other:
    /// to one the other is busy. What counts permits fails.
    async fn clash(&self, found: &str) -> Result<(), Failure> {
        // The store only says what it is not, so it is looked at once more.
        let looked = self.inspector.inspect(&self.name).await.ok();
        if looked.as_ref().is_some_and(|lock| lock.is_free()) {
            return Ok(());
        }
        let kind = looked.map(|lock| lock.kind);
        let is_lock = matches!(kind, Some(Kind::Lock | Kind::Fair | Kind::Read | Kind::Write));
        if is_lock && !matches!(self.asked, Asked::Permits(..)) {
            return Ok(());
        }
        Err(self.in_use(kind, found))
    }

    /// What the name is in use as, and what can be done about it.
    fn in_use(&self, kind: Option<Kind>, found: &str) -> Failure {
        let (found, instead) = match kind {
            Some(Kind::Lock | Kind::Fair) => (A_LOCK, "leave that out"),
            Some(Kind::Read | Kind::Write) => (AN_RW_LOCK, "leave that out"),
            Some(Kind::Permits) => (A_SEMAPHORE, "ask for --permits"),
            _ => (found, "see `lockkeeper inspect`"),
        };
        let asked = match self.asked {
            Asked::Lock => A_LOCK,
            Asked::Shared | Asked::Exclusive => AN_RW_LOCK,
            Asked::Permits(..) => A_SEMAPHORE,
        };
        Failure::usage(format!(
            "\"{}\" is in use as {found}, and was asked for as {asked}: use another name, or {instead}",
            self.lock.name()
        ))
    }

    /// Whether it is held by a `run` that this process runs below, and not to be had beside it. `held` are
    /// the holders around this process.
    pub(super) async fn waits_for_itself(&self, held: &[String]) -> bool {
        let Ok(lock) = self.inspector.inspect(&self.name).await else { return false };
        let around = |holder: &Holder| held.contains(&holder.id);
        match &self.asked {
            // If others hold some, one of those may be released.
            Asked::Permits(_, permits) => {
                let all = lock.holders.iter().filter(|holder| around(holder)).count() as u64;
                all >= lock.taken && lock.taken >= u64::from(*permits)
            }
            Asked::Shared => lock.holders.iter().any(|holder| around(holder) && !holder.shared),
            _ => lock.holders.iter().any(around),
        }
    }

    pub(super) fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// The holders in a few words; nothing if there seems to be none.
    pub(super) async fn holders(&self) -> Result<Option<String>, Error> {
        if let Asked::Permits(semaphore, permits) = &self.asked {
            let taken = semaphore.acquired().await?;
            return Ok((taken > 0).then(|| format!("{taken} holders of {permits}")));
        }
        let holders = self.lock.holders().await?;
        Ok((!holders.is_empty())
            .then(|| holders.iter().map(display::holder).collect::<Vec<_>>().join(", ")))
    }

    async fn attempt(&self, patience: Patience) -> Result<Option<AnyGuard>, Error> {
        match patience {
            Patience::Endless => self.lock.lock().await.map(Some),
            Patience::None => self.lock.try_lock().await,
            Patience::For(span) => self.lock.try_lock_for(span).await,
        }
    }
}

fn chosen(client: &Client, args: &RunArgs) -> (AnyLock, Asked) {
    let (name, kind) = (args.name.bytes(), &args.kind);
    if kind.shared {
        return (client.rw_lock(name).reader(), Asked::Shared);
    }
    if kind.exclusive {
        let lock = client.rw_lock(name);
        let writer = if kind.fenced { lock.fenced().writer() } else { lock.writer() };
        return (writer, Asked::Exclusive);
    }
    if let Some(permits) = kind.permits {
        let semaphore = client.permit_semaphore(name).temporary(permits.into());
        return (semaphore.clone().into(), Asked::Permits(semaphore, permits));
    }
    let lock = match (kind.fair, kind.fenced) {
        (true, true) => client.fair_lock(name).fenced().into(),
        (true, false) => client.fair_lock(name).into(),
        (false, true) => client.fenced_lock(name).into(),
        (false, false) => client.lock(name).into(),
    };
    (lock, Asked::Lock)
}
