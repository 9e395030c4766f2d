//! The requested lock, and how `run` acquires it.

use std::time::{Duration, Instant};

use lockkeeper::{AnyGuard, AnyLock, Client, Error, Holder, Kind, LockName, PermitSemaphore};

use crate::args::{RunArgs, WaitOptions};
use crate::display;
use crate::exit::{Failure, say};

/// The polling interval for a name that is held as another kind: no notification tells when it is free.
const OTHER_KIND: Duration = Duration::from_millis(100);

/// The kinds, with their options.
const A_LOCK: &str = "a lock";
const AN_RW_LOCK: &str = "a read/write lock (--shared, --exclusive)";
const A_SEMAPHORE: &str = "a permit semaphore (--permits)";

/// The requested lock.
pub(super) struct Target {
    lock: AnyLock,
    requested: Requested,
    name: Vec<u8>,
    client: Client,
}

enum Requested {
    Lock,
    Shared,
    Exclusive,
    /// One of this number of permits. The semaphore is removed with its last permit.
    Permits(PermitSemaphore, u32),
}

/// The wait limit.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaitLimit {
    Unlimited,
    NoWait,
    For(Duration),
}

impl WaitLimit {
    pub(super) fn new(options: &WaitOptions) -> Self {
        match options.wait {
            _ if options.no_wait => Self::NoWait,
            Some(span) => Self::For(span),
            None => Self::Unlimited,
        }
    }

    /// The rest of the limit after `spent`.
    pub(super) fn less(self, spent: Duration) -> Self {
        match self {
            Self::For(span) => Self::For(span.saturating_sub(spent)),
            other => other,
        }
    }
}

impl Target {
    pub(super) fn new(client: &Client, args: &RunArgs) -> Self {
        let (lock, requested) = requested(client, args);
        let name = args.name.bytes().to_owned();
        Self { lock, requested, name, client: client.clone() }
    }

    /// Acquires the lock; `None` if it timed out.
    pub(super) async fn acquire(&self, limit: WaitLimit) -> Result<Option<AnyGuard>, Failure> {
        let started = Instant::now();
        let resize = self.resize().await?;
        loop {
            let left = limit.less(started.elapsed());
            if let Some(quarantine) = self.quarantine(left) {
                say(format_args!(
                    "waiting {:.1} s until the quorum grants locks: this is its first use, or too many of its members \
                     may have lost their data",
                    quarantine.as_secs_f64()
                ));
                tokio::time::sleep(quarantine).await;
                continue;
            }
            match self.attempt(left).await {
                Err(Error::WrongKind { found, .. }) => self.wrong_kind(&found).await?,
                // It has begun meanwhile.
                Err(Error::Refused { .. })
                    if self.quarantine(limit.less(started.elapsed())).is_some() =>
                {
                    continue;
                }
                outcome => {
                    let guard = outcome?;
                    if let (Some(_), Some((before, now))) = (&guard, resize) {
                        let name = self.lock.name();
                        say(format_args!(
                            "lock \"{name}\" has {now} permits now instead of {before}"
                        ));
                    }
                    return Ok(guard);
                }
            }
            match left {
                WaitLimit::NoWait => return Ok(None),
                WaitLimit::For(left) if left.is_zero() => return Ok(None),
                WaitLimit::For(left) => tokio::time::sleep(left.min(OTHER_KIND)).await,
                WaitLimit::Unlimited => tokio::time::sleep(OTHER_KIND).await,
            }
        }
    }

    /// How long a quorum still grants nothing, if the limit allows to wait for that long.
    fn quarantine(&self, limit: WaitLimit) -> Option<Duration> {
        self.client.quarantine().filter(|left| match limit {
            WaitLimit::Unlimited => true,
            WaitLimit::NoWait => false,
            WaitLimit::For(span) => *left < span,
        })
    }

