//! The connection that carries requests, and the duties that the driver leaves to its user.
//!
//! - **Waves.** Requests of many tasks leave in one write: see [`waves`]. While few requests are under
//!   way a caller sends its own, which saves a task switch.
//! - **Deadlines.** Every request has one, counted from when it was handed in, also while there is no
//!   connection.
//! - **Revoked connections.** A request that got no answer may still execute, seconds later. So its
//!   connection is given up: reset on this side, and killed on the server (`CLIENT KILL` by id and
//!   address) before the next connection sends a request. On a Unix socket all connections have one
//!   address; there it is killed only if the `run_id` of the server is still the same, because after a
//!   restart the id belongs to another client. Where the user lacks the permission, [`Link::fences`] is
//!   false, and the engine repeats its undo until the lost request's lease would have expired.
//! - **Keep-alive.** An idle connection is pinged, so that one that was dropped silently is replaced
//!   before the next request.
//! - **Shapes.** A reply that does not fit its request belongs to another one. Then no reply of that
//!   connection is trusted any more.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, PushInfo, PushKind, ServerErrorKind, Value};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::fault;
use super::script::{Command, in_full, shape_of};
use super::shape::Shape;
use crate::backend::Fault;
use crate::backend::wake::{Subscriptions, Topic};
use crate::config::ClientOptions;

mod waves;

/// Up to this many pending requests, a caller sends its request itself.
const DIRECT: usize = 8;

type Answer = Result<Value, Fault>;

/// The connection to the server. See the module.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    /// Aborted when dropped.
    _tasks: JoinSet<()>,
}

struct Shared {
    client: Client,
    database: i64,
    pid: u32,
    options: ClientOptions,
    hub: Subscriptions,
    queue: mpsc::UnboundedSender<Call>,
    /// The number of replies so far. It does not change while a connection is idle.
    answered: AtomicU64,
    /// Replies up to this generation of the connection are not trusted.
    garbled: AtomicU64,
    /// Requests given to the wave task and not yet sent.
    queued: AtomicUsize,
    under_way: AtomicUsize,
    state: Mutex<State>,
    /// Notified when the state has changed.
    changed: Notify,
    fences: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the client: it contains the password.
        f.debug_struct("Shared").field("server", self.client.get_connection_info().addr()).finish()
    }
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    generation: u64,
    /// Abandoned connections on which requests may still execute.
    condemned: Vec<Identity>,
    /// The last connection that ended: it may end before it is in use.
    ended: u64,
    /// Why the last attempt to connect failed.
    failed: Option<Fault>,
    closed: bool,
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    identity: Option<Identity>,
    generation: u64,
}

/// Identifies a connection on the server. By id and address, because a restarted server counts
/// client ids from 1 again.
#[derive(Clone, Debug, PartialEq)]
struct Identity {
    id: String,
    address: String,
    /// The server's own address, which does not depend on the name used to connect.
    server: Option<String>,
    /// The run id of the server, if the address does not identify the client and the user may read
    /// it.
    run: Option<String>,
}

struct Call {
    command: Command,
    reply: oneshot::Sender<Answer>,
    due: Instant,
}

