//! Users of the server with limited permissions.

use lockkeeper::{Client, Error, Kind, MultiLock, Phase};
use testkit::RedisServer;
use tokio::time::Instant;

use crate::primitives::*;
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
async fn without_channels_each_client_warns_once() {
    for kind in KINDS {
        let (warnings, _collecting) = Warnings::collect();
        let (server, url) = with_user(&["~*", "+@all", "resetchannels"]);
        let one = connect(&url, options()).await;
        let two = connect(&url, options()).await;
        for _ in 0..2 {
            let guard = taken(&lock_of(&one, kind, "a")).await;
            let (before, handle) = (asked(&server), lock_of(&two, kind, "a"));
            let waiter = tokio::spawn(handle.lock());
            eventually(PATIENCE, "polling", || asked(&server) >= before + 6).await;
            guard.release().await.expect("a release needs no channel");
            let guard = within(SOON, "the waiter", joined(waiter)).await;
            guard.expect("freed").release().await.expect("held");
        }
        // Once for each client that waits, and once for each that could not tell.
        let polling = warnings.containing("cannot subscribe to wake-ups");
        let telling = warnings.containing("no permission to publish");
        assert_eq!((polling, telling), (1, 2), "{warnings:?}");
    }
}

/// How often anything was asked for.
fn asked(server: &RedisServer) -> u64 {
    server.commandstats("evalsha") + server.commandstats("eval") + server.commandstats("set")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_polls_after_its_channel_permission_is_revoked() {
    both(async |kind| {
        let (server, url) = with_user(&["~*", "&*", "+@all"]);
        let other = connect(&server.url(), options()).await;
        let guard = taken(&lock_of(&other, kind, "a")).await;
        let handle = lock_of(&connect(&url, options()).await, kind, "a");
        let waiter = tokio::spawn(handle.lock());
        eventually(PATIENCE, "listening", || listeners(&server, "a") == 1).await;
        // The server disconnects subscribers that lost their permission.
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
            // A wait without a limit fails just as soon.
            let answer = within(SOON, "lock", handle.lock()).await;
            assert!(assert_denied(&answer).contains(command));
            let answer = within(SOON, "try_lock_for", handle.try_lock_for(LONG)).await;
            let denied =
                matches!(answer, Err(Error::Denied { lock: Some(_), phase: Phase::Acquire, .. }));
            assert!(denied, "{answer:?}");
        }
        assert_free(&server, kind, "a");
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
        // Locks of its own keys work, though the announcement is denied.
        let guard = taken(&lock_of(&client, kind, "mine:a")).await;
        assert_held(&server, kind, "mine:a", &guard, 1);
        guard.release().await.expect("held");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_permissions_fail_a_waiter_at_once() {
    both(async |kind| {
        let (server, url) = with_user(&["~*", "&*", "+@all"]);
        let other = connect(&server.url(), options()).await;
        let _held = taken(&lock_of(&other, kind, "a")).await;
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
        let error = answer.unwrap_err();
        let shown = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
        assert!(!shown.contains("wr0ng"), "{shown}");
        assert!(
            matches!(error, Error::Denied { lock: None, phase: Phase::Connect, .. }),
            "{error:?}"
        );
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
        // The same client works again after the permission is restored.
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

/// Renewals are batched; the permission for one of the keys is revoked. Only that lock is lost.
///
/// On one thread, where a failed batch is repeated as one batch.
#[tokio::test]
async fn a_revoked_permission_for_one_key_loses_that_lock_only() {
    both(async |kind| {
        let server = RedisServer::start();
        let may = |keys: &[&str]| {
            let mut command = vec!["ACL", "SETUSER", "u", "on", ">s3cret", "allchannels", "+@all"];
            command.push("resetkeys");
            command.extend(keys);
            server.cli(&command).ok();
        };
        may(&["~*"]);
        // Renewed every second.
        let short = options().watchdog_timeout(ms(3000));
        let client = connect(&server.url_with("u", "s3cret"), short).await;
        let mut permitted = Vec::new();
        for n in 0..8 {
            let name = format!("a-{n}");
            let guard = taken(&lock_of(&client, kind, &name)).await;
            permitted.push((name, guard));
        }
        let forbidden = taken(&lock_of(&client, kind, "b")).await;
        may(&["~a-*", "~lockkeeper*"]);
        // Not one of its renewals is answered from now on. The others were taken before it, and
        // would be lost before it if theirs were not either.
        within(PATIENCE, "the loss", forbidden.lost()).await;
        for (name, guard) in permitted {
            assert_held(&server, kind, &name, &guard, 1);
            guard.release().await.expect("held");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_channels_every_kind_of_waiter_polls() {
    each(&Primitive::ALL, async |primitive| {
        let (server, url) = with_user(&["~*", "+@all", "resetchannels"]);
        let (one, two) = (connect(&url, options()).await, connect(&url, options()).await);
        set_up(&one, primitive, "a").await;
        for _ in 0..2 {
            let held = Handle::new(&one, primitive.exclusive(), "a").held().await;
            let (before, started) = (asked(&server), Instant::now());
            let waiter = tokio::spawn(Handle::new(&two, primitive, "a").acquire());
            // Announcements and texts of scripts are among these requests.
            eventually(PATIENCE, "polling", || asked(&server) >= before + 20).await;
            // Every 50 to 100 ms, unless it spins.
            assert!(
                started.elapsed() > ms(200) || primitive == Primitive::Spin,
                "{primitive:?} hammers"
            );
            held.release().await.expect("it needs no channel");
            let held = within(SOON, "the waiter", joined(waiter)).await.expect("freed");
            held.release().await.expect("held");
            assert_eq!(holds(&server, primitive), Vec::<String>::new(), "{primitive:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_channels_a_waiter_for_a_latch_polls() {
    let (server, url) = with_user(&["~*", "+@all", "resetchannels"]);
    let (one, two) = (connect(&url, options()).await, connect(&url, options()).await);
    let (latch, waits) = (one.count_down_latch("a"), two.count_down_latch("a"));
    assert!(latch.try_set_count(1).await.expect("answered"));
    let (before, started) = (asked(&server), Instant::now());
    let waiter = tokio::spawn(async move { waits.wait().await });
    eventually(PATIENCE, "polling", || asked(&server) >= before + 10).await;
    assert!(started.elapsed() > ms(200), "it hammers");
    assert_eq!(latch.count_down().await.expect("it needs no channel"), 0);
    within(SOON, "the waiter", joined(waiter)).await.expect("opened");
}

/// A lock without a TTL must not be left behind, nor half of a lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_command_inside_a_script_the_request_is_denied_and_changes_nothing() {
    for (denied, primitives) in [
        ("-pexpire", &Primitive::ALL[..]),
        ("-hset", &Primitive::ALL),
        ("-pttl", &[Primitive::Lock]),
    ] {
        each(primitives, move |primitive| async move {
            let (server, url) = with_user(&["~*", "&*", "+@all", denied]);
            let other = connect(&server.url(), options()).await;
            set_up(&other, primitive, "a").await;
            let client = connect(&url, options()).await;
            let answer = Handle::new(&client, primitive, "a").attempt().await;
            match answer {
                // A mutex and permits with ids need none of them.
                Ok(Some(held)) if matches!(primitive, Primitive::Mutex | Primitive::Permits) => {
                    held.release().await.expect("held");
                }
                // The server names the script and not the command.
                answer => {
                    let said = assert_denied(&answer);
                    assert!(primitive != Primitive::Lock || said.contains("script"), "{said}");
                }
            }
            assert_eq!(holds(&server, primitive), Vec::<String>::new(), "{primitive:?} {denied}");
        })
        .await;
    }
}

/// Several locks in one script, which stops half-way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_lock_without_a_command_is_denied_and_leaves_nothing() {
    for denied in ["-pexpire", "-hset", "-pttl"] {
        let (server, url) = with_user(&["~*", "&*", "+@all", denied]);
        let multi = |client: &Client| MultiLock::new(["a", "b", "c"].map(|name| client.lock(name)));
        let client = connect(&url, options()).await;
        assert_denied(&multi(&client).try_lock().await);
        assert_denied(&multi(&client).try_lock_for(ms(5_000)).await);
        assert_eq!(server.cli(&["EXISTS", "a", "b", "c"]).int(), 0, "{denied}");
        let all = connect(&server.url(), options()).await;
        multi(&all).try_lock().await.unwrap().expect("all are free").release().await.unwrap();
    }
}

/// The script would decrement the counter and then fail to write the ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_without_a_command_are_denied_and_none_is_acquired() {
    for denied in ["-zadd", "-incrby"] {
        let (server, url) = with_user(&["~*", "&*", "+@all", denied]);
        let semaphore = connect(&server.url(), options()).await.permit_semaphore("a");
        assert!(semaphore.try_set_permits(5, None).await.unwrap());
        let client = connect(&url, options()).await;
        for _ in 0..3 {
            assert_denied(&client.permit_semaphore("a").try_acquire(2).await);
        }
        let counts = (semaphore.available().await.unwrap(), semaphore.acquired().await.unwrap());
        assert_eq!(counts, (5, 0), "{denied}");
    }
}
