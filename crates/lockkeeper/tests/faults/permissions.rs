//! Users who may not do everything.

use lockkeeper::{Client, Error, Kind};
use testkit::RedisServer;
use tokio::time::Instant;

use crate::support::*;

/// A server with a user `u` of these rights, and the URL for that user.
fn with_user(rights: &[&str]) -> (RedisServer, String) {
    let server = RedisServer::start();
    set_user(&server, rights);
    let url = server.url_with("u", "s3cret");
    (server, url)
}

pub(crate) fn set_user(server: &RedisServer, rights: &[&str]) {
    let mut command = vec!["ACL", "SETUSER", "u", "reset", "on", ">s3cret"];
    command.extend(rights);
    server.cli(&command).ok();
}

#[track_caller]
pub(crate) fn assert_denied<T: std::fmt::Debug>(answer: &Result<T, Error>) -> String {
    match answer {
        Err(error @ Error::Denied { .. }) => {
            let said = format!("{error} {error:?}");
            assert!(!said.contains("s3cret"), "the password is shown: {said}");
            error.to_string()
        }
        other => panic!("expected Denied, got {other:?}"),
    }
}

/// On one thread, so that its warnings can be collected.
#[tokio::test]
async fn without_channels_a_lock_works_and_its_waiters_poll() {
    for kind in KINDS {
        let (warnings, _collecting) = Warnings::collect();
        let (server, url) = with_user(&["~*", "+@all", "resetchannels"]);
        let one = connect(&url, options()).await;
        let two = connect(&url, options()).await;
        for round in 0..3 {
            let guard = taken(&lock_of(&one, kind, "a")).await;
            assert_held(&server, kind, "a", &guard, 1);
            let handle = lock_of(&two, kind, "a");
            let before = asked(&server);
            let waiter = tokio::spawn(handle.lock());
            // It polls: a few times a second, and not more.
            let start = Instant::now();
            eventually(PATIENCE, "polling", || asked(&server) >= before + 8).await;
            assert!(start.elapsed() > ms(100), "round {round}: it hammers");
            guard.release().await.expect("a release needs no channel");
            let guard = within(SOON, "the waiter", joined(waiter)).await;
            guard.expect("freed").release().await.expect("held");
            assert_free(&server, kind, "a");
        }
        // Once for each client that waits, and once for each that could not tell.
        let polling = warnings.containing("cannot subscribe to wake-ups");
        let telling = warnings.containing("no permission to publish");
        assert_eq!((polling, telling), (1, 2), "{warnings:?}");
    }
}

/// How often a lock or a mutex was asked for.
fn asked(server: &RedisServer) -> u64 {
    server.commandstats("evalsha") + server.commandstats("eval") + server.commandstats("set")
}

