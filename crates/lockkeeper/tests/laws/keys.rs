//! What only a Redis store has: keys that others write, read and delete.

use std::time::Duration;

use lockkeeper::{Client, Error, LostReason, Remaining};
use tokio::time::{Instant, timeout};

use crate::store::{Store, assert_is, eventually, poll_once};

const STRANGER: &str = "6e0c9d2c-52f4-4c5d-9d63-cc1f2c4a6d0e:42";

async fn client(store: &Store) -> (Client, String) {
    (store.client().await, store.name("key"))
}

pub(crate) async fn a_key_that_is_no_lock_is_refused_and_left_alone(store: &Store) {
    let (client, name) = client(store).await;
    let server = store.server();
    let many: Vec<String> = (0..40).flat_map(|i| [format!("field-{i}"), "1".to_owned()]).collect();
    let mut large = vec!["HSET", &name];
    large.extend(many.iter().map(String::as_str));
    let reader = format!("{STRANGER}:write");
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
            lock.remaining().await.map(drop),
            lock.holder().await.map(drop),
            lock.force_unlock().await.map(drop),
        ] {
            assert_is!((&what, answer), (_, Err(Error::WrongKind { .. })));
        }
        assert_eq!(server.cli(&["DUMP", &name]), before, "{what}: changed");
        assert_eq!(server.cli(&["PTTL", &name]).int(), -1, "{what}: expires");
        server.cli(&["DEL", &name]).ok();
    }
}

pub(crate) async fn a_key_that_is_no_mutex_is_refused_and_left_alone(store: &Store) {
    let (client, name) = client(store).await;
    let server = store.server();
    for create in [
        &["RPUSH", &name, "a", "b"][..],
        &["SADD", &name, "a"],
        &["HSET", &name, STRANGER, "1"],
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
            mutex.remaining().await.map(drop),
            mutex.holder().await.map(drop),
            mutex.force_unlock().await.map(drop),
        ] {
            assert_is!((&what, answer), (_, Err(Error::WrongKind { .. })));
        }
        assert_eq!(server.cli(&["DUMP", &name]), before, "{what}: changed");
        server.cli(&["DEL", &name]).ok();
    }
    // A string that never ends is somebody's data: it is busy, and not to be forced.
    server.cli(&["SET", &name, "data"]).ok();
    let mutex = client.mutex(&name);
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert_is!(mutex.force_unlock().await, Err(Error::WrongKind { .. }));
    assert_eq!(server.cli(&["GET", &name]).text(), "data");
}

pub(crate) async fn a_held_key_that_becomes_something_else_is_lost(store: &Store) {
    let (client, name) = client(store).await;
    let server = store.server();
    for as_mutex in [false, true] {
        let guard = match as_mutex {
            false => lockkeeper::AnyGuard::from(client.lock(&name).lock().await.unwrap()),
            true => client.mutex(&name).lock().await.unwrap().into(),
        };
        server.cli(&["DEL", &name]).ok();
        server.cli(&["RPUSH", &name, "a"]).ok();
        assert_eq!(store.signalled(guard.lost()).await, LostReason::Taken);
        assert_is!(guard.release().await, Err(Error::NotHeld { .. }));
        assert_eq!(server.cli(&["LLEN", &name]).int(), 1, "it is left alone");
        server.cli(&["DEL", &name]).ok();
    }
}

pub(crate) async fn a_foreign_field_in_the_lock_means_that_it_was_taken(store: &Store) {
    let (client, name) = client(store).await;
    let guard = client.lock(&name).lock().await.unwrap();
    store.server().cli(&["HSET", &name, STRANGER, "1"]).ok();
    assert_eq!(store.signalled(guard.lost()).await, LostReason::Taken);
    drop(guard);
    store.server().cli(&["DEL", &name]).ok();
}