impl Link {
    /// Connects once, so that a wrong setting is reported at once; later, reconnects.
    pub(super) async fn open(
        client: Client,
        database: i64,
        options: &ClientOptions,
        hub: Subscriptions,
    ) -> Result<Self, Fault> {
        let (queue, inbox) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            client,
            database,
            pid: std::process::id(),
            options: options.clone(),
            hub,
            queue,
            answered: AtomicU64::new(0),
            garbled: AtomicU64::new(0),
            queued: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Notify::new(),
            fences: AtomicBool::new(true),
        });
        shared.connect().await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(waves::send(Arc::clone(&shared), inbox));
        tasks.spawn(keep_connected(Arc::clone(&shared)));
        Ok(Self { shared, _tasks: tasks })
    }

    /// Sends a request and waits for its final outcome, until its deadline. Must be polled to the
    /// end.
    pub(super) fn call(&self, command: Command) -> impl Future<Output = Answer> + Send + 'static {
        let shared = Arc::clone(&self.shared);
        async move { shared.call(command).await }
    }

    /// Sends many reads in one write, beside the waves, because reads need no order. Returns one
    /// answer for each.
    pub(super) fn read(
        &self,
        reads: Vec<Cmd>,
    ) -> impl Future<Output = Result<Vec<Answer>, Fault>> + Send + 'static {
        let shared = Arc::clone(&self.shared);
        async move { shared.read(reads).await }
    }

    /// Records that the user may not kill connections.
    pub(super) fn never_fences(&self) {
        self.shared.fences.store(false, Ordering::Relaxed);
    }

    /// Whether a request without an answer can no longer execute once a later request was answered.
    pub(super) fn fences(&self) -> bool {
        self.shared.fences.load(Ordering::Relaxed)
    }

    /// Returns the server's own address, if known.
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
        // A forked child must not touch the sockets of its parent.
        if self.pid != std::process::id() {
            return Err(Fault::Closed);
        }
        let due = Instant::now() + self.options.response_timeout;
        let direct = self.queued.load(Ordering::Acquire) == 0
            && self.under_way.load(Ordering::Relaxed) < DIRECT;
        let live = if direct { self.lock().live.clone() } else { None };
        if let Some(live) = live {
            let _under_way = Counted::new(&self.under_way);
            // Boxed to keep the future of a queued request small.
            return Box::pin(self.call_directly(live, &command, due)).await;
        }
        let (reply, answer) = oneshot::channel();
        self.queued.fetch_add(1, Ordering::AcqRel);
        if self.queue.send(Call { command, reply, due }).is_err() {
            return Err(Fault::Closed);
        }
        answer.await.unwrap_or(Err(Fault::Closed))
    }

    async fn read(&self, reads: Vec<Cmd>) -> Result<Vec<Answer>, Fault> {
        if reads.is_empty() {
            return Ok(Vec::new());
        }
        let due = Instant::now() + self.options.response_timeout;
        let mut live = self.lock().live.clone();
        if live.is_none() {
            // A queued request waits for a connection.
            self.call(Command::plain("PING")).await?;
            live = self.lock().live.clone();
        }
        let Some(mut live) = live else {
            let detail = "the connection was lost again".to_owned();
            return Err(Fault::Unreachable { maybe_ran: false, detail });
        };
        let shapes: Vec<_> = reads.iter().map(shape_of).collect();
        let mut pipeline = redis::Pipeline::with_capacity(reads.len());
        for read in reads {
            pipeline.add_command(read);
        }
        let sending = live.connection.send_packed_commands(&pipeline, 0, shapes.len());
        let fit = |replies: &Vec<Value>| Shape::fit(shapes.iter().copied(), replies);
        let replies = self.answer(live.generation, due, sending, fit).await?;
        Ok(replies.into_iter().map(fault::check).collect())
    }

    async fn call_directly(&self, mut live: Live, command: &Command, due: Instant) -> Answer {
        let (cmd, shape) = (&command.cmd, command.shape());
        let answer = self.send_one(&mut live, cmd, shape, due).await?;
        match command.script() {
            Some(script) if is_unknown_script(&answer) => {
                let whole = in_full(script, cmd);
                self.send_one(&mut live, &whole, shape, due).await.and_then(fault::check)
            }
            _ => fault::check(answer),
        }
    }

    async fn send_one(&self, live: &mut Live, cmd: &Cmd, shape: Shape, due: Instant) -> Answer {
        let sending = live.connection.send_packed_command(cmd);
        self.answer(live.generation, due, sending, |reply| shape.fits(reply)).await
    }

    /// Waits for the answer to a request that is sent now. A request that was late already fails at
    /// its deadline, which says nothing about the connection: later requests on it execute after
    /// that one.
    async fn answer<T>(
        &self,
        generation: u64,
        due: Instant,
        sending: impl Future<Output = redis::RedisResult<T>>,
        fits: impl FnOnce(&T) -> bool,
    ) -> Result<T, Fault> {
        let was_late = due < self.in_time();
        let answer = timeout_at(due, sending).await;
        if was_late && answer.is_err() {
            return Err(self.no_answer());
        }
        self.judge(generation, answer, fits)
    }

    /// Returns the deadline of a request that is sent now without an earlier delay.
    fn in_time(&self) -> Instant {
        Instant::now() + self.options.response_timeout / 8 * 7
    }

    fn no_answer(&self) -> Fault {
        let timeout = self.options.response_timeout;
        let detail = format!("no answer within {timeout:?}");
        Fault::Unreachable { maybe_ran: true, detail }
    }

    /// Abandons the connection if it failed, or if an answer does not fit its request. One reply
    /// too many or too few shifts the replies of all later requests, so none of them is trusted any
    /// more.
    fn judge<T>(
        &self,
        generation: u64,
        answer: Result<redis::RedisResult<T>, tokio::time::error::Elapsed>,
        fits: impl FnOnce(&T) -> bool,
    ) -> Result<T, Fault> {
        let fault = match answer {
            Ok(Ok(value)) => {
                if self.garbled.load(Ordering::Acquire) < generation && fits(&value) {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    return Ok(value);
                }
                self.garbled.fetch_max(generation, Ordering::AcqRel);
                let detail = "a reply did not fit its request".to_owned();
                Fault::Unreachable { maybe_ran: true, detail }
            }
            Ok(Err(error)) => fault::of_connection(&error, true),
            Err(_) => self.no_answer(),
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

    /// Opens a connection and puts it into use. Abandoned connections are killed first.
    async fn connect(self: &Arc<Self>) -> Result<(), Fault> {
        let due = Instant::now() + self.options.connect_timeout;
        let (condemned, generation) = {
            let mut state = self.lock();
            state.generation += 1;
            (state.condemned.clone(), state.generation)
        };
        let shared = Arc::downgrade(self);
        let notice_end = move |push: PushInfo| -> Result<(), ()> {
            // Also for an idle connection: it is replaced before a request fails on it.
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
        state.failed = None;
        state.live = Some(Live { connection, identity, generation });
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Identifies the client, reads its identity on the server, and kills abandoned connections.
    async fn introduce(
        &self,
        connection: &mut MultiplexedConnection,
        condemned: &[Identity],
    ) -> Result<Option<Identity>, Fault> {
        let mut hello = redis::pipe();
        hello.cmd("CLIENT").arg("INFO");
        super::say_who(&mut hello, &self.options);
        if self.database != 0 {
            hello.cmd("SELECT").arg(self.database);
        }
        let count = hello.len();
        let replies = connection.send_packed_commands(&hello, 0, count).await;
        let mut replies = replies.map_err(|error| fault::of_connection(&error, false))?.into_iter();
        let mut identity = match replies.next().map(fault::check) {
            Some(Ok(Value::BulkString(info))) => Identity::parse(&info),
            Some(Ok(Value::VerbatimString { text, .. })) => Identity::parse(text.as_bytes()),
            // A missing password is reported when connecting, not at the first lock.
            Some(Err(Fault::Denied { detail })) if detail.starts_with("NOAUTH") => {
                return Err(Fault::Denied { detail });
            }
            Some(Err(fault)) if fault.may_pass() => return Err(fault),
            _ => None,
        };
        // After the three replies that are only for people.
        replies.nth(3).map(fault::check).transpose()?;
        if let Some(identity) = identity.as_mut().filter(|identity| identity.is_shared()) {
            identity.run = self.run(connection).await?;
        }
        if identity.is_none() || !self.kill(connection, identity.as_ref(), condemned).await? {
            // Permanently: requests lost on an unknown connection may still execute.
            self.fences.store(false, Ordering::Relaxed);
        }
        Ok(identity)
    }

    /// Returns the run id of the server; `None` if the user may not read it.
    async fn run(&self, connection: &mut MultiplexedConnection) -> Result<Option<String>, Fault> {
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let reply = connection.send_packed_command(&info).await;
        let text = match reply.map_err(|error| fault::of_connection(&error, false))? {
            Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
            Value::VerbatimString { text, .. } => text,
            _ => return Ok(None),
        };
        let run = text.lines().find_map(|line| line.strip_prefix("run_id:"));
        Ok(run.map(|run| run.trim().to_owned()))
    }

    /// Kills abandoned connections. Returns whether no request can execute on any of them.
    async fn kill(
        &self,
        connection: &mut MultiplexedConnection,
        own: Option<&Identity>,
        condemned: &[Identity],
    ) -> Result<bool, Fault> {
        let fates = || condemned.iter().map(|old| old.fate(own));
        let mut kills = redis::pipe();
        for (old, _) in condemned.iter().zip(fates()).filter(|(_, fate)| *fate == Fate::There) {
            kills.cmd("CLIENT").arg("KILL").arg("ID").arg(&old.id).arg("ADDR").arg(&old.address);
        }
        let known = fates().all(|fate| fate != Fate::Unknown);
        if kills.is_empty() {
            return Ok(known);
        }
        let count = kills.len();
        let replies = connection.send_packed_commands(&kills, 0, count).await;
        let replies = replies.map_err(|error| fault::of_connection(&error, false))?;
        let killed = |reply| matches!(reply, &Value::Int(_) | &Value::Okay);
        Ok(known && replies.iter().all(killed))
    }
}

impl Identity {
    /// Parses `id=7 addr=127.0.0.1:51234 …`.
    fn parse(info: &[u8]) -> Option<Self> {
        let info = String::from_utf8_lossy(info);
        let field = |name: &str| {
            info.split_whitespace().find_map(|part| part.strip_prefix(name)).map(str::to_owned)
        };
        let (id, address) = (field("id=")?, field("addr=")?);
        Some(Self { id, address, server: field("laddr="), run: None })
    }

    /// Whether other clients have the same address, as all clients of a Unix socket do.
    fn is_shared(&self) -> bool {
        self.address.ends_with(":0")
    }

    /// Returns the fate of the connection, as far as the current connection `own` can tell. After a
    /// restart the id belongs to another client. If the address is shared, too, a kill would hit
    /// that client.
    fn fate(&self, own: Option<&Identity>) -> Fate {
        if !self.is_shared() {
            return Fate::There;
        }
        match (&self.run, own.and_then(|own| own.run.as_ref())) {
            (Some(then), Some(now)) if then == now => Fate::There,
            (Some(_), Some(_)) => Fate::Gone,
            _ => Fate::Unknown,
        }
    }
}

/// The state of an abandoned connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// Requests may still execute on it.
    There,
    /// The server was restarted since.
    Gone,
    /// The server does not tell. A kill could hit the connection of another client.
    Unknown,
}

/// Counts itself until it is dropped.
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

/// Reconnects whenever there is no connection, with growing jittered delays.
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
            tokio::select! {
                () = changed => {}
                () = link.keep_alive() => {}
            }
            continue;
        }
        // Always with a delay, so that many clients do not reconnect at once, and with a longer one
        // after a short-lived connection: a server that accepts and drops connections is down, too.
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

impl Shared {
    /// Pings a connection without replies for a while. A connection dropped by a firewall or router
    /// gives no other sign.
    async fn keep_alive(&self) {
        let before = self.answered.load(Ordering::Relaxed);
        tokio::time::sleep(self.options.keep_alive).await;
        let live = self.lock().live.clone();
        if let Some(mut live) = live
            && self.answered.load(Ordering::Relaxed) == before
        {
            let due = Instant::now() + self.options.response_timeout;
            // An error is an answer; without one the connection is abandoned.
            let _ = self.send_one(&mut live, &redis::cmd("PING"), Shape::Status, due).await;
        }
    }
}
