//! Unit tests of several modules: runs single commands, without a connection of the store.

use std::time::{Duration, Instant};

use testkit::{RedisServer, Reply};

use super::command::Command;
use super::resp::{HANDSHAKE_MAX, Parser, Value};

/// Starts a cluster of one node.
pub(super) fn cluster() -> RedisServer {
    let server = RedisServer::builder().arg("--cluster-enabled", "yes").start();
    server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).ok();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !server.cli(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok") {
        assert!(Instant::now() < deadline, "the cluster does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    server
}

/// Returns the arguments of a command; a script is called by its text.
pub(super) fn arguments<T>(command: Command<T>) -> Vec<Vec<u8>> {
    let mut encoded = Vec::new();
    command.by_text().encode(&mut encoded);
    let mut rest = &encoded[..];
    let mut next = |length: Option<usize>| {
        let line = || rest.iter().position(|byte| *byte == b'\r').expect("a line");
        let (next, after) = rest.split_at(length.unwrap_or_else(line));
        rest = &after[2..];
        next
    };
    let number = |line: &[u8]| {
        let digits = std::str::from_utf8(&line[1..]).expect("digits");
        digits.parse().expect("a number")
    };
    let count: usize = number(next(None));
    let argument = |_| {
        let length = number(next(None));
        next(Some(length)).to_vec()
    };
    (0..count).map(argument).collect()
}

/// Returns the keys that a script call declares.
pub(super) fn declared<T>(command: Command<T>) -> Vec<Vec<u8>> {
    let arguments = arguments(command);
    let count = String::from_utf8_lossy(&arguments[2]).parse().expect("a number of keys");
    arguments[3..].iter().take(count).cloned().collect()
}

/// Parses a reply.
pub(super) fn reply(text: &[u8]) -> Value {
    Parser::new(HANDSHAKE_MAX).parse(text).expect("a reply").1.expect("all of it")
}

/// Runs a command on a server.
pub(super) fn run<T>(server: &RedisServer, command: Command<T>) -> Reply {
    server.cli(&arguments(command)).ok()
}
