//! Many locks that are held and renewed, and nothing else to do.

use std::thread;
use std::time::Duration;

use super::WITH_PEERS;
use crate::Result;
use crate::bench::Bench;
use crate::processes::{LEASE, Library};
use crate::report::{Aim, Row};
use crate::wire::{Wire, encode, integer};

/// What a renewal may be late before it counts as missed, as a part of the lease.
const TOLERANCE: f64 = 0.05;

/// Requests in one write.
const BATCH: usize = 1_000;

/// What holding locks cost in one period of renewal.
struct Cost {
    cpu_percent: f64,
    server_cpu_percent: f64,
    bytes_per_lock: f64,
    missed: f64,
}

/// CPU, memory and missed renewals, of the libraries that renew.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let (sizes, lease): (&[usize], _) = match bench.plan.quick {
        true => (&[1_000], Duration::from_secs(3)),
        false => (&[1_000, 100_000], LEASE),
    };
    // Both locks of lockkeeper are renewed by the same code.
    let libraries = [Library::Lock, Library::Redisson, Library::PythonRedisLock];
    let mut rows = Vec::new();
    for &size in sizes {
        let able = libraries.into_iter().filter(|library| size <= library.most_held());
        for library in able {
            let cost = hold(bench, library, size, lease)?;
            let row = |workload: &str, unit, value| {
                Row::of(workload, library.name(), unit, &[value]).by(size)
            };
            let cpu = row("peers: held locks, CPU", "% of a core", cost.cpu_percent);
            rows.push(match library {
                Library::Lock => cpu.aiming([Aim::at_most("% of a core", [cost.cpu_percent], 1.0)]),
                _ => cpu,
            });
            let server = cost.server_cpu_percent;
            rows.push(row("peers: held locks, server CPU", "% of a core", server));
            rows.push(row("peers: held locks, memory", "bytes/lock", cost.bytes_per_lock));
            rows.push(row("peers: held locks, missed renewals", "locks", cost.missed));
        }
    }
    // By workload, so that the table compares libraries.
    rows.sort_by(|one, other| one.workload.cmp(&other.workload));
    Ok(rows)
}

fn hold(bench: &mut Bench, library: Library, size: usize, lease: Duration) -> Result<Cost> {
    let peers = bench.peers.as_ref().ok_or(WITH_PEERS)?;
    let renews_after = library.renews_after().ok_or("it does not renew locks")?;
    let mut peer = peers.one(library, lease)?;
    let name = format!("bench:{}:held", library.tag());
    // What every lock has is not what one more costs.
    peer.ask(&format!("keep {name}:first 10"))?;
    peer.ask("unkeep")?;
    let before = peer.memory();
    peer.ask(&format!("keep {name} {size}"))?;
    let period = lease.mul_f64(renews_after);
    // From the middle of the gap on, a period has each renewal once.
    thread::sleep(period / 2);
    let bytes_per_lock = (peer.memory() - before) / size as f64;
    let spent = peer.cpu();
    let slice = bench.probe.slice(|| {
        thread::sleep(period);
        Ok(size as u64)
    })?;
    let (cpu, seconds) = ((peer.cpu() - spent).as_secs_f64(), slice.elapsed.as_secs_f64());
    let least = lease.mul_f64(1.0 - renews_after - TOLERANCE);
    let missed = (0..size).map(|number| library.key(&format!("{name}:{number:06}")));
    let missed = missed.collect::<Vec<_>>();
    let missed = below(&mut Wire::connect(bench.address)?, &missed, least)?;
    peer.ask("unkeep")?;
    Ok(Cost {
        cpu_percent: cpu / seconds * 100.0,
        server_cpu_percent: slice.server_cpu / seconds * 100.0,
        bytes_per_lock,
        missed: missed as f64,
    })
}

/// How many keys have less time left than `least`, or are gone.
fn below(wire: &mut Wire, keys: &[String], least: Duration) -> Result<usize> {
    let mut missed = 0;
    for batch in keys.chunks(BATCH) {
        let mut out = Vec::new();
        batch.iter().for_each(|key| encode(&mut out, &[b"PTTL", key.as_bytes()]));
        wire.send(&out)?;
        for _ in batch {
            missed += usize::from(integer(wire.reply()?) < least.as_millis() as i64);
        }
    }
    Ok(missed)
}
