//! A server as a member of a quorum: its marker, and whether it may grant.
//!
//! A member that lost its data has lost holds, and would grant a lock that another client still holds by
//! a majority with it. So each member has a marker, `lockkeeper_quorum`, with the run id of
//! the server and a nonce. A new marker is written when there is none, or when the run id differs: after a
//! restart, however much of the data came back. From then on the member grants nothing for one longest
//! lease, after which every hold that it may have forgotten has ended or was renewed at the others.
//!
//! - **Join** is the last step of every handshake: a connection of a member is not used before the marker
//!   was read. A client that connects writes none until it has found its list to be right. The script reads the run id itself, so that it is that of the server that runs it.
//! - **An acquire carries the nonce**, and its script compares it first: what was lost while the connection
//!   survived (`FLUSHALL`, an evicted marker, `REPLICAOF` and back) is found by that.
//! - **The marker names the quorum**, its members and its longest lease. A member of another quorum takes no
//!   part, and a client that meets one acquires nothing: half of the clients may know another list.
//! - **A member that is down fails at once.** The others decide, and nothing is gained by waiting for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use super::command::Command;
use super::command::Wakes;
use super::locked;
use super::reply::{Marker, Time};
use super::url::{self, Topology};
use super::{Redis, keys, lock, name, script};
use crate::LockName;
use crate::backend::{Acquire, Answer, Attempt, Fault, Fenced, Kind, Release, Released, Renew};
use crate::model::now_ms;
use crate::options::ClientOptions;

/// How long to wait before the marker is read again if that failed.
const REJOIN: Duration = Duration::from_millis(500);

/// What all members of a quorum have in common.
pub(crate) struct Group {
    /// The addresses of the members, sorted.
    pub(crate) nodes: Vec<String>,
    /// The longest lease in milliseconds.
    pub(crate) lease: u64,
    /// The run ids of the members that are connected.
    runs: Mutex<Vec<Option<String>>>,
    /// A member without a marker gets one. Not before the list was found to be right: a wrong one would
    /// keep the clients with the right one out.
    pub(crate) may_mark: AtomicBool,
    /// Whenever a member joins, or fails to.
    pub(crate) changed: Notify,
}

impl Group {
    pub(crate) fn new(nodes: Vec<String>, lease: u64) -> Arc<Self> {
        let runs = Mutex::new(vec![None; nodes.len()]);
        let may_mark = AtomicBool::new(false);
        Arc::new(Self { nodes, lease, runs, may_mark, changed: Notify::new() })
    }
}

pub(crate) struct Membership {
    pub(crate) group: Arc<Group>,
    pub(crate) index: usize,
    state: Mutex<MemberState>,
}

struct MemberState {
    /// It has joined once.
    has_joined: bool,
    /// Of the marker.
    nonce: Option<String>,
    /// The marker is to be read again.
    is_suspected: bool,
    /// Why it could not be read or written.
    unmarked: Option<Fault>,
    /// Until when it grants nothing.
    trusted_at: Instant,
    /// Why it takes no part.
    refusal: Option<Refusal>,
    /// Why it cannot be reached, and since when.
    down: Option<(Fault, Instant)>,
}

#[derive(Clone, Debug)]
struct Refusal {
    fault: Fault,
    /// It belongs to another quorum. So may other clients: that does not change when it goes down.
    is_lasting: bool,
}

/// Whether a member may be asked for grants.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// No attempt to connect has ended.
    Unknown,
    Trusted,
    /// It may have lost data: not for this long.
    Quarantined(Duration),
    Down(Fault),
    /// It belongs to another quorum, or is another member, too.
    Refused(Fault),
}

impl Membership {
    pub(crate) fn new(group: &Arc<Group>, index: usize) -> Arc<Self> {
        let state = MemberState {
            has_joined: false,
            nonce: None,
            is_suspected: false,
            unmarked: None,
            trusted_at: Instant::now(),
            refusal: None,
            down: None,
        };
        Arc::new(Self { group: Arc::clone(group), index, state: Mutex::new(state) })
    }

