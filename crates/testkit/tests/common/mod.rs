//! What several tests of the testkit use.

use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Waits for something that nobody signals.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "not within thirty seconds: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Whether anybody listens on a port of 127.0.0.1.
pub(crate) fn is_open(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}
