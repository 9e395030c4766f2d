//! What the server and this process spent, read before and after a measurement.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::Result;
use crate::wire::{Wire, bulk};

/// Commands that arrive here only from inside scripts. `INFO commandstats` counts those like any
/// other, but they are not requests: counting them would make a script look like four round trips.
const INSIDE_SCRIPTS: [&str; 19] = [
    "del", "exists", "get", "hdel", "hexists", "hget", "hgetall", "hincrby", "hkeys", "hlen",
    "hset", "hvals", "pexpire", "pttl", "publish", "spublish", "time", "type", "unlink",
];

/// Our own question, which is no contender's work.
const OURS: &str = "info";

/// A connection for questions to each server.
pub(crate) struct Probe {
    addresses: Vec<SocketAddr>,
    wires: Vec<Wire>,
}

/// Running totals at one moment.
#[derive(Clone, Copy, Debug)]
struct Totals {
    calls: f64,
    reads: f64,
    server_cpu: f64,
    client_cpu: Duration,
    at: Instant,
}

/// What one measured stretch of work did and cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    /// Operations completed.
    pub(crate) ops: u64,
    /// How long it took.
    pub(crate) elapsed: Duration,
    /// Requests the server executed.
    pub(crate) calls: f64,
    /// Times the server read from a socket.
    pub(crate) reads: f64,
    /// CPU seconds of the server, all of it: commands, sockets, event loop.
    pub(crate) server_cpu: f64,
    /// CPU seconds of this process.
    pub(crate) client_cpu: f64,
}

impl Slice {
    /// Operations per second.
    pub(crate) fn rate(&self) -> f64 {
        self.ops as f64 / self.elapsed.as_secs_f64()
    }
}

impl Probe {
    /// Connects to all servers that do the work.
    pub(crate) fn connect(addresses: &[SocketAddr]) -> Result<Self> {
        let wires =
            addresses.iter().map(|address| Wire::connect(*address)).collect::<Result<_>>()?;
        Ok(Self { addresses: addresses.to_vec(), wires })
    }

    /// The servers.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Runs `work`, which returns how many operations it completed, between two readings of every
    /// counter.
    pub(crate) fn slice(&mut self, work: impl FnOnce() -> Result<u64>) -> Result<Slice> {
        let server = self.server()?;
        let before = Totals { client_cpu: client_cpu(), at: Instant::now(), ..server };
        let ops = work()?;
        let (at, client_cpu) = (Instant::now(), client_cpu());
        let after = Totals { client_cpu, at, ..self.server()? };
        Ok(Slice {
            ops,
            elapsed: after.at - before.at,
            calls: after.calls - before.calls,
            // The second INFO was itself one read.
            reads: after.reads - before.reads - self.wires.len() as f64,
            server_cpu: after.server_cpu - before.server_cpu,
            client_cpu: (after.client_cpu - before.client_cpu).as_secs_f64(),
        })
    }

    /// How often a command has run so far, inside scripts or not.
    pub(crate) fn executed(&mut self, command: &str) -> Result<u64> {
        let infos = self.infos(&[b"commandstats"])?;
        let stats = infos.iter().flat_map(|info| info.lines().filter_map(stat));
        Ok(stats.filter(|(name, _)| *name == command).map(|(_, calls)| calls as u64).sum())
    }

    /// Bytes that the servers have allocated.
    pub(crate) fn server_memory(&mut self) -> Result<f64> {
        let infos = self.infos(&[b"memory"])?;
        Ok(infos.iter().map(|info| field(info, "used_memory")).sum())
    }

    fn server(&mut self) -> Result<Totals> {
        let infos = self.infos(&[b"stats", b"cpu", b"commandstats"])?;
        let sum = |of: &dyn Fn(&str) -> f64| infos.iter().map(|info| of(info)).sum::<f64>();
        Ok(Totals {
            calls: sum(&|info| info.lines().filter_map(calls).sum()),
            reads: sum(&|info| field(info, "total_reads_processed")),
            server_cpu: sum(&|info| field(info, "used_cpu_sys") + field(info, "used_cpu_user")),
            client_cpu: Duration::ZERO,
            at: Instant::now(),
        })
    }

