//! The narrow waist between the engine and the stores.
//!
//! Everything above speaks [`Backend`]; everything below is one store. No driver type crosses it.
//! It is public so that a test can put a decorator between the two, and **exempt from semver**
//! until 1.0.
//!
//! A future returned by a backend is owned and must be polled to its end once it was polled at all:
//! dropping it half-way says nothing about whether the request took effect. The engine keeps this
//! promise by handing the futures of callers who walked away to its reaper.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use uuid::Uuid;

use crate::{LockName, OwnerId, PermitId};

#[cfg(all(feature = "file", unix))]
pub mod file;
mod finding;
mod listing;
pub mod memory;
pub mod model;
#[cfg(feature = "redis")]
pub mod redis;
mod snapshot;
pub mod wake;

pub use finding::{Finding, Severity};
pub use listing::{ClientEntry, Forced, Holding, List, Listed, Page, Pattern, Seen, Select};
pub use snapshot::{HolderEntry, Snapshot};
pub use wake::{Subscription, Topic};

/// An owned, boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// A store of locks.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this store can and cannot do at this moment.
    fn capabilities(&self) -> Capabilities;

    /// Takes a lock or permits, re-enters a lock, or receives it from another hold of the same
    /// client; where it is told that the caller waits, keeps a place for it.
    fn acquire(&self, request: Acquire) -> BoxFuture<Result<Attempt, Fault>>;

    /// Takes holds off, or leaves the lock standing for a while. Taking off the last one gives up
    /// a place among the waiters, too.
    fn release(&self, request: Release) -> BoxFuture<Result<Released, Fault>>;

    /// Renews or checks many holds, or places among the waiters, at once; one answer for each, in
    /// order.
    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>>;

    /// Changes what is not one owner's own: forced unlocks, counts of permits, the note of who a
    /// client is.
    fn adjust(&self, change: Change) -> BoxFuture<Result<Changed, Fault>>;

    /// Who holds a lock, how often, for how long; how many permits are free.
    fn inspect(&self, resource: Resource) -> BoxFuture<Result<Snapshot, Fault>>;

    /// Listens for wake-ups; resolves when they can no longer be missed.
    fn subscribe(&self, topic: Topic) -> BoxFuture<Result<Subscription, Fault>>;

    /// One page of the locks that there are, or of the clients that say who they are. Never keeps the
    /// store busy for long.
    fn list(&self, request: List) -> BoxFuture<Result<Page, Fault>>;

    /// What of this store endangers locks. Changes nothing.
    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Fault>>;

    /// Closes connections and ends tasks; requests after this fail.
    fn close(&self) -> BoxFuture<()>;
}

/// What a store can do.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// A request without an answer can no longer take effect once a later one was answered. Where
    /// this is false, an undo is repeated until the lease of the lost request would have ended, and a
    /// lease counts on no more than what a lost release may still leave of it.
    pub fences_lost_requests: bool,
    /// Which store this is, so that everybody takes several locks in the same order.
    pub identity: Arc<str>,
    /// Several locks can be taken in one request.
    pub takes_together: bool,
    /// What to do where the user lacks a permission, for people; empty where none is needed.
    pub permission_advice: &'static str,
}

impl Capabilities {
    /// Capabilities of a store that is known by `identity` and takes one lock at a time.
    pub fn new(fences_lost_requests: bool, identity: Arc<str>) -> Self {
        Self { fences_lost_requests, identity, takes_together: false, permission_advice: "" }
    }

    /// What to do where the user lacks a permission.
    pub fn advising(mut self, permission_advice: &'static str) -> Self {
        self.permission_advice = permission_advice;
        self
    }

    /// Several locks can be taken in one request.
    pub fn taking_together(mut self) -> Self {
        self.takes_together = true;
        self
    }
}

/// The kinds of primitives.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Kind {
    /// The re-entrant lock: a hash of owner → hold count, Redisson's `RLock`.
    Lock,
    /// The plain string lock of the Redlock family.
    Mutex,
    /// The same hash as [`Lock`](Kind::Lock), given out in the order of a queue.
    Fair,
    /// The shared side of a read/write lock.
    Read,
    /// The exclusive side of a read/write lock.
    Write,
    /// A counter of permits without owners.
    Semaphore,
    /// Permits with ids, each with an end.
    Permits,
    /// A counter that opens at zero.
    Latch,
}

impl Kind {
    /// Every kind.
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

    /// One word for it, for machines; [`Display`](fmt::Display) is for people.
    pub fn word(self) -> &'static str {
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

    /// The kind of this [`word`](Kind::word).
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
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

/// A name together with what it is used as.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Resource {
    /// What it is used as.
    pub kind: Kind,
    /// The raw name, prefix included.
    pub name: LockName,
}

