//! Keys of another type are not changed.

use lockkeeper::backend::redis::Redis;
use lockkeeper::backend::{Acquire, Attempt, Backend, Resource};
use lockkeeper::{Client, Kind, LostReason, OwnerId};
use testkit::{Flavour, RedisServer};

use crate::support::*;

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

/// As a plain release does: a key that has become something else is no longer ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handoff_of_a_key_of_another_type_finds_no_hold() {
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

/// Redis 6.2 rejects `SET … NX GET`: each acquire that was sent before the first rejection falls back.
#[tokio::test]
async fn mutexes_acquired_at_the_same_time_on_redis_6_all_fall_back_to_the_script() {
    let server = RedisServer::builder().flavour(Flavour::Redis62).start();
    let client = connect(&server.url(), options()).await;
    let acquire = |n| tokio::spawn(lock_of(&client, Kind::Mutex, &format!("{n}")).lock());
    let acquires: Vec<_> = (0..8).map(acquire).collect();
    for acquire in acquires {
        let guard = within(PATIENCE, "an acquire", joined(acquire)).await.expect("it is free");
        guard.release().await.expect("held");
    }
}
