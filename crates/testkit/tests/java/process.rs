//! The process: how it starts, who it is, how it ends.

use std::env;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use testkit::{ChildProcess, JavaPeer, RedisServer, Redisson};

use super::common::{eventually, is_open};
use super::{LONG, SHORT, Stage, on_every_version};

/// Set in a process that is to keep its peer until it is killed.
const KEEP: &str = "TESTKIT_KEEP_PEER";

on_every_version! {
    a_peer_knows_its_version
    an_answer_can_be_awaited
    the_watchdog_can_be_quick
}

fn process_is_gone(pid: u32) -> bool {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    test_kill_process(pid) == Err(Errno::SRCH)
}

fn a_peer_knows_its_version(redisson: Redisson) {
    let peer = &Stage::of(redisson).peer;
    let prefix = match redisson {
        Redisson::Newest => "4.",
        Redisson::V3_27 => "3.27.",
        Redisson::V3_14 => "3.14.",
    };
    assert!(peer.redisson_version().starts_with(prefix), "{}", peer.redisson_version());
    assert_eq!(peer.client_id().len(), 36);
    assert!(peer.clock_error() < LONG);
}

fn an_answer_can_be_awaited(redisson: Redisson) {
    let stage = Stage::of(redisson);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let (one, two) = (stage.on("await 1").lock("await"), stage.on("await 2").lock("await"));
        one.lock().await.ok();
        let waits = two.lock();
        // On one thread: if the wait blocked it, nobody would release.
        let release = async { one.unlock().await.ok() };
        let (granted, ()) = tokio::join!(waits, release);
        granted.ok();
        two.unlock().await.ok();
    });
}

fn the_watchdog_can_be_quick(redisson: Redisson) {
    let server = RedisServer::start();
    let watchdog = Duration::from_secs(6);
    let peer = JavaPeer::builder(redisson).watchdog(watchdog).start(&server.url());
    let lock = peer.on("one").lock("x");
    lock.lock().ok();
    let mut last = server.cli(&["PTTL", "x"]).int();
    assert!((1..=6000).contains(&last), "{last}");
    eventually("the lock is renewed", || {
        let now = server.cli(&["PTTL", "x"]).int();
        assert!((1..=6000).contains(&now), "{now}");
        std::mem::replace(&mut last, now) < now
    });
    lock.unlock().ok();
    assert_eq!(server.cli(&["EXISTS", "x"]).int(), 0);
}

#[test]
fn a_killed_peer_is_gone_even_if_it_was_paused_and_its_lock_stays_until_it_ends() {
    let server = RedisServer::start();
    let peer = JavaPeer::start(Redisson::Newest, &server.url());
    let pid = peer.pid();
    peer.on("one").lock("x").lock().ok();
    let waits = peer.on("two").lock("x").lock();
    peer.pause();
    let late = peer.on("three").lock("x").is_locked();
    assert!(late.answer_within(SHORT).is_none());
    peer.resume();
    assert!(late.ok());
    peer.pause();
    peer.kill();
    assert!(process_is_gone(pid));
    eventually("nobody waits for it", || !waits.is_pending());
    assert!((1..=30_000).contains(&server.cli(&["PTTL", "x"]).int()));
}

#[test]
#[should_panic(expected = "ended without an answer: two lock lock x")]
fn waiting_for_a_killed_peer_is_a_failure() {
    let server = RedisServer::start();
    let peer = JavaPeer::start(Redisson::Newest, &server.url());
    peer.on("one").lock("x").lock().ok();
    let waits = peer.on("two").lock("x").lock();
    peer.kill();
    waits.ok();
}

#[test]
fn a_peer_ends_with_its_input_though_a_worker_waits() {
    let server = RedisServer::start();
    let peer = JavaPeer::start(Redisson::Newest, &server.url());
    peer.on("one").lock("x").lock().ok();
    let waits = peer.on("two").lock("x").lock();
    assert!(peer.close().success());
    eventually("nobody waits for it", || !waits.is_pending());
    assert_eq!(server.cli(&["EXISTS", "x"]).int(), 1, "it died, it did not shut down");
}

/// Also run by the two tests below, in a process of its own.
#[test]
fn a_peer_can_use_a_password() {
    let server = RedisServer::builder().password("pa:s/s").start();
    let peer = JavaPeer::start(Redisson::Newest, &server.url());
    assert!(peer.on("one").lock("x").try_lock().ok());
    if env::var_os(KEEP).is_some() {
        println!("\npeer {}", peer.pid());
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }
}

#[test]
fn a_peer_does_not_survive_a_test_process_that_is_killed() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "process::a_peer_can_use_a_password", "--nocapture"]);
    command.env(KEEP, "1");
    let child = ChildProcess::from_command(command);
    let line = child.expect_line("peer ");
    let pid: u32 = line.trim_start_matches("peer ").parse().unwrap();
    assert!(!process_is_gone(pid));
    child.kill();
    eventually("the orphan is killed", || process_is_gone(pid));
}

#[test]
fn a_missing_jvm_is_a_failure_that_says_how_to_get_it() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "process::a_peer_can_use_a_password", "--nocapture"]);
    let output = command.env("JAVA_HOME", "/nonexistent").output().unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("run `cargo xtask interop`, which installs them"), "{message}");
}

#[test]
#[should_panic(expected = "RedisConnectionException")]
fn a_missing_server_is_a_failure() {
    let server = RedisServer::start();
    server.kill();
    assert!(!is_open(server.port()));
    JavaPeer::start(Redisson::Newest, &server.url());
}

#[test]
fn a_peer_can_use_a_cluster() {
    let server = RedisServer::builder()
        .arg("--cluster-enabled", "yes")
        .arg("--cluster-announce-ip", "127.0.0.1")
        .start();
    server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).ok();
    eventually("the cluster is up", || {
        server.cli(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok")
    });
    let peer = JavaPeer::builder(Redisson::Newest).start_cluster(&[&server.url()]);
    peer.on("one").lock("x").lock().ok();
    assert!(peer.on("two").lock("x").is_locked().ok());
    peer.on("one").lock("x").unlock().ok();
}

#[test]
fn the_wait_in_a_fair_queue_can_be_short_in_the_newest() {
    let server = RedisServer::start();
    let builder = JavaPeer::builder(Redisson::Newest).fair_wait(Duration::from_secs(3)).log("warn");
    let peer = builder.start(&server.url());
    peer.on("one").fair("x").lock().ok();
    let waits = peer.on("two").fair("x").lock();
    let queue = "redisson_lock_timeout:{x}";
    eventually("it is in the queue", || server.cli(&["ZCARD", queue]).int() == 1);
    // Its turn is over when the holder's lease and its own wait are.
    let due = server.cli(&["ZRANGE", queue, "0", "-1", "WITHSCORES"]).array()[1].int();
    let now = server.cli(&["TIME"]).array()[0].int() * 1000;
    assert!(due - now <= 30_000 + 4_000, "{}", due - now);
    peer.on("one").fair("x").unlock().ok();
    waits.ok();
}
