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
use std::time::SystemTime;

use uuid::Uuid;

use crate::{LockName, OwnerId};

pub mod memory;
pub mod model;
#[cfg(feature = "redis")]
pub mod redis;
pub mod wake;

pub use wake::{Subscription, Topic};

/// An owned, boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// A store of locks.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this store can and cannot do at this moment.
    fn capabilities(&self) -> Capabilities;

    /// Takes a lock, re-enters it, or receives it from another hold of the same client.
    fn acquire(&self, request: Acquire) -> BoxFuture<Result<Attempt, Fault>>;

    /// Takes holds off, or leaves the lock standing for a while.
    fn release(&self, request: Release) -> BoxFuture<Result<Released, Fault>>;

    /// Renews or checks many holds at once; one answer for each, in order.
    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>>;

    /// Changes what is not one owner's own: forced unlocks, the note of who a client is.
    fn adjust(&self, change: Change) -> BoxFuture<Result<Changed, Fault>>;

    /// Who holds a lock, how often, for how long.
    fn inspect(&self, resource: Resource) -> BoxFuture<Result<Snapshot, Fault>>;

    /// Listens for wake-ups; resolves when they can no longer be missed.
    fn subscribe(&self, topic: Topic) -> BoxFuture<Result<Subscription, Fault>>;

    /// Closes connections and ends tasks; requests after this fail.
    fn close(&self) -> BoxFuture<()>;
}

/// What a store can do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// A request without an answer can no longer take effect once a later one was answered. Where
    /// this is false, an undo is repeated until the lease of the lost request would have ended.
    pub fences_lost_requests: bool,
}

impl Capabilities {
    /// Capabilities of a store.
    pub fn new(fences_lost_requests: bool) -> Self {
        Self { fences_lost_requests }
    }
}

/// The kinds of primitives.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Kind {
    /// The re-entrant lock: a hash of owner → hold count, Redisson's `RLock`.
    Lock,
    /// The plain string lock of the Redlock family.
    Mutex,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Lock => "lock",
            Kind::Mutex => "mutex",
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

/// A request to hold a lock.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// The lock.
    pub resource: Resource,
    /// The identity of the hold.
    pub owner: OwnerId,
    /// How many holds the owner will have: 1 takes a free lock, more only re-enters a held one.
    /// Absolute, so that sending it twice is sending it once.
    pub count: u32,
    /// The time to live in milliseconds; never shortens what there is.
    pub ttl: u64,
    /// A hand-over: replace this hold, in one step and without a wake-up.
    pub from: Option<OwnerId>,
}

/// The answer to [`Acquire`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Attempt {
    /// It is held.
    Granted,
    /// Someone else has it for so long, if that is known.
    Busy(Option<Ttl>),
    /// The hold to be re-entered or handed over is not there.
    Gone,
}

/// A time to live, as a store tells it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ttl {
    /// So many milliseconds.
    Millis(u64),
    /// It never ends.
    Forever,
}

/// A request to give holds back.
#[derive(Clone, Debug)]
pub struct Release {
    /// The lock.
    pub resource: Resource,
    /// The identity of the hold.
    pub owner: OwnerId,
    /// How many holds stay. Absolute: where no more than this are stored, nothing changes.
    pub keep: u32,
    /// What the time to live becomes, in milliseconds, where holds are taken off and others stay.
    /// This may shorten it.
    pub ttl: Option<u64>,
    /// Nobody holds it any more, but it stays for `ttl`: set the time to live though no hold is
    /// taken off.
    pub leave: bool,
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
    /// The new time to live, or nothing to only look. Never shortens what there is.
    pub ttl: Option<u64>,
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
    },
    /// Say who a client is, for as long as it holds anything.
    Announce {
        /// The client.
        client: Uuid,
        /// Who it is.
        info: ClientInfo,
        /// For so many milliseconds.
        ttl: u64,
    },
    /// Forget who a client is.
    Withdraw {
        /// The client.
        client: Uuid,
    },
}

/// The answer to [`Change`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Changed {
    /// It was done.
    Done,
    /// There was nothing to do.
    Nothing,
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
}

fn hostname() -> String {
    #[cfg(unix)]
    return rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    return std::env::var("COMPUTERNAME").unwrap_or_default();
}

/// What a store knows of a lock.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Its holders; a plain lock has at most one.
    pub holders: Vec<HolderEntry>,
    /// How long it stands; nothing when it is free.
    pub ttl: Option<Ttl>,
}

/// One holder in a [`Snapshot`].
#[derive(Clone, Debug)]
pub struct HolderEntry {
    /// The identity in the store, which need not be one of ours.
    pub id: Vec<u8>,
    /// How often it holds the lock.
    pub count: u64,
    /// Who that is, where its client says so.
    pub client: Option<ClientInfo>,
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
