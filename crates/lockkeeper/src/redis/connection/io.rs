//! The task of a connection: reads, writes, watches deadlines, reconnects.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::follower::Follower;
use super::handshake;
use super::live::Live;
use super::requests::Misfit;
use super::socket::{Wire, broken_by};
use super::{ConnectionState, LiveConnection, Shared};
use crate::backend::Fault;
use crate::redis::command::Command;
use crate::redis::reply::Word;
use crate::redis::resp::Value;
use crate::redis::server::Server;

/// The number of reads in a row, before other tasks get a turn.
const READS: usize = 16;

/// The time for one turn of the runtime.
const TURN: Duration = Duration::from_millis(1);

/// Opens a connection to the primary of this epoch and puts it into use. Connections that were given up are
/// killed first.
pub(super) async fn connect(shared: &Shared, server: Server, epoch: u64) -> Result<Wire, Fault> {
    let options = &shared.options;
    // Not before: another connection may have left this server meanwhile.
    let given_up = shared.given_up.all();
    let mut wire = handshake::connect(&server, options).await?;
    let introduced = handshake::introduce(&mut wire, &server, options, &given_up).await?;
    if let Some(membership) = &shared.membership {
        handshake::join(&mut wire, membership).await?;
    }
    wire.serve();
    if !introduced.revoked {
        // Permanently: requests lost on an unknown connection may still execute.
        shared.revokes_lost_requests.store(false, Ordering::Relaxed);
    }
    let mut state = shared.lock();
    if state.closed {
        return Err(Fault::Closed);
    }
    if shared.primary.epoch() != epoch {
        return Err(Fault::silent("the primary has changed"));
    }
    let own = introduced.identity;
    shared.given_up.forget(&given_up, own.as_ref());
    state.failed = None;
    state.generation += 1;
    let mut live = Live::new(state.generation, own, wire.socket.direct());
    live.epoch = epoch;
    state.requests.live = Some(live);
    let carrier = LiveConnection { generation: state.generation, run: introduced.run };
    shared.carrier.send_replace(Some(carrier));
    Ok(wire)
}

/// Returns the task, which runs until the connection is closed.
///
/// Not an `async fn`: a runtime may end before it polls the task even once.
pub(super) fn run(
    shared: Arc<Shared>,
    follower: Follower,
    wire: Option<Wire>,
) -> impl Future<Output = ()> + Send + 'static {
    let end_of_task = EndOfTask(Arc::clone(&shared));
    async move {
        let _end_of_task = end_of_task;
        serve(&shared, follower, wire).await;
    }
}

/// Serves on one connection after the other.
async fn serve(shared: &Shared, mut follower: Follower, mut wire: Option<Wire>) {
    let mut alarm = Alarm::new();
    loop {
        if let Some(wire) = wire.take() {
            let generation = shared.lock().generation;
            let mut io = Io::new(shared, wire);
            let fault = poll_fn(|cx| io.poll(cx, &mut alarm)).await;
            drop(io);
            shared.give_up(generation, &fault);
            shared.primary.suspect();
        }
        let connected = tokio::select! {
            biased;
            () = poll_fn(|cx| shared.poll_waiting(cx, &mut alarm)) => return,
            connected = follower.open(|server, epoch| connect(shared, server, epoch)) => connected,
        };
        match connected {
            Ok(connected) => {
                wire = Some(connected);
                let server = shared.primary.address();
                tracing::info!(server, "connected to the store");
                (shared.on_reconnect)();
            }
            Err(fault) => {
                tracing::debug!(%fault, "could not connect");
                shared.refuse(fault);
                shared.primary.suspect();
            }
        }
    }
}

/// When the task ends, also with its runtime, no request will be answered any more.
struct EndOfTask(Arc<Shared>);

impl Drop for EndOfTask {
    fn drop(&mut self) {
        if self.0.origin.is_forked() {
            return;
        }
        self.0.close();
        let generation = self.0.lock().generation;
        // No timer of the runtime fires any more: nothing may be retried.
        self.0.give_up(generation, &Fault::Closed);
    }
}

/// The timer of the task.
struct Alarm(Pin<Box<Sleep>>);

impl Alarm {
    fn new() -> Self {
        Self(Box::pin(sleep_until(Instant::now())))
    }