/// A request to hold a lock, or permits of a semaphore.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// The lock.
    pub resource: Resource,
    /// The identity of the hold.
    pub owner: OwnerId,
    /// Of a lock, how many holds the owner will have: 1 takes a free lock, more only re-enters a
    /// held one. Absolute, so that sending it twice is sending it once. Of a semaphore, how many
    /// permits are taken.
    pub count: u32,
    /// The time to live in milliseconds; never shortens what there is. A semaphore has none.
    pub ttl: u64,
    /// A hand-over: replace this hold, in one step and without a wake-up.
    pub from: Option<OwnerId>,
    /// For the sides of a read/write lock: the hold of the other side that belongs to the same
    /// owner, and so does not stand in the way.
    pub beside: Option<OwnerId>,
    /// Issue a token.
    pub fenced: Option<Fenced>,
    /// The caller waits if it is busy: a fair lock keeps its place in the queue, a write lock keeps
    /// new readers out for a while. [`Release`] gives that up.
    pub waits: bool,
    /// Further locks of the same kind under owners of their own: all are taken, or none.
    pub also: Vec<(LockName, OwnerId)>,
    /// A permit semaphore is made with so many permits where there is none, and goes with its last
    /// permit. To this request one that was made so has this many; it has them to all, if any are
    /// taken. One that was set up otherwise is what it is.
    pub temporary: Option<u64>,
}

impl Acquire {
    /// A request to take a free lock.
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

/// How a token is issued.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fenced {
    /// How long the sequence outlives its last token, in milliseconds; for ever if not said.
    pub ttl: Option<u64>,
}

/// How many clients listen for the end of what they wait for. More than these look by themselves now and
/// then, so that a release does not wake all of them.
pub(crate) const CROWD: u64 = 16;

/// The answer to [`Acquire`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Attempt {
    /// It is held.
    Granted {
        /// The token, if one was asked for.
        token: Option<u64>,
    },
    /// Someone else has it, or comes first. It is worth another look after so long, if that is
    /// known.
    Busy(Option<Ttl>),
    /// The same, and so many clients listen for its end already that one of them will acquire it: one more
    /// listener would be woken for nothing each time.
    Crowded(Option<Ttl>, u64),
    /// The hold to be re-entered or handed over is not there.
    Gone,
}

impl Attempt {
    /// Held, without a token.
    pub const GRANTED: Attempt = Attempt::Granted { token: None };

    /// The same, where so many clients listen.
    pub(crate) fn among(self, listeners: u64) -> Self {
        match self {
            Attempt::Busy(ttl) if listeners >= CROWD => Attempt::Crowded(ttl, listeners),
            attempt => attempt,
        }
    }

    /// Whether it is held.
    pub fn is_granted(&self) -> bool {
        matches!(self, Attempt::Granted { .. })
    }
}

/// A time to live, as a store tells it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ttl {
    /// So many milliseconds.
    Millis(u64),
    /// It never ends.
    Forever,
}

/// A request to give holds or permits back.
#[derive(Clone, Debug)]
pub struct Release {
    /// The lock.
    pub resource: Resource,
    /// The identity of the hold.
    pub owner: OwnerId,
    /// How many permits of a semaphore it has.
    pub count: u32,
    /// How many holds stay. Absolute: where no more than this are stored, nothing changes.
    pub keep: u32,
    /// What the time to live becomes, in milliseconds, where holds are taken off and others stay.
    /// This may shorten it.
    pub ttl: Option<u64>,
    /// Nobody holds it any more, but it stays for `ttl`: set the time to live though no hold is
    /// taken off.
    pub leave: bool,
    /// Whether it was granted is not known: the request may have been refused, or may still come.
    pub undo: bool,
}

impl Release {
    /// A request to give back everything of `owner`.
    pub fn new(resource: Resource, owner: OwnerId) -> Self {
        Self { resource, owner, count: 1, keep: 0, ttl: None, leave: false, undo: false }
    }
}

/// The answer to [`Release`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Released {
    /// It is free now, and so many were listening, if that is known.
    Freed {
        /// Subscribers that were told; nothing when they could not be told.
        listeners: Option<u64>,
    },
    /// Holds of this owner stay.
    Kept,
    /// This owner does not hold it.
    Absent {
        /// Who does, where the store can tell.
        holder: Option<String>,
    },
}

/// A request to keep a hold alive, or to see that it is.
#[derive(Clone, Debug)]
pub struct Renew {
    /// The lock.
    pub resource: Resource,
    /// The identity of the hold.
    pub owner: OwnerId,
    /// How many permits of a semaphore it has.
    pub count: u32,
    /// The new time to live, or nothing to only look. Never shortens what there is.
    pub ttl: Option<u64>,
    /// It is no hold but a place among the waiters.
    pub waiting: bool,
}

impl Renew {
    /// A request to renew a hold, or to look at it.
    pub fn new(resource: Resource, owner: OwnerId, ttl: Option<u64>) -> Self {
        Self { resource, owner, count: 1, ttl, waiting: false }
    }
}

