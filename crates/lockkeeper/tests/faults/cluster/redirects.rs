//! Requests that a node sends elsewhere run once.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::Kind;
use testkit::{Cli, Cluster, Reply};

use super::{connected, on, primaries};
use crate::support::*;

/// The lease, of which a third is the time between two renewals.
const LEASE: Duration = Duration::from_secs(9);

/// A second run of the same request follows within this; the next renewal does not, also if this one was late.
const AT_ONCE: f64 = 0.25;

/// Seconds at which a node extended the TTL of each of these keys, as `MONITOR` shows them:
/// `1700000000.123456 [0 lua] "PEXPIRE" "key" "3000"`.
fn renewed(monitor: &mut Cli, names: &[String], times: &mut BTreeMap<String, Vec<f64>>) {
    while let Some(Reply::Status(line)) = monitor.next_reply(ms(5)) {
        let words: Vec<_> = line.split(' ').collect();
        let [time, _, _, command, key, ..] = words[..] else { continue };
        let key = key.trim_matches('"');
        if command.eq_ignore_ascii_case("\"pexpire\"") && names.iter().any(|name| name == key) {
            times.entry(key.to_owned()).or_default().push(time.parse().expect("seconds"));
        }
    }
}

/// One batch of renewals has locks that did not move, that have moved, that are asked for elsewhere, and
/// readers that no node can serve. Each is renewed once a round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_renewal_of_a_redirected_batch_runs_once() {
    const EACH: usize = 5;
    let cluster = primaries().await;
    let client = connected(&cluster, options().watchdog_timeout(LEASE)).await;
    let names = cluster.names_on(0, 4 * EACH);
    let mut guards = Vec::new();
    for (at, name) in names.iter().enumerate() {
        guards.push(match at < 3 * EACH {
            true => taken(&lock_of(&client, Kind::Lock, name)).await,
            false => taken(&client.rw_lock(name).reader()).await,
        });
    }
    let mut monitors: Vec<_> =
        (0..3).map(|shard| cluster.node(shard).server().connection()).collect();
    for monitor in &mut monitors {
        monitor.cmd(&["MONITOR"]).ok();
    }
    let moving = names.clone();
    on(&cluster, move |cluster| {
        for (at, name) in moving.iter().enumerate() {
            let slot = Cluster::slot_of(name);
            match at / EACH {
                0 => {}
                1 => cluster.migrate(slot, 1),
                _ => {
                    cluster.begin_migration(slot, 1);
                    assert!(cluster.move_key(name));
                }
            }
        }
    })
    .await;
    let mut times = BTreeMap::new();
    let enough = |times: &BTreeMap<String, Vec<f64>>| {
        let count = |name: &String| times.get(name).map_or(0, Vec::len);
        names[..3 * EACH].iter().all(|name| count(name) >= 3)
    };
    eventually(2 * PATIENCE, "three rounds of renewals", || {
        monitors.iter_mut().for_each(|monitor| renewed(monitor, &names, &mut times));
        enough(&times)
    })
    .await;
    for (name, times) in &mut times {
        times.sort_by(f64::total_cmp);
        let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let short = pauses.iter().any(|pause| *pause < AT_ONCE);
        let group = names.iter().position(|one| one == name).map(|at| at / EACH);
        assert!(!short, "{name} of group {group:?} was renewed twice in a round: {pauses:?}");
    }
    let lost: Vec<_> = guards.iter().filter(|guard| guard.is_lost()).collect();
    assert!(lost.is_empty(), "{lost:?}");
}
