//! `watch`: tests of the built binary on real stores and a real terminal, including the
//! state of the terminal at the end.

mod lines;
mod live;
mod restored;
#[path = "../look/schema.rs"]
mod schema;
mod support;
mod terminal;
mod unreachable;
