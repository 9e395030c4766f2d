//! Scripts that fail half-way would leave half of their work: none does.

use lockkeeper::{Error, Kind, LostReason};
use testkit::{Cli, RedisServer, Reply};

use crate::refusals::fill;
use crate::support::*;

const OWNER: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:7";
const OTHER: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:8";

/// Every script with arguments as the library sends them, several where it has several ways.
const CALLS: &[(&str, &str, &[&str])] = &[
    ("lock_acquire", "LOCK_ACQUIRE", &[OWNER, "60000", "1"]),
    ("lock_acquire again", "LOCK_ACQUIRE", &[OWNER, "60000", "2"]),
    ("lock_handover", "LOCK_HANDOVER", &[OWNER, OTHER, "60000"]),
    ("lock_release", "LOCK_RELEASE", &[OWNER, "0", "PUBLISH", "c"]),
    ("lock_release one", "LOCK_RELEASE", &[OWNER, "1", "PUBLISH", "c", "60000", "0"]),
    ("lock_release and leave", "LOCK_RELEASE", &[OWNER, "1", "PUBLISH", "c", "60000", "1"]),
    ("lock_renew", "LOCK_RENEW", &[OWNER, "60000"]),
    ("lock_force_unlock", "LOCK_FORCE_UNLOCK", &["PUBLISH", "c", "n:", "why"]),
    ("lock_inspect", "LOCK_INSPECT", &[]),
    ("mutex_acquire", "MUTEX_ACQUIRE", &[OWNER, "60000"]),
    ("mutex_handover", "MUTEX_HANDOVER", &[OWNER, OTHER, "60000"]),
    ("mutex_release", "MUTEX_RELEASE", &[OWNER, "PUBLISH", "c", ""]),
    ("mutex_release and leave", "MUTEX_RELEASE", &[OWNER, "PUBLISH", "c", "60000"]),
    ("mutex_renew", "MUTEX_RENEW", &[OWNER, "60000"]),
    ("mutex_force_unlock", "MUTEX_FORCE_UNLOCK", &["PUBLISH", "c", "n:", "why"]),
    ("mutex_inspect", "MUTEX_INSPECT", &[]),
    ("client_announce", "CLIENT_ANNOUNCE", &["60000", "host", "1", "program", "0"]),
    ("forced_log", "FORCED_LOG", &["who", "why", OWNER]),
];

/// A key of every type that Redis has, and of every sort that is not ours.
const KEYS: &[(&str, &[&str])] = &[
    ("a string", &["SET", "k", "somebody's data"]),
    ("a list", &["RPUSH", "k", "x", "y"]),
    ("a set", &["SADD", "k", "x"]),
    ("a sorted set", &["ZADD", "k", "1", OWNER]),
    ("a stream", &["XADD", "k", "1-1", "f", "v"]),
    ("a hash of other data", &["HSET", "k", "name", "value"]),
    ("a read/write lock", &["HSET", "k", "mode", "read", OTHER, "1"]),
    ("somebody's lock", &["HSET", "k", OTHER, "1"]),
];

/// What there is, its end included.
fn dump(cli: &mut Cli) -> (Reply, Reply) {
    (cli.cmd(&["DUMP", "k"]), cli.cmd(&["PEXPIRETIME", "k"]))
}

#[test]
fn a_script_that_fails_has_changed_nothing() {
    let server = RedisServer::start();
    let mut cli = server.connection();
    let mut failures = 0;
    for (name, script, args) in CALLS {
        for (kind, make) in KEYS {
            for ttl in [None, Some("77000")] {
                cli.cmd(&["FLUSHALL"]).ok();
                cli.cmd(make).ok();
                if let Some(ttl) = ttl {
                    cli.cmd(&["PEXPIRE", "k", ttl]).ok();
                }
                let before = dump(&mut cli);
                let mut call = vec!["EVAL", lua(script), "1", "k"];
                call.extend(*args);
                let failed = match cli.cmd(&call) {
                    Reply::Error(_) => true,
                    // A batch: the error is the answer of its entry.
                    Reply::Array(answers) => {
                        matches!(&answers[..], [Reply::Bulk(text)] if text.starts_with(b"WRONG"))
                    }
                    _ => false,
                };
                if failed {
                    failures += 1;
                    assert_eq!(dump(&mut cli), before, "{name} changed {kind}, {ttl:?}");
                    assert_eq!(cli.cmd(&["DBSIZE"]).int(), 1, "{name} on {kind}");
                }
            }
        }
    }
    // Each of the eighteen fails on the five other types at least, four where one is its own.
    assert!(failures >= 18 * 4 * 2, "only {failures} failed");
}

