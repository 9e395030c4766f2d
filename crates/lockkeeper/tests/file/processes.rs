//! Other processes: one that waits, one that stops in the middle of a transaction, one that is started by
//! us and must not inherit anything.

use std::io::Read;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lockkeeper::backend::{Acquire, Fault};
use lockkeeper::stores::File;
use lockkeeper::{Error, OwnerId};
use rusqlite::Connection;
use testkit::{Flaky, Stopwatch, Verb};

use super::*;

/// Says when it has tried for the last time before it sleeps: until then it needs no wake-up.
/// A process of the test below.
pub(crate) fn one_that_waits() {
    let (_, path) = given();
    block_on(async {
        let options = ClientOptions::new();
        let backend = Flaky::new(Arc::new(File::open(&path, &options).await.unwrap()));
        let client = Client::with_backend(backend.backend(), options).unwrap();
        let waiting = tokio::spawn(async move { client.lock("it").lock().await });
        let idle = async || backend.calls(Verb::Acquire) == 2 && backend.outstanding() == 0;
        eventually("it sleeps", idle).await;
        println!("waits");
        let guard = waiting.await.unwrap().unwrap();
        println!("has it");
        guard.release().await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_in_another_process_is_woken_at_once() {
    let file = LockFile::new();
    let lock = connect(&file).await.lock("it");
    let mut quickest = Duration::MAX;
    for _ in 0..15 {
        let guard = lock.lease(PATIENCE).lock().await.unwrap();
        let mut waiter = child("processes::one_that_waits", "", &file.path().display().to_string());
        waiter.expect_line("waits");
        let start = Instant::now();
        guard.release().await.unwrap();
        waiter.expect_line("has it");
        quickest = quickest.min(start.elapsed());
        assert!(waiter.wait(PATIENCE).is_some(), "it gives it back");
        if quickest < ms(100) {
            return;
        }
    }
    panic!("woken after {quickest:?} at best, which is no wake-up");
}

/// A process of the test below.
pub(crate) fn one_in_a_transaction() {
    let (_, path) = given();
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
    let patient = connect_with(&file, ClientOptions::new().response_timeout(PATIENCE)).await;
    let (kept, lock) = (client.lock("kept").lock().await.unwrap(), client.lock("it"));
    let stopped =
        child("processes::one_in_a_transaction", &file.url(), &file.path().display().to_string());
    stopped.expect_line("in it");
    stopped.pause();

    let (start, watch) = (Instant::now(), Stopwatch::start());
    let failed = lock.try_lock().await;
    let (took, awake) = (start.elapsed(), watch.elapsed());
    assert!(matches!(failed, Err(Error::Unreachable { .. })), "{failed:?}");
    assert!(took >= ms(350) && awake < SOON, "{took:?}");
    let backend = file.backend(&options).await;
    let request = Acquire::new(resource(Kind::Lock, "it"), OwnerId::fresh(client.id()), 1000);
    let fault = backend.acquire(request).await.expect_err("nobody can write");
    assert!(matches!(fault, Fault::Unreachable { maybe_ran: false, .. }), "{fault:?}");
    // A reader is not blocked, and sees what was committed.
    assert!(patient.lock("it").hold_count(&patient.new_owner()).await.is_ok());
    assert!(patient.lock("kept").is_locked().await.unwrap());

    let waiting = tokio::spawn(async move { lock.lock().await });
    stopped.kill();
    let guard = within(PATIENCE, "it is ridden out", waiting).await.unwrap().unwrap();
    assert!(!guard.is_lost() && !kept.is_lost());
    assert!(patient.lock("kept").is_locked().await.unwrap(), "what it did was never committed");
    kept.release().await.unwrap();
}

/// Another process writes all the time, and does not queue for the write lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_others_write_to_all_the_time_is_busy_and_not_unreachable() {
    let file = LockFile::new();
    let options = ClientOptions::new().response_timeout(ms(300)).unreachable_after(ms(3000));
    let client = connect_with(&file, options).await;
    let (database, stop) = (file.look(), Arc::new(AtomicBool::new(false)));
    let (begun, begins) = tokio::sync::oneshot::channel();
    let writer = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let begin = || {
                database.execute_batch("BEGIN IMMEDIATE; UPDATE chores SET next = randomblob(4)")
            };
            begin().unwrap();
            begun.send(()).unwrap();
            for _ in 0..20 {
                std::thread::sleep(ms(250));
                database.execute_batch("COMMIT").unwrap();
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                begin().unwrap();
            }
            database.execute_batch("COMMIT").unwrap();
        }
    });
    begins.await.unwrap();
    let lock = client.lock("it");
    let got = within(PATIENCE, "it is the waiter's turn in the end", lock.lock()).await;
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    got.expect("others have written all the while").release().await.unwrap();
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
    let rings = async || open(&std::process::id().to_string()).contains("locks.db-bell");
    eventually("so is what listens", rings).await;
    let inherited = open("self");
    assert!(!inherited.contains("locks.db"), "{inherited}");
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
fn a_runtime_without_io_is_enough() {
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

/// A process of the test below.
pub(crate) fn one_that_opens() {
    let (url, _) = given();
    block_on(async {
        let client = Client::connect(&url).await.expect("all can open it");
        client.lock("it").lock().await.unwrap().release().await.unwrap();
        println!("done");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_open_a_new_file_at_once_open_the_same() {
    for _ in 0..5 {
        let file = LockFile::new();
        let start = || child("processes::one_that_opens", &file.url(), "");
        let children: Vec<_> = (0..6).map(|_| start()).collect();
        let open = |url: String| tokio::spawn(async move { Client::connect(&url).await });
        let opening: Vec<_> = (0..6).map(|_| open(file.url())).collect();
        let mut clients = Vec::new();
        for client in opening {
            clients.push(client.await.unwrap().expect("all can open it"));
        }
        children.iter().for_each(|child| drop(child.expect_line("done")));
        let guard = clients[0].lock("it").lock().await.unwrap();
        assert!(clients[5].lock("it").try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
        assert_eq!(file.count("SELECT count(*) FROM chores", []), 1, "it was made once");
    }
}
