//! Members are away for a while, or lose their data, under load.

use lockkeeper::{Client, Error, Kind};
use testkit::Quorum;
use tokio::time::Instant;

use super::{
    LEASE, PRIMITIVES, all_vote, away, back, clients, connected, exists, held_on, host, leased,
    names, on, started,
};
use crate::load::Load;
use crate::support::*;

/// One member of five, then two others at once.
const ROUNDS: [&[usize]; 2] = [&[0], &[1, 3]];

/// Locking goes on with the members that are left, and no lock has two holders.
async fn survive(fault: fn(&Quorum, usize), end: fn(&Quorum, usize)) {
    let quorum = started(Quorum::builder(5).proxied()).await;
    let clients = clients(&quorum, 3).await;
    on(&quorum, |quorum| (0..5).for_each(|index| quorum.save(index))).await;
    let load = Load::start(&clients, &PRIMITIVES, &names(8), LEASE).await;
    for members in ROUNDS {
        let each = |act: fn(&Quorum, usize)| {
            on(&quorum, move |quorum| members.iter().for_each(|index| act(quorum, *index)))
        };
        each(fault).await;
        load.goes_on(PATIENCE).await;
        each(end).await;
        // Those of the next round are others: these must vote before.
        all_vote(&quorum, &clients[0]).await;
    }
    let gap = load.longest_gap();
    println!("grants {:?}, losses {:?}, longest gap {gap:?}", load.grants(), load.losses());
    load.stop().await;
}

fn nothing(_: &Quorum, _: usize) {}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_and_two_of_five_killed() {
    survive(
        |quorum, index| quorum.server(index).kill(),
        |quorum, index| {
            quorum.server(index).restart_empty();
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_and_two_of_five_paused() {
    survive(
        |quorum, index| quorum.server(index).pause(),
        |quorum, index| {
            quorum.server(index).resume();
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_and_two_of_five_partitioned() {
    survive(Quorum::cut, Quorum::heal).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_and_two_of_five_restarted_empty() {
    survive(|quorum, index| quorum.server(index).restart_empty(), nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_and_two_of_five_restored() {
    survive(Quorum::restore, nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_and_two_of_five_flushed() {
    let flush = |quorum: &Quorum, index: usize| {
        quorum.server(index).cli(&["FLUSHALL"]).ok();
    };
    survive(flush, nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_of_five_down_stop_locking_and_name_each_member() {
    let quorum = started(Quorum::builder(5).proxied()).await;
    all_vote(&quorum, &connected(&quorum).await).await;
    let client = connect(&quorum.url(), leased().unreachable_after(ms(500))).await;
    let lock = client.lock("a");
    for index in [1, 2, 4] {
        away(&quorum, index).await;
    }
    let tried = within(PATIENCE, "one attempt", lock.try_lock()).await.map(drop);
    let waited = within(PATIENCE, "waiting", lock.lock()).await.map(drop);
    for answer in [tried, waited] {
        let text = assert_unreachable(&answer);
        for index in [1, 2, 4] {
            assert!(text.contains(&host(&quorum, index)), "{text}");
        }
    }
    // The two that answered have released what they granted.
    eventually(LEASE / 2, "nothing is left", || held_on(&quorum, "a").is_empty()).await;
    back(&quorum, 2);
    let guard = within(PATIENCE, "a majority", patient(&quorum, "a")).await;
    guard.release().await.expect("held");
}

async fn patient(quorum: &Quorum, name: &str) -> lockkeeper::LockGuard {
    connected(quorum).await.lock(name).lock().await.expect("three members answer")
}

/// Its key is gone before its TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_reaches_a_member_that_was_away() {
    let quorum = started(Quorum::builder(3).proxied()).await;
    let client = clients(&quorum, 1).await.remove(0);
    for (index, kind) in [(0, Kind::Lock), (2, Kind::Mutex)] {
        let guard = taken(&lock_of(&client, kind, "a")).await;
        eventually(PATIENCE, "on all members", || held_on(&quorum, "a").len() == 3).await;
        let (acquired, left) = (Instant::now(), pttl(quorum.server(index), "a"));
        away(&quorum, index).await;
        within(PATIENCE, "release", guard.release()).await.expect("the others have freed it");
        // Until the client has found it gone.
        let proxy = quorum.node(index).proxy();
        proxy.wait_for_refusals(proxy.refused() + 2).await;
        assert!(exists(quorum.server(index), "a"), "it was down");
        back(&quorum, index);
        eventually(PATIENCE, "released", || held_on(&quorum, "a").is_empty()).await;
        let (after, left) = (acquired.elapsed(), ms(left.unsigned_abs()));
        assert!(
            after + ms(100) < left,
            "after {after:?}, and it would have expired after {left:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_to_silent_members_names_them() {
    let quorum = started(Quorum::builder(3).proxied()).await;
    for index in [0, 2] {
        quorum.node(index).proxy().black_hole(true);
    }
    let connected = Client::connect_with(&quorum.url(), leased().connect_timeout(ms(300))).await;
    let text = assert_unreachable(&connected.map(drop));
    for index in [0, 2] {
        assert!(text.contains(&host(&quorum, index)), "{text}");
    }
}

/// The members can extend a hold, but not write its token. The hold of the same owner stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reentry_without_a_token_keeps_the_hold() {
    let quorum = started(Quorum::builder(3)).await;
    let [holder, other] = <[Client; 2]>::try_from(clients(&quorum, 2).await).unwrap();
    let owner = holder.new_owner();
    let guard = holder.lock("a").as_owner(&owner).lock().await.expect("free");
    let limit = |bytes: &str| {
        for node in quorum.nodes() {
            node.server().cli(&["CONFIG", "SET", "maxmemory", bytes]).ok();
        }
    };
    limit("1");
    let reentered = holder.fenced_lock("a").as_owner(&owner).try_lock().await;
    assert!(reentered.is_err(), "{reentered:?}");
    limit("0");
    assert!(other.lock("a").try_lock().await.expect("reachable").is_none());
    assert!(!guard.is_lost());
    guard.release().await.expect("held");
    eventually(LEASE / 2, "nothing is left", || held_on(&quorum, "a").is_empty()).await;
}

/// As with one server: only a member that is about to serve is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_members_that_refuse_are_reported_at_once() {
    let quorum = started(Quorum::builder(3)).await;
    let connect = async || {
        let connecting = Client::connect_with(quorum.url(), leased().connect_timeout(LONG));
        let Err(error) = within(PATIENCE, "the report", connecting).await else {
            panic!("one member is no majority")
        };
        let named = [0, 1, 2].map(|index| error.to_string().contains(&host(&quorum, index)));
        (error, named)
    };
    for index in [0, 2] {
        quorum.server(index).cli(&["CONFIG", "SET", "requirepass", "secret"]).ok();
    }
    let (error, named) = connect().await;
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert_eq!(named, [true, false, true], "{error}");
    on(&quorum, |quorum| [0, 2].map(|index| quorum.server(index).kill())).await;
    let (error, named) = connect().await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert_eq!(named, [true, false, true], "{error}");
}
