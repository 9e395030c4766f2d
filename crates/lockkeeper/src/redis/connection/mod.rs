//! The connection to one server: requests of all tasks of a client over one socket.
//!
//! - **One task** ([`io`]) owns the socket, reads replies, watches deadlines and reconnects. A reply goes
//!   straight to its caller: one wake-up, no task in between.
//! - **One write for many requests.** A caller encodes its request into the shared write buffer. A lone
//!   caller writes it itself, which saves a task switch. With more of them the task writes, after it has
//!   yielded once so that more requests can arrive; but the caller that completes a quarter of all
//!   requests in flight writes that quarter. A write of all of them would leave client and server idle
//!   in turn.
//! - **Deadlines.** Every request has one, counted from its first poll, also while there is no
//!   connection. One timer serves all of them.
//! - **Revoked connections.** A request that got no answer may still execute, seconds later. So its
//!   connection is given up: reset on this side, and killed on the server (`CLIENT KILL` by id and
//!   address) before the next connection to that server sends a request. Servers are distinguished by their
//!   run ids: what was sent to another one cannot execute on this one, and is killed when the client meets
//!   that one again. Without a run id, a connection over TCP is killed in any case; on a Unix socket all
//!   connections have one address, and a kill could hit another client. Where the user lacks the permission,
//!   [`Connection::revokes_lost_requests`] is false, and the engine repeats its undo until the lost request's lease
//!   would have expired.
//! - **What was not sent** waits for the next connection, in order, until its deadline or until its caller
//!   withdraws it. What may have been sent is never repeated here, except for a script that the server does
//!   not know.
//! - **Back-pressure.** A server that stops reading fills at most [`live::OUT_MAX`] bytes; further
//!   requests stay with their callers, until their deadlines.
//! - **The primary.** A connection goes to the current primary and is given up when that changes, or when
//!   the server says that it is a replica. A server that says so at once is not used at all. [`follower`]
//!   says how it gets there.
//! - **Forms.** A reply that does not fit its request belongs to another one, and so does one without a
//!   request. Then no reply of that connection is trusted any more.
//! - **Keep-alive.** An idle connection is pinged, so that one that was dropped silently is replaced
//!   before the next request.
//!
//! No driver is used: it does not report what was sent from what was not, nor bound
//! its buffers in bytes, and leaves it to chance how many requests share a write.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::try_join_all;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::command::Command;
use super::member::Membership;
use super::primary::Primary;
use super::reply::{self, Reply};
use crate::backend::Fault;
use crate::fork::Origin;
use crate::options::ClientOptions;
use crate::redis::locked;
use follower::Follower;
use given_up::GivenUp;
use requests::{Outcome, Requests};

pub(super) mod asker;
pub(super) mod committer;
pub(super) mod follower;
pub(super) mod given_up;
mod handshake;
mod io;
mod live;
mod requests;
mod socket;
pub(super) mod subscriber;

/// Up to this many requests in flight, a caller writes its own.
const DIRECT: usize = 1;

/// The share of the requests in flight that a caller writes at once: a quarter. Then about four
/// batches are on their way, and neither client nor server waits for the other.
const SHARE: usize = 4;

/// The least number of requests that a caller writes when others are in flight. With few tasks the server
/// starts early on small batches: 8 tasks do a third more pairs than with batches of at least four.
const SHARE_MIN: usize = 2;

pub(super) struct Connection {
    shared: Arc<Shared>,
    /// Aborted when dropped.
    _task: JoinSet<()>,
}

/// The connection that carries requests, and the run id of its server.
#[derive(Clone, Debug, PartialEq)]
struct LiveConnection {
    generation: u64,
    run: Option<String>,
}