pub(crate) async fn the_hold_count_is_the_hash_value(store: &Store) {
    let (client, name) = client(store).await;
    let guard = client.lock(&name).lease(store.long()).lock().await.unwrap();
    let id = guard.owner_id().to_string();
    let again = guard.reenter().await.unwrap();
    assert_eq!(store.server().cli(&["HGET", &name, &id]).text(), "2");
    assert_eq!(store.server().cli(&["HLEN", &name]).int(), 1);
    again.release().await.unwrap();
    assert_eq!(store.server().cli(&["HGET", &name, &id]).text(), "1");
    guard.release().await.unwrap();
    assert_eq!(store.server().cli(&["EXISTS", &name]).int(), 0);
}

pub(crate) async fn a_mutex_is_a_string_with_the_owner_in_it(store: &Store) {
    let (client, name) = client(store).await;
    let guard = client.mutex(&name).lease(store.long()).lock().await.unwrap();
    assert_eq!(store.server().cli(&["GET", &name]).text(), guard.owner_id().to_string());
    let ttl = store.server().cli(&["PTTL", &name]).int();
    assert!(ttl > 0 && ttl <= store.long().as_millis() as i64, "{ttl}");
    guard.release().await.unwrap();
    assert_eq!(store.server().cli(&["EXISTS", &name]).int(), 0);
}

pub(crate) async fn a_lock_of_a_stranger_is_respected_and_shown(store: &Store) {
    let (client, name) = client(store).await;
    let server = store.server();
    server.cli(&["HSET", &name, STRANGER, "3"]).ok();
    server.cli(&["PEXPIRE", &name, "20000"]).ok();
    let lock = client.lock(&name);
    assert!(lock.try_lock().await.unwrap().is_none());
    let holder = lock.holder().await.unwrap().expect("it is held");
    assert_eq!((&holder.id[..], holder.hold_count), (STRANGER, 3));
    assert_eq!(holder.client, None, "Redisson says no more than this");
    let mut waiting = lock.lock();
    tokio::select! {
        _ = &mut waiting => panic!("it was taken from the stranger"),
        () = eventually("it listens", async || store.listeners(&name) == 1) => {}
    }
    // As Redisson's unlock does.
    server.cli(&["DEL", &name]).ok();
    let told = server.cli(&["PUBLISH", &format!("redisson_lock__channel:{{{name}}}"), "0"]);
    assert_eq!(told.int(), 1);
    store.promptly("the waiter is woken", waiting).await.unwrap().release().await.unwrap();
}

pub(crate) async fn a_release_wakes_whoever_listens_as_redisson_does(store: &Store) {
    let (client, name) = client(store).await;
    let mut java = store.server().connection();
    let channel = format!("redisson_lock__channel:{{{name}}}");
    java.subscribe(&[&channel]);
    let guard = client.lock(&name).lease(store.long()).lock().await.unwrap();
    let inner = guard.reenter().await.unwrap();
    inner.release().await.unwrap();
    assert_eq!(java.next_message(Duration::from_millis(50)), None, "it is still held");
    guard.release().await.unwrap();
    let message = java.next_message(store.long());
    assert_eq!(message, Some((channel.clone(), b"0".to_vec())));
    client.mutex(&name).lock().await.unwrap().release().await.unwrap();
    assert_eq!(java.next_message(store.long()), Some((channel, b"0".to_vec())));
}

/// Others of the Redlock family delete and tell nobody.
pub(crate) async fn a_mutex_deleted_in_silence_is_taken_soon(store: &Store) {
    let (client, name) = client(store).await;
    let server = store.server();
    server.cli(&["SET", &name, "a-token", "NX", "PX", "20000"]).ok();
    let mutex = client.mutex(&name);
    let holder = mutex.holder().await.unwrap().expect("it is held");
    assert_eq!((&holder.id[..], holder.hold_count, holder.client), ("a-token", 1, None));
    let mut waiting = mutex.lock();
    assert!(timeout(Duration::from_millis(200), &mut waiting).await.is_err());
    let start = Instant::now();
    server.cli(&["DEL", &name]).ok();
    let guard = timeout(store.long(), waiting).await.expect("it looks again").unwrap();
    // 50 to 100 ms, and what a busy machine adds; a lock would look in 2.5 s at the earliest.
    assert!(start.elapsed() < Duration::from_millis(2400), "{:?}", start.elapsed());
    guard.release().await.unwrap();
}

