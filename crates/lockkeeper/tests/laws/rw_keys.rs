//! Read/write locks of a Redis store beside readers of Redisson.

use std::time::Duration;

use lockkeeper::LostReason;
use tokio::time::{Instant, timeout};

use crate::rw::pair;
use crate::store::{Store, eventually};

/// A reader of Redisson's.
const JAVA: &str = "6e0c9d2c-52f4-4c5d-9d63-cc1f2c4a6d0e:42";

/// How often a reader is looked after at least.
const REASSERTED: Duration = Duration::from_secs(10);

/// Puts a reader on the lock as Redisson does, alone or beside others.
fn redisson_reads(store: &Store, name: &str, millis: &str) {
    let server = store.server();
    server.cli(&["HSET", name, "mode", "read", JAVA, "1"]).ok();
    let key = format!("{{{name}}}:{JAVA}:rwlock_timeout:1");
    server.cli(&["SET", &key, "1", "PX", millis]).ok();
    // Redisson does this for all readers.
    server.cli(&["PEXPIRE", name, millis]).ok();
}

pub(crate) async fn redisson_readers_are_respected_and_listed(store: &Store) {
    let ((lock, _), name) = (pair(store).await, store.name("lock"));
    redisson_reads(store, &name, "30000");
    assert!(lock.try_write().await.unwrap().is_none());
    let reader = lock.try_read().await.unwrap().expect("readers share it");
    let ids: Vec<_> = lock.inspect().await.unwrap().holders.into_iter().map(|h| h.id).collect();
    assert!(ids.contains(&JAVA.to_owned()) && ids.len() == 2, "{ids:?}");
    let refused = reader.try_upgrade().await.unwrap_err();
    assert!(refused.error().is_none());
    refused.into_guard().release().await.unwrap();
    assert_eq!(store.server().cli(&["HGET", &name, JAVA]).text(), "1", "it is left alone");
    assert!(lock.force_unlock("").await.unwrap());
    assert_eq!(store.traces(&name), 0);
}

/// The key exists, and its only reader has expired.
pub(crate) async fn an_expired_reader_does_not_block_a_writer_while_the_key_exists(store: &Store) {
    let ((lock, _), name) = (pair(store).await, store.name("lock"));
    let start = store.timer();
    redisson_reads(store, &name, "1000");
    store.server().cli(&["PEXPIRE", &name, "60000"]).ok();
    let writer = timeout(store.long(), lock.write()).await.unwrap().unwrap();
    start.took(Duration::from_millis(950), Duration::from_millis(1000 + 1200));
    assert_eq!(store.server().cli(&["HEXISTS", &name, JAVA]).int(), 0, "it is buried");
    writer.release().await.unwrap();
    assert_eq!(store.traces(&name), 0);
}

/// RULES §11: the renewal of a Java reader cuts the whole lock to 30 s, and then it dies. Here to
/// less, so that there is no time to lose.
pub(crate) async fn a_long_reader_outlives_a_redisson_reader_that_died(store: &Store) {
    // A client that would look only every twenty seconds if it did not read.
    let options = store.options().watchdog_timeout(Duration::from_secs(60));
    let name = store.name("lock");
    let lock = store.client_with(options).await.rw_lock(&name);
    let fixed = lock.lease(Duration::from_secs(120)).read().await.unwrap();
    let renewed = lock.read().await.unwrap();
    let cut = || redisson_reads(store, &name, "13000");
    let ttl = || store.server().cli(&["PTTL", &name]).int();
    // The client renews its first hold once when the store listens for its notices.
    eventually("it is cut", async || {
        cut();
        ttl() <= 13_000
    })
    .await;
    let start = Instant::now();
    eventually("it is put back", async || ttl() > 60_000).await;
    assert!(start.elapsed() < REASSERTED + Duration::from_millis(1500), "{:?}", start.elapsed());
    assert!(!fixed.is_lost() && !renewed.is_lost());
    assert!(fixed.remaining() > Duration::from_secs(90), "{:?}", fixed.remaining());
    renewed.release().await.unwrap();
    fixed.release().await.unwrap();
}

pub(crate) async fn a_reader_whose_lock_becomes_something_else_is_lost(store: &Store) {
    let ((lock, _), name) = (pair(store).await, store.name("lock"));
    for side in [lock.reader(), lock.writer()] {
        let guard = side.lock().await.unwrap();
        store.server().cli(&["DEL", &name]).ok();
        store.server().cli(&["RPUSH", &name, "a"]).ok();
        assert_eq!(store.signalled(guard.lost()).await, LostReason::Taken);
        drop(guard);
        assert_eq!(store.server().cli(&["LLEN", &name]).int(), 1, "it is left alone");
        store.server().cli(&["DEL", &name]).ok();
    }
}