/// What callers and the task share.
struct Shared {
    primary: Arc<Primary>,
    options: ClientOptions,
    origin: Origin,
    state: Mutex<ConnectionState>,
    /// Changes with the connection in use, while `state` is locked.
    carrier: watch::Sender<Option<LiveConnection>>,
    revokes_lost_requests: AtomicBool,
    given_up: GivenUp,
    /// Of a member of a quorum, which joins before it is used.
    membership: Option<Arc<Membership>>,
    on_reconnect: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct ConnectionState {
    requests: Requests,
    /// The number of connections so far.
    generation: u64,
    /// Why the last attempt to connect failed.
    failed: Option<Fault>,
    closed: bool,
    /// Wakes up the task.
    task: Option<Waker>,
    /// The task has been woken up and has not looked yet.
    is_woken: bool,
}

impl Connection {
    /// Connects, so that a wrong setting is reported at once; later, reconnects. A server that is not
    /// ready, or a replica that may be about to become the primary, is waited for.
    pub(super) async fn open(
        primary: &Arc<Primary>,
        options: &ClientOptions,
        on_reconnect: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, Fault> {
        let shared = Shared::new(primary, options, GivenUp::default(), None, on_reconnect);
        let mut follower = Follower::new(primary, options);
        let until = Instant::now() + options.connect_timeout;
        let wire = loop {
            let opening = follower.open(|server, epoch| io::connect(&shared, server, epoch));
            match handshake::within(options.connect_timeout, opening).await {
                Err(Fault::Refused { .. }) if Instant::now() < until => {}
                opened => break opened?,
            }
        };
        Ok(Self::serve(shared, follower, Some(wire)))
    }

    /// Connects in the background. Requests wait until then, at most until their deadlines. `given_up` is
    /// that of all connections which may lead to the same server at another time. While a member of a quorum is
    /// down, requests to it fail at once.
    pub(super) fn later(
        primary: &Arc<Primary>,
        options: &ClientOptions,
        given_up: &GivenUp,
        membership: Option<Arc<Membership>>,
        on_connect: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let shared = Shared::new(primary, options, given_up.clone(), membership, on_connect);
        Self::serve(shared, Follower::new(primary, options), None)
    }

    fn serve(shared: Arc<Shared>, follower: Follower, wire: Option<socket::Wire>) -> Self {
        let mut task = JoinSet::new();
        task.spawn(io::run(Arc::clone(&shared), follower, wire));
        Self { shared, _task: task }
    }

    /// Sends a request and waits for its final outcome, until its deadline.
    pub(super) fn call<T: Reply>(
        &self,
        command: Command<T>,
    ) -> impl Future<Output = Result<T, Fault>> {
        self.request(command.raw(), None).map(|outcome| outcome.and_then(reply::taken))
    }

    /// Sends many requests and returns one answer for each; an error if the connection failed.
    pub(super) async fn read<T: Reply>(
        &self,
        reads: Vec<Command<T>>,
    ) -> Result<Vec<Result<T, Fault>>, Fault> {
        // All are sent before the first answer is waited for.
        let replies = try_join_all(reads.into_iter().map(|read| self.request(read.raw(), None)));
        Ok(replies.await?.into_iter().map(reply::taken).collect())
    }

    /// Sends a request and waits until `due` for the reply; an error reply of the server is a value.
    pub(super) fn outcome(&self, command: Command, due: Instant) -> impl Future<Output = Outcome> {
        self.request(command, Some(due))
    }

    /// The same, but a request that has not been sent when `withdrawn` is ready is never sent. Then there is
    /// no outcome.
    pub(super) async fn outcome_unless(
        &self,
        command: Command,
        due: Instant,
        withdrawn: impl Future<Output = ()>,
    ) -> Option<Outcome> {
        let mut request = self.request(command, Some(due));
        tokio::select! {
            biased;
            outcome = &mut request => return Some(outcome),
            () = withdrawn => {}
        }
        match request.withdraw() {
            true => None,
            false => Some(request.await),
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.shared.lock().requests.live.is_some()
    }

    /// Why there is no connection, if there is none.
    pub(super) fn why_not_live(&self) -> Option<Fault> {
        let state = self.shared.lock();
        let is_live = state.requests.live.is_some();
        (!is_live).then(|| state.not_sent(&self.shared.primary))
    }

    /// The deadline of a request that is handed in now.
    pub(super) fn due(&self) -> Instant {
        Instant::now() + self.shared.options.response_timeout
    }

    fn request(&self, command: Command, due: Option<Instant>) -> InFlight<'_> {
        InFlight { shared: &self.shared, progress: CallProgress::New(command), due }
    }

    pub(super) fn cannot_revoke(&self) {
        self.shared.revokes_lost_requests.store(false, Ordering::Relaxed);
    }

    /// Whether a request without an answer can no longer execute once a later request was answered.
    pub(super) fn revokes_lost_requests(&self) -> bool {
        self.shared.revokes_lost_requests.load(Ordering::Relaxed)
    }

    pub(super) fn server(&self) -> Option<String> {
        self.shared.lock().requests.live.as_ref()?.identity.as_ref()?.server.clone()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    fn carriers(&self) -> watch::Receiver<Option<LiveConnection>> {
        self.shared.carrier.subscribe()
    }

    /// Fails requests that are not sent, and closes the connection once the others are answered.
    pub(super) fn close(&self) {
        self.shared.close();
    }
}

/// A request, from its first poll on. Dropped, it leaves its reply to the connection.
struct InFlight<'a> {
    shared: &'a Shared,
    progress: CallProgress,
    due: Option<Instant>,
}

enum CallProgress {
    New(Command),
    /// In this slot.
    Sent(usize),
    Done,
}

impl InFlight<'_> {
    /// Returns whether it was not sent, and never will be.
    fn withdraw(&mut self) -> bool {
        match self.progress {
            CallProgress::New(_) => true,
            CallProgress::Sent(slot) if self.shared.lock().requests.withdraw(slot) => {
                self.progress = CallProgress::Done;
                true
            }
            CallProgress::Sent(_) | CallProgress::Done => false,
        }
    }
}

impl Future for InFlight<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        if let CallProgress::Sent(slot) = self.progress {
            let outcome = self.shared.lock().requests.outcome(slot, cx.waker());
            let Some(outcome) = outcome else { return Poll::Pending };
            self.progress = CallProgress::Done;
            return Poll::Ready(outcome);
        }
        let progress = std::mem::replace(&mut self.progress, CallProgress::Done);
        let CallProgress::New(command) = progress else { return Poll::Ready(Err(Fault::Closed)) };
        self.progress = CallProgress::Sent(self.shared.send(command, self.due, cx.waker())?);
        Poll::Pending
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let CallProgress::Sent(slot) = self.progress {
            self.shared.abandon(slot);
        }
    }
}

