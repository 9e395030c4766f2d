//! The file is taken away while it is in use. Others would open another one, so that locks in this one
//! exclude nobody: their holders are told.

use std::fs;
use std::path::PathBuf;

use lockkeeper::{Guard, LostReason};

use super::*;

/// The file and those beside it.
fn files(file: &LockFile) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|suffix| {
        let mut path = file.path().into_os_string();
        path.push(suffix);
        path.into()
    })
}

/// Two clients with a lock each, one that is renewed and one that is not, and which are known to listen.
async fn holders(file: &LockFile) -> ([Client; 2], [Guard; 2]) {
    let clients = [connect(file).await, connect(file).await];
    let renewed = clients[0].lock("renewed").lock().await.unwrap();
    let fixed = clients[1].lock("fixed").lock().lease(PATIENCE).await.unwrap();
    eventually("they listen", async || file.listeners("notice") == 2).await;
    (clients, [renewed, fixed])
}

async fn lost(guards: [Guard; 2], clients: &[Client; 2], file: &LockFile) {
    for guard in guards {
        let reason = within(SOON, "the loss", guard.lost()).await;
        assert_eq!(reason, LostReason::Deleted, "{}", guard.name());
    }
    // All go on with the file that is there now, and exclude each other again.
    let newcomer = connect(file).await;
    let guard = newcomer.lock("renewed").lock().lease(PATIENCE).await.unwrap();
    for client in clients {
        assert!(client.lock("renewed").try_lock().await.unwrap().is_none());
    }
    let waiting = clients[0].lock("renewed");
    let waiting = tokio::spawn(async move { waiting.lock().await.map(drop) });
    eventually("it waits", async || file.listeners("freed renewed") == 1).await;
    guard.release().await.unwrap();
    within(SOON, "it is told", waiting).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_file_is_deleted_holders_lose_their_locks_at_once() {
    let file = LockFile::new();
    let (clients, guards) = holders(&file).await;
    for path in files(&file) {
        fs::remove_file(path).unwrap();
    }
    lost(guards, &clients, &file).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_another_file_takes_its_place_holders_lose_their_locks_at_once() {
    let (file, other) = (LockFile::new(), LockFile::new());
    connect(&other).await.shutdown().await;
    // Whoever moves a database moves all of it.
    let whole: String = other
        .look()
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok("whole".to_owned()))
        .unwrap();
    assert_eq!(whole, "whole");
    let (clients, guards) = holders(&file).await;
    for path in &files(&file)[1..] {
        fs::remove_file(path).unwrap();
    }
    fs::rename(other.path(), file.path()).unwrap();
    lost(guards, &clients, &file).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_is_not_forgotten_when_the_file_is_deleted() {
    let file = LockFile::new();
    let (holder, waiter) = (connect(&file).await, connect(&file).await);
    let guard = holder.lock("it").lock().lease(PATIENCE).await.unwrap();
    let lock = waiter.lock("it");
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually("it waits", async || file.listeners("freed it") == 1).await;
    for path in files(&file) {
        fs::remove_file(path).unwrap();
    }
    let next = within(SOON, "it is free in the new file", waiting).await.unwrap().unwrap();
    // The waiter may have been quicker.
    let reason = within(SOON, "the loss", guard.lost()).await;
    assert!(matches!(reason, LostReason::Deleted | LostReason::Taken), "{reason:?}");
    assert!(!next.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_opened_again_is_asked_for_until_it_can() {
    let file = LockFile::new();
    let client = connect(&file).await;
    client.lock("it").lock().await.unwrap().release().await.unwrap();
    let [path, ..] = files(&file);
    for path in files(&file) {
        fs::remove_file(path).unwrap();
    }
    fs::create_dir(&path).unwrap();
    let refused = client.lock("it").try_lock().await.expect_err("it is a directory");
    assert!(refused.to_string().contains(&path.display().to_string()), "{refused}");
    fs::remove_dir(&path).unwrap();
    assert!(client.lock("it").try_lock().await.unwrap().is_some());
}
