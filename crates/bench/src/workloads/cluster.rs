//! A cluster of three primaries on one machine: pairs beside those on one server, the renewal of many
//! locks in all slots, and the failover of a shard.
//!
//! Two cores serve the client and all nodes: more primaries bring no more throughput here, and the
//! ratio to one server shows what the way to the right one costs.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{Client, ClientOptions, RedisOptions};
use testkit::{Cluster, Reply, Shape};

use super::Bench;
use crate::Result;
use crate::contenders::keeper::{KEEPER, Keeper};
use crate::contenders::{Contender, Stop};
use crate::form::Form;
use crate::hold::{free, hold};
use crate::probe::{Probe, Slice};
use crate::report::{Aim, Row};

const TASKS: [usize; 3] = [1, 64, 1024];

const HELD: usize = 100_000;
const HELD_QUICK: usize = 10_000;

/// Every lock is renewed once in this time.
const PERIOD: Duration = Duration::from_secs(10);

const FAILOVERS: usize = 20;
const FAILOVERS_QUICK: usize = 3;

/// Between two acquisitions during a failover: more would be load, and not a measurement.
const PAUSE: Duration = Duration::from_millis(1);

/// What takes longer has failed.
const LIMIT: Duration = Duration::from_secs(30);

/// Without acknowledgement, as on one server.
fn connect(bench: &Bench, cluster: &Cluster) -> Result<Client> {
    let options = ClientOptions::new().redis(RedisOptions::new().unacknowledged());
    Ok(bench.runtime.block_on(Client::connect_with(cluster.url(), options))?)
}

/// Counts on all nodes together.
fn probe(cluster: &Cluster) -> Result<Probe> {
    let port = |shard| cluster.primary(shard).server().port();
    let nodes: Vec<_> = (0..3).map(|shard| ([127, 0, 0, 1], port(shard)).into()).collect();
    Probe::connect(&nodes)
}

/// Pairs, every task on a name of its own: two requests each, as on one server.
pub(super) fn uncontended(bench: &mut Bench) -> Result<Vec<Row>> {
    let cluster = Cluster::start(Shape::Primaries);
    let runtime = bench.runtime.handle().clone();
    let mut one = Keeper::connect(&runtime, &bench.url(), Form::Lock)?;
    let mut many = Keeper::of(&runtime, connect(bench, &cluster)?, Form::Lock);
    let mut nodes = probe(&cluster)?;
    let mut rows = Vec::new();
    for tasks in TASKS {
        let slices = bench.interleave(2, |probe, contender, time| match contender {
            0 => probe.slice(|| one.run(tasks, time)),
            _ => nodes.slice(|| many.run(tasks, time)),
        })?;
        let row = |name: &str, slices: &[Slice]| {
            Row::rate("cluster: uncontended", name, "pairs/s", slices).by(tasks)
        };
        let server = row("lockkeeper Lock, one server", &slices[0]);
        let cluster = row("lockkeeper Lock, three primaries", &slices[1]).against(&server);
        let calls = Aim::at_most("requests/pair", [cluster.calls.unwrap_or(f64::NAN)], 2.01);
        rows.extend([server, cluster.aiming([calls])]);
    }
    Ok(rows)
}

