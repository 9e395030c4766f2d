//! The primary among servers that replicate, found by asking each for its role.
//!
//! All servers are asked when the client connects, when a connection breaks or is refused as read-only,
//! and every second. No server decides which of two primaries is right: the client follows the one that more of
//! the other servers follow, and neither if there are as many.
//!
//! A server that does not answer may be the primary: it may be slow, or cut off from this client alone. So
//! another one is followed in its place only
//! - if no replica has a link to it, however long it is silent: such a replica knows that it is there. A replica
//!   with a link to a primary that matches no server of the URL counts for each silent one, until one is followed:
//!   without a limit, because the silent one may grant locks on;
//! - after five seconds, if it was the primary until now or replicas name it. They count from the last answer of a
//!   replica that had a link to it: one question that this replica misses proves nothing;
//! - and after the connect timeout in any case.
//!
//! A replica may name its primary by an address that is not in the URL, as with NAT. It follows a primary that
//! answers if both have the same data, which only a promotion changes. So only a replica of a silent server can match
//! none, or one whose `INFO` is refused.
//!
//! The last two rules do not hold if its answer could change nothing: more servers follow the other one than
//! could follow it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::connection::asker::{self, Asker};
use super::locked;
use super::primary::Primary;
use super::resp::Value;
use super::role::Role;
use super::server::Server;
use crate::backend::{Fault, Finding};
use crate::options::ClientOptions;

/// How often all servers are asked.
const POLL: Duration = Duration::from_secs(1);

/// How long further answers are waited for once one has arrived, if they cannot change who is the primary.
const ANSWER: Duration = Duration::from_millis(500);

/// The shortest pause between two questions.
const AGAIN: Duration = Duration::from_millis(50);

/// For how long a server may be silent that was the primary or that others follow.
const SILENT: Duration = Duration::from_secs(5);

pub(super) struct Replicated {
    servers: Vec<Arc<Asker>>,
    options: ClientOptions,
    known: Mutex<Known>,
}

/// What is remembered between two questions.
#[derive(Default)]
struct Known {
    /// The primary that was found last.
    last: Option<Server>,
    /// Since when servers have been silent, by their addresses: since no replica has had a link to them, if one had
    /// later.
    silent: HashMap<String, Instant>,
}

impl Known {
    fn is_last(&self, answer: &ServerAnswer) -> bool {
        self.last.as_ref().is_some_and(|last| last.is_same(&answer.server))
    }

    /// Whether a silent server may be the primary, and not the one that was `found` among these.
    fn may_be_primary(
        &self,
        silent: &ServerAnswer,
        found: &ServerAnswer,
        answers: &[ServerAnswer],
    ) -> bool {
        let (named, ours) = (followers(answers, silent).count(), followers(answers, found).count());
        if followers(answers, silent).any(|is_linked| is_linked) {
            return !self.is_last(found) || named >= ours;
        }
        if !self.is_last(found) && links_elsewhere(answers) {
            return true;
        }
        let since = self.silent.get(&silent.server.address.to_string());
        !self.is_last(found)
            && !is_decided(answers, found, answers.len())
            && (named > 0 || self.is_last(silent))
            && since.is_none_or(|since| since.elapsed() < SILENT)
    }
}

/// What one server says.
struct ServerAnswer {
    server: Server,
    addresses: Vec<IpAddr>,
    role: Result<Role, Fault>,
    /// Of a replica, the addresses of its primary.
    of: Vec<IpAddr>,
    data_id: Option<String>,
}

impl ServerAnswer {
    async fn by(asker: &Asker, options: &ClientOptions) -> Self {
        let server = asker.server.clone();
        let (answer, addresses) = tokio::join!(role(asker, options), addresses(&server));
        let (role, data_id) = match answer {
            Ok((role, data_id)) => (Ok(role), data_id),
            Err(fault) => (Err(fault), None),
        };
        let of = match &role {
            Ok(Role::Replica(host, port, _)) => self::addresses(&server.at(host, *port)).await,
            _ => Vec::new(),
        };
        Self { server, addresses, role, of, data_id }
    }

    fn is_primary(&self) -> bool {
        matches!(self.role, Ok(Role::Primary { .. }))
    }

    /// Whether it replicates from this server; with a link to it or without one.
    fn follows(&self, primary: &ServerAnswer) -> Option<bool> {
        let Ok(Role::Replica(host, port, is_linked)) = &self.role else { return None };
        let (own, own_port) = primary.server.address.host()?;
        let is_host = own == host || self.of.iter().any(|of| primary.addresses.contains(of));
        let has_its_data =
            primary.is_primary() && self.data_id.is_some() && self.data_id == primary.data_id;
        (own_port == *port && is_host || has_its_data).then_some(*is_linked)
    }
}

impl Replicated {
    pub(super) fn new(servers: Vec<Server>, options: &ClientOptions) -> Self {
        let servers = servers.into_iter().map(|server| Arc::new(Asker::new(server))).collect();
        Self { servers, options: options.clone(), known: Mutex::default() }
    }

