//! The meaning of every request, written once: no I/O, no clock of its own.
//!
//! The memory store is this model behind a mutex. The Redis scripts must agree with it, and a
//! property test that sends the same requests to both checks it. The file store runs it on the records
//! of a request, inside a transaction. Times are milliseconds by the store's own clock: an entry
//! is alive while `now <= expires`, as with Redis.

use std::borrow::Cow;
use std::collections::hash_map::{Entry as MapEntry, OccupiedEntry};
use std::time::Duration;

use foldhash::HashMap;
use uuid::Uuid;

use crate::backend::{
    Acquire, Attempt, Change, Changed, ClientEntry, ClientInfo, Fault, Holder, Kind, LockInfo,
    Release, Released, Renew, Renewed, Resource, Topic, Ttl,
};
use crate::{LockName, OwnerId};

mod counter;
mod fair;
mod list;
mod lock;
mod permits;
#[cfg(feature = "file")]
mod record;
mod rw;
mod rw_waiting;

#[cfg(all(test, feature = "file"))]
pub(crate) use counter::REMEMBERED;
pub(crate) use counter::check_change;
#[cfg(feature = "file")]
pub(crate) use list::Process;
pub(crate) use list::{millis, now_ms, time};
#[cfg(feature = "redis")]
pub(crate) use permits::{ENDLESS, check_acquire, check_count, distinct};
#[cfg(feature = "file")]
pub(crate) use record::{Record, ends_front, lately, least_alive};

type Result<T, E = Fault> = std::result::Result<T, E>;

/// The whole state of a store.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The locks and counters themselves.
    names: HashMap<LockName, Entry>,
    /// The waiters of fair locks.
    queues: HashMap<LockName, fair::Queue>,
    /// The grace periods for waiters of fair locks.
    graces: HashMap<LockName, fair::Grace>,
    /// The waiting writers of read/write locks.
    writers: HashMap<LockName, rw_waiting::Writers>,
    /// How long readers have waited for read/write locks.
    readers: HashMap<LockName, rw_waiting::WaitingReaders>,
    /// The acquired permits.
    permits: HashMap<LockName, permits::Taken>,
    /// The answers to requests that must not run twice, each with its time.
    replies: HashMap<(LockName, OwnerId), (counter::Reply, u64)>,
    tokens: HashMap<LockName, Token>,
    /// The recorded force-releases.
    forced: HashMap<LockName, list::ForcedLog>,
    /// The announced clients.
    clients: HashMap<Uuid, Announced>,
    /// The size at which expired entries are swept. Most are removed earlier, when a request finds
    /// them.
    sweep_at: usize,
    /// The difference of the wall clock to the store's time, in milliseconds. Fencing tokens use
    /// it.
    epoch: u64,
    /// The wake-ups that the current request causes.
    wakes: Vec<Wake>,
}

/// The value of a name and its expiry.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
struct Entry {
    value: Value,
    expires: u64,
}

/// An announcement of a client, its time and its expiry.
#[derive(Clone, Debug)]
struct Announced {
    client: ClientEntry,
    at: u64,
    until: u64,
}

impl Announced {
    /// Returns the announcement with its age.
    fn seen(&self, now: u64) -> ClientEntry {
        let mut client = self.client.clone();
        if let Some(seen) = &mut client.seen {
            seen.ago += Duration::from_millis(now.saturating_sub(self.at));
        }
        client
    }
}

/// The expiry of an entry that never expires.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "file", serde(rename_all = "lowercase"))]
enum Value {
    /// A lock or a fair lock: both are the same hash.
    Lock { owner: OwnerId, count: u32 },
    /// A mutex.
    Mutex { owner: OwnerId },
    /// A read/write lock.
    Rw(Box<rw::Holds>),
    /// The permits of a semaphore or the count of a latch: all are plain numbers.
    Number(i64),
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
struct Token {
    last: u64,
    expires: u64,
}

/// The subscribers to wake up, and the message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Wake {
    /// The topic.
    pub topic: Topic,
    /// The message.
    pub payload: Cow<'static, [u8]>,
}

