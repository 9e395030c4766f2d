//! Acknowledged writes: waits until replicas have what the primary has answered.
//!
//! A connection of its own runs one round at a time, for all requests that were answered before the
//! round began: a write, and `WAIT`, which waits for the last write of its own connection, and so for
//! everything before it. Without the write it may answer at once, with a number that means nothing. The
//! write renews a key that exists, which works at the limit of memory, too.
//!
//! A round proves something only about the server that it runs on. So a request takes a [`Ticket`]
//! before it is sent: this connection is there by then, to the same run of the same server as the one
//! that carries the request. A server that was restarted meanwhile, or another one behind the same
//! address, acknowledges nothing that it never had.
//!
//! Where acknowledgement was not asked for, it depends on what there is: a primary without a replica
//! waits for none, and so does one that cannot. A replica counts from its first synchronisation on, before it
//! has anything. A primary that has just lost its last replica still needs one, also on a new connection: the
//! replica may have been promoted. Writes without acknowledgement are warned of, once until one has it again.

use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::follower::Follower;
use super::handshake;
use super::socket::Wire;
use super::{Connection, LiveConnection};
use crate::backend::{Detail, Fault};
use crate::options::ClientOptions;
use crate::redis::command::Command;
use crate::redis::locked;
use crate::redis::primary::{Primary, PrimaryView};
use crate::redis::resp::Value;
use crate::redis::role::Role;
use crate::redis::server::Server;

/// How long the written key exists after a round: longer than the time between two, by default.
const KEPT: &str = "60000";

/// How long a primary that has lost its last replica still needs one.
const GRACE: Duration = Duration::from_secs(3);

/// Returns the key to write, or another one if it was rejected so many times; `None` if there is none.
pub(crate) type Key = Box<dyn Fn(usize) -> Option<Vec<u8>> + Send + Sync>;

/// How many keys one round tries: in a cluster the slot of a key may just be moving.
const KEYS: usize = 8;

/// How many replicas must have a write, and how long they may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckTerms {
    pub(crate) replicas: u32,
    pub(crate) timeout: Duration,
    /// Whether it was asked for.
    pub(crate) is_strict: bool,
}

pub(crate) struct Committer {
    shared: Arc<Shared>,
    joins: mpsc::UnboundedSender<Join>,
    state: watch::Receiver<CommitterState>,
    /// Aborted when dropped.
    task: Mutex<JoinSet<()>>,
}

struct Shared {
    primary: Arc<Primary>,
    options: ClientOptions,
    terms: AckTerms,
    key: Key,
    /// The connection is to another server than the requests: look again.
    stale: Notify,
}

#[derive(Clone, Debug, PartialEq)]
enum CommitterState {
    Connecting,
    /// With the number of the connection, and the run id of its server.
    Ready(u64, Option<String>),
    /// The server of this epoch or the user cannot do it now.
    Refused(u64, Fault),
}

/// What a request needs to be acknowledged: taken before it is sent.
pub(crate) struct Ticket {
    state: CommitterState,
    carrier: LiveConnection,
}

/// Gets the answer to a round.
struct Join {
    answer: oneshot::Sender<Result<(), Fault>>,
    /// A key that the server accepts if it is asked to, where it has no slot of its own yet.
    asked: Option<Vec<u8>>,
}

fn unacknowledged(detail: impl Into<Detail>) -> Fault {
    Fault::Unacknowledged { detail: detail.into() }
}

impl Committer {
    /// Connects in the background.
    pub(crate) fn later(
        primary: &Arc<Primary>,
        options: &ClientOptions,
        terms: AckTerms,
        key: Key,
    ) -> Self {
        let (primary, options) = (Arc::clone(primary), options.clone());
        let shared = Arc::new(Shared { primary, options, terms, key, stale: Notify::new() });
        let (joins, inbox) = mpsc::unbounded_channel();
        let (sender, state) = watch::channel(CommitterState::Connecting);
        let mut task = JoinSet::new();
        // One that never had a replica does not wait.
        let rounds =
            Rounds { shared: Arc::clone(&shared), alone: Some(Instant::now()), warned: false };
        task.spawn(rounds.run(inbox, sender));
        Self { shared, joins, state, task: Mutex::new(task) }
    }

