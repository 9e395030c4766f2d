//! The interface between the engine and the stores.
//!
//! Everything above speaks [`Backend`]; everything below is one store. No driver type crosses it.
//! It is public so that a test can put a decorator between the two, and **exempt from semver**
//! until 1.0.
//!
//! A future returned by a backend is owned and must be polled to its end once it was polled at all:
//! dropping it half-way says nothing about whether the request took effect. The engine keeps this
//! promise by handing the futures that a caller dropped to its reaper.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::name::write_escaped;
use crate::{LockName, OwnerId, PermitId};

mod capabilities;
mod fault;
mod finding;
mod latch_openings;
mod listing;
mod lock_info;
pub(crate) mod subscriptions;

pub use capabilities::Capabilities;
pub(crate) use capabilities::ensure_ttl;
pub(crate) use fault::Source;
pub use fault::{Detail, Fault};
pub use finding::{Finding, Severity};
pub(crate) use listing::HOLDERS_MAX;
pub use listing::{ClientEntry, ForcedUnlock, Holding, List, Page, Pattern, Seen, Select};
pub use lock_info::{Holder, LockInfo, MemberInfo, Ttl};
pub use subscriptions::{Edge, Subscription, Subscriptions, Topic};

/// An owned, boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The answer of a store. Nothing is sent before it is polled.
///
/// Boxed, because it must survive its caller: the engine moves a dropped one to its reaper.
pub type Answer<T> = BoxFuture<Result<T, Fault>>;

/// A store of locks.
///
/// The module `model` defines the result of every request; a store must agree with it. The engine repeats
/// requests whose outcome is unknown. A repetition must have no further effect: hold counts are
/// absolute, and changes of counters have an id by which the store remembers the answer. A fault
/// must say whether the request may have executed: see [`Fault::maybe_ran`].
pub trait Backend: Any + fmt::Debug + Send + Sync {
    /// Returns the current capabilities of this store for locks of this name.
    ///
    /// Must be cheap: the engine asks for each lock of a batch.
    fn capabilities(&self, name: &LockName) -> Capabilities;

    /// Acquires a lock or permits, or re-enters a lock.
    ///
    /// With [`Acquire::from`] set, the lock is received by handoff from another hold of the same
    /// client. If the lock is busy and [`Acquire::waits`] is set, a fair lock adds the caller to its
    /// queue and a write lock registers a waiting writer.
    fn acquire(&self, request: Acquire) -> Answer<Attempt>;

    /// Releases holds, or only sets the remaining TTL of the lock.
    ///
    /// Releasing the last hold of an owner also removes its queue position.
    fn release(&self, request: Release) -> Answer<Released>;

    /// Renews or checks many holds or queue positions in one request.
    ///
    /// The result has one answer for each entry, in the same order.
    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>>;

    /// Makes administrative changes: force-releases, permit counts, client announcements.
    fn adjust(&self, change: Change) -> Answer<Changed>;

    /// Returns the holders, hold counts and TTL of a lock, or the free permits of a semaphore.
    fn inspect(&self, resource: Resource) -> Answer<LockInfo>;

    /// Subscribes to wake-ups.
    ///
    /// The future resolves when the store is listening: no later message is missed.
    fn subscribe(&self, topic: Topic) -> Answer<Subscription>;

    /// Returns one page of the stored locks, or of the announced clients.
    ///
    /// A page must not block the store for long.
    fn list(&self, request: List) -> Answer<Page>;

    /// Checks the store for settings that endanger locks. Changes nothing.
    fn check(&self) -> Answer<Vec<Finding>>;

    /// Closes connections and ends background tasks. Later requests fail.
    fn close(&self) -> BoxFuture<()>;
}

/// A part of a store that can become unreachable alone, such as a shard of a cluster.
///
/// A store without such parts has one lane, number 0. No request of one lane waits for another.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Lane(pub u32);

impl Lane {
    /// Returns the message of [`Topic::Reconnected`] for this lane.
    pub fn message(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }

