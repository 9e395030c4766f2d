//! Cases that the random sequences leave out: a lock without a TTL, and names that are used once.

use lockkeeper::backend::{
    Acquire, Attempt, Backend, Change, Changed, CountChange, Kind, Release, Released, Resource,
    Topic,
};
use lockkeeper::stores::{Memory, Redis, State};
use lockkeeper::{LockName, OwnerId};
use testkit::RedisServer;

fn lock(name: &str) -> Resource {
    Resource { kind: Kind::Lock, name: name.into() }
}

/// A lock of ours held twice.
async fn held_twice(store: &Redis, resource: &Resource) -> OwnerId {
    let owner = "00000000-0000-4000-8000-00000000000a:1";
    let owner = owner.parse().expect("it is of the form <uuid>:<number>");
    for count in 1..=2 {
        let acquire = Acquire { count, ..Acquire::new(resource.clone(), owner, 30_000) };
        assert_eq!(store.acquire(acquire).await, Ok(Attempt::GRANTED));
    }
    owner
}

/// Takes one of two holds off and says nothing about the time to live.
async fn release_one(store: &Redis, resource: &Resource, owner: OwnerId) -> Released {
    let release = Release { keep: 1, ..Release::new(resource.clone(), owner) };
    store.release(release).await.expect("the server answers")
}

#[tokio::test]
async fn a_partial_release_keeps_a_lock_without_a_ttl() {
    let server = RedisServer::start();
    let (url, options) = (server.url(), crate::options());
    let (store, resource) = (Redis::connect(&url, &options).await.unwrap(), lock("a"));
    let owner = held_twice(&store, &resource).await;
    assert_eq!(server.cli(&["PERSIST", "a"]).int(), 1);
    let mut monitor = server.connection();
    monitor.cmd(&["CONFIG", "SET", "notify-keyspace-events", "KA"]).ok();
    monitor.subscribe(&["__keyspace@0__:a"]);
    assert_eq!(release_one(&store, &resource, owner).await, Released::Kept);
    assert_eq!(server.cli(&["PTTL", "a"]).int(), -1);
    assert_eq!(server.cli(&["HGET", "a", &owner.to_string()]).int(), 1);
    server.cli(&["PUBLISH", "__keyspace@0__:a", "end"]).ok();
    let events = std::iter::from_fn(|| monitor.next_message(std::time::Duration::from_secs(5)));
    let events = events.map(|(_, event)| String::from_utf8(event).unwrap());
    let events: Vec<_> = events.take_while(|event| event != "end").collect();
    assert_eq!(events, ["hset"], "the key was deleted and made anew");
}

/// A reader waits for each of many names, once. No name is used again, so that only a sweep removes the
/// records about its waiters.
#[test]
fn names_that_are_used_once_are_swept_from_the_model() {
    let mut state = State::default();
    let (us, mut now) = (uuid::Uuid::from_u128(1), 1_000_000);
    let mut sizes = Vec::new();
    for i in 0..10_000 {
        let name = LockName::from(format!("{i}").as_str());
        let (writer, reader) = (OwnerId::fresh(us), OwnerId::fresh(us));
        let writing = Resource { kind: Kind::Write, name: name.clone() };
        let reading = Resource { kind: Kind::Read, name };
        let write = Acquire::new(writing.clone(), writer, 1000);
        let read = Acquire { waits: true, ..Acquire::new(reading.clone(), reader, 1000) };
        assert!(state.acquire(&write, now).0.unwrap().is_granted());
        assert!(!state.acquire(&read, now).0.unwrap().is_granted());
        state.release(&Release::new(writing, writer), now).0.unwrap();
        assert!(state.acquire(&read, now).0.unwrap().is_granted());
        state.release(&Release::new(reading, reader), now).0.unwrap();
        assert!(state.is_empty());
        now += 1000;
        // The whole state, whatever it counts as a lock.
        if i % 2500 == 2499 {
            sizes.push(format!("{state:?}").len());
        }
    }
    let most = sizes[0] * 2;
    assert!(sizes.iter().all(|size| *size < most), "it grows: {sizes:?}");
}

/// A script computes in doubles, which round beyond 2^53.
#[tokio::test]
async fn a_temporary_semaphore_is_raised_exactly_from_the_lowest_number() {
    let server = RedisServer::start();
    let store = Redis::connect(&server.url(), &crate::options()).await.unwrap();
    let resource = Resource { kind: Kind::Permits, name: "a".into() };
    let acquire = |number: u8, limit| {
        let owner = format!("00000000-0000-4000-8000-00000000000a:{number}").parse().unwrap();
        let acquire = Acquire::new(resource.clone(), owner, 50_000);
        store.acquire(Acquire { temporary: Some(limit), ..acquire })
    };
    assert_eq!(acquire(1, 1).await, Ok(Attempt::GRANTED));
    let lowest = -9_007_199_254_740_991;
    let id = OwnerId::fresh(uuid::Uuid::nil());
    let change = CountChange::Add(lowest);
    let lowered = store.adjust(Change::Count { resource: resource.clone(), id, change }).await;
    assert_eq!(lowered, Ok(Changed::Count(lowest)));
    assert_eq!(acquire(2, 2).await, Ok(Attempt::GRANTED));
    assert_eq!(server.cli(&["GET", "a"]).int(), 0);
}

#[tokio::test]
async fn readers_and_writers_in_memory_do_not_crowd_each_other_out() {
    let memory = Memory::new();
    let asked = |kind| {
        let owner = OwnerId::fresh(uuid::Uuid::new_v4());
        let lock = Resource { kind, name: "it".into() };
        memory.acquire(Acquire { waits: true, ..Acquire::new(lock, owner, 10_000) })
    };
    assert!(asked(Kind::Write).await.unwrap().is_granted());
    let mut listening = Vec::new();
    for _ in 0..3 {
        listening.push(memory.subscribe(Topic::Rw("it".into())).await.unwrap());
    }
    for kind in [Kind::Read, Kind::Write] {
        assert!(matches!(asked(kind).await, Ok(Attempt::Busy { listeners: 0, .. })), "{kind}");
    }
}
