//! A shard gets another primary, or none: holds and acquires of its locks and of the others'.

use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::{AnyGuard, ClientOptions, Kind, LostReason};
use testkit::{Cluster, Shape};

use super::{connected, on, primaries, started};
use crate::load::Load;
use crate::primitives::EXCLUSIVE;
use crate::support::*;

/// Every name is acquired again soon after the failover of shard 0, those of the other shards during it, and
/// a hold outlasts it. Grants are acknowledged by the replica.
async fn survives(kill: bool) {
    let cluster = started(Cluster::builder(Shape::Replicated)).await;
    let clients = [connected(&cluster, options()).await, connected(&cluster, options()).await];
    let (names, kept): (Vec<_>, Vec<_>) = (0..3)
        .map(|shard| {
            let mut names = cluster.names_on(shard, 8);
            (names.split_off(1), names.remove(0))
        })
        .unzip();
    let mut holds = Vec::new();
    for name in &kept {
        holds.push(taken(&lock_of(&clients[0], Kind::Lock, name)).await);
    }
    let load = Load::start(&clients, EXCLUSIVE, &names.concat(), Duration::ZERO).await;
    let before = load.grants();
    let fail_over = move |cluster: &Cluster| match kill {
        true => cluster.fail_over_by_killing(0).port(),
        false => cluster.failover(0).port(),
    };
    assert_eq!(on(&cluster, fail_over).await, cluster.node(3).port());
    let meanwhile = load.grants();
    load.goes_on(PATIENCE).await;
    // Those of shard 0 come first.
    let of_others = names[0].len();
    if kill {
        let pairs = before.iter().zip(&meanwhile).skip(of_others);
        assert!(pairs.clone().all(|(before, after)| after > before), "{before:?} {meanwhile:?}");
    }
    let losses = load.losses();
    let unharmed = if kill { &losses[of_others..] } else { &losses[..] };
    assert!(unharmed.iter().all(|losses| *losses == 0), "{losses:?}");
    for (hold, name) in holds.iter().zip(&kept) {
        assert_held(cluster.owner_of(name).server(), Kind::Lock, name, hold, 1);
    }
    load.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_fails_over_in_order_keeps_its_holds() {
    survives(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_whose_primary_dies_is_locked_on_again_and_the_others_go_on() {
    survives(true).await;
}

/// The error names the node and its slots, and a report says which nodes would refuse all locks for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_shard_is_named() {
    let cluster = primaries().await;
    let name = cluster.name_on(0);
    let address = |index: usize| format!("127.0.0.1:{}", cluster.node(index).port());
    cluster.node(1).server().cli(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]).ok();
    for options in [options(), unacknowledged()] {
        let client = connected(&cluster, options).await;
        taken(&lock_of(&client, Kind::Lock, &name)).await.release().await.expect("held");
        let report = within(PATIENCE, "the report", client.check()).await.expect("it answers");
        let says = format!("cluster-require-full-coverage is yes at {}: ", address(1));
        let found = report.findings.iter().filter(|finding| finding.detail.starts_with(&says));
        assert_eq!(found.count(), 1, "{report:#?}");
        cluster.node(0).server().kill();
        for _ in 0..2 {
            let said = assert_unreachable(&lock_of(&client, Kind::Lock, &name).try_lock().await);
            assert!(said.contains(&format!("(node {}, slots 0-5460)", address(0))), "{said}");
            assert!(!said.contains("for acknowledgements"), "{said}");
        }
        on(&cluster, |cluster| cluster.restart(0)).await;
    }
}

/// Thousands of holds on each shard, of which one stops for longer than a lease: it loses its holds, the
/// others lose none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_shard_costs_no_hold_on_another() {
    // Long enough for thousands of renewals on a machine that other tests use, too.
    const LEASE: Duration = Duration::from_secs(10);
    let cluster = primaries().await;
    let client = connected(&cluster, options().watchdog_timeout(LEASE)).await;
    let mut shards = Vec::new();
    for shard in 0..3 {
        let names = cluster.names_on(shard, 20_000 / 3);
        let mut guards: Vec<AnyGuard> = Vec::new();
        for some in names.chunks(500) {
            let acquires = some.iter().map(|name| lock_of(&client, Kind::Lock, name).lock());
            let acquires: Vec<_> = acquires.map(tokio::spawn).collect();
            for acquire in acquires {
                guards.push(joined(acquire).await.expect("it is free"));
            }
        }
        shards.push(guards);
    }
    let lost = |shard: usize| shards[shard].iter().filter(|guard| guard.is_lost()).count();
    assert_eq!([lost(0), lost(1), lost(2)], [0, 0, 0]);
    cluster.node(0).server().pause();
    let all = || lost(0) == shards[0].len();
    eventually(LEASE + PATIENCE, "the stopped shard loses its holds", all).await;
    // One more lease, so that a renewal that came late before has its effect.
    tokio::time::sleep(LEASE).await;
    assert_eq!([lost(1), lost(2)], [0, 0]);
    cluster.node(0).server().resume();
    for (shard, guards) in shards.iter().enumerate().skip(1) {
        let name = cluster.name_on(shard);
        assert_held(cluster.node(shard).server(), Kind::Lock, &name, &guards[0], 1);
    }
    // Its locks are free once their leases have expired.
    let name = cluster.name_on(0);
    taken(&lock_of(&client, Kind::Lock, &name)).await.release().await.expect("held");
}

