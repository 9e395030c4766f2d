//! A member that lost its data does not vote for one lease.
//!
//! The attack: a lock is held on two members of three. One of them loses its data; together with the third,
//! which never knew of the hold, it is a majority that would grant the lock a second time.

use std::sync::Arc;

use lockkeeper::{Client, Error};
use testkit::{FaultProxy, History, Quorum, RedisServer, Stopwatch};
use tokio::time::Instant;

use super::reports::{start, trusted};
use super::{
    DRIFT, LEASE, MARKER, PRIMITIVES, away, back, clients, connected, exists, held_on, host,
    leased, on, started,
};
use crate::primitives::{Handle, Held};
use crate::support::*;

/// A server rounds its time down to milliseconds.
const ROUNDED: u64 = 2;

/// Holds of every kind on two members of three.
struct Holds {
    history: History,
    held: Vec<(String, Held)>,
}

impl Holds {
    /// Acquires them while `absent` is down. They are not renewed, so nothing repairs them.
    async fn without(absent: usize, quorum: &Quorum, client: &Client) -> Self {
        away(quorum, absent).await;
        let (history, mut held) = (History::new(), Vec::new());
        for primitive in PRIMITIVES {
            let name = format!("{primitive:?}");
            let hold = Handle::new(client, primitive, &name).leased(LEASE).await;
            history.granted(&name, "holder", hold.guard().token());
            let (history, lost) = (history.clone(), hold.guard().lost());
            tokio::spawn({
                let name = name.clone();
                async move {
                    lost.await;
                    history.lost(&name, "holder");
                }
            });
            held.push((name, hold));
        }
        for (name, _) in &held {
            let on: Vec<_> = (0..3).filter(|member| *member != absent).collect();
            assert_eq!(held_on(quorum, name), on, "{name}");
        }
        back(quorum, absent);
        Self { history, held }
    }
}

