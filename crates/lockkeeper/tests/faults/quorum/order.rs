//! A release reaches each member of a quorum, and after what it releases.

use testkit::Quorum;

use super::reports::{start, trusted};
use crate::support::{LONG, PATIENCE, eventually, within};

/// A member that is slow does not know the script of a handoff yet, and knows that of a release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_a_member_does_not_know_does_not_overtake_a_release() {
    let quorum = start(Quorum::builder(3)).await;
    let client = trusted(&quorum).await;
    let lock = client.lock("job").lease(LONG);
    lock.lock().await.unwrap().release().await.unwrap();
    let slow = quorum.server(2);
    eventually(PATIENCE, "it has all of that", || slow.cli(&["EXISTS", "job"]).int() == 0).await;
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