/// CPU of this process as a share of one core while it renews locks in all slots, and the requests
/// for that.
pub(super) fn renewals(bench: &mut Bench) -> Result<Vec<Row>> {
    let cluster = Cluster::start(Shape::Primaries);
    let client = connect(bench, &cluster)?;
    let held = if bench.plan.quick { HELD_QUICK } else { HELD };
    let guards = bench.runtime.block_on(hold(&client, 0..held))?;
    // From the middle of the gap between two rounds of renewals.
    thread::sleep(PERIOD / 2);
    let (mut counter, mut nodes) = (probe(&cluster)?, probe(&cluster)?);
    let windows = if bench.plan.quick { 1 } else { 3 };
    let mut slices = Vec::new();
    for _ in 0..windows {
        slices.push(nodes.slice(|| {
            let before = counter.executed("pexpire")?;
            thread::sleep(PERIOD);
            Ok(counter.executed("pexpire")? - before)
        })?);
    }
    if let Some(slice) = slices.iter().find(|slice| slice.ops < held as u64 * 99 / 100) {
        return Err(format!("only {} of {held} locks were renewed", slice.ops).into());
    }
    if let Some(lost) = guards.iter().find(|guard| guard.is_lost()) {
        return Err(format!("a lock was lost while it was measured: {lost:?}").into());
    }
    bench.runtime.block_on(free(guards))?;
    let per_second = |of: fn(&Slice) -> f64| -> Vec<f64> {
        slices.iter().map(|slice| of(slice) / slice.elapsed.as_secs_f64()).collect()
    };
    let share = per_second(|slice| slice.client_cpu * 100.0);
    let share = Row::of("cluster: renewals", KEEPER, "% of a core", &share).by(held);
    let calls = per_second(|slice| slice.calls);
    let calls = Row::of("cluster: renewal requests", KEEPER, "calls/s", &calls).by(held);
    Ok(vec![share.costing(&slices), calls])
}

/// Milliseconds from the moment at which a replica is seen to be the primary of its shard to the first
/// grant there: median and worst.
pub(super) fn failover(bench: &mut Bench) -> Result<Vec<Row>> {
    // Nodes vote for one failover of a shard in two such times.
    let node_timeout = Duration::from_millis(500);
    let cluster = Cluster::builder(Shape::Replicated).node_timeout(node_timeout).start();
    let cluster = Arc::new(cluster);
    let client = bench.runtime.block_on(Client::connect(cluster.url()))?;
    let count = if bench.plan.quick { FAILOVERS_QUICK } else { FAILOVERS };
    let names = Arc::new(cluster.names_on(0, 64));
    let spans: Result<Vec<f64>> = (0..count)
        .map(|_| {
            let stop = Stop::default();
            let grants = acquire(client.clone(), Arc::clone(&names), stop.clone());
            let grants = bench.runtime.spawn(grants);
            thread::sleep(3 * node_timeout);
            let promoted = promotion(&cluster);
            cluster.failover(0);
            let promoted = promoted.join().map_err(|_| "the replica was not watched")??;
            thread::sleep(Duration::from_millis(500));
            stop.set();
            let grants = bench.runtime.block_on(grants)?;
            let first = grants.iter().find(|at| **at > promoted).ok_or("no grant after it")?;
            Ok((*first - promoted).as_secs_f64() * 1e3)
        })
        .collect();
    let spans = spans?;
    let worst = spans.iter().copied().fold(f64::MIN, f64::max);
    let row = |what: &str, values: &[f64]| {
        Row::of(&format!("cluster: failover, {what}"), KEEPER, "ms", values)
    };
    let worst_row = row("worst", &[worst]).aiming([Aim::at_most("ms", [worst], 1000.0)]);
    Ok(vec![row("median", &spans), worst_row])
}

/// When the replica of the first shard says that it is a primary.
fn promotion(cluster: &Arc<Cluster>) -> thread::JoinHandle<Result<Instant>> {
    let mut replica = cluster.replica(0).server().connection();
    thread::spawn(move || {
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            if let Reply::Array(role) = replica.cmd(&["ROLE"])
                && role.first().is_some_and(|role| role.text() == "master")
            {
                return Ok(Instant::now());
            }
            thread::sleep(PAUSE);
        }
        Err("the replica was not promoted".into())
    })
}

/// Times of all grants. An attempt that the failover interrupts may fail.
async fn acquire(client: Client, names: Arc<Vec<String>>, stop: Stop) -> Vec<Instant> {
    let mut grants = Vec::new();
    for name in names.iter().cycle() {
        if stop.reached() {
            break;
        }
        if let Ok(guard) = client.lock(name).lock().await {
            grants.push(Instant::now());
            let _ = guard.release().await;
        }
        tokio::time::sleep(PAUSE).await;
    }
    grants
}