    /// Reads such a message; `None` means all lanes.
    pub(crate) fn of_message(message: &[u8]) -> Option<Self> {
        message.try_into().ok().map(|bytes| Self(u32::from_be_bytes(bytes)))
    }
}

/// The kinds of primitives.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Kind {
    /// The reentrant lock: a hash of owner → hold count, Redisson's `RLock`.
    Lock,
    /// The plain string lock of the Redlock family.
    Mutex,
    /// The same hash as [`Lock`](Kind::Lock), granted in the order of a queue.
    Fair,
    /// The shared side of a read/write lock.
    Read,
    /// The exclusive side of a read/write lock.
    Write,
    /// A counter of permits without owners.
    Semaphore,
    /// Permits with ids, each with its own lease.
    Permits,
    /// A counter that opens at zero.
    Latch,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 8] = [
        Kind::Lock,
        Kind::Mutex,
        Kind::Fair,
        Kind::Read,
        Kind::Write,
        Kind::Semaphore,
        Kind::Permits,
        Kind::Latch,
    ];

    /// Whether it is reentrant.
    pub(crate) fn is_reentrant(self) -> bool {
        matches!(self, Kind::Lock | Kind::Fair | Kind::Read | Kind::Write)
    }

    /// Returns the kind as one word for machines; [`Display`](fmt::Display) is for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Lock => "lock",
            Kind::Mutex => "mutex",
            Kind::Fair => "fair",
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Semaphore => "semaphore",
            Kind::Permits => "permits",
            Kind::Latch => "latch",
        }
    }

    /// Parses the [`as_str`](Kind::as_str) of a kind.
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Lock => "lock",
            Kind::Mutex => "mutex",
            Kind::Fair => "fair lock",
            Kind::Read => "read lock",
            Kind::Write => "write lock",
            Kind::Semaphore => "semaphore",
            Kind::Permits => "permit semaphore",
            Kind::Latch => "count-down latch",
        })
    }
}

/// A name and the kind of primitive it is used as.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Resource {
    /// The kind of primitive.
    pub kind: Kind,
    /// The raw name, prefix included.
    pub name: LockName,
}

/// A request to acquire a lock, or permits of a semaphore.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// The lock.
    pub resource: Resource,
    /// The identity of the hold.
    pub owner: OwnerId,
    /// For a lock, the hold count that the owner will have: 1 acquires a free lock, a greater count
    /// only re-enters a held one. The count is absolute, so a repeated request has no further
    /// effect. For a semaphore, the number of permits to acquire.
    pub count: u32,
    /// The TTL in milliseconds. It never shortens the stored TTL. A semaphore has none.
    pub ttl: u64,
    /// Handoff: replaces this hold in one step and without a wake-up.
    pub from: Option<OwnerId>,
    /// For a read/write lock: the hold of the other side that belongs to the same owner and
    /// therefore does not conflict with this request.
    pub beside: Option<OwnerId>,
    /// How to issue a fencing token; `None` issues none.
    pub fenced: Option<Fenced>,
    /// The caller waits if the lock is busy: a fair lock adds it to the queue, a write lock keeps
    /// new readers out for a while. [`Release`] cancels both.
    pub waits: bool,
    /// Further locks of the same kind, each with its own owner: all are acquired, or none.
    pub also: Vec<(LockName, OwnerId)>,
    /// Creates a permit semaphore with this many permits if there is none; it is deleted with its
    /// last permit.
    ///
    /// For this request, an existing temporary semaphore has this many permits. The number is
    /// stored only if the request acquires permits. A semaphore that was set up in another way
    /// keeps its own number.
    pub temporary: Option<u64>,
}

impl Acquire {
    /// Creates a request to acquire a free lock.
    pub fn new(resource: Resource, owner: OwnerId, ttl: u64) -> Self {
        Self {
            resource,
            owner,
            count: 1,
            ttl,
            from: None,
            beside: None,
            fenced: None,
            waits: false,
            also: Vec::new(),
            temporary: None,
        }
    }
}