/// The channels may be listened to, but not by this command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_subscribe_waiters_poll() {
    both(async |kind| {
        let (server, url) = with_user(&["~*", "&*", "+@all", "-subscribe"]);
        let client = connect(&url, options()).await;
        let stranger = connect(&server.url(), options()).await;
        let guard = taken(&lock_of(&stranger, kind, "a")).await;
        let before = asked(&server);
        let handle = lock_of(&client, kind, "a");
        let waiter = tokio::spawn(handle.lock());
        eventually(PATIENCE, "polling", || asked(&server) >= before + 4).await;
        guard.release().await.expect("held");
        let guard = within(SOON, "the waiter", joined(waiter)).await;
        guard.expect("freed").release().await.expect("held");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channels_taken_away_while_waiting_turn_a_waiter_to_polling() {
    both(async |kind| {
        let (server, url) = with_user(&["~*", "&*", "+@all"]);
        let stranger = connect(&server.url(), options()).await;
        let guard = taken(&lock_of(&stranger, kind, "a")).await;
        let handle = lock_of(&connect(&url, options()).await, kind, "a");
        let waiter = tokio::spawn(handle.lock());
        eventually(PATIENCE, "listening", || listeners(&server, "a") == 1).await;
        // The server disconnects those who listen where they may not any more.
        set_user(&server, &["~*", "+@all", "resetchannels"]);
        eventually(SOON, "cut off", || listeners(&server, "a") == 0).await;
        guard.release().await.expect("held");
        let guard = within(SOON, "the waiter", joined(waiter)).await;
        guard.expect("freed").release().await.expect("held");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_command_every_request_is_denied_at_once_and_names_it() {
    for (kind, rights, command) in [
        (Kind::Lock, &["~*", "&*", "+@all", "-evalsha", "-eval"], "evalsha"),
        (Kind::Mutex, &["~*", "&*", "+@all", "-set", "-eval"], "set"),
    ] {
        let (server, url) = with_user(rights);
        let handle = lock_of(&connect(&url, options()).await, kind, "a");
        for _ in 0..2 {
            let answer = within(SOON, "try_lock", handle.try_lock()).await;
            let said = assert_denied(&answer);
            assert!(said.contains(command), "{said} does not name {command}");
            // One who would wait for ever is told just as soon.
            let answer = within(SOON, "lock", handle.lock()).await;
            assert!(assert_denied(&answer).contains(command));
        }
        assert_free(&server, kind, "a");
    }
}

/// The script may be called, but not what it calls. The server does not say which command it was, so
/// neither can we; it says in which script.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_command_inside_a_script_the_request_is_denied_and_changes_nothing() {
    for denied in ["-pttl", "-hset", "-pexpire"] {
        let (server, url) = with_user(&["~*", "&*", "+@all", denied]);
        let handle = lock_of(&connect(&url, options()).await, Kind::Lock, "a");
        let answer = within(SOON, "lock", handle.lock()).await;
        let said = assert_denied(&answer);
        assert!(said.contains("script"), "{said}");
        let left = server.cli(&["EXISTS", "a"]).int();
        assert_eq!(left, 0, "{denied}: a hold was left behind");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_key_every_request_is_denied_at_once() {
    both(async |kind| {
        let (server, url) = with_user(&["~mine:*", "&*", "+@all"]);
        let client = connect(&url, options()).await;
        let answer = within(SOON, "lock", lock_of(&client, kind, "a").lock()).await;
        let said = assert_denied(&answer);
        assert!(said.contains("key"), "{said}");
        assert_free(&server, kind, "a");
        // Its own it may have, though not the note of who it is: that never fails a lock.
        let guard = taken(&lock_of(&client, kind, "mine:a")).await;
        assert_held(&server, kind, "mine:a", &guard, 1);
        guard.release().await.expect("held");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_taken_away_fail_a_waiter_at_once() {
    both(async |kind| {
        let (server, url) = with_user(&["~*", "&*", "+@all"]);
        let stranger = connect(&server.url(), options()).await;
        let _held = taken(&lock_of(&stranger, kind, "a")).await;
        let handle = lock_of(&connect(&url, options()).await, kind, "a");
        let waiter = tokio::spawn(handle.lock());
        eventually(PATIENCE, "listening", || listeners(&server, "a") == 1).await;
        // The server also cuts off the user's subscriptions: the waiter looks again.
        set_user(&server, &["resetkeys", "resetchannels", "+@all"]);
        assert_denied(&within(SOON, "the waiter", joined(waiter)).await);
    })
    .await;
}

/// Without `CLIENT` there is no name and no fence, and everything else works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_client_command_locks_work() {
    both(async |kind| {
        let (server, url) = with_user(&["~*", "&*", "+@all", "-client"]);
        let client = connect(&url, options()).await;
        let handle = lock_of(&client, kind, "a");
        let guard = taken(&handle).await;
        assert_held(&server, kind, "a", &guard, 1);
        guard.release().await.expect("held");
        server.cli(&["CLIENT", "KILL", "USER", "u"]);
        let guard = within(SOON, "again", handle.lock()).await;
        let guard = guard.expect("reconnected");
        // Wake-ups come, too.
        let other = lock_of(&connect(&url, options()).await, kind, "a");
        let waiter = tokio::spawn(other.lock());
        eventually(PATIENCE, "listening", || listeners(&server, "a") == 1).await;
        guard.release().await.expect("held");
        let guard = within(SOON, "the waiter", joined(waiter)).await;
        guard.expect("freed").release().await.expect("held");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_denied_when_connecting() {
    let server = RedisServer::builder().password("right").start();
    for url in [server.url_with("", "wr0ng-s3cret"), server.url_with("nobody", "wr0ng-s3cret")] {
        let answer = within(SOON, "an answer", Client::connect_with(&url, options())).await;
        assert_denied(&answer);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_password_where_one_is_needed_is_denied_when_connecting() {
    let server = RedisServer::builder().password("right").start();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let answer = within(SOON, "an answer", Client::connect_with(&url, options())).await;
    let said = assert_denied(&answer);
    assert!(said.contains("NOAUTH"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_changed_meanwhile_is_denied_after_the_next_reconnect() {
    both(async |kind| {
        let (server, url) = with_user(&["~*", "&*", "+@all"]);
        let client = connect(&url, options()).await;
        let handle = lock_of(&client, kind, "a");
        taken(&handle).await.release().await.expect("held");
        server.cli(&["ACL", "SETUSER", "u", "resetpass", ">other"]).ok();
        server.cli(&["CLIENT", "KILL", "USER", "u"]);
        let refused = || async {
            let answer = within(SOON, "lock", handle.lock()).await;
            assert_denied(&answer);
        };
        refused().await;
        refused().await;
        // And the way back: nobody has to make a new client.
        server.cli(&["ACL", "SETUSER", "u", ">s3cret"]).ok();
        let back = async {
            loop {
                if let Ok(guard) = handle.lock().await {
                    return guard;
                }
                tokio::time::sleep(ms(20)).await;
            }
        };
        let guard = within(SOON, "the way back", back).await;
        assert_held(&server, kind, "a", &guard, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_nowhere_to_be_seen() {
    let (_server, url) = with_user(&["~*", "&*", "+@all"]);
    let client = connect(&url, options()).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    let shown = format!("{client:?} {:?} {guard:?}", client.lock("a"));
    assert!(!shown.contains("s3cret"), "{shown}");
    for bad in ["redis://u:s3cret@:bad:port", "redis://u:s3cret@127.0.0.1:1/x", "http://u:s3cret@h"]
    {
        let error = Client::connect(bad).await.expect_err("not a URL");
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
}
