//! A blocking connection that speaks raw RESP2: the tests' own eyes, with no driver in between.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Reply;

/// A server that does not answer within this is paused or gone; the panic says so.
const REPLY_LIMIT: Duration = Duration::from_secs(10);

/// How many short commands are sent before their replies are read.
const PIPELINE: usize = 256;

/// A persistent connection to a [`RedisServer`](crate::RedisServer), past any proxy.
#[derive(Debug)]
pub struct Cli {
    stream: UnixStream,
    /// Received, not yet parsed: a time limit may strike in the middle of a reply.
    buffer: Vec<u8>,
}

impl Cli {
    /// Connects and, where there is a password, authenticates.
    pub(crate) fn connect(socket: &Path, password: Option<&str>) -> io::Result<Self> {
        let mut cli = Self { stream: UnixStream::connect(socket)?, buffer: Vec::new() };
        if let Some(password) = password {
            match cli.request(&["AUTH", password])? {
                Reply::Error(text) => return Err(io::Error::other(text)),
                _ => return Ok(cli),
            }
        }
        Ok(cli)
    }

    /// Sends one command and waits for its reply.
    ///
    /// # Panics
    ///
    /// If the connection breaks, or there is no reply within ten seconds.
    #[track_caller]
    pub fn cmd(&mut self, args: &[impl AsRef<[u8]>]) -> Reply {
        self.request(args).unwrap_or_else(|error| panic!("{}: {error}", shown(args)))
    }

    /// Sends commands in one piece, in batches that fit into the buffers of a socket; their replies.
    ///
    /// # Panics
    ///
    /// If the connection breaks, or there is no reply within ten seconds.
    #[track_caller]
    pub fn pipeline(&mut self, commands: &[Vec<String>]) -> Vec<Reply> {
        let mut replies = Vec::with_capacity(commands.len());
        for batch in commands.chunks(PIPELINE) {
            let wire: Vec<u8> = batch.iter().flat_map(|command| encode(command)).collect();
            let sent = self.stream.write_all(&wire);
            let answers = batch.iter().map(|_| self.receive(REPLY_LIMIT));
            let answers = sent.and_then(|()| answers.collect::<io::Result<Vec<_>>>());
            replies.extend(answers.unwrap_or_else(|error| panic!("{}: {error}", shown(&batch[0]))));
        }
        replies
    }

    /// Subscribes and returns once the server has confirmed every channel.
    ///
    /// # Panics
    ///
    /// If the server refuses, or does not answer within ten seconds.
    #[track_caller]
    pub fn subscribe(&mut self, channels: &[impl AsRef<[u8]>]) {
        let mut args: Vec<&[u8]> = vec![b"SUBSCRIBE"];
        args.extend(channels.iter().map(AsRef::as_ref));
        self.cmd(&args).ok();
        for _ in 1..channels.len() {
            self.receive(REPLY_LIMIT).expect("every channel is confirmed").ok();
        }
    }

    /// The next message as (channel, payload); `None` when none came within `timeout`.
    ///
    /// # Panics
    ///
    /// If the connection breaks, or something that is not a message arrives.
    #[track_caller]
    pub fn next_message(&mut self, timeout: Duration) -> Option<(String, Vec<u8>)> {
        match self.next_reply(timeout)?.array() {
            [kind, channel, Reply::Bulk(payload)] if kind.text() == "message" => {
                Some((channel.text().to_owned(), payload.clone()))
            }
            other => panic!("expected a message, got {other:?}"),
        }
    }

    /// The next reply that was not asked for, as after `MONITOR`; `None` when none came within `timeout`.
    ///
    /// # Panics
    ///
    /// If the connection breaks.
    #[track_caller]
    pub fn next_reply(&mut self, timeout: Duration) -> Option<Reply> {
        match self.receive(timeout) {
            Ok(reply) => Some(reply),
            Err(error) if error.kind() == ErrorKind::TimedOut => None,
            Err(error) => panic!("the connection broke: {error}"),
        }
    }

    pub(crate) fn request(&mut self, args: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        self.stream.write_all(&encode(args))?;
        self.receive(REPLY_LIMIT)
    }

    fn receive(&mut self, limit: Duration) -> io::Result<Reply> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some((reply, length)) = Reply::parse(&self.buffer) {
                self.buffer.drain(..length);
                return Ok(reply);
            }
            self.fill(deadline)?;
        }
    }

    fn fill(&mut self, deadline: Instant) -> io::Result<()> {
        // A zero timeout would mean none at all.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(left))?;
        let mut chunk = [0; 16 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.buffer.extend_from_slice(&chunk[..length]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(io::Error::new(ErrorKind::TimedOut, "no reply in time: is the server paused?"))
            }
            Err(error) => Err(error),
        }
    }
}

fn encode(args: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut wire = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args.iter().map(AsRef::as_ref) {
        wire.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        wire.extend_from_slice(arg);
        wire.extend_from_slice(b"\r\n");
    }
    wire
}

fn shown(args: &[impl AsRef<[u8]>]) -> String {
    let words: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg.as_ref())).collect();
    words.join(" ")
}
