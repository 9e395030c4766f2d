//! Lists of a Redis store: locks of other libraries, and keys that are not locks.

use std::time::Duration;

use lockkeeper::{Client, Error, Kind, LockInfo, Ttl};
use testkit::RedisServer;

use crate::listing::{all, named};
use crate::store::{Store, assert_is, eventually};

/// Owners as Redisson writes them.
const JAVA: &str = "6e0c9d2c-52f4-4c5d-9d63-cc1f2c4a6d0e:42";
const OTHER: &str = "11111111-52f4-4c5d-9d63-cc1f2c4a6d0e:-1";

async fn listed(store: &Store, client: &Client) -> Vec<LockInfo> {
    all(&mut client.inspector().list(store.name("*"))).await
}

fn names(locks: &[LockInfo]) -> Vec<String> {
    let mut names: Vec<_> = locks.iter().map(|lock| lock.name.to_string()).collect();
    names.sort();
    names
}

fn ids(lock: &LockInfo) -> Vec<&str> {
    let mut ids: Vec<_> = lock.holders.iter().map(|holder| &holder.id[..]).collect();
    ids.sort_unstable();
    ids
}

/// Puts a reader on a lock as Redisson does, alone or beside others.
fn reads(server: &RedisServer, name: &str, owner: &str, millis: &str) {
    server.cli(&["HSET", name, "mode", "read", owner, "1"]).ok();
    let key = format!("{{{name}}}:{owner}:rwlock_timeout:1");
    server.cli(&["SET", &key, "1", "PX", millis]).ok();
    server.cli(&["PEXPIRE", name, "30000"]).ok();
}

pub(crate) async fn locks_of_other_libraries_are_listed(store: &Store) {
    let (client, server) = (store.client().await, store.server());
    let name = |what: &str| store.name(what);
    server.cli(&["HSET", &name("lock"), JAVA, "3"]).ok();
    server.cli(&["PEXPIRE", &name("lock"), "30000"]).ok();
    server.cli(&["HSET", &name("endless"), OTHER, "1"]).ok();
    server.cli(&["HSET", &name("write"), "mode", "write", &format!("{JAVA}:write"), "2"]).ok();
    server.cli(&["HSET", &name("fair"), JAVA, "1"]).ok();
    server.cli(&["RPUSH", &format!("redisson_lock_queue:{{{}}}", name("fair")), OTHER]).ok();
    reads(server, &name("read"), JAVA, "30000");
    reads(server, &name("read"), OTHER, "30000");

    let locks = listed(store, &client).await;
    let of = |what: &str| named(&locks, &name(what)).unwrap_or_else(|| panic!("{what}: missing"));
    for (what, kind, holders, holds) in [
        ("lock", Kind::Lock, &[JAVA][..], 3),
        ("endless", Kind::Lock, &[OTHER], 1),
        ("write", Kind::Write, &[JAVA], 2),
        ("fair", Kind::Fair, &[JAVA], 1),
        ("read", Kind::Read, &[OTHER, JAVA], 1),
    ] {
        let lock = of(what);
        assert_eq!((lock.kind, ids(lock)), (kind, holders.to_vec()), "{what}");
        for holder in &lock.holders {
            assert_eq!((holder.hold_count, holder.shared), (holds, kind == Kind::Read), "{what}");
            assert!(holder.client.is_none() && holder.since.is_none(), "{what}: {holder:?}");
        }
    }
    assert_eq!(locks.len(), 5, "{:?}", names(&locks));
    assert_is!(of("lock").ttl, Some(Ttl::For(left)) if left > Duration::from_secs(20));
    assert_eq!(of("endless").ttl, Some(Ttl::Forever));
    assert_eq!(of("fair").waiting, Some(1));
    // The way back: what was found can be looked at and forced open.
    for lock in &locks {
        let looked = client.inspector().inspect(&lock.name).await.unwrap();
        assert_eq!((looked.kind, ids(&looked)), (lock.kind, ids(lock)), "{}", lock.name);
        assert!(client.inspector().force_unlock(&lock.name, lock.kind, None, "").await.unwrap());
    }
    assert_eq!(names(&listed(store, &client).await), Vec::<String>::new());
}

