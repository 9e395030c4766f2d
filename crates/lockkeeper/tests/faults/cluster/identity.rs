//! Addresses at which nodes of another cluster answer.

use std::time::Duration;

use lockkeeper::{Client, Error, Finding, Kind, Severity};
use testkit::{Cluster, Shape};

use super::{primaries, started};
use crate::permissions::set_user;
use crate::support::*;

/// A node dies, and one of another cluster gets its address, as when a pod gets the address of an earlier one.
/// The slot map of that cluster may be of a higher epoch or not. The client locks on its own cluster only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_at_a_known_address_is_not_used() {
    let older = primaries().await;
    let cluster = started(Cluster::builder(Shape::Primaries).proxied()).await;
    let newer = primaries().await;
    let names: Vec<_> = (0..3).map(|shard| cluster.name_on(shard)).collect();
    for (other, died) in [(&older, 0), (&newer, 1)] {
        // It asks its seed for the slots every time.
        let client = connect(&cluster.seed(died), options()).await;
        let lock = |shard: usize| lock_of(&client, Kind::Lock, &names[shard]);
        taken(&lock(died)).await.release().await.expect("held");
        let foreign = other.node(died).server();
        let before = foreign.commandstats("cluster");
        cluster.node(died).server().kill();
        cluster.node(died).proxy().redirect(foreign.port());
        let read = || {
            // Before Redis 7 all are counted as one: the question at the handshake, and three for the map.
            foreign.commandstats("cluster|slots") > 0
                || foreign.commandstats("cluster") >= before + 4
        };
        eventually(PATIENCE, "the map of the other cluster is read", read).await;
        for (shard, name) in names.iter().enumerate().skip(died + 1) {
            let guard = taken(&lock(shard)).await;
            assert_held(cluster.node(shard).server(), Kind::Lock, name, &guard, 1);
            guard.release().await.expect("held");
        }
        let said = assert_unreachable(&lock(died).try_lock().await);
        assert!(said.contains("and no longer"), "{said}");
        let used = other.nodes().iter().flat_map(|node| {
            ["evalsha", "eval", "set"].map(|command| node.server().commandstats(command))
        });
        assert_eq!(used.sum::<u64>(), 0, "the other cluster was used");
    }
}

/// The nodes of the cluster answer later than the foreign one, or not at all. It would be believed after five
/// seconds if all said the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_that_answers_alone_is_not_believed() {
    let cluster = started(Cluster::builder(Shape::Primaries).proxied()).await;
    let other = primaries().await;
    let (client, name) = (connect(&cluster.url(), options()).await, cluster.name_on(1));
    let lock = lock_of(&client, Kind::Lock, &name);
    taken(&lock).await.release().await.expect("held");
    cluster.node(0).server().kill();
    cluster.node(0).proxy().redirect(other.node(0).server().port());
    for slow in [1, 2] {
        cluster.node(slow).proxy().delay(ms(700));
    }
    tokio::time::sleep(ms(7500)).await;
    for slow in [1, 2] {
        cluster.node(slow).proxy().delay(ms(0));
    }
    let guard = taken(&lock).await;
    assert_held(cluster.node(1).server(), Kind::Lock, &name, &guard, 1);
    assert_eq!(
        other.nodes().iter().map(|node| node.server().commandstats("evalsha")).sum::<u64>(),
        0
    );
}

/// Of the client, not of each connection.
#[tokio::test]
async fn nodes_whose_ids_are_not_told_are_warned_of_once_and_reported() {
    let cluster = primaries().await;
    let rights = ["~*", "&*", "+@all", "-cluster", "+cluster|slots", "+cluster|info"];
    cluster.nodes().iter().for_each(|node| set_user(node.server(), &rights));
    let (warnings, _collecting) = Warnings::collect();
    let url = cluster.url().replace("://", "://u:s3cret@");
    let client = connect(&url, options()).await;
    for shard in 0..3 {
        let lock = lock_of(&client, Kind::Lock, &cluster.name_on(shard));
        taken(&lock).await.release().await.expect("held");
    }
    assert_eq!(warnings.containing("CLUSTER MYID"), 1);
    let report = within(PATIENCE, "the report", client.check()).await.expect("all nodes answer");
    let is_it = |found: &&Finding| {
        (&found.subject[..], found.severity) == ("nodes", Severity::Note)
            && found.detail.contains("CLUSTER MYID")
    };
    assert_eq!(report.findings.iter().filter(is_it).count(), 3, "{report:#?}");
}

/// Also while the nodes of one of them are far away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_two_clusters_in_one_url_are_reported() {
    let one = started(Cluster::builder(Shape::Primaries).proxied()).await;
    let other = primaries().await;
    let hosts = [&one, &other].map(|of| format!("127.0.0.1:{}", of.node(0).port()));
    let url = other.url_of(&hosts.join(","));
    for distance in [0, 250] {
        one.node(0).proxy().delay(ms(distance));
        let connected =
            Client::connect_with(&url, options().connect_timeout(Duration::from_secs(5)));
        match within(PATIENCE, "an error", connected).await {
            Err(error @ Error::Invalid { .. }) => {
                let said = error.to_string();
                assert!(hosts.iter().all(|host| said.contains(host)), "{said}");
            }
            other => panic!("{other:?}"),
        }
    }
}
