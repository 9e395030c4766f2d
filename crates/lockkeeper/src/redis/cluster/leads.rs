//! Which shard leads to which server.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::slot_map::{Node, SlotMap};
use super::{Cluster, IDLE, Map, index};
use crate::backend::Lane;
use crate::backend::unpoisoned;
use crate::redis::connection::Connection;
use crate::redis::connection::committer::Committer;
use crate::redis::primary::Primary;
use crate::redis::server::Server;
use crate::redis::shard::Shard;

impl Cluster {
    /// Finds the shard of each slot, and the server of each of these shards: one shard for one primary.
    pub(super) fn assign(
        &self,
        map: &mut Map,
        newest: &SlotMap,
    ) -> (Vec<Option<usize>>, Vec<(usize, Server)>) {
        let primaries: HashSet<&str> =
            newest.slots.iter().flatten().map(|n| &newest.ranges[*n].primary.id[..]).collect();
        let mut of_primary = HashMap::new();
        let mut servers = Vec::new();
        let owners = newest.slots.iter().enumerate().map(|(slot, n)| {
            let range = &newest.ranges[(*n)?];
            Some(*of_primary.entry(&range.primary.id).or_insert_with(|| {
                let index = self.shard_of(map, slot, &range.primary, &primaries);
                map.nodes[index] = range.nodes().cloned().collect();
                servers.push((index, range.primary.server(&self.seeds[0])));
                index
            }))
        });
        (owners.collect(), servers)
    }

    /// Leads shards to their servers. Others leave these before that: the next connections find what was given
    /// up there, and kill it. Returns whether a redirection outlasts one of them.
    pub(super) fn lead(&self, map: &Map, servers: &[(usize, Server)]) -> bool {
        let shards = self.shards();
        let of_node: HashMap<_, _> = servers.iter().map(|(n, server)| (&server.node, *n)).collect();
        let is_wanted = |index: usize| {
            let server = shards[index].primary.server();
            let wants = server.and_then(|server| of_node.get(&server.node).copied());
            wants.is_some_and(|other| other != index)
        };
        let leads: Vec<_> = servers
            .iter()
            .filter(|(n, server)| is_wanted(*n) || !map.overrules_lead(*n, server, &shards[*n]))
            .collect();
        // Two may exchange their servers.
        let moves = leads.iter().filter(|(index, server)| !shards[*index].primary.is(server));
        let moves = moves.map(|(index, _)| *index);
        let leaves: Vec<_> = moves.chain((0..shards.len()).filter(|n| is_wanted(*n))).collect();
        leaves.iter().for_each(|index| shards[*index].primary.park());
        let is_overruled = leads.len() < servers.len();
        for (index, server) in leads {
            shards[*index].primary.lead_to(server, map.nodes[*index].len() > 1);
        }
        is_overruled
    }

    /// Returns the shard of this primary: the one that it leads, or the one that it was a replica of, or whose
    /// slot it has, if the primary of that one is none any more. Otherwise a new one.
    fn shard_of(
        &self,
        map: &mut Map,
        slot: usize,
        primary: &Node,
        primaries: &HashSet<&str>,
    ) -> usize {
        let leads = |nodes: &Vec<Node>| nodes.first().is_some_and(|node| node.id == primary.id);
        let is_left =
            |nodes: &Vec<Node>| nodes.first().is_some_and(|node| !primaries.contains(&node.id[..]));
        let succeeds =
            |nodes: &Vec<Node>| nodes.iter().any(|node| node.id == primary.id) && is_left(nodes);
        // Nodes do not list a replica that they know nothing of yet.
        let before = index(self.owners[slot].load(Ordering::Relaxed));
        let found = map.nodes.iter().position(leads);
        let found = found.or_else(|| map.nodes.iter().position(succeeds));
        let found = found.or(before.filter(|before| is_left(&map.nodes[*before])));
        found.unwrap_or_else(|| self.add(map))
    }

    /// Adds a shard, or takes one that another one has replaced.
    pub(super) fn add(&self, map: &mut Map) -> usize {
        if let Some(index) = map.nodes.iter().position(Vec::is_empty) {
            return index;
        }
        let _runtime = self.runtime.enter();
        let index = map.nodes.len();
        let lane = Lane(index as u32);
        let primary = Primary::suspected_by(Arc::clone(&self.suspected));
        let me = Weak::clone(&self.me);
        let connected = move || me.upgrade().iter().for_each(|me| (me.connected)(lane));
        let connection =
            Connection::later(&primary, &self.options, &self.given_up, None, connected);
        let me = Weak::clone(&self.me);
        let key = move |rejected| me.upgrade()?.commit_key(lane, rejected);
        let committer =
            self.terms.map(|terms| Committer::later(&primary, &self.options, terms, Box::new(key)));
        map.nodes.push(Vec::new());
        map.idle.push(None);
        let shard = Arc::new(Shard { lane, primary, connection, committer });
        unpoisoned(self.shards.write()).push(shard);
        index
    }

    /// Ends shards that have had no slots for a while, or that are replicas of others now.
    pub(super) fn park(&self, map: &mut Map, newest: &SlotMap) {
        let shards = self.shards();
        let has_slots = self.has_slots(shards.len());
        let replicas: HashSet<_> =
            newest.ranges.iter().flat_map(|range| &range.replicas).map(|node| &node.id).collect();
        for (index, shard) in shards.iter().enumerate() {
            let idle = &mut map.idle[index];
            if has_slots[index] {
                *idle = None;
                continue;
            }
            // Another shard has replaced it, and gets its server if that is promoted again.
            let is_replica =
                map.nodes[index].first().is_some_and(|node| replicas.contains(&node.id))
                    && !map.redirected_shards.contains_key(&index);
            if is_replica || idle.get_or_insert_with(Instant::now).elapsed() > IDLE {
                map.nodes[index].clear();
                shard.primary.park();
            }
        }
    }
}
