//! The number of allocations of an uncontended acquire and release on Redis.

use lockkeeper::{AnyLock, Client};
use testkit::RedisServer;

const PAIRS: u64 = 1000;

async fn pairs(lock: &AnyLock, count: u64) {
    for _ in 0..count {
        lock.lock().await.unwrap().release().await.unwrap();
    }
}

/// The lease. On one thread, so that all allocations are counted.
#[test]
fn an_uncontended_pair_allocates_once() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(Client::connect(&server.url())).unwrap();
    for lock in [AnyLock::from(client.lock("lock")), AnyLock::from(client.mutex("mutex"))] {
        // Buffers and tables reach their size.
        runtime.block_on(pairs(&lock, PAIRS));
        let counted = allocation_counter::measure(|| runtime.block_on(pairs(&lock, PAIRS)));
        // Background tasks allocate now and then, but not for every pair.
        assert_eq!(counted.count_total / PAIRS, 1, "{lock:?}: {counted:?}");
    }
}