/// A key of each type that looks more or less like a lock.
pub(crate) async fn other_data_is_never_listed(store: &Store) {
    let (client, server) = (store.client().await, store.server());
    let name = |what: &str| store.name(what);
    let far = "99999999999999";
    let sessions: Vec<String> = (0..200)
        .flat_map(|i| [format!("6e0c9d2c-52f4-4c5d-9d63-{i:012x}:1"), "data".to_owned()])
        .collect();
    let large = [vec!["HSET".to_owned(), name("sessions")], sessions].concat();
    server.cli(&large).ok();
    for create in [
        &["SET", &name("text"), "text"][..],
        &["SET", &name("number"), "42"],
        // It looks like a mutex of another library.
        &["SET", &name("owner"), JAVA, "PX", "30000"],
        &["RPUSH", &name("list"), JAVA],
        &["SADD", &name("set"), JAVA],
        &["ZADD", &name("zset"), far, JAVA],
        &["XADD", &name("stream"), "*", JAVA, "1"],
        &["HSET", &name("hash"), "name", "Ann", "age", "42"],
        &["HSET", &name("mode"), "mode", "read"],
        &["HSET", &name("uuid"), &JAVA[..36], "1"],
        // Sorted sets of other data whose names end as those of permits do.
        &["ZADD", &name("jobs:timeout"), far, "job 1", far, "job 2"],
        &["ZADD", &format!("{{{}}}:timeout", name("gone")), far, "0123456789abcdef"],
        &["ZADD", &format!("{{{}}}:timeout", name("text")), far, "0123456789abcdef"],
        &["HSET", &format!("{{{}}}:timeout", name("number")), "name", "Ann"],
    ] {
        server.cli(create).ok();
    }
    let listed = listed(store, &client).await;
    assert_eq!(names(&listed), Vec::<String>::new(), "{listed:#?}");
}

/// On a server of its own, where everything is listed that there is.
pub(crate) async fn keys_of_our_own_are_never_listed(store: &Store) {
    let store = store.apart();
    let (client, server) = (store.client().await, store.server());
    let semaphore = client.semaphore("semaphore");
    assert!(semaphore.try_set_permits(5, None).await.unwrap());
    let permits = client.permit_semaphore("permits");
    assert!(permits.try_set_permits(5, None).await.unwrap());
    assert!(client.count_down_latch("latch").try_set_count(2).await.unwrap());
    let _held = (
        client.fenced_lock("fenced").lock().await.unwrap(),
        client.fair_lock("fair").lock().await.unwrap(),
        client.rw_lock("rw").read().await.unwrap(),
        permits.acquire(2).await.unwrap(),
        semaphore.acquire(2).await.unwrap(),
    );
    let _forced = client.lock("forced").lock().await.unwrap();
    assert!(client.lock("forced").force_unlock("why").await.unwrap());
    let keys = || server.cli(&["KEYS", "*"]).array().to_vec();
    let there = async |prefix: &str| {
        let there = || keys().iter().any(|key| key.text().starts_with(prefix));
        eventually(&format!("there is a key {prefix}…"), async || there()).await;
    };
    let other = store.client().await;
    let queued = tokio::spawn(other.fair_lock("fair").lock());
    let writer = tokio::spawn(other.rw_lock("rw").write());
    there("lockkeeper_writers:").await;
    // It waits behind the writer.
    let reader = tokio::spawn(store.client().await.rw_lock("rw").read());
    for prefix in [
        "lockkeeper_patience:",
        "lockkeeper_client:",
        "lockkeeper_clients",
        "lockkeeper_replies:",
        "lockkeeper_forced:",
        "lockkeeper_seen:",
        "redisson_lock_queue:",
        "redisson_lock_timeout:",
        "redisson_lock_token:",
    ] {
        there(prefix).await;
    }
    let expected = ["fair", "fenced", "permits", "rw", "semaphore"];
    let mut found = Vec::new();
    eventually("the semaphore is told of", async || {
        found = names(&all(&mut client.inspector().list("*")).await);
        found.contains(&"semaphore".to_owned())
    })
    .await;
    assert_eq!(found, expected);
    queued.abort();
    writer.abort();
    reader.abort();
}

/// A string is a mutex only if a client says so; and what it says is not believed blindly.
pub(crate) async fn a_string_is_a_mutex_only_while_its_client_announces_it(store: &Store) {
    let (client, server) = (store.client().await, store.server());
    let name = store.name("mutex");
    let guard = client.mutex(&name).lock().await.unwrap();
    let found = async || named(&listed(store, &client).await, &name).map(|lock| lock.kind);
    eventually("it is told of", async || found().await == Some(Kind::Mutex)).await;
    // Its client goes without a word; the string stays.
    let note = format!("lockkeeper_client:{}", client.id());
    let value = server.cli(&["GET", &name]);
    client.shutdown().await;
    assert_is!(guard.release().await, Err(_));
    assert_eq!(server.cli(&["EXISTS", &note]).int(), 0);
    server.cli(&["SET", &name, value.text(), "PX", "30000"]).ok();
    let client = store.client().await;
    assert_eq!(named(&listed(store, &client).await, &name).map(|lock| lock.kind), None);
    // An inspection by name reports the kind it seems to have.
    let looked = client.inspector().inspect(&name).await.unwrap();
    assert_eq!((looked.kind, ids(&looked)), (Kind::Mutex, vec![value.text()]));
}