/// An answer, and the wake-ups that it causes.
pub(crate) type Decision<T> = (Result<T>, Vec<Wake>);

impl Entry {
    fn ttl(&self, now: u64) -> Ttl {
        match self.expires {
            NEVER => Ttl::Forever,
            expires => Ttl::millis(expires - now),
        }
    }

    fn lengthen(&mut self, ttl: u64, now: u64) {
        self.expires = self.expires.max(now + ttl);
    }

    fn wrong_kind(&self) -> Fault {
        self.value.wrong_kind()
    }
}

impl Value {
    fn wrong_kind(&self) -> Fault {
        let found = match self {
            Value::Lock { .. } => "a lock",
            Value::Mutex { .. } => "a mutex",
            Value::Rw(_) => "a read/write lock",
            Value::Number(_) => "a counter: a semaphore or a latch",
        };
        Fault::WrongKind { found: found.to_owned() }
    }
}

/// The minimum size for a sweep: a small store is never swept.
const SWEEP_MIN: usize = 1024;

impl State {
    /// Returns the entry of `name`. Removes it instead if it has expired.
    fn living(&mut self, name: &LockName, now: u64) -> Option<&mut Entry> {
        self.entry(name, now).map(OccupiedEntry::into_mut)
    }

    /// Like `living`, but returns the slot in the table, so that the entry can be removed.
    fn entry(&mut self, name: &LockName, now: u64) -> Option<OccupiedEntry<'_, LockName, Entry>> {
        match self.names.entry(name.clone()) {
            MapEntry::Occupied(entry) if entry.get().expires >= now => Some(entry),
            MapEntry::Occupied(entry) => {
                entry.remove();
                None
            }
            MapEntry::Vacant(_) => None,
        }
    }

    /// Removes expired entries. Amortised: the table at least doubles between two sweeps.
    fn sweep(&mut self, now: u64) {
        if self.size() >= self.sweep_at.max(SWEEP_MIN) {
            self.names.retain(|_, entry| entry.expires >= now);
            self.tokens.retain(|_, token| token.expires >= now);
            self.graces.retain(|_, grace| grace.expires >= now);
            self.queues.retain(|_, queue| queue.ends >= now);
            self.writers.retain(|_, writers| writers.expires >= now);
            self.readers.retain(|_, readers| readers.is_alive(now));
            self.replies.retain(|_, (_, at)| *at + counter::REMEMBERED >= now);
            self.permits.retain(|_, taken| taken.is_alive(now));
            self.sweep_at = self.size() * 2;
        }
    }

    /// Returns the number of entries that may have expired.
    fn size(&self) -> usize {
        let beside =
            self.replies.len() + self.readers.len() + self.graces.len() + self.tokens.len();
        self.len() + beside
    }

    /// Returns an answer with the wake-ups that it causes. A fault wakes up no waiter.
    fn answer<T>(&mut self, outcome: Result<T>) -> Decision<T> {
        let wakes = std::mem::take(&mut self.wakes);
        if outcome.is_ok() { (outcome, wakes) } else { (outcome, Vec::new()) }
    }

    /// Acquires a lock or permits, re-enters a lock, or hands it off.
    pub fn acquire(&mut self, request: &Acquire, now: u64) -> Decision<Attempt> {
        self.sweep(now);
        let attempt = match request.resource.kind {
            Kind::Lock | Kind::Mutex => self.acquire_plain(request, now),
            Kind::Fair => self.acquire_fair(request, now),
            Kind::Read | Kind::Write => self.acquire_rw(request, now),
            Kind::Semaphore => self.acquire_counter(request, now),
            Kind::Permits => self.acquire_permits(request, now),
            Kind::Latch => Err(unfit(request.resource.kind)),
        };
        self.answer(attempt)
    }

    /// Releases holds.
    pub fn release(&mut self, request: &Release, now: u64) -> Decision<Released> {
        let released = match request.resource.kind {
            Kind::Lock | Kind::Mutex => self.release_plain(request, now),
            Kind::Fair => self.release_fair(request, now),
            Kind::Read | Kind::Write => self.release_rw(request, now),
            Kind::Semaphore => self.release_counter(request, now),
            Kind::Permits => self.release_permits(request, now),
            Kind::Latch => Err(unfit(request.resource.kind)),
        };
        self.answer(released)
    }

    /// Renews or checks holds and queue positions.
    pub fn renew(&mut self, batch: &[Renew], now: u64) -> (Vec<Result<Renewed>>, Vec<Wake>) {
        self.record_heartbeats(batch, now);
        let mut all = Vec::new();
        let renew = |renew| {
            let renewed = self.renew_one(renew, now);
            let (answer, wakes) = self.answer(renewed);
            all.extend(wakes);
            answer
        };
        (batch.iter().map(renew).collect(), all)
    }

    fn renew_one(&mut self, request: &Renew, now: u64) -> Result<Renewed> {
        match request.resource.kind {
            Kind::Fair if request.waiting => Ok(self.keep_position(request, now)),
            Kind::Lock | Kind::Fair | Kind::Mutex => self.renew_plain(request, now),
            Kind::Read | Kind::Write => self.renew_rw(request, now),
            Kind::Permits => self.renew_permits(request, now),
            Kind::Semaphore | Kind::Latch => Err(unfit(request.resource.kind)),
        }
    }

    /// Makes an administrative change.
    pub fn adjust(&mut self, change: &Change, now: u64) -> Decision<Changed> {
        let changed = self.changed(change, now);
        self.answer(changed)
    }

    fn changed(&mut self, change: &Change, now: u64) -> Result<Changed> {
        match change {
            Change::ForceUnlock { resource, reason, by, from } => {
                let victims = self.inspect(resource, now).map(|lock| lock.holders);
                let victims = victims.unwrap_or_default();
                let is_other = |from: &Vec<_>| victims.iter().any(|v| !from.contains(&v.stored));
                if from.as_ref().is_some_and(is_other) {
                    return Ok(Changed::Other);
                }
                let owners = self.force(resource, now)?;
                if owners.is_empty() {
                    return Ok(Changed::Nothing);
                }
                owners.iter().for_each(|victim| self.wake_victim(victim, reason));
                self.log_forced(&resource.name, (by, reason, victims), now);
                Ok(Changed::Done)
            }
            Change::Count { resource, id, change } => {
                check_change(resource.kind, *change)?;
                self.change_once((&resource.name, *id), now, |state| match resource.kind {
                    Kind::Permits => state.resize(&resource.name, *change, now),
                    Kind::Latch => state.change_latch(&resource.name, *change, now),
                    _ => state.change_semaphore(&resource.name, *change, now),
                })
            }
            Change::Permits { resource, id, ids, change } => {
                self.change_by_id(resource, *id, ids, *change, now)
            }
            Change::Announce { client, ttl } => {
                self.clients.retain(|_, announced| announced.until >= now);
                let (client, until) = (client.clone(), now.saturating_add(*ttl));
                self.clients.insert(client.id, Announced { client, at: now, until });
                Ok(Changed::Done)
            }
            Change::Withdraw { client } => {
                self.clients.remove(client);
                Ok(Changed::Done)
            }
        }
    }

    /// Frees a lock and returns its holders; none if it is free.
    fn force(&mut self, resource: &Resource, now: u64) -> Result<Vec<OwnerId>> {
        match resource.kind {
            Kind::Lock | Kind::Mutex => self.force_plain(resource, now),
            Kind::Fair => self.force_fair(resource, now),
            Kind::Read | Kind::Write => self.force_rw(resource, now),
            Kind::Semaphore | Kind::Permits | Kind::Latch => Err(unfit(resource.kind)),
        }
    }

    /// Returns the state of a lock or a counter.
    pub fn inspect(&mut self, resource: &Resource, now: u64) -> Result<LockInfo> {
        match resource.kind {
            Kind::Lock | Kind::Mutex => self.inspect_plain(resource, now),
            Kind::Fair => self.inspect_fair(resource, now),
            Kind::Read | Kind::Write => self.inspect_rw(resource, now),
            Kind::Semaphore | Kind::Latch => self.inspect_counter(resource, now),
            Kind::Permits => self.inspect_permits(resource, now),
        }
    }

    fn wake(&mut self, topic: Topic, payload: impl Into<Cow<'static, [u8]>>) {
        self.wakes.push(Wake { topic, payload: payload.into() });
    }

    /// Notifies one waiter for a lock or mutex that it is free.
    fn wake_freed(&mut self, name: &LockName) {
        self.wake(Topic::Freed(name.clone()), b"0");
    }

    /// Notifies the client of `victim` that its hold was force-released.
    fn wake_victim(&mut self, victim: &OwnerId, reason: &str) {
        let payload = notice(&victim.to_string(), reason).into_bytes();
        self.wake(Topic::Notice(victim.client), payload);
    }

    /// Grants a request, with the next fencing token of the name if it asks for one. The token grows even
    /// if the stored one was lost. A repeated request gets a new one, too: a store that lost data may know
    /// the hold of an earlier request, whose token is older than those issued since.
    fn grant(&mut self, request: &Acquire, now: u64) -> Attempt {
        let (name, Some(fenced)) = (&request.resource.name, request.fenced) else {
            return Attempt::GRANTED;
        };
        let last = self.last_token(name, now);
        let token = ((now + self.epoch) * 1000).max(last.map_or(0, |last| last + 1));
        let expires = fenced.ttl.map_or(NEVER, |ttl| now + ttl);
        self.tokens.insert(name.clone(), Token { last: token, expires });
        Attempt::Granted { token: Some(token) }
    }

    fn last_token(&self, name: &LockName, now: u64) -> Option<u64> {
        self.tokens.get(name).filter(|token| token.expires >= now).map(|token| token.last)
    }

    /// Describes a holder for people.
    fn holder(&self, owner: OwnerId, count: u32, shared: bool, now: u64) -> Holder {
        let mut holder = Holder::new(owner.to_string(), u64::from(count), shared);
        let announced = self.clients.get(&owner.client);
        if let Some(announced) = announced.filter(|announced| announced.until >= now) {
            let client = announced.seen(now);
            holder.describe(&client, client.holds.iter().find(|hold| hold.owner == owner));
        }
        holder
    }

    /// Returns the number of stored entries, queues included. Expired ones count until they are
    /// removed.
    pub fn len(&self) -> usize {
        self.names.len() + self.queues.len() + self.writers.len() + self.permits.len()
    }

    /// Whether the state is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn unfit(kind: Kind) -> Fault {
    Fault::invalid(format!("a {kind} has no such request"))
}

/// The message that notifies a client of a force-release. It contains the owner id, which is
/// unique, and not the name of the lock, which may contain line breaks.
fn notice(victim: &str, reason: &str) -> String {
    format!("revoked {victim} {}", one_line(reason))
}

/// Replaces control characters, so that a reason fits on one line.
pub(crate) fn one_line(reason: &str) -> String {
    reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Parses the message of [`notice`].
pub(crate) fn read_notice(line: &[u8]) -> Option<(OwnerId, String)> {
    // Lossy: a reason with invalid bytes must not hide the force-release.
    let text = String::from_utf8_lossy(line);
    let (victim, reason) = text.strip_prefix("revoked ")?.split_once(' ')?;
    Some((victim.parse().ok()?, reason.to_owned()))
}
