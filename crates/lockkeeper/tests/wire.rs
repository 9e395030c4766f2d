//! What is stored and published, byte for byte, as `redis-cli` sees it.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::backend::{
    Acquire, Attempt, Backend, ClientInfo, Kind, Release, Released, Resource,
};
use lockkeeper::stores::Redis;
use lockkeeper::{Client, ClientOptions, Error, LockName, OwnerId};
use testkit::{Cli, RedisServer, Reply, Stopwatch};

/// A name and its channel.
const NAMES: [(&str, &str); 5] = [
    ("order:7", "redisson_lock__channel:{order:7}"),
    ("{eu}:order:7", "redisson_lock__channel:{eu}:order:7"),
    ("foo{bar", "redisson_lock__channel:foo{bar"),
    ("x{}y", "redisson_lock__channel:x{}y"),
    ("mit Umläuten", "redisson_lock__channel:{mit Umläuten}"),
];

async fn start() -> (RedisServer, Client) {
    let server = RedisServer::start();
    let client = connect(&server).await;
    (server, client)
}

async fn connect(server: &RedisServer) -> Client {
    Client::connect(&server.url()).await.unwrap()
}

/// Polls until the condition holds.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let watch = Stopwatch::start();
    while !condition() {
        assert!(watch.elapsed() < Duration::from_secs(10), "not within ten seconds: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn bytes(reply: &Reply) -> &[u8] {
    match reply {
        Reply::Bulk(bytes) => bytes,
        other => panic!("expected a string, got {other:?}"),
    }
}

/// The hash as it is, field by field.
fn hash(server: &RedisServer, key: impl AsRef<[u8]>) -> BTreeMap<String, String> {
    let fields = server.cli(&[b"HGETALL", key.as_ref()]).ok();
    let pairs = fields.array().chunks(2);
    pairs.map(|pair| (pair[0].text().to_owned(), pair[1].text().to_owned())).collect()
}

/// What the hash of a lock is that one owner holds so often.
fn held_by(owner: &str, count: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(owner.to_owned(), count.to_owned())])
}

#[track_caller]
fn assert_ttl(server: &RedisServer, key: impl AsRef<[u8]>, expected: i64) {
    let found = server.cli(&[b"PTTL", key.as_ref()]).int();
    // Only ever less, and by no more than what a busy machine takes between two commands.
    assert!((expected - 5_000..=expected).contains(&found), "{found} ms, not {expected}");
}

/// Everything that was published since, ended by a word of our own.
#[track_caller]
fn messages(server: &RedisServer, listener: &mut Cli, channel: &str) -> Vec<(String, String)> {
    const END: &str = "that is all";
    server.cli(&["PUBLISH", channel, END]).ok();
    let next = || listener.next_message(Duration::from_secs(5)).expect("the end is published");
    let messages = std::iter::repeat_with(next);
    let messages = messages.map(|(channel, text)| (channel, String::from_utf8(text).unwrap()));
    messages.take_while(|(_, text)| text != END).collect()
}

#[track_caller]
fn assert_owner_form(id: &str) {
    let (client, number) = id.split_once(':').expect("<uuid>:<number>");
    let client_id: uuid::Uuid = client.parse().unwrap();
    assert_eq!(client_id.get_version_num(), 4);
    assert_eq!(client_id.as_hyphenated().to_string(), client, "36 lower-case characters");
    assert!(number.bytes().all(|byte| byte.is_ascii_digit()));
    assert!(number.parse::<i64>().is_ok(), "{number} is no Java long");
}

fn subscribers(server: &RedisServer, channel: &str) -> i64 {
    server.cli(&["PUBSUB", "NUMSUB", channel]).array()[1].int()
}

