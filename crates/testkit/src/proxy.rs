//! A TCP proxy that misbehaves on request.
//!
//! The proxy runs on a thread of its own, with its own runtime and clock: it goes on when the test's
//! runtime is blocked, paused in time, or not there at all.
//!
//! All of its state is one [`State`] in a `watch` channel. A control changes it; whoever waits for a
//! condition on it (a held chunk, a connection to be cut, a test) waits with `wait_for`, which looks
//! before it sleeps. So a control takes effect on open connections at once, and no wake-up is missed.
//!
//! Each direction of a connection is a reader and a writer with a queue in between (`lane.rs`): what
//! the client has sent is with the proxy even while it is held, so it can be delivered after the client
//! has gone.

mod connection;
mod lane;
mod matcher;
mod state;
mod watch;

use std::io;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{oneshot, watch as channel};

pub use state::ConnId;
pub use watch::RequestWatch;

use matcher::Matcher;
use state::State;
use watch::Stage;

use crate::port;

/// The state, as the tasks of a proxy share it.
type Shared = Arc<channel::Sender<State>>;

/// What a test waits for comes within this, or the test has failed; the panic says what it was.
const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// A proxy in front of a server on loopback. Controls apply to open and to new connections, at once.
/// On `Drop` every connection is closed.
#[derive(Debug)]
pub struct FaultProxy {
    port: u16,
    state: Shared,
    handle: Handle,
    /// Taken on `Drop`: its end ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy for the server on this port of 127.0.0.1.
    ///
    /// # Panics
    ///
    /// If no socket or thread can be had.
    pub async fn start(upstream_port: u16) -> Self {
        Self::start_blocking(upstream_port)
    }

    /// [`start`](Self::start) for tests without a runtime.
    ///
    /// # Panics
    ///
    /// If no socket or thread can be had.
    pub fn start_blocking(upstream_port: u16) -> Self {
        Self::try_start(upstream_port).expect("a proxy can be started")
    }

