//! `ls`, `inspect`, `unlock`, `doctor` and `watch`: tests of the built binary on real stores, and on a real
//! terminal where the output differs, including the state of the terminal at the end.

mod colours;
mod docs;
mod doctor;
mod escapes;
mod inspect;
mod ls;
mod ls_long;
mod names;
mod schema;
mod support;
#[cfg_attr(not(feature = "tui"), expect(dead_code, reason = "the live view has all of its tests"))]
mod terminal;
mod unlock;
mod unlock_asks;
mod watch_lines;
#[cfg(feature = "tui")]
mod watch_restores;
#[cfg(feature = "tui")]
mod watch_unreachable;
#[cfg(feature = "tui")]
mod watch_view;