#[tokio::test]
async fn a_lock_is_a_hash_of_owner_to_hold_count_with_a_ttl() {
    let (server, client) = start().await;
    for (name, _) in NAMES {
        let lock = client.lock(name).as_owner(&client.new_owner());
        let guard = lock.lock().await.unwrap();
        let id = guard.owner_id().to_string();
        assert_owner_form(&id);
        assert!(id.starts_with(&client.id().to_string()));
        assert_eq!(server.cli(&["TYPE", name]).text(), "hash");
        assert_eq!(hash(&server, name), held_by(&id, "1"));
        assert_ttl(&server, name, 30_000);

        let second = lock.lease(Duration::from_secs(60)).lock().await.unwrap();
        assert_eq!(hash(&server, name), held_by(&id, "2"));
        assert_ttl(&server, name, 60_000);
        let third = lock.lease(Duration::from_secs(1)).lock().await.unwrap();
        assert_eq!(hash(&server, name), held_by(&id, "3"));
        assert_ttl(&server, name, 60_000);
        third.release().await.unwrap();
        assert_eq!(hash(&server, name), held_by(&id, "2"));
        second.release().await.unwrap();
        assert_eq!(hash(&server, name), held_by(&id, "1"));
        assert_ttl(&server, name, 30_000);
        guard.release().await.unwrap();
        assert_eq!(server.cli(&["EXISTS", name]).int(), 0);
    }
}

#[tokio::test]
async fn a_binary_name_is_the_key_as_it_is() {
    let (server, client) = start().await;
    let name = b"\xff\x00 a\r\nb\x80".as_slice();
    let guard = client.lock(name).lock().await.unwrap();
    assert_eq!(hash(&server, name), held_by(&guard.owner_id().to_string(), "1"));
    let rival = connect(&server).await.lock(name);
    let waiter = tokio::spawn(async move { rival.lock().await.map(|guard| guard.owner_id()) });
    let channel = [b"redisson_lock__channel:{", name, b"}"].concat();
    eventually("it waits", || {
        let found = server.cli(&[b"PUBSUB", b"NUMSUB".as_slice(), &channel]);
        found.array()[1].int() == 1
    })
    .await;
    let freed = Stopwatch::start();
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap();
    assert!(freed.elapsed() < Duration::from_secs(2), "woken by the message");
}

#[tokio::test]
async fn the_last_release_publishes_zero_once_and_nothing_else_does() {
    let (server, client) = start().await;
    for (name, channel) in NAMES {
        let mut listener = server.connection();
        listener.subscribe(&[channel]);
        let zero = [(channel.to_owned(), "0".to_owned())];

        let lock = client.lock(name);
        let guard = lock.lock().await.unwrap();
        assert!(connect(&server).await.lock(name).try_lock().await.unwrap().is_none());
        let second = guard.reenter().await.unwrap();
        second.extend(Duration::from_secs(60)).await.unwrap();
        second.release().await.unwrap();
        assert_eq!(messages(&server, &mut listener, channel), []);
        guard.release().await.unwrap();
        assert_eq!(messages(&server, &mut listener, channel), zero);

        let guard = lock.lock().await.unwrap();
        server.cli(&["DEL", name]).ok();
        assert!(matches!(guard.release().await, Err(Error::NotHeld { .. })));
        assert_eq!(messages(&server, &mut listener, channel), [], "there was nothing to free");

        lock.lock().await.unwrap().leave_for(Duration::from_secs(60)).await.unwrap();
        assert_eq!(messages(&server, &mut listener, channel), [], "it is left, not freed");
    }
}

#[tokio::test]
async fn a_handoff_replaces_the_owner_and_publishes_nothing() {
    let server = RedisServer::start();
    let (url, options) = (server.url(), ClientOptions::new());
    let store = Redis::connect(&url, &options).await.unwrap();
    let client = uuid::Uuid::new_v4();
    for (kind, name) in [(Kind::Lock, "lock"), (Kind::Mutex, "mutex")] {
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let mut listener = server.connection();
        listener.subscribe(&[&channel]);
        let resource = Resource { kind, name: LockName::from(name) };
        let (giver, receiver) = (OwnerId::fresh(client), OwnerId::fresh(client));
        for (owner, from, ttl) in [(giver, None, 90_000), (receiver, Some(giver), 30_000)] {
            let acquire = Acquire { from, ..Acquire::new(resource.clone(), owner, ttl) };
            assert_eq!(store.acquire(acquire).await, Ok(Attempt::GRANTED));
        }
        match kind {
            Kind::Mutex => {
                assert_eq!(server.cli(&["GET", name]).text(), receiver.to_string());
            }
            _ => assert_eq!(hash(&server, name), held_by(&receiver.to_string(), "1")),
        }
        assert_ttl(&server, name, 30_000);
        assert_eq!(messages(&server, &mut listener, &channel), []);
        let release = Release::new(resource, receiver);
        assert_eq!(store.release(release).await, Ok(Released::Freed { listeners: Some(1) }));
        assert_eq!(messages(&server, &mut listener, &channel), [(channel, "0".to_owned())]);
    }
}

