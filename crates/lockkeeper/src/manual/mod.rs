//! The manual: what to rely on, what can go wrong, how to set it up.

#[doc = include_str!("choosing.md")]
pub mod choosing {}

#[doc = include_str!("guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("failures.md")]
pub mod failures {}

#[doc = include_str!("fencing.md")]
pub mod fencing {}

#[doc = include_str!("redisson.md")]
pub mod redisson {}

#[doc = include_str!("redis.md")]
pub mod redis {}

#[doc = include_str!("file.md")]
pub mod file {}

#[doc = include_str!("command_line.md")]
pub mod command_line {}
