//! Requests of several clients, or of one, that meet on the members in different orders.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::backend::{Acquire, Attempt, Backend, Fault, Release, Renew, Renewed, Resource};
use lockkeeper::{Client, ClientOptions, Error, Kind, LockName, LostReason, OwnerId, stores};
use testkit::{History, Quorum, Stopwatch};
use tokio::sync::Barrier;
use tokio::time::Instant;

use super::reports::{quorum_options, start as start_members, trusted};
use super::{
    LEASE, PRIMITIVES, all_vote, away, back, clients, connected, exists, held_on, leased, names,
    on, started,
};
use crate::primitives::Handle;
use crate::support::*;

/// How long a request or an answer is on its way.
const DELAY: Duration = Duration::from_millis(30);

/// A member lacks the hold, the renewal finds out and repairs it, and the lock is released meanwhile. The
/// repair would expire only after a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_beats_a_repair() {
    let quorum = started(Quorum::builder(3).proxied()).await;
    let client = clients(&quorum, 1).await.remove(0);
    quorum.nodes().iter().for_each(|node| node.proxy().delay(DELAY));
    let repaired = Arc::new(AtomicUsize::new(0));
    let rounds = (0..24).map(|n| {
        let (client, quorum) = (client.clone(), Arc::clone(&quorum));
        tokio::spawn(release_around_a_repair(client, quorum, n, Arc::clone(&repaired)))
    });
    for task in rounds.collect::<Vec<_>>() {
        joined(task).await;
    }
    let repaired = repaired.load(Ordering::SeqCst);
    println!("{repaired} of {} holds were repaired before their release", 24 * ROUNDS);
    assert!(repaired > 0, "there were no repairs to race with");
}

const ROUNDS: usize = 3;

async fn release_around_a_repair(
    client: Client,
    quorum: Arc<Quorum>,
    n: usize,
    repaired: Arc<AtomicUsize>,
) {
    let (name, member) = (format!("name-{n}"), n % 3);
    let lock = lock_of(&client, KINDS[n % 2], &name);
    for _ in 0..ROUNDS {
        let guard = taken(&lock).await;
        eventually(PATIENCE, "on all members", || held_on(&quorum, &name).len() == 3).await;
        quorum.server(member).cli(&["DEL", name.as_str()]).ok();
        // Or the repair is sent by a hash that the member knows, in a single message.
        quorum.server(member).cli(&["SCRIPT", "FLUSH"]).ok();
        // The renewal is due after a third of the lease; its answers and the repair take four delays.
        let around = (LEASE / 3 + 3 * DELAY).mul_f64(0.9 + 0.3 * fastrand::f64());
        tokio::time::sleep(around).await;
        repaired.fetch_add(usize::from(exists(quorum.server(member), &name)), Ordering::SeqCst);
        guard.release().await.expect("held on two members");
        let released = Stopwatch::start();
        while !held_on(&quorum, &name).is_empty() {
            assert!(
                released.elapsed() < LEASE / 2,
                "{name} is left on {:?}",
                held_on(&quorum, &name)
            );
            tokio::time::sleep(ms(50)).await;
        }
    }
}

/// A member that was away for long knows the script of releases, which it got meanwhile, but not that of
/// acquires: it asks for its text, and a lock that is held for a moment only is released before that comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_beats_an_acquire_that_is_sent_again() {
    let quorum = started(Quorum::builder(3).proxied()).await;
    let client = clients(&quorum, 1).await.remove(0);
    let slow = quorum.server(2);
    quorum.node(2).proxy().delay(DELAY);
    for (primitive, release) in PRIMITIVES.into_iter().map(|one| (one, one.release_script())) {
        let name = format!("{primitive:?}");
        slow.cli(&["SCRIPT", "FLUSH"]).ok();
        slow.cli(&["SCRIPT", "LOAD", release]).ok();
        Handle::new(&client, primitive, &name).held().await.release().await.expect("held");
        // What comes after the release has come by then; what was left would expire later.
        tokio::time::sleep(LEASE / 2).await;
        assert!(!exists(slow, &name), "{name} is left");
    }
}

