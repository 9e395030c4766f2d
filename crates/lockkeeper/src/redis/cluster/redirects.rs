//! Requests to a cluster, and what redirections say.

use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::{Instant, timeout_at};

use super::slot_map::{self, Node, Redirect};
use super::{Cluster, Map, index, number};
use crate::backend::Fault;
use crate::redis::command::Command;
use crate::redis::connection::committer::Ticket;
use crate::redis::error_reply::ErrorReply;
use crate::redis::keys;
use crate::redis::reply::{self, Reply};
use crate::redis::resp::Value;
use crate::redis::shard::{Authority, Shard, Written};
use crate::redis::slot;

/// How often one request may be redirected.
const REDIRECTS: usize = 8;

impl Cluster {
    /// Learns from a redirection that a slot belongs to this node.
    pub(super) fn moved(&self, slot: u16, node: &Node) {
        let mut map = self.map();
        let index = self.shard_at(&mut map, slot, node);
        let number = number(Some(index));
        let old = self.owners[usize::from(slot)].swap(number, Ordering::Relaxed);
        if old != number {
            remember(map.redirected_slots.entry(slot), old);
        }
        drop(map);
        self.suspect();
        if old != number {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Learns from an error of the node at the host `asked`, if it is a redirection.
    pub(crate) fn record_redirect(&self, error: &ErrorReply, asked: &str) -> bool {
        let redirect = Redirect::of(error, asked);
        let Some(Redirect::Moved(slot, host, port)) = redirect else { return false };
        let node = self.map().node_at(&host, port);
        node.map_or_else(|| self.suspect(), |node| self.moved(slot, &node));
        true
    }

    /// Returns the node at the address that a redirection has named. One that is not known must name a node
    /// that is: it may be of another cluster.
    pub(super) async fn node_at(&self, host: &str, port: u16, due: Instant) -> Result<Node, Fault> {
        let known = || self.map().node_at(host, port);
        let meeting = async {
            let _meeting = self.meeting.lock().await;
            if let Some(node) = known() {
                return Ok(node);
            }
            let server = self.seeds[0].at(host, port);
            let replies = self.asker(&server).ask(&slot_map::questions(), &self.options).await?;
            let answer = slot_map::understand(&server, replies)?;
            let mut map = self.map();
            let node = answer.itself().filter(|_| !map.is_foreign(&answer));
            let node = node.ok_or_else(|| {
                Fault::refused(format!("{host}:{port} is not known to be a node of this cluster"))
            })?;
            map.ids.insert((host.to_owned(), port), node.id.clone());
            Ok(node)
        };
        if let Some(node) = known() {
            return Ok(node);
        }
        // A new map may name it first.
        self.suspect();
        let late = |_| Err(Fault::silent(format!("{host}:{port} has not reported its id in time")));
        timeout_at(due, meeting).await.unwrap_or_else(late)
    }

    /// Returns the shard of this node, which serves requests for this slot.
    fn shard_at(&self, map: &mut Map, slot: u16, node: &Node) -> usize {
        let server = node.server(&self.seeds[0]);
        // Also at another address: the map has it.
        let leads =
            |shard: &Arc<Shard>| shard.primary.server().is_some_and(|one| one.node == server.node);
        let is_it = |one: &Node| one.id == node.id;
        let has = |nodes: &Vec<Node>| nodes.iter().any(is_it);
        let owner = index(self.owners[usize::from(slot)].load(Ordering::Relaxed));
        let found = self.shards().iter().position(leads);
        // A replica of the old owner: it was promoted. A replica of another shard is no reason to lead that
        // shard elsewhere.
        let found = found.or(owner.filter(|owner| has(&map.nodes[*owner])));
        let is_primary = |nodes: &Vec<Node>| nodes.first().is_some_and(is_it);
        let found = found.or_else(|| map.nodes.iter().position(is_primary));
        let index = found.unwrap_or_else(|| {
            let index = self.add(map);
            map.nodes[index] = vec![node.clone()];
            index
        });
        map.idle[index] = None;
        let shard = self.shard(index);
        if !leads(&shard) {
            if let Some(before) = shard.primary.server() {
                remember(map.redirected_shards.entry(index), before.address.to_string());
            }
            // The first one is the old primary.
            let mut others = map.nodes[index].iter().skip(1);
            shard.primary.lead_to(&server, others.any(|other| !is_it(other)));
        }
        index
    }

    /// Is ready when a slot has another owner than this shard.
    async fn has_moved(&self, slot: u16, shard: &Shard) {
        let is_other = |owner: Arc<Shard>| owner.lane != shard.lane;
        let mut versions = self.versions();
        while !self.owner(slot).is_some_and(is_other) && versions.changed().await.is_ok() {}
    }

    /// Sends a request to the node that serves this key, and follows redirections. See the module of the cluster. If
    /// its answer says that it `wrote`, waits for replicas.
    pub(crate) async fn attempt<T: Reply>(
        &self,
        key: &[u8],
        command: Command<T>,
        wrote: Option<&(dyn Fn(&T) -> bool + Sync)>,
    ) -> Result<Written<T>, Fault> {
        let mut command = command.raw();
        let slot = slot::of(key);
        let due = Instant::now() + self.options.response_timeout;
        let mut asked: Option<Arc<Shard>> = None;
        for _ in 0..=REDIRECTS {
            if self.is_closed() {
                return Err(Fault::Closed);
            }
            command.asks = asked.is_some();
            let Some(shard) = asked.take().or_else(|| self.owner(slot)) else {
                self.suspect();
                return Err(Fault::refused(format!("no node of the cluster serves slot {slot}")));
            };
            if command.asks {
                // A rejected call by hash would have used up the permission to ask.
                command.call_by_text();
            }
            let is_batch = command.form.each.is_some_and(|count| count > 1);
            let hop = Hop { key, slot, due, shard, asks: command.asks, is_batch };
            let named = |fault| self.named(fault, slot, &hop.shard);
            let replied = self.send(&hop, &command, wrote.is_some()).await;
            let Some(replied) = replied.map_err(named)? else { continue };
            match self.follow(&hop, &replied.reply).await? {
                ControlFlow::Continue(next) => asked = next,
                ControlFlow::Break(()) => {
                    return self.conclude(&hop, replied, wrote).await.map_err(named);
                }
            }
        }
        Err(Fault::refused(format!("redirected more than {REDIRECTS} times for slot {slot}")))
    }

    /// Names the node and the slots of a shard in a fault of theirs.
    fn named(&self, fault: Fault, slot: u16, shard: &Shard) -> Fault {
        let map = self.map();
        let range = map.ranges.iter().find(|range| (range.first..=range.last).contains(&slot));
        let (first, last) = range.map_or((slot, slot), |range| (range.first, range.last));
        let known = || range.map(|range| range.primary.address());
        let node = shard.primary.address().or_else(known).unwrap_or_default();
        drop(map);
        fault.map(|text| {
            let text = text.replace(&format!(" to {node}"), "");
            // Behind it: the code of an error comes first.
            format!("{text} (node {node}, slots {first}-{last})")
        })
    }

    /// Sends a request. Returns `None` if its slot has another owner before it is sent.
    async fn send(
        &self,
        Hop { key, slot, due, shard, asks, .. }: &Hop<'_>,
        command: &Command,
        writes: bool,
    ) -> Result<Option<Replied>, Fault> {
        let (connection, due, asks) = (&shard.connection, *due, *asks);
        let ticket = match shard.committer.as_ref().filter(|_| writes) {
            Some(committer) => tokio::select! {
                biased;
                ticket = committer.ticket(connection, due) => ticket.map_err(|fault| {
                    self.suspect();
                    // It says why.
                    connection.why_not_live().unwrap_or(fault)
                })?,
                () = self.has_moved(*slot, shard), if !asks => return Ok(None),
            },
            None => None,
        };
        // Not before: it may have waited over a change of the primary.
        let (authority, epoch) = (self.authority(key), shard.primary.epoch());
        if !asks && authority.lane != shard.lane {
            return Ok(None);
        }
        let outcome = if asks || connection.is_live() {
            Some(connection.outcome(command.clone(), due).await)
        } else {
            connection.outcome_unless(command.clone(), due, self.has_moved(*slot, shard)).await
        };
        let Some(outcome) = outcome else { return Ok(None) };
        let reply = outcome.inspect_err(|_| self.suspect())?;
        Ok(Some(Replied { reply, ticket, authority, epoch }))
    }

    /// Learns from a redirection. Continues with the shard that it says to ask, or with the owner of the slot.
    async fn follow(
        &self,
        hop: &Hop<'_>,
        reply: &Value,
    ) -> Result<ControlFlow<(), Option<Arc<Shard>>>, Fault> {
        let server = hop.shard.primary.server();
        let host = server.as_ref().and_then(|server| server.address.host());
        let Value::Error(error) = reply else { return Ok(ControlFlow::Break(())) };
        let next = match Redirect::of(error, host.map_or("", |(host, _)| host)) {
            Some(Redirect::Moved(slot, host, port)) => {
                let node = tokio::select! {
                    biased;
                    node = self.node_at(&host, port, hop.due) => node.inspect_err(|_| self.suspect())?,
                    () = self.has_moved(slot, &hop.shard) => {
                        return Ok(ControlFlow::Continue(None));
                    }
                };
                self.moved(slot, &node);
                None
            }
            // Redis 6.2 answers so if one of several keys has moved; later versions say TRYAGAIN.
            Some(Redirect::Ask(..)) if hop.is_batch => {
                return Err(Fault::refused("TRYAGAIN keys of the batch have moved"));
            }
            Some(Redirect::Ask(host, port)) => {
                let node = self.node_at(&host, port, hop.due).await?;
                let index = self.shard_at(&mut self.map(), hop.slot, &node);
                Some(self.shard(index))
            }
            None => return Ok(ControlFlow::Break(())),
        };
        Ok(ControlFlow::Continue(next))
    }

    /// Returns the answer, if it counts, once replicas have it.
    async fn conclude<T: Reply>(
        &self,
        Hop { key, slot, shard, asks, .. }: &Hop<'_>,
        Replied { reply, ticket, authority, epoch }: Replied,
        wrote: Option<&(dyn Fn(&T) -> bool + Sync)>,
    ) -> Result<Written<T>, Fault> {
        if asks_for_map(&reply) {
            self.suspect();
        }
        let answer = match reply {
            // To a node whose address is not known yet.
            Value::Error(error) if matches!(&error.code[..], "MOVED" | "ASK") => {
                return Err(Fault::refused(format!(
                    "the new node of slot {slot} has no known address yet"
                )));
            }
            reply => reply::taken(reply)?,
        };
        let counts = || match self.authority(key) == authority && shard.primary.epoch() == epoch {
            true => Ok(()),
            false => Err(Fault::unanswered("the slot has moved, or its primary has changed")),
        };
        counts()?;
        let has_written = wrote.is_some_and(|wrote| wrote(&answer));
        let Some(committer) = shard.committer.as_ref().filter(|_| has_written) else {
            return Ok(Written { answer, acknowledged: Ok(()) });
        };
        let asked = asks.then(|| keys::commit_beside(key));
        let acknowledged = committer.commit(ticket, &shard.connection, asked).await;
        counts()?;
        Ok(Written { answer, acknowledged })
    }
}

/// One try of a request: at the owner of its slot, or at the node that the owner says to ask.
struct Hop<'a> {
    key: &'a [u8],
    slot: u16,
    due: Instant,
    shard: Arc<Shard>,
    asks: bool,
    /// The request is about several keys.
    is_batch: bool,
}

/// A reply, and which server was to answer when its request was sent.
struct Replied {
    reply: Value,
    ticket: Option<Ticket>,
    authority: Authority,
    epoch: u64,
}

/// Remembers what a redirection has replaced just now.
fn remember<K, T: PartialEq>(entry: Entry<'_, K, (Instant, Vec<T>)>, before: T) {
    let (at, all) = entry.or_insert_with(|| (Instant::now(), Vec::new()));
    *at = Instant::now();
    if !all.contains(&before) {
        all.push(before);
    }
}

/// Whether an error shows that the slot map may be old.
fn asks_for_map(reply: &Value) -> bool {
    let Value::Error(error) = reply else { return false };
    matches!(
        &error.code[..],
        "MOVED" | "ASK" | "CLUSTERDOWN" | "READONLY" | "MASTERDOWN" | "LOADING"
    )
}
