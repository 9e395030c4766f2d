//! Members that speak TLS only, each with a CA of its own.

use lockkeeper::{Client, ClientOptions, Kind, RedisOptions};
use testkit::Quorum;

use super::{LEASE, held_on, host, leased, started};
use crate::support::*;

/// Trusts these members.
fn trusting(quorum: &Quorum, members: &[usize]) -> ClientOptions {
    let certificates = members.iter().map(|index| quorum.server(*index).ca_pem());
    leased().redis(RedisOptions::new().tls_ca(certificates.collect::<Vec<_>>().concat()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_locks_over_tls() {
    let quorum = started(Quorum::builder(3).tls()).await;
    let one = connect(&quorum.url(), trusting(&quorum, &[0, 1, 2])).await;
    let other = connect(&quorum.url(), trusting(&quorum, &[0, 1])).await;
    let guard = taken(&lock_of(&one, Kind::Lock, "a")).await;
    eventually(LEASE / 4, "on all members", || held_on(&quorum, "a").len() == 3).await;
    let waiter = tokio::spawn(other.lock("a").lock());
    let is_heard = || [0, 1].iter().all(|index| listeners(quorum.server(*index), "a") == 1);
    eventually(PATIENCE, "listening", is_heard).await;
    guard.release().await.expect("held");
    let guard = within(SOON, "the waiter", joined(waiter)).await.expect("freed");
    assert_eq!(held_on(&quorum, "a"), [0, 1], "it does not trust the third");
    guard.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_another_ca_are_named() {
    let quorum = started(Quorum::builder(3).tls()).await;
    let (url, trusting) = (quorum.url(), trusting(&quorum, &[1]));
    let answer = within(PATIENCE, "an answer", Client::connect_with(&url, trusting)).await;
    let said = assert_unreachable(&answer);
    for index in [0, 2] {
        let of_it = said.split(&host(&quorum, index)).nth(1).unwrap_or_default();
        let of_it = of_it.split(';').next().unwrap_or_default();
        assert!(of_it.contains("certificate"), "{}: {said}", host(&quorum, index));
    }
    assert!(!said.contains(&host(&quorum, 1)), "{said}");
}
