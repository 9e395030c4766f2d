//! Somebody changes what the server keeps, or what a client may do with it, while a lock is held.

use lockkeeper::backend::redis::Redis;
use lockkeeper::backend::{Acquire, Attempt, Backend, Resource};
use lockkeeper::{Client, Kind, OwnerId};
use testkit::RedisServer;

use crate::support::*;

/// A look at a lock whose end was taken away only looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_of_a_lock_without_an_end_leaves_it_alone() {
    both(async |kind| {
        // Looked at every 200 ms.
        let rig = Rig::new(kind, options().watchdog_timeout(ms(600))).await;
        let guard = rig.handle("a").lease(LONG).lock().await.expect("free");
        let owner = guard.owner_id().to_string();
        assert_eq!(rig.server.cli(&["PERSIST", "a"]).int(), 1);
        // The second is sent when the answer of the first is there.
        let looks = rig.proxy.expect_delivery(&rig.mark(Sent::Renew));
        looks.wait_for(2).await;
        assert_eq!(rig.stored("a"), [(owner, 1)], "{kind}: a look took it away");
        assert_eq!(pttl(&rig.server, "a"), -1, "{kind}: a look gave it an end");
        assert!(!guard.is_lost(), "{guard:?}");
        let rival = rig.strangers("a").await;
        assert!(rival.try_lock().await.expect("the server answers").is_none());
        guard.release().await.expect("held to the end");
        rig.assert_free("a");
    })
    .await;
}

/// A lock that is renewed gets its end back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_of_a_lock_without_an_end_gives_it_one() {
    both(async |kind| {
        let rig = Rig::new(kind, options().watchdog_timeout(ms(3000))).await;
        let guard = taken(&rig.handle("a")).await;
        assert_eq!(rig.server.cli(&["PERSIST", "a"]).int(), 1);
        eventually(PATIENCE, "an end", || pttl(&rig.server, "a") > 0).await;
        rig.assert_held("a", &guard, 1);
        guard.release().await.expect("held");
    })
    .await;
}

/// Renewals go together; the right to one of the keys is taken away. Only that one is lost.
///
/// On one thread, where those that failed together are asked about together again.
#[tokio::test]
async fn the_right_to_one_key_taken_away_costs_that_lock_alone() {
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

/// As a plain release does: a key that has become something else is no longer ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_of_a_key_of_another_type_finds_nothing_to_hand_over() {
    let server = RedisServer::start();
    let redis = Redis::connect(&server.url(), &options()).await.expect("the server is there");
    let nobody = Client::memory();
    for kind in KINDS {
        for (type_name, create) in [
            ("string", &["SET", "it", "x"][..]),
            ("hash", &["HSET", "it", "x", "1"]),
            ("list", &["RPUSH", "it", "x"]),
        ] {
            // What has the right type is not of another.
            if (kind == Kind::Lock) == (type_name == "hash") && type_name != "list" {
                continue;
            }
            server.cli(&["DEL", "it"]).ok();
            server.cli(create).ok();
            let resource = Resource { kind, name: "it".as_bytes().into() };
            let request = Acquire {
                from: Some(OwnerId::fresh(nobody.id())),
                ..Acquire::new(resource, OwnerId::fresh(nobody.id()), 1000)
            };
            let answer = within(SOON, "an answer", redis.acquire(request)).await;
            assert_eq!(answer, Ok(Attempt::Gone), "{kind} over a {type_name}");
            assert_eq!(server.cli(&["TYPE", "it"]).ok().text(), type_name, "left alone");
            assert_eq!(pttl(&server, "it"), -1, "left alone");
        }
    }
}