/// Two members lose a hold that three have. The vote of the third keeps others out until the holder knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_knows_of_its_loss_before_its_last_vote_is_released() {
    let quorum = started(Quorum::builder(5).proxied()).await;
    let two = clients(&quorum, 2).await;
    away(&quorum, 0).await;
    away(&quorum, 2).await;
    let locks = names(64).into_iter().map(|name| two[0].lock(name).lock()).map(tokio::spawn);
    let mut guards = Vec::new();
    for lock in locks.collect::<Vec<_>>() {
        guards.push(joined(lock).await.expect("three members vote"));
    }
    back(&quorum, 0);
    back(&quorum, 2);
    for index in [1, 3] {
        quorum.server(index).cli(&["FLUSHALL"]).ok();
    }
    let begun = Stopwatch::start();
    let waiters = guards.into_iter().map(|guard| {
        let lock = two[1].lock(guard.name().as_bytes());
        tokio::spawn(async move {
            let next = within(PATIENCE, "its loss", lock.lock()).await.expect("reachable");
            let is_lost = guard.is_lost();
            next.release().await.expect("held");
            is_lost
        })
    });
    for waiter in waiters.collect::<Vec<_>>() {
        assert!(joined(waiter).await, "two holders");
    }
    // Sooner than the two members vote again.
    assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
}

/// A hold is on a bare majority, because another client has a vote. One of these members is silent when the
/// lock is handed off to a task of the same client. Or the hold was force-released on a majority, another client
/// has held the lock there, and the silent member is one of these: the answers are the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handoff_that_no_majority_can_move_is_unconfirmed() {
    for rivals in [&[2][..], &[0, 1]] {
        let quorum = start_members(Quorum::builder(3).proxied()).await;
        let client = trusted(&quorum).await;
        let each = |args: &[&str]| {
            rivals.iter().for_each(|member| drop(quorum.server(*member).cli(args).ok()));
        };
        each(&["HSET", "b", "rival:1", "1"]);
        if rivals == [2] {
            each(&["RENAME", "b", "a"]);
        }
        let lock = client.lock("a");
        let first = lock.lock().await.expect("a majority");
        let mut next = Box::pin(lock.lock());
        start(&mut next).await;
        if rivals != [2] {
            each(&["RENAME", "b", "a"]);
        }
        quorum.node(0).proxy().black_hole(true);
        // Within 10 ms of the grant it is a handoff.
        let released = within(PATIENCE, "the release", first.release()).await;
        assert!(matches!(released, Err(Error::Unconfirmed { .. })), "{released:?}");
        each(&["DEL", "a"]);
        let next = within(PATIENCE, "the next one", next).await.expect("two members vote");
        next.release().await.expect("held");
    }
}

/// Its holder does not receive the notice, and a member does not receive the force-release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_release_is_not_repaired() {
    for kind in KINDS {
        let quorum = started(Quorum::builder(3).proxied()).await;
        let holder = clients(&quorum, 1).await.remove(0);
        let guard = taken(&lock_of(&holder, kind, "a")).await;
        eventually(PATIENCE, "on all members", || held_on(&quorum, "a").len() == 3).await;
        for node in quorum.nodes() {
            let listening = node.proxy().wait_for_subscriber().await;
            node.proxy().black_hole_connection(listening, true);
        }
        let other = connected(&quorum).await;
        away(&quorum, 2).await;
        let forced = other.inspector().force_unlock("a", kind, None, "a test").await;
        assert!(forced.expect("two members answer"), "{kind}");
        back(&quorum, 2);
        let next = taken(&lock_of(&other, kind, "a")).await;
        // The record has the reason, if the connection to the third is back before a renewal.
        match within(PATIENCE, "the loss", guard.lost()).await {
            LostReason::Taken | LostReason::Deleted => {}
            reason => assert_eq!(reason, LostReason::Revoked("a test".to_owned()), "{kind}"),
        }
        // The hold that was left is gone, and the new one is there instead.
        let (new, watch) = ([(next.owner_id().to_string(), 1)], Stopwatch::start());
        let all = || (0..3).all(|index| stored(quorum.server(index), kind, "a") == new);
        eventually(PATIENCE, "the new hold is on all members", all).await;
        // Over several renewals of either.
        while watch.elapsed() < LEASE {
            assert!(!next.is_lost() && all() || watch.stalled(), "{kind}: {next:?}");
            tokio::time::sleep(ms(50)).await;
        }
        drop(next);
        assert_not_held(&guard.release().await);
    }
}

