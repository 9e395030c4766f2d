//! The commands that look and act (`ls`, `inspect`, `unlock`, `doctor`), from outside: the built
//! binary, real stores, and a real terminal where one makes a difference.

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
mod terminal;
mod unlock;
mod unlock_asks;
