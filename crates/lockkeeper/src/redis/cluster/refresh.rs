//! Asks nodes for the slot map: first the seeds, later those that are known.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::Cluster;
use super::slot_map::{self, Node, SlotAnswer};
use crate::backend::Fault;
use crate::redis::command::Command;
use crate::redis::command::Wakes;
use crate::redis::connection::asker::Asker;
use crate::redis::connection::committer::Committer;
use crate::redis::locked;
use crate::redis::resp::Value;
use crate::redis::server::Server;
use crate::redis_options::Wakeups;

/// The shortest time between two questions for the slot map.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between questions that are asked for.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The time between two questions that nothing asks for.
const REFRESH: Duration = Duration::from_secs(10);

/// How many nodes are asked at once.
const ASKED: usize = 3;

/// How long further answers are waited for once one has arrived, and how long before more nodes are
/// asked.
const ANSWER: Duration = Duration::from_millis(500);

impl Cluster {
    /// Asks the seeds until one of them knows the slots, within the connect timeout.
    pub(super) async fn find_first(&self) -> Result<(), Fault> {
        let until = Instant::now() + self.options.connect_timeout;
        let mut strangers = None;
        loop {
            let asked = self.ask(self.seeds.clone(), self.seeds.len(), until).await;
            let faults: Vec<_> = asked
                .iter()
                .filter_map(|(server, answer)| Some((server, answer.as_ref().err()?)))
                .collect();
            // A wrong password is not waited for.
            let permanent = faults.iter().find(|(_, fault)| !fault.may_pass());
            let permanent = permanent.map(|(_, fault)| (*fault).clone());
            let said: Vec<_> = faults
                .iter()
                .map(|(server, fault)| format!("{}: {fault}", server.address))
                .collect();
            let said = match &said[..] {
                [] if asked.is_empty() => format!("no answer in time from {}", self.identity()),
                [] => "its nodes know no slots".to_owned(),
                said => said.join("; "),
            };
            let answers: Vec<_> = asked.into_iter().filter_map(|(_, answer)| answer.ok()).collect();
            if let Some((one, other)) = slot_map::strangers(&answers) {
                let [one, other] =
                    [one, other].map(|answer| format!("{}:{}", answer.host, answer.port));
                // Not at once: while a cluster is created, its nodes do not know each other yet.
                let detail = format!("{one} and {other} are nodes of different clusters");
                strangers = Some(Fault::invalid(detail));
            } else if answers.iter().any(|answer| !answer.ranges.is_empty())
                // A stranger may only be slow this time.
                && (strangers.is_none() || answers.len() == self.seeds.len())
            {
                if answers.iter().any(|told| told.id.is_none()) {
                    tracing::warn!(
                        "a node of the cluster does not tell its id (CLUSTER MYID): one of another cluster that \
                         gets the address of a node is not told from it"
                    );
                }
                self.apply(answers);
                // Fails if acknowledgement was asked for, and a node that answers cannot do it.
                let shards = self.shards();
                let committers = shards.iter().filter_map(|shard| shard.committer.as_ref());
                return join_all(committers.map(Committer::ensure)).await.into_iter().collect();
            }
            match permanent {
                Some(fault) => return Err(fault),
                None if Instant::now() + PAUSE >= until => {
                    if let Some(fault) = strangers {
                        return Err(fault);
                    }
                    return Err(Fault::silent(format!(
                        "no node of the cluster knows its slots: {said}"
                    )));
                }
                None => sleep(PAUSE).await,
            }
        }
    }

    /// How wake-ups travel: as the options say, or as the servers support it.
    pub(crate) async fn wakes(&self) -> Wakes {
        match self.options.redis.wakeups {
            Wakeups::Classic => return Wakes::Classic,
            Wakeups::Both => return Wakes::Both,
            Wakeups::Auto => {}
        }
        let question = [Command::plain("PUBSUB").arg("SHARDNUMSUB")];
        for server in self.nodes() {
            let Ok(replies) = self.asker(&server).ask(&question, &self.options).await else {
                continue;
            };
            match replies.into_iter().next().map(Value::checked) {
                Some(Ok(_)) => return Wakes::Sharded,
                Some(Err(Fault::Server { detail }))
                    if detail.to_lowercase().contains("unknown") =>
                {
                    return Wakes::Classic;
                }
                _ => {}
            }
        }
        tracing::warn!(
            "no node reports whether it supports sharded messages (PUBSUB SHARDNUMSUB): wake-ups are \
             published both ways"
        );
        Wakes::Both
    }