    pub(super) fn identity(&self) -> String {
        let mut names: Vec<_> =
            self.servers.iter().map(|one| one.server.address.to_string()).collect();
        names.sort();
        format!("{}/{}", names.join(","), self.servers[0].server.database)
    }

    /// Finds the primary for the first time, within the connect timeout.
    pub(super) async fn find_first(&self, primary: &Primary) -> Result<(), Fault> {
        let attempt = || async {
            let answers = self.ask_all().await;
            self.find(&answers).map(|found| self.follow(primary, found, &answers))
        };
        asker::until_found(&self.options, AGAIN, attempt).await
    }

    fn follow(&self, primary: &Primary, found: &ServerAnswer, answers: &[ServerAnswer]) {
        let before = locked(&self.known).last.replace(found.server.clone());
        // The old primary is one of them. Those of which a new client has no answer may be no replicas.
        let has_replicas = before.is_some() && self.servers.len() > 2
            || followers(answers, found).next().is_some();
        primary.lead_to(&found.server, has_replicas);
    }

    /// Asks all servers at once. One that does not answer in time is not waited for.
    async fn ask_all(&self) -> Vec<ServerAnswer> {
        let (mut answers, limit) = self.ask_once().await;
        if Instant::now() >= limit + ANSWER {
            // This process was stopped: a server whose answer was not read in time has not been silent.
            locked(&self.known).silent.clear();
            answers = self.ask_once().await.0;
        }
        for Asker { server, .. } in self.servers.iter().map(|asker| &**asker) {
            if !answers.iter().any(|answer| answer.server.is_same(server)) {
                let role = Err(Fault::silent("no answer"));
                // Others may follow it.
                let addresses = addresses(server).await;
                let (of, data_id) = (Vec::new(), None);
                answers.push(ServerAnswer { server: server.clone(), addresses, role, of, data_id });
            }
        }
        answers
    }

    /// Returns the answers that come in time, and when that ends at the latest.
    async fn ask_once(&self) -> (Vec<ServerAnswer>, Instant) {
        let mut asked = JoinSet::new();
        for asker in self.servers.clone() {
            let options = self.options.clone();
            asked.spawn(async move { ServerAnswer::by(&asker, &options).await });
        }
        let limit = Instant::now() + self.options.connect_timeout;
        let mut soon = None;
        let collecting = asker::collect(asked, |answers: &[ServerAnswer]| {
            if answers.iter().any(|answer| answer.role.is_ok()) {
                soon.get_or_insert_with(|| Instant::now() + ANSWER);
            }
            soon.filter(|_| self.are_enough(answers)).unwrap_or(limit).min(limit)
        });
        (collecting.await, limit)
    }

    /// Whether servers that have not answered yet are not worth waiting for.
    fn are_enough(&self, answers: &[ServerAnswer]) -> bool {
        if !answers.iter().any(ServerAnswer::is_primary) {
            return true;
        }
        let is_settled = |found| {
            locked(&self.known).is_last(found) || is_decided(answers, found, self.servers.len())
        };
        most_followed(answers).is_ok_and(is_settled)
    }

    /// Returns the primary that most servers follow, unless a silent one may be the primary.
    fn find<'a>(&self, answers: &'a [ServerAnswer]) -> Result<&'a ServerAnswer, Fault> {
        let (silent, answering): (Vec<_>, Vec<_>) =
            answers.iter().partition(|answer| answer.role.is_err());
        let mut known = locked(&self.known);
        for answer in answering {
            known.silent.remove(&answer.server.address.to_string());
        }
        for answer in &silent {
            let since = known.silent.entry(answer.server.address.to_string());
            let since = since.or_insert_with(Instant::now);
            if links_elsewhere(answers) || followers(answers, answer).any(|is_linked| is_linked) {
                *since = Instant::now();
            }
        }
        let found = most_followed(answers)?;
        let other = silent.iter().find(|silent| known.may_be_primary(silent, found, answers));
        let Some(other) = other else { return Ok(found) };
        let reason = match followers(answers, other).count() {
            0 if links_elsewhere(answers) => {
                "a replica has a link to a primary that matches no server of the URL"
            }
            0 => "was the primary",
            _ => "has replicas that follow it",
        };
        Err(Fault::silent(format!("{} does not answer, and {reason}", other.server.address)))
    }

    /// What endangers locks about these servers.
    pub(super) async fn check(&self) -> (Vec<Finding>, Option<usize>) {
        let answers = self.ask_all().await;
        let mut findings = Vec::new();
        for answer in &answers {
            let subject = format!("server {}", answer.server.address);
            if let Err(fault) = &answer.role {
                let detail = format!("does not answer: it cannot take over ({fault})");
                findings.push(Finding::note(&subject, detail, "start it, or take it off the URL"));
            }
            if let Ok(Role::Replica(host, port, _)) = &answer.role
                && !answers.iter().any(|primary| answer.follows(primary).is_some())
            {
                let detail = format!(
                    "replicates from {host}:{port}, which is no server of the URL: it does not count when \
                     the client decides which of two primaries to use"
                );
                let remedy = "name its primary in the URL as the replica does, or by a name that leads to \
                              the same address";
                findings.push(Finding::danger(&subject, detail, remedy));
            }
        }
        if let Err(Fault::Unreachable { detail, .. }) = self.find(&answers) {
            let remedy = "make all but one of them a replica (REPLICAOF)";
            findings.push(Finding::danger("primary", detail.to_string(), remedy));
        }
        (findings, Some(self.servers.len() - 1))
    }
}

