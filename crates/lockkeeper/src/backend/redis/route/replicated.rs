//! The primary among servers that replicate, found by asking each for its role.
//!
//! All servers are asked when the client connects, when a connection breaks or is refused as read-only,
//! and every second. No server decides which of two primaries is right: the client follows the one that more of
//! the other servers follow, and neither if there are as many. A server that does not answer counts as a
//! primary for as long as others follow it, up to five seconds: it may only be slow.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::super::connection::asker::Asker;
use super::super::fault;
use super::super::primary::Primary;
use super::super::role::Role;
use super::super::url::Server;
use crate::backend::{Fault, Finding};
use crate::config::ClientOptions;

/// How often all servers are asked.
const POLL: Duration = Duration::from_secs(1);

/// How long further answers are waited for once one has arrived.
const ANSWER: Duration = Duration::from_millis(500);

/// The shortest pause between two questions.
const AGAIN: Duration = Duration::from_millis(50);

/// For how long a server that others follow may be silent.
const SILENT: Duration = Duration::from_secs(5);

/// Servers of which one is the primary.
#[derive(Debug)]
pub(super) struct Replicated {
    servers: Vec<Arc<Asker>>,
    options: ClientOptions,
    /// Since when a server has been silent that more others follow than any primary.
    silent: Mutex<Option<Instant>>,
}

/// What one server says.
struct Told {
    server: Server,
    addresses: Vec<IpAddr>,
    role: Result<Role, Fault>,
}

impl Told {
    fn is_primary(&self) -> bool {
        matches!(self.role, Ok(Role::Primary { .. }))
    }

    /// Whether a replica of the primary at `host` and `port` is one of this server.
    fn is_at(&self, host: &str, port: u16) -> bool {
        let Some((own, own_port)) = self.server.address.host() else { return false };
        let is_host = own == host
            || host.parse().is_ok_and(|address: IpAddr| self.addresses.contains(&address));
        own_port == port && is_host
    }
}

impl Replicated {
    pub(super) fn new(servers: Vec<Server>, options: &ClientOptions) -> Self {
        let servers = servers.into_iter().map(|server| Arc::new(Asker::new(server))).collect();
        Self { servers, options: options.clone(), silent: Mutex::default() }
    }

    pub(super) fn identity(&self) -> String {
        let mut names: Vec<_> =
            self.servers.iter().map(|one| one.server.address.to_string()).collect();
        names.sort();
        format!("{}/{}", names.join(","), self.servers[0].server.database)
    }

    /// Finds the primary for the first time, within the connect timeout.
    pub(super) async fn find_first(&self, primary: &Primary) -> Result<(), Fault> {
        let until = Instant::now() + self.options.connect_timeout;
        loop {
            match self.find(&self.ask_all().await) {
                Ok(server) => {
                    primary.lead_to(server);
                    return Ok(());
                }
                Err(fault) if !fault.may_pass() || Instant::now() + AGAIN >= until => {
                    return Err(fault);
                }
                Err(_) => sleep(AGAIN).await,
            }
        }
    }

    /// Asks all servers at once. One that does not answer in time is not waited for.
    async fn ask_all(&self) -> Vec<Told> {
        let mut asking = JoinSet::new();
        for asker in self.servers.clone() {
            let options = self.options.clone();
            asking.spawn(async move {
                let server = asker.server.clone();
                let (role, addresses) = tokio::join!(role(&asker, &options), addresses(&server));
                Told { server, addresses, role }
            });
        }
        let mut answers: Vec<Told> = Vec::new();
        let mut until = Instant::now() + self.options.connect_timeout;
        while let Ok(Some(told)) = timeout_at(until, asking.join_next()).await {
            answers.extend(told);
            if answers.iter().any(|told| told.role.is_ok()) {
                until = until.min(Instant::now() + ANSWER);
            }
        }
        // Late answers are dropped, and the connections are kept.
        asking.detach_all();
        for Asker { server, .. } in self.servers.iter().map(|asker| &**asker) {
            if !answers.iter().any(|told| told.server.is_same(server)) {
                let role = Err(Fault::Unreachable { maybe_ran: false, detail: "no answer".into() });
                // Others may follow it.
                let addresses = timeout(ANSWER, addresses(server)).await.unwrap_or_default();
                answers.push(Told { server: server.clone(), addresses, role });
            }
        }
        answers
    }