#[tokio::test]
async fn a_force_release_publishes_zero_and_a_notice_and_is_logged() {
    let (server, client) = start().await;
    let operator = connect(&server).await;
    for (name, channel) in NAMES {
        let log = channel.replace("redisson_lock__channel", "lockkeeper_forced");
        let notice = format!("lockkeeper_notice:{}", client.id());
        let mut listener = server.connection();
        listener.subscribe(&[channel, &notice]);
        let guard = client.lock(name).lock().await.unwrap();
        let id = guard.owner_id().to_string();
        assert!(operator.lock(name).force_unlock("stuck since noon").await.unwrap());
        assert_eq!(server.cli(&["EXISTS", name]).int(), 0);
        let told = [
            (channel.to_owned(), "0".to_owned()),
            (notice, format!("revoked {id} stuck since noon")),
        ];
        assert_eq!(messages(&server, &mut listener, channel), told);

        assert_eq!(server.cli(&["TYPE", &log]).text(), "list");
        let entries = server.cli(&["LRANGE", &log, "0", "-1"]).ok();
        let [entry] = entries.array() else { panic!("{entries:?}") };
        let pid = format!("pid {} on {}", std::process::id(), ClientInfo::of_this_process().host);
        for part in [&format!("\"{id}\""), "\"stuck since noon\"", &pid, "\"at\":\"1"] {
            assert!(entry.text().contains(part), "{part} is not in {}", entry.text());
        }
        assert_ttl(&server, &log, 7 * 24 * 3600 * 1000);
        assert!(!operator.lock(name).force_unlock("").await.unwrap());
        assert_eq!(server.cli(&["LLEN", &log]).int(), 1, "nothing was forced");
    }
}

#[tokio::test]
async fn a_client_with_holds_announces_itself_until_it_shuts_down() {
    let (server, client) = start().await;
    let key = format!("lockkeeper_client:{}", client.id());
    assert_eq!(server.cli(&["EXISTS", &key]).int(), 0, "it holds nothing yet");
    let guard = client.lock("a").lock().await.unwrap();
    eventually("it says who it is", || server.cli(&["EXISTS", &key]).int() == 1).await;
    assert_ttl(&server, &key, 30_000);
    let mut fields = hash(&server, &key);
    let info = ClientInfo::of_this_process();
    assert_eq!(fields.remove("host"), Some(info.host));
    assert_eq!(fields.remove("pid"), Some(std::process::id().to_string()));
    assert_eq!(fields.remove("program"), Some(info.program));
    let start: u128 = fields.remove("start").unwrap().parse().unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    assert!((now - 60_000..=now).contains(&start), "{start} is not a time in ms");
    let holds = fields.remove("holds").unwrap();
    let parts: Vec<_> = holds.trim_end().split(' ').collect();
    let owner = guard.owner_id().to_string();
    assert_eq!(parts[..3], [owner.split_once(':').unwrap().1, "lock", "1"], "{holds}");
    let since: u128 = parts[3].parse().unwrap();
    assert!((start..=now).contains(&since), "{since} is not when it was taken");
    assert_eq!(parts[4..], ["61"], "the name, in hexadecimal digits");
    assert_eq!(fields.remove("more"), Some("0".to_owned()));
    assert_eq!(fields.remove("ttl"), Some("30000".to_owned()));
    assert_eq!(fields.remove("every"), Some("10000".to_owned()));
    assert!(fields.is_empty(), "{fields:?}");
    let id = client.id().to_string();
    assert!(
        server.cli(&["ZSCORE", "lockkeeper_clients", &id]).text().parse::<u128>().unwrap() > now
    );
    assert_ttl(&server, "lockkeeper_clients", 30_000);
    let holder = client.lock("a").inspect().await.unwrap().holders.remove(0);
    assert_eq!(holder.client.unwrap().pid, std::process::id());
    client.shutdown().await;
    assert_eq!(server.cli(&["EXISTS", &key, "lockkeeper_clients"]).int(), 0);
    assert_eq!(server.cli(&["EXISTS", "a"]).int(), 0);
    drop(guard);
}

