//! Answers are lost, servers restart, connections break: the queue stays as it is.

use lockkeeper::backend::redis::script_text;
use lockkeeper::{Client, ClientOptions, LockGuard};
use testkit::FaultProxy;
use tokio::task::JoinHandle;

use crate::support::*;

/// A lock, and a client behind a proxy that loses answers.
struct Faulty {
    rig: Rig,
    proxy: FaultProxy,
    client: Client,
}

impl Faulty {
    async fn new() -> Self {
        let rig = Rig::new("a");
        let proxy = FaultProxy::start(rig.server.port()).await;
        let options = ClientOptions::new().response_timeout(ms(1_000));
        let client = Client::connect_with(&proxy.url(), options).await.unwrap();
        Self { rig, proxy, client }
    }

    /// What only a call of this script contains. The server knows the script from here on.
    fn mark(&self, script: &str) -> Vec<u8> {
        let script = script_text(script).expect("it is a script of the library");
        self.rig.cmd(&["SCRIPT", "LOAD", script]).text().as_bytes().to_vec()
    }

    /// The next call of this script is executed, and its answer lost.
    fn lose(&self, script: &str) {
        self.proxy.drop_replies_once_after_request_matching(&self.mark(script));
    }

    async fn lost(&self) {
        eventually(SOON, "an answer is lost", || self.proxy.swallowed_replies() > 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_first_answer_is_lost_has_one_place() {
    let faulty = Faulty::new().await;
    let rig = &faulty.rig;
    let guard = rig.held().await;
    faulty.lose("FAIR_ACQUIRE");
    let (id, task) = rig.waiter(&faulty.client.fair_lock("a")).await;
    faulty.lost().await;
    let (other, other_task) = rig.waiter(&rig.lock().await).await;
    assert_eq!(rig.queue(), [id.clone(), other]);
    guard.release().await.unwrap();
    let guard = within(SOON, "the first", task).await;
    assert_eq!(guard.owner_id().to_string(), id);
    guard.release().await.unwrap();
    within(SOON, "the other", other_task).await.release().await.unwrap();
    assert_eq!(rig.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_whose_answer_is_lost_is_a_take() {
    let faulty = Faulty::new().await;
    let rig = &faulty.rig;
    let guard = rig.held().await;
    let (id, task) = rig.waiter(&faulty.client.fair_lock("a")).await;
    let (_, other_task) = rig.waiter(&rig.lock().await).await;
    faulty.lose("FAIR_ACQUIRE");
    guard.release().await.unwrap();
    let guard = within(SOON, "the first", task).await;
    faulty.lost().await;
    assert_eq!(guard.owner_id().to_string(), id);
    assert_eq!(rig.cmd(&["HGET", "a", &id]).int(), 1, "once");
    assert_eq!(rig.queue().len(), 1);
    guard.release().await.unwrap();
    within(SOON, "the other", other_task).await.release().await.unwrap();
    assert_eq!(rig.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_is_lost_tells_the_next() {
    let faulty = Faulty::new().await;
    let rig = &faulty.rig;
    let guard = faulty.client.fair_lock("a").lease(LONG).lock().await.unwrap();
    let (first, first_task) = rig.waiter(&rig.lock().await).await;
    let (_, second_task) = rig.waiter(&rig.lock().await).await;
    faulty.lose("FAIR_RELEASE");
    guard.release().await.expect("the first try cannot have come too late");
    faulty.lost().await;
    let guard = within(SOON, "the first", first_task).await;
    assert_eq!(guard.owner_id().to_string(), first);
    guard.release().await.unwrap();
    within(SOON, "the second", second_task).await.release().await.unwrap();
    assert_eq!(rig.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_give_up_whose_answer_is_lost_leaves_no_place() {
    let faulty = Faulty::new().await;
    let rig = &faulty.rig;
    let guard = rig.held().await;
    let (_, leaving) = rig.waiter(&faulty.client.fair_lock("a")).await;
    let (id, task) = rig.waiter(&rig.lock().await).await;
    let words = faulty.proxy.expect_delivery(&faulty.mark("FAIR_RELEASE"));
    faulty.lose("FAIR_RELEASE");
    cancel(leaving).await;
    // And again, because nobody knows what came of the first.
    words.wait_for(2).await;
    faulty.lost().await;
    eventually(SOON, "it has left", || rig.queue() == [id.clone()]).await;
    assert_eq!((rig.scores().len(), rig.seen().len()), (1, 1));
    guard.release().await.unwrap();
    within(SOON, "the other", task).await.release().await.unwrap();
    assert_eq!(rig.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_keep_alives_answer_is_lost_keeps_its_place() {
    let faulty = Faulty::new().await;
    let rig = &faulty.rig;
    let guard = rig.held().await;
    let (first, first_task) = rig.waiter(&faulty.client.fair_lock("a")).await;
    let (second, second_task) = rig.waiter(&rig.lock().await).await;
    let words = faulty.proxy.expect_delivery(&faulty.mark("FAIR_KEEP"));
    faulty.lose("FAIR_KEEP");
    let watch = Stopwatch::start();
    faulty.lost().await;
    // Longer than the silence after which it would be passed over.
    eventually(PATIENCE, "time passes", || watch.elapsed() > ms(4_000)).await;
    assert!(words.count() >= 3, "{} words in 4 s", words.count());
    let in_order = rig.queue() == [first.clone(), second];
    assert!(in_order || watch.stalled(), "{:?}", rig.queue());
    guard.release().await.unwrap();
    for task in [first_task, second_task].map(passed_on) {
        within(SOON, "its turn", task).await;
    }
    assert_eq!(rig.keys(), [""; 0]);
}

/// Whoever gets the lock gives it back at once.
fn passed_on(task: JoinHandle<LockGuard>) -> JoinHandle<()> {
    tokio::spawn(async move { task.await.unwrap().release().await.unwrap() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_waiters_of_a_server_that_lost_its_data_get_the_lock() {
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

/// The message that it is one's turn is lost with the connection that waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_subscription_breaks_gets_its_turn_at_once() {
    let rig = Rig::new("a");
    let lock = rig.lock().await;
    let mut guard = rig.held().await;
    for _ in 0..5 {
        let (first, first_task) = rig.waiter(&lock).await;
        let (_, second_task) = rig.waiter(&lock).await;
        rig.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        guard.release().await.unwrap();
        let next = within(SOON, "the first", first_task).await;
        assert_eq!(next.owner_id().to_string(), first);
        next.release().await.unwrap();
        guard = within(SOON, "the second", second_task).await;
    }
    guard.release().await.unwrap();
    assert_eq!(rig.keys(), [""; 0]);
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
    // Nobody can be heard: then silence is forgiven for another three seconds.
    proxy.refuse(true);
    proxy.cut();
    cancel(first).await;
    guard.release().await.unwrap();
    tokio::time::sleep(ms(3_000)).await;
    assert_eq!(rig.queue().len(), 2, "nobody was there to give the position up");
    proxy.refuse(false);
    let guard = within(SOON, "the second: the first waits no more", task).await;
    assert_eq!(guard.owner_id().to_string(), second);
    guard.release().await.unwrap();
    rig.nothing_is_left().await;
}