/// Each renewal waits for a part of its lease only.
const LEASES: [u64; 2] = [8_000, 1_500];

/// The answer to a renewal that fails comes after the lease has ended.
fn slow_to_fail(lease: Duration) -> ClientOptions {
    options().watchdog_timeout(lease).response_timeout(lease * 7 / 8)
}

/// A slot is being moved to a node that does not answer. Its hold is lost; another one, which is renewed at the
/// same time, is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_on_its_way_to_a_silent_node_costs_no_hold_in_another() {
    for lease in LEASES.map(ms) {
        let cluster = started(Cluster::builder(Shape::Primaries).proxied()).await;
        let client = connected(&cluster, slow_to_fail(lease)).await;
        // More holds than are renewed at once, in the slot that is renewed first.
        let mut names = cluster.names_on(0, 2);
        names.sort_by_key(|name| Cluster::slot_of(name));
        let many: Vec<_> = (0..1100).map(|n| format!("{{{}}}{n}", names[0])).collect();
        let stays = taken(&lock_of(&client, Kind::Lock, &names[1])).await;
        let acquiring = many.iter().map(|name| client.lock(name).lock());
        let moves = join_all(acquiring).await.into_iter().collect::<Result<Vec<_>, _>>();
        let moves = moves.expect("free");
        on(&cluster, move |cluster| {
            cluster.begin_migration(Cluster::slot_of(&names[0]), 1);
            assert!(many.iter().all(|name| cluster.move_key(name)));
        })
        .await;
        cluster.node(1).proxy().black_hole(true);
        let reason = within(lease + PATIENCE, "the loss", moves[0].lost()).await;
        assert_eq!(reason, LostReason::Unreachable);
        tokio::time::sleep(lease / 4).await;
        assert!(!stays.is_lost());
        stays.release().await.expect("held");
    }
}

/// Of two locks of one slot only one has moved to the node that does not answer, and the only mutex of that slot,
/// which another script renews.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_on_its_way_to_a_silent_node_costs_no_other_hold_of_its_slot() {
    for lease in LEASES.map(ms) {
        let cluster = started(Cluster::builder(Shape::Primaries).proxied()).await;
        let client = connected(&cluster, slow_to_fail(lease)).await;
        let tag = cluster.name_on(0);
        let names = ["stays", "moves", "mutex"].map(|name| format!("{{{tag}}}{name}"));
        let stays = taken(&lock_of(&client, Kind::Lock, &names[0])).await;
        let moves = taken(&lock_of(&client, Kind::Lock, &names[1])).await;
        let mutex = taken(&lock_of(&client, Kind::Mutex, &names[2])).await;
        on(&cluster, move |cluster| {
            cluster.begin_migration(Cluster::slot_of(&names[0]), 1);
            assert!(names[1..].iter().all(|name| cluster.move_key(name)));
        })
        .await;
        cluster.node(1).proxy().black_hole(true);
        for moved in [moves, mutex] {
            let reason = within(lease + PATIENCE, "the loss", moved.lost()).await;
            assert_eq!(reason, LostReason::Unreachable);
        }
        tokio::time::sleep(lease / 4).await;
        assert!(!stays.is_lost());
        stays.release().await.expect("held");
    }
}

/// The connection to a shard breaks after its answer to `SCAN`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_lost_during_a_list_costs_no_lock_of_another() {
    let cluster = started(Cluster::builder(Shape::Primaries).proxied()).await;
    let client = connected(&cluster, options()).await;
    let names = [0, 1, 2].map(|shard| cluster.name_on(shard));
    let _held = join_all(names.iter().map(|name| client.lock(name).lock())).await;
    for lost in 0..3 {
        let proxy = cluster.node(lost).proxy();
        proxy.drop_replies_once_after_request_matching(b"\r\nTYPE\r\n");
        let (mut listing, mut found) = (client.inspector().list("*"), Vec::new());
        while let Some(page) = within(PATIENCE, "a page", listing.next()).await.expect("no error") {
            found.extend(page.into_iter().map(|lock| lock.name.to_string()));
        }
        let mut others = names.to_vec();
        others.remove(lost);
        found.sort_unstable();
        others.sort_unstable();
        assert_eq!(found, others);
        let [error] = listing.errors() else { panic!("{:?}", listing.errors()) };
        assert!(error.to_string().contains(&proxy.port().to_string()), "{error}");
    }
}
