//! A Redis Cluster: nodes fail, slots move, and what a client does.

mod connecting;
mod failover;
mod half_migrated;
mod identity;
mod names;
mod redirects;
mod resharding;
mod wakeups;

use std::sync::Arc;

use lockkeeper::{Client, ClientOptions};
use testkit::{Cluster, ClusterBuilder, Shape};

use crate::support::*;

/// Runs what blocks beside the tasks of the test.
async fn on<T>(cluster: &Arc<Cluster>, work: impl FnOnce(&Cluster) -> T + Send + 'static) -> T
where
    T: Send + 'static,
{
    let cluster = Arc::clone(cluster);
    joined(tokio::task::spawn_blocking(move || work(&cluster))).await
}

async fn started(cluster: ClusterBuilder) -> Arc<Cluster> {
    joined(tokio::task::spawn_blocking(|| Arc::new(cluster.start()))).await
}

/// Three primaries without replicas.
async fn primaries() -> Arc<Cluster> {
    started(Cluster::builder(Shape::Primaries)).await
}

async fn connected(cluster: &Cluster, options: ClientOptions) -> Client {
    connect(&cluster.url(), options).await
}