    /// Returns whether the time has come.
    fn poll(&mut self, cx: &mut Context<'_>, at: Instant) -> bool {
        if self.0.deadline() != at {
            self.0.as_mut().reset(at);
        }
        self.0.as_mut().poll(cx).is_ready()
    }
}

impl Shared {
    /// Records that connecting failed. Waiting requests fail, too, if the server has answered and no
    /// other one is searched, or if waiting does not help.
    fn refuse(&self, fault: Fault) {
        self.membership.iter().for_each(|membership| membership.failed(&fault));
        let mut state = self.lock();
        let is_answer = matches!(fault, Fault::Refused { .. }) && self.primary.is_fixed;
        if is_answer || !fault.may_pass() || self.membership.is_some() {
            state.requests.fail_waiting(&fault);
        }
        state.failed = Some(fault);
        let woken = state.wakers();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Watches the deadlines of waiting requests. Is ready when the connection is closed.
    fn poll_waiting(&self, cx: &mut Context<'_>, alarm: &mut Alarm) -> Poll<()> {
        loop {
            let mut state = self.lock();
            state.listen(cx);
            if state.closed {
                return Poll::Ready(());
            }
            let Some(at) = state.requests.alarm else { return Poll::Pending };
            if !alarm.poll(cx, at) {
                return Poll::Pending;
            }
            self.expire(&mut state);
            let woken = state.wakers();
            drop(state);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Answers requests whose deadlines have passed. Returns whether the connection is broken.
    fn expire(&self, state: &mut ConnectionState) -> bool {
        let not_sent = state.not_sent(&self.primary);
        let now = Instant::now();
        state.requests.expire(now, || not_sent.clone(), || self.no_answer())
    }
}

impl ConnectionState {
    /// Lets callers wake up this task.
    fn listen(&mut self, cx: &mut Context<'_>) {
        self.is_woken = false;
        if !self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            self.task = Some(cx.waker().clone());
        }
    }
}

/// One socket in use.
struct Io<'a> {
    shared: &'a Shared,
    wire: Wire,
    replies: Vec<Value>,
    wakers: Vec<Waker>,
    /// The bytes that are being written, and how many of them are.
    output: Vec<u8>,
    written: usize,
    is_writing: bool,
    /// It has yielded since it last wrote.
    has_yielded: bool,
    /// When to ping if no reply has arrived until then, and the number of replies before.
    ping_at: Instant,
    answered: u64,
    /// A deadline has passed: the requests expire then, if no reply arrives before.
    expire_at: Option<Instant>,
}

impl<'a> Io<'a> {
    fn new(shared: &'a Shared, wire: Wire) -> Self {
        Self {
            shared,
            wire,
            replies: Vec::new(),
            wakers: Vec::new(),
            output: Vec::new(),
            written: 0,
            is_writing: false,
            has_yielded: false,
            ping_at: Instant::now() + shared.options.redis.keep_alive,
            expire_at: None,
            answered: shared.lock().requests.answered,
        }
    }

    /// Is ready with the fault that ends the connection.
    fn poll(&mut self, cx: &mut Context<'_>, alarm: &mut Alarm) -> Poll<Fault> {
        match self.step(cx, alarm) {
            Ok(()) => Poll::Pending,
            Err(fault) => Poll::Ready(fault),
        }
    }

    fn step(&mut self, cx: &mut Context<'_>, alarm: &mut Alarm) -> Result<(), Fault> {
        // Replies first: after a pause of the process they may be there, and deadlines have passed.
        let all_read = self.receive(cx)?;
        let mut state = self.shared.lock();
        state.listen(cx);
        if state.closed && !state.requests.has_callers() {
            return Err(Fault::Closed);
        }
        if state.requests.live.is_none() {
            return Err(Fault::unanswered("the connection was given up"));
        }
        loop {
            let at = state.requests.alarm.map_or(self.ping_at, |alarm| alarm.min(self.ping_at));
            // One that belongs to an earlier deadline does not count.
            self.expire_at = self.expire_at.filter(|expire_at| *expire_at >= at);
            let at = self.expire_at.unwrap_or(at);
            if !alarm.poll(cx, at) {
                break;
            }
            // After a pause of the process, timers fire before the socket is known to be readable:
            // one more turn. A backlog is read first.
            if self.expire_at.take().is_none() || !all_read {
                self.expire_at = Some(Instant::now() + TURN);
                continue;
            }
            if self.shared.expire(&mut state) {
                return Err(self.shared.no_answer());
            }
            self.keep_alive(&mut state);
        }
        std::mem::swap(&mut self.wakers, &mut state.requests.wakers);
        drop(state);
        self.wakers.drain(..).for_each(Waker::wake);
        self.write(cx)
    }