async fn role(asker: &Asker, options: &ClientOptions) -> Result<(Role, Option<String>), Fault> {
    let questions = [Role::question(), Role::second_question()];
    let replies = asker.ask(&questions, options).await?;
    if let Some(role) = replies.iter().find_map(Role::parse) {
        return Ok((role, replies.last().and_then(Role::data_id)));
    }
    let mut replies = replies.into_iter();
    replies.next().map(Value::checked).transpose()?;
    Err(Fault::silent("the server does not report its role"))
}

/// The addresses of a host: a server and its replicas may name it differently.
async fn addresses(server: &Server) -> Vec<IpAddr> {
    let Some((host, port)) = server.address.host() else { return Vec::new() };
    let Ok(Ok(found)) = timeout(ANSWER, tokio::net::lookup_host((host, port))).await else {
        return Vec::new();
    };
    found.map(|address| address.ip().to_canonical()).collect()
}

/// The servers that replicate from this one: for each, whether it has a link to it.
fn followers<'a>(
    answers: &'a [ServerAnswer],
    primary: &'a ServerAnswer,
) -> impl Iterator<Item = bool> {
    answers.iter().filter_map(|answer| answer.follows(primary))
}

/// Whether a replica has a link to a primary that matches no server: one that does not answer may have lost its
/// name, too.
fn links_elsewhere(answers: &[ServerAnswer]) -> bool {
    let is_linked = |answer: &&ServerAnswer| matches!(answer.role, Ok(Role::Replica(_, _, true)));
    let matches =
        |answer: &ServerAnswer| answers.iter().any(|primary| answer.follows(primary).is_some());
    answers.iter().filter(is_linked).any(|answer| !matches(answer))
}

/// Whether no other of `all` servers can have as many followers, whatever those say that have not answered.
fn is_decided(answers: &[ServerAnswer], found: &ServerAnswer, all: usize) -> bool {
    let primaries = answers.iter().filter(|answer| answer.is_primary()).count();
    // A silent server that is the other primary follows none.
    2 * followers(answers, found).count() + primaries >= all + usize::from(primaries > 1)
}

/// Returns the primary that most servers follow, of those that answer.
fn most_followed(answers: &[ServerAnswer]) -> Result<&ServerAnswer, Fault> {
    let followers = |primary: &ServerAnswer| followers(answers, primary).count();
    let mut primaries: Vec<_> = answers.iter().filter(|answer| answer.is_primary()).collect();
    primaries.sort_by_key(|answer| std::cmp::Reverse(followers(answer)));
    let lost = |detail: String| Err(Fault::silent(detail));
    match primaries[..] {
        [only] => Ok(only),
        [first, second, ..] if followers(first) > followers(second) => Ok(first),
        [first, second, ..] => lost(format!(
            "both {} and {} are primaries, and as many replicas follow each",
            first.server.address, second.server.address
        )),
        [] => {
            let said = answers.iter().map(|answer| match &answer.role {
                Ok(_) => format!("{} is a replica", answer.server.address),
                Err(fault) if !fault.may_pass() => format!("{}: {fault}", answer.server.address),
                Err(_) => format!("{} does not answer", answer.server.address),
            });
            let denied = answers.iter().find_map(|answer| match &answer.role {
                Err(fault) if !fault.may_pass() => Some(fault.clone()),
                _ => None,
            });
            match denied {
                Some(fault) => Err(fault),
                None => lost(format!("no primary: {}", said.collect::<Vec<_>>().join(", "))),
            }
        }
    }
}

/// Asks the servers for their roles, again and again.
pub(super) async fn watch(replicated: Arc<Replicated>, primary: Arc<Primary>) {
    let mut lost = 0;
    loop {
        let is_lost = primary.server().is_none();
        lost = if is_lost { lost + 1 } else { 0 };
        let pause = if is_lost { replicated.options.backoff(lost).max(AGAIN) } else { POLL };
        tokio::select! {
            () = primary.suspected() => sleep(AGAIN).await,
            () = sleep(pause) => {}
        }
        let epoch = primary.epoch();
        let answers = replicated.ask_all().await;
        match replicated.find(&answers) {
            Ok(found) => replicated.follow(&primary, found, &answers),
            Err(fault) => {
                tracing::debug!(%fault, "no primary was found");
                // It is a replica, or another one may be the primary. One that does not answer may be the
                // primary still.
                let is_left = |one: &ServerAnswer| one.role.is_ok() && primary.is(&one.server);
                if answers.iter().any(is_left) {
                    primary.leave(epoch);
                }
            }
        }
    }
}
