//! Some keys of a slot are on one node and some on another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{AnyLock, Client, ClientOptions, Error};
use testkit::{Cluster, Reply};

use super::{connected, on, primaries};
use crate::primitives::{Handle, Held, LEASED, Primitive, each, ends_by_itself, set_up};
use crate::support::*;

/// The source and the target of all migrations here.
const FROM: usize = 0;
const TO: usize = 1;

/// A release that has not ended after this is repeated until the migration ends.
const ANSWER: Duration = Duration::from_secs(3);

/// Which keys of a slot have moved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Moved {
    Nothing,
    /// The key that is called like the lock.
    Main,
    FirstOther,
    Others,
    All,
}

const STATES: [Moved; 5] =
    [Moved::Nothing, Moved::Main, Moved::FirstOther, Moved::Others, Moved::All];

/// Whether all of its requests have one key, which is on either node.
fn is_served(primitive: Primitive) -> bool {
    matches!(primitive, Primitive::Lock | Primitive::Mutex | Primitive::Spin)
}

/// A client that gives up soon if its requests are refused, and not if an answer takes time.
fn soon_refused() -> ClientOptions {
    options().unreachable_after(ms(500)).response_timeout(PATIENCE)
}

/// Names in the shard from which slots are migrated, each in a slot of its own.
fn names(cluster: &Cluster, count: usize) -> Vec<String> {
    let mut slots = BTreeSet::new();
    let mut names = cluster.names_on(FROM, 2 * count);
    names.retain(|name| slots.insert(Cluster::slot_of(name)));
    names.truncate(count);
    assert_eq!(names.len(), count);
    names
}

/// A name whose slot is being migrated.
#[derive(Clone)]
struct Case {
    cluster: Arc<Cluster>,
    name: String,
    moved: Moved,
}

impl Case {
    /// Names for each state.
    fn all(cluster: &Arc<Cluster>, names: &[String]) -> Vec<Self> {
        let case = |(name, moved): (&String, Moved)| Self {
            cluster: Arc::clone(cluster),
            name: name.clone(),
            moved,
        };
        names.iter().zip(STATES).map(case).collect()
    }

    fn slot(&self) -> u16 {
        Cluster::slot_of(&self.name)
    }

    async fn begin(&self) {
        let Self { moved, name, .. } = self.clone();
        let slot = self.slot();
        let begin = move |cluster: &Cluster| {
            let (main, others): (Vec<_>, Vec<_>) =
                keys(cluster, FROM, slot).into_iter().partition(|key| *key == name);
            cluster.begin_migration(slot, TO);
            let moving = match moved {
                Moved::Nothing => vec![],
                Moved::Main => main,
                Moved::FirstOther => others.into_iter().take(1).collect(),
                Moved::Others => others,
                Moved::All => [main, others].concat(),
            };
            moving.iter().for_each(|key| assert!(cluster.move_key(key), "{key}"));
        };
        on(&self.cluster, begin).await;
    }

    async fn end(&self) {
        let slot = self.slot();
        let end = move |cluster: &Cluster| {
            cluster.move_keys(slot);
            cluster.end_migration(slot);
        };
        on(&self.cluster, end).await;
    }

    /// Sends a command about one key, or about a field of it, to the node that has the key.
    fn cmd(&self, command: &[&str]) -> Reply {
        let nodes = [FROM, TO].map(|shard| {
            let mut cli = self.cluster.primary(shard).server().connection();
            cli.cmd(&["ASKING"]).ok();
            let has_key = cli.cmd(&["EXISTS", command[1]]) == Reply::Int(1);
            cli.cmd(&["ASKING"]).ok();
            has_key.then(|| cli.cmd(command).ok())
        });
        nodes.into_iter().flatten().next().expect("the key exists")
    }

