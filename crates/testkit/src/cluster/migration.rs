//! Slots that move from shard to shard, in steps or at once.

use std::collections::BTreeMap;

use super::view::id;
use super::{Cluster, SHARDS, slot};
use crate::node::Node;
use crate::process::eventually;
use crate::{Cli, Flavour, Reply, lock};

/// How many keys `MIGRATE` moves at once.
const KEYS: &str = "100";

/// How long `MIGRATE` may take, in milliseconds.
const LIMIT: &str = "5000";

/// How many slots are moved to a shard in a row while all slots move.
const ROW: usize = 512;

/// A slot that is on its way from shard to shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Migration {
    from: usize,
    to: usize,
}

impl Cluster {
    /// Begins to migrate a slot to another shard. Both nodes know; no key has moved.
    ///
    /// # Panics
    ///
    /// If the shard has the slot, or a node refuses.
    #[track_caller]
    pub fn begin_migration(&self, slot: u16, to: usize) {
        let from = self.shard_of_slot(slot);
        assert_ne!(from, to, "slot {slot} belongs to this shard");
        self.set_slots(to, &[slot], &["IMPORTING", &self.primary_id(from)]);
        self.set_slots(from, &[slot], &["MIGRATING", &self.primary_id(to)]);
        lock(&self.migrations).insert(slot, Migration { from, to });
    }

    /// Moves one key of a slot that is being migrated; whether there was such a key.
    ///
    /// # Panics
    ///
    /// If its slot is not being migrated, or the target refuses.
    #[track_caller]
    pub fn move_key(&self, key: &str) -> bool {
        let Migration { from, to } = self.migration(slot::of_key(key));
        self.hand_over(from, to, &[key.to_owned()])
    }

    /// Moves all keys of a slot that is being migrated.
    ///
    /// # Panics
    ///
    /// If the slot is not being migrated, or the target refuses.
    #[track_caller]
    pub fn move_keys(&self, slot: u16) {
        let Migration { from, to } = self.migration(slot);
        self.hand_over_all(slot, from, to);
    }

    /// Ends the migration of a slot, all keys of which have moved; returns when all nodes agree on its
    /// owner.
    ///
    /// # Panics
    ///
    /// If a node refuses, or they do not agree in time.
    #[track_caller]
    pub fn end_migration(&self, slot: u16) {
        let Migration { from, to } = self.migration(slot);
        self.assign(&[slot], from, to);
        lock(&self.migrations).remove(&slot);
        self.await_owners();
    }

    /// Ends the migration of a slot where it began. Moves keys back: no client may use the slot meanwhile,
    /// because the source takes those keys for missing.
    ///
    /// # Panics
    ///
    /// If a node refuses.
    #[track_caller]
    pub fn abort_migration(&self, slot: u16) {
        let Migration { from, to } = self.migration(slot);
        // Or the source would refuse new keys.
        self.set_slots(from, &[slot], &["STABLE"]);
        self.hand_over_all(slot, to, from);
        self.set_slots(to, &[slot], &["STABLE"]);
        lock(&self.migrations).remove(&slot);
    }

    /// Migrates a slot to another shard, with its keys; returns when all nodes agree on its owner.
    ///
    /// # Panics
    ///
    /// If a node refuses, or they do not agree in time.
    #[track_caller]
    pub fn migrate(&self, slot: u16, to: usize) {
        self.begin_migration(slot, to);
        self.move_keys(slot);
        self.end_migration(slot);
    }

    /// Moves every slot to the next shard, this many times. Every slot is migrated in the same steps,
    /// many at once, so that it may be in use. Returns when all nodes agree.
    ///
    /// # Panics
    ///
    /// If a node refuses, or they do not agree in time.
    #[track_caller]
    pub fn reshard_all(&self, rounds: usize) {
        for _ in 0..rounds {
            let mut slots: Vec<Vec<u16>> = vec![Vec::new(); SHARDS];
            for (slot, shard) in self.slot_map() {
                slots[shard].push(slot);
            }
            // In rows of all shards in turn: a primary without any slot would become a replica.
            let rows = slots.iter().map(|slots| slots.len().div_ceil(ROW)).max().unwrap_or(0);
            for row in 0..rows {
                for (from, slots) in slots.iter().enumerate() {
                    let slots = slots.chunks(ROW).nth(row).unwrap_or(&[]);
                    self.move_slots(slots, from, (from + 1) % SHARDS);
                }
            }
        }
    }

