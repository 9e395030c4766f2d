//! An ordered failover: from its announcement to the first grant by the new primary.
//!
//! The announcement is the first message of any sentinel, as a subscriber of our own gets it. Meanwhile the
//! client acquires and releases all the time, under a new name each time. These are fenced locks: the
//! token outlasts the release, and so shows which server granted the lock.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::Client;
use testkit::{Node, Reply, Sentinels};
use tokio::runtime::Handle;

use super::Bench;
use crate::Result;
use crate::contenders::Stop;
use crate::report::{Aim, Row};

const FAILOVERS: usize = 20;
const FAILOVERS_QUICK: usize = 3;

/// What takes longer has failed.
const LIMIT: Duration = Duration::from_secs(30);

/// Between two acquisitions: more would be load, and not a measurement.
const PAUSE: Duration = Duration::from_millis(1);

/// Median and worst.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let sentinels = Sentinels::start();
    let client = bench.runtime.block_on(Client::connect(&sentinels.url()))?;
    let count = if bench.plan.quick { FAILOVERS_QUICK } else { FAILOVERS };
    let runtime = bench.runtime.handle();
    let spans: Result<Vec<f64>> =
        (0..count).map(|number| failover(runtime, &sentinels, &client, number)).collect();
    let spans = spans?;
    let worst = spans.iter().copied().fold(f64::MIN, f64::max);
    let row = |what: &str, values: &[f64]| {
        Row::of(&format!("failover: {what}"), "lockkeeper FencedLock", "ms", values)
    };
    let worst_row = row("worst", &[worst]).aiming([Aim::at_most("ms", [worst], 1000.0)]);
    Ok(vec![row("median", &spans), worst_row])
}

/// Milliseconds from the announcement to the first grant.
fn failover(runtime: &Handle, sentinels: &Sentinels, client: &Client, n: usize) -> Result<f64> {
    let (announcements, watch) = (announcements(sentinels), sentinels.watch());
    let old = sentinels.servers().primary();
    let stop = Stop::default();
    let grants = runtime.spawn(acquire(client.clone(), n, stop.clone()));
    order(&sentinels.sentinels()[0])?;
    let announced = announcements.recv_timeout(LIMIT)?;
    let new = sentinels.await_primary(watch.wait().port);
    stop.set();
    let grants = runtime.block_on(grants)??;
    let by_new = |name: &str| {
        new.server().cli(&["EXISTS", &format!("redisson_lock_token:{{{name}}}")]).int() == 1
    };
    let mut after = grants.iter().filter(|(at, _)| *at > announced);
    let first = after.find(|(_, name)| by_new(name));
    let (at, _) = first.ok_or("no grant by the new primary")?;
    // The sentinels would do it ten seconds later.
    sentinels.servers().demote(old, new);
    sentinels.servers().await_in_sync(sentinels.servers().replicas().len());
    Ok((*at - announced).as_secs_f64() * 1e3)
}

/// When each sentinel announces the failover first.
fn announcements(sentinels: &Sentinels) -> Receiver<Instant> {
    let (sender, receiver) = mpsc::channel();
    for sentinel in sentinels.sentinels() {
        let (mut cli, sender) = (sentinel.server().connection(), sender.clone());
        cli.subscribe(&["+promoted-slave", "+switch-master"]);
        thread::spawn(move || {
            // Nothing is received any more after the first.
            cli.next_message(LIMIT).map(|_| sender.send(Instant::now()))
        });
    }
    receiver
}

/// Times and names of all grants. An attempt that the failover interrupts may fail.
async fn acquire(client: Client, number: usize, stop: Stop) -> Result<Vec<(Instant, String)>> {
    let mut grants = Vec::new();
    for attempt in 0.. {
        if stop.reached() {
            break;
        }
        let name = format!("bench:flo:{number}:{attempt}");
        if let Ok(guard) = client.fenced_lock(&name).lock().await {
            grants.push((Instant::now(), name));
            let _ = guard.release().await;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(grants)
}

/// Orders a failover as soon as the one before has ended for the sentinel and the replicas are known to it.
fn order(sentinel: &Node) -> Result<()> {
    let start = Instant::now();
    loop {
        match sentinel.server().cli(&["SENTINEL", "FAILOVER", "mymaster"]) {
            Reply::Error(_) if start.elapsed() < LIMIT => thread::sleep(Duration::from_millis(20)),
            Reply::Error(error) => return Err(error.into()),
            _ => return Ok(()),
        }
    }
}