/// How to issue a fencing token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fenced {
    /// How long the token sequence is kept after its last token, in milliseconds; forever if not
    /// set.
    pub ttl: Option<u64>,
}

/// The answer to [`Acquire`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Attempt {
    /// The lock is held by the owner of the request.
    Granted {
        /// The fencing token, if one was requested.
        token: Option<u64>,
    },
    /// Another owner holds the lock or precedes the caller.
    Busy {
        /// When to try again, if that is known.
        ttl: Option<Ttl>,
        /// How many clients listen for the release, if the caller waits and the store knows; else 0.
        listeners: u64,
    },
    /// The hold to be re-entered or handed off does not exist.
    Gone,
}

impl Attempt {
    /// Granted without a token.
    pub const GRANTED: Attempt = Attempt::Granted { token: None };

    /// Busy for this time, with no known listeners.
    pub(crate) fn busy(ttl: Option<Ttl>) -> Self {
        Attempt::Busy { ttl, listeners: 0 }
    }

    /// Whether the lock is held by the owner of the request.
    pub fn is_granted(&self) -> bool {
        matches!(self, Attempt::Granted { .. })
    }
}

/// A request to release holds or permits.
#[derive(Clone, Debug)]
pub struct Release {
    /// The lock.
    pub resource: Resource,
    /// The identity of the hold.
    pub owner: OwnerId,
    /// The number of permits of a semaphore that the owner holds.
    pub count: u32,
    /// The hold count that remains. It is absolute: if the stored count is not greater, nothing
    /// changes.
    pub keep: u32,
    /// The new TTL in milliseconds if some holds are released and others remain. It may shorten the
    /// stored TTL.
    pub ttl: Option<u64>,
    /// No guard holds the lock any more, but it stays for `ttl`: sets the TTL even if no hold is
    /// released.
    pub leave: bool,
    /// Whether the acquire was granted is unknown: the store may have refused it, or may still
    /// execute it.
    pub undo: bool,
}

impl Release {
    /// Creates a request to release all holds of `owner`.
    pub fn new(resource: Resource, owner: OwnerId) -> Self {
        Self { resource, owner, count: 1, keep: 0, ttl: None, leave: false, undo: false }
    }
}

/// The answer to [`Release`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Released {
    /// The lock is free.
    Freed {
        /// The number of notified subscribers; `None` if it is unknown, or they could not be notified.
        listeners: Option<u64>,
    },
    /// Holds of this owner remain.
    Kept,
    /// This owner does not hold the lock.
    Absent {
        /// The current holder, if the store knows it.
        holder: Option<String>,
    },
}

/// A request to renew a hold, or to check it.
#[derive(Clone, Debug)]
pub struct Renew {
    /// The lock.
    pub resource: Resource,
    /// The identity of the hold.
    pub owner: OwnerId,
    /// The number of permits of a semaphore that the owner holds.
    pub count: u32,
    /// The new TTL, or `None` to only check the hold. It never shortens the stored TTL.
    pub ttl: Option<u64>,
    /// The entry is a queue position, not a hold.
    pub waiting: bool,
}

impl Renew {
    /// Creates a request to renew a hold, or to check it.
    pub fn new(resource: Resource, owner: OwnerId, ttl: Option<u64>) -> Self {
        Self { resource, owner, count: 1, ttl, waiting: false }
    }

    /// How long requests of a batch wait for others that may hang: a busy store answers thousands in this time, and
    /// of a lease that is renewed after its first third, a third is left after two such waits.
    pub(crate) fn patience<'a>(batch: impl IntoIterator<Item = &'a Self>) -> Duration {
        let shortest = batch.into_iter().filter_map(|renew| renew.ttl).min();
        Duration::from_millis(shortest.map_or(1_000, |ttl| (ttl / 6).min(1_000)))
    }
}

