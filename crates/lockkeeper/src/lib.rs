#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod config;
mod engine;
mod error;
mod guard;
mod lock;
mod name;
mod run;

pub mod backend;
#[cfg(feature = "blocking")]
pub mod blocking;
pub mod manual;

pub use backend::{ClientInfo, Kind};
pub use client::Client;
pub use config::*;
pub use engine::Clock;
pub use error::{Error, LostReason, Phase, Result};
pub use guard::{Guard, Hold, Reenter};
pub use lock::{Holder, Lock, LockRequest, Mutex, Remaining, TryLockRequest};
pub use name::{LockName, Owner, OwnerId, ParseOwnerIdError};
pub use run::{Ran, RunError};