#[tokio::test]
async fn a_mutex_is_a_string_with_its_owner_and_publishes_on_the_same_channel() {
    let (server, client) = start().await;
    for (name, channel) in NAMES {
        let mut listener = server.connection();
        listener.subscribe(&[channel]);
        let guard = client.mutex(name).lock().await.unwrap();
        let id = guard.owner_id().to_string();
        assert_owner_form(&id);
        assert_eq!(server.cli(&["TYPE", name]).text(), "string");
        assert_eq!(bytes(&server.cli(&["GET", name])), id.as_bytes());
        assert_ttl(&server, name, 30_000);
        guard.extend(Duration::from_secs(60)).await.unwrap();
        assert_ttl(&server, name, 60_000);
        assert_eq!(messages(&server, &mut listener, channel), []);
        guard.release().await.unwrap();
        assert_eq!(server.cli(&["EXISTS", name]).int(), 0);
        let zero = [(channel.to_owned(), "0".to_owned())];
        assert_eq!(messages(&server, &mut listener, channel), zero);
    }
}

/// How often the server has executed each command.
fn commands(server: &RedisServer) -> BTreeMap<String, u64> {
    let info = server.cli(&["INFO", "commandstats"]);
    let lines = info.text().lines().filter_map(|line| line.strip_prefix("cmdstat_"));
    let counts = lines.map(|line| {
        let (name, stats) = line.split_once(":calls=").expect("cmdstat_name:calls=n,…");
        let calls = stats.split(',').next().unwrap().parse().unwrap();
        (name.to_owned(), calls)
    });
    counts.collect()
}

/// What the server executes while `pair` is done so many times.
async fn difference(
    server: &RedisServer,
    times: u64,
    pair: impl AsyncFn(),
) -> BTreeMap<String, u64> {
    let before = commands(server);
    for _ in 0..times {
        pair().await;
    }
    let mut after = commands(server);
    for (name, calls) in &mut after {
        *calls -= before.get(name).copied().unwrap_or(0);
    }
    // Ours, to look, and the keep-alive of the subscription, which does not depend on locks.
    after.retain(|name, calls| *calls > 0 && name != "info" && name != "ping");
    after
}

#[tokio::test]
async fn an_uncontended_pair_is_two_commands_and_no_more() {
    const PAIRS: u64 = 100;
    let (server, client) = start().await;
    // While this is held the client has nothing to say about itself for another ten seconds.
    let _anchor = client.lock("anchor").lock().await.unwrap();
    let notice = format!("lockkeeper_notice:{}", client.id());
    let key = format!("lockkeeper_client:{}", client.id());
    eventually("it has said who it is", || {
        subscribers(&server, &notice) == 1 && server.cli(&["EXISTS", &key]).int() == 1
    })
    .await;
    let (lock, mutex) = (client.lock("a"), client.mutex("b"));
    // The scripts are known from here on.
    lock.lock().await.unwrap().release().await.unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
    let expected = |each: &[(&str, u64)]| -> BTreeMap<String, u64> {
        each.iter().map(|(name, calls)| ((*name).to_owned(), calls * PAIRS)).collect()
    };
    let pairs = async || lock.lock().await.unwrap().release().await.unwrap();
    let locks = difference(&server, PAIRS, pairs).await;
    // Two requests; the rest are the scripts' own calls.
    let script = [("pttl", 1), ("hset", 1), ("pexpire", 1), ("hdel", 1), ("publish", 1)];
    assert_eq!(locks, expected(&[&[("evalsha", 2)], &script[..]].concat()));
    let pairs = async || mutex.lock().await.unwrap().release().await.unwrap();
    let mutexes = difference(&server, PAIRS, pairs).await;
    // Before 7.0 there is no `SET` with both `NX` and `GET`: a script does it.
    let (scripts, gets) = match server.info_field("server", "redis_version").starts_with("6.") {
        true => (2, 2),
        false => (1, 1),
    };
    let calls = [("set", 1), ("evalsha", scripts), ("get", gets), ("del", 1), ("publish", 1)];
    assert_eq!(mutexes, expected(&calls));
}
