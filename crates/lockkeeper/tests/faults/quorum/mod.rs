//! A quorum of independent servers: members fail, lose their data or their time, and what a client does.

mod change;
mod clocks;
mod cost;
mod markers;
mod multi;
mod order;
mod outages;
mod paused;
mod races;
mod reports;
#[cfg(feature = "tls")]
mod tls;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, ClientOptions};
use testkit::{Quorum, QuorumBuilder, RedisServer};

use crate::primitives::Primitive;
use crate::support::*;

/// The longest lease, and how long a member without its data does not vote. A machine that stands still for
/// two seconds between two renewals costs no hold.
const LEASE: Duration = Duration::from_secs(5);

/// What is given up of a lease: a holder has recorded its loss before another can acquire the lock, also on
/// a machine that is slow to wake a task.
const DRIFT: Duration = Duration::from_millis(300);

/// What a quorum supports.
const PRIMITIVES: [Primitive; 4] =
    [Primitive::Lock, Primitive::Mutex, Primitive::Fenced, Primitive::Spin];

const MARKER: &str = "lockkeeper_quorum";

fn leased() -> ClientOptions {
    let options = options().longest_lease(LEASE).watchdog_timeout(LEASE).drift(0.0, DRIFT);
    options.unreachable_after(PATIENCE)
}

async fn started(quorum: QuorumBuilder) -> Arc<Quorum> {
    joined(tokio::task::spawn_blocking(move || Arc::new(quorum.start()))).await
}

/// Runs what blocks beside the tasks of the test.
async fn on<T>(quorum: &Arc<Quorum>, work: impl FnOnce(&Quorum) -> T + Send + 'static) -> T
where
    T: Send + 'static,
{
    let quorum = Arc::clone(quorum);
    joined(tokio::task::spawn_blocking(move || work(&quorum))).await
}

async fn connected(quorum: &Quorum) -> Client {
    connect(&quorum.url(), leased()).await
}

/// So many clients, once all members vote.
async fn clients(quorum: &Quorum, count: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(connected(quorum).await);
    }
    all_vote(quorum, &clients[0]).await;
    clients
}

/// Returns when a lock is acquired on all members at once.
async fn all_vote(quorum: &Quorum, client: &Client) {
    let lock = client.lock("all vote");
    loop {
        let guard = within(PATIENCE, "the cold start", lock.lock()).await.expect("it ends");
        // Soon enough to be no repair, which comes with a renewal.
        let asked = tokio::time::Instant::now();
        while asked.elapsed() < LEASE / 8 {
            if held_on(quorum, "all vote").len() == quorum.nodes().len() {
                return guard.release().await.expect("held");
            }
            tokio::time::sleep(ms(5)).await;
        }
        guard.release().await.expect("held");
    }
}

/// The members that store a hold.
#[track_caller]
fn held_on(quorum: &Quorum, name: &str) -> Vec<usize> {
    let held = |index: &usize| exists(quorum.server(*index), name);
    (0..quorum.nodes().len()).filter(held).collect()
}

#[track_caller]
fn exists(server: &RedisServer, name: &str) -> bool {
    server.cli(&["EXISTS", name]).int() == 1
}

/// Cuts a member off; returns when none of its connections is left.
async fn away(quorum: &Quorum, index: usize) {
    let proxy = quorum.node(index).proxy();
    proxy.refuse(true);
    let open = proxy.connections();
    proxy.cut();
    for connection in open {
        proxy.wait_for_end(connection).await;
    }
}

/// Ends [`away`].
fn back(quorum: &Quorum, index: usize) {
    quorum.node(index).proxy().refuse(false);
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("name-{n}")).collect()
}

fn host(quorum: &Quorum, index: usize) -> String {
    format!("127.0.0.1:{}", quorum.node(index).port())
}
