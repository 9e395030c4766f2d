//! The connection that carries requests, and what the driver leaves to its user.
//!
//! - **Waves.** Requests of many tasks leave in one write: one task collects what is there, yields
//!   once so that more can come, and sends it. Only waiting for the replies is left to other tasks,
//!   so requests reach the server in the order in which they were handed over. While little is
//!   under way a caller sends for itself, which saves a task switch.
//! - **Deadlines.** Every request has one, also while there is no connection at all.
//! - **Fencing.** A request that got no answer may still run, seconds later. So a connection with
//!   such a request is given up: reset on this side, and killed on the server's before anything is
//!   sent on the next one. Where the user may not do that, [`Link::fences`] says so.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, PushInfo, PushKind, ServerErrorKind, Value};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::fault;
use super::script::{Command, Script, in_full};
use crate::backend::Fault;
use crate::backend::wake::{Hub, Topic};
use crate::config::ClientOptions;

/// Up to so many requests under way, a caller sends for itself.
const DIRECT: usize = 8;

/// The most requests in one write.
const WAVE: usize = 256;

/// Below this a write costs more than what it carries.
const WAVE_MIN: usize = 16;

type Answer = Result<Value, Fault>;

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    /// Dropped, it ends them.
    _tasks: JoinSet<()>,
}

struct Shared {
    client: Client,
    pid: u32,
    options: ClientOptions,
    hub: Hub,
    queue: mpsc::UnboundedSender<Call>,
    /// Requests handed over to the wave task and not yet sent.
    queued: AtomicUsize,
    under_way: AtomicUsize,
    state: Mutex<State>,
    /// The state has changed.
    changed: Notify,
    fences: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the client: it knows the password.
        f.debug_struct("Shared").field("server", self.client.get_connection_info().addr()).finish()
    }
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    generation: u64,
    /// Connections that were given up and may still have something to run.
    condemned: Vec<Identity>,
    /// The last connection that ended: it may do so before it is put into service.
    ended: u64,
    /// Why connecting failed in a way that waiting does not cure.
    refused: Option<Fault>,
    closed: bool,
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    identity: Option<Identity>,
    generation: u64,
}

/// How the server knows a connection. Both parts, because a restarted server counts its clients
/// from 1 again.
#[derive(Clone, Debug, PartialEq)]
struct Identity {
    id: String,
    address: String,
    /// The server's own end, which is the same whatever name it was reached by.
    server: Option<String>,
}

struct Call {
    cmd: Cmd,
    script: Option<&'static Script>,
    reply: oneshot::Sender<Answer>,
    /// Stamped when it is taken from the queue: one look at the clock for a whole wave.
    due: Option<Instant>,
}

