//! The number of requests.

use std::time::{Duration, Instant};

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
        let _listening = listening_client(&client).await;
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

/// How long requests are counted.
const COUNTED_FOR: Duration = Duration::from_secs(3);

/// The most that a waiter costs a member in a second: it looks up to four times, by one or two requests.
const WAITING: f64 = 8.0;

/// A waiter gets the vote of the member that lacks the hold, and gives it back: that wakes up no waiter, as no
/// client can have a majority with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_rest_while_a_lock_is_on_a_bare_majority() {
    let quorum = start(Quorum::builder(3).proxied()).await;
    let holder = trusted(&quorum).await;
    let mut waiters = Vec::new();
    for _ in 0..4 {
        waiters.push(connect(&quorum.url(), quorum_options()).await);
    }
    let scripts =
        |server: &RedisServer| server.commandstats("evalsha") + server.commandstats("eval");
    // Whichever is asked first, and whether a member that holds it is near or not.
    for (lacking, distance) in [(0, 0), (1, 0), (2, 0), (0, 40)] {
        let name = format!("job {lacking} {distance}");
        let guard = holder.lock(&name).lock().await.expect("free");
        eventually(PATIENCE, "held", || held_on(&quorum, &name).len() == 3).await;
        quorum.server(lacking).cli(&["DEL", &name]).ok();
        let waiting = waiters.iter().map(|client| {
            let lock = client.lock(&name);
            tokio::spawn(async move { lock.lock().await.expect("free").release().await })
        });
        let waiting: Vec<_> = waiting.collect();
        let listening = |of: usize| listeners(quorum.server(of), &name) == waiters.len() as i64;
        eventually(PATIENCE, "all wait", || (0..3).all(listening)).await;
        quorum.node(2).proxy().delay(ms(distance));
        let before = [0, 1, 2].map(|index| scripts(quorum.server(index)));
        let begun = Instant::now();
        tokio::time::sleep(COUNTED_FOR).await;
        for (index, before) in before.into_iter().enumerate() {
            let calls = (scripts(quorum.server(index)) - before) as f64;
            let each = calls / waiters.len() as f64 / begun.elapsed().as_secs_f64();
            assert!(each <= WAITING, "{each} calls a second on member {index}");
        }
        quorum.node(2).proxy().delay(ms(0));
        guard.release().await.expect("held");
        for waiter in waiting {
            within(PATIENCE, "its turn", joined(waiter)).await.expect("held");
        }
    }
}

/// The votes of waiters collide with the repair of the member that lacks the hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_repaired_soon_while_many_wait() {
    const LEASE: Duration = Duration::from_secs(6);
    let quorum = start(Quorum::builder(3)).await;
    drop(trusted(&quorum).await);
    let holder = connect(&quorum.url(), quorum_options().watchdog_timeout(LEASE)).await;
    let guard = holder.lock("job").lock().await.expect("free");
    eventually(PATIENCE, "held", || held_on(&quorum, "job").len() == 3).await;
    let mut waiting = Vec::new();
    for _ in 0..16 {
        let client = connect(&quorum.url(), quorum_options()).await;
        waiting.push(tokio::spawn(async move { client.lock("job").lock().await }));
    }
    let listening = |of: usize| listeners(quorum.server(of), "job") == 16;
    eventually(PATIENCE, "all wait", || (0..3).all(listening)).await;
    for _ in 0..4 {
        quorum.server(0).cli(&["DEL", "job"]).ok();
        let field = guard.owner_id().to_string();
        let is_held = || quorum.server(0).cli(&["HEXISTS", "job", &field]).int() == 1;
        let begun = Instant::now();
        // Two renewals, and a while for a machine that stands still.
        eventually(LEASE, "repaired", is_held).await;
        println!("repaired after {:?}", begun.elapsed());
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// The hold of another client is in the way at a member, and goes away long before the next renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_repair_is_tried_again() {
    let quorum = start(Quorum::builder(3).proxied()).await;
    drop(trusted(&quorum).await);
    let options = quorum_options().watchdog_timeout(Duration::from_secs(30));
    let client = connect(&quorum.url(), options).await;
    // The first hold of a client is renewed once the members listen for notices to it.
    let proxy = quorum.node(0).proxy();
    let renewed = proxy.expect_request(b"left < ttl then");
    let _other = client.lock("other").lock().await.expect("free");
    renewed.wait().await;
    let member = quorum.server(0);
    member.cli(&["HSET", "job", "6e0c0000-0000-4000-8000-000000000000:1", "1"]).ok();
    // The vote, and the repairs.
    let acquires = proxy.expect_request(b"'HSET', KEYS[1], ARGV[1], '1'");
    let guard = client.lock("job").lock().await.expect("free on two members");
    // The first repair was answered.
    within(SOON, "another", acquires.wait_for(3)).await;
    member.cli(&["DEL", "job"]).ok();
    let field = guard.owner_id().to_string();
    let is_held = || member.cli(&["HEXISTS", "job", &field]).int() == 1;
    eventually(SOON, "repaired", is_held).await;
}
