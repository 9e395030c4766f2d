//! Keys of a Redis store that other programs write.

use lockkeeper::{Client, Error, Ttl};

use crate::store::{Store, assert_is};

const OTHER_OWNER: &str = "6e0c9d2c-52f4-4c5d-9d63-cc1f2c4a6d0e:42";

async fn client(store: &Store) -> (Client, String) {
    (store.client().await, store.name("key"))
}

pub(crate) async fn a_key_that_is_not_a_lock_is_rejected_and_not_changed(store: &Store) {
    let (client, name) = client(store).await;
    let server = store.server();
    let many: Vec<String> = (0..40).flat_map(|i| [format!("field-{i}"), "1".to_owned()]).collect();
    let mut large = vec!["HSET", &name];
    large.extend(many.iter().map(String::as_str));
    let reader = format!("{OTHER_OWNER}:write");
    for create in [
        &["SET", &name, "text"][..],
        &["RPUSH", &name, "a", "b"],
        &["SADD", &name, "a"],
        &["ZADD", &name, "1", "a"],
        &["XADD", &name, "*", "a", "b"],
        &["HSET", &name, "mode", "write", &reader, "1"],
        &["HSET", &name, "name", "Ann", "age", "42"],
        &large,
    ] {
        server.cli(create).ok();
        let before = server.cli(&["DUMP", &name]);
        let lock = client.lock(&name);
        let what = create.join(" ");
        for answer in [
            lock.lock().await.map(drop),
            lock.try_lock().await.map(drop),
            lock.lease(store.long()).try_lock_for(store.long()).await.map(drop),
            lock.is_locked().await.map(drop),
            lock.inspect().await.map(drop),
            lock.force_unlock("").await.map(drop),
        ] {
            assert_is!((&what, answer), (_, Err(Error::WrongKind { .. })));
        }
        assert_eq!(server.cli(&["DUMP", &name]), before, "{what}: changed");
        assert_eq!(server.cli(&["PTTL", &name]).int(), -1, "{what}: expires");
        server.cli(&["DEL", &name]).ok();
    }
}

pub(crate) async fn a_key_that_is_not_a_mutex_is_rejected_and_not_changed(store: &Store) {
    let (client, name) = client(store).await;
    let server = store.server();
    for create in [
        &["RPUSH", &name, "a", "b"][..],
        &["SADD", &name, "a"],
        &["HSET", &name, OTHER_OWNER, "1"],
        &["HSET", &name, "name", "Ann"],
    ] {
        server.cli(create).ok();
        let before = server.cli(&["DUMP", &name]);
        let mutex = client.mutex(&name);
        let what = create.join(" ");
        for answer in [
            mutex.lock().await.map(drop),
            mutex.try_lock().await.map(drop),
            mutex.is_locked().await.map(drop),
            mutex.inspect().await.map(drop),
            mutex.force_unlock("").await.map(drop),
        ] {
            assert_is!((&what, answer), (_, Err(Error::WrongKind { .. })));
        }
        assert_eq!(server.cli(&["DUMP", &name]), before, "{what}: changed");
        server.cli(&["DEL", &name]).ok();
    }
    // A string without a TTL is other data: it is busy, and cannot be force-released.
    server.cli(&["SET", &name, "data"]).ok();
    let mutex = client.mutex(&name);
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert_is!(mutex.force_unlock("").await, Err(Error::WrongKind { .. }));
    assert_eq!(server.cli(&["GET", &name]).text(), "data");
}

pub(crate) async fn a_lock_without_a_ttl_is_busy_and_has_no_remaining_time(store: &Store) {
    let (client, name) = client(store).await;
    let server = store.server();
    server.cli(&["HSET", &name, OTHER_OWNER, "1"]).ok();
    let lock = client.lock(&name);
    assert_eq!(lock.inspect().await.unwrap().ttl, Some(Ttl::Forever));
    assert!(lock.is_locked().await.unwrap());
    assert!(lock.try_lock_for(store.lease()).await.unwrap().is_none());
    assert!(lock.force_unlock("").await.unwrap(), "a lock that never ends can be forced");
    lock.lock().await.unwrap().release().await.unwrap();
}

fn token_key(name: &str) -> String {
    format!("redisson_lock_token:{{{name}}}")
}

/// Takes a fenced lock of this name by each way there is, and gives it back.
async fn tokens(client: &Client, name: &str) -> Vec<u64> {
    let mut tokens = Vec::new();
    for request in [
        client.fenced_lock(name).lock(),
        client.lock(name).fenced().lock(),
        client.fair_lock(name).fenced().lock(),
    ] {
        let guard = request.await.unwrap();
        tokens.push(guard.token());
        guard.release().await.unwrap();
    }
    tokens
}

/// As Redisson does, unless it was asked for.
pub(crate) async fn a_token_has_no_ttl_unless_configured(store: &Store) {
    let (client, name) = client(store).await;
    let ttl = || store.server().cli(&["PTTL", &token_key(&name)]).int();
    tokens(&client, &name).await;
    assert_eq!(ttl(), -1);
    let tidy = store.client_with(store.options().token_ttl(store.long())).await;
    for lock in [tidy.fenced_lock(&name).lock(), tidy.fair_lock(&name).fenced().lock()] {
        store.server().cli(&["DEL", &token_key(&name)]).ok();
        lock.await.unwrap().release().await.unwrap();
        let long = store.long().as_millis() as i64;
        assert!(ttl() > long / 2 && ttl() <= long, "{}", ttl());
    }
}