/// The answer to one [`Renew`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Renewed {
    /// It is held; this is the time to live that was found, before it was renewed.
    Held(Ttl),
    /// Nobody holds it.
    Gone,
    /// Someone else holds it, or holds it too.
    Taken,
    /// The place among the waiters is kept.
    Waiting,
    /// The waiter should try: it is its turn, or its place is gone.
    Due,
}

/// A change that is not one owner's own.
#[derive(Clone, Debug)]
pub enum Change {
    /// Take a lock away from whoever holds it, and tell them.
    ForceUnlock {
        /// The lock.
        resource: Resource,
        /// Why, in the operator's words; may be empty.
        reason: String,
        /// Who does it.
        by: ClientInfo,
        /// From whom only, by their ids; from anybody if there is nothing.
        from: Option<Vec<Vec<u8>>>,
    },
    /// Change a counter: the permits of a semaphore, the count of a latch.
    Count {
        /// The counter.
        resource: Resource,
        /// The identity of this request: a repetition is answered with what came of the first.
        id: OwnerId,
        /// What to do.
        change: CountChange,
    },
    /// Change permits that are known by their ids: all of them, or none.
    Permits {
        /// The permit semaphore.
        resource: Resource,
        /// The identity of this request: a repetition is answered with what came of the first.
        id: OwnerId,
        /// The permits.
        ids: Vec<PermitId>,
        /// What to do.
        change: PermitChange,
    },
    /// Say who a client is, for as long as it holds anything.
    Announce {
        /// Who it is and what it holds.
        client: ClientEntry,
        /// For so many milliseconds.
        ttl: u64,
    },
    /// Forget who a client is.
    Withdraw {
        /// The client.
        client: Uuid,
    },
}

/// What happens to a counter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CountChange {
    /// Sets it where there is none: [`Changed::Done`] or [`Changed::Nothing`].
    Create {
        /// The permits or the count.
        count: u64,
        /// It ends after so many milliseconds.
        ttl: Option<u64>,
    },
    /// Adds permits, or takes them away: [`Changed::Count`] says how many are free then.
    Add(i64),
    /// Makes a permit semaphore's total this many, whether they are taken or not; creates it where
    /// there is none.
    Resize(u64),
    /// Takes all free permits: [`Changed::Count`] says how many.
    Drain,
    /// Counts a latch down by one: [`Changed::Count`] says how much is left.
    Down,
    /// Removes a latch and lets its waiters go.
    Delete,
}

/// What happens to permits that are known by their ids.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PermitChange {
    /// They are given back.
    Release,
    /// They end so many milliseconds from now.
    Lease(u64),
}

/// The answer to [`Change`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Changed {
    /// It was done.
    Done,
    /// There was nothing to do.
    Nothing,
    /// Nothing was done: others hold it than those it was to be taken from.
    Other,
    /// It was done, and this is the number that was asked for.
    Count(i64),
}

/// Who a client is, for people.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct ClientInfo {
    /// The host's name.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// The program, without its arguments.
    pub program: String,
    /// When the client was made.
    pub started: SystemTime,
}

impl ClientInfo {
    /// This process.
    pub fn of_this_process() -> Self {
        let program = std::env::current_exe()
            .ok()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_default();
        Self { host: hostname(), pid: std::process::id(), program, started: SystemTime::now() }
    }

    /// Who it is in a few words.
    pub(crate) fn in_a_line(&self) -> String {
        format!("{} pid {} on {}", self.program, self.pid, self.host)
    }
}

fn hostname() -> String {
    #[cfg(unix)]
    return rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    return std::env::var("COMPUTERNAME").unwrap_or_default();
}

/// Why a store did not do what it was asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fault {
    /// No answer.
    Unreachable {
        /// Whether the request may have taken effect, or still may.
        maybe_ran: bool,
        /// What happened.
        detail: String,
    },
    /// An answer that says "not now": loading, read-only, busy, out of memory. It did not run.
    Refused {
        /// What the store said.
        detail: String,
    },
    /// The user may not do this.
    Denied {
        /// What the store said.
        detail: String,
    },
    /// The key is something else.
    WrongKind {
        /// What it is.
        found: String,
    },
    /// The request makes no sense to this store.
    Invalid {
        /// Why.
        detail: String,
    },
    /// Any other error.
    Server {
        /// What the store said.
        detail: String,
    },
    /// The store was closed.
    Closed,
}

impl Fault {
    /// Whether it may pass by itself, so that a waiter waits on.
    pub fn may_pass(&self) -> bool {
        matches!(self, Fault::Unreachable { .. } | Fault::Refused { .. })
    }

    /// Whether the request may have taken effect all the same.
    pub fn maybe_ran(&self) -> bool {
        matches!(self, Fault::Unreachable { maybe_ran: true, .. })
    }
}