    /// As it was configured.
    pub(crate) fn address(&self) -> &str {
        &self.group.nodes[self.index]
    }

    pub(crate) fn trust(&self) -> Trust {
        let state = locked(&self.state);
        let left = state.trusted_at.saturating_duration_since(Instant::now());
        match (&state.refusal, &state.down) {
            (Some(refusal), _) => Trust::Refused(refusal.fault.clone()),
            (None, Some((fault, _))) => Trust::Down(fault.clone()),
            (None, None) if !state.has_joined => Trust::Unknown,
            (None, None) if state.is_suspected || state.nonce.is_none() => match &state.unmarked {
                Some(fault) => Trust::Down(fault.clone()),
                None => Trust::Quarantined(Duration::from_millis(self.group.lease)),
            },
            (None, None) if left.is_zero() => Trust::Trusted,
            (None, None) => Trust::Quarantined(left),
        }
    }

    /// The nonce with which it may be asked for a grant now; a fault if it may not.
    pub(super) fn nonce(&self) -> Result<String, Fault> {
        let state = locked(&self.state);
        let is_trusted =
            state.refusal.is_none() && !state.is_suspected && state.trusted_at <= Instant::now();
        let nonce = state.nonce.clone().filter(|_| is_trusted);
        nonce.ok_or_else(|| Fault::refused("it grants nothing for now"))
    }

    fn lacks_marker(&self) -> bool {
        let state = locked(&self.state);
        state.has_joined && state.nonce.is_none() && state.down.is_none()
    }

    /// It has no marker, and may get one.
    pub(super) fn is_to_mark(&self) -> bool {
        self.lacks_marker() && self.group.may_mark.load(Ordering::Relaxed)
    }

    /// Its marker could not be read or written.
    fn not_marked(&self, fault: Fault) {
        if locked(&self.state).unmarked.replace(fault.clone()).is_none() {
            tracing::warn!(member = self.address(), %fault, "cannot mark a member");
        }
    }

    pub(crate) fn has_marker(&self) -> bool {
        let state = locked(&self.state);
        state.nonce.is_some() && state.down.is_none()
    }

    /// For how long it has been down.
    pub(crate) fn down_for(&self) -> Option<Duration> {
        locked(&self.state).down.as_ref().map(|(_, since)| since.elapsed())
    }

    /// The marker may be another one. Returns whether that is new.
    fn suspect(&self) -> bool {
        !std::mem::replace(&mut locked(&self.state).is_suspected, true)
    }

    /// The request to read the marker, or to write one.
    pub(super) fn question(&self) -> Command<Marker> {
        let nonce = Uuid::new_v4().to_string();
        let call = script::QUORUM_JOIN.call(1).arg(keys::MARKER).arg(&nonce);
        let call = call.arg(self.group.lease).arg(self.group.nodes.join(","));
        call.arg(u8::from(self.group.may_mark.load(Ordering::Relaxed)))
    }

    /// Learns from the marker.
    pub(super) fn joined(&self, marker: Marker) -> Result<(), Fault> {
        let Marker { nonce, run, left, lease, nodes } = marker;
        let result = self.fits(&run, &lease, &nodes);
        let mut state = locked(&self.state);
        state.refusal = result.clone().err();
        if result.is_ok() {
            let trusted_at = Instant::now() + Duration::from_millis(left);
            let nonce = (!nonce.is_empty()).then_some(nonce);
            state.trusted_at = match state.nonce == nonce {
                // The clock of the server may have been set meanwhile.
                true => state.trusted_at.max(trusted_at),
                false => trusted_at,
            };
            (state.nonce, state.is_suspected) = (nonce, false);
            (state.down, state.has_joined) = (None, true);
            state.unmarked = None;
        }
        drop(state);
        if left > 0 && result.is_ok() {
            tracing::info!(member = self.address(), left_ms = left, "the member is quarantined");
        }
        self.group.changed.notify_waiters();
        result.map_err(|refusal| refusal.fault)
    }

