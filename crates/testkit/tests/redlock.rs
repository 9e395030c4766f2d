//! The peers of the Redlock family do what they are told: every command once.

use std::env;
use std::process::Command;
use std::time::Duration;

use testkit::{RedisServer, Redlock, RedlockPeer};

const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(50);

/// Set in a process that is to use this server and nothing else.
const URL: &str = "TESTKIT_REDLOCK_URL";

fn obeys_every_command(library: Redlock) {
    let server = env::var(URL).is_err().then(RedisServer::start);
    let url = server.as_ref().map_or_else(|| env::var(URL).unwrap(), RedisServer::url);
    let peer = RedlockPeer::start(library, &url);
    let server = server.expect("there is nothing to start a peer with");
    let names = ["plain", "a b%,{x}:schlüssel🔒"];
    for name in names {
        let (one, two) = (peer.mutex("one", name), peer.mutex("two", name));
        assert!(one.try_acquire(LONG).ok());
        assert!((1..=10_000).contains(&server.cli(&["PTTL", name]).int()));
        assert!(!two.try_acquire(LONG).ok());
        let refused = two.acquire(LONG, 2 * SHORT).answer();
        assert!(refused.took() >= SHORT, "{:?}", refused.took());
        assert!(!refused.ok());
        one.extend(2 * LONG).ok();
        assert!((10_001..=20_000).contains(&server.cli(&["PTTL", name]).int()));
        let waits = two.acquire(LONG, LONG);
        assert!(waits.answer_within(SHORT).is_none());
        one.release().ok();
        assert!(waits.ok());
        match library {
            // It does not say.
            Redlock::Rslock => one.release().ok(),
            _ => assert!(!one.release().err().class().is_empty()),
        }
        assert!(!one.extend(LONG).err().class().is_empty());
        two.release().ok();
        assert_eq!(server.cli(&["EXISTS", name]).int(), 0);
    }
    assert!(peer.version().contains('.'), "{}", peer.version());
}

#[test]
fn redis_py_obeys_every_command() {
    obeys_every_command(Redlock::RedisPy);
}

#[test]
fn node_redlock_obeys_every_command() {
    obeys_every_command(Redlock::NodeRedlock);
}

#[test]
fn redsync_obeys_every_command() {
    obeys_every_command(Redlock::Redsync);
}

#[test]
fn rslock_obeys_every_command() {
    obeys_every_command(Redlock::Rslock);
}

#[test]
#[should_panic(expected = "ConnectionError")]
fn a_missing_server_is_a_failure() {
    let server = RedisServer::start();
    server.kill();
    RedlockPeer::start(Redlock::RedisPy, &server.url());
}

#[test]
fn a_missing_interpreter_is_a_failure_that_says_how_to_get_it() {
    // So that it is only the interpreter that is missing.
    obeys_every_command(Redlock::NodeRedlock);
    let server = RedisServer::start();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "node_redlock_obeys_every_command", "--nocapture"]);
    let output = command.env(URL, server.url()).env("PATH", "/nonexistent").output().unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("run `cargo xtask interop`, which installs them"), "{message}");
}
