//! The queue after a lost reply, a restart and an outage.

use lockkeeper::stores::script_text;
use lockkeeper::{Client, ClientOptions, LockGuard};
use testkit::FaultProxy;
use tokio::task::JoinHandle;

use super::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_is_lost_wakes_the_next_waiter() {
    let rig = Rig::new("a");
    let proxy = FaultProxy::start(rig.server.port()).await;
    let options = ClientOptions::new().response_timeout(ms(1_000));
    let client = Client::connect_with(&proxy.url(), options).await.unwrap();
    let guard = client.fair_lock("a").lease(LONG).lock().await.unwrap();
    let (first, first_task) = rig.waiter(&rig.lock().await).await;
    let (_, second_task) = rig.waiter(&rig.lock().await).await;
    let script = script_text("FAIR_RELEASE").expect("it is a script of the library");
    let hash = rig.cmd(&["SCRIPT", "LOAD", script]);
    proxy.drop_replies_once_after_request_matching(hash.text().as_bytes());
    guard.release().await.expect("the first try cannot have come too late");
    eventually(SOON, "a reply is lost", || proxy.swallowed_replies() > 0).await;
    let guard = within(SOON, "the first", first_task).await;
    assert_eq!(guard.owner_id().to_string(), first);
    guard.release().await.unwrap();
    within(SOON, "the second", second_task).await.release().await.unwrap();
    assert_eq!(rig.keys(), [""; 0]);
}

/// Releases the lock as soon as it is acquired.
fn passed_on(task: JoinHandle<LockGuard>) -> JoinHandle<()> {
    tokio::spawn(async move { task.await.unwrap().release().await.unwrap() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_waiters_acquire_after_the_server_lost_its_data() {
    let rig = Rig::new("a");
    let guard = rig.held().await;
    let (one, two) = (rig.lock().await, rig.lock().await);
    let mut tasks = Vec::new();
    for lock in [&one, &two, &one, &two, &one] {
        tasks.push(rig.waiter(lock).await.1);
    }
    rig.server.restart();
    rig.reconnect();
    eventually(ms(8_000), "one has it, the others wait", || rig.queue().len() == 4).await;
    let tasks: Vec<_> = tasks.into_iter().map(passed_on).collect();
    for task in tasks {
        within(ms(10_000), "its turn", task).await;
    }
    assert!(guard.release().await.is_err(), "it was lost with the data");
    rig.nothing_is_left().await;
}

/// A queue position does not expire with the lease that its waiter asked for: it is given up as soon as
/// the server can be reached again, however late that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_cancelled_in_an_outage_longer_than_its_lease_leaves_no_position() {
    let rig = Rig::new("a");
    let proxy = FaultProxy::start(rig.server.port()).await;
    let client = async || {
        let options = ClientOptions::new().response_timeout(ms(1_000)).unreachable_after(LONG);
        let options = options.retry_backoff(ms(20), ms(200));
        Client::connect_with(&proxy.url(), options).await.unwrap()
    };
    let lease = ms(500);
    let (one, two) = (client().await.fair_lock("a"), client().await.fair_lock("a"));
    let guard = rig.held().await;
    let first = tokio::spawn(async move { one.lease(lease).lock().await.map(drop) });
    eventually(SOON, "the first waits", || rig.queue().len() == 1).await;
    let (second, task) = rig.waiter(&two).await;
    // No waiter sends heartbeats: then silence is tolerated for another three seconds.
    proxy.refuse(true);
    proxy.cut();
    cancel(first).await;
    guard.release().await.unwrap();
    tokio::time::sleep(ms(3_000)).await;
    assert_eq!(rig.queue().len(), 2, "no client was left to give the position up");
    proxy.refuse(false);
    let guard = within(SOON, "the second: the first waits no more", task).await;
    assert_eq!(guard.owner_id().to_string(), second);
    guard.release().await.unwrap();
    rig.nothing_is_left().await;
}