    /// Rejects a member of another quorum, and a server that is another member, too.
    fn fits(&self, run: &str, lease: &str, nodes: &str) -> Result<(), Refusal> {
        let ours = self.group.nodes.join(",");
        let refuse = |is_lasting: bool, detail: String| {
            let detail = format!("{}: {detail}", self.address()).into();
            Err(Refusal { fault: Fault::Invalid { detail }, is_lasting })
        };
        if nodes != ours {
            let detail = format!(
                "it is a member of the quorum {nodes}, not of {ours}: write the members as all other \
                 clients do; to change the list, stop all clients and delete {} on all members",
                keys::MARKER
            );
            return refuse(true, detail);
        }
        if lease != self.group.lease.to_string() {
            let ours = self.group.lease;
            let detail = format!(
                "the longest lease of its quorum is {lease} ms, not {ours} ms: set the same for all clients"
            );
            return refuse(true, detail);
        }
        let mut runs = locked(&self.group.runs);
        let mut others = runs.iter().enumerate().filter(|(other, _)| *other != self.index);
        if let Some((other, _)) = others.find(|(_, other)| other.as_deref() == Some(run)) {
            let other = &self.group.nodes[other];
            return refuse(
                false,
                format!("it is the same server as {other}, and would vote twice"),
            );
        }
        runs[self.index] = Some(run.to_owned());
        Ok(())
    }

    /// The connection is gone. Until it is back, the others decide.
    pub(super) fn left(&self, fault: &Fault) {
        locked(&self.group.runs)[self.index] = None;
        locked(&self.state).down = Some((fault.clone().never_ran(), Instant::now()));
    }

    /// It could not be connected to.
    pub(super) fn failed(&self, fault: &Fault) {
        let mut state = locked(&self.state);
        if state.down.is_none() {
            tracing::warn!(member = self.address(), %fault, "cannot connect to a member");
        }
        let since = state.down.as_ref().map_or_else(Instant::now, |(_, since)| *since);
        state.down = Some((fault.clone(), since));
        if fault.may_pass() {
            // It takes no part now, whichever server it was before.
            state.refusal.take_if(|refusal| !refusal.is_lasting);
        }
        drop(state);
        self.group.changed.notify_waiters();
    }
}

/// The fewest members of a quorum: with two, none may fail.
const MEMBERS_MIN: usize = 3;

const MEMBER: &str =
    "each member is one server, redis://host:port, rediss://host:port or redis+unix:///path";

/// Creates the members that these URLs name, in the order of their addresses. They connect in the
/// background.
pub(crate) fn members(urls: &[&str], options: &ClientOptions) -> Result<Vec<Redis>, Fault> {
    let invalid = |detail: String| Err(Fault::invalid(detail));
    let mut servers = Vec::with_capacity(urls.len());
    for (number, url) in (1..).zip(urls) {
        let server = match url::parse(url, options) {
            Ok(Topology::Single(server)) => server,
            Ok(_) => return invalid(format!("member {number} of the quorum: {MEMBER}")),
            Err(Fault::Invalid { detail }) => {
                return invalid(format!("member {number} of the quorum: {detail}; {MEMBER}"));
            }
            Err(fault) => return Err(fault),
        };
        let database = match server.database {
            0 => String::new(),
            database => format!("/{database}"),
        };
        servers.push((format!("{}{database}", server.address), server));
    }
    if urls.len() < MEMBERS_MIN {
        return invalid(format!(
            "a quorum has at least {MEMBERS_MIN} members, as in quorum:redis://a,redis://b,redis://c"
        ));
    }
    servers.sort_by(|(one, _), (other, _)| one.cmp(other));
    if let Some(twice) = servers.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return invalid(format!("{} is in the list of members twice", twice[0].0));
    }
    let nodes = servers.iter().map(|(address, _)| address.clone()).collect();
    let group = Group::new(nodes, options.longest_lease.as_millis() as u64);
    let member =
        |(index, (_, server))| Redis::member(server, options, Membership::new(&group, index));
    Ok(servers.into_iter().enumerate().map(member).collect())
}