pub(crate) async fn a_lock_deleted_in_silence_is_taken_within_the_recheck(store: &Store) {
    let (client, name) = client(store).await;
    let server = store.server();
    server.cli(&["HSET", &name, STRANGER, "1"]).ok();
    server.cli(&["PEXPIRE", &name, "60000"]).ok();
    let mut waiting = client.lock(&name).lock();
    assert!(timeout(Duration::from_millis(200), &mut waiting).await.is_err());
    let start = Instant::now();
    server.cli(&["DEL", &name]).ok();
    let guard = timeout(store.long(), waiting).await.expect("it looks again").unwrap();
    assert!(start.elapsed() < Duration::from_secs(7), "{:?}", start.elapsed());
    guard.release().await.unwrap();
}

pub(crate) async fn a_lock_without_an_end_is_shown_as_such_and_waited_for(store: &Store) {
    let (client, name) = client(store).await;
    let server = store.server();
    server.cli(&["HSET", &name, STRANGER, "1"]).ok();
    let lock = client.lock(&name);
    assert_eq!(lock.remaining().await.unwrap(), Remaining::Forever);
    assert!(lock.is_locked().await.unwrap());
    assert!(lock.try_lock_for(store.lease()).await.unwrap().is_none());
    assert!(lock.force_unlock().await.unwrap(), "a lock that never ends can be forced");
    lock.lock().await.unwrap().release().await.unwrap();
}

/// One subscription per name and client, however many wait; none when nobody does.
pub(crate) async fn a_client_subscribes_once_for_all_its_waiters(store: &Store) {
    let (holder, name) = client(store).await;
    let guard = holder.lock(&name).lease(store.long()).lock().await.unwrap();
    let waiting = store.client().await;
    let lock = waiting.lock(&name);
    let mut waiters: Vec<_> = (0..10).map(|_| lock.lock()).collect();
    waiters.iter_mut().for_each(|waiter| assert!(poll_once(waiter).is_pending()));
    let task = tokio::spawn(async move {
        for waiter in waiters {
            waiter.await.unwrap().release().await.unwrap();
        }
    });
    eventually("it listens", async || store.listeners(&name) > 0).await;
    assert_eq!(store.listeners(&name), 1);
    guard.release().await.unwrap();
    task.await.unwrap();
    eventually("nobody listens", async || store.listeners(&name) == 0).await;
}

pub(crate) async fn the_note_of_who_a_client_is_goes_with_it(store: &Store) {
    let (client, name) = client(store).await;
    let server = store.server();
    let note = format!("lockkeeper_client:{}", client.id());
    assert_eq!(server.cli(&["EXISTS", &note]).int(), 0, "it is not there without a hold");
    let guard = client.lock(&name).lease(store.long()).lock().await.unwrap();
    eventually("it says who it is", async || server.cli(&["EXISTS", &note]).int() == 1).await;
    let ttl = server.cli(&["PTTL", &note]).int();
    assert!(ttl > 0 && ttl <= store.watchdog().as_millis() as i64, "{ttl}");
    assert_eq!(server.cli(&["HGET", &note, "pid"]).text(), std::process::id().to_string());
    client.shutdown().await;
    assert_eq!(server.cli(&["EXISTS", &note]).int(), 0, "it is removed at shutdown");
    drop(guard);
}