/// Two members have lost the hold, and another client has held the lock since. The third still has it, and
/// answers before one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_not_decided_by_its_first_answers() {
    let quorum = start_members(Quorum::builder(3).proxied()).await;
    let client = trusted(&quorum).await;
    let other = connect(&quorum.url(), quorum_options()).await;
    for kind in KINDS {
        let guard = taken(&lock_of(&client, kind, "a")).await;
        eventually(PATIENCE, "on all members", || held_on(&quorum, "a").len() == 3).await;
        for index in [0, 1] {
            quorum.server(index).cli(&["DEL", "a"]).ok();
        }
        let between = taken(&lock_of(&other, kind, "a")).await;
        between.release().await.expect("held");
        quorum.node(0).proxy().delay(5 * DELAY);
        assert_not_held(&guard.release().await);
        quorum.node(0).proxy().delay(Duration::ZERO);
        eventually(PATIENCE, "released", || held_on(&quorum, "a").is_empty()).await;
    }
}

/// Two members have lost the hold, and one of them is silent. The third still has it at the first try, and no longer
/// at the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_unconfirmed_if_a_member_that_lost_the_hold_was_silent() {
    let quorum = start_members(Quorum::builder(3).proxied()).await;
    let client = trusted(&quorum).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    eventually(PATIENCE, "on all members", || held_on(&quorum, "a").len() == 3).await;
    for index in [0, 1] {
        quorum.server(index).cli(&["DEL", "a"]).ok();
    }
    quorum.node(1).proxy().black_hole(true);
    let released = within(PATIENCE, "the release", guard.release()).await;
    assert!(matches!(released, Err(Error::Unconfirmed { .. })), "{released:?}");
    assert!(held_on(&quorum, "a").is_empty());
}

/// The same, when the lock would go to another task of the holder's client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handoff_is_not_decided_by_its_first_answers() {
    let quorum = start_members(Quorum::builder(3).proxied()).await;
    let client = trusted(&quorum).await;
    let [guard, next] = ["a", "b"].map(|name| client.lock(name).try_lock());
    let [guard, next] = [guard.await, next.await].map(|held| held.unwrap().expect("free"));
    eventually(PATIENCE, "on all members", || held_on(&quorum, "a").len() == 3).await;
    let store = store(&quorum).await;
    for index in [0, 1] {
        quorum.server(index).cli(&["DEL", "a"]).ok();
    }
    quorum.node(0).proxy().delay(5 * DELAY);
    let lock = Resource { kind: Kind::Lock, name: guard.name().clone() };
    let handoff = Acquire::new(lock, next.owner_id(), 10_000);
    let handoff = Acquire { from: Some(guard.owner_id()), ..handoff };
    assert_eq!(store.acquire(handoff).await, Ok(Attempt::Gone));
}

/// What the engine sends.
async fn store(quorum: &Quorum) -> stores::Quorum {
    store_with(quorum, quorum_options()).await
}

async fn store_with(quorum: &Quorum, options: ClientOptions) -> stores::Quorum {
    let urls: Vec<_> = quorum.nodes().iter().map(testkit::Node::url).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    stores::Quorum::connect(&urls, &options).await.expect("all members are there")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_left_for_no_longer_than_the_longest_lease() {
    let quorum = start_members(Quorum::builder(3)).await;
    let client = trusted(&quorum).await;
    let store = store(&quorum).await;
    let _listening = listening_client(&client).await;
    for kind in KINDS {
        let guard = taken(&lock_of(&client, kind, "a")).await;
        eventually(PATIENCE, "on all members", || held_on(&quorum, "a").len() == 3).await;
        let ends = || [0, 1, 2].map(|n| quorum.server(n).cli(&["PEXPIRETIME", "a"]).int());
        let before = ends();
        let lock = Resource { kind, name: guard.name().clone() };
        let ttl = Some(LONG.as_millis() as u64 + 1);
        let leave = Release { ttl, leave: true, ..Release::new(lock, guard.owner_id()) };
        let answer = store.release(leave).await;
        assert!(matches!(answer, Err(Fault::Invalid { .. })), "{answer:?}");
        assert_eq!(ends(), before);
        guard.release().await.expect("held");
    }
}

/// A member is away when a lease is extended, and back in time to say when it would have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extended_lease_is_not_cut_to_the_end_that_one_member_knows() {
    let quorum = start_members(Quorum::builder(3).proxied()).await;
    let client = trusted(&quorum).await;
    for kind in KINDS {
        let name = kind.as_str();
        let guard = lock_of(&client, kind, name).lease(LEASE).lock().await.expect("free");
        eventually(PATIENCE, "on all members", || held_on(&quorum, name).len() == 3).await;
        away(&quorum, 2).await;
        guard.extend(LONG).await.expect("two members have it");
        // The request that waits for the next connection has failed.
        let proxy = quorum.node(2).proxy();
        proxy.wait_for_refusals(proxy.refused() + 6).await;
        quorum.node(0).proxy().delay(5 * DELAY);
        back(&quorum, 2);
        // The connection is back, and the lease is checked.
        let knows = || pttl(quorum.server(2), name) > LEASE.as_millis() as i64;
        eventually(PATIENCE, "the member knows the new end", knows).await;
        quorum.node(0).proxy().delay(Duration::ZERO);
        assert!(guard.remaining() > LONG / 2, "{:?}", guard.remaining());
        guard.release().await.expect("held");
    }
}

