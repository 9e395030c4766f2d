//! Unit tests of several modules: replies as a server sends them.

use super::resp::{HANDSHAKE_MAX, Parser, Value};

/// Parses a reply.
pub(super) fn reply(text: &[u8]) -> Value {
    Parser::new(HANDSHAKE_MAX).parse(text).expect("a reply").1.expect("all of it")
}
