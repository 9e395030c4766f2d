//! Checks a store for risks to locks.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::backend::{Fault, Finding, Kind, Released, Resource, Severity, Topic};
use crate::backend::{Release, Renew, Subscription};
use crate::engine::Core;
use crate::error::{Error, Phase, Result};
use crate::{AnyLock, Client, LockName, OwnerId};

/// The result of [`Client::check`].
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// All findings, the worst first.
    pub findings: Vec<Finding>,
    /// The median round-trip time of several requests.
    pub round_trip: Duration,
    /// The slowest round trip.
    pub slowest: Duration,
}

impl Report {
    /// Whether nothing endangers locks.
    pub fn is_safe(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity < Severity::Danger)
    }
}

/// How many requests are timed.
const TIMED: usize = 21;

/// The lease of the locks of the check, in case it cannot release them. Shorter on a quorum without
/// leases as long.
const STAYS: Duration = Duration::from_secs(10);

fn lease(core: &Core) -> Duration {
    STAYS.min(core.options.longest_lease)
}

/// The kinds that are tried.
const KINDS: [Kind; 7] =
    [Kind::Lock, Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permits, Kind::Semaphore];

impl Client {
    /// Looks for risks to locks on this store: settings of the server, missing permissions, clocks,
    /// latency. Acquires and releases a few locks of its own, and changes nothing else; everything
    /// that it leaves in the store expires within a minute.
    ///
    /// # Errors
    /// If the store does not serve requests at all.
    pub async fn check(&self) -> Result<Report> {
        self.core().anywhere(check(self, self.core())).await
    }
}

async fn check(client: &Client, core: &Arc<Core>) -> Result<Report> {
    let prefix = &core.options.name_prefix;
    let name = format!("lockkeeper:check:{}", Uuid::new_v4().as_hyphenated());
    let full = LockName::new(prefix, name.as_bytes());
    let probe = Resource { kind: Kind::Lock, name: full };
    core.ensure_open(&probe)?;

    let mut times = Vec::with_capacity(TIMED);
    for _ in 0..TIMED {
        let begun = Instant::now();
        let answer = core.backend.inspect(probe.clone()).await;
        match answer {
            Err(fault) if fault.may_pass() || fault == Fault::Closed => {
                return Err(core.error(fault, &probe, Phase::Inspect));
            }
            // An error reply takes as long as an answer; its meaning is checked below.
            _ => {}
        }
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let (round_trip, mut slowest) = (times[TIMED / 2], times[TIMED - 1]);

    let findings = core.backend.check().await;
    let mut findings = findings.map_err(|fault| core.error(fault, &probe, Phase::Inspect))?;
    // If the server cannot grant locks, trying would only take time.
    let is_role = |f: &Finding| f.subject == "role" && f.severity == Severity::Danger;
    let mut hopeless = findings.iter().any(is_role);
    if !hopeless {
        let tried = locks(client, core, &name, &probe).await;
        findings.extend(tried.findings);
        (slowest, hopeless) = (slowest.max(tried.write), tried.unserved);
    }
    if !hopeless {
        findings.extend(wake_ups(core, &probe).await?);
    }
    findings.push(latency(slowest, core.options.watchdog_timeout));
    // One finding is enough for a store that does not serve.
    if !hopeless {
        findings.push(notices(core, &probe).await);
    }
    findings.push(lost_requests(core, &probe));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(Report { findings, round_trip, slowest })
}

fn latency(slowest: Duration, lease: Duration) -> Finding {
    let detail =
        format!("the slowest of {} requests took {slowest:.1?}; a lease is {lease:?}", TIMED + 2);
    let remedy = "find out what keeps the store or the network busy, or use a longer lease";
    match slowest {
        span if span > lease / 3 => Finding::danger("latency", detail, remedy),
        span if span > lease / 30 => Finding::note("latency", detail, remedy),
        _ => Finding::fine("latency", detail),
    }
}

/// The outcome of acquiring locks.
struct Tried {
    findings: Vec<Finding>,
    /// How long a write took: writes may delay each other where reads do not.
    write: Duration,
    /// The store did not serve at all.
    unserved: bool,
}

/// Returns the advice for an error of the store: for a missing permission it is the store's own,
/// otherwise the error says what is wrong.
fn advice(core: &Core, probe: &Resource, error: &Error) -> &'static str {
    match error {
        Error::Denied { .. } => core.backend.capabilities(&probe.name).permission_advice,
        _ => "correct the cause of the error: until then the store does not serve",
    }
}

