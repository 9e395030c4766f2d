//! The process of a client is stopped.

use lockkeeper::{ClientOptions, Kind};
use testkit::{ChildProcess, Quorum, example_path};

use super::reports::trust;
use super::{held_on, started};
use crate::support::*;

const NAME: &str = "a job";

/// The members grant the lock to a client that is stopped, the grant expires, and another client acquires the
/// lock. Then the first client gets the answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_answers_a_stopped_client_gets_too_late_does_not_count() {
    let quorum = started(Quorum::builder(3).proxied()).await;
    // The longest lease is that of the process.
    connect(&quorum.url(), ClientOptions::new()).await.shutdown().await;
    trust(&quorum);
    for node in quorum.nodes() {
        let stranger = "6e0c0000-0000-4000-8000-000000000000:1";
        node.server().cli(&["HSET", NAME, stranger, "1"]).ok();
        node.server().cli(&["PEXPIRE", NAME, "60000"]).ok();
    }
    let url = quorum.url();
    let args = [url.as_str(), "lock", NAME, "5000", "lease"];
    let mut child = ChildProcess::spawn(example_path("hold"), args);
    let proxies = [0, 1, 2].map(|index| quorum.node(index).proxy());
    let waits = || (0..3).all(|index| listeners(quorum.server(index), NAME) == 1);
    eventually(PATIENCE, "it waits", waits).await;

    // It is woken up, and stopped when its requests are under way.
    let requests = proxies.map(|proxy| proxy.expect_request(NAME.as_bytes()));
    let hold = |on| {
        for proxy in proxies {
            let subscribers = proxy.subscribers();
            let links = proxy.connections().into_iter().filter(|id| !subscribers.contains(id));
            links.for_each(|id| proxy.hold_connection(id, on));
        }
    };
    hold(true);
    for node in quorum.nodes() {
        node.server().cli(&["DEL", NAME]).ok();
        node.server().cli(&["PUBLISH", &channel(NAME), "0"]).ok();
    }
    for request in &requests {
        request.wait().await;
    }
    child.pause();
    hold(false);
    eventually(PATIENCE, "granted", || held_on(&quorum, NAME).len() == 3).await;
    eventually(PATIENCE, "expired", || held_on(&quorum, NAME).is_empty()).await;
    let other = connect(&quorum.url(), ClientOptions::new()).await;
    let guard = other.lock(NAME).try_lock().await.expect("reachable").expect("expired");

    let requests = proxies.map(|proxy| proxy.expect_request(NAME.as_bytes()));
    child.resume();
    for request in &requests {
        request.wait().await;
    }
    assert_eq!(child.next_line(ms(500)), None, "two holders");
    guard.release().await.expect("held all the time");
    let held = child.expect_line("held");
    for node in quorum.nodes() {
        let stored = || stored(node.server(), Kind::Lock, NAME);
        let is_held = || stored().first().is_some_and(|(id, _)| held.contains(id.as_str()));
        eventually(PATIENCE, "held by the process", is_held).await;
    }
    child.close_input();
    child.expect_line("released");
}