    /// The present and the requested number of permits, if they differ. An error for a semaphore that
    /// `run` has not created.
    async fn resize(&self) -> Result<Option<(i64, i64)>, Failure> {
        let Requested::Permits(semaphore, permits) = &self.requested else { return Ok(None) };
        let permits = i64::from(*permits);
        loop {
            let found = match semaphore.permits().await {
                Err(Error::WrongKind { found, .. }) => {
                    self.wrong_kind(&found).await?;
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
            // It may have been removed and created again between the two requests.
            if semaphore.permits().await? == found {
                return Err(Failure::usage(format!(
                    "lock \"{}\" is a permanent semaphore with {found} permits, set up by another program or an \
                     earlier version: use --permits {found}, or another name",
                    semaphore.name()
                )));
            }
        }
    }

    /// Handles a name that is in use as another kind. A lock is busy while the name is held as a
    /// read/write lock, and the reverse. A permit semaphore is an error.
    async fn wrong_kind(&self, found: &str) -> Result<(), Failure> {
        // The error of the store does not name the kind.
        let inspected = self.client.inspector().inspect(&self.name).await.ok();
        if inspected.as_ref().is_some_and(|lock| lock.is_free()) {
            return Ok(());
        }
        let kind = inspected.map(|lock| lock.kind);
        let is_lock = matches!(kind, Some(Kind::Lock | Kind::Fair | Kind::Read | Kind::Write));
        if is_lock && !matches!(self.requested, Requested::Permits(..)) {
            return Ok(());
        }
        Err(self.in_use(kind, found))
    }

    fn in_use(&self, kind: Option<Kind>, found: &str) -> Failure {
        let (found, instead) = match kind {
            Some(Kind::Lock | Kind::Fair) => (A_LOCK, "omit --permits"),
            Some(Kind::Read | Kind::Write) => (AN_RW_LOCK, "omit --permits"),
            Some(Kind::Permits) => (A_SEMAPHORE, "add --permits"),
            _ => (found, "see `lockkeeper inspect`"),
        };
        let requested = match self.requested {
            Requested::Lock => A_LOCK,
            Requested::Shared | Requested::Exclusive => AN_RW_LOCK,
            Requested::Permits(..) => A_SEMAPHORE,
        };
        Failure::usage(format!(
            "lock \"{}\" is in use as {found}, not as {requested}: use another name, or {instead}",
            self.lock.name()
        ))
    }

    /// Whether a `run` around this process blocks the request. `held` are the ids of those runs.
    pub(super) async fn waits_for_itself(&self, held: &[String]) -> bool {
        let Ok(lock) = self.client.inspector().inspect(&self.name).await else { return false };
        let around = |holder: &Holder| held.contains(&holder.id);
        match &self.requested {
            // If other processes hold permits, one of these may be released.
            Requested::Permits(_, permits) => {
                let all = lock.holders.iter().filter(|holder| around(holder)).count() as u64;
                all >= lock.taken && lock.taken >= u64::from(*permits)
            }
            Requested::Shared => lock.holders.iter().any(|holder| around(holder) && !holder.shared),
            _ => lock.holders.iter().any(around),
        }
    }

    pub(super) fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// A clause that names the holders, if there are any.
    pub(super) async fn holders(&self) -> Result<Option<String>, Error> {
        if let Requested::Permits(semaphore, permits) = &self.requested {
            let held = semaphore.acquired().await?;
            return Ok((held > 0).then(|| format!("{held} of {permits} permits are held")));
        }
        let holders = self.lock.inspect().await?.holders;
        let names: Vec<_> = holders.iter().map(display::holder).collect();
        Ok((!names.is_empty()).then(|| format!("held by {}", names.join(", "))))
    }

    async fn attempt(&self, limit: WaitLimit) -> Result<Option<AnyGuard>, Error> {
        match limit {
            WaitLimit::Unlimited => self.lock.lock().await.map(Some),
            WaitLimit::NoWait => self.lock.try_lock().await,
            WaitLimit::For(span) => self.lock.try_lock_for(span).await,
        }
    }
}

fn requested(client: &Client, args: &RunArgs) -> (AnyLock, Requested) {
    let (name, kind) = (args.name.bytes(), &args.kind);
    if kind.shared {
        return (client.rw_lock(name).reader(), Requested::Shared);
    }
    if kind.exclusive {
        let lock = client.rw_lock(name);
        let writer = if kind.fenced { lock.fenced().writer() } else { lock.writer() };
        return (writer, Requested::Exclusive);
    }
    if let Some(permits) = kind.permits {
        let semaphore = client.permit_semaphore(name).temporary(permits.into());
        return (semaphore.clone().into(), Requested::Permits(semaphore, permits));
    }
    let lock = match (kind.fair, kind.fenced) {
        (true, true) => client.fair_lock(name).fenced().into(),
        (true, false) => client.fair_lock(name).into(),
        (false, true) => client.fenced_lock(name).into(),
        (false, false) => client.lock(name).into(),
    };
    (lock, Requested::Lock)
}