/// Acquires and releases one lock of each kind that the store has.
async fn locks(client: &Client, core: &Core, name: &str, probe: &Resource) -> Tried {
    let (mut findings, mut write, mut unserved) = (Vec::new(), Duration::ZERO, false);
    let mut works = Vec::new();
    let lacks = core.backend.capabilities(&probe.name).lacks;
    for kind in KINDS.into_iter().filter(|kind| !lacks.contains(kind)) {
        let begun = Instant::now();
        let outcome = of_a_kind(client, kind, &format!("{name}:{}", kind.as_str())).await;
        if kind == Kind::Lock {
            write = begun.elapsed() / 2;
        }
        let said = match &outcome {
            Ok(true) => {
                works.push(kind.to_string());
                continue;
            }
            Ok(false) => "a lock with a random name was busy".to_owned(),
            Err(error) => error.to_string(),
        };
        let detail = format!("a {kind} could not be acquired and released: {said}");
        findings.push(match &outcome {
            Err(error @ Error::Denied { .. }) => {
                Finding::danger("permissions", detail, advice(core, probe, error))
            }
            Err(error) => Finding::danger("locks", detail, advice(core, probe, error)),
            Ok(_) => Finding::danger("locks", detail, "find out what removes or replaces keys"),
        });
        unserved = matches!(&outcome, Err(error) if error.may_pass() || matches!(error, Error::Unconfirmed { .. }));
        if unserved {
            // The other kinds would only time out one after the other.
            break;
        }
    }
    if !works.is_empty() {
        let mut detail = format!("acquired and released: {}", works.join(", "));
        if !lacks.is_empty() {
            let lacks: Vec<_> = lacks.iter().map(Kind::to_string).collect();
            detail = format!("{detail}; the store does not have: {}", lacks.join(", "));
        }
        findings.push(Finding::fine("locks", detail));
    }
    Tried { findings, write, unserved }
}

async fn of_a_kind(client: &Client, kind: Kind, name: &str) -> Result<bool> {
    let lease = lease(client.core());
    let once = async |lock: AnyLock| once(lock, lease).await;
    match kind {
        Kind::Mutex => once(client.mutex(name).into()).await,
        Kind::Fair => once(client.fair_lock(name).into()).await,
        Kind::Read => once(client.rw_lock(name).reader()).await,
        Kind::Write => once(client.rw_lock(name).writer()).await,
        Kind::Permits => permits(client, name).await,
        Kind::Semaphore => semaphore(client, name).await,
        _ => once(client.lock(name).into()).await,
    }
}

async fn once(lock: AnyLock, lease: Duration) -> Result<bool> {
    match lock.lease(lease).try_lock().await? {
        Some(guard) => guard.release().await.map(|()| true),
        None => Ok(false),
    }
}

async fn permits(client: &Client, name: &str) -> Result<bool> {
    let semaphore = client.permit_semaphore(name);
    Ok(semaphore.try_set_permits(1, STAYS).await? && once(semaphore.into(), STAYS).await?)
}

async fn semaphore(client: &Client, name: &str) -> Result<bool> {
    let semaphore = client.semaphore(name);
    if !semaphore.try_set_permits(1, STAYS).await? {
        return Ok(false);
    }
    match semaphore.try_acquire(1).await? {
        Some(permit) => permit.release().await.map(|()| true),
        None => Ok(false),
    }
}

