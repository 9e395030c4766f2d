//! Expired rows are swept from the file without any request for them.

use lockkeeper::OwnerId;
use lockkeeper::backend::{Acquire, Backend};
use uuid::Uuid;

use super::*;

/// So many changes make it look at all that is there in these tests.
const CHANGES: usize = 64 * 8;

async fn take(backend: &dyn Backend, kind: Kind, name: &str, ttl: u64) {
    let owner = OwnerId::fresh(Uuid::new_v4());
    let request = Acquire { waits: true, ..Acquire::new(resource(kind, name), owner, ttl) };
    backend.acquire(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_expired_locks_are_swept() {
    let file = LockFile::new();
    let backend = file.backend(&ClientOptions::new()).await;
    for i in 0..300 {
        take(&*backend, Kind::Lock, &format!("short {i}"), 1).await;
        take(&*backend, Kind::Mutex, &format!("long {i}"), 60_000).await;
    }
    for i in 0..20 {
        take(&*backend, Kind::Fair, &format!("queue {i}"), 1).await;
        take(&*backend, Kind::Fair, &format!("queue {i}"), 1).await;
    }
    // As if the waiters had sent no heartbeats for long.
    let look = file.look();
    look.execute_batch(
        "UPDATE names SET ends = 1, record = json_set(record, '$.queue', 1)
         WHERE record ->> '$.queue' NOT NULL",
    )
    .unwrap();
    let names = |like: &str| {
        file.count("SELECT count(*) FROM names WHERE CAST(name AS TEXT) LIKE ?1", [like])
    };
    assert!(names("queue%") > 0 && file.count("SELECT count(*) FROM waiters", []) > 0);
    for _ in 0..CHANGES {
        take(&*backend, Kind::Lock, "another", 1).await;
    }
    assert_eq!((names("short%"), names("queue%"), names("long%")), (0, 0, 300));
    assert_eq!(file.count("SELECT count(*) FROM waiters", []), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_from_before_a_reboot_are_swept() {
    let file = LockFile::new();
    let client = connect(&file).await;
    client.semaphore("stays").try_set_permits(2, None).await.unwrap();
    let backend = file.backend(&ClientOptions::new()).await;
    for i in 0..100 {
        take(&*backend, Kind::Lock, &format!("lock {i}"), 3_600_000).await;
    }
    for table in ["names", "clients", "sessions"] {
        file.look().execute(&format!("UPDATE {table} SET boot = 'another'"), []).unwrap();
    }
    for _ in 0..CHANGES {
        take(&*backend, Kind::Lock, "another", 1).await;
    }
    let old = |table: &str| {
        file.count(&format!("SELECT count(*) FROM {table} WHERE boot = 'another'"), [])
    };
    assert_eq!(["names", "clients", "sessions"].map(old), [1, 0, 0]);
    assert_eq!(client.semaphore("stays").available().await.unwrap(), 2);
}

/// The log is carried over while the store is in use: it does not grow with what was ever done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_stays_short() {
    let file = LockFile::new();
    let backend = file.backend(&ClientOptions::new()).await;
    for i in 0..3_000 {
        take(&*backend, Kind::Lock, &format!("lock {}", i % 10), 1).await;
    }
    let mut log = file.path().into_os_string();
    log.push("-wal");
    let size = std::fs::metadata(log).unwrap().len();
    assert!(size < 4 << 20, "{size} bytes");
}

/// The log cannot restart during a read, and must be truncated afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stays_for_long_leaves_no_long_log_behind() {
    let file = LockFile::new();
    let backend = file.backend(&ClientOptions::new()).await;
    take(&*backend, Kind::Lock, "first", 1).await;
    let reader = file.look();
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(reader.query_row("SELECT count(*) FROM locks", [], |row| row.get(0)), Ok(1));
    let log = || {
        let path = format!("{}-wal", file.path().display());
        std::fs::metadata(path).unwrap().len()
    };
    let mut turns = 0;
    while log() < 8 << 20 {
        take(&*backend, Kind::Lock, &format!("lock {turns}"), 1).await;
        turns += 1;
        assert!(turns < 100_000, "the log does not grow");
    }
    reader.execute_batch("COMMIT").unwrap();
    // It has become twice as long as when it was last tried, at the latest.
    let mut more = 0;
    while log() > 4 << 20 {
        take(&*backend, Kind::Lock, &format!("lock {more}"), 1).await;
        more += 1;
        assert!(more < 2 * turns + 1000, "the log stays at {} bytes", log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_from_before_a_reboot_are_removed() {
    let file = LockFile::new();
    let [dead, waiter] = [connect(&file).await, connect(&file).await];
    let held = dead.fair_lock("it").lease(PATIENCE).lock().await.unwrap();
    let lock = waiter.fair_lock("it");
    let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
    let waiters = || file.count("SELECT count(*) FROM waiters", []);
    eventually("it waits", async || waiters() == 1).await;
    waiting.abort();
    std::mem::forget((dead, waiter, held));
    // The requests of dropped futures.
    eventually("as the dead leave it", async || {
        file.look().execute("UPDATE names SET boot = 'another'", []).unwrap();
        let sql = "INSERT OR IGNORE INTO waiters VALUES (CAST('it' AS BLOB), 1, zeroblob(24), 1)";
        file.look().execute(sql, []).unwrap();
        waiters() > 0
    })
    .await;
    let client = connect(&file).await;
    let guard = client.lock("it").lock().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(waiters(), 0);
}
