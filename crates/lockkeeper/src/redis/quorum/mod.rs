//! A quorum: independent Redis servers of which a majority decides. RedLock, with what it leaves out.
//!
//! Each member is a server with a connection, a subscription connection and the killing of lost connections
//! of its own, as a store of one server has them. A request goes to all of them at once. What counts is
//! what a majority says; and any two majorities share a member.
//!
//! - **Acquire:** a majority must grant, within a third of the lease. Otherwise it is withdrawn everywhere,
//!   and nothing that was granted remains (`leftovers.rs`).
//! - **A split vote**, some members for one client and some for another, is followed by a short random
//!   pause and one attempt in an order that all clients share: the first member alone, then all others. The
//!   client that gets the first one gets the rest. Names that were split a moment ago begin with that.
//! - **A vote that is released** notifies waiters only if a client could have a majority with it (`votes.rs`).
//! - **A release** is decided only by answers that no later answer can overturn.
//! - **Renewals** repair (`renewal.rs`). **A token** is written back to a majority before it is returned.
//!   **Wake-ups** come from all members (`wakes.rs`).
//! - **A member that may have lost its data grants nothing** for one longest lease (`redis/member.rs`). Until
//!   then it still renews, repairs and releases.
//!
//! Only exclusive locks: N members with k permits each would grant more than k of them to majorities, and
//! keep N orders of a queue.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use foldhash::HashMap;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::Redis;
use super::member::{self, Trust};
use super::pubsub;
use crate::LockName;
use crate::backend::subscriptions::Subscriptions;
use crate::backend::{
    Acquire, Answer, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, Fault, Finding,
    Kind, List, LockInfo, Page, Release, Released, Renew, Renewed, Resource, Subscription, Topic,
    ensure_ttl,
};
use crate::error::{Error, Phase, Result as ClientResult};
use crate::options::ClientOptions;
use fan::Fan;
use leftovers::{Leftovers, Tail};
use votes::maybe_ran;

mod acquire;
mod check;
mod fan;
mod leftovers;
mod list;
mod renewal;
mod votes;
mod wakes;

/// The kinds that a quorum cannot grant. [`QuorumInner::fits`] says why.
const LACKS: [Kind; 6] =
    [Kind::Fair, Kind::Read, Kind::Write, Kind::Semaphore, Kind::Permits, Kind::Latch];

/// How long the last members may take at least once the others have answered.
const SLOW: Duration = Duration::from_millis(20);

/// How long closing waits for answers to releases that a majority has executed.
const DRAINED_WITHIN: Duration = Duration::from_millis(250);

/// How long connecting waits for the last members once a majority is there.
const LAST_MEMBERS: Duration = Duration::from_secs(1);

/// A quorum of servers as a store.
#[derive(Clone)]
pub struct Quorum {
    inner: Arc<QuorumInner>,
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Quorum").field(&self.inner.identity).finish()
    }
}

struct QuorumInner {
    me: Weak<QuorumInner>,
    /// In the order of their addresses, which is the same for all clients.
    members: Vec<Redis>,
    majority: usize,
    response_timeout: Duration,
    longest_lease: Duration,
    identity: Arc<str>,
    hub: Subscriptions,
    leftovers: Leftovers,
    renewing: renewal::Renewing,
    /// Until when these names are asked for in order.
    split: Mutex<HashMap<LockName, Instant>>,
    is_closed: AtomicBool,
}

impl Quorum {
    /// Connects to a majority of the members, and to the others in the background.
    ///
    /// # Errors
    /// As [`Client::connect_with`](crate::Client::connect_with).
    pub async fn connect(urls: &[&str], options: &ClientOptions) -> ClientResult<Self> {
        let failed = |fault| Error::from_fault(fault, None, Phase::Connect, None);
        if options.watchdog_timeout > options.longest_lease {
            let detail = format!(
                "the watchdog timeout of {:?} is longer than the longest lease of the quorum, {:?}",
                options.watchdog_timeout, options.longest_lease
            );
            return Err(Error::invalid(None, detail));
        }
        let members = member::members(urls, options).map_err(failed)?;
        let group = Arc::clone(&members[0].membership().group);
        let (hub, orders) = pubsub::hub();
        let (leftovers, tails) = Leftovers::new();
        let inner = Arc::new_cyclic(|me| QuorumInner {
            me: Weak::clone(me),
            majority: members.len() / 2 + 1,
            members,
            response_timeout: options.response_timeout,
            longest_lease: options.longest_lease,
            identity: Arc::from(format!("quorum:{}", group.nodes.join(","))),
            hub,
            leftovers,
            renewing: renewal::Renewing::default(),
            split: Mutex::default(),
            is_closed: AtomicBool::new(false),
        });
        inner.joined(options.connect_timeout).await.map_err(failed)?;
        group.may_mark.store(true, Ordering::Relaxed);
        inner.mark().await.map_err(failed)?;
        tokio::spawn(wakes::run(Arc::downgrade(&inner), orders));
        tokio::spawn(leftovers::run(Arc::downgrade(&inner), tails));
        Ok(Self { inner })
    }