    /// Keys and values of the slot on both nodes. No key is on both.
    #[track_caller]
    fn stored(&self) -> BTreeMap<String, Vec<u8>> {
        let mut stored = BTreeMap::new();
        for shard in [FROM, TO] {
            let mut cli = self.cluster.primary(shard).server().connection();
            for key in keys(&self.cluster, shard, self.slot()) {
                cli.cmd(&["ASKING"]).ok();
                if let Reply::Bulk(value) = cli.cmd(&["DUMP", &key]).ok() {
                    assert!(!stored.contains_key(&key), "{key} is on both nodes");
                    stored.insert(key, value);
                }
            }
        }
        stored.retain(|key, _| !ends_by_itself(key));
        stored
    }
}

fn keys(cluster: &Cluster, shard: usize, slot: u16) -> Vec<String> {
    let server = cluster.primary(shard).server();
    let keys = server.cli(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "1000"]).ok();
    let mut keys: Vec<_> = keys.array().iter().map(|key| key.text().to_owned()).collect();
    keys.sort();
    keys
}

/// Another client gets a lock in no state of its slot while it is held, and every request either runs as a
/// whole or changes nothing. After the migration, requests that could not run have run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_in_a_half_migrated_slot_runs_or_changes_nothing() {
    let cluster = primaries().await;
    let holders = [connected(&cluster, options()).await, connected(&cluster, options()).await];
    let _listening = [listening_client(&holders[0]).await, listening_client(&holders[1]).await];
    let other = connected(&cluster, soon_refused()).await;
    let names = names(&cluster, Primitive::ALL.len() * STATES.len());
    let cases: Vec<_> = names.chunks(STATES.len()).map(|some| Case::all(&cluster, some)).collect();
    each(&Primitive::ALL, |primitive| {
        let at = Primitive::ALL.iter().position(|one| *one == primitive).expect("one of them");
        let (cases, holders, other) = (cases[at].clone(), holders.clone(), other.clone());
        async move {
            let run =
                |case| runs_or_changes_nothing(primitive, case, holders.clone(), other.clone());
            let running: Vec<_> = cases.into_iter().map(run).map(tokio::spawn).collect();
            for case in running {
                joined(case).await;
            }
        }
    })
    .await;
}

async fn runs_or_changes_nothing(
    primitive: Primitive,
    case: Case,
    holders: [Client; 2],
    other: Client,
) {
    let what = format!("{primitive:?} with {:?} moved", case.moved);
    set_up(&other, primitive, &case.name).await;
    // Two readers have two keys of their own.
    let count = if primitive == Primitive::Read { 2 } else { 1 };
    let mut held = Vec::new();
    for client in &holders[..count] {
        held.push(Handle::new(client, primitive, &case.name).held().await);
    }
    case.begin().await;
    let before = case.stored();
    let theirs = Handle::new(&other, primitive, &case.name).exclusive();
    match within(PATIENCE, "an attempt", theirs.attempt()).await {
        Ok(None) => {}
        Ok(Some(held)) => panic!("{what}: granted beside the holder: {held:?}"),
        Err(Error::Refused { .. }) => assert!(!is_served(primitive), "{what}: not served"),
        Err(error) => panic!("{what}: {error:?}"),
    }
    assert_eq!(case.stored(), before, "{what}: an attempt changed something");

    let mut pending = Vec::new();
    for held in held {
        let before = case.stored();
        let mut release = tokio::spawn(held.release());
        let limit = if is_served(primitive) { PATIENCE } else { ANSWER };
        match tokio::time::timeout(limit, &mut release).await {
            Ok(released) => {
                let released = released.expect("no panic");
                released.unwrap_or_else(|error| panic!("{what}: {error:?}"));
                assert_ne!(case.stored(), before, "{what}: released, and nothing changed");
            }
            Err(_) => {
                assert!(!is_served(primitive), "{what}: the release was not served");
                assert_eq!(case.stored(), before, "{what}: a release changed something");
                pending.push(release);
            }
        }
    }
    case.end().await;
    for release in pending {
        within(PATIENCE, "the release", joined(release)).await.expect("held");
    }
    theirs.assert_free_within(PATIENCE).await;
}

