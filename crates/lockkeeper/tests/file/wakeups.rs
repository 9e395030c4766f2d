//! Wake-ups that go missing, and listeners that go away.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

use lockkeeper::backend::{Acquire, Backend, Release, Released, Topic};
use lockkeeper::{LockName, OwnerId};
use rusqlite::params;
use uuid::Uuid;

use super::*;

fn freed(name: &str) -> Topic {
    Topic::Freed(LockName::from(name))
}

/// Acquires and releases a lock; returns how many listeners were woken.
async fn release(backend: &dyn Backend, name: &str) -> u64 {
    let (lock, owner) = (resource(Kind::Lock, name), OwnerId::fresh(Uuid::new_v4()));
    backend.acquire(Acquire::new(lock.clone(), owner, 10_000)).await.unwrap();
    match backend.release(Release::new(lock, owner)).await.unwrap() {
        Released::Freed { listeners } => listeners.expect("they are counted"),
        other => panic!("expected it to be freed, got {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_missed_messages_is_woken() {
    let file = LockFile::new();
    let options = ClientOptions::new();
    let (ours, theirs) = (file.backend(&options).await, file.backend(&options).await);
    let told = ours.subscribe(freed("told")).await.unwrap();
    let other = ours.subscribe(freed("other")).await.unwrap();
    let checks = ours.subscribe(Topic::Reconnected).await.unwrap();
    let (seen, checked) = (other.seen(), checks.seen());
    assert_eq!(release(&*theirs, "told").await, 1);
    within(SOON, "it is told", told.beyond(told.seen() - 1)).await;
    assert_eq!((other.seen(), checks.seen()), (seen, checked), "nobody else is");
    // The next is numbered as if many had been swept away before it was read.
    let gap = "INSERT INTO messages SELECT max(id) + 100, at, topic, payload FROM messages";
    file.look().execute(gap, []).unwrap();
    assert_eq!(release(&*theirs, "told").await, 1);
    within(SOON, "the others look again", other.beyond(seen)).await;
    within(SOON, "holds are looked after", checks.beyond(checked)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_was_removed_returns_and_rechecks() {
    let file = LockFile::new();
    let backend = file.backend(&ClientOptions::new()).await;
    let told = backend.subscribe(freed("it")).await.unwrap();
    let seen = told.seen();
    file.look().execute_batch("DELETE FROM sessions; DELETE FROM listeners").unwrap();
    assert_eq!(release(&*backend, "it").await, 0, "nobody knows of it");
    within(PATIENCE, "it looks again", told.beyond(seen)).await;
    eventually("it is known again", async || file.listeners("freed it") == 1).await;
    assert_eq!(release(&*backend, "it").await, 1);
}

/// The named pipes beside the file, and their modes.
fn pipes(file: &LockFile) -> Vec<(PathBuf, u32)> {
    let found = fs::read_dir(file.folder()).unwrap().map(|entry| entry.unwrap());
    let pipes = found.filter(|entry| entry.file_type().unwrap().is_fifo());
    pipes.map(|pipe| (pipe.path(), pipe.metadata().unwrap().mode() & 0o777)).collect()
}

/// A sweep of another process removes the pipe of a session that has lapsed: its client must hang up
/// another, by which others find it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_whose_pipe_was_removed_creates_another() {
    let file = LockFile::new();
    let backend = file.backend(&ClientOptions::new()).await;
    let _told = backend.subscribe(freed("it")).await.unwrap();
    let (removed, _) = pipes(&file).pop().expect("it listens");
    file.look().execute_batch("DELETE FROM sessions; DELETE FROM listeners").unwrap();
    fs::remove_file(&removed).unwrap();
    eventually("it is known again", async || file.listeners("freed it") == 1).await;
    let id: i64 = file.look().query_row("SELECT id FROM sessions", [], |row| row.get(0)).unwrap();
    let (pipe, _) = pipes(&file).pop().expect("others can wake it");
    assert!(pipe.display().to_string().ends_with(&format!("-bell-{id:016x}")), "{pipe:?}");
}

/// Only users with write permission can wake its listeners.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_is_writable_for_every_user_of_the_file() {
    for (file_mode, pipe_mode) in [(0o600, 0o600), (0o644, 0o600), (0o660, 0o620), (0o666, 0o622)] {
        let file = LockFile::new();
        let backend = file.backend(&ClientOptions::new()).await;
        fs::set_permissions(file.path(), fs::Permissions::from_mode(file_mode)).unwrap();
        let _told = backend.subscribe(freed("it")).await.unwrap();
        let modes: Vec<_> = pipes(&file).into_iter().map(|(_, mode)| mode).collect();
        assert_eq!(modes, [pipe_mode], "the file is {file_mode:o}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_of_a_dead_process_are_swept() {
    let file = LockFile::new();
    let client = connect(&file).await;
    let backend = file.backend(&ClientOptions::new()).await;
    let guard = client.lock("it").lease(PATIENCE).lock().await.unwrap();
    let waiter = child("wakeups::one_that_waits", &file.url(), "it");
    eventually("it waits", async || file.listeners("freed it") == 1).await;
    waiter.kill();
    let ends = "SELECT ends FROM sessions JOIN listeners ON session = sessions.id
        WHERE instr(topic, ?1) > 0";
    let (look, topic) = (file.look(), b"freed it");
    let ends = |given: &[u8]| look.query_row(ends, [given], |row| row.get::<_, i64>(0)).unwrap();
    let left = ends(topic) - since_start();
    assert!((0..=10_000).contains(&left), "{left}: it ends by itself, before long");
    guard.release().await.unwrap();
    // As if that time had passed.
    let passed = "UPDATE sessions SET ends = ?1 WHERE id IN
        (SELECT session FROM listeners WHERE instr(topic, ?2) > 0)";
    look.execute(passed, params![since_start() - 1, topic]).unwrap();
    assert_eq!(release(&*backend, "it").await, 0);
    for _ in 0..70 {
        release(&*backend, "another").await;
    }
    assert_eq!(file.listeners("freed it"), 0);
}

/// A process of the test above.
pub(crate) fn one_that_waits() {
    let (url, name) = given();
    block_on(async {
        let client = Client::connect(&url).await.unwrap();
        let _guard = client.lock(name).lock().await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_a_few_of_many_waiters() {
    let file = LockFile::new();
    let options = ClientOptions::new();
    let ours = file.backend(&options).await;
    let mut listening = Vec::new();
    for _ in 0..20 {
        let theirs = file.backend(&options).await;
        let told = theirs.subscribe(freed("it")).await.unwrap();
        listening.push((theirs, told));
    }
    let before: Vec<_> = listening.iter().map(|(_, told)| told.seen()).collect();
    assert_eq!(release(&*ours, "it").await, 4, "one that can have it, and three more");
    let woken = || listening.iter().zip(&before).filter(|((_, told), seen)| told.seen() > **seen);
    eventually("they are woken", async || woken().count() > 0).await;
    // All of those who read the file at the same moment, because of a release of theirs or a new
    // listener, learn of it, too. Here is none.
    assert_eq!(file.listeners("freed it"), 20, "the others listen on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_a_live_waiter_beside_stale_ones() {
    let file = LockFile::new();
    let client = connect(&file).await;
    let guard = client.lock("it").lease(PATIENCE).lock().await.unwrap();
    let waiters: Vec<_> =
        (0..6).map(|_| child("wakeups::one_that_waits", &file.url(), "it")).collect();
    eventually("all wait", async || file.listeners("freed it") == 6).await;
    waiters.into_iter().for_each(testkit::ChildProcess::kill);
    let backend = file.backend(&ClientOptions::new()).await;
    let told = backend.subscribe(freed("it")).await.unwrap();
    let seen = told.seen();
    guard.release().await.unwrap();
    within(SOON, "the one that lives is woken", told.beyond(seen)).await;
    eventually("the dead are struck off", async || file.listeners("freed it") == 1).await;
    let beside =
        || std::fs::read_dir(file.folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let bells = || beside().filter(|name| name.to_string_lossy().contains("-bell-")).count();
    // Its own, and the client's, which hears of forced unlocks.
    eventually("so are their bells", async || bells() <= 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_written_only_for_listeners_and_swept() {
    let file = LockFile::new();
    let backend = file.backend(&ClientOptions::new()).await;
    let messages = || file.count("SELECT count(*) FROM messages", []);
    assert_eq!(release(&*backend, "it").await, 0);
    assert_eq!(messages(), 0);
    let told = backend.subscribe(freed("it")).await.unwrap();
    for _ in 0..10 {
        assert_eq!(release(&*backend, "it").await, 1);
    }
    assert_eq!(messages(), 10);
    drop(told);
    file.look().execute("UPDATE messages SET at = at - 60000", []).unwrap();
    for _ in 0..70 {
        release(&*backend, "it").await;
    }
    assert_eq!(messages(), 1, "the last one stays, for its number");
    let told = backend.subscribe(freed("it")).await.unwrap();
    let seen = told.seen();
    release(&*backend, "it").await;
    within(SOON, "numbers go on", told.beyond(seen)).await;
}

/// Milliseconds since the machine was started.
fn since_start() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}