/// A repair is on its way to a member when the lock is force-released: nothing of the hold is left there, though
/// its guard is not dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_release_beats_a_repair() {
    for kind in KINDS {
        let quorum = started(Quorum::builder(3).proxied()).await;
        let holder = connect(&quorum.url(), leased().response_timeout(PATIENCE)).await;
        all_vote(&quorum, &holder).await;
        let (proxy, slow) = (quorum.node(2).proxy(), quorum.server(2));
        match kind {
            Kind::Mutex => slow.cli(&["SET", "a", "rival"]).ok(),
            _ => slow.cli(&["HSET", "a", "rival:1", "1"]).ok(),
        };
        let guard = taken(&lock_of(&holder, kind, "a")).await;
        assert_eq!(held_on(&quorum, "a").len(), 3);
        let identity = guard.owner_id().to_string();
        let (sent, arrived) =
            (proxy.expect_request(identity.as_bytes()), proxy.expect_delivery(identity.as_bytes()));
        proxy.connections().into_iter().for_each(|id| proxy.hold_connection(id, true));
        sent.wait().await;
        let before = arrived.count();
        slow.cli(&["DEL", "a"]).ok();
        let forced =
            connected(&quorum).await.inspector().force_unlock("a", kind, None, "a test").await;
        assert!(forced.expect("all members answer"), "{kind}");
        let reason = within(PATIENCE, "the loss", guard.lost()).await;
        assert!(matches!(reason, LostReason::Revoked(_)), "{reason:?}");
        proxy.connections().into_iter().for_each(|id| proxy.hold_connection(id, false));
        arrived.wait_for(before + 1).await;
        eventually(LEASE / 2, "nothing is left", || held_on(&quorum, "a").is_empty()).await;
    }
}

/// A member answers a renewal after the lease has ended, as when the process was stopped meanwhile: one hold of the
/// batch is not repaired there, and the other one only until its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_does_not_outlive_the_lease() {
    // Of one group of renewals.
    const TTLS: [(&str, u64); 2] = [("ends", 4_100), ("lasts", 16_000)];
    let quorum = start_members(Quorum::builder(3).proxied()).await;
    trusted(&quorum).await.shutdown().await;
    let (proxy, slow) = (quorum.node(2).proxy(), quorum.server(2));
    let store = store_with(&quorum, quorum_options().response_timeout(PATIENCE)).await;
    let owner = OwnerId::fresh(uuid::Uuid::new_v4());
    let lock = |name| Resource { kind: Kind::Lock, name: LockName::from(name) };
    for (name, ttl) in TTLS {
        let granted = store.acquire(Acquire::new(lock(name), owner, ttl)).await;
        assert_eq!(granted, Ok(Attempt::GRANTED));
        eventually(PATIENCE, "on all members", || held_on(&quorum, name).len() == 3).await;
        slow.cli(&["DEL", name]).ok();
    }
    proxy.connections().into_iter().for_each(|id| proxy.hold_connection(id, true));
    let batch = TTLS.map(|(name, ttl)| Renew::new(lock(name), owner, Some(ttl)));
    let renewed = store.renew(batch.into()).await;
    assert!(renewed.iter().all(|one| matches!(one, Ok(Renewed::Held(_)))), "{renewed:?}");
    eventually(PATIENCE, "it ends", || held_on(&quorum, "ends").is_empty()).await;
    proxy.connections().into_iter().for_each(|id| proxy.hold_connection(id, false));
    // The repairs are sent in the order of the batch.
    eventually(PATIENCE, "a repair", || exists(slow, "lasts")).await;
    assert!(!exists(slow, "ends"), "a hold that nothing releases");
    let [end, other] = [2, 0].map(|n| quorum.server(n).cli(&["PEXPIRETIME", "lasts"]).int());
    assert!(end < other + 2_000, "{} ms too long", end - other);
}