/// A free lock is either acquired, by one client, or nothing is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_lock_in_a_half_migrated_slot_is_acquired_once_or_not_at_all() {
    let cluster = primaries().await;
    let one = connected(&cluster, soon_refused()).await;
    let other = connected(&cluster, soon_refused()).await;
    let names = names(&cluster, Primitive::ALL.len());
    for (primitive, name) in Primitive::ALL.into_iter().zip(names) {
        set_up(&one, primitive, &name).await;
        let case = Case { cluster: Arc::clone(&cluster), name, moved: Moved::Nothing };
        case.begin().await;
        let before = case.stored();
        let [one, other] = [&one, &other].map(|client| Handle::new(client, primitive, &case.name));
        let held = match within(PATIENCE, "an attempt", one.attempt()).await {
            Ok(Some(held)) => Some(held),
            Ok(None) => panic!("{primitive:?} is free"),
            Err(Error::Refused { .. }) => {
                assert!(!is_served(primitive), "{primitive:?}: not served");
                assert_eq!(case.stored(), before, "{primitive:?}: an attempt changed something");
                None
            }
            Err(error) => panic!("{primitive:?}: {error:?}"),
        };
        if held.is_some() {
            let second = within(PATIENCE, "an attempt", other.exclusive().attempt()).await;
            assert!(!matches!(second, Ok(Some(_))), "{primitive:?}: two holders");
        }
        case.end().await;
        if let Some(held) = held {
            held.release().await.expect("held");
        }
        other.assert_free_within(PATIENCE).await;
    }
}

/// Holds are renewed in every state of their slots, for longer than a lease, with all of their keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_in_half_migrated_slots_are_renewed() {
    const LEASE: Duration = Duration::from_secs(6);
    let cluster = primaries().await;
    let lasting = options().watchdog_timeout(LEASE);
    let clients = [connected(&cluster, lasting.clone()).await, connected(&cluster, lasting).await];
    let names = names(&cluster, (LEASED.len() + 1) * STATES.len());
    let (temporary, names) = names.split_at(STATES.len());
    let mut holds = Vec::new();
    for case in Case::all(&cluster, temporary) {
        let semaphore = AnyLock::from(clients[0].permit_semaphore(&case.name).temporary(5));
        let held = Held::Guard(semaphore.lock().await.expect("it is free"));
        case.begin().await;
        holds.push((Primitive::Permits, case, held));
    }
    for (primitive, names) in LEASED.iter().copied().zip(names.chunks(STATES.len())) {
        for case in Case::all(&cluster, names) {
            set_up(&clients[0], primitive, &case.name).await;
            let held = Handle::new(&clients[0], primitive, &case.name).held().await;
            if primitive == Primitive::Read {
                // Several keys, and another reader whose lease is longer.
                let again = held.guard().reenter().await.expect("held");
                let other =
                    Handle::new(&clients[1], primitive, &case.name).leased(4 * PATIENCE).await;
                holds.push((primitive, case.clone(), Held::Guard(again)));
                holds.push((primitive, case.clone(), other));
            }
            case.begin().await;
            holds.push((primitive, case, held));
        }
    }
    let keys = |case: &Case| case.stored().into_keys().collect::<Vec<_>>();
    let stored: Vec<_> = holds.iter().map(|(_, case, _)| keys(case)).collect();
    tokio::time::sleep(2 * LEASE).await;
    for ((primitive, case, held), stored) in holds.iter().zip(stored) {
        let what = format!("{primitive:?} with {:?} moved", case.moved);
        assert!(!held.guard().is_lost(), "{what}: {:?}", held.guard());
        assert_eq!(keys(case), stored, "{what}");
        if *primitive == Primitive::Read {
            let left = case.cmd(&["PTTL", &case.name]).int();
            assert!(left > LEASE.as_millis() as i64, "{what}: shortened to {left} ms");
        }
    }
    let mut ended = BTreeSet::new();
    for (primitive, case, held) in holds {
        if ended.insert(case.slot()) {
            case.end().await;
        }
        let what = format!("{primitive:?} with {:?} moved", case.moved);
        let released = within(PATIENCE, "the release", held.release()).await;
        released.unwrap_or_else(|error| panic!("{what}: {error:?}"));
    }
}

