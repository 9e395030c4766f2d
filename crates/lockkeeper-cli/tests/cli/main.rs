//! `lockkeeper run` from the outside: the built binary, on every store.

mod child;
mod choice;
mod cluster;
mod codes;
mod docs;
mod failover;
mod herd;
mod holding;
mod jobs;
mod kinds;
mod loss;
mod names;
mod quorum;
#[path = "../look/schema.rs"]
mod schema;
mod signals;
mod supervisor;
mod support;
mod tmux;
mod waiting;
