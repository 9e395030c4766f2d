//! The commands that show something (`watch`, `demo`, `bench`), from outside: the built binary, real
//! stores, and a real terminal, whose state after the end is part of what is tested.

mod bench;
mod demo;
mod lines;
mod live;
mod restored;
#[path = "../look/schema.rs"]
mod schema;
mod support;
mod terminal;
mod unreachable;