    /// How long a majority still grants nothing; `None` if it grants, or if it is not known when it will.
    pub(crate) fn quarantine(&self) -> Option<Duration> {
        let QuorumInner { members, majority, .. } = &*self.inner;
        let left = |member: &Redis| match member.membership().trust() {
            Trust::Trusted => Some(Duration::ZERO),
            Trust::Quarantined(left) => Some(left),
            Trust::Unknown | Trust::Down(_) | Trust::Refused(_) => None,
        };
        let mut left: Vec<_> = members.iter().filter_map(left).collect();
        left.sort_unstable();
        left.get(majority - 1).copied().filter(|left| !left.is_zero())
    }
}

impl QuorumInner {
    /// Waits until a majority has joined, and a little longer for the others.
    async fn joined(&self, limit: Duration) -> Result<(), Fault> {
        let group = &self.members[0].membership().group;
        let mut until = Instant::now() + limit;
        let spare = self.members.len() - self.majority;
        loop {
            let changed = group.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (mut joined, mut pending, mut faults) = (0, Vec::new(), Vec::new());
            for (index, member) in self.members.iter().enumerate() {
                match member.membership().trust() {
                    Trust::Trusted | Trust::Quarantined(_) => joined += 1,
                    Trust::Refused(fault) => return Err(fault),
                    Trust::Unknown => pending.push(index),
                    Trust::Down(fault) => faults.push((index, fault)),
                }
            }
            if pending.is_empty() && joined >= self.majority {
                return Ok(());
            }
            if joined >= self.majority {
                until = until.min(Instant::now() + LAST_MEMBERS);
            }
            // As with one server, only a member that answers that it does not serve yet is waited for.
            let is_final = |fault: &Fault| !matches!(fault, Fault::Refused { .. });
            if faults.iter().filter(|(_, fault)| is_final(fault)).count() > spare {
                return Err(self.too_few(&faults));
            }
            if tokio::time::timeout_at(until, changed).await.is_ok() {
                continue;
            }
            if joined >= self.majority {
                return Ok(());
            }
            let late = Fault::silent(format!("not connected within {limit:?}"));
            faults.extend(pending.into_iter().map(|index| (index, late.clone())));
            return Err(self.too_few(&faults));
        }
    }

