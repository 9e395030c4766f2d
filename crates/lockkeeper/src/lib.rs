#![doc = include_str!("manual/rustdoc_links.md")]
#![doc = include_str!("manual/rustdoc_pictures.md")]
//! | | |
//! |---|---|
//! | *Start* | |
//! | [`Client`] | a connection to a store, from which locks are made |
//! | [`blocking`] | the same for threads: `.wait()` in place of `.await` |
//! | [`manual`] | guarantees, failures, stores, the command line |
//! | *Locks* | |
//! | [`Lock`] | one holder at a time, reentrant |
//! | [`Mutex`] | one holder at a time, shared with the Redlock family |
//! | [`FairLock`] | first come, first served |
//! | [`FencedLock`], [`Fence`] | a lock with tokens, and their check at the resource |
//! | [`RwLock`] | many readers or one writer |
//! | [`MultiLock`] | several locks, all or none |
//! | [`AnyLock`] | a lock of any kind |
//! | *Guards* | |
//! | [`LockGuard`], [`MutexGuard`], [`FencedGuard`] | one hold; dropped, it is released |
//! | [`ReadGuard`], [`WriteGuard`] | the same of a read/write lock, with upgrade and downgrade |
//! | [`MultiGuard`], [`AnyGuard`] | holds of several locks; a hold of any kind |
//! | [`Hold`] | the state of a hold, and its loss |
//! | *Counters* | |
//! | [`Semaphore`] | at most N at a time |
//! | [`PermitSemaphore`] | the same with ids and leases |
//! | [`CountDownLatch`] | waits until N events have happened |
//! | *Look inside* | |
//! | [`Inspector`], [`Listing`] | all locks of a store, page by page, and force-release |
//! | [`LockInfo`], [`Holder`], [`Ttl`] | one lock, its holders, its TTL |
//! | [`Watch`], [`Event`] | changes |
//! | [`Report`], [`Finding`] | the risks that [`Client::check`] has found |
//! | *Settings and errors* | |
//! | [`ClientOptions`], [`RedisOptions`] | timeouts, leases, passwords, replicas |
//! | [`LeaseTime`], [`Backoff`] | how long a hold is valid; how a waiter polls |
//! | [`Error`], [`RunError`] | by what the caller can do about them |
//! | [`LostReason`] | why a hold is no longer valid |
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "unstable-backend"),
    allow(dead_code, unreachable_pub, unused_imports, reason = "public with unstable-backend")
)]

mod any;
mod carrier;
mod check;
mod client;
mod clock;
mod engine;
mod error;
mod fair;
mod fenced;
#[cfg(all(feature = "file", unix))]
mod file;
mod fork;
mod guard;
mod handle;
mod hold;
mod inspector;
mod latch;
mod lock;
mod memory;
mod model;
mod multi;
mod name;
mod options;
mod permits;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redis_options;
mod run;
mod rw;
mod semaphore;
mod watch;

#[cfg(feature = "unstable-backend")]
pub mod backend;
#[cfg(not(feature = "unstable-backend"))]
mod backend;
pub mod blocking;
pub mod manual;

/// The stores behind the URLs, for tests and decorators. **Exempt from semver**, as `backend`.
#[cfg(feature = "unstable-backend")]
pub mod stores {
    #[cfg(all(feature = "file", unix))]
    pub use crate::file::File;
    pub use crate::memory::Memory;
    pub use crate::model::{State, Wake};
    #[cfg(feature = "redis")]
    pub use crate::redis::quorum::Quorum;
    #[cfg(feature = "redis")]
    pub use crate::redis::{Redis, script_text};
}

/// For tests, **exempt from semver** as `backend`.
#[cfg(feature = "unstable-backend")]
#[doc(hidden)]
pub use {
    clock::Clock,
    options::{
        DRIFT_FIXED, DRIFT_RATIO, MAX_LEASE, RECHECK, RESPONSE_TIMEOUT, UNREACHABLE_AFTER,
        WATCHDOG_TIMEOUT,
    },
};

pub use any::AnyLock;
#[doc(inline)]
pub use backend::{
    ClientInfo, Finding, ForcedUnlock, Holder, Kind, LockInfo, MemberInfo, Seen, Severity, Ttl,
};
pub use check::Report;
pub use client::Client;
pub use error::{Error, LostReason, Phase, Result};
pub use fair::FairLock;
pub use fenced::{Fence, FencedLock, StaleTokenError};
pub use guard::{
    FencedGuard, LockGuard, MutexGuard, PermitGuard, ReadGuard, UpgradeError, WriteGuard,
};
pub use hold::{AnyGuard, Hold};
pub use inspector::{Inspector, Listing};
pub use latch::CountDownLatch;
pub use lock::{Lock, Mutex};
pub use multi::{MultiGuard, MultiLock};
pub use name::{LockName, Owner, OwnerId, ParseIdError, PermitId};
pub use options::{Backoff, ClientOptions, LeaseTime};
pub use permits::PermitSemaphore;
#[cfg(feature = "redis")]
pub use redis_options::{RedisOptions, Wakeups};
pub use run::{Completed, RunError};
pub use rw::RwLock;
pub use semaphore::{Semaphore, SemaphoreGuard};
pub use watch::{Event, Watch};
