//! Counts the requests that reach the server, by `MONITOR`.
//!
//! `INFO commandstats` cannot: it counts commands inside scripts like requests, and libraries send some
//! commands both ways. `MONITOR` marks what a script does. It slows the server down, so it runs in a turn of
//! its own, which is not timed; a count per operation does not depend on speed.

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

use crate::Result;
use crate::wire::Wire;

const MARK: &str = "lockkeeper-bench-end-of-count";

/// A connection that listens.
pub(crate) struct Monitor {
    counting: JoinHandle<Result<u64>>,
    wire: Wire,
}

impl Monitor {
    /// Counts from now on.
    pub(crate) fn start(address: SocketAddr) -> Result<Self> {
        let mut listening = Wire::connect(address)?;
        let wire = Wire::connect(address)?;
        listening.call(&[b"MONITOR"])?;
        let counting = thread::spawn(move || {
            let mut requests = 0;
            loop {
                let line = std::str::from_utf8(listening.reply()?)?;
                if line.contains(MARK) {
                    return Ok(requests);
                }
                requests += u64::from(is_request(line));
            }
        });
        Ok(Self { counting, wire })
    }

    /// The requests since then.
    pub(crate) fn stop(mut self) -> Result<u64> {
        self.wire.call(&[b"ECHO", MARK.as_bytes()])?;
        self.counting.join().map_err(|_| "the thread that counts requests has panicked")?
    }
}

/// Not what a script does, and not the pings of connections that are idle.
fn is_request(line: &str) -> bool {
    // +1700000000.123456 [0 127.0.0.1:1234] "set" "a" "b"
    let Some((source, command)) = line.split_once("] ") else { return false };
    !source.ends_with(" lua") && !command.to_ascii_lowercase().starts_with("\"ping\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_does_and_pings_are_no_requests() {
        assert!(is_request("+1700000000.123456 [0 127.0.0.1:1234] \"evalsha\" \"a\""));
        assert!(is_request("+1700000000.123456 [0 unix:/tmp/redis] \"SET\" \"] \" \"b\""));
        assert!(!is_request("+1700000000.123456 [0 lua] \"set\" \"a\" \"b\""));
        assert!(!is_request("+1700000000.123456 [0 127.0.0.1:1234] \"PING\""));
        assert!(!is_request("+OK"));
    }
}