impl Link {
    /// Connects once, so that a mistake shows at once; after that, again and again.
    pub(super) async fn open(
        client: Client,
        options: &ClientOptions,
        hub: Hub,
    ) -> Result<Self, Fault> {
        let (queue, inbox) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            client,
            pid: std::process::id(),
            options: options.clone(),
            hub,
            queue,
            queued: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Notify::new(),
            fences: AtomicBool::new(true),
        });
        shared.connect().await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(send_waves(Arc::clone(&shared), inbox));
        tasks.spawn(keep_connected(Arc::clone(&shared)));
        Ok(Self { shared, _tasks: tasks })
    }

    /// Sends a request and waits for its final outcome, by its deadline. Must be polled to the end.
    pub(super) fn call(&self, command: Command) -> impl Future<Output = Answer> + Send + 'static {
        let shared = Arc::clone(&self.shared);
        async move { shared.call(command).await }
    }

    /// Sends many reads in one write, beside the waves: what only looks needs no order. One answer for
    /// each.
    pub(super) fn read(
        &self,
        reads: Vec<Cmd>,
    ) -> impl Future<Output = Result<Vec<Answer>, Fault>> + Send + 'static {
        let shared = Arc::clone(&self.shared);
        async move { shared.read(reads).await }
    }

    /// The user turned out not to be allowed to kill connections.
    pub(super) fn never_fences(&self) {
        self.shared.fences.store(false, Ordering::Relaxed);
    }

    /// Whether a request without an answer can no longer run once a later one was answered.
    pub(super) fn fences(&self) -> bool {
        self.shared.fences.load(Ordering::Relaxed)
    }

    /// Where the server says it is; it may not say.
    pub(super) fn server(&self) -> Option<String> {
        self.shared.lock().live.as_ref()?.identity.as_ref()?.server.clone()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    pub(super) fn close(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.live = None;
        drop(state);
        self.shared.changed.notify_waiters();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(&self, command: Command) -> Answer {
        // A fork of the process that connected must not touch its sockets.
        if self.pid != std::process::id() {
            return Err(Fault::Closed);
        }
        let script = command.script();
        let direct = self.queued.load(Ordering::Acquire) == 0
            && self.under_way.load(Ordering::Relaxed) < DIRECT;
        let live = if direct { self.lock().live.clone() } else { None };
        if let Some(live) = live {
            let _under_way = Counted::new(&self.under_way);
            let due = Instant::now() + self.options.response_timeout;
            // Boxed, because every request that queues would carry the room for it.
            return Box::pin(self.call_directly(live, &command.cmd, script, due)).await;
        }
        let (reply, answer) = oneshot::channel();
        self.queued.fetch_add(1, Ordering::AcqRel);
        let call = Call { cmd: command.cmd, script, reply, due: None };
        if self.queue.send(call).is_err() {
            return Err(Fault::Closed);
        }
        answer.await.unwrap_or(Err(Fault::Closed))
    }

    async fn read(&self, reads: Vec<Cmd>) -> Result<Vec<Answer>, Fault> {
        if reads.is_empty() {
            return Ok(Vec::new());
        }
        let mut live = self.lock().live.clone();
        if live.is_none() {
            // What goes the usual way waits for a connection.
            self.call(Command::plain("PING")).await?;
            live = self.lock().live.clone();
        }
        let Some(mut live) = live else {
            let detail = "the connection was lost again".to_owned();
            return Err(Fault::Unreachable { maybe_ran: false, detail });
        };
        let due = Instant::now() + self.options.response_timeout;
        let mut pipeline = redis::Pipeline::with_capacity(reads.len());
        let count = reads.len();
        for read in reads {
            pipeline.add_command(read);
        }
        let sending = live.connection.send_packed_commands(&pipeline, 0, count);
        let answers = self.judge(live.generation, timeout_at(due, sending).await)?;
        if answers.len() < count {
            let detail = "fewer answers than requests".to_owned();
            return Err(Fault::Unreachable { maybe_ran: true, detail });
        }
        Ok(answers.into_iter().map(fault::check).collect())
    }

    async fn call_directly(
        &self,
        mut live: Live,
        cmd: &Cmd,
        script: Option<&'static Script>,
        due: Instant,
    ) -> Answer {
        let answer = self.send_one(&mut live, cmd, due).await;
        match (script, &answer) {
            (Some(script), Ok(value)) if is_unknown_script(value) => {
                self.send_one(&mut live, &in_full(script, cmd), due).await.and_then(fault::check)
            }
            _ => answer.and_then(fault::check),
        }
    }

    async fn send_one(&self, live: &mut Live, cmd: &Cmd, due: Instant) -> Answer {
        let answer = timeout_at(due, live.connection.send_packed_command(cmd)).await;
        self.judge(live.generation, answer)
    }

    /// Gives the connection up if it failed.
    fn judge<T>(
        &self,
        generation: u64,
        answer: Result<Result<T, redis::RedisError>, tokio::time::error::Elapsed>,
    ) -> Result<T, Fault> {
        let fault = match answer {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => fault::of_connection(&error, true),
            Err(_) => {
                let timeout = self.options.response_timeout;
                let detail = format!("no answer within {timeout:?}");
                Fault::Unreachable { maybe_ran: true, detail }
            }
        };
        self.give_up(generation, &fault);
        Err(fault)
    }

    fn give_up(&self, generation: u64, fault: &Fault) {
        let mut state = self.lock();
        if let Some(live) = state.live.take_if(|live| live.generation == generation) {
            tracing::warn!(?fault, "connection to the store given up");
            match live.identity {
                Some(identity) => state.condemned.push(identity),
                None => self.fences.store(false, Ordering::Relaxed),
            }
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// Makes a connection and puts it into service. Whatever was given up before is dead first.
    async fn connect(self: &Arc<Self>) -> Result<(), Fault> {
        let due = Instant::now() + self.options.connect_timeout;
        let (condemned, generation) = {
            let mut state = self.lock();
            state.generation += 1;
            (state.condemned.clone(), state.generation)
        };
        let shared = Arc::downgrade(self);
        let notice_end = move |push: PushInfo| -> Result<(), ()> {
            // Also of an idle connection: nobody should find out by a failed request.
            if push.kind == PushKind::Disconnection
                && let Some(shared) = shared.upgrade()
            {
                let detail = "the connection was closed".to_owned();
                shared.lock().ended = generation;
                shared.give_up(generation, &Fault::Unreachable { maybe_ran: true, detail });
            }
            Ok(())
        };
        let opening = async {
            let config = redis::AsyncConnectionConfig::new()
                .set_connection_timeout(None)
                .set_response_timeout(None)
                .set_push_sender(notice_end);
            let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
            let mut connection =
                connecting.await.map_err(|error| fault::of_connection(&error, false))?;
            let identity = self.introduce(&mut connection, &condemned).await?;
            Ok((connection, identity))
        };
        let Ok(opened) = timeout_at(due, opening).await else {
            let timeout = self.options.connect_timeout;
            let detail = format!("not connected within {timeout:?}");
            return Err(Fault::Unreachable { maybe_ran: false, detail });
        };
        let (connection, identity) = opened?;
        let mut state = self.lock();
        if state.closed {
            return Err(Fault::Closed);
        }
        if state.ended == generation {
            state.condemned.extend(identity);
            let detail = "the connection was closed at once".to_owned();
            return Err(Fault::Unreachable { maybe_ran: false, detail });
        }
        state.condemned.retain(|identity| !condemned.contains(identity));
        state.refused = None;
        state.live = Some(Live { connection, identity, generation });
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Says who we are, learns how the server calls us, and kills what was given up.
    async fn introduce(
        &self,
        connection: &mut MultiplexedConnection,
        condemned: &[Identity],
    ) -> Result<Option<Identity>, Fault> {
        let mut hello = redis::pipe();
        hello.cmd("CLIENT").arg("INFO");
        hello.cmd("CLIENT").arg("SETNAME").arg(self.options.shown_name());
        for Identity { id, address, .. } in condemned {
            hello.cmd("CLIENT").arg("KILL").arg("ID").arg(id).arg("ADDR").arg(address);
        }
        let replies = connection.send_packed_commands(&hello, 0, 2 + condemned.len()).await;
        let mut replies = replies.map_err(|error| fault::of_connection(&error, false))?.into_iter();
        let identity = match replies.next().map(fault::check) {
            Some(Ok(Value::BulkString(info))) => Identity::parse(&info),
            Some(Ok(Value::VerbatimString { text, .. })) => Identity::parse(text.as_bytes()),
            // Without a password where one is needed: better said now than at the first lock.
            Some(Err(Fault::Denied { detail })) if detail.starts_with("NOAUTH") => {
                return Err(Fault::Denied { detail });
            }
            Some(Err(fault)) if fault.may_pass() => return Err(fault),
            _ => None,
        };
        let killed = replies.skip(1).all(|reply| matches!(reply, Value::Int(_) | Value::Okay));
        if identity.is_none() || !killed {
            // For good: what was lost on an unknown connection may still come.
            self.fences.store(false, Ordering::Relaxed);
        }
        Ok(identity)
    }
}

impl Identity {
    /// Out of `id=7 addr=127.0.0.1:51234 …`.
    fn parse(info: &[u8]) -> Option<Self> {
        let info = String::from_utf8_lossy(info);
        let field = |name: &str| {
            info.split_whitespace().find_map(|part| part.strip_prefix(name)).map(str::to_owned)
        };
        Some(Self { id: field("id=")?, address: field("addr=")?, server: field("laddr=") })
    }
}

/// Counts itself for as long as it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_unknown_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

/// Reconnects, with growing jittered pauses, whenever there is no connection.
async fn keep_connected(link: Arc<Shared>) {
    let mut failures = 0;
    let mut since = Instant::now();
    loop {
        let changed = link.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let (closed, live) = {
            let state = link.lock();
            (state.closed, state.live.is_some())
        };
        if closed {
            return;
        }
        if live {
            changed.await;
            continue;
        }
        // Always a pause, so that a fleet does not come back all at once, and a longer one after a
        // connection that did not live long: a server that takes and drops them is down, too.
        failures = if since.elapsed() > link.options.max_backoff { 0 } else { failures + 1 };
        tokio::time::sleep(link.options.backoff(failures)).await;
        match link.connect().await {
            Ok(()) => {
                since = Instant::now();
                tracing::info!("connected to the store again");
                link.hub.wake(&Topic::Reconnected, b"");
            }
            Err(fault) => {
                tracing::debug!(?fault, "could not connect");
                link.refuse(fault);
                since = Instant::now();
            }
        }
    }
}

/// Collects requests into waves. The one task that writes them.
async fn send_waves(link: Arc<Shared>, mut inbox: mpsc::UnboundedReceiver<Call>) {
    let mut wave = Vec::with_capacity(WAVE);
    while inbox.recv_many(&mut wave, 1).await > 0 {
        tokio::task::yield_now().await;
        let size = link.wave_size();
        while wave.len() < size
            && let Ok(call) = inbox.try_recv()
        {
            wave.push(call);
        }
        link.stamp(&mut wave);
        let live = link.connected(&mut wave, &mut inbox).await;
        link.queued.fetch_sub(wave.len(), Ordering::AcqRel);
        match live {
            Ok(live) => {
                // More than a wave only after an outage.
                while wave.len() > WAVE {
                    let rest = wave.split_off(WAVE);
                    hand_over(&link, live.clone(), std::mem::replace(&mut wave, rest));
                }
                hand_over(&link, live, std::mem::take(&mut wave));
            }
            Err(fault) => fail(wave.drain(..), &fault),
        }
        wave.reserve(WAVE);
    }
}

fn fail(calls: impl Iterator<Item = Call>, fault: &Fault) {
    for call in calls {
        let _ = call.reply.send(Err(fault.clone()));
    }
}

impl Shared {
    /// Half of what there is to do: while the server works on one half, the callers of the other get
    /// their answers and send again. One wave of everything would leave each side idle in turn.
    fn wave_size(&self) -> usize {
        let all = self.queued.load(Ordering::Relaxed) + self.under_way.load(Ordering::Relaxed);
        all.div_ceil(2).clamp(WAVE_MIN, WAVE)
    }

    /// Those who wait for a connection need not wait for one that will not come by waiting.
    fn refuse(&self, fault: Fault) {
        self.lock().refused = Some(fault).filter(|fault| !fault.may_pass());
        self.changed.notify_waiters();
    }

    /// The connection, as soon as there is one; meanwhile calls fail as their deadlines pass.
    async fn connected(
        &self,
        wave: &mut Vec<Call>,
        inbox: &mut mpsc::UnboundedReceiver<Call>,
    ) -> Result<Live, Fault> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.lock();
                if state.closed {
                    return Err(Fault::Closed);
                }
                if let Some(fault) = &state.refused {
                    return Err(fault.clone());
                }
                if let Some(live) = &state.live {
                    return Ok(live.clone());
                }
            }
            let Some(first) = wave.iter().filter_map(|call| call.due).min() else {
                // Nobody waits any more.
                return Err(Fault::Closed);
            };
            // Whatever comes meanwhile counts its time from now on, too.
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(first) => self.expire(wave),
                _ = inbox.recv_many(wave, WAVE) => self.stamp(wave),
            }
        }
    }

    /// Sets the deadline of calls that have none yet.
    fn stamp(&self, wave: &mut [Call]) {
        let due = Instant::now() + self.options.response_timeout;
        for call in wave {
            call.due.get_or_insert(due);
        }
    }

    fn expire(&self, wave: &mut Vec<Call>) {
        let now = Instant::now();
        let detail = format!("no connection to {}", self.client.get_connection_info().addr());
        let fault = Fault::Unreachable { maybe_ran: false, detail };
        let overdue = wave.extract_if(.., |call| call.due <= Some(now));
        let overdue: Vec<_> = overdue.collect();
        self.queued.fetch_sub(overdue.len(), Ordering::AcqRel);
        fail(overdue.into_iter(), &fault);
    }
}

