//! A socket that carries requests and replies.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use super::socket::Socket;
use crate::backend::Fault;
use crate::redis::command::Command;
use crate::redis::error_reply;
use crate::redis::resp::{HANDSHAKE_MAX, Malformed, Parser, REPLY_MAX, Value};

/// The room for one read. Replies of a few hundred requests fit.
const READ: usize = 16 * 1024;

/// A read buffer that is larger than this is replaced once it is empty.
const KEPT_MAX: usize = 1024 * 1024;

/// A socket, with the bytes that were received and not parsed yet, and those that are to be sent.
pub(super) struct Wire {
    pub(super) socket: Socket,
    parser: Parser,
    input: Vec<u8>,
    /// The beginning of `input` that was parsed.
    parsed: usize,
    output: Vec<u8>,
    /// The beginning of `output` that was written.
    written: usize,
    /// The server sends messages as lists, not as pushes.
    pub(super) is_resp2: bool,
}

impl Wire {
    pub(super) fn new(socket: Socket) -> Self {
        Self {
            socket,
            parser: Parser::new(HANDSHAKE_MAX),
            input: Vec::new(),
            parsed: 0,
            output: Vec::new(),
            written: 0,
            is_resp2: false,
        }
    }

    /// The handshake is over: replies may be large.
    pub(super) fn serve(&mut self) {
        self.parser.limit = REPLY_MAX;
    }

    pub(super) fn parse(&mut self) -> Result<Option<Value>, Fault> {
        match self.parser.parse(&self.input[self.parsed..]) {
            Ok((consumed, reply)) => {
                self.parsed += consumed;
                Ok(reply)
            }
            Err(Malformed(detail)) => {
                tracing::debug!(detail, "not a reply");
                let error = io::Error::new(io::ErrorKind::InvalidData, detail);
                let detail = "the answer is not that of a Redis server: check host and port";
                Err(Fault::unanswered(detail).caused_by(error))
            }
        }
    }

    /// Receives more bytes. The end of the stream is a fault.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if self.parsed == self.input.len() {
            self.input.clear();
            if self.input.capacity() > KEPT_MAX {
                self.input = Vec::new();
            }
        } else {
            self.input.drain(..self.parsed);
        }
        self.parsed = 0;
        self.input.reserve(READ);
        Poll::Ready(match ready!(self.socket.poll_read(cx, &mut self.input)) {
            Ok(0) => Err(Fault::unanswered("the connection was closed")),
            Ok(_) => Ok(()),
            Err(error) => Err(broken_by(error)),
        })
    }

    /// Queues a request; [`next`](Wire::next) sends it.
    pub(super) fn send(&mut self, command: &Command) {
        command.encode(&mut self.output);
    }

    /// The number of queued bytes that are not written yet.
    pub(super) fn unsent(&self) -> usize {
        self.output.len() - self.written
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        while self.written < self.output.len() {
            let write = self.socket.poll_write(cx, &self.output[self.written..]);
            match ready!(write) {
                Ok(0) => return Poll::Ready(Err(broken_by(io::ErrorKind::WriteZero.into()))),
                Ok(count) => self.written += count,
                Err(error) => return Poll::Ready(Err(broken_by(error))),
            }
        }
        self.output.clear();
        self.written = 0;
        self.socket.poll_flush(cx).map_err(broken_by)
    }

    /// Sends queued requests and returns the next reply. May be dropped at any time.
    pub(super) async fn next(&mut self) -> Result<Value, Fault> {
        poll_fn(|cx| {
            loop {
                if let Some(reply) = self.parse()? {
                    return Poll::Ready(Ok(reply));
                }
                let sending = self.poll_send(cx);
                // A server that rejects a connection may answer and close before it reads.
                match self.poll_fill(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault)),
                    Poll::Pending => {
                        if let Poll::Ready(Err(fault)) = sending {
                            return Poll::Ready(Err(fault));
                        }
                        return Poll::Pending;
                    }
                }
            }
        })
        .await
    }

    /// Sends requests and waits for a reply to each. Push messages are skipped.
    pub(super) async fn exchange(&mut self, commands: &[Command]) -> Result<Vec<Value>, Fault> {
        commands.iter().for_each(|command| self.send(command));
        let mut replies = Vec::with_capacity(commands.len());
        while replies.len() < commands.len() {
            match self.next().await? {
                Value::Push(_) => {}
                reply => replies.push(reply),
            }
        }
        Ok(replies)
    }
}

pub(super) fn broken_by(error: io::Error) -> Fault {
    error_reply::of_connection(error, true)
}
