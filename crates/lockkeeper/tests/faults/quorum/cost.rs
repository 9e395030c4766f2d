//! The number of requests.

use testkit::{Cli, Quorum, RedisServer, Reply};

use super::held_on;
use super::reports::{quorum_options, start, trusted};
use crate::support::*;

const PAIRS: usize = 20;

/// How many requests that name this lock clients have sent, as `MONITOR` shows them. Commands of scripts are
/// no requests.
fn requests(server: &RedisServer, monitor: &mut Cli, name: &str) -> usize {
    server.cli(&["ECHO", "the end"]).ok();
    let mut count = 0;
    loop {
        let line = monitor.next_reply(PATIENCE);
        let Some(Reply::Status(line)) = line else { panic!("no line: {line:?}") };
        if line.contains("the end") {
            return count;
        }
        count += usize::from(line.contains(name) && !line.contains(" lua] "));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_pair_costs_two_requests_to_each_member() {
    for kind in KINDS {
        let quorum = start(Quorum::builder(3)).await;
        drop(trusted(&quorum).await);
        // A machine that is slow to answer does not make the client repeat a request.
        let client = connect(&quorum.url(), quorum_options().response_timeout(LONG)).await;
        // Each member knows the scripts afterwards.
        let guard = taken(&lock_of(&client, kind, "first")).await;
        eventually(PATIENCE, "held", || held_on(&quorum, "first").len() == 3).await;
        guard.release().await.expect("held");
        eventually(PATIENCE, "released", || held_on(&quorum, "first").is_empty()).await;

        let mut monitors = [0, 1, 2].map(|index| quorum.server(index).connection());
        for monitor in &mut monitors {
            monitor.cmd(&["MONITOR"]).ok();
        }
        for _ in 0..PAIRS {
            let guard = taken(&lock_of(&client, kind, "second")).await;
            guard.release().await.expect("held");
        }
        // With it, all requests have been answered.
        client.shutdown().await;
        let counts =
            [0, 1, 2].map(|index| requests(quorum.server(index), &mut monitors[index], "second"));
        assert_eq!(counts, [2 * PAIRS; 3], "{kind}");
    }
}
