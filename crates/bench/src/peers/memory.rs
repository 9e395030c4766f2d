//! What one more waiter costs: memory of its process and of the server.

use std::thread;
use std::time::Duration;

use super::WITH_PEERS;
use crate::Result;
use crate::bench::Bench;
use crate::processes::{LEASE, Library};
use crate::report::Row;

const WAITERS: usize = 1_000;

/// Until all waiters wait.
const SETTLE: Duration = Duration::from_secs(2);
const SETTLE_QUICK: Duration = Duration::from_secs(1);

/// Resident memory, since that is what a machine has to have: the heap, stacks, buffers. A new process each
/// time, because one that was larger before keeps what it had.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let rounds = if bench.plan.quick { 1 } else { 2 };
    let (mut client, mut server) = (Vec::new(), Vec::new());
    bench.peers.as_ref().ok_or(WITH_PEERS)?;
    for library in Library::ALL {
        let measured: Result<Vec<_>> =
            (0..rounds).map(|round| once(bench, library, round)).collect();
        let [of_client, of_server] = rows(library, measured);
        client.push(of_client);
        server.push(of_server);
    }
    let reference = client[0].clone();
    let mut rows: Vec<_> = client.into_iter().map(|row| row.against(&reference)).collect();
    rows.extend(server);
    Ok(rows)
}

/// What a library adds to the client and to the server. One that fails does not take the results of the others
/// away: its processes are its own.
fn rows(library: Library, measured: Result<Vec<(f64, f64)>>) -> [Row; 2] {
    let workloads = ["peers: memory per waiter", "peers: server memory per waiter"];
    let rows = match measured {
        Ok(measured) => {
            let (client, server): (Vec<_>, Vec<_>) = measured.into_iter().unzip();
            let row = |workload, values: &[f64]| Row::of(workload, library.name(), "bytes", values);
            [row(workloads[0], &client), row(workloads[1], &server)]
        }
        Err(error) => {
            let why = error.to_string();
            workloads.map(|workload| Row::failed(workload, library.name(), "bytes", &why))
        }
    };
    rows.map(|row| row.by(WAITERS))
}

fn once(bench: &mut Bench, library: Library, round: usize) -> Result<(f64, f64)> {
    let mut peer = bench.peers.as_ref().ok_or(WITH_PEERS)?.one(library, LEASE)?;
    let tag = library.tag();
    let settle = if bench.plan.quick { SETTLE_QUICK } else { SETTLE };
    // What all waiters share is not what one more costs.
    peer.ask(&format!("start own bench:{tag}:warm 8"))?;
    thread::sleep(settle / 4);
    peer.ask("stop")?;
    // The holder of the round before was killed: its lease has not expired.
    let name = format!("bench:{tag}:wait:{round}");
    peer.ask(&format!("acquire {name}"))?;
    let (before, server_before) = (peer.memory(), bench.probe.server_memory()?);
    peer.ask(&format!("start one {name} {WAITERS}"))?;
    thread::sleep(settle);
    let (after, server_after) = (peer.memory(), bench.probe.server_memory()?);
    let counts = peer.ask("count")?;
    if counts[1..].iter().any(|&count| count > 0) {
        return Err(format!("{}: a waiter did not have to wait", library.name()).into());
    }
    // Its waiters need not be woken: the process is killed.
    peer.kill();
    let per_waiter = |before: f64, after: f64| (after - before).max(0.0) / WAITERS as f64;
    Ok((per_waiter(before, after), per_waiter(server_before, server_after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_fails_has_rows_that_say_why() {
        let [client, server] = rows(Library::Redsync, Err("a waiter did not wait".into()));
        assert_eq!((client.workers, client.values.len()), (WAITERS, 0));
        assert_eq!(client.failure.as_deref(), Some("a waiter did not wait"));
        assert_eq!(server.failure, client.failure);
        let [client, server] = rows(Library::Lock, Ok(vec![(1.0, 3.0), (2.0, 4.0)]));
        assert_eq!((client.values, server.values), (vec![1.0, 2.0], vec![3.0, 4.0]));
        assert_eq!(client.failure, None);
    }
}
