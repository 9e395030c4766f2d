//! The ways to a cluster.

use lockkeeper::{Client, Kind, RedisOptions};
use testkit::{Cluster, FaultProxy, Flavour, RedisServer, Shape};

use super::{connected, primaries, started};
use crate::support::*;

/// A lock on each shard can be acquired, waited for and released.
async fn works(cluster: &Cluster, one: &Client, other: &Client) {
    for shard in 0..3 {
        let name = cluster.name_on(shard);
        let guard = taken(&lock_of(one, Kind::Lock, &name)).await;
        assert_held(cluster.owner_of(&name).server(), Kind::Lock, &name, &guard, 1);
        let waiter = tokio::spawn(lock_of(other, Kind::Lock, &name).lock());
        let busy = lock_of(other, Kind::Lock, &name).try_lock().await.expect("reachable");
        assert!(busy.is_none());
        guard.release().await.expect("held");
        let guard = within(PATIENCE, "the waiter", joined(waiter)).await.expect("freed");
        guard.release().await.expect("held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_seed_is_enough_whatever_the_others_do() {
    let cluster = started(Cluster::builder(Shape::Primaries).proxied()).await;
    let direct = connected(&cluster, options()).await;
    let seeds =
        |first: String| cluster.url_of(&format!("{first},127.0.0.1:{}", cluster.node(2).port()));
    // A configuration endpoint is one name for all nodes.
    let endpoint = FaultProxy::start(cluster.node(1).port()).await;
    let (silent, gone) =
        (FaultProxy::start(cluster.node(0).port()).await, FaultProxy::start(1).await);
    silent.black_hole(true);
    for url in [
        cluster.seed(1),
        cluster.url_of(&format!("localhost:{}", endpoint.port())),
        seeds(format!("127.0.0.1:{}", silent.port())),
        seeds(format!("127.0.0.1:{}", gone.port())),
        seeds("127.0.0.1:1".to_owned()),
        seeds("no-such-host.invalid:6379".to_owned()),
    ] {
        println!("{url}");
        works(&cluster, &connect(&url, options()).await, &direct).await;
    }
    // Two of three nodes are gone: the locks of the third are served, and those of the others are not.
    for node in [0, 1] {
        cluster.node(node).proxy().refuse(true);
        cluster.node(node).proxy().cut();
    }
    let client =
        connect(&cluster.url(), options().unreachable_after(ms(500)).response_timeout(PATIENCE))
            .await;
    let (served, other) = (cluster.name_on(2), cluster.name_on(0));
    taken(&lock_of(&client, Kind::Lock, &served)).await.release().await.expect("held");
    let attempt = lock_of(&client, Kind::Lock, &other).try_lock();
    assert_unreachable(&within(PATIENCE, "an attempt", attempt).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_seed_connecting_fails() {
    let cluster = primaries().await;
    cluster.nodes().iter().for_each(|node| node.server().kill());
    let connecting = Client::connect_with(cluster.url(), options());
    let answer = within(PATIENCE, "an answer", connecting).await;
    assert_unreachable(&answer.map(|_| ()));
}

/// A server that is no member of a cluster is told from one that cannot be reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_cluster_support_is_reported() {
    let server = RedisServer::start();
    let url = server.url().replace("redis:", "redis+cluster:");
    let connecting = Client::connect_with(url, options());
    let error = within(PATIENCE, "an answer", connecting).await.expect_err("no cluster");
    assert!(error.to_string().contains("is not a node of a cluster: use redis://"), "{error}");
}

/// Only the server of the system speaks TLS.
#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_a_password_is_served_over_tls() {
    let builder = Cluster::builder(Shape::Primaries).flavour(Flavour::System);
    let cluster = started(builder.tls().password("p@ss word")).await;
    for node in cluster.nodes() {
        let user = ["ACL", "SETUSER", "al@ce", "on", ">s3:cret", "~*", "&*", "+@all"];
        node.server().cli(&user).ok();
    }
    let trusting = options().redis(RedisOptions::new().tls_ca(cluster.node(0).server().ca_pem()));
    let admin = connected(&cluster, trusting.clone()).await;
    let url = cluster.url().replace(":p%40ss%20word@", "al%40ce:s3%3Acret@");
    let user = connect(&url, trusting.clone()).await;
    works(&cluster, &user, &admin).await;
    let list = cluster.node(2).server().cli(&["CLIENT", "LIST"]).ok();
    assert!(list.text().contains("user=al@ce "), "{}", list.text());
    let wrong = url.replace("s3%3Acret", "wrong");
    let error = Client::connect_with(wrong, trusting).await.expect_err("a wrong password");
    assert!(matches!(error, lockkeeper::Error::Denied { .. }), "{error:?}");
}
