//! The configuration of a sentinel that has already met the others.

use std::time::Duration;

use crate::replicated::Replicated;

/// The name of the primary.
pub(super) const MASTER: &str = "mymaster";

/// Long enough for a promotion on a loaded machine. Twice as long after one failover, the next may begin.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Config {
    /// Of the sentinels, as they are announced.
    pub(super) ports: Vec<u16>,
    /// Of the servers.
    pub(super) password: Option<String>,
    pub(super) down_after: Duration,
}

impl Config {
    /// The configuration of one sentinel at epoch 0.
    pub(super) fn text(&self, index: usize, servers: &Replicated) -> String {
        let mut lines = vec![
            format!("myid {}", id(index)),
            "announce-ip 127.0.0.1".to_owned(),
            format!("announce-port {}", self.ports[index]),
            format!("monitor {MASTER} 127.0.0.1 {} 2", servers.primary().port()),
            format!("down-after-milliseconds {MASTER} {}", self.down_after.as_millis()),
            format!("failover-timeout {MASTER} {}", FAILOVER_TIMEOUT.as_millis()),
            format!("parallel-syncs {MASTER} {}", servers.nodes().len()),
        ];
        if let Some(password) = &self.password {
            lines.push(format!("auth-pass {MASTER} \"{password}\""));
        }
        for replica in servers.replicas() {
            lines.push(format!("known-replica {MASTER} 127.0.0.1 {}", replica.port()));
        }
        for (other, port) in self.ports.iter().enumerate().filter(|(other, _)| *other != index) {
            lines.push(format!("known-sentinel {MASTER} 127.0.0.1 {port} {}", id(other)));
        }
        lines.iter().map(|line| format!("sentinel {line}\n")).collect()
    }
}

/// Forty digits, as a sentinel would choose at random.
fn id(index: usize) -> String {
    format!("{:040}", index + 1)
}