/// What only a member of a quorum is asked for.
impl Redis {
    pub(crate) fn membership(&self) -> &Arc<Membership> {
        self.inner.membership.as_ref().expect("only a quorum asks, and all its servers are members")
    }

    /// Writes the marker of a member that has none.
    pub(crate) async fn mark(&self) -> Result<(), Fault> {
        if !self.membership().lacks_marker() {
            return Ok(());
        }
        let marker = keys::MARKER.as_bytes();
        let reply = self.inner.route.call(marker, self.membership().question()).await?;
        self.membership().joined(reply)
    }

    /// The marker is another one than the client knows: reads it again, until that succeeds.
    pub(crate) fn rejoin(&self) {
        let Some(membership) = self.inner.membership.clone().filter(|member| member.suspect())
        else {
            return;
        };
        let inner = Arc::downgrade(&self.inner);
        tokio::spawn(async move {
            // A connection that breaks joins anew.
            while locked(&membership.state).is_suspected {
                let Some(inner) = inner.upgrade().filter(|inner| !inner.route.is_closed()) else {
                    return;
                };
                let marker = keys::MARKER.as_bytes();
                let joined = inner.route.call(marker, membership.question()).await;
                if let Err(fault) = joined.and_then(|reply| membership.joined(reply)) {
                    membership.not_marked(fault);
                    drop(inner);
                    tokio::time::sleep(REJOIN).await;
                }
            }
        });
    }

    /// Stores a hold where it is missing, whether or not the member may grant.
    pub(crate) async fn repair(&self, renew: Renew, ttl: u64) -> Result<Attempt, Fault> {
        let request = Acquire::new(renew.resource, renew.owner, ttl);
        let (route, key) = (&self.inner.route, name(&request.resource));
        // By its text: after a `SCRIPT FLUSH`, a call by hash would be repeated after the release that follows
        // it.
        if request.resource.kind == Kind::Mutex {
            let holder = route.call(key, lock::acquire_mutex(&request, false).by_text()).await?;
            return Ok(lock::held_by(&holder, &request.owner));
        }
        route.call(key, lock::acquire(&request, self.inner.wakes).by_text()).await
    }

    /// Releases an acquire that was not granted by a majority. Notifies no waiter if `is_silent`.
    pub(crate) fn withdraw(&self, release: Release, is_silent: bool) -> Answer<Released> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let wakes = if is_silent { Wakes::Silent } else { inner.wakes };
            let command = inner.releasing(&release, wakes)?;
            inner.settled_release(inner.route.call(name(&release.resource), command).await)
        })
    }

    /// Makes the last token of a lock at least this one. Returns it.
    pub(crate) async fn raise_token(
        &self,
        lock: LockName,
        token: u64,
        fenced: Fenced,
    ) -> Result<u64, Fault> {
        let call = script::TOKEN_RAISE.call(1).arg(keys::token(&lock)).arg(token);
        let call = call.ttl_or_empty(fenced.ttl);
        self.inner.route.call(lock.as_bytes(), call).await
    }

    /// How far the clock of the server is ahead of this machine's, in milliseconds.
    pub(crate) async fn clock_ahead(&self) -> Result<i64, Fault> {
        let before = now_ms();
        let Time(theirs) = self.inner.route.call(b"", Command::plain("TIME")).await?;
        let ours = (before + now_ms()) / 2;
        Ok(theirs.as_millis() as i64 - ours as i64)
    }

    /// The host of the server, if it has one.
    pub(crate) fn host(&self) -> Option<String> {
        let server = self.inner.route.only()?.primary.server()?;
        server.address.host().map(|(host, _)| host.to_owned())
    }
}