/// A client says that it holds what has become something else behind its back.
pub(crate) async fn an_announced_name_of_another_kind_is_not_listed(store: &Store) {
    let options = store.options().watchdog_timeout(store.long());
    let client = store.client_with(options).await;
    let name = store.name("mutex");
    let _guard = client.mutex(&name).lock().await.unwrap();
    let found = async || named(&listed(store, &client).await, &name).map(|lock| lock.kind);
    eventually("it is told of", async || found().await == Some(Kind::Mutex)).await;
    store.server().cli(&["DEL", &name]).ok();
    assert_eq!(found().await, None, "it is gone");
    store.server().cli(&["RPUSH", &name, "a"]).ok();
    assert_eq!(found().await, None, "it is a list");
}

/// The many readers of one lock do not fit on one look at its hash.
pub(crate) async fn a_lock_of_a_thousand_readers_is_one_of_readers(store: &Store) {
    let (client, server) = (store.client().await, store.server());
    let name = store.name("read");
    let owner = |i: usize| format!("6e0c9d2c-52f4-4c5d-9d63-{i:012x}:1");
    let mut hash = vec!["HSET".to_owned(), name.clone(), "mode".to_owned(), "read".to_owned()];
    hash.extend((0..1000).flat_map(|i| [owner(i), "1".to_owned()]));
    server.cli(&hash).ok();
    server.cli(&["PEXPIRE", &name, "30000"]).ok();
    let mut ends = vec!["MSET".to_owned()];
    let end = |i: usize| format!("{{{name}}}:{}:rwlock_timeout:1", owner(i));
    ends.extend((0..1000).flat_map(|i| [end(i), "1".to_owned()]));
    server.cli(&ends).ok();
    let locks = listed(store, &client).await;
    let lock = named(&locks, &name).expect("it is listed");
    assert_eq!(lock.kind, Kind::Read);
    assert!(lock.holders.len() >= 100, "{}", lock.holders.len());
    assert!(lock.holders.iter().all(|holder| holder.shared));
}

/// The name of a semaphore is derived from the key of its permits.
pub(crate) async fn a_semaphore_of_any_name_is_listed_by_its_name(store: &Store) {
    let (client, inspector) = (store.client().await, store.client().await.inspector());
    let plain = store.name("a");
    for name in [
        plain.clone(),
        format!("{{{plain}}}"),
        format!("{{{plain}}}:b"),
        format!("{{{plain}}}:{{b}}"),
        format!("{plain}}}"),
        format!("{plain}:timeout"),
    ] {
        let semaphore = client.permit_semaphore(&name);
        assert!(semaphore.try_set_permits(3, None).await.unwrap());
        let guard = semaphore.acquire(2).await.unwrap();
        let locks = all(&mut inspector.list(format!("*{plain}*"))).await;
        assert_eq!(names(&locks), std::slice::from_ref(&name));
        let found = (locks[0].kind, locks[0].count, locks[0].taken);
        assert_eq!(found, (Kind::Permits, Some(1), 2), "{name}");
        guard.release().await.unwrap();
        store.server().cli(&["DEL", &name]).ok();
    }
}

/// What begins as keys of ours do may be a lock all the same.
pub(crate) async fn a_lock_name_may_start_like_an_internal_key(store: &Store) {
    let client = store.client().await;
    for name in [format!("lockkeeper_{}", store.name("jobs")), store.name("x:timeout")] {
        let guard = client.lock(&name).lock().await.unwrap();
        let locks = all(&mut client.inspector().list(&name[..])).await;
        assert_eq!(names(&locks), [&name[..]]);
        assert_eq!(locks[0].kind, Kind::Lock);
        guard.release().await.unwrap();
    }
}

pub(crate) async fn other_databases_are_not_listed(store: &Store) {
    let url = format!("{}/1", store.url());
    let (client, other) = (store.client().await, Client::connect(&url).await.unwrap());
    let name = store.name("lock");
    let _guard = other.lock(&name).lock().await.unwrap();
    assert_eq!(listed(store, &client).await, []);
    assert_eq!(names(&listed(store, &other).await), [name]);
}

/// Who asks about a name as something that it is not, or about something that is no lock at all.
pub(crate) async fn inspecting_other_data_reports_it_and_changes_nothing(store: &Store) {
    let (client, server) = (store.client().await, store.server());
    let name = store.name("data");
    for (create, found) in [
        (&["RPUSH", &name, "a"][..], None),
        (&["SADD", &name, "a"], None),
        (&["HSET", &name, "name", "Ann"], None),
        (&["SET", &name, "42"], Some(Kind::Semaphore)),
        (&["SET", &name, "text"], Some(Kind::Mutex)),
    ] {
        server.cli(create).ok();
        let before = server.cli(&["DUMP", &name]);
        let looked = client.inspector().inspect(&name).await;
        match found {
            None => assert_is!(looked, Err(Error::WrongKind { .. })),
            Some(kind) => assert_eq!(looked.unwrap().kind, kind, "{create:?}"),
        }
        assert_eq!(server.cli(&["DUMP", &name]), before, "{create:?}");
        server.cli(&["DEL", &name]).ok();
    }
}
