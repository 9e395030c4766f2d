//! `lockkeeper run` from the outside: the built binary, on every store.

mod child;
mod choice;
mod codes;
mod docs;
mod herd;
mod holding;
mod jobs;
mod kinds;
mod loss;
mod names;
mod signals;
mod supervisor;
mod support;
mod tmux;
mod waiting;
