//! Thousands of acquires on a real server, dropped at random moments.

use std::time::{Duration, Instant};

use lockkeeper::{Client, Guard};
use testkit::RedisServer;

/// Acquires of each run.
const ACQUIRES: usize = 8_000;

/// Tasks that make them.
const TASKS: usize = 64;

/// By then all of them are done, on any machine.
const ALL_DONE: Duration = Duration::from_secs(60);

/// Few enough that they meet.
const NAMES: usize = 24;

/// The longest time after which an acquire is dropped.
const LONGEST: Duration = Duration::from_millis(6);

/// The most turns of the runtime after which an acquire is dropped: finer than any timer, so that
/// some are dropped before they are sent, some while they are under way, some while they wait.
const TURNS: usize = 60;

/// Waits for something that nobody signals.
async fn eventually(what: &str, mut condition: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(found) = condition() {
        assert!(Instant::now() < deadline, "{what}: {found}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn texts(server: &RedisServer, command: &[&str]) -> Vec<String> {
    let reply = server.cli(command).ok();
    let mut texts: Vec<_> = reply.array().iter().map(|item| item.text().to_owned()).collect();
    texts.sort();
    texts
}

/// No lock is left, nobody listens for one, and every name can be had at once.
async fn assert_nothing_left(server: &RedisServer, client: &Client) {
    let only = |found: Vec<String>, prefix: &str| match found
        .iter()
        .all(|name| name.starts_with(prefix))
    {
        true => Ok(()),
        false => Err(format!("{found:?}")),
    };
    eventually("keys left", || only(texts(server, &["KEYS", "*"]), "lockkeeper_client:")).await;
    eventually("subscriptions left", || {
        only(texts(server, &["PUBSUB", "CHANNELS"]), "lockkeeper_notice:")
    })
    .await;
    let rival = Client::connect(&server.url()).await.unwrap();
    for name in names() {
        for client in [client, &rival] {
            let lock = client.lock(&name).try_lock().await.unwrap();
            lock.expect("nobody holds it").release().await.unwrap();
            let mutex = client.mutex(format!("mutex {name}")).try_lock().await.unwrap();
            mutex.expect("nobody holds it").release().await.unwrap();
        }
    }
}

fn names() -> impl Iterator<Item = String> {
    (0..NAMES).map(|number| format!("name {number}"))
}

/// How the acquires of one task went.
#[derive(Debug, Default)]
struct Count {
    dropped: usize,
    held: usize,
}

/// The outcome of `work`, if it comes before a random moment.
async fn or_drop<T>(work: impl Future<Output = T>) -> Option<T> {
    let late = async {
        if fastrand::bool() {
            tokio::time::sleep(LONGEST.mul_f64(fastrand::f64())).await;
        } else {
            for _ in 0..fastrand::usize(..TURNS) {
                tokio::task::yield_now().await;
            }
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = late => None,
    }
}

async fn acquire(client: &Client) -> Option<Guard> {
    let name = format!("name {}", fastrand::usize(..NAMES));
    let (lock, mutex) = (client.lock(&name), client.mutex(format!("mutex {name}")));
    let long = Duration::from_secs(60);
    let acquired = match fastrand::u8(..4) {
        0 => or_drop(lock.lock().into_future()).await?,
        1 => or_drop(lock.lock().lease(long).into_future()).await?,
        2 => or_drop(mutex.lock().into_future()).await?,
        _ => {
            let waited = or_drop(lock.try_lock().wait(long).into_future()).await?;
            waited.map(|guard| guard.expect("a minute has not passed"))
        }
    };
    Some(acquired.unwrap())
}

async fn acquire_and_walk_away(clients: [Client; 2], times: usize) -> Count {
    let mut count = Count::default();
    for _ in 0..times {
        let Some(guard) = acquire(&clients[fastrand::usize(..2)]).await else {
            count.dropped += 1;
            continue;
        };
        count.held += 1;
        match fastrand::u8(..3) {
            0 => drop(guard),
            1 => drop(guard.release()),
            _ => drop(or_drop(guard.release()).await),
        }
    }
    count
}

async fn thousands_of_cancelled_acquires() {
    let server = RedisServer::start();
    let connect = async || Client::connect(&server.url()).await.unwrap();
    let clients = [connect().await, connect().await];
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| tokio::spawn(acquire_and_walk_away(clients.clone(), ACQUIRES / TASKS)))
        .collect();
    let mut total = Count::default();
    for task in tasks {
        let count = tokio::time::timeout(ALL_DONE, task).await.expect("somebody waits for ever");
        let count = count.unwrap();
        total.dropped += count.dropped;
        total.held += count.held;
    }
    println!("{total:?}");
    assert!(total.dropped > ACQUIRES / 20 && total.held > ACQUIRES / 20, "{total:?}");
    assert_nothing_left(&server, &clients[0]).await;
}

#[tokio::test]
async fn thousands_of_cancelled_acquires_leave_nothing_on_one_thread() {
    thousands_of_cancelled_acquires().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn thousands_of_cancelled_acquires_leave_nothing_on_several_threads() {
    thousands_of_cancelled_acquires().await;
}
