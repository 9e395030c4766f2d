//! A server is gone with the process that started it, and a missing one is reported.

mod common;

use std::process::Command;
use std::{env, io};

use common::{eventually, is_open};
use testkit::{ChildProcess, RedisServer};

/// Set in a process that is to keep its server until it is killed.
const KEEP: &str = "TESTKIT_KEEP_SERVER";

#[test]
fn a_started_server_answers_on_its_port() {
    let server = RedisServer::start();
    assert!(is_open(server.port()));
    if env::var_os(KEEP).is_some() {
        println!("\nport {}", server.port());
        io::stdin().read_line(&mut String::new()).unwrap();
    }
}

#[test]
fn a_server_does_not_survive_a_test_process_that_is_killed() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "a_started_server_answers_on_its_port", "--nocapture"]);
    command.env(KEEP, "1");
    let child = ChildProcess::from_command(command);
    let line = child.expect_line("port ");
    let port: u16 = line.trim_start_matches("port ").parse().unwrap();
    assert!(is_open(port));
    child.kill();
    eventually("the orphan is killed", || !is_open(port));
}

#[test]
fn a_missing_redis_server_is_a_failure_that_says_how_to_get_it() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "a_started_server_answers_on_its_port", "--nocapture"]);
    let output = command.env("PATH", "/nonexistent").output().unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("run `cargo xtask test`, which installs it"), "{message}");
}
