//! Scripts that meet something else: a key of another type, a server that lacks a form of a command.

use lockkeeper::{Kind, LostReason};
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