    /// Returns the primary that most servers follow.
    fn find<'a>(&self, answers: &'a [Told]) -> Result<&'a Server, Fault> {
        let found = find(answers);
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        let (Ok(primary), Some(other)) = (&found, most_followed(answers)) else {
            *silent = None;
            return found;
        };
        let is_silent = other.role.is_err() && followers(answers, other) > 0;
        let of_primary = answers.iter().find(|told| told.server.is_same(primary));
        let fewer =
            of_primary.map_or(0, |told| followers(answers, told)) < followers(answers, other);
        if !is_silent || !fewer {
            *silent = None;
            return found;
        }
        if silent.get_or_insert_with(Instant::now).elapsed() >= SILENT {
            return found;
        }
        let detail = format!("{} does not answer, and replicas follow it", other.server.address);
        Err(Fault::Unreachable { maybe_ran: false, detail: detail.into() })
    }

    /// What endangers locks about these servers.
    pub(super) async fn check(&self) -> (Vec<Finding>, Option<usize>) {
        let answers = self.ask_all().await;
        let mut findings = Vec::new();
        for told in &answers {
            let subject = format!("server {}", told.server.address);
            if let Err(fault) = &told.role {
                let detail = format!("does not answer: it cannot take over ({fault})");
                findings.push(Finding::note(&subject, detail, "start it, or take it off the URL"));
            }
        }
        if let Err(Fault::Unreachable { detail, .. }) = self.find(&answers) {
            let remedy = "make all but one of them a replica (REPLICAOF)";
            findings.push(Finding::danger("primary", detail.to_string(), remedy));
        }
        (findings, Some(self.servers.len() - 1))
    }
}

async fn role(asker: &Asker, options: &ClientOptions) -> Result<Role, Fault> {
    let questions = [Role::question(), Role::second_question()];
    let replies = asker.ask(&questions, options).await?;
    if let Some(role) = replies.iter().find_map(Role::parse) {
        return Ok(role);
    }
    let mut replies = replies.into_iter();
    replies.next().map(fault::check).transpose()?;
    let detail = "the server does not tell its role".into();
    Err(Fault::Unreachable { maybe_ran: false, detail })
}

/// The addresses of a host: replicas name their primary by address.
async fn addresses(server: &Server) -> Vec<IpAddr> {
    let Some((host, port)) = server.address.host() else { return Vec::new() };
    let found = tokio::net::lookup_host((host, port)).await;
    found.map(|found| found.map(|address| address.ip()).collect()).unwrap_or_default()
}

/// How many servers replicate from this one.
fn followers(answers: &[Told], primary: &Told) -> usize {
    let follows = |told: &&Told| match &told.role {
        Ok(Role::Replica(host, port)) => primary.is_at(host, *port),
        _ => false,
    };
    answers.iter().filter(follows).count()
}

fn most_followed(answers: &[Told]) -> Option<&Told> {
    answers.iter().max_by_key(|told| followers(answers, told))
}

/// Returns the primary that most servers follow, of those that answer.
fn find(answers: &[Told]) -> Result<&Server, Fault> {
    let followers = |primary: &Told| followers(answers, primary);
    let mut primaries: Vec<_> = answers.iter().filter(|told| told.is_primary()).collect();
    primaries.sort_by_key(|told| std::cmp::Reverse(followers(told)));
    let lost = |detail: String| Err(Fault::Unreachable { maybe_ran: false, detail: detail.into() });
    match primaries[..] {
        [only] => Ok(&only.server),
        [first, second, ..] if followers(first) > followers(second) => Ok(&first.server),
        [first, second, ..] => lost(format!(
            "both {} and {} are primaries, and as many replicas follow each",
            first.server.address, second.server.address
        )),
        [] => {
            let said = answers.iter().map(|told| match &told.role {
                Ok(_) => format!("{} is a replica", told.server.address),
                Err(fault) if !fault.may_pass() => format!("{}: {fault}", told.server.address),
                Err(_) => format!("{} does not answer", told.server.address),
            });
            let denied = answers.iter().find_map(|told| match &told.role {
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
            Ok(server) => primary.lead_to(server),
            Err(fault) => {
                tracing::debug!(%fault, "no primary was found");
                // One that does not answer may be the primary still.
                let demoted = |told: &Told| {
                    matches!(told.role, Ok(Role::Replica(..))) && primary.is(&told.server)
                };
                let several = answers.iter().filter(|told| told.is_primary()).count() > 1;
                if several && !is_lost || answers.iter().any(demoted) {
                    primary.leave(epoch);
                }
            }
        }
    }
}