    /// These sections of each server.
    fn infos(&mut self, sections: &[&[u8]]) -> Result<Vec<String>> {
        let question = [&[&b"INFO"[..]], sections].concat();
        let infos = self.wires.iter_mut().map(|wire| {
            let reply = wire.call(&question)?;
            Ok(std::str::from_utf8(bulk(reply))?.to_owned())
        });
        infos.collect()
    }
}

/// CPU time of all threads of this process: what getrusage says, at the scheduler's precision
/// instead of the tick's.
pub(crate) fn client_cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Runs `work`; also returns how many cores were busy with neither this process nor its children, of which
/// the server is one. Readers of the figures should know.
pub(crate) fn other_cores<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Option<f64>)> {
    let (machine, before, start) = (machine_cpu(), family_cpu(), Instant::now());
    let result = work()?;
    let elapsed = start.elapsed().as_secs_f64();
    let machine = machine_cpu().zip(machine).map(|(now, then)| now - then);
    let family = family_cpu().zip(before).map(|(now, then)| now - then);
    let others = machine.zip(family).map(|(all, ours)| (all - ours).max(0.0) / elapsed);
    Ok((result, others))
}

/// CPU seconds of this process and its children, those included that have ended, if the system says.
fn family_cpu() -> Option<f64> {
    let own = std::process::id();
    let mut seconds = process_ticks(own, 4)?;
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        if let Some(pid) = pid.filter(|pid| parent(*pid) == Some(own)) {
            seconds += process_ticks(pid, 2).unwrap_or(0.0);
        }
    }
    Some(seconds)
}

/// CPU time of all threads of a process. The kernel rounds it to hundredths of a second.
pub(crate) fn process_cpu(pid: u32) -> Duration {
    Duration::from_secs_f64(process_ticks(pid, 2).unwrap_or(0.0))
}

/// Seconds in `columns` of user, system, and both of the children that have ended.
fn process_ticks(pid: u32, columns: usize) -> Option<f64> {
    let ticks = stat_fields(pid, 11, columns)?;
    Some(ticks.iter().sum::<f64>() / 100.0)
}

fn parent(pid: u32) -> Option<u32> {
    stat_fields(pid, 1, 1).map(|parent| parent[0] as u32)
}

/// Numbers out of `/proc/PID/stat`, counted from the state, which follows the name of the program. That is
/// in brackets and may contain anything.
fn stat_fields(pid: u32, skip: usize, take: usize) -> Option<Vec<f64>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.rsplit(')').next()?.split_whitespace();
    let fields: Vec<_> = fields.skip(skip).take(take).flat_map(str::parse).collect();
    (fields.len() == take).then_some(fields)
}

/// CPU seconds that everything on this machine has used, if the system says (Linux does).
fn machine_cpu() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<f64> =
        stat.lines().next()?.split_whitespace().skip(1).flat_map(str::parse).collect();
    // user nice system idle iowait irq softirq steal; the kernel promises hundredths of a second.
    let busy = [0, 1, 2, 5, 6, 7].iter().map(|&column| ticks.get(column).unwrap_or(&0.0));
    Some(busy.sum::<f64>() / 100.0)
}

fn field(info: &str, name: &str) -> f64 {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
        .unwrap_or(f64::NAN)
}

/// Name and calls out of a `cmdstat_NAME:calls=N,…` line.
fn stat(line: &str) -> Option<(&str, f64)> {
    let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
    Some((name, rest.split_once(',')?.0.parse().ok()?))
}

/// The calls in such a line, if they were requests of a contender's.
fn calls(line: &str) -> Option<f64> {
    let (name, calls) = stat(line)?;
    (!INSIDE_SCRIPTS.contains(&name) && name != OURS).then_some(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_are_counted() {
        assert_eq!(calls("cmdstat_evalsha:calls=17,usec=5,usec_per_call=1"), Some(17.0));
        assert_eq!(calls("cmdstat_client|setinfo:calls=2,usec=5"), Some(2.0));
        assert_eq!(calls("cmdstat_hset:calls=17,usec=5"), None);
        assert_eq!(calls("cmdstat_info:calls=17,usec=5"), None);
        assert_eq!(calls("total_reads_processed:4"), None);
    }
}
