//! What a node knows of the cluster: the answer to `CLUSTER NODES`, and the file from which it starts.

use std::collections::BTreeMap;

use super::slot;
use crate::Flavour;
use crate::node::Node;

/// Forty digits, as a node would choose at random, of which the first eight are those of its cluster.
pub(super) fn id(cluster: u32, index: usize) -> String {
    format!("{cluster:08x}{:032x}", index + 1)
}

fn index(id: &str) -> usize {
    usize::from_str_radix(&id[8..], 16).expect("the id of one of our nodes") - 1
}

/// What a node knows of the cluster, by the index of each node.
pub(super) type View = BTreeMap<usize, Member>;

/// One node as another one sees it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Member {
    /// The index of its primary, if it is a replica.
    pub(super) replicates: Option<usize>,
    pub(super) epoch: u64,
    /// First and last slot of each range.
    pub(super) slots: Vec<(u16, u16)>,
    /// Whether there is a connection to it, and no doubt that it is well.
    pub(super) well: bool,
}

impl Member {
    pub(super) fn all_slots(&self) -> impl Iterator<Item = u16> {
        self.slots.iter().flat_map(|(first, last)| *first..=*last)
    }
}

#[track_caller]
pub(super) fn of(node: &Node) -> View {
    node.server().cli(&["CLUSTER", "NODES"]).ok().text().lines().map(member).collect()
}

/// `id address flags primary ping pong epoch link slots…`
fn member(line: &str) -> (usize, Member) {
    let words: Vec<_> = line.split(' ').collect();
    let doubt = ["fail", "handshake", "noaddr"].iter().any(|flag| words[2].contains(flag));
    // In brackets: slots that are being migrated.
    let ranges = words[8..].iter().filter(|range| !range.starts_with('['));
    let slot = |slot: &str| slot.parse().expect("a slot");
    let range = |range: &&str| match range.split_once('-') {
        Some((first, last)) => (slot(first), slot(last)),
        None => (slot(range), slot(range)),
    };
    let member = Member {
        replicates: (words[3] != "-").then(|| index(words[3])),
        epoch: words[6].parse().expect("an epoch"),
        slots: ranges.map(range).collect(),
        well: words[7] == "connected" && !doubt,
    };
    (index(words[0]), member)
}

/// The file `nodes.conf` of one node that has already met the others, which have these ports for clients
/// and for the bus. The first nodes are the primaries. A cluster with a higher number has higher epochs.
pub(super) fn file(
    cluster: u32,
    me: usize,
    ports: &[(u16, u16)],
    shards: usize,
    flavour: Flavour,
) -> String {
    let epochs = 1000 * cluster as usize;
    let line = |(index, (port, bus)): (usize, &(u16, u16))| {
        let shard = index % shards;
        let replica = index >= shards;
        let name = match flavour {
            Flavour::Valkey9 => format!(",,shard-id={}", id(cluster, shard)),
            Flavour::System | Flavour::Redis62 => String::new(),
        };
        let myself = if index == me { "myself," } else { "" };
        let role =
            if replica { format!("slave {}", id(cluster, shard)) } else { "master -".to_owned() };
        let (slots, epoch) = (slot::of_shard(shard, shards), epochs + shard + 1);
        let slots = (!replica).then(|| format!(" {}-{}", slots.start(), slots.end()));
        let slots = slots.unwrap_or_default();
        let address = format!("127.0.0.1:{port}@{bus}{name}");
        format!("{} {address} {myself}{role} 0 0 {epoch} connected{slots}\n", id(cluster, index))
    };
    let lines: String = ports.iter().enumerate().map(line).collect();
    format!("{lines}vars currentEpoch {} lastVoteEpoch 0\n", epochs + shards)
}