    /// Asks some of these nodes at once, and more of them while none of the cluster has answered.
    async fn ask(
        &self,
        servers: Vec<Server>,
        at_once: usize,
        until: Instant,
    ) -> Vec<(Server, Result<SlotAnswer, Fault>)> {
        let mut asked = JoinSet::new();
        let mut answers: Vec<(Server, Result<SlotAnswer, Fault>)> = Vec::new();
        let (mut servers, mut slow) = (servers.into_iter(), 0);
        // It is not known yet whether an answer is of another cluster.
        let is_first = self.map().ranges.is_empty();
        loop {
            let counts = |answer: &SlotAnswer| !self.map().is_foreign(answer);
            let found = answers.iter().any(|(_, answer)| answer.as_ref().is_ok_and(counts));
            while !found && asked.len() < at_once + slow {
                let Some(server) = servers.next() else { break };
                let (asker, options) = (self.asker(&server), self.options.clone());
                asked.spawn(async move {
                    let replies = asker.ask(&slot_map::questions(), &options).await;
                    let answer = replies.and_then(|replies| slot_map::understand(&server, replies));
                    (server, answer)
                });
            }
            match timeout_at(until.min(Instant::now() + ANSWER), asked.join_next()).await {
                Ok(Some(answer)) => answers.extend(answer),
                Ok(None) => break,
                Err(_) if Instant::now() >= until => break,
                Err(_) if found && (!is_first || self.all_seeds_are_in(&answers)) => break,
                // They are slow: ask others, too.
                Err(_) => slow = asked.len(),
            }
        }
        // Late answers are dropped, and the connections are kept.
        asked.detach_all();
        answers
    }

    /// Whether each seed has answered, or is a node of a cluster that has.
    fn all_seeds_are_in(&self, answers: &[(Server, Result<SlotAnswer, Fault>)]) -> bool {
        self.seeds.iter().all(|seed| {
            let names = |node: &Node| seed.address.host() == Some((&node.host, node.port));
            answers.iter().any(|(server, answer)| {
                server.is_same(seed)
                    || answer.as_ref().is_ok_and(|answer| answer.nodes().any(names))
            })
        })
    }

    pub(super) fn asker(&self, server: &Server) -> Arc<Asker> {
        let mut askers = locked(&self.askers);
        let asker = askers.entry(server.address.to_string());
        Arc::clone(asker.or_insert_with(|| Arc::new(Asker::new(server.clone()))))
    }

    /// The nodes that are known, in random order, and the seeds: one of these among the first, because
    /// all nodes may have got new addresses.
    fn nodes(&self) -> Vec<Server> {
        let mut nodes: Vec<_> = {
            let map = self.map();
            let shards = self.shards().into_iter().zip(&map.nodes);
            let in_use = shards.filter(|(shard, _)| shard.primary.server().is_some());
            in_use.flat_map(|(_, nodes)| nodes.clone()).collect()
        };
        fastrand::shuffle(&mut nodes);
        let known: Vec<_> =
            nodes.iter().map(|node| self.seeds[0].at(&node.host, node.port)).collect();
        let mut seeds = self.seeds.clone();
        fastrand::shuffle(&mut seeds);
        let (first, others) = known.split_at(known.len().min(ASKED - 1));
        let (seed, seeds) = seeds.split_at(1);
        let mut servers: Vec<Server> = Vec::new();
        for server in [first, seed, others, seeds].concat() {
            if !servers.iter().any(|one| one.is_same(&server)) {
                servers.push(server);
            }
        }
        servers
    }

    pub(crate) async fn refresh(&self) {
        let until = Instant::now() + self.options.connect_timeout;
        let asked = self.ask(self.nodes(), ASKED, until).await;
        let answers: Vec<_> = asked.into_iter().filter_map(|(_, answer)| answer.ok()).collect();
        if answers.is_empty() {
            tracing::debug!("no node of the cluster answers");
        }
        self.apply(answers);
        // Connections to nodes that are gone are closed.
        let known: HashSet<_> =
            self.nodes().iter().map(|server| server.address.to_string()).collect();
        let mut askers = locked(&self.askers);
        askers.retain(|address, _| known.contains(address));
    }
}

/// Keeps the slot map up to date. While questions bring nothing new, the pauses between them grow; after a
/// time without any they are short again.
pub(crate) async fn watch(cluster: Arc<Cluster>) {
    let mut pause = PAUSE;
    let mut versions = cluster.versions();
    loop {
        let jitter = 0.8 + 0.4 * fastrand::f64();
        let since = Instant::now();
        tokio::select! {
            () = cluster.suspected.notified() => {}
            () = sleep(REFRESH.mul_f64(jitter)) => {}
        }
        let quiet = since.elapsed();
        versions.mark_unchanged();
        cluster.refresh().await;
        pause = next_pause(pause, quiet, versions.has_changed().unwrap_or(false));
        sleep(pause.mul_f64(jitter)).await;
    }
}

/// The pause after a question, by the one before it, the time that nothing was asked for after that, and
/// whether the answers brought something new.
fn next_pause(last: Duration, quiet: Duration, is_new: bool) -> Duration {
    match is_new || quiet > PAUSE_MAX {
        true => PAUSE,
        false => (last * 2).min(PAUSE_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_questions_bring_nothing_and_are_short_after_a_quiet_time() {
        let at_once = |last| next_pause(last, Duration::ZERO, false);
        assert_eq!(at_once(PAUSE), 2 * PAUSE);
        assert_eq!(at_once(PAUSE_MAX), PAUSE_MAX);
        assert_eq!(next_pause(PAUSE_MAX, Duration::ZERO, true), PAUSE);
        // The next failover: its first questions may come before the nodes know.
        assert_eq!(next_pause(PAUSE_MAX, 2 * PAUSE_MAX, false), PAUSE);
    }
}
