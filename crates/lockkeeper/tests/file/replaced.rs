//! The file is taken away while it is in use. Others would open another one, so that locks in this one
//! exclude nobody: their holders are told.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use lockkeeper::backend::{Acquire, Change, Changed, CountChange};
use lockkeeper::stores::File;
use lockkeeper::{LockGuard, LostReason, OwnerId};
use testkit::{Flaky, Gate};
use uuid::Uuid;

use super::*;

/// The file and its companion files.
fn files(file: &LockFile) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|suffix| {
        let mut path = file.path().into_os_string();
        path.push(suffix);
        path.into()
    })
}

/// Two clients with a lock each, one that is renewed and one that is not, and which are known to listen.
async fn holders(file: &LockFile) -> ([Client; 2], [LockGuard; 2]) {
    let clients = [connect(file).await, connect(file).await];
    let renewed = clients[0].lock("renewed").lock().await.unwrap();
    let fixed = clients[1].lock("fixed").lease(PATIENCE).lock().await.unwrap();
    eventually("they listen", async || file.listeners("notice") == 2).await;
    (clients, [renewed, fixed])
}

async fn lost(guards: [LockGuard; 2], clients: &[Client; 2], file: &LockFile) {
    for guard in guards {
        let reason = within(SOON, "the loss", guard.lost()).await;
        assert_eq!(reason, LostReason::Deleted, "{}", guard.name());
    }
    // All go on with the file that is there now, and exclude each other again.
    let newcomer = connect(file).await;
    let guard = newcomer.lock("renewed").lease(PATIENCE).lock().await.unwrap();
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
async fn holders_are_lost_at_once_when_the_file_is_replaced() {
    let (file, other) = (LockFile::new(), LockFile::new());
    connect(&other).await.shutdown().await;
    // The companion files are moved, too.
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
async fn a_waiter_continues_after_the_file_is_deleted() {
    let file = LockFile::new();
    let (holder, waiter) = (connect(&file).await, connect(&file).await);
    let guard = holder.lock("it").lease(PATIENCE).lock().await.unwrap();
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
async fn a_file_that_cannot_be_reopened_is_retried() {
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

/// A process of the test below.
pub(crate) fn one_that_is_idle() {
    let (url, _) = given();
    block_on(async {
        let client = Client::connect(&url).await.unwrap();
        assert!(!client.lock("it").is_locked().await.unwrap());
        println!("open");
        std::future::pending::<()>().await;
    });
}

/// SQLite takes the files beside it for those of the new one, as long as another process has the old one
/// open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_client_closes_a_deleted_file() {
    let file = LockFile::new();
    let idle = child("replaced::one_that_is_idle", &file.url(), "");
    idle.expect_line("open");
    fs::remove_file(file.path()).unwrap();
    let options = ClientOptions::new().connect_timeout(PATIENCE);
    let newcomer = within(PATIENCE, "it lets go", connect_with(&file, options)).await;
    newcomer.lock("it").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_client_does_not_recreate_a_deleted_file() {
    let file = LockFile::new();
    let idle = connect(&file).await;
    assert!(!idle.lock("it").is_locked().await.unwrap());
    for path in files(&file) {
        fs::remove_file(path).unwrap();
    }
    eventually("it lets go", async || open_files(&file) == 0).await;
    assert_eq!(files(&file).map(|path| path.exists()), [false; 3]);
    assert!(idle.lock("it").try_lock().await.unwrap().is_some(), "it is made for who asks");
}

/// How many descriptors of this process are of files in its directory, deleted ones included.
fn open_files(file: &LockFile) -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok());
    let targets = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter(|target| target.starts_with(file.folder())).count()
}

/// In its first second a client that listens looks at the file all the time; it is to be past that.
const LOOKED_AT: Duration = Duration::from_millis(1500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_directory_is_moved_holders_lose_their_locks_soon() {
    let file = LockFile::new();
    let place = file.folder().join("place");
    let path = place.join("locks.db");
    fs::create_dir(&place).unwrap();
    let options = ClientOptions::new().watchdog_timeout(PATIENCE * 3);
    let url = format!("file:{}", path.display());
    let client = Client::connect_with(&url, options).await.unwrap();
    // Its next renewal is long away, and the kernel does not tell.
    let guard = client.lock("it").lock().await.unwrap();
    tokio::time::sleep(LOOKED_AT).await;
    fs::rename(&place, file.folder().join("elsewhere")).unwrap();
    fs::create_dir(&place).unwrap();
    let reason = within(PATIENCE * 2 / 3, "the loss", guard.lost()).await;
    assert_eq!(reason, LostReason::Deleted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_link_leads_elsewhere_holders_lose_their_locks_soon() {
    let file = LockFile::new();
    let [first, second, link] = ["first", "second", "link"].map(|name| file.folder().join(name));
    fs::create_dir(&first).unwrap();
    fs::create_dir(&second).unwrap();
    std::os::unix::fs::symlink(&first, &link).unwrap();
    let url = format!("file:{}", link.join("locks.db").display());
    let options = ClientOptions::new().watchdog_timeout(PATIENCE * 3);
    let client = Client::connect_with(&url, options).await.unwrap();
    let guard = client.lock("it").lock().await.unwrap();
    tokio::time::sleep(LOOKED_AT).await;
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&second, &link).unwrap();
    let reason = within(PATIENCE * 2 / 3, "the loss", guard.lost()).await;
    assert_eq!(reason, LostReason::Deleted);
    let guard = client.lock("it").lock().await.unwrap();
    let newcomer = Client::connect(&url).await.unwrap();
    assert!(newcomer.lock("it").try_lock().await.unwrap().is_none(), "both go by the link");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_receives_notices_again_after_its_file_was_inaccessible() {
    let file = LockFile::new();
    let [place, away] = ["place", "away"].map(|name| file.folder().join(name));
    fs::create_dir(&place).unwrap();
    let url = format!("file:{}", place.join("locks.db").display());
    let (options, other) = (ClientOptions::new(), Client::connect(&url).await.unwrap());
    let backend = File::open(place.join("locks.db").to_str().unwrap(), &options).await.unwrap();
    let flaky = Flaky::new(Arc::new(backend));
    let holder = Client::with_backend(flaky.backend(), options).unwrap();
    let sessions = || {
        let look = rusqlite::Connection::open(place.join("locks.db")).unwrap();
        let sql = "SELECT session FROM listeners WHERE CAST(topic AS TEXT) LIKE 'notice%'";
        let mut select = look.prepare(sql).unwrap();
        let rows = select.query_map([], |row| row.get::<_, i64>(0)).unwrap();
        rows.map(Result::unwrap).collect::<Vec<_>>()
    };
    // Its next renewal is long away.
    let guard = holder.lock("it").lease(PATIENCE * 3).lock().await.unwrap();
    eventually("it listens", async || !sessions().is_empty()).await;
    let before = sessions();
    fs::rename(&place, &away).unwrap();
    let unreachable = holder.lock("another").try_lock().await.expect_err("there is no directory");
    assert!(matches!(unreachable, lockkeeper::Error::Refused { .. }), "{unreachable}");
    // It also checks its holds again then. A check after the force-release would find a deleted lock.
    flaky.script(std::iter::repeat_n(Gate::Never, 1000));
    fs::rename(&away, &place).unwrap();
    eventually("it listens again", async || sessions().iter().any(|id| !before.contains(id))).await;
    assert!(!guard.is_lost());
    assert!(other.inspector().force_unlock("it", Kind::Lock, None, "a test").await.unwrap());
    let reason = within(SOON, "it is told", guard.lost()).await;
    assert_eq!(reason, LostReason::Revoked("a test".to_owned()));
    flaky.open();
}

/// The thread has opened the file for a client that was dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connect_that_is_dropped_leaves_nothing_open() {
    let file = LockFile::new();
    let url = file.url();
    for moment in 0..20 {
        let mut connecting = Box::pin(Client::connect(&url));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        // On a slow machine the thread may have opened it by now.
        let polled = connecting.as_mut().poll(&mut context);
        eventually("it is open", async || open_files(&file) >= 3).await;
        // The thread reports that to a client that sends no further request.
        tokio::time::sleep(ms(moment)).await;
        drop((polled, connecting));
        eventually("it is closed", async || open_files(&file) == 0).await;
    }
}

/// A request that is repeated because its answer was lost counts once, also if the file was opened anew
/// between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_remembered_while_another_file_is_opened() {
    let file = LockFile::new();
    let backend = file.backend(&ClientOptions::new()).await;
    let id = || OwnerId::fresh(Uuid::new_v4());
    let change =
        |change| Change::Count { resource: resource(Kind::Semaphore, "it"), id: id(), change };
    let create = change(CountChange::Create { count: 1, ttl: None });
    assert_eq!(backend.adjust(create.clone()).await.unwrap(), Changed::Done);
    let acquire = Acquire::new(resource(Kind::Semaphore, "it"), id(), 1_000);
    assert!(backend.acquire(acquire.clone()).await.unwrap().is_granted());
    for path in files(&file) {
        fs::remove_file(path).unwrap();
    }
    assert!(backend.acquire(acquire).await.unwrap().is_granted());
    assert_eq!(backend.adjust(create).await.unwrap(), Changed::Done);
    let count = change(CountChange::Add(0));
    assert!(backend.adjust(count).await.is_err(), "nothing was executed on the new file");
}
