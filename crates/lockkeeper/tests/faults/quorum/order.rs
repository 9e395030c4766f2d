//! A release reaches each member of a quorum, and after what it releases.

use testkit::Quorum;

use super::reports::{start, trusted};
use super::{PRIMITIVES, held_on};
use crate::primitives::Handle;
use crate::support::{LONG, PATIENCE, eventually, within};

/// A member that is slow does not know the script of a handoff yet, and knows that of a release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_a_member_does_not_know_does_not_overtake_a_release() {
    let quorum = start(Quorum::builder(3)).await;
    let client = trusted(&quorum).await;
    let lock = client.lock("job").lease(LONG);
    lock.lock().await.unwrap().release().await.unwrap();
    let slow = quorum.server(2);
    // Or the next hold may be on two members only, and its handoff, with one of them paused, unconfirmed.
    eventually(PATIENCE, "all have all of that", || held_on(&quorum, "job").is_empty()).await;
    let first = lock.lock().await.unwrap();
    eventually(PATIENCE, "the hold", || slow.cli(&["EXISTS", "job"]).int() == 1).await;
    let mut waiting = Box::pin(lock.lock());
    crate::support::start(&mut waiting).await;
    slow.pause();
    first.release().await.unwrap();
    let second = within(PATIENCE, "the handoff", waiting).await.unwrap();
    second.release().await.unwrap();
    slow.resume();
    eventually(PATIENCE, "nothing is left", || slow.cli(&["EXISTS", "job"]).int() == 0).await;
}

/// Whatever is asked for, as with one server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_all_members_have_forgotten_are_sent_again() {
    let quorum = start(Quorum::builder(3)).await;
    let client = trusted(&quorum).await;
    let forget = || {
        for node in quorum.nodes() {
            node.server().cli(&["SCRIPT", "FLUSH"]).ok();
        }
    };
    // At first the members do not know them at all.
    for (round, primitive) in
        (0..2).flat_map(|round| PRIMITIVES.map(|primitive| (round, primitive)))
    {
        let name = format!("{primitive:?} {round}");
        let handle = Handle::new(&client, primitive, &name);
        forget();
        let held = handle.attempt().await.expect("all members vote").expect("free");
        forget();
        held.guard().extend(LONG).await.expect("held");
        forget();
        let info = client.inspector().inspect(&name).await.expect("reachable");
        assert_eq!(info.holders.len(), 1);
        forget();
        held.release().await.expect("held");
    }
}
