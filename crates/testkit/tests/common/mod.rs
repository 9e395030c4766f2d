//! What several tests of the testkit use; none of them uses all of it.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Write};
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

/// A client of a port of 127.0.0.1.
pub(crate) fn connect(port: u16) -> BufReader<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    BufReader::new(stream)
}

/// Sends a line and returns the first line of the answer; `None` when the connection is silent or ends.
pub(crate) fn ask(client: &mut BufReader<TcpStream>, line: &str) -> Option<String> {
    client.get_mut().write_all(format!("{line}\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    client.read_line(&mut answer).ok().filter(|length| *length > 0)?;
    Some(answer.trim_end().to_owned())
}