/// The answer to one [`Renew`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Renewed {
    /// The hold is valid. The value is the TTL before the renewal.
    Held(Ttl),
    /// The lock is free.
    Gone,
    /// Another owner holds the lock, alone or in addition.
    Taken,
    /// The queue position is kept.
    Waiting,
    /// The waiter should try again: it is its turn, or its queue position was lost.
    Due,
}

/// An administrative change.
#[derive(Clone, Debug)]
pub enum Change {
    /// Force-releases a lock and notifies its holders.
    ForceUnlock {
        /// The lock.
        resource: Resource,
        /// The reason given by the operator; may be empty.
        reason: String,
        /// The client that makes the change.
        by: ClientInfo,
        /// The only holder ids from which the lock may be released; any if `None`.
        from: Option<Vec<Vec<u8>>>,
    },
    /// Changes a counter: the permits of a semaphore or the count of a latch.
    Count {
        /// The counter.
        resource: Resource,
        /// The identity of this request. A repetition gets the answer to the first.
        id: OwnerId,
        /// The change to make.
        change: CountChange,
    },
    /// Changes permits by their ids: all of them, or none.
    Permits {
        /// The permit semaphore.
        resource: Resource,
        /// The identity of this request. A repetition gets the answer to the first.
        id: OwnerId,
        /// The permits.
        ids: Vec<PermitId>,
        /// The change to make.
        change: PermitChange,
    },
    /// Announces a client while it holds any lock.
    Announce {
        /// The client and its holds.
        client: ClientEntry,
        /// How long the announcement is valid, in milliseconds.
        ttl: u64,
    },
    /// Removes the announcement of a client.
    Withdraw {
        /// The client.
        client: Uuid,
    },
}

/// A change of a counter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CountChange {
    /// Sets the counter if there is none: [`Changed::Done`] or [`Changed::Nothing`].
    Create {
        /// The number of permits, or the count of the latch.
        count: u64,
        /// The counter expires after this many milliseconds.
        ttl: Option<u64>,
    },
    /// Adds permits, or removes them if negative: [`Changed::Count`] is the number of free permits.
    Add(i64),
    /// Sets the total of a permit semaphore, acquired permits included; creates it if there is
    /// none.
    Resize(u64),
    /// Acquires all free permits: [`Changed::Count`] is their number.
    Drain,
    /// Counts a latch down by one: [`Changed::Count`] is the remaining count.
    Down,
    /// Deletes a latch and wakes up its waiters.
    Delete,
}

/// A change of permits with ids.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PermitChange {
    /// Releases them.
    Release,
    /// Sets their lease to this many milliseconds from now.
    Lease(u64),
}

/// The answer to [`Change`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Changed {
    /// The change was made.
    Done,
    /// There was nothing to change.
    Nothing,
    /// Nothing was changed: the holders are not the expected ones.
    Other,
    /// The change was made; this is the resulting number.
    Count(i64),
}

impl Changed {
    pub(crate) fn number(self) -> i64 {
        match self {
            Changed::Count(number) => number,
            Changed::Done | Changed::Nothing | Changed::Other => 0,
        }
    }
}

/// Describes a client for people.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct ClientInfo {
    /// The host name.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// The name of the program, without arguments.
    pub program: String,
    /// When the client was created.
    pub started: SystemTime,
}

impl ClientInfo {
    /// For stores and their tests, as `backend`.
    #[doc(hidden)]
    pub fn of_this_process() -> Self {
        let program = std::env::current_exe()
            .ok()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_default();
        Self { host: hostname(), pid: std::process::id(), program, started: SystemTime::now() }
    }
}

/// As `api pid 812 on web-3`, with control characters escaped.
impl fmt::Display for ClientInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = format!("{} pid {} on {}", self.program, self.pid, self.host);
        write_escaped(f, line.as_bytes())
    }
}

/// Locks a mutex, whatever has panicked while it was locked: no panic leaves what it protects half-changed.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

pub(crate) fn unpoisoned<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

fn hostname() -> String {
    #[cfg(unix)]
    return rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    return std::env::var("COMPUTERNAME").unwrap_or_default();
}
