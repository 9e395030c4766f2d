//! Other processes: one that waits, one that stops in the middle of a transaction, one that is started by
//! us and must not inherit anything.

use std::io::Read;
use std::process::Command;
use std::time::Instant;

use lockkeeper::backend::{Acquire, Fault};
use lockkeeper::{Error, OwnerId};
use rusqlite::Connection;
use testkit::{ChildProcess, example_path};

use super::*;

/// A process that takes the lock and says `held`.
fn holder(file: &LockFile, name: &str, ms: u64, mode: &str) -> ChildProcess {
    let args = [file.url().as_str(), "lock", name, &ms.to_string(), mode].map(str::to_owned);
    ChildProcess::spawn(example_path("hold"), args)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_in_another_process_is_woken_at_once() {
    let file = LockFile::new();
    let lock = connect(&file).await.lock("it");
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let guard = lock.lock().lease(PATIENCE).await.unwrap();
        let waiter = holder(&file, "it", 30_000, "lease");
        eventually("it waits", async || file.listeners("freed it") == 1).await;
        let start = Instant::now();
        guard.release().await.unwrap();
        waiter.expect_line("held");
        quickest = quickest.min(start.elapsed());
        waiter.kill();
        lock.force_unlock().await.unwrap();
        if quickest < ms(100) {
            return;
        }
    }
    panic!("woken after {quickest:?} at best, which is no wake-up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_killed_process_goes_to_the_next_when_its_lease_ends_and_not_before() {
    let file = LockFile::new();
    let lock = connect(&file).await.lock("it");
    let holder = holder(&file, "it", 1500, "renewed");
    holder.expect_line("held");
    let waiter = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.lock().await.map(|_| Instant::now()) })
    };
    eventually("it waits", async || file.listeners("freed it") == 1).await;
    holder.kill();
    let lockkeeper::Remaining::For(left) = lock.remaining().await.unwrap() else {
        panic!("it is held for a while")
    };
    let ends = Instant::now() + left;
    let granted = within(ms(1500) + SOON, "the waiter", waiter).await.unwrap().unwrap();
    assert!(granted + ms(5) > ends, "{:?} before its end", ends - granted);
    assert!(granted < ends + SOON, "{:?} after its end", granted - ends);
}

#[test]
#[ignore = "a process of the test below"]
fn one_in_a_transaction() {
    let Some((_, path)) = given() else { return };
    let database = Connection::open(path).unwrap();
    database.busy_timeout(PATIENCE).unwrap();
    database.execute_batch("BEGIN IMMEDIATE; DELETE FROM names;").unwrap();
    println!("in it");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stops_in_a_transaction_is_an_outage_and_no_more() {
    let file = LockFile::new();
    let options = ClientOptions::new().response_timeout(ms(400)).watchdog_timeout(PATIENCE);
    let client = connect_with(&file, options.clone()).await;
    let (kept, lock) = (client.lock("kept").lock().await.unwrap(), client.lock("it"));
    let stopped =
        child("processes::one_in_a_transaction", &file.url(), &file.path().display().to_string());
    stopped.expect_line("in it");
    stopped.pause();

    let start = Instant::now();
    let failed = lock.try_lock().await;
    let took = start.elapsed();
    assert!(matches!(failed, Err(Error::Unreachable { .. })), "{failed:?}");
    assert!(took >= ms(350) && took < SOON, "{took:?}");
    let backend = file.backend(&options).await;
    let request = Acquire::new(resource(Kind::Lock, "it"), OwnerId::fresh(client.id()), 1000);
    let fault = backend.acquire(request).await.expect_err("nobody can write");
    assert!(matches!(fault, Fault::Unreachable { maybe_ran: false, .. }), "{fault:?}");
    // Whoever only looks is not kept from it, and sees what was committed.
    assert!(lock.as_owner(&client.owner()).is_held_by(&client.owner()).await.is_ok());
    assert!(client.lock("kept").is_locked().await.unwrap());

    let waiting = tokio::spawn(async move { lock.lock().await });
    stopped.kill();
    let guard = within(PATIENCE, "it is ridden out", waiting).await.unwrap().unwrap();
    assert!(!guard.is_lost() && !kept.is_lost());
    assert!(client.lock("kept").is_locked().await.unwrap(), "what it did was never committed");
    kept.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_that_are_started_inherit_nothing_of_the_store() {
    let file = LockFile::new();
    let client = connect(&file).await;
    // Listens, too.
    let guard = client.lock("it").lock().await.unwrap();
    eventually("it listens", async || file.listeners("notice") == 1).await;
    let open = |what: &str| {
        let found = Command::new("ls").args(["-l", &format!("/proc/{what}/fd")]).output().unwrap();
        String::from_utf8_lossy(&found.stdout).into_owned()
    };
    assert!(open(&std::process::id().to_string()).contains("locks.db-wal"), "it is open here");
    assert!(open(&std::process::id().to_string()).contains("inotify"), "so is what listens");
    let inherited = open("self");
    for what in ["locks.db", "inotify"] {
        assert!(!inherited.contains(what), "{inherited}");
    }
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_closed_or_dropped_ends_its_thread() {
    // A file for each: while one client has it open SQLite keeps what others have closed.
    let (first, second) = (LockFile::new(), LockFile::new());
    let (closed, dropped) = (connect(&first).await, connect(&second).await);
    assert!(first.is_open_here() && second.is_open_here());
    closed.shutdown().await;
    assert!(!first.is_open_here(), "shutdown waits for it");
    drop(dropped);
    eventually("the other is gone, too", async || !second.is_open_here()).await;
}

/// It waits on a thread of its own, not by the runtime.
#[test]
fn a_runtime_that_only_has_a_clock_is_enough() {
    let file = LockFile::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let (ours, theirs) = (connect(&file).await, connect(&file).await);
        let guard = ours.lock("it").lock().await.unwrap();
        let lock = theirs.lock("it");
        let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
        eventually("it waits", async || file.listeners("freed it") == 1).await;
        guard.release().await.unwrap();
        within(SOON, "it is told", waiting).await.unwrap().unwrap();
        ours.shutdown().await;
    });
}