    /// Fails if acknowledgement was asked for, and the server says that it cannot.
    pub(crate) async fn ensure(&self) -> Result<(), Fault> {
        match self.shared.terms.is_strict {
            true => self.refused().await.map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    /// Which replicas must acknowledge; `None` if the server cannot.
    pub(crate) async fn terms(&self) -> Option<AckTerms> {
        let Shared { terms, .. } = *self.shared;
        (terms.is_strict || self.refused().await.is_none()).then_some(terms)
    }

    /// Why the server cannot acknowledge, once that is known.
    async fn refused(&self) -> Option<Fault> {
        let mut state = self.state.clone();
        let known = state.wait_for(|state| *state != CommitterState::Connecting);
        match &*timeout(self.shared.options.connect_timeout, known).await.ok()?.ok()? {
            CommitterState::Refused(_, fault) => Some(fault.clone()),
            _ => None,
        }
    }

    /// Returns a ticket for the request that is sent next, at `due` at the latest; `None` if none is needed.
    pub(crate) async fn ticket(
        &self,
        connection: &Connection,
        due: Instant,
    ) -> Result<Option<Ticket>, Fault> {
        let (mut states, mut carriers) = (self.state.clone(), connection.carriers());
        let waiting = timeout_at(due, async {
            loop {
                let state = states.borrow_and_update().clone();
                let carrier = carriers.borrow_and_update().clone();
                match (&state, carrier) {
                    (CommitterState::Refused(epoch, fault), _)
                        if *epoch == self.shared.primary.epoch() =>
                    {
                        return if self.shared.terms.is_strict {
                            Err(fault.clone())
                        } else {
                            Ok(None)
                        };
                    }
                    (CommitterState::Ready(_, run), Some(carrier)) if *run == carrier.run => {
                        return Ok(Some(Ticket { state, carrier }));
                    }
                    (CommitterState::Ready(..), Some(_)) => self.shared.stale.notify_one(),
                    _ => {}
                }
                let changed = tokio::select! {
                    changed = states.changed() => changed,
                    changed = carriers.changed() => changed,
                };
                changed.map_err(|_| Fault::Closed)?;
            }
        });
        waiting.await.unwrap_or_else(|_| Err(Fault::silent("no connection for acknowledgements")))
    }

    /// Waits until enough replicas have the write of a request that was answered.
    pub(crate) async fn commit(
        &self,
        ticket: Option<Ticket>,
        connection: &Connection,
        asked: Option<Vec<u8>>,
    ) -> Result<(), Fault> {
        let Some(ticket) = ticket else { return Ok(()) };
        if connection.carriers().borrow().as_ref() != Some(&ticket.carrier) {
            return Err(unacknowledged("the connection to the primary was lost meanwhile"));
        }
        let (answer, answered) = oneshot::channel();
        // Fails when the runtime has ended.
        self.joins.send(Join { answer, asked }).map_err(|_| Fault::Closed)?;
        answered.await.map_err(|_| unacknowledged("the primary has changed meanwhile"))??;
        if *self.state.borrow() != ticket.state {
            return Err(unacknowledged("the connection for acknowledgements was lost meanwhile"));
        }
        Ok(())
    }

    pub(crate) fn close(&self) {
        locked(&self.task).abort_all();
    }
}

/// A connection in use.
struct Opened {
    wire: Wire,
    run: Option<String>,
    /// How the server reports the number of its replicas.
    question: fn() -> Command,
}

impl Shared {
    async fn connect(&self, server: Server) -> Result<(Opened, Option<Role>), Fault> {
        let mut wire = handshake::connect(&server, &self.options).await?;
        let run = handshake::introduce(&mut wire, &server, &self.options, &[]).await?.run;
        let denied = |detail: &str| Err(Fault::Denied { detail: detail.into() });
        if run.is_none() && self.terms.is_strict {
            return denied("acknowledgements need the permission to read INFO");
        }
        // `ROLE` does not list replicas in their first synchronisation.
        let questions: [fn() -> Command; 2] = [Role::second_question, Role::question];
        let replies = wire.exchange(&questions.map(|question| question())).await?;
        let [info, role] = [0, 1].map(|n| Role::parse(&replies[n]));
        let question = questions[usize::from(info.is_none())];
        let role = info.or(role);
        if role.is_none() && !self.terms.is_strict {
            return denied("the server does not report whether it has replicas");
        }
        let mut opened = Opened { wire, run, question };
        // Whether the server and the user can do it at all.
        // A node of a cluster that has no slot yet is not tried.
        if let Some(key) = (self.key)(0) {
            for reply in opened.exchange(&[writing(&key)], 0, Duration::from_millis(1)).await? {
                match &reply {
                    // A slot that moves and a server that is full say nothing of the permission. Rounds use other
                    // keys, and renewals go on where nothing can be written.
                    Value::Error(error) if error.is_redirect() || error.code == "OOM" => {}
                    _ => drop(reply.checked()?),
                }
            }
        }
        Ok((opened, role))
    }

    /// Returns a key to write, and whether the server must be asked to accept it.
    fn key(&self, rejected: usize, asked: Option<&[u8]>) -> Option<(Vec<u8>, bool)> {
        let own = (self.key)(rejected).map(|key| (key, false));
        own.or_else(|| Some((asked?.to_vec(), true)))
    }
}

struct Rounds {
    shared: Arc<Shared>,
    /// Set while the primary has no replica: until when it needs one all the same.
    alone: Option<Instant>,
    /// It was warned of writes without acknowledgement, and none has had one since.
    warned: bool,
}

impl Rounds {
    /// Follows the primary, and runs rounds. Ends with the client.
    async fn run(
        mut self,
        mut joins: mpsc::UnboundedReceiver<Join>,
        state: watch::Sender<CommitterState>,
    ) {
        let shared = Arc::clone(&self.shared);
        let mut follower = Follower::new(&shared.primary, &shared.options);
        let (mut number, mut failures) = (0, 0);
        // Waiting requests look only at changes.
        let set = |new: CommitterState| {
            state.send_if_modified(|old| std::mem::replace(old, new.clone()) != new)
        };
        loop {
            let before = follower.tried.server.clone();
            let connected = tokio::select! {
                connected = follower.open(|server, _| shared.connect(server)) => connected,
                // Those that joined while there is no connection.
                () = refuse(&mut joins) => return,
            };
            let PrimaryView { epoch, server, has_replicas } = &follower.tried;
            if !server.iter().zip(&before).any(|(server, before)| server.is_same(before)) {
                // Its replicas may have no link to it yet, as after a failover.
                let grace = if *has_replicas { GRACE } else { Duration::ZERO };
                (self.alone, self.warned) = (Some(Instant::now() + grace), false);
            }
            let connected = connected.and_then(|(opened, role)| self.note(role).map(|_| opened));
            failures = if connected.is_ok() { 0 } else { failures + 1 };
            match connected {
                Ok(mut opened) => {
                    number += 1;
                    set(CommitterState::Ready(number, opened.run.clone()));
                    let broken = tokio::select! {
                        broken = self.serve(&mut opened, &mut joins) => broken,
                        () = follower.changed() => unacknowledged("the primary has changed"),
                        () = shared.stale.notified() => unacknowledged("another server"),
                    };
                    tracing::debug!(fault = %broken, "connection for acknowledgements broken");
                    set(CommitterState::Connecting);
                }
                Err(fault) if fault.may_pass() => {
                    tracing::debug!(%fault, "no connection for acknowledgements");
                    set(CommitterState::Connecting);
                    // Requests wait for this connection, so none of them finds out that the primary has changed.
                    shared.primary.suspect();
                }
                Err(fault) => {
                    self.warn(&fault);
                    set(CommitterState::Refused(*epoch, fault));
                    // It may never pass: less and less often, unless locks wait for it.
                    let pause = match shared.terms.is_strict {
                        true => Duration::ZERO,
                        false => (shared.options.max_backoff * failures)
                            .min(shared.options.redis.keep_alive),
                    };
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = follower.changed() => {}
                        () = refuse(&mut joins) => return,
                    }
                }
            }
        }
    }

    /// Runs rounds until the connection breaks. After a while without any, a round without a caller checks the
    /// connection.
    async fn serve(
        &mut self,
        opened: &mut Opened,
        joins: &mut mpsc::UnboundedReceiver<Join>,
    ) -> Fault {
        loop {
            let mut joined = tokio::select! {
                join = joins.recv() => match join {
                    Some(join) => vec![join],
                    None => return Fault::Closed,
                },
                () = sleep(self.shared.options.redis.keep_alive) => Vec::new(),
                // Nothing is expected between rounds: this is the end of the connection.
                reply = opened.wire.next() => match reply {
                    Ok(Value::Push(_)) => continue,
                    Ok(_) => return unacknowledged("a reply without a request"),
                    Err(fault) => return fault,
                },
            };
            while let Ok(join) = joins.try_recv() {
                joined.push(join);
            }
            let asked = joined.iter().find_map(|join| join.asked.as_deref());
            let round = self.round(opened, asked).await;
            let answer = match &round {
                Ok(answer) => answer.clone(),
                Err(fault @ Fault::Unacknowledged { .. }) => Err(fault.clone()),
                Err(_) => Err(unacknowledged("the connection for acknowledgements broke")),
            };
            for join in joined {
                let _ = join.answer.send(answer.clone());
            }
            if let Err(fault) = round {
                return fault;
            }
        }
    }

    /// Runs one round. Returns the answer for those that joined it; an error breaks the connection.
    async fn round(
        &mut self,
        opened: &mut Opened,
        asked: Option<&[u8]>,
    ) -> Result<Result<(), Fault>, Fault> {
        let shared = Arc::clone(&self.shared);
        let AckTerms { replicas, timeout: span, is_strict } = shared.terms;
        let no_slot = || Ok(Err(unacknowledged("the server has no slot to write to")));
        let Some((mut key, mut asks)) = shared.key(0, asked) else { return no_slot() };
        let (mut write, mut again, mut rejected) = (renewing(&key), true, 0);
        loop {
            let needed = match self.alone {
                Some(until) if !is_strict && Instant::now() >= until => 0,
                _ => replicas,
            };
            let limit = span + shared.options.response_timeout;
            let late = |_| unacknowledged(format!("no answer to WAIT within {limit:?}"));
            let asking = asks.then(|| Command::plain("ASKING"));
            let writes: Vec<_> = asking.into_iter().chain([write]).collect();
            let exchange = opened.exchange(&writes, needed, span);
            let replies = timeout(limit, exchange).await.map_err(late)??;
            let replies = &replies[writes.len() - 1..];
            if replies.iter().any(Value::is_of_replica) {
                shared.primary.suspect();
                return Err(unacknowledged("the server is a replica"));
            }
            // `WAIT` counts a replica in its first synchronisation, which has nothing yet.
            let synced = self.note(replies.last().and_then(Role::parse))?;
            return Ok(match replies {
                [Value::Error(error), ..] if rejected < KEYS && error.is_redirect() => {
                    shared.primary.suspect();
                    rejected += 1;
                    let Some(next) = shared.key(rejected, asked) else { return no_slot() };
                    (key, asks) = next;
                    write = writing(&key);
                    continue;
                }
                [Value::Error(error), ..] | [_, Value::Error(error), ..] => {
                    Err(unacknowledged(error.to_string()))
                }
                // The key has expired, or a replica has come: the round says nothing.
                [Value::Int(0), ..] if again => {
                    (write, again) = (writing(&key), false);
                    continue;
                }
                [_, Value::Int(_), ..] if needed == 0 && self.alone.is_none() => {
                    write = writing(&key);
                    continue;
                }
                [_, Value::Int(count), ..] if (*count).min(synced) >= i64::from(needed) => {
                    match needed {
                        0 => self.warn("the primary has no replica"),
                        _ => self.warned = false,
                    }
                    Ok(())
                }
                [_, Value::Int(count), ..] => {
                    if synced == 0 && self.alone.is_none() {
                        self.warn("locks wait, and holds end, until a replica has synchronised");
                    }
                    let count = count.min(&synced);
                    Err(unacknowledged(format!(
                        "{count} of {needed} replicas have the change after {span:?}"
                    )))
                }
                _ => return Err(unacknowledged("an unexpected answer to WAIT")),
            });
        }
    }

    /// Notes whether there are replicas. Returns how many have data.
    fn note(&mut self, role: Option<Role>) -> Result<i64, Fault> {
        match role {
            Some(Role::Primary { replicas: 0, .. }) => {
                if self.alone.is_none() {
                    self.alone = Some(Instant::now() + GRACE);
                    self.shared.primary.suspect();
                }
                Ok(0)
            }
            Some(Role::Primary { synced, .. }) => {
                self.alone = None;
                Ok(i64::try_from(synced).unwrap_or(i64::MAX))
            }
            Some(Role::Replica(..)) => Err(unacknowledged("the server is a replica")),
            // It does not report them: the count of `WAIT` decides.
            None => Ok(i64::MAX),
        }
    }

    fn warn(&mut self, reason: impl Display) {
        if !std::mem::replace(&mut self.warned, true) {
            let server = self.shared.primary.address();
            tracing::warn!(
                server,
                %reason,
                "writes are not acknowledged by replicas: a failover may lose locks"
            );
        }
    }
}

impl Opened {
    /// Writes, waits for replicas, and asks how many there are.
    async fn exchange(
        &mut self,
        writes: &[Command],
        replicas: u32,
        span: Duration,
    ) -> Result<Vec<Value>, Fault> {
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1);
        let wait = Command::plain("WAIT").arg(replicas).arg(millis);
        let commands: Vec<_> = writes.iter().cloned().chain([wait, (self.question)()]).collect();
        self.wire.exchange(&commands).await
    }
}