/// A hold in a half-migrated slot is lost with its entry in the lock, or with its own key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_is_removed_in_a_half_migrated_slot_is_lost() {
    let cluster = primaries().await;
    let brief = options().watchdog_timeout(Duration::from_secs(3));
    let clients = [connected(&cluster, brief.clone()).await, connected(&cluster, brief).await];
    let mut others = Vec::new();
    let kinds = [Primitive::Read, Primitive::Read, Primitive::Permits];
    for (n, (primitive, name)) in kinds.into_iter().zip(names(&cluster, kinds.len())).enumerate() {
        let case = Case { cluster: Arc::clone(&cluster), name, moved: Moved::Main };
        let Case { name, .. } = &case;
        set_up(&clients[0], primitive, name).await;
        let held = Handle::new(&clients[0], primitive, name).held().await;
        if primitive == Primitive::Read {
            // It keeps the lock, but not the hold of the first one.
            let other = Handle::new(&clients[1], primitive, name).held().await;
            others.push(other);
        }
        case.begin().await;
        let owner = held.guard().owner_id().to_string();
        let own = format!("{{{name}}}:{owner}:rwlock_timeout:1");
        let removed = match n {
            0 => case.cmd(&["HDEL", name, &owner]),
            1 => case.cmd(&["DEL", &own]),
            _ => case.cmd(&["DEL", &format!("{{{name}}}:timeout")]),
        };
        assert_eq!(removed.int(), 1, "{primitive:?}");
        within(PATIENCE, "the loss", held.guard().lost()).await;
        case.end().await;
    }
}

/// A latch counts down once for each call, at the latest when the migration has ended, and opens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_in_a_half_migrated_slot_counts_each_call_once() {
    let cluster = primaries().await;
    let (one, other) = (connected(&cluster, options()).await, connected(&cluster, options()).await);
    for (name, moved) in names(&cluster, 2).into_iter().zip([Moved::Nothing, Moved::All]) {
        let case = Case { cluster: Arc::clone(&cluster), name, moved };
        let latch = one.count_down_latch(&case.name);
        assert!(latch.try_set_count(2).await.expect("reachable"));
        let waiter = other.count_down_latch(&case.name);
        let waiter = tokio::spawn(async move { waiter.wait().await });
        case.begin().await;
        let before = case.stored();
        let counting = latch.clone();
        let mut counted = tokio::spawn(async move { counting.count_down().await });
        let left = match tokio::time::timeout(ANSWER, &mut counted).await {
            Ok(counted) => counted.expect("no panic"),
            Err(_) => {
                assert_eq!(case.stored(), before, "{moved:?}: it has counted");
                case.end().await;
                within(PATIENCE, "counting", joined(counted)).await
            }
        };
        match left {
            Ok(left) => assert_eq!(left, 1, "{moved:?}"),
            Err(Error::Refused { .. }) => {
                assert_eq!(case.stored(), before, "{moved:?}: it has counted");
                case.end().await;
                assert_eq!(latch.count_down().await.expect("the slot is whole"), 1);
            }
            Err(error) => panic!("{moved:?}: {error:?}"),
        }
        if cluster.shard_of(&case.name) == FROM {
            case.end().await;
        }
        assert_eq!(latch.count_down().await.expect("the slot is whole"), 0);
        within(PATIENCE, "the latch opens", joined(waiter)).await.expect("reachable");
    }
}

/// A waiter waits out a migration, however long a store may be silent before a waiter gives up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_waits_until_its_slot_is_complete() {
    let cluster = primaries().await;
    let patience = Duration::from_millis(500);
    let client = connected(&cluster, options().unreachable_after(patience)).await;
    let name = names(&cluster, 1).remove(0);
    let slot = Cluster::slot_of(&name);
    on(&cluster, move |cluster| cluster.begin_migration(slot, TO)).await;
    let lock = client.fair_lock(&name);
    let refused = lock.try_lock().await.expect_err("a node has only some of its keys");
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    tokio::time::sleep(patience * 4).await;
    assert!(!waiter.is_finished(), "it has given up");
    on(&cluster, move |cluster| cluster.end_migration(slot)).await;
    let guard = within(PATIENCE, "the slot is complete", waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
}
