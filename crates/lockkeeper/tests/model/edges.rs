//! Times to live at the edge, which the grid of the properties leaves out on purpose.

use lockkeeper::backend::redis::Redis;
use lockkeeper::backend::{Acquire, Attempt, Backend, Kind, Release, Released, Resource};
use lockkeeper::{ClientOptions, OwnerId};
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
async fn a_partial_release_leaves_a_lock_without_an_end_as_it_is() {
    let server = RedisServer::start();
    let (url, options) = (server.url(), ClientOptions::new());
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