    /// Moves slots with their keys; returns when all nodes agree. Until then the epochs of the nodes are
    /// not known to all, and a migration in another direction could be undone by an old message.
    #[track_caller]
    fn move_slots(&self, slots: &[u16], from: usize, to: usize) {
        if self.flavour == Flavour::Valkey9 {
            return self.move_atomically(slots, from, to);
        }
        self.set_slots(to, slots, &["IMPORTING", &self.primary_id(from)]);
        self.set_slots(from, slots, &["MIGRATING", &self.primary_id(to)]);
        // From here on the source creates no keys in these slots.
        let count = |slot: &u16| words(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]);
        let counts: Vec<_> = slots.iter().map(count).collect();
        let counts = self.primary(from).server().connection().pipeline(&counts);
        let full = slots.iter().zip(counts).filter(|(_, count)| count.int() > 0);
        full.for_each(|(slot, _)| self.hand_over_all(*slot, from, to));
        self.assign(slots, from, to);
        self.await_owners();
    }

    /// The way of Valkey 9, in which each `SETSLOT` waits for replicas.
    #[track_caller]
    fn move_atomically(&self, slots: &[u16], from: usize, to: usize) {
        let mut source = self.primary(from).server().connection();
        let mut command = words(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE"]);
        for range in slots.chunk_by(|slot, next| slot + 1 == *next) {
            command.extend([range[0], range[range.len() - 1]].map(|slot| slot.to_string()));
        }
        command.extend(words(&["NODE", &self.primary_id(to)]));
        source.cmd(&command).ok();
        eventually("the slots are migrated", || {
            let jobs = source.cmd(&["CLUSTER", "GETSLOTMIGRATIONS"]).ok();
            // Names and values in turn.
            let state = |job: &Reply| {
                let at =
                    job.array().iter().position(|word| *word == Reply::Bulk(b"state".to_vec()));
                job.array()[at.expect("a job has a state") + 1].text().to_owned()
            };
            let states: Vec<_> = jobs.array().iter().map(state).collect();
            assert!(!states.iter().any(|state| state == "failed"), "{jobs:?}");
            states.iter().all(|state| state == "success")
        });
        self.await_owners();
    }

    #[track_caller]
    fn migration(&self, slot: u16) -> Migration {
        let migrations: &BTreeMap<u16, Migration> = &lock(&self.migrations);
        *migrations.get(&slot).unwrap_or_else(|| panic!("slot {slot} is not being migrated"))
    }

    /// The target first: until the source is told, it sends clients there.
    #[track_caller]
    fn assign(&self, slots: &[u16], from: usize, to: usize) {
        let others = (0..SHARDS).filter(|shard| *shard != from && *shard != to);
        for shard in [to, from].into_iter().chain(others) {
            self.set_slots(shard, slots, &["NODE", &self.primary_id(to)]);
        }
    }

    #[track_caller]
    fn hand_over_all(&self, slot: u16, from: usize, to: usize) {
        let mut source = self.primary(from).server().connection();
        loop {
            let keys = source.cmd(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), KEYS]).ok();
            let keys: Vec<_> = keys.array().iter().map(|key| key.text().to_owned()).collect();
            if keys.is_empty() {
                return;
            }
            self.hand_over_by(&mut source, self.primary(to), &keys);
        }
    }

    #[track_caller]
    fn hand_over(&self, from: usize, to: usize, keys: &[String]) -> bool {
        let mut source = self.primary(from).server().connection();
        self.hand_over_by(&mut source, self.primary(to), keys)
    }

    /// Whether there was any of these keys.
    #[track_caller]
    fn hand_over_by(&self, source: &mut Cli, target: &Node, keys: &[String]) -> bool {
        let port = target.server().port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", LIMIT];
        if let Some(password) = target.server().password() {
            command.extend(["AUTH", password]);
        }
        command.push("KEYS");
        command.extend(keys.iter().map(String::as_str));
        source.cmd(&command).ok().text() != "NOKEY"
    }

    #[track_caller]
    fn set_slots(&self, shard: usize, slots: &[u16], state: &[&str]) {
        let command =
            |slot: &u16| words(&[&["CLUSTER", "SETSLOT", &slot.to_string()], state].concat());
        let commands: Vec<_> = slots.iter().map(command).collect();
        let replies = self.primary(shard).server().connection().pipeline(&commands);
        replies.into_iter().for_each(|reply| drop(reply.ok()));
    }

    #[track_caller]
    fn primary_id(&self, shard: usize) -> String {
        id(self.number, self.primary_index(shard))
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