fn writing(key: &[u8]) -> Command {
    Command::plain("SET").arg(key).arg("1").arg("PX").arg(KEPT)
}

fn renewing(key: &[u8]) -> Command {
    Command::plain("PEXPIRE").arg(key).arg(KEPT)
}

/// Answers those that cannot be served. Ends with the client.
async fn refuse(joins: &mut mpsc::UnboundedReceiver<Join>) {
    while let Some(join) = joins.recv().await {
        let fault = unacknowledged("there is no connection for acknowledgements");
        let _ = join.answer.send(Err(fault));
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use testkit::Replicated;

    use super::*;
    use crate::redis::connection::given_up::GivenUp;
    use crate::redis::url;

    #[tokio::test]
    async fn a_replica_in_the_place_of_the_primary_is_suspected_at_each_attempt() {
        let servers = Replicated::start();
        let options = ClientOptions::new();
        let suspected = Arc::new(Notify::new());
        let primary = Primary::suspected_by(Arc::clone(&suspected));
        primary.lead_to(&url::server(&servers.replicas()[0].url(), &options).unwrap(), false);
        let terms = AckTerms { replicas: 1, timeout: Duration::from_secs(1), is_strict: false };
        let key = Box::new(|_| Some(b"key".to_vec()));
        let _committer = Committer::later(&primary, &options, terms, key);
        for _ in 0..3 {
            let again = timeout(Duration::from_secs(10), suspected.notified());
            again.await.expect("the primary is looked for");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_for_a_primary_does_not_poll() {
        let (options, primary) = (ClientOptions::new(), Primary::unknown());
        let terms = AckTerms { replicas: 1, timeout: Duration::from_secs(1), is_strict: false };
        let committer = Committer::later(&primary, &options, terms, Box::new(|_| None));
        let connection = Connection::later(&primary, &options, &GivenUp::default(), None, || {});
        let due = Instant::now() + Duration::from_secs(3);
        let mut waiting = pin!(committer.ticket(&connection, due));
        let mut polls = 0;
        let ticket = poll_fn(|cx| {
            polls += 1;
            waiting.as_mut().poll(cx)
        });
        assert!(ticket.await.is_err());
        assert_eq!(polls, 2, "at first, and when it is due");
    }
}