/// Member 1 loses the holds. `prepare` runs before they are acquired; what it returns lives until the end.
async fn does_not_vote_for_one_lease<T: Send + Sync + 'static>(
    prepare: impl FnOnce(&Quorum) -> T + Send + 'static,
    lose: impl FnOnce(&Quorum, &T) + Send + 'static,
) {
    let quorum = started(Quorum::builder(3).proxied()).await;
    let two = clients(&quorum, 2).await;
    let prepared = Arc::new(on(&quorum, prepare).await);
    let holds = Holds::without(2, &quorum, &two[0]).await;
    let before = Instant::now();
    let kept = Arc::clone(&prepared);
    on(&quorum, move |quorum| lose(quorum, &kept)).await;
    // The members 1 and 2 remain.
    away(&quorum, 0).await;
    let newcomer = connected(&quorum).await;
    let watch = Stopwatch::start();
    let mut tasks = Vec::new();
    for (who, client) in [("waiter", &two[1]), ("newcomer", &newcomer)] {
        for (primitive, (name, _)) in PRIMITIVES.iter().zip(&holds.held) {
            let handle = Handle::new(client, *primitive, name);
            let (history, name) = (holds.history.clone(), name.clone());
            tasks.push(tokio::spawn(async move {
                let held = within(PATIENCE, "the end of the quarantine", handle.acquire()).await;
                let (held, after) = (held.expect("it ends"), before.elapsed());
                history.granted(&name, who, held.guard().token());
                history.released(&name, who);
                held.release().await.expect("held");
                after
            }));
        }
    }
    for task in tasks {
        let after = joined(task).await;
        assert!(after >= LEASE - ms(ROUNDED), "it voted after {after:?}");
    }
    // All know of the loss by now. The quarantine begins once.
    let after = watch.elapsed();
    assert!(after < LEASE + SOON, "it did not vote for {after:?}");
    holds.history.assert_valid();
    drop(prepared);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_restarts_empty_does_not_vote_for_one_lease() {
    does_not_vote_for_one_lease(|_| (), |quorum, ()| quorum.server(1).restart_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_restored_from_an_old_snapshot_does_not_vote_for_one_lease() {
    does_not_vote_for_one_lease(|quorum| quorum.save(1), |quorum, ()| quorum.restore(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_member_does_not_vote_for_one_lease() {
    let flush = |quorum: &Quorum, (): &()| {
        quorum.server(1).cli(&["FLUSHALL"]).ok();
    };
    does_not_vote_for_one_lease(|_| (), flush).await;
}

/// With a policy that evicts any key, and no room for any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_marker_quarantines_its_member() {
    let evict = |quorum: &Quorum, (): &()| {
        let mut cli = quorum.server(1).connection();
        let mut set = |option, value| cli.cmd(&["CONFIG", "SET", option, value]).ok();
        set("maxmemory-policy", "allkeys-random");
        set("maxmemory", "1");
        while quorum.server(1).cli(&["DBSIZE"]).int() > 0 {}
        set("maxmemory", "0");
    };
    does_not_vote_for_one_lease(|_| (), evict).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_behind_a_members_name_does_not_vote_for_one_lease() {
    does_not_vote_for_one_lease(lagging_replica, |quorum, replica| {
        quorum.server(1).kill();
        quorum.lead_to(1, replica);
    })
    .await;
}

/// It has the marker of member 1, and no hold.
fn lagging_replica(quorum: &Quorum) -> RedisServer {
    let replica = quorum.replica_of(1);
    replica.cli(&["REPLICAOF", "NO", "ONE"]).ok();
    replica
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_a_replica_for_a_while_does_not_vote_for_one_lease() {
    does_not_vote_for_one_lease(
        |_| RedisServer::start(),
        |quorum, other| quorum.replicate_for_a_while(1, other),
    )
    .await;
}

/// A failover to its replica and back: the process is the same, and so are the marker and its nonce. Only a
/// client that connects finds out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_followed_its_own_replica_does_not_vote_once_a_client_connects() {
    does_not_vote_for_one_lease(lagging_replica, |quorum, replica| {
        quorum.replicate_for_a_while(1, replica);
    })
    .await;
}

/// With two votes, a server would be a majority of three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_members_that_are_one_server_are_refused() {
    let quorum = started(Quorum::builder(3).proxied()).await;
    let second = FaultProxy::start(quorum.server(1).port()).await;
    let urls = [quorum.node(0).url(), quorum.node(1).url(), second.url()];
    let refused =
        invalid(Client::connect_with(format!("quorum:{}", urls.join(",")), leased()).await);
    for port in [quorum.node(1).port(), second.port()] {
        assert!(refused.contains(&format!("127.0.0.1:{port}")), "{refused}");
    }
    // The wrong list keeps no client with the right one out.
    assert!(!exists(quorum.server(0), MARKER) && !exists(quorum.server(1), MARKER));
    connected(&quorum).await;
    let quorum = started(Quorum::builder(3).proxied()).await;
    let two = clients(&quorum, 2).await;
    let holds = Holds::without(0, &quorum, &two[0]).await;
    quorum.lead_to(1, quorum.server(0));
    away(&quorum, 2).await;
    for (primitive, (name, _)) in PRIMITIVES.iter().zip(&holds.held) {
        let answer = Handle::new(&two[1], *primitive, name).attempt().await;
        assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
    }
    // Nor when the leases have expired.
    let answer = two[1].lock("other").try_lock_for(LEASE).await;
    assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
    invalid(Client::connect_with(quorum.url(), leased()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_longest_lease_is_refused() {
    let quorum = started(Quorum::builder(3)).await;
    let client = clients(&quorum, 1).await.remove(0);
    for lease in [LEASE / 2, LEASE * 2] {
        let other = leased().longest_lease(lease).watchdog_timeout(LEASE / 2).drift(0.0, DRIFT / 2);
        let refused = invalid(Client::connect_with(quorum.url(), other).await);
        for lease in [LEASE, lease] {
            assert!(refused.contains(&format!("{} ms", lease.as_millis())), "{refused}");
        }
        assert!((0..3).any(|index| refused.contains(&host(&quorum, index))), "{refused}");
    }
    let lock = client.lock("a");
    let longer = invalid(lock.lease(LEASE + ms(1)).try_lock().await);
    assert!(longer.contains("longest lease"), "{longer}");
    let guard = taken(&lock.into()).await;
    invalid(guard.extend(LEASE + ms(1)).await);
    guard.release().await.expect("held");
}

/// A member that lost its data votes again after the longest lease: no lock is left for longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_span_above_the_longest_lease_leaves_no_lock_held() {
    let quorum = start(Quorum::builder(3)).await;
    let (client, too_long) = (trusted(&quorum).await, LONG + ms(1));
    for kind in KINDS {
        let guard = taken(&lock_of(&client, kind, "a")).await;
        invalid(guard.leave_for(too_long).await);
        eventually(PATIENCE, "released", || held_on(&quorum, "a").is_empty()).await;
    }
    let first = client.lock("a").lock().await.expect("free");
    let second = first.reenter().await.expect("held");
    invalid(first.leave_for(too_long).await);
    second.release().await.expect("held");
    eventually(PATIENCE, "released", || held_on(&quorum, "a").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_start_says_how_long_it_lasts() {
    let quorum = started(Quorum::builder(3)).await;
    let (begun, watch) = (Instant::now(), Stopwatch::start());
    let client = connect(&quorum.url(), leased().unreachable_after(ms(300))).await;
    let connected_at = Instant::now();
    let lock = client.lock("a");
    for waits in [false, true] {
        let asked = Instant::now();
        let answer = if waits { lock.lock().await.map(Some) } else { lock.try_lock().await };
        let Err(error @ Error::Refused { .. }) = answer else { panic!("{answer:?}") };
        let said = seconds_in(&error.to_string());
        // It began while the client connected, and was said before the answer. It is said in tenths.
        let least = LEASE.saturating_sub(begun.elapsed()).as_secs_f64() - 0.1;
        let most = LEASE.saturating_sub(asked - connected_at).as_secs_f64() + 0.1;
        assert!(said >= least && said <= most, "{least} to {most} left: {error}");
    }
    // A client that connects later does not begin it anew.
    let patient = connected(&quorum).await;
    within(PATIENCE, "the end", patient.lock("a").lock())
        .await
        .expect("free")
        .release()
        .await
        .expect("held");
    let (lasted, awake) = (begun.elapsed(), watch.elapsed());
    assert!(lasted >= LEASE - ms(ROUNDED) && awake < LEASE + SOON, "{lasted:?}");
}

/// The time in a message, such as `in 1.9 s`.
#[track_caller]
fn seconds_in(text: &str) -> f64 {
    let mut times = text.split(" in ").filter_map(|rest| rest.split_once(" s")?.0.parse().ok());
    times.next().unwrap_or_else(|| panic!("no time in: {text}"))
}

#[track_caller]
pub(super) fn invalid<T: std::fmt::Debug>(answer: lockkeeper::Result<T>) -> String {
    match answer {
        Err(error @ Error::Invalid { .. }) => error.to_string(),
        other => panic!("expected Invalid, got {other:?}"),
    }
}
