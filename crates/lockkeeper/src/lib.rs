#![doc = include_str!("manual/rustdoc_links.md")]
#![doc = include_str!("manual/rustdoc_pictures.md")]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod check;
mod client;
mod config;
mod engine;
mod error;
mod fair;
mod fenced;
mod guard;
mod holder;
mod inspector;
mod latch;
mod lock;
mod multi;
mod name;
mod permits;
mod run;
mod rw;
mod semaphore;
mod spin;
mod watch;

pub mod backend;
#[cfg(feature = "blocking")]
pub mod blocking;
pub mod manual;

pub use backend::{ClientInfo, Finding, Forced, Kind, Seen, Severity};
pub use check::Report;
pub use client::Client;
pub use config::*;
pub use engine::Clock;
pub use error::{Error, LostReason, Phase, Result};
pub use fair::FairLock;
pub use fenced::{Fence, FencedLock, Stale};
pub use guard::{Guard, Hold, Reenter};
pub use holder::{Holder, Remaining};
pub use inspector::{Inspector, Listing, LockInfo};
pub use latch::CountDownLatch;
pub use lock::{Lock, LockRequest, Mutex, TryLockRequest};
pub use multi::{Member, MultiGuard, MultiLock, MultiLockRequest, TryMultiLockRequest};
pub use name::{LockName, Owner, OwnerId, ParseOwnerIdError, ParsePermitIdError, PermitId};
pub use permits::PermitSemaphore;
pub use run::{Ran, RunError};
pub use rw::RwLock;
pub use semaphore::{AcquirePermits, Permit, Semaphore, TryAcquirePermits};
pub use spin::SpinLock;
pub use watch::{Event, Watch};
