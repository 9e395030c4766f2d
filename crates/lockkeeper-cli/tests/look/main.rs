//! `ls`, `inspect`, `unlock` and `doctor`: tests of the built binary on real stores, and on a real terminal
//! where the output differs.

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