    /// Writes the markers that are missing. Where that fails, it is repeated in the background.
    async fn mark(&self) -> Result<(), Fault> {
        let marked = join_all(self.members.iter().map(Redis::mark)).await;
        let failed = |(index, marked): (usize, Result<(), Fault>)| Some((index, marked.err()?));
        let faults: Vec<_> = marked.into_iter().enumerate().filter_map(failed).collect();
        faults.iter().for_each(|(index, _)| self.members[*index].rejoin());
        for member in &self.members {
            // Another client has marked it meanwhile.
            if let Trust::Refused(fault) = member.membership().trust() {
                return Err(fault);
            }
        }
        let is_marked = |member: &&Redis| member.membership().has_marker();
        match self.members.iter().filter(is_marked).count() < self.majority {
            true => Err(self.too_few(&faults)),
            false => Ok(()),
        }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn is_up(&self, member: usize) -> bool {
        let trust = self.members[member].membership().trust();
        matches!(trust, Trust::Trusted | Trust::Quarantined(_))
    }

    /// Until when the members may answer a request about a hold with this TTL.
    fn limit(&self, ttl: u64) -> Instant {
        // Before the engine stops waiting, which cannot say what each member said.
        Instant::now() + (self.response_timeout / 8 * 7).min(Duration::from_millis(ttl) / 3)
    }

    /// A member has not executed a release, whose identity is not used again. One that has been down for a
    /// longest lease has nothing of it, or only what was on its way: that expires.
    fn left_over(&self, release: &Release, member: usize) {
        let down_for = self.members[member].membership().down_for();
        let may_have_it = down_for.is_none_or(|down_for| down_for < self.longest_lease);
        if release.keep == 0 && !release.leave && release.ttl.is_none() && may_have_it {
            // Then it has expired, whatever its lease.
            self.leftovers.note(release, member, Instant::now() + self.longest_lease);
        }
    }

    /// Rejects what a quorum cannot do.
    fn fits(&self, kind: Kind, ttl: Option<u64>) -> Result<(), Fault> {
        let reason = match kind {
            Kind::Lock | Kind::Mutex => None,
            Kind::Semaphore | Kind::Permits => {
                Some("majorities of members would grant more permits than there are")
            }
            Kind::Fair => Some("each member would keep an order of its own"),
            Kind::Read | Kind::Write => Some("readers and writers could hold different members"),
            Kind::Latch => Some("the members would count apart"),
        };
        if let Some(reason) = reason {
            let detail = format!(
                "a quorum has no {kind}: {reason}; use a lock, spin lock, fenced lock or mutex, or \
                 one server"
            );
            return Err(Fault::invalid(detail));
        }
        ttl.map_or(Ok(()), |ttl| ensure_ttl(ttl, self.longest_lease))
    }

    async fn release(self: Arc<Self>, request: Release) -> Result<Released, Fault> {
        self.fits(request.resource.kind, request.ttl)?;
        let ends = request.keep == 0 || request.leave;
        let _ending = ends.then(|| self.renewing.ending(request.owner));
        let send = |member: usize| (member, self.members[member].release(request.clone()));
        let mut fan = Fan::new((0..self.members.len()).map(send));
        let (mut freed, mut kept, mut absent) = (0, 0, 0);
        let (mut listeners, mut holder, mut faults) = (None, None, Vec::new());
        let until = Instant::now() + self.response_timeout / 8 * 7;
        // Only what no later answer can change: a member that has missed a force-release still frees the hold.
        let settled = loop {
            if freed >= self.majority {
                break Some(Released::Freed { listeners });
            }
            if kept >= self.majority {
                break Some(Released::Kept);
            }
            if self.members.len() - absent < self.majority {
                break Some(Released::Absent { holder });
            }
            // An undo is done once a majority has nothing of it any more.
            if request.undo && freed + absent >= self.majority {
                break Some(Released::Freed { listeners });
            }
            let Some((member, answer)) = fan.next_by(until).await else {
                faults.extend(fan.late());
                // Whether a majority has the holds that remain is a question for the next renewal.
                let is_kept = kept + absent >= self.majority && !request.leave;
                break is_kept.then_some(Released::Kept);
            };
            match answer {
                Ok(Released::Freed { listeners: notified }) => {
                    freed += 1;
                    listeners = listeners.max(notified);
                }
                Ok(Released::Kept) => kept += 1,
                Ok(Released::Absent { holder: other }) => {
                    absent += 1;
                    holder = holder.or(other);
                }
                Err(fault) => {
                    self.left_over(&request, member);
                    faults.push((member, fault));
                }
            }
        };
        self.leftovers.follow(Tail { release: request, answers: fan });
        settled.ok_or_else(|| maybe_ran(self.too_few(&faults)))
    }

    /// Makes a change on all members. What most of them say counts, and a change that was made anywhere
    /// was made.
    async fn adjust(&self, change: Change) -> Result<Changed, Fault> {
        if let Change::ForceUnlock { resource, .. }
        | Change::Count { resource, .. }
        | Change::Permits { resource, .. } = &change
        {
            self.fits(resource.kind, None)?;
        }
        let answers = self.ask_all(|member| member.adjust(change.clone())).await;
        self.enough(&answers).map_err(maybe_ran)?;
        let said: Vec<_> = answers.into_iter().flatten().collect();
        let first = [Changed::Done, Changed::Other, Changed::Nothing];
        Ok(first.into_iter().find(|one| said.contains(one)).unwrap_or(Changed::Nothing))
    }
}

impl Backend for Quorum {
    fn capabilities(&self, name: &LockName) -> Capabilities {
        let revokes = |member: &Redis| member.capabilities(name).revokes_lost_requests;
        let revokes = self.inner.members.iter().all(revokes);
        Capabilities {
            keeps_identities: false,
            permission_advice: "allow the user, on each member, what the manual lists \
                                (manual::redis, manual::quorum)",
            lacks: &LACKS,
            longest_lease: self.inner.longest_lease,
            ..Capabilities::new(revokes, Arc::clone(&self.inner.identity))
        }
    }

    fn acquire(&self, request: Acquire) -> Answer<Attempt> {
        Box::pin(Arc::clone(&self.inner).acquire(request))
    }

    fn release(&self, request: Release) -> Answer<Released> {
        Box::pin(Arc::clone(&self.inner).release(request))
    }

    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        Box::pin(renewal::renew(Arc::clone(&self.inner), batch))
    }

    fn adjust(&self, change: Change) -> Answer<Changed> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.adjust(change).await })
    }

    fn inspect(&self, resource: Resource) -> Answer<LockInfo> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.inspect(resource).await })
    }

    fn subscribe(&self, topic: Topic) -> Answer<Subscription> {
        if self.inner.is_closed() {
            return Box::pin(std::future::ready(Err(Fault::Closed)));
        }
        self.inner.hub.subscribe(topic)
    }

    fn list(&self, request: List) -> Answer<Page> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.list(request).await })
    }

    fn check(&self) -> Answer<Vec<Finding>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.check().await })
    }

    fn close(&self) -> BoxFuture<()> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            inner.is_closed.store(true, Ordering::Relaxed);
            // What a majority has executed is under way to the others. One that does not answer has got it.
            let limit = inner.response_timeout.min(DRAINED_WITHIN);
            let _ = tokio::time::timeout(limit, inner.leftovers.drained()).await;
            join_all(inner.members.iter().map(Redis::close)).await;
        })
    }
}
