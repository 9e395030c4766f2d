//! Which shard leads to which server.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};

use tokio::time::Instant;

use super::super::super::connection::Connection;
use super::super::super::connection::committer::Committer;
use super::super::super::primary::Primary;
use super::super::super::shard::Shard;
use super::super::super::url::Server;
use super::super::slots::{Node, SlotMap};
use super::{Cluster, IDLE, Map, index};
use crate::backend::Lane;

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
            let Node { id, host, port } = &range.primary;
            Some(*of_primary.entry((id, host, port)).or_insert_with(|| {
                let index = self.shard_of(map, slot, &range.primary, &primaries);
                let nodes = std::iter::once(&range.primary).chain(&range.replicas);
                map.nodes[index] = nodes.cloned().collect();
                servers.push((index, self.seeds[0].at(host, *port)));
                index
            }))
        });
        (owners.collect(), servers)
    }

    /// Returns the shards that lead to the server of another one, by a redirection or under another name, with
    /// that one.
    pub(super) fn doubles(&self, map: &Map, servers: &[(usize, Server)]) -> HashMap<usize, usize> {
        let at = servers.iter().map(|(index, server)| (server.address.to_string(), *index));
        let at: HashMap<_, _> = at.collect();
        let of_id = servers.iter().filter_map(|(index, _)| Some((map.id(*index)?, *index)));
        let of_id: HashMap<_, _> = of_id.collect();
        let original = |index: usize, shard: &Shard| {
            let server = shard.primary.server();
            let by_address = server.and_then(|server| at.get(&server.address.to_string()));
            let by_id = map.id(index).and_then(|id| of_id.get(id));
            by_address.into_iter().chain(by_id).copied().find(|original| *original != index)
        };
        let shards = self.shards();
        let shards = shards.iter().enumerate();
        shards.filter_map(|(index, shard)| Some((index, original(index, shard)?))).collect()
    }

    /// Leads shards to their servers. Doubles leave theirs before that, and so do the shards that they are
    /// doubles of: their next connections find what was given up there, and kill it. Returns whether a
    /// redirection outlasts one of them.
    pub(super) fn lead(
        &self,
        map: &mut Map,
        servers: &[(usize, Server)],
        doubles: &HashMap<usize, usize>,
    ) -> bool {
        let shards = self.shards();
        let leaves = |index: &usize| {
            doubles.contains_key(index) || doubles.values().any(|original| original == index)
        };
        let leads: Vec<_> = servers
            .iter()
            .filter(|(n, server)| leaves(n) || !map.outlasts_lead(*n, server, &shards[*n]))
            .collect();
        for (index, shard) in shards.iter().enumerate().filter(|(index, _)| leaves(index)) {
            shard.primary.park();
            map.led.remove(&index);
            if !servers.iter().any(|(other, _)| *other == index) {
                map.nodes[index].clear();
            }
        }
        // Two may exchange their servers.
        let moves = leads.iter().filter(|(index, server)| !shards[*index].primary.is(server));
        moves.for_each(|(index, _)| shards[*index].primary.park());
        let is_outlasted = leads.len() < servers.len();
        for (index, server) in leads {
            shards[*index].primary.lead_to(server);
        }
        is_outlasted
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
        let at = |nodes: &Vec<Node>| {
            // Learnt from a redirection, which does not tell an id.
            nodes
                .first()
                .is_some_and(|node| node.id.is_empty() && node.is_at(&primary.host, primary.port))
        };
        let is_left =
            |nodes: &Vec<Node>| nodes.first().is_some_and(|node| !primaries.contains(&node.id[..]));
        let succeeds =
            |nodes: &Vec<Node>| nodes.iter().any(|node| node.id == primary.id) && is_left(nodes);
        // Nodes do not list a replica that they know nothing of yet.
        let before = index(self.owners[slot].load(Ordering::Relaxed));
        // First: it is connected to that address already.
        let found = map.nodes.iter().position(at);
        let found = found.or_else(|| map.nodes.iter().position(leads));
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
        let connection = Connection::later(&primary, &self.options, &self.given_up, connected);
        let me = Weak::clone(&self.me);
        let key = move |rejected| me.upgrade()?.commit_key(lane, rejected);
        let committer =
            self.terms.map(|terms| Committer::later(&primary, &self.options, terms, Box::new(key)));
        map.nodes.push(Vec::new());
        map.idle.push(None);
        let shard = Arc::new(Shard { lane, primary, connection, committer });
        self.shards.write().unwrap_or_else(PoisonError::into_inner).push(shard);
        index
    }

    /// Lets shards rest that have had no slots for a while, or whose servers are replicas of others now.
    pub(super) fn park(&self, map: &mut Map, newest: &SlotMap) {
        let shards = self.shards();
        let has_slots = self.has_slots(shards.len());
        let replicas = newest.ranges.iter().flat_map(|range| &range.replicas);
        let replicas: Vec<_> =
            replicas.map(|node| self.seeds[0].at(&node.host, node.port)).collect();
        for (index, shard) in shards.iter().enumerate() {
            let idle = &mut map.idle[index];
            if has_slots[index] {
                *idle = None;
            } else if replicas.iter().any(|replica| shard.primary.is(replica))
                && !map.led.contains_key(&index)
            {
                // Another shard has replaced it, and gets its server if that is promoted again.
                map.nodes[index].clear();
                shard.primary.park();
            } else if idle.get_or_insert_with(Instant::now).elapsed() > IDLE {
                shard.primary.park();
            }
        }
    }
}
