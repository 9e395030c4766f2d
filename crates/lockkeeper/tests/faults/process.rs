//! The process of a client dies or is stopped. The test `process` has exits and forks.

use std::time::Duration;

use lockkeeper::Kind;
use testkit::{ChildProcess, RedisServer, example_path};

use crate::support::*;

/// Long enough for what a test does before it expires, in ms.
const LEASE: u64 = 5_000;

fn child(server: &RedisServer, kind: Kind, name: &str, ms: u64, mode: &str) -> ChildProcess {
    let (url, kind, ms) = (server.url(), kind.to_string(), ms.to_string());
    let args = [url.as_str(), &kind, name, &ms, mode];
    ChildProcess::spawn(example_path("hold"), args)
}

/// The counterpart: the lock of a killed process is kept until its lease expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_exits_normally_releases_its_lock_at_once() {
    let server = RedisServer::start();
    let client = connect(&server.url(), options()).await;
    let mut holder = child(&server, Kind::Lock, "a", 60_000, "lease");
    holder.expect_line("held");
    let handle = lock_of(&client, Kind::Lock, "a");
    let waiter = tokio::spawn(async move { handle.lock().await });
    eventually(PATIENCE, "listening", || listeners(&server, "a") == 1).await;
    holder.close_input();
    let guard = within(SOON, "the waiter", joined(waiter)).await;
    assert_held(&server, Kind::Lock, "a", &guard.expect("freed"), 1);
    holder.expect_line("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_is_not_polled_after_the_process_was_stopped_past_the_deadline() {
    let server = RedisServer::start();
    let worker = child(&server, Kind::Lock, "a", LEASE, "run");
    worker.expect_line("work");
    worker.pause();
    while let Some(line) = worker.next_line(ms(50)) {
        assert!(remaining(&line) > Duration::ZERO, "{line}");
    }
    // The lease must really end, at the server too.
    tokio::time::sleep(ms(LEASE + 100)).await;
    let heir = connect(&server.url(), options()).await;
    let heir = lock_of(&heir, Kind::Lock, "a").try_lock().await;
    let heir = heir.expect("reachable").expect("its lease has ended");
    worker.resume();
    let mut line = worker.next_line(PATIENCE).expect("it says how it ends");
    // It was stopped in the middle of a turn: that one began before the deadline.
    if line.starts_with("work") {
        assert!(remaining(&line) > Duration::ZERO, "{line}");
        line = worker.next_line(PATIENCE).expect("it says how it ends");
    }
    assert_eq!(line, "lost Expired");
    assert_eq!(worker.next_line(PATIENCE), None, "work after the loss");
    assert_held(&server, Kind::Lock, "a", &heir, 1);
}

/// The work goes on when the stop was shorter than the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_continues_after_a_stop_within_the_lease() {
    let server = RedisServer::start();
    let worker = child(&server, Kind::Lock, "a", LEASE, "run");
    worker.expect_line("work");
    worker.pause();
    while worker.next_line(ms(50)).is_some() {}
    worker.resume();
    let mut turns = 0;
    let end = loop {
        let line = worker.next_line(PATIENCE).expect("it says how it ends");
        if !line.starts_with("work") {
            break line;
        }
        turns += 1;
    };
    assert_eq!(end, "lost Expired");
    assert!(turns > 5, "{turns}");
}

/// How long the lock was still safe when the work said `line`.
fn remaining(line: &str) -> Duration {
    let millis = line.strip_prefix("work ").and_then(|ms| ms.parse().ok());
    ms(millis.unwrap_or_else(|| panic!("unexpected: {line}")))
}