    fn try_start(upstream_port: u16) -> io::Result<Self> {
        let listener = port::listen();
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let state = State { upstream_port, ..State::default() };
        let state = Shared::new(channel::Sender::new(state));
        let (stop, stopped) = oneshot::channel();
        let tasks = Tasks { state: state.clone(), listener, stopped };
        let thread = thread::Builder::new().name("fault-proxy".to_owned());
        let thread = Some(thread.spawn(move || tasks.run(runtime))?);
        Ok(Self { port, state, handle, stop: Some(stop), thread })
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Leads new connections to another server: an endpoint that moves. Open connections stay where they
    /// are; [`cut`](Self::cut) afterwards makes their clients follow.
    pub fn redirect(&self, upstream_port: u16) {
        self.change(|state| state.upstream_port = upstream_port);
    }

    /// While on, connections from this address are [black holes](Self::black_hole). When turned off they
    /// are cut, because a stream with a gap must not go on.
    pub(crate) fn separate(&self, source: IpAddr, on: bool) {
        self.change(|state| {
            if on {
                state.separated.insert(source);
            } else if state.separated.remove(&source) {
                let connections = state.connections.values_mut();
                connections.filter(|of| of.source == source).for_each(|of| of.cut = true);
            }
        });
    }

    /// Cuts all open connections: the client sees a reset, bytes on their way are lost.
    ///
    /// The server sees an orderly end, so what was delivered to it before is still executed.
    pub fn cut(&self) {
        self.change(|state| {
            for connection in state.connections.values_mut() {
                connection.cut = true;
            }
        });
    }

    /// While on, new connections are accepted and reset at once: the client sees the reset while it
    /// connects, or at its first read or write.
    pub fn refuse(&self, on: bool) {
        self.change(|state| state.refuse = on);
    }

    /// Delays what arrives from now on, in both directions, in order.
    pub fn delay(&self, delay: Duration) {
        self.change(|state| state.delay = delay);
    }

    /// While on, bytes in both directions are swallowed, and neither side learns that the other has
    /// closed. Connections, new ones too, stay open.
    pub fn black_hole(&self, on: bool) {
        self.change(|state| state.black_hole = on);
    }

    /// While on, requests are delivered and replies swallowed.
    pub fn drop_replies(&self, on: bool) {
        self.change(|state| state.drop_replies = on);
    }

    /// Arms a single fault: the next request that contains `needle` is delivered, its reply is
    /// swallowed, and the connection is cut.
    ///
    /// The client is cut off only after the server has closed its end, having executed everything
    /// that was delivered: whoever sees the cut can rely on the request having had its effect.
    pub fn drop_replies_once_after_request_matching(&self, needle: &[u8]) {
        self.change(|state| state.drop_reply_once = Some(Matcher::new(needle)));
    }

    /// Arms a single fault: before the reply to the next request that contains `needle`, the client
    /// gets `stray`, which answers nothing. From then on every reply is one behind.
    pub fn stray_reply_once_after_request_matching(&self, needle: &[u8], stray: &[u8]) {
        let armed = Some((Matcher::new(needle), stray.to_vec()));
        self.change(|state| state.stray_once = armed);
    }

    /// The open connections in the order of acceptance.
    pub fn connections(&self) -> Vec<ConnId> {
        self.state.borrow().connections.keys().copied().collect()
    }

    /// The open connections on which the client has sent a `SUBSCRIBE` (or `PSUBSCRIBE`, …), in the order
    /// of acceptance.
    pub fn subscribers(&self) -> Vec<ConnId> {
        self.state.borrow().subscribers()
    }

    /// [Cuts](Self::cut) one connection.
    pub fn cut_connection(&self, id: ConnId) {
        self.change(|state| state.with(id, |connection| connection.cut = true));
    }

    /// [Black-holes](Self::black_hole) one connection.
    pub fn black_hole_connection(&self, id: ConnId, on: bool) {
        self.change(|state| state.with(id, |connection| connection.black_hole = on));
    }

    /// While on, what the client sends on one connection is held; when turned off it is delivered, even
    /// if the client has closed its end meanwhile.
    pub fn hold_connection(&self, id: ConnId, on: bool) {
        self.change(|state| state.with(id, |connection| connection.hold_requests = on));
    }

    /// How many connections have been accepted in all, without refused ones.
    pub fn accepted(&self) -> usize {
        self.state.borrow().accepted
    }

    /// How many connections have been [refused](Self::refuse) in all.
    pub fn refused(&self) -> usize {
        self.state.borrow().refused
    }

    /// How many pieces of replies, as they came from the server, have been swallowed in all.
    pub fn swallowed_replies(&self) -> usize {
        self.state.borrow().swallowed_replies
    }

    /// Watches for requests that contain `needle` from now on, also across reads. A request counts
    /// when it *arrives* at the proxy, whether it is then delivered, held or swallowed.
    pub fn expect_request(&self, needle: &[u8]) -> RequestWatch {
        RequestWatch::register(self, Stage::Arrived, needle)
    }

    /// Watches for requests that contain `needle` from now on. A request counts when it has been
    /// *delivered* to the server's socket.
    pub fn expect_delivery(&self, needle: &[u8]) -> RequestWatch {
        RequestWatch::register(self, Stage::Delivered, needle)
    }

    /// Resolves when at least `count` connections have been [accepted](Self::accepted) in all.
    ///
    /// # Panics
    ///
    /// If there are not that many within twenty seconds.
    pub async fn wait_for_connections(&self, count: usize) {
        self.wait_for(format!("{count} connections"), move |state| state.accepted >= count).await;
    }

    /// Resolves when at least `count` connections have been [refused](Self::refused) in all.
    ///
    /// # Panics
    ///
    /// If there are not that many within twenty seconds.
    pub async fn wait_for_refusals(&self, count: usize) {
        self.wait_for(format!("{count} refusals"), move |state| state.refused >= count).await;
    }

    /// Resolves when at least `count` pieces of replies have been
    /// [swallowed](Self::swallowed_replies) in all.
    ///
    /// # Panics
    ///
    /// If there are not that many within twenty seconds.
    pub async fn wait_for_swallowed_replies(&self, count: usize) {
        let enough = move |state: &State| state.swallowed_replies >= count;
        self.wait_for(format!("{count} swallowed replies"), enough).await;
    }

    /// Resolves when an open connection [subscribes](Self::subscribers); the newest such one.
    ///
    /// # Panics
    ///
    /// If there is none within twenty seconds.
    pub async fn wait_for_subscriber(&self) -> ConnId {
        self.wait_for("a subscriber".to_owned(), |state| !state.subscribers().is_empty()).await;
        *self.subscribers().last().expect("the subscriber is still connected")
    }

    /// Resolves when a connection has ended, on both sides.
    ///
    /// # Panics
    ///
    /// If it has not within twenty seconds.
    pub async fn wait_for_end(&self, id: ConnId) {
        let ended = move |state: &State| !state.connections.contains_key(&id);
        self.wait_for(format!("the end of {id:?}"), ended).await;
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }

    async fn wait_for(&self, what: String, condition: impl FnMut(&State) -> bool + Send + 'static) {
        watch::bounded(&self.handle, self.state.clone(), what, condition).await;
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; a second one here would abort the test binary.
            let _ = thread.join();
        }
    }
}

/// What the proxy's thread runs.
struct Tasks {
    state: Shared,
    listener: TcpListener,
    stopped: oneshot::Receiver<()>,
}

impl Tasks {
    /// Until it is stopped; dropping the runtime afterwards closes every connection.
    fn run(self, runtime: Runtime) {
        runtime.block_on(async {
            tokio::select! {
                _ = self.stopped => {}
                () = connection::accept(self.listener, self.state) => {}
            }
        });
    }
}