/// Hands a wave to the driver, here and now: what is left for a task is to wait for the replies.
fn hand_over(link: &Arc<Shared>, live: Live, wave: Vec<Call>) {
    let mut replies = Box::pin(wait_for_replies(Arc::clone(link), live, wave));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    if replies.as_mut().poll(&mut context).is_pending() {
        tokio::spawn(replies);
    }
}

async fn wait_for_replies(link: Arc<Shared>, mut live: Live, wave: Vec<Call>) {
    link.under_way.fetch_add(wave.len(), Ordering::Relaxed);
    let mut pipeline = redis::Pipeline::with_capacity(wave.len());
    let calls: Vec<_> = wave
        .into_iter()
        .map(|call| {
            pipeline.add_command(call.cmd);
            (call.script, call.reply, call.due)
        })
        .collect();
    let due = Instant::now() + link.options.response_timeout;
    let sending = live.connection.send_packed_commands(&pipeline, 0, calls.len());
    let replies = link.judge(live.generation, timeout_at(due, sending).await);
    link.under_way.fetch_sub(calls.len(), Ordering::Relaxed);
    let mut replies = replies.map(Vec::into_iter);
    for (cmd, (script, reply, due)) in pipeline.cmd_iter().zip(calls) {
        let answer = match &mut replies {
            Ok(values) => match values.next() {
                Some(value) => value,
                None => {
                    // Nil would mean something.
                    let detail = "fewer answers than requests".to_owned();
                    let _ = reply.send(Err(Fault::Unreachable { maybe_ran: true, detail }));
                    continue;
                }
            },
            Err(fault) => {
                let _ = reply.send(Err(fault.clone()));
                continue;
            }
        };
        match script {
            // It did not run: the same call once more, and its caller knows nothing of it.
            Some(script) if is_unknown_script(&answer) => {
                let call = Call { cmd: in_full(script, cmd), script: None, reply, due };
                link.queued.fetch_add(1, Ordering::AcqRel);
                let _ = link.queue.send(call);
            }
            _ => drop(reply.send(fault::check(answer))),
        }
    }
}
