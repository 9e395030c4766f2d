//! Waiters whose channel moves to another node.

use std::sync::Arc;

use testkit::{Cluster, Flavour, Shape};

use super::{connected, on, started};
use crate::primitives::{Handle, Primitive, SUBSCRIBING, each, set_up};
use crate::support::*;

/// How many sharded channels of its waiters have a subscriber at the primary of a shard.
fn listening(cluster: &Cluster, shard: usize, primitive: Primitive, name: &str) -> usize {
    let channels = primitive.channels(name);
    let server = cluster.primary(shard).server();
    server.cli(&["PUBSUB", "SHARDCHANNELS", &channels]).ok().array().len()
}

/// A waiter subscribes at the new owner of its slot and is woken there; also if the lock was released
/// during the migration, when the message reached no client.
async fn woken_after_a_migration(released_meanwhile: bool) {
    // Redis 6.2 has no sharded channels.
    let cluster = started(Cluster::builder(Shape::Primaries).flavour(Flavour::System)).await;
    let holder = connected(&cluster, options()).await;
    let names = cluster.names_on(0, SUBSCRIBING.len());
    each(SUBSCRIBING, |primitive| {
        let at = SUBSCRIBING.iter().position(|one| *one == primitive).expect("one of them");
        let (cluster, name) = (Arc::clone(&cluster), names[at].clone());
        let holder = holder.clone();
        async move {
            // It sends no other requests, by which it could learn where the slot is.
            let waiter = connected(&cluster, options()).await;
            set_up(&holder, primitive, &name).await;
            let held = Handle::new(&holder, primitive, &name).exclusive().held().await;
            let acquire = tokio::spawn(Handle::new(&waiter, primitive, &name).acquire());
            let listens = |shard| listening(&cluster, shard, primitive, &name) == 1;
            eventually(PATIENCE, "the waiter listens", || listens(0)).await;
            let slot = Cluster::slot_of(&name);
            on(&cluster, move |cluster| {
                cluster.begin_migration(slot, 1);
                cluster.move_keys(slot);
            })
            .await;
            let mut release = tokio::spawn(async move {
                if released_meanwhile {
                    held.release().await.map(|()| None)
                } else {
                    Ok(Some(held))
                }
            });
            // Kinds with several keys are released when the migration has ended.
            let held = tokio::time::timeout(ms(300), &mut release).await;
            on(&cluster, move |cluster| cluster.end_migration(slot)).await;
            let held = match held {
                Ok(held) => held.expect("no panic"),
                Err(_) => within(PATIENCE, "the release", joined(release)).await,
            };
            if let Some(held) = held.expect("held") {
                eventually(SOON, "the waiter listens elsewhere", || listens(1)).await;
                held.release().await.expect("held");
            }
            let acquired = within(SOON, "the waiter", joined(acquire)).await;
            acquired.expect("freed").release().await.expect("held");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_follows_its_channel_to_the_new_owner() {
    woken_after_a_migration(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_during_a_migration_wakes_the_waiter_when_it_ends() {
    woken_after_a_migration(true).await;
}
