#![doc = include_str!("manual/rustdoc_links.md")]
#![doc = include_str!("manual/rustdoc_pictures.md")]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod any;
mod carrier;
mod check;
mod client;
mod clock;
mod config;
mod engine;
mod error;
mod fair;
mod fenced;
mod fork;
mod guard;
mod handle;
mod hold;
mod holder;
mod inspector;
mod latch;
mod lock;
mod multi;
mod name;
mod permits;
#[cfg(feature = "redis")]
mod redis_url;
mod run;
mod rw;
mod semaphore;
mod spin;
mod watch;

#[cfg(feature = "unstable-backend")]
pub mod backend;
#[cfg(not(feature = "unstable-backend"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "public with unstable-backend")]
mod backend;
pub mod blocking;
pub mod manual;

pub use any::AnyLock;
#[doc(inline)]
pub use backend::{ClientInfo, Finding, ForcedUnlock, Kind, Seen, Severity};
pub use check::Report;
pub use client::Client;
pub use clock::Clock;
pub use config::{
    Backoff, CONNECT_TIMEOUT, ClientOptions, DRIFT_FIXED, DRIFT_RATIO, LONGEST_LEASE, LeaseTime,
    MAX_LEASE, RECHECK, RESPONSE_TIMEOUT, UNREACHABLE_AFTER, WATCHDOG_TIMEOUT, Wakeups,
};
pub use error::{Error, LostReason, Phase, Result};
pub use fair::FairLock;
pub use fenced::{Fence, FencedLock, StaleTokenError};
pub use guard::{
    FencedGuard, FencedReadGuard, FencedWriteGuard, LockGuard, MutexGuard, PermitsGuard, ReadGuard,
    UpgradeError, WriteGuard,
};
pub use hold::{AnyGuard, Hold};
pub use holder::{Holder, Remaining};
pub use inspector::{Inspector, Listing, LockInfo, MemberInfo};
pub use latch::CountDownLatch;
pub use lock::{Lock, Mutex};
pub use multi::{MultiGuard, MultiLock};
pub use name::{ClientId, LockName, Owner, OwnerId, ParseIdError, PermitId};
pub use permits::PermitSemaphore;
#[cfg(feature = "redis")]
pub use redis_url::RedisUrl;
pub use run::{Completed, RunError};
pub use rw::{FencedRwLock, RwLock};
pub use semaphore::{Permit, Semaphore};
pub use spin::SpinLock;
pub use watch::{Event, Watch};