impl Shared {
    fn new(
        primary: &Arc<Primary>,
        options: &ClientOptions,
        given_up: GivenUp,
        membership: Option<Arc<Membership>>,
        on_reconnect: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Self> {
        let shared = Arc::new(Self {
            primary: Arc::clone(primary),
            options: options.clone(),
            origin: Origin::here(),
            state: Mutex::default(),
            carrier: watch::Sender::default(),
            revokes_lost_requests: AtomicBool::new(true),
            given_up,
            membership,
            on_reconnect: Box::new(on_reconnect),
        });
        let left = Arc::downgrade(&shared);
        primary.on_leave(move || left.upgrade().iter().for_each(|shared| shared.leave()));
        shared
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        locked(&self.state)
    }

    fn abandon(&self, slot: usize) {
        // A forked child must not touch the state of its parent, which another thread may have locked.
        if !self.origin.is_forked() {
            self.lock().requests.abandon(slot);
        }
    }

    /// Hands in a request. Returns its slot.
    fn send(&self, command: Command, due: Option<Instant>, waker: &Waker) -> Result<usize, Fault> {
        if self.origin.is_forked() {
            return Err(Fault::Closed);
        }
        let late = due.is_some_and(|due| due < self.in_time());
        let due = due.unwrap_or_else(|| Instant::now() + self.options.response_timeout);
        let mut state = self.lock();
        if state.closed {
            return Err(Fault::Closed);
        }
        let is_final = |fault: &&Fault| !fault.may_pass() || self.membership.is_some();
        if let Some(fault) = state.failed.as_ref().filter(is_final) {
            return Err(fault.clone());
        }
        let alarm = state.requests.alarm;
        let slot = state.requests.add(command, due, late, Some(waker.clone()));
        let must_look = state.requests.alarm != alarm;
        let writes = state.requests.live.as_ref().is_some_and(|live| {
            let share = live.in_flight().div_ceil(SHARE).max(SHARE_MIN);
            live.direct.is_some()
                && !live.writing
                && (live.in_flight() <= DIRECT || live.fresh >= share)
        });
        if writes {
            state = self.write(state);
        }
        let has_work = state.requests.live.as_ref().is_some_and(live::Live::has_output);
        let woken = if has_work || must_look { state.wake_task() } else { None };
        drop(state);
        woken.inspect(Waker::wake_by_ref);
        Ok(slot)
    }

    /// Writes all encoded requests from the thread of a caller. What the socket does not accept is left
    /// to the task.
    fn write<'a>(
        &'a self,
        mut state: MutexGuard<'a, ConnectionState>,
    ) -> MutexGuard<'a, ConnectionState> {
        let Some(live) = &mut state.requests.live else { return state };
        let Some(direct) = live.direct.clone() else { return state };
        let generation = live.generation;
        let bytes = live.take();
        drop(state);
        // An error is the task's: it meets the same one.
        let written = direct.try_write(&bytes).unwrap_or(0);
        drop(direct);
        let mut state = self.lock();
        let live = state.requests.live.as_mut().filter(|live| live.generation == generation);
        if let Some(live) = live {
            if written == bytes.len() {
                live.written(bytes);
            } else {
                live.rest = Some((bytes, written));
            }
        }
        state
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.requests.fail_waiting(&Fault::Closed);
        let task = state.wake_task();
        let woken = state.wakers();
        drop(state);
        task.into_iter().chain(woken).for_each(Waker::wake);
    }

    /// Gives up a connection. It will be killed on the server before the next one is used.
    fn give_up(&self, generation: u64, fault: &Fault) {
        let mut state = self.lock();
        let Some(live) = state.requests.give_up(generation, fault) else { return };
        self.carrier.send_replace(None);
        self.membership.iter().for_each(|membership| membership.left(fault));
        match &live.identity {
            Some(identity) => self.given_up.add(identity),
            None => self.revokes_lost_requests.store(false, Ordering::Relaxed),
        }
        let closed = state.closed;
        if closed {
            state.requests.fail_waiting(&Fault::Closed);
        }
        let woken = state.wakers();
        drop(state);
        // The socket is closed before callers learn of the fault, even if one of them is about to
        // write to it.
        if let Some(direct) = live.direct.as_ref().filter(|_| !self.origin.is_forked()) {
            direct.shut_down();
        }
        drop(live);
        if !closed {
            tracing::warn!(%fault, "connection to the store given up");
        }
        woken.into_iter().for_each(Waker::wake);
    }

    /// The server is no primary any more. What it has answered does not count, even if the answer has
    /// arrived and only its caller has not seen it.
    fn leave(&self) {
        if self.origin.is_forked() {
            return;
        }
        let fault = Fault::unanswered("the primary has changed");
        let mut state = self.lock();
        state.requests.void(&fault);
        let generation = state.generation;
        let task = state.wake_task();
        drop(state);
        self.give_up(generation, &fault);
        task.inspect(Waker::wake_by_ref);
    }

    /// Returns the deadline of a request that is sent now without an earlier delay.
    fn in_time(&self) -> Instant {
        Instant::now() + self.options.response_timeout / 8 * 7
    }

    fn no_answer(&self) -> Fault {
        let timeout = self.options.response_timeout;
        Fault::unanswered(format!("no answer within {timeout:?}"))
    }
}

impl ConnectionState {
    /// Returns the waker of the task, if it has to be woken up.
    fn wake_task(&mut self) -> Option<Waker> {
        if self.is_woken {
            return None;
        }
        self.is_woken = true;
        self.task.clone()
    }

    fn wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.requests.wakers)
    }

    /// Says why a request was not sent.
    fn not_sent(&self, primary: &Primary) -> Fault {
        let address = primary.address().unwrap_or_else(|| "a primary".to_owned());
        let detail = match (&self.failed, &self.requests.live) {
            (Some(Fault::Unreachable { detail, .. }), None) => {
                format!("no connection to {address}: {detail}")
            }
            // The server has answered: it is there.
            (Some(Fault::Refused { detail }), None) => {
                return Fault::refused(format!("no connection: {detail}"));
            }
            (_, None) => format!("no connection to {address}"),
            (_, Some(_)) => format!("{address} does not read requests"),
        };
        Fault::silent(detail)
    }
}