/// Not only the type: a key that is no lock is never touched by the API, and never waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_kind_is_refused_at_once_and_left_alone() {
    let server = RedisServer::start();
    let client = connect(&server.url(), options()).await;
    let mut cli = server.connection();
    for kind in KINDS {
        for (what, make) in KEYS {
            // For a mutex any string is somebody's token; for a lock any owner may hold it.
            let ours = match kind {
                Kind::Mutex => *what == "a string",
                _ => *what == "somebody's lock",
            };
            if ours {
                continue;
            }
            cli.cmd(&["FLUSHALL"]).ok();
            cli.cmd(make).ok();
            let before = dump(&mut cli);
            let handle = lock_of(&client, kind, "k");
            let refused = |answer: Result<(), Error>| {
                let wrong = matches!(answer, Err(Error::WrongKind { .. }));
                assert!(wrong, "a {kind} on {what}: {answer:?}");
            };
            refused(handle.try_lock().await.map(drop));
            refused(within(SOON, "lock", handle.lock()).await.map(drop));
            refused(handle.is_locked().await.map(drop));
            refused(handle.force_unlock().await.map(drop));
            assert_eq!(dump(&mut cli), before, "a {kind} on {what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_with_one_overwritten_key_renews_the_others() {
    both(async |kind| {
        let lease = ms(3000);
        let rig = Rig::new(kind, options().watchdog_timeout(lease)).await;
        let names = ["a", "b", "c", "d", "e"];
        let mut guards = Vec::new();
        for name in names {
            guards.push(taken(&rig.handle(name)).await);
        }
        // In the middle, so that a batch that stops there shows.
        rig.server.cli(&["DEL", "c"]);
        rig.server.cli(&["LPUSH", "c", "somebody's data"]);
        let victim = guards.remove(2);
        let reason = within(PATIENCE, "the loss", victim.lost()).await;
        assert_eq!(reason, LostReason::Taken);
        assert_not_held(&victim.release().await);
        let renewals = rig.proxy.expect_delivery(&rig.mark(Sent::Renew));
        // Until well beyond the lease that they had when it happened.
        renewals.wait_for(4).await;
        for (name, guard) in ["a", "b", "d", "e"].into_iter().zip(&guards) {
            rig.assert_held(name, guard, 1);
        }
        assert_eq!(rig.server.cli(&["TYPE", "c"]).text(), "list");
    })
    .await;
}

/// A release that finds something else in its place leaves it alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_an_overwritten_key_is_not_held() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let guard = taken(&rig.handle("a")).await;
        rig.server.cli(&["DEL", "a"]);
        rig.server.cli(&["LPUSH", "a", "somebody's data"]);
        assert_not_held(&guard.release().await);
        assert_eq!(rig.server.cli(&["TYPE", "a"]).text(), "list");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_still_renews_re_enters_and_releases() {
    both(async |kind| {
        let rig = Rig::new(kind, options().watchdog_timeout(ms(3000))).await;
        let guard = taken(&rig.handle("a")).await;
        let other = taken(&rig.handle("b")).await;
        let renewals = rig.proxy.expect_delivery(&rig.mark(Sent::Renew));
        fill(&rig.server);
        // It is full: whoever wants something new is told so.
        let said = assert_unreachable(&rig.handle("new").try_lock().await);
        assert!(said.contains("OOM"), "{said}");
        if kind == Kind::Lock {
            let inner = within(SOON, "re-entry", guard.reenter()).await;
            let inner = inner.expect("a re-entry needs no memory to speak of");
            rig.assert_held("a", &guard, 2);
            within(SOON, "release", inner.release()).await.expect("held");
        }
        // Well beyond the lease they had when the memory ran out.
        renewals.wait_for(4).await;
        rig.assert_held("a", &guard, 1);
        rig.assert_held("b", &other, 1);
        within(SOON, "extend", guard.extend(LONG)).await.expect("held");
        within(SOON, "release", guard.release()).await.expect("held");
        rig.assert_free("a");
        drop(other);
        eventually(SOON, "given back", || rig.stored("b").is_empty()).await;
    })
    .await;
}

/// A release with somebody waiting in the same client is a hand-over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_does_not_stand_in_the_way_of_a_hand_over() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let handle = rig.handle("a");
        let handed = rig.proxy.expect_request(&rig.mark(Sent::HandOver));
        for _ in 0..100 {
            rig.server.cli(&["CONFIG", "SET", "maxmemory", "0"]).ok();
            // All but the last step before the lock is taken: it must be released within 10 ms.
            rig.server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).ok();
            let mut full = rig.server.connection();
            let first = taken(&handle).await;
            let mut second = Box::pin(handle.lock());
            start(&mut second).await;
            full.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
            let released = within(SOON, "release", first.release()).await;
            released.expect("held");
            if handed.count() == 0 {
                drop(second);
                continue;
            }
            let second = within(SOON, "the successor", second).await;
            let second = second.expect("passed on");
            rig.assert_held("a", &second, 1);
            within(SOON, "release", second.release()).await.expect("held");
            rig.assert_free("a");
            return;
        }
        panic!("nothing was ever handed over");
    })
    .await;
}
