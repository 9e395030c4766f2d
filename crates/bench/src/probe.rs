//! What the server and this process spent, read before and after a measurement.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::Result;
use crate::wire::{Wire, bulk};

/// Commands that arrive here only from inside scripts. `INFO commandstats` counts those like any
/// other, but they are not requests: counting them would make a script look like four round trips.
const INSIDE_SCRIPTS: [&str; 18] = [
    "del", "exists", "get", "hdel", "hexists", "hget", "hgetall", "hincrby", "hkeys", "hlen",
    "hset", "hvals", "pexpire", "pttl", "publish", "time", "type", "unlink",
];

/// Our own questions, which are no contender's work.
const OURS: [&str; 2] = ["info", "pubsub|numsub"];

/// A connection for questions.
pub(crate) struct Probe {
    wire: Wire,
}

/// Running totals at one moment.
#[derive(Clone, Copy, Debug)]
struct Totals {
    calls: f64,
    scripts: f64,
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
    /// Of these, scripts and subscriptions: all that is sent for anything but a mutex.
    pub(crate) scripts: f64,
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
    /// Connects.
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        Ok(Self { wire: Wire::connect(address)? })
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
            scripts: after.scripts - before.scripts,
            // The second INFO was itself one read.
            reads: after.reads - before.reads - 1.0,
            server_cpu: after.server_cpu - before.server_cpu,
            client_cpu: (after.client_cpu - before.client_cpu).as_secs_f64(),
        })
    }

    /// How often a command has run so far, inside scripts or not.
    pub(crate) fn executed(&mut self, command: &str) -> Result<u64> {
        let reply = self.wire.call(&[b"INFO", b"commandstats"])?;
        let info = std::str::from_utf8(bulk(reply))?;
        let found = info.lines().filter_map(stat).find(|(name, _)| *name == command);
        Ok(found.map_or(0, |(_, calls)| calls as u64))
    }

    /// Whether anyone is subscribed to `channel`.
    pub(crate) fn subscribers(&mut self, channel: &[u8]) -> Result<bool> {
        let reply = self.wire.call(&[b"PUBSUB", b"NUMSUB", channel])?;
        Ok(!reply.ends_with(b":0\r\n"))
    }

    /// Runs `work`; also returns how many cores were busy with neither us nor our server meanwhile.
    /// Whoever reads the figures should know.
    pub(crate) fn strangers<T>(
        &mut self,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Option<f64>)> {
        let mut ours =
            || Ok::<_, crate::Error>(self.server()?.server_cpu + client_cpu().as_secs_f64());
        let (machine, before, start) = (machine_cpu(), ours()?, Instant::now());
        let result = work()?;
        let (elapsed, after) = (start.elapsed().as_secs_f64(), ours()?);
        let others = machine_cpu().zip(machine).map(|(now, then)| now - then - (after - before));
        Ok((result, others.map(|seconds| seconds.max(0.0) / elapsed)))
    }

    fn server(&mut self) -> Result<Totals> {
        let reply = self.wire.call(&[b"INFO", b"stats", b"cpu", b"commandstats"])?;
        let info = std::str::from_utf8(bulk(reply))?;
        Ok(Totals {
            calls: info.lines().filter_map(calls).sum(),
            scripts: info
                .lines()
                .filter_map(stat)
                .filter(|(name, _)| is_script(name))
                .map(|(_, n)| n)
                .sum(),
            reads: field(info, "total_reads_processed"),
            server_cpu: field(info, "used_cpu_sys") + field(info, "used_cpu_user"),
            client_cpu: Duration::ZERO,
            at: Instant::now(),
        })
    }
}

/// CPU time of all threads of this process: what getrusage says, at the scheduler's precision
/// instead of the tick's.
pub(crate) fn client_cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
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
    (!INSIDE_SCRIPTS.contains(&name) && !OURS.contains(&name)).then_some(calls)
}

/// Whether it is a script, or a change of subscriptions.
fn is_script(name: &str) -> bool {
    ["eval", "evalsha", "subscribe", "unsubscribe"].contains(&name)
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
