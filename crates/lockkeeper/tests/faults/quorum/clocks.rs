//! The wall clocks of members jump: their keys expire early or late.
//!
//! A jump ahead is a loss of data that no marker shows. A hold that all five members have outlasts the loss of
//! two: that is asserted. Under load, a hold may be on no more than a majority for some milliseconds, until
//! the others have it too; if one of these members jumps just then, there are two holders until the next
//! renewal. That is counted and printed, and not promised. The loss at the next renewal is.

use std::sync::Arc;

use lockkeeper::{Client, Clock, LostReason};
use testkit::{History, Quorum};

use super::reports::{quorum_options, start, trusted};
use super::{LEASE, PRIMITIVES, clients, connected, held_on, names, on, started};
use crate::load::Load;
use crate::primitives::Handle;
use crate::support::*;

/// Where the clocks are, one after the other, in seconds from the right time. Further than a lease.
const JUMPS: [i64; 5] = [8, 0, -8, 0, 8];

async fn jump(quorum: &Arc<Quorum>, members: &'static [usize], seconds: i64) {
    on(quorum, move |quorum| {
        members.iter().for_each(|index| quorum.server(*index).move_clock(seconds));
    })
    .await;
}

/// Waiters for locks that are held on all members do not get them.
async fn holds_stand(quorum: &Arc<Quorum>, clients: &[Client], members: &'static [usize]) {
    let (history, mut holds, mut waiters) = (History::new(), Vec::new(), Vec::new());
    for primitive in PRIMITIVES {
        let name = format!("{primitive:?}");
        let held = Handle::new(&clients[0], primitive, &name).held().await;
        history.granted(&name, "holder", held.guard().token());
        // Before there is a waiter, whose vote could be there instead.
        eventually(PATIENCE, "on all members", || held_on(quorum, &name).len() == 5).await;
        let (waiter, history) = (Handle::new(&clients[1], primitive, &name), history.clone());
        waiters.push(tokio::spawn({
            let name = name.clone();
            async move {
                let held = waiter.acquire().await.expect("reachable");
                history.granted(&name, "waiter", held.guard().token());
                history.released(&name, "waiter");
                held.release().await.expect("held");
            }
        }));
        holds.push((name, held));
    }
    for seconds in JUMPS {
        let on_all = || holds.iter().all(|(name, _)| held_on(quorum, name).len() == 5);
        eventually(PATIENCE, "on all members again", on_all).await;
        jump(quorum, members, seconds).await;
        let lost = holds.iter().find(|(_, held)| held.guard().is_lost());
        assert!(lost.is_none(), "{lost:?}");
    }
    for (name, held) in holds {
        history.released(&name, "holder");
        held.release().await.expect("held all the time");
    }
    for waiter in waiters {
        within(PATIENCE, "the waiter", joined(waiter)).await;
    }
    history.assert_valid();
}

/// Counts how often a lock is granted while another client holds it.
async fn count_overlaps(quorum: &Arc<Quorum>, clients: &[Client], members: &'static [usize]) {
    let load = Load::start(clients, &PRIMITIVES, &names(8), LEASE).await;
    for seconds in JUMPS {
        jump(quorum, members, seconds).await;
        load.goes_on(PATIENCE).await;
    }
    let history = load.ended().await;
    let found = history.check().err().unwrap_or_default();
    let overlaps = found.lines().filter(|line| line.contains("while")).count();
    let (moved, grants) = (members.len(), history.grants());
    println!("{moved} of 5 clocks jumped by 8 s: {overlaps} overlaps of {grants} holds\n{found}");
}

async fn jumping(members: &'static [usize]) {
    let quorum = started(Quorum::builder(5).movable_clocks()).await;
    let clients = clients(&quorum, 3).await;
    holds_stand(&quorum, &clients, members).await;
    jump(&quorum, members, 0).await;
    count_overlaps(&quorum, &clients, members).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_of_one_member_jumps() {
    jumping(&[2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_of_two_members_jumps() {
    jumping(&[1, 3]).await;
}

/// The marker is an hour ahead. Clients that connect after the first one do not wait again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_back_restarts_a_quarantine_once() {
    const ALL: &[usize] = &[0, 1, 2];
    let quorum = started(Quorum::builder(3).movable_clocks()).await;
    jump(&quorum, ALL, 3600).await;
    clients(&quorum, 1).await;
    jump(&quorum, ALL, 0).await;
    clients(&quorum, 1).await;
    let guard = connected(&quorum).await.lock("a").try_lock().await.expect("all members vote");
    guard.expect("free").release().await.expect("held");
}

/// One member lacks the hold, and the clock of another one jumps past its expiry: both grant the lock to another
/// client. Nothing prevents that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_on_a_bare_majority_learns_of_a_jump_at_its_next_renewal() {
    let quorum = start(Quorum::builder(3).movable_clocks()).await;
    let (other, clock) = (trusted(&quorum).await, Clock::system());
    let client = connect(&quorum.url(), quorum_options().clock(clock.clone())).await;
    let first = client.fenced_lock("a").lock().await.expect("free");
    eventually(PATIENCE, "held on all members", || held_on(&quorum, "a").len() == 3).await;
    quorum.server(2).cli(&["DEL", "a"]).ok();
    quorum.server(1).move_clock(2 * LONG.as_secs() as i64);
    let second = other.fenced_lock("a").try_lock().await.expect("reachable");
    let second = second.expect("a majority has no hold");
    assert!(second.token() > first.token(), "the resource can tell them apart");
    // Until the next renewal is due.
    clock.skip(LONG / 2);
    let reason = within(PATIENCE, "the next renewal", first.lost()).await;
    assert_eq!(reason, LostReason::Taken);
    assert_not_held(&first.release().await);
    assert!(!second.is_lost());
    second.release().await.expect("held");
}
