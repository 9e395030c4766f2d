//! Just enough RESP to be the fastest client in the room, and to ask the server questions between
//! the measurements.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::Result;

/// Longer than anything here waits for: a benchmark that hangs should say so instead.
const SILENCE: Duration = Duration::from_secs(60);

/// A blocking connection: encode, write, read one reply at a time out of a large buffer.
pub(crate) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Wire {
    /// Connects with Nagle off, as every contender here does.
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        Ok(Self { stream, buffer: vec![0; 256 * 1024], start: 0, end: 0 })
    }

    /// Writes already encoded commands in one go.
    pub(crate) fn send(&mut self, encoded: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(encoded)?)
    }

    /// The next whole reply, undecoded. An error reply is an error here: no contender may count one
    /// as work.
    pub(crate) fn reply(&mut self) -> Result<&[u8]> {
        loop {
            if let Some(length) = reply_length(&self.buffer[self.start..self.end]) {
                let reply = &self.buffer[self.start..self.start + length];
                self.start += length;
                if reply[0] == b'-' {
                    return Err(String::from_utf8_lossy(reply).trim_end().into());
                }
                return Ok(reply);
            }
            self.fill()?;
        }
    }

    /// One command, one reply.
    pub(crate) fn call(&mut self, arguments: &[&[u8]]) -> Result<&[u8]> {
        let mut encoded = Vec::with_capacity(128);
        encode(&mut encoded, arguments);
        self.ask(&encoded)
    }

    /// One encoded command, one reply.
    pub(crate) fn ask(&mut self, encoded: &[u8]) -> Result<&[u8]> {
        self.send(encoded)?;
        self.reply()
    }

    /// Loads a script and returns its SHA-1.
    pub(crate) fn load(&mut self, script: &str) -> Result<String> {
        let reply = self.call(&[b"SCRIPT", b"LOAD", script.as_bytes()])?;
        Ok(String::from_utf8(bulk(reply).to_vec())?)
    }

    fn fill(&mut self) -> Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.buffer.len() {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        match self.stream.read(&mut self.buffer[self.end..])? {
            0 => Err("the server closed the connection".into()),
            read => {
                self.end += read;
                Ok(())
            }
        }
    }
}

/// Appends one command.
pub(crate) fn encode(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

/// The payload of a bulk string reply.
pub(crate) fn bulk(reply: &[u8]) -> &[u8] {
    match reply.iter().position(|&byte| byte == b'\n') {
        Some(line) if reply[0] == b'$' && reply.len() > line + 1 => {
            &reply[line + 1..reply.len() - 2]
        }
        _ => &[],
    }
}

/// The value of an integer reply; 0 for any other.
pub(crate) fn integer(reply: &[u8]) -> i64 {
    if reply[0] == b':' { number(&reply[1..]) } else { 0 }
}

/// Length of the first reply in `bytes`, if it is all there.
fn reply_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.iter().position(|&byte| byte == b'\n')? + 1;
    match bytes[0] {
        b'$' => match number(&bytes[1..line]) {
            length if length < 0 => Some(line),
            length => Some(line + length as usize + 2).filter(|&whole| whole <= bytes.len()),
        },
        b'*' => {
            let mut whole = line;
            for _ in 0..number(&bytes[1..line]) {
                whole += reply_length(&bytes[whole..])?;
            }
            Some(whole)
        }
        _ => Some(line),
    }
}

fn number(line: &[u8]) -> i64 {
    let digits = line.iter().filter(|byte| byte.is_ascii_digit());
    let value = digits.fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
    if line[0] == b'-' { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_measured_only_when_it_is_whole() {
        for whole in [
            &b"+OK\r\n"[..],
            b":12\r\n",
            b"$-1\r\n",
            b"$3\r\nabc\r\n",
            b"*-1\r\n",
            b"*2\r\n:1\r\n*1\r\n$0\r\n\r\n",
        ] {
            assert_eq!(reply_length(whole), Some(whole.len()));
            assert_eq!(reply_length(&[whole, b":9\r\n"].concat()), Some(whole.len()));
            for cut in 0..whole.len() {
                assert_eq!(reply_length(&whole[..cut]), None, "{whole:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn commands_are_encoded_with_byte_lengths() {
        let mut out = Vec::new();
        encode(&mut out, &[b"SET", "ä".as_bytes()]);
        assert_eq!(out, "*2\r\n$3\r\nSET\r\n$2\r\nä\r\n".as_bytes());
    }
}
