//! `watch`: tests of the built binary on real stores and a real terminal, including the
//! state of the terminal at the end.

mod lines;
#[cfg(feature = "tui")]
mod live;
#[cfg(feature = "tui")]
mod restored;
#[path = "../look/schema.rs"]
mod schema;
#[cfg_attr(not(feature = "tui"), allow(dead_code, reason = "for tests on a terminal"))]
mod support;
#[cfg(feature = "tui")]
mod terminal;
#[cfg(feature = "tui")]
mod unreachable;
