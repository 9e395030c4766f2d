#![doc = include_str!("rustdoc_links.md")]
#![doc = include_str!("README.md")]

// Each page is read in two places: on a Git hosting page, and here. Its links are reference links
// (`[text][label]`), and it ends with definitions of their labels as relative paths. Markdown uses the
// first definition of a label, so `rustdoc_links.md`, which comes first here, turns the same labels
// into links to items. `tests/links.rs` checks both.

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("choosing.md")]
pub mod choosing {}

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("failures.md")]
pub mod failures {}

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("failover.md")]
pub mod failover {}

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("cluster.md")]
pub mod cluster {}

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("quorum.md")]
pub mod quorum {}

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("fencing.md")]
pub mod fencing {}

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("redisson.md")]
pub mod redisson {}

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("redis.md")]
pub mod redis {}

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("file.md")]
pub mod file {}

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("command_line.md")]
pub mod command_line {}
