//! The socket of a connection: TCP, TLS or Unix; and the requests and replies that it carries.
//!
//! Readiness is taken from tokio, and the system calls are made by hand: a read that does not fill the
//! buffer has emptied the socket, so that no second call has to find that out.

use std::future::poll_fn;
use std::io;
#[cfg(feature = "tls")]
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::net::sockopt;
use tokio::io::Interest;
#[cfg(feature = "tls")]
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
#[cfg(feature = "tls")]
use tokio::time::timeout;
#[cfg(feature = "tls")]
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::backend::Fault;
use crate::options::ClientOptions;
use crate::redis::command::Command;
use crate::redis::error_reply;
use crate::redis::resp::{HANDSHAKE_MAX, Malformed, Parser, REPLY_MAX, Value};
use crate::redis::server::Address;

/// A socket that only its task uses, apart from [`Direct`] writes.
pub(super) enum Socket {
    Plain(Direct),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<TcpStream>>),
}

/// A socket without state of its own: any thread may write to it.
#[derive(Clone)]
pub(super) enum Direct {
    Tcp(Arc<TcpStream>),
    Unix(Arc<UnixStream>),
}

/// Opens a socket.
pub(super) async fn connect(address: &Address, options: &ClientOptions) -> io::Result<Socket> {
    let user_timeout = options.response_timeout;
    Ok(match address {
        Address::Tcp(host, port, None) => {
            let stream = tcp(host, *port, user_timeout).await?;
            Socket::Plain(Direct::Tcp(Arc::new(stream)))
        }
        #[cfg(not(feature = "tls"))]
        Address::Tcp(.., Some(tls)) => match *tls {},
        Address::Unix(path) => {
            Socket::Plain(Direct::Unix(Arc::new(UnixStream::connect(path).await?)))
        }
        #[cfg(feature = "tls")]
        Address::Tcp(host, port, Some(config)) => {
            let name = rustls::pki_types::ServerName::try_from(host.clone());
            let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let stream = tcp(host, *port, user_timeout).await?;
            let mut connecting = TlsConnector::from(Arc::clone(config)).connect(name, stream);
            // A Redis server without TLS does not answer a handshake.
            let connected = match timeout(options.connect_timeout / 3, &mut connecting).await {
                Ok(connected) => connected,
                Err(_) => tokio::select! {
                    connected = connecting => connected,
                    Ok(()) = answers_in_plain(host, *port) => Err(no_tls()),
                },
            };
            let is_other = |error: &io::Error| {
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
                matches!(inner, Some(rustls::Error::InvalidMessage(_)))
            };
            let connected = connected.map_err(|e| if is_other(&e) { no_tls() } else { e });
            Socket::Tls(Box::new(connected?))
        }
    })
}

#[cfg(feature = "tls")]
fn no_tls() -> io::Error {
    io::Error::other(
        "the server does not speak TLS: write redis instead of rediss in the URL, or use its port for TLS",
    )
}

/// Asks a server without TLS. Fails if the answer is not that of a Redis server.
#[cfg(feature = "tls")]
async fn answers_in_plain(host: &str, port: u16) -> io::Result<()> {
    let mut stream = tcp(host, port, Duration::ZERO).await?;
    stream.write_all(b"PING\r\n").await?;
    match stream.read_u8().await? {
        b'+' | b'-' => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Connects to the first address of the host that accepts.
async fn tcp(host: &str, port: u16, user_timeout: Duration) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    for address in tokio::net::lookup_host((bare, port)).await? {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut refused = io::Error::other("the host name has no address");
    while let Some(attempt) = attempts.join_next().await {
        match attempt.map_err(io::Error::other).and_then(|connected| connected) {
            Ok(stream) => return configured(stream, user_timeout),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn configured(stream: TcpStream, user_timeout: Duration) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    // Reset instead of close: the server must not execute unread requests in its buffer later.
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    #[cfg(any(target_os = "android", target_os = "linux"))]
    {
        let millis = u32::try_from(user_timeout.as_millis()).unwrap_or(u32::MAX);
        // The kernel reads it as a signed number.
        let millis = millis.min(i32::MAX as u32);
        sockopt::set_tcp_user_timeout(&stream, millis)?;
    }
    #[cfg(not(any(target_os = "android", target_os = "linux")))]
    let _ = user_timeout;
    Ok(stream)
}

impl Socket {
    /// Returns a handle for writes by callers, if the socket allows them.
    pub(super) fn direct(&self) -> Option<Direct> {
        match self {
            Socket::Plain(direct) => Some(direct.clone()),
            #[cfg(feature = "tls")]
            Socket::Tls(_) => None,
        }
    }

    /// Appends bytes to `input`, which must have room. Returns how many: none at the end of the
    /// stream.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        match self {
            Socket::Plain(direct) => direct.poll_read(cx, input),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => pin!(stream.read_buf(input)).poll(cx),
        }
    }

    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Socket::Plain(direct) => loop {
                ready!(direct.poll_write_ready(cx))?;
                match direct.try_write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    written => return Poll::Ready(written),
                }
            },
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    #[cfg_attr(not(feature = "tls"), expect(unused_variables))]
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Socket::Plain(_) => Poll::Ready(Ok(())),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }
}

/// Evaluates an expression for the stream of either type.
macro_rules! with {
    ($direct:ident, $stream:ident => $value:expr) => {
        match $direct {
            Direct::Tcp($stream) => $value,
            Direct::Unix($stream) => $value,
        }
    };
}

impl Direct {
    /// Ends the connection, whatever handles to it exist.
    pub(super) fn shut_down(&self) {
        // Fails if the connection has ended already.
        let _ = with!(self, stream => rustix::net::shutdown(stream, rustix::net::Shutdown::Both));
    }

    /// Writes without waiting.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        with!(self, stream => stream.try_write(bytes))
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with!(self, stream => stream.poll_write_ready(cx))
    }

    fn poll_read(&self, cx: &mut Context<'_>, input: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        loop {
            ready!(with!(self, stream => stream.poll_read_ready(cx)))?;
            let (room, mut read) = (input.capacity() - input.len(), None);
            let interest = Interest::READABLE;
            // To say "would block" after a read that did not fill the buffer clears the readiness.
            let outcome = with!(self, stream => {
                stream.try_io(interest, || read_once(stream, input, room, &mut read))
            });
            match (outcome, read) {
                (_, Some(read)) => return Poll::Ready(Ok(read)),
                (Err(error), None) if error.kind() == io::ErrorKind::WouldBlock => {}
                (Err(error), None) => return Poll::Ready(Err(error)),
                (Ok(()), None) => {}
            }
        }
    }
}

fn read_once(
    stream: impl rustix::fd::AsFd,
    input: &mut Vec<u8>,
    room: usize,
    read: &mut Option<usize>,
) -> io::Result<()> {
    let count = rustix::io::retry_on_intr(|| rustix::io::read(&stream, spare_capacity(input)))?;
    *read = Some(count);
    if count > 0 && count < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
}

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