    /// Reads replies and gives them to their callers. Returns whether it has read all of them.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, Fault> {
        for _ in 0..READS {
            // What the handshake left in the buffer, too.
            while let Some(reply) = self.wire.parse()? {
                // No subscription is made here.
                if !matches!(reply, Value::Push(_)) {
                    self.replies.push(reply);
                }
            }
            self.deliver()?;
            match self.wire.poll_fill(cx) {
                Poll::Ready(filled) => filled?,
                Poll::Pending => return Ok(true),
            }
        }
        cx.waker().wake_by_ref();
        Ok(false)
    }

    fn deliver(&mut self) -> Result<(), Fault> {
        if self.replies.is_empty() {
            return Ok(());
        }
        let is_replica = self.replies.iter().any(Value::is_of_replica);
        let mut state = self.shared.lock();
        let epoch = state.requests.live.as_ref().map(|live| live.epoch);
        let delivered = state.requests.deliver(&mut self.replies, || self.shared.in_time());
        std::mem::swap(&mut self.wakers, &mut state.requests.wakers);
        drop(state);
        self.wakers.drain(..).for_each(Waker::wake);
        if let Some(epoch) = epoch.filter(|_| is_replica) {
            self.shared.primary.leave(epoch);
        }
        delivered.map_err(|Misfit| Fault::unanswered("a reply did not fit its request"))
    }

    /// Pings a connection without replies for a while. A connection dropped by a firewall or router
    /// gives no other sign.
    fn keep_alive(&mut self, state: &mut ConnectionState) {
        let now = Instant::now();
        if now < self.ping_at {
            return;
        }
        if state.requests.answered == self.answered && !state.closed {
            let due = now + self.shared.options.response_timeout;
            // An error is an answer; without one the connection is given up.
            state.requests.add(Command::<Word>::plain("PING").raw(), due, false, None);
        }
        self.answered = state.requests.answered;
        self.ping_at = now + self.shared.options.redis.keep_alive;
    }

    /// Writes encoded requests, those that arrive meanwhile included.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        loop {
            if !self.is_writing && !self.take(cx) {
                return Ok(());
            }
            while self.written < self.output.len() {
                match self.wire.socket.poll_write(cx, &self.output[self.written..]) {
                    Poll::Ready(Ok(0)) => {
                        return Err(broken_by(std::io::ErrorKind::WriteZero.into()));
                    }
                    Poll::Ready(Ok(count)) => self.written += count,
                    Poll::Ready(Err(error)) => return Err(broken_by(error)),
                    Poll::Pending => return Ok(()),
                }
            }
            match self.wire.socket.poll_flush(cx) {
                Poll::Ready(flushed) => flushed.map_err(broken_by)?,
                Poll::Pending => return Ok(()),
            }
            self.is_writing = false;
            let output = std::mem::take(&mut self.output);
            if let Some(live) = &mut self.shared.lock().requests.live {
                live.written(output);
            }
        }
    }

    /// Takes bytes to write. Yields once before that, so that more requests can arrive.
    fn take(&mut self, cx: &mut Context<'_>) -> bool {
        let mut state = self.shared.lock();
        if state.requests.has_waiting() {
            state.requests.encode_waiting(self.shared.in_time());
        }
        let Some(live) = &mut state.requests.live else { return false };
        if let Some((rest, written)) = live.rest.take() {
            (self.output, self.written) = (rest, written);
        } else if live.writing || !live.has_output() {
            return false;
        } else if !self.has_yielded && live.in_flight() > 1 {
            self.has_yielded = true;
            cx.waker().wake_by_ref();
            return false;
        } else {
            (self.output, self.written) = (live.take(), 0);
        }
        self.has_yielded = false;
        self.is_writing = true;
        true
    }
}