/// Checks whether a release can notify waiters.
async fn wake_ups(core: &Arc<Core>, probe: &Resource) -> Result<Option<Finding>> {
    let permission = core.backend.capabilities(&probe.name).permission_advice;
    let polling = |why: String, remedy: &str| {
        let detail = format!("{why}: waiters poll");
        Finding::note("wake-ups", detail, remedy)
    };
    let topic = Topic::Freed(probe.name.clone());
    let listening = match listen(core, topic).await {
        Ok(listening) => listening,
        Err(fault) => {
            let error = core.error(fault, probe, Phase::Wait);
            let why = format!("cannot subscribe to releases ({error})");
            return Ok(Some(polling(why, advice(core, probe, &error))));
        }
    };
    let owner = OwnerId::fresh(core.id);
    let ttl = lease(core).as_millis() as u64;
    let take = crate::backend::Acquire::new(probe.clone(), owner, ttl);
    let failed = |fault| core.error(fault, probe, Phase::Acquire);
    match core.run_to_completion(core.backend.acquire(take)).await {
        Ok(_) => {}
        Err(fault) if fault.may_pass() || fault == Fault::Closed => return Err(failed(fault)),
        // An earlier finding says that locks cannot be acquired.
        Err(_) => return Ok(None),
    }
    let renew = vec![Renew::new(probe.clone(), owner, Some(ttl))];
    let renewed = core.run_to_completion(core.backend.renew(renew)).await;
    let (seen, begun) = (listening.seen(), Instant::now());
    let freed =
        core.run_to_completion(core.backend.release(Release::new(probe.clone(), owner))).await;
    if let Some(Err(fault)) = renewed.into_iter().next() {
        let error = failed(fault);
        let detail = format!("a lock cannot be renewed: {error}");
        return Ok(Some(Finding::danger("renewal", detail, advice(core, probe, &error))));
    }
    match freed.map_err(failed)? {
        Released::Freed { listeners: None } => {
            return Ok(Some(polling(
                "cannot publish that a lock was released".to_owned(),
                permission,
            )));
        }
        Released::Freed { .. } => {}
        _ => {
            let detail =
                "a lock that was just acquired could not be released: it was gone".to_owned();
            return Ok(Some(Finding::danger("locks", detail, "find out what removes keys")));
        }
    }
    let limit = core.options.response_timeout;
    Ok(Some(match tokio::time::timeout(limit, listening.beyond(seen)).await {
        Ok(_) => Finding::fine(
            "wake-ups",
            format!("a waiter was notified of a release after {:.1?}", begun.elapsed()),
        ),
        Err(_) => polling(
            "the notification that a lock was released did not arrive".to_owned(),
            "find out what delays messages between the store and its clients",
        ),
    }))
}

/// Subscribes within the response timeout; otherwise returns a fault.
async fn listen(core: &Arc<Core>, topic: Topic) -> Result<Subscription, Fault> {
    let limit = core.options.response_timeout;
    let listening = core.run_to_completion(core.backend.subscribe(topic));
    tokio::time::timeout(limit, listening).await.unwrap_or_else(|_| {
        let detail = format!("no answer within {limit:?}").into();
        Err(Fault::Unreachable { maybe_ran: true, detail })
    })
}

async fn notices(core: &Arc<Core>, probe: &Resource) -> Finding {
    match listen(core, Topic::Notice(core.id)).await {
        Ok(_) => Finding::fine("notices", "holders are notified of a force-release at once"),
        Err(fault) => {
            let error = Error::from_fault(fault, None, Phase::Wait, None);
            let detail =
                format!("a holder finds out about a force-release at its next renewal ({error})");
            Finding::note("notices", detail, advice(core, probe, &error))
        }
    }
}

fn lost_requests(core: &Arc<Core>, probe: &Resource) -> Finding {
    if core.backend.capabilities(&probe.name).revokes_lost_requests {
        let detail = "a request without an answer cannot execute later";
        return Finding::fine("lost requests", detail);
    }
    let detail = "a request without an answer may still execute: its lock is released again and again until \
                  its lease would have expired";
    let remedy = "allow the user CLIENT INFO and CLIENT KILL (Redis 6.2 or later), and on a Unix \
                  socket INFO";
    Finding::note("lost requests", detail, remedy)
}
