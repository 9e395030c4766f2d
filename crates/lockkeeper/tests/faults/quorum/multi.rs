//! Multi-locks with members on a quorum.

use lockkeeper::{Client, MultiLock};
use testkit::Quorum;

use super::held_on;
use super::reports::{quorum_options, start, trusted};
use crate::support::*;

/// Which of these locks another client sees as locked.
async fn locked(locks: &[lockkeeper::Lock; 2]) -> [bool; 2] {
    let [one, other] = locks;
    [one.is_locked().await.expect("reachable"), other.is_locked().await.expect("reachable")]
}

/// With two locks on the quorum, and with one of them in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_lock_on_a_quorum_holds_all_its_locks_or_none() {
    let quorum = start(Quorum::builder(3)).await;
    let clients = [trusted(&quorum).await, connect(&quorum.url(), quorum_options()).await];
    let memory = async || Client::connect("memory:beside a quorum").await.expect("in memory");
    let memory = [memory().await, memory().await];
    let [mine, others] = [0, 1].map(|of| {
        let second = [&clients[of], &memory[of]].map(|client| client.lock("b"));
        second.map(|second| [clients[of].lock("a"), second])
    });
    for (mine, others) in mine.into_iter().zip(&others) {
        let both = MultiLock::new(mine);
        for (busy, is_locked) in others.iter().zip([[true, false], [false, true]]) {
            let guard = busy.lock().await.expect("free");
            assert!(both.try_lock().await.expect("reachable").is_none());
            assert_eq!(locked(others).await, is_locked);
            let waiter = tokio::spawn(both.lock());
            guard.release().await.expect("held");
            let guard = within(PATIENCE, "all of them", joined(waiter)).await.expect("free");
            assert_eq!(locked(others).await, [true; 2]);
            guard.release().await.expect("held");
            assert_eq!(locked(others).await, [false; 2]);
            let is_left = || ["a", "b"].iter().any(|name| !held_on(&quorum, name).is_empty());
            eventually(PATIENCE, "nothing is left on any member", || !is_left()).await;
        }
    }
    // No majority is left.
    let both = MultiLock::new([clients[0].lock("a"), memory[0].lock("b")]);
    (0..2).for_each(|index| quorum.server(index).kill());
    assert_unreachable(&within(PATIENCE, "an answer", both.try_lock()).await);
    let is_free = async || !memory[1].lock("b").is_locked().await.expect("in memory");
    within(PATIENCE, "the other one is free", async { while !is_free().await {} }).await;
}