/// All ask at the same time, and none gets a majority at first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_two_clients_in_split_votes_make_progress() {
    const CLIENTS: usize = 32;
    let quorum = started(Quorum::builder(5)).await;
    let clients = clients(&quorum, CLIENTS).await;
    let (history, all) = (History::new(), Arc::new(Barrier::new(CLIENTS)));
    let begun = Instant::now();
    let tasks = clients.into_iter().enumerate().map(|(n, client)| {
        let (history, all) = (history.clone(), Arc::clone(&all));
        tokio::spawn(async move {
            let (lock, holder) = (client.lock("a"), format!("client {n}"));
            for _ in 0..3 {
                all.wait().await;
                let guard = within(PATIENCE, "its turn", lock.lock()).await.expect("reachable");
                history.granted("a", &holder, None);
                tokio::task::yield_now().await;
                history.released("a", &holder);
                guard.release().await.expect("held");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        joined(task).await;
    }
    println!("{} grants in {:?}", history.grants(), begun.elapsed());
    history.assert_valid();
    assert_eq!(history.grants(), 3 * CLIENTS);
}

/// Members lose their sequences, two at a time, until all have; and one was ahead of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_through_lost_members() {
    const TOKEN: &str = "redisson_lock_token:{a}";
    let quorum = started(Quorum::builder(5).proxied()).await;
    let client = clients(&quorum, 1).await.remove(0);
    let lock = client.fenced_lock("a");
    let mut last = 0;
    let mut next = async || {
        let guard = within(PATIENCE, "a token", lock.lock()).await.expect("three members vote");
        let token = guard.token();
        assert!(token > last, "{token} after {last}");
        last = token;
        guard.release().await.expect("held");
        token
    };
    for lost in [[0, 1], [2, 3], [4, 0]] {
        next().await;
        on(&quorum, move |quorum| lost.map(|index| quorum.server(index).restart_empty())).await;
        next().await;
        all_vote(&quorum, &client).await;
        next().await;
    }
    // A member whose clock was ahead: its token is the highest, and outlasts it.
    let ahead = next().await + 3_600_000_000;
    quorum.server(3).cli(&["SET", TOKEN, &ahead.to_string()]).ok();
    while next().await <= ahead {}
    away(&quorum, 3).await;
    next().await;
    // So do two of the members that have it.
    on(&quorum, |quorum| quorum.server(0).restart_empty()).await;
    next().await;
}

/// Before its lease would expire and before any re-check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_woken_with_one_member_down() {
    let quorum = started(Quorum::builder(3).proxied()).await;
    let two = clients(&quorum, 2).await;
    for (index, before) in [(0, true), (1, false), (2, true)] {
        if before {
            away(&quorum, index).await;
        }
        let guard = taken(&lock_of(&two[0], KINDS[0], "a")).await;
        let waiter = tokio::spawn(two[1].lock("a").lock());
        let listening = (0..3).filter(|other| !before || *other != index);
        let heard = |member: usize| listeners(quorum.server(member), "a") == 1;
        let listening: Vec<_> = listening.collect();
        eventually(PATIENCE, "listening", || listening.iter().all(|of| heard(*of))).await;
        if !before {
            away(&quorum, index).await;
        }
        within(PATIENCE, "release", guard.release()).await.expect("held");
        let next = within(SOON, "woken", joined(waiter)).await.expect("free");
        next.release().await.expect("held");
        back(&quorum, index);
        all_vote(&quorum, &two[1]).await;
    }
}
