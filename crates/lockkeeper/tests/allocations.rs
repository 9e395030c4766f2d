//! What is allocated on Redis: by an uncontended acquire and release, and by a list of many locks.

use lockkeeper::backend::{Acquire, Backend, Kind, Release, Resource};
use lockkeeper::stores::Redis;
use lockkeeper::{AnyLock, Client, ClientOptions, OwnerId};
use testkit::RedisServer;
use uuid::Uuid;

const PAIRS: u64 = 1000;

async fn pairs(lock: &AnyLock, count: u64) {
    for _ in 0..count {
        lock.lock().await.unwrap().release().await.unwrap();
    }
}

/// The lease and two answers. On one thread, so that all allocations are counted.
#[test]
fn an_uncontended_pair_allocates_three_times() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(Client::connect(&server.url())).unwrap();
    for lock in [AnyLock::from(client.lock("lock")), AnyLock::from(client.mutex("mutex"))] {
        // Buffers and tables reach their size.
        runtime.block_on(pairs(&lock, PAIRS));
        let counted = allocation_counter::measure(|| runtime.block_on(pairs(&lock, PAIRS)));
        // Background tasks allocate now and then, but not for every pair.
        assert_eq!(counted.count_total / PAIRS, 3, "{lock:?}: {counted:?}");
    }
}

/// An allocator needs more than twice the time for a box that is much larger.
#[test]
fn the_box_of_an_answer_is_small() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (url, options) = (server.url(), ClientOptions::new());
    let redis = runtime.block_on(Redis::connect(&url, &options)).unwrap();
    for kind in [Kind::Lock, Kind::Mutex] {
        let resource = Resource { kind, name: "it".into() };
        let owner = OwnerId::fresh(Uuid::new_v4());
        let acquire = redis.acquire(Acquire::new(resource.clone(), owner, 30_000));
        let release = redis.release(Release::new(resource, owner));
        let sizes = (size_of_val(&*acquire), size_of_val(&*release));
        assert!(sizes.0 < 512 && sizes.1 < 512, "{kind}: {sizes:?} bytes");
    }
}

/// The most bytes that are alive while a list of so many locks is read, page by page.
fn listing(server: &RedisServer, locks: usize) -> u64 {
    let make = "for i = 1, tonumber(ARGV[1]) do
        redis.call('HSET', 'some lock ' .. i, '6e0c9d2c-52f4-4c5d-9d63-cc1f2c4a6d0e:1', 1)
    end";
    server.cli(&["EVAL", make, "0", &locks.to_string()]).ok();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(Client::connect(&server.url())).unwrap();
    // Buffers grow with the first.
    let _ = runtime.block_on(client.inspector().list("*").next()).unwrap();
    let counted = allocation_counter::measure(|| {
        runtime.block_on(async {
            let (mut listing, mut found) = (client.inspector().list("*"), 0);
            while let Some(page) = listing.next().await.unwrap() {
                found += page.len();
            }
            assert!(found >= locks && listing.is_complete());
        });
    });
    counted.bytes_max
}

#[test]
fn a_list_needs_bounded_memory() {
    let server = RedisServer::start();
    let (few, many) = (listing(&server, 10_000), listing(&server, 100_000));
    // A page may be somewhat larger. To keep so much as each name would be ten times as much.
    assert!(many < few * 2, "{few} bytes for 10 000 locks, {many} for 100 000");
}
