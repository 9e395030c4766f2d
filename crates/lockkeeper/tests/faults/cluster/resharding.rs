//! All slots move under load.

use std::collections::BTreeMap;
use std::time::Duration;

use testkit::{Cluster, Shape, Stopwatch};

use super::{connected, on, started};
use crate::load::Load;
use crate::primitives::EXCLUSIVE;
use crate::primitives::ends_by_itself;
use crate::support::*;

/// The longest re-check of a waiter. A lock that is free for longer has a waiter that was not woken.
const RECHECK: Duration = Duration::from_secs(5);

/// The keys of each primary, without those that end by themselves.
fn keys(cluster: &Cluster) -> Vec<(usize, String)> {
    let keys_of = |shard| {
        let keys = cluster.primary(shard).server().cli(&["KEYS", "*"]).ok();
        keys.array().iter().map(|key| (shard, key.text().to_owned())).collect::<Vec<_>>()
    };
    (0..3).flat_map(keys_of).filter(|(_, key)| !ends_by_itself(key)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_slots_move_under_load() {
    let cluster = started(Cluster::builder(Shape::Replicated)).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(connected(&cluster, options()).await);
    }
    let names: Vec<_> = (0..3).flat_map(|shard| cluster.names_on(shard, EXCLUSIVE.len())).collect();
    let load = Load::start(&clients, EXCLUSIVE, &names, Duration::ZERO).await;
    let before = cluster.slot_map();
    let grants = load.grants();
    on(&cluster, |cluster| cluster.reshard_all(1)).await;
    assert!(cluster.slot_map().iter().all(|(slot, shard)| before[slot] != *shard));
    load.goes_on(RECHECK + PATIENCE).await;
    let idle = load.grants().into_iter().zip(grants).filter(|(now, before)| now == before).count();
    assert_eq!(idle, 0, "there was no load on some names");
    let (primitive, name, gap) = load.longest_gap();
    assert!(gap < RECHECK + PATIENCE, "{primitive:?} {name} was not acquired for {gap:?}");
    assert!(load.losses().iter().all(|losses| *losses == 0), "{:?}", load.losses());
    load.stop().await;

    // Tokens and free permits stay; nothing else does, and nothing is where no client looks for it.
    let free = |key: &String| {
        key.starts_with("redisson_lock_token:") || names.contains(key) && key_is_free(&cluster, key)
    };
    let left = || keys(&cluster).into_iter().filter(|(_, key)| !free(key)).collect::<Vec<_>>();
    let watch = Stopwatch::start();
    while !left().is_empty() {
        assert!(watch.elapsed() < PATIENCE, "left over: {:?}", left());
        tokio::time::sleep(ms(5)).await;
    }
    let map: BTreeMap<u16, usize> = cluster.slot_map();
    let astray = keys(&cluster).into_iter().filter(|(at, key)| map[&Cluster::slot_of(key)] != *at);
    assert_eq!(astray.collect::<Vec<_>>(), []);
}

/// Whether it is a semaphore with its one permit.
fn key_is_free(cluster: &Cluster, key: &str) -> bool {
    let server = cluster.owner_of(key).server();
    server.cli(&["TYPE", key]).text() == "string" && server.cli(&["GET", key]).text() == "1"
}