pub(crate) async fn a_forced_unlock_is_remembered(store: &Store) {
    let (client, name) = client(store).await;
    let guard = client.lock(&name).lease(store.long()).lock().await.unwrap();
    assert!(client.lock(&name).force_unlock_because("the host burnt down").await.unwrap());
    let log = format!("lockkeeper_forced:{{{name}}}");
    let lines = store.server().cli(&["LRANGE", &log, "0", "-1"]);
    let line = lines.array()[0].text();
    assert_eq!(lines.array().len(), 1);
    for part in ["the host burnt down", &guard.owner_id().to_string()] {
        assert!(line.contains(part), "{line}");
    }
    let seven_days = 7 * 24 * 3600;
    let ttl = store.server().cli(&["TTL", &log]).int();
    assert!(ttl > seven_days - 60 && ttl <= seven_days, "{ttl}");
    for _ in 0..30 {
        let _guard = client.lock(&name).lease(store.long()).lock().await.unwrap();
        assert!(client.lock(&name).force_unlock().await.unwrap());
    }
    assert_eq!(store.server().cli(&["LLEN", &log]).int(), 20, "the last 20");
}

pub(crate) async fn the_scripts_may_be_flushed_at_any_time(store: &Store) {
    let (client, name) = client(store).await;
    let lock = client.lock(&name);
    let flush = || store.server().cli(&["SCRIPT", "FLUSH"]).ok();
    flush();
    let guard = lock.lock().await.unwrap();
    flush();
    let inner = guard.reenter().await.unwrap();
    flush();
    inner.release().await.unwrap();
    flush();
    store.is_renewed(&lock).await;
    assert!(!guard.is_lost(), "it was renewed");
    flush();
    guard.release().await.unwrap();
    flush();
    assert!(!lock.is_locked().await.unwrap());
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
pub(crate) async fn a_token_is_kept_for_ever_unless_it_is_to_end(store: &Store) {
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

pub(crate) async fn a_token_that_was_lost_or_set_back_heals(store: &Store) {
    let (client, name) = client(store).await;
    let mut seen = tokens(&client, &name).await;
    let key = token_key(&name);
    for meddle in [
        &["DEL", &key][..],
        // A Java process that began anew.
        &["SET", &key, "1"],
        &["SET", &key, "no number at all"],
        // Ahead of the clock: by a server whose clock was.
        &["SET", &key, "8000000000000000"],
        &["INCR", &key],
    ] {
        store.server().cli(meddle).ok();
        // What was handed out by others counts, unless it was set back.
        seen.extend(meddle.get(2).and_then(|set| set.parse::<u64>().ok()).filter(|set| *set > 1));
        seen.extend(tokens(&client, &name).await);
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
}

pub(crate) async fn a_token_is_written_in_plain_digits(store: &Store) {
    let (client, name) = client(store).await;
    for token in tokens(&client, &name).await {
        assert!(token > 1_000_000_000_000_000, "microseconds of a wall clock: {token}");
    }
    let last = tokens(&client, &name).await[2];
    assert_eq!(store.server().cli(&["GET", &token_key(&name)]).text(), last.to_string());
}

/// Everything that belongs to the name, but for what is to stay.
pub(crate) async fn a_queue_leaves_no_key_behind(store: &Store) {
    let (client, name) = client(store).await;
    let other = store.client().await.fair_lock(&name);
    let lock = client.fair_lock(&name);
    let guard = lock.lease(store.long()).lock().await.unwrap();
    // Each gives it back by itself: they need not have lined up in the order of their tasks.
    let waiter = || {
        let taking = other.lease(store.long()).lock();
        tokio::spawn(async move { taking.await?.release().await })
    };
    let waiters: Vec<_> = (0..10).map(|_| waiter()).collect();
    eventually("they wait", async || lock.waiting().await.unwrap() == 10).await;
    let keys = || store.server().cli(&["KEYS", &format!("*{name}*")]).array().len();
    assert_eq!(keys(), 4, "the lock, its queue, and until when and since when they wait");
    for waiter in &waiters[5..] {
        waiter.abort();
    }
    guard.release().await.unwrap();
    for waiter in waiters {
        if let Ok(released) = waiter.await {
            released.unwrap();
        }
    }
    eventually("nothing is left", async || keys() == 0).await;
}
