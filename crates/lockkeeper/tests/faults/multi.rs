//! A multi-lock on two servers, of which one fails.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{AnyLock, Kind, LostReason, MultiLock};
use testkit::RedisServer;
use tokio::time::Instant;

use crate::primitives::started;
use crate::support::*;

/// Long enough to tell it from a response timeout, and from the time for which a member is waited for.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(4000);

/// Longer than a member is waited for while another is held.
const OUTAGE: Duration = Duration::from_millis(2200);

/// A lock here, and a fair one at another server whose connections can be cut.
struct Pair {
    here: Arc<RedisServer>,
    there: Rig,
    both: MultiLock,
}

impl Pair {
    /// Which server comes first is decided by their addresses: tried until it is as asked for.
    async fn new(there_first: bool) -> Self {
        for _ in 0..64 {
            let pair = Self::any().await;
            let first = pair.both.names().next().map(ToString::to_string);
            if there_first == (first.as_deref() == Some("there")) {
                return pair;
            }
        }
        panic!("one of them always comes first");
    }

    async fn any() -> Self {
        let patience = options().unreachable_after(UNREACHABLE_AFTER);
        let here = started().await;
        let there = Rig::on(started().await, Kind::Lock, patience.clone()).await;
        let client = connect(&here.url(), patience).await;
        let both = MultiLock::new([
            AnyLock::from(client.lock("here")),
            AnyLock::from(there.client.fair_lock("there")),
        ]);
        Self { here: Arc::new(here), there, both }
    }

    fn down(&self) {
        self.there.proxy.refuse(true);
        self.there.proxy.cut();
    }

    /// The number of keys at both servers, without announcements of clients.
    fn stored(&self) -> [usize; 2] {
        [&*self.here, &self.there.server].map(|server| {
            let keys = server.cli(&["KEYS", "*"]).ok();
            let ours = |key: &&testkit::Reply| !key.text().starts_with("lockkeeper_");
            keys.array().iter().filter(ours).count()
        })
    }
}

/// The server that fails is the first that is asked, and the last.
async fn in_both_orders<F>(scenario: impl Fn(bool) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let running = [true, false].map(|there_first| tokio::spawn(scenario(there_first)));
    for task in running {
        joined(task).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_waits_until_an_outage_of_one_server_ends() {
    in_both_orders(rides_out).await;
}

async fn rides_out(there_first: bool) {
    let pair = Pair::new(there_first).await;
    pair.down();
    let waiter = tokio::spawn(pair.both.lock());
    tokio::time::sleep(OUTAGE).await;
    assert!(!waiter.is_finished(), "it did not wait");
    pair.there.proxy.refuse(false);
    let guard = within(SOON + SOON, "the waiter", joined(waiter)).await.expect("it is over");
    assert_eq!(pair.stored(), [1, 1]);
    guard.release().await.expect("held");
    assert_eq!(pair.stored(), [0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_server_is_reported_and_nothing_is_held_at_the_other() {
    in_both_orders(is_notified).await;
}

async fn is_notified(there_first: bool) {
    let pair = Pair::new(there_first).await;
    pair.down();
    let started = Instant::now();
    let answer = pair.both.lock();
    let answer = within(UNREACHABLE_AFTER + OUTAGE + SOON, "an answer", answer).await;
    assert_unreachable(&answer);
    assert!(started.elapsed() >= UNREACHABLE_AFTER, "it gave up early");
    eventually(SOON, "nothing is held", || pair.stored() == [0, 0]).await;
    let attempt = within(RESPONSE + SOON, "one attempt", pair.both.try_lock()).await;
    assert_unreachable(&attempt);
    let limited = pair.both.try_lock_for(ms(300));
    assert_unreachable(&within(ms(300) + SOON, "a limited wait", limited).await);
    eventually(SOON, "nothing is held", || pair.stored() == [0, 0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_guard_dropped_during_an_outage_is_released_at_both_servers() {
    in_both_orders(gives_back).await;
}

async fn gives_back(there_first: bool) {
    let pair = Pair::new(there_first).await;
    let guard = pair.both.lock().await.expect("free");
    pair.down();
    pair.there.proxy.wait_for_refusals(1).await;
    drop(guard);
    eventually(SOON, "given back here", || pair.stored() == [0, 1]).await;
    pair.there.proxy.refuse(false);
    eventually(SOON, "given back there", || pair.stored() == [0, 0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_lost_by_a_restart_is_a_loss_of_all() {
    in_both_orders(loses_all).await;
}

async fn loses_all(there_first: bool) {
    let pair = Pair::new(there_first).await;
    let guard = pair.both.lock().await.expect("free");
    let lost = guard.lost();
    let server = Arc::clone(&pair.here);
    joined(tokio::task::spawn_blocking(move || server.restart())).await;
    let (name, reason) = within(SOON, "the loss", lost).await;
    assert_eq!((name.to_string().as_str(), reason), ("here", LostReason::Deleted));
    assert!(guard.is_lost() && guard.remaining().is_zero());
    assert_not_held(&guard.release().await);
    assert_eq!(pair.stored(), [0, 0], "the other one is given back");
}
