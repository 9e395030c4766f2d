//! The network delivers replies in other pieces than the server sent, or other bytes with them. A
//! connection then waits, or is given up; no request ever gets the reply to another one.
//!
//! The server is a real one. Only the network between it and the client is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::{Client, ClientOptions, Error, Kind};
use testkit::RedisServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};

use crate::support::*;

/// How the bytes of the server reach the client.
#[derive(Clone, Copy, Debug)]
enum Pieces {
    Whole,
    /// One write for each byte.
    Bytes,
    /// Cut at random places, with what has arrived meanwhile.
    Random(u64),
}

/// An order to the network.
#[derive(Clone, Debug)]
enum Order {
    /// Delivers these bytes to the client, on the nth connection, now.
    Insert(usize, Vec<u8>),
    /// Delivers so many more bytes to the client, on all connections, and cuts them.
    CutAfter(usize),
}

/// A network in front of a server on loopback.
struct Network {
    port: u16,
    accepted: Arc<AtomicUsize>,
    orders: broadcast::Sender<Order>,
    /// What clients send is not read.
    stalled: watch::Sender<bool>,
}

impl Network {
    async fn start(upstream: u16, pieces: Pieces) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let accepted = Arc::new(AtomicUsize::new(0));
        let (orders, stalled) = (broadcast::Sender::new(64), watch::Sender::new(false));
        let (count, inserts, stalls) = (accepted.clone(), orders.clone(), stalled.subscribe());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", upstream)).await;
                let Ok(server) = server else { continue };
                let orders = inserts.subscribe();
                let number = count.fetch_add(1, Ordering::AcqRel);
                let carried = carry(number, client, server, pieces, orders);
                tokio::spawn(carried.run(stalls.clone()));
            }
        });
        Self { port, accepted, orders, stalled }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Acquire)
    }

    fn order(&self, order: Order) {
        // Fails while there is no connection.
        let _ = self.orders.send(order);
    }
}

/// One connection through the network.
struct Carried {
    number: usize,
    client: TcpStream,
    server: TcpStream,
    pieces: Pieces,
    orders: broadcast::Receiver<Order>,
}

fn carry(
    number: usize,
    client: TcpStream,
    server: TcpStream,
    pieces: Pieces,
    orders: broadcast::Receiver<Order>,
) -> Carried {
    client.set_nodelay(true).expect("a socket");
    server.set_nodelay(true).expect("a socket");
    Carried { number, client, server, pieces, orders }
}

impl Carried {
    /// Ends with either side.
    async fn run(self, mut stalled: watch::Receiver<bool>) {
        let Self { number, client, server, pieces, mut orders } = self;
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let upwards = async {
            let mut chunk = [0; 4096];
            loop {
                if stalled.wait_for(|stalled| !stalled).await.is_err() {
                    return;
                }
                match from_client.read(&mut chunk).await {
                    Ok(0) | Err(_) => return,
                    Ok(count) if to_server.write_all(&chunk[..count]).await.is_err() => return,
                    Ok(_) => {}
                }
            }
        };
        let downwards = async {
            let (mut chunk, mut left) = (vec![0; 64 * 1024], None);
            let mut random = if let Pieces::Random(seed) = pieces { seed } else { 0 };
            loop {
                let arrived = tokio::select! {
                    order = orders.recv() => match order {
                        Ok(Order::Insert(to, bytes)) if to == number => bytes,
                        Ok(Order::CutAfter(count)) => {
                            left = Some(count);
                            continue;
                        }
                        _ => continue,
                    },
                    read = from_server.read(&mut chunk) => match read {
                        Ok(0) | Err(_) => return,
                        Ok(count) => chunk[..count].to_vec(),
                    },
                };
                let mut rest = &arrived[..];
                if let Some(left) = left {
                    let _ = to_client.write_all(&rest[..left.min(rest.len())]).await;
                    return;
                }
                while !rest.is_empty() {
                    random =
                        random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let size = match pieces {
                        Pieces::Whole => rest.len(),
                        Pieces::Bytes => 1,
                        Pieces::Random(_) => 1 + (random >> 33) as usize % rest.len(),
                    };
                    if to_client.write_all(&rest[..size]).await.is_err() {
                        return;
                    }
                    rest = &rest[size..];
                    tokio::task::yield_now().await;
                }
            }
        };
        tokio::select! {
            () = upwards => {}
            () = downwards => {}
        }
    }
}

/// A life of locks with waiters, re-entries, listings: many forms of replies.
async fn live(server: &RedisServer, client: &Client, other: &Client) {
    for kind in KINDS {
        let handle = lock_of(client, kind, "a");
        let guard = taken(&handle).await;
        assert_held(server, kind, "a", &guard, 1);
        let waiter = tokio::spawn(lock_of(other, kind, "a").lock());
        eventually(PATIENCE, "listening", || listeners(server, "a") >= 1).await;
        guard.release().await.expect("it is held");
        let guard = within(PATIENCE, "the waiter", joined(waiter)).await.expect("freed");
        assert_held(server, kind, "a", &guard, 1);
        assert!(handle.try_lock().await.expect("it answers").is_none(), "it is held by the other");
        guard.release().await.expect("it is held");
        assert_free(server, kind, "a");
    }
    let held = client.lock("listed").lock().await.expect("it is free");
    let holders =
        lock_of(client, Kind::Lock, "listed").inspect().await.expect("it answers").holders;
    assert_eq!(holders.len(), 1);
    held.release().await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_arrive_byte_by_byte_are_understood() {
    let server = RedisServer::start();
    let network = Network::start(server.port(), Pieces::Bytes).await;
    let client = connect(&network.url(), options()).await;
    let other = connect(&network.url(), options()).await;
    live(&server, &client, &other).await;
    assert_eq!(network.accepted(), 4, "two connections each, and none was given up");
}

/// Many tasks, so that many replies are under way at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_split_and_joined_at_random_reach_their_requests() {
    for seed in 1..=3 {
        let server = RedisServer::start();
        let network = Network::start(server.port(), Pieces::Random(seed)).await;
        let patient = options().response_timeout(PATIENCE);
        let client = connect(&network.url(), patient).await;
        let stranger = connect(&server.url(), options()).await;
        let theirs = taken(&lock_of(&stranger, Kind::Lock, "theirs")).await;
        let tasks: Vec<_> = (0..48)
            .map(|n| {
                let kind = KINDS[n % 2];
                let own = lock_of(&client, kind, &format!("own-{n}"));
                let busy = lock_of(&client, Kind::Lock, "theirs");
                tokio::spawn(async move {
                    for _ in 0..20 {
                        let guard = own.try_lock().await.expect("it answers").expect("it is free");
                        assert!(own.try_lock().await.expect("it answers").is_none());
                        assert!(busy.try_lock().await.expect("it answers").is_none());
                        guard.release().await.expect("it is held");
                    }
                })
            })
            .collect();
        for task in tasks {
            within(LONG, "a task", joined(task)).await;
        }
        assert_held(&server, Kind::Lock, "theirs", &theirs, 1);
        for n in 0..48 {
            assert_free(&server, KINDS[n % 2], &format!("own-{n}"));
        }
        assert!(network.accepted() <= 2, "no connection was given up");
    }
}

/// The reply to an acquire ends in the middle, after each of its bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ends_inside_a_reply_leaves_nothing() {
    both(async |kind| {
        let server = RedisServer::start();
        let network = Network::start(server.port(), Pieces::Whole).await;
        let client = connect(&network.url(), options()).await;
        let handle = lock_of(&client, kind, "a");
        // The scripts are known, so that there is one reply: a null of three bytes.
        taken(&handle).await.release().await.expect("it is held");
        for count in 0..=3 {
            let accepted = network.accepted();
            network.order(Order::CutAfter(count));
            match within(PATIENCE, "an answer", handle.try_lock()).await {
                Ok(guard) => {
                    assert_eq!(count, 3, "the reply was not complete");
                    guard.expect("it is free").release().await.expect("it is held");
                }
                answer => {
                    assert_unreachable(&answer);
                    assert!(count < 3, "the reply was complete");
                }
            }
            eventually(PATIENCE, "undone", || stored(&server, kind, "a").is_empty()).await;
            eventually(PATIENCE, "replaced", || network.accepted() > accepted).await;
            let guard = taken(&handle).await;
            assert_held(&server, kind, "a", &guard, 1);
            guard.release().await.expect("it is held");
        }
    })
    .await;
}

/// While requests are in flight or not: what is not a reply, and a reply to nothing, end the
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_replies_to_nothing_end_the_connection() {
    let inserts: [&[u8]; 8] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff\xfe\xfd\xfc",
        b":12x\r\n",
        b"$99999999999\r\n",
        b"*1\r\n>1\r\n",
        // Whole replies, of which no request knows.
        b":1\r\n",
        b"_\r\n",
        b"+OK\r\n",
    ];
    let server = RedisServer::start();
    let network = Network::start(server.port(), Pieces::Whole).await;
    let client = connect(&network.url(), options()).await;
    for insert in inserts {
        let accepted = network.accepted();
        network.order(Order::Insert(accepted - 1, insert.to_vec()));
        let shown = String::from_utf8_lossy(insert).into_owned();
        eventually(SOON, &shown, || network.accepted() > accepted).await;
        let guard = within(SOON, "acquire", client.lock("a").lock()).await.expect("replaced");
        assert_held(&server, Kind::Lock, "a", &guard, 1);
        guard.release().await.expect("it is held");
    }
}

/// Garbage between the replies to many tasks: each gets its own answer, or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_between_replies_gives_no_task_the_answer_of_another() {
    let server = RedisServer::start();
    let network = Network::start(server.port(), Pieces::Whole).await;
    let client = connect(&network.url(), options()).await;
    let stranger = connect(&server.url(), options()).await;
    let theirs = taken(&lock_of(&stranger, Kind::Lock, "theirs")).await;
    let stop = Arc::new(watch::Sender::new(false));
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let own = lock_of(&client, Kind::Lock, &format!("own-{n}"));
            let busy = lock_of(&client, Kind::Lock, "theirs");
            let stop = stop.subscribe();
            tokio::spawn(async move {
                // A lost attempt is undone in the background, and its lock is busy until then.
                let mut is_free = true;
                while !*stop.borrow() {
                    match own.try_lock().await {
                        Ok(Some(guard)) => is_free = guard.release().await.is_ok(),
                        Ok(None) => assert!(!is_free, "no other task asks for it"),
                        answer => {
                            assert_unreachable(&answer);
                            is_free = false;
                        }
                    }
                    match busy.try_lock().await {
                        Ok(guard) => assert!(guard.is_none(), "it is held by a stranger"),
                        answer => drop(assert_unreachable(&answer)),
                    }
                }
            })
        })
        .collect();
    for _ in 0..10 {
        let accepted = network.accepted();
        // One of the two is for requests.
        let given_up = || {
            let newest = (0..network.accepted()).rev().take(2);
            newest.for_each(|n| network.order(Order::Insert(n, b"*0\r\n".to_vec())));
            network.accepted() > accepted
        };
        eventually(PATIENCE, "given up", given_up).await;
    }
    stop.send_replace(true);
    for task in tasks {
        within(PATIENCE, "a task", joined(task)).await;
    }
    assert_held(&server, Kind::Lock, "theirs", &theirs, 1);
    for n in 0..16 {
        let name = format!("own-{n}");
        eventually(PATIENCE, "undone", || stored(&server, Kind::Lock, &name).is_empty()).await;
    }
}

/// As if a shard had moved: the server says that it has ended a subscription, which was not asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsolicited_unsubscription_replaces_the_connection_and_wakes_the_waiter() {
    for verb in ["unsubscribe", "sunsubscribe"] {
        let server = RedisServer::start();
        let network = Network::start(server.port(), Pieces::Whole).await;
        let stranger = connect(&server.url(), options()).await;
        let holder = taken(&lock_of(&stranger, Kind::Lock, "a")).await;
        let client = connect(&network.url(), options()).await;
        let waiter = tokio::spawn(lock_of(&client, Kind::Lock, "a").lock());
        eventually(PATIENCE, "listening", || listeners(&server, "a") == 1).await;
        let (accepted, channel) = (network.accepted(), channel("a"));
        let (length, size) = (verb.len(), channel.len());
        let push = format!(">3\r\n${length}\r\n{verb}\r\n${size}\r\n{channel}\r\n:0\r\n");
        network.order(Order::Insert(accepted - 1, push.into_bytes()));
        eventually(SOON, verb, || network.accepted() > accepted).await;
        eventually(SOON, "listening again", || listeners(&server, "a") == 1).await;
        holder.release().await.expect("it is held");
        let guard = within(SOON, "the waiter", joined(waiter)).await.expect("freed");
        assert_held(&server, Kind::Lock, "a", &guard, 1);
    }
}

/// More requests than the buffers of both sides take. Each fails in time, and what was not sent is not
/// executed later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_reading_fails_requests_in_time() {
    let server = RedisServer::start();
    let network = Network::start(server.port(), Pieces::Whole).await;
    let client = connect(&network.url(), options()).await;
    taken(&lock_of(&client, Kind::Lock, "a")).await.release().await.expect("it is held");
    network.stalled.send_replace(true);
    let started = tokio::time::Instant::now();
    let tasks: Vec<_> = (0..256)
        .map(|n| {
            let name = format!("{n}-{}", "x".repeat(64 * 1024));
            tokio::spawn(lock_of(&client, Kind::Lock, &name).try_lock())
        })
        .collect();
    let mut not_sent = 0;
    for task in tasks {
        let answer = within(RESPONSE + RESPONSE + SOON, "an answer", joined(task)).await;
        let said = assert_unreachable(&answer);
        let unsent = ["no connection to", "does not read requests"];
        not_sent += usize::from(unsent.iter().any(|words| said.contains(words)));
    }
    assert!(started.elapsed() >= RESPONSE, "it gave up too early");
    assert!(not_sent > 0, "16 MB went somewhere");
    network.stalled.send_replace(false);
    let guard = within(PATIENCE, "acquire", client.lock("a").lock()).await.expect("it reads again");
    guard.release().await.expect("it is held");
    // Undone, as far as they were executed.
    eventually(PATIENCE, "nothing is left", || server.cli(&["KEYS", "*-x*"]).array().is_empty())
        .await;
}

/// The value of a key that is not a lock may be of any size, and the server sends all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_of_a_hundred_megabytes_is_read_and_forgotten() {
    let server = RedisServer::start();
    let network = Network::start(server.port(), Pieces::Whole).await;
    let patient = ClientOptions::new().response_timeout(LONG).watchdog_timeout(LONG);
    let client = connect(&network.url(), patient).await;
    server.cli(&["SETRANGE", "big", "99999999", "x"]).ok();
    let answer = within(LONG, "an answer", client.mutex("big").try_lock()).await;
    let answer = answer.expect("it answers");
    assert!(answer.is_none(), "it is the value of another program");
    let guard = within(SOON, "acquire", client.lock("a").lock()).await.expect("it still serves");
    assert_held(&server, Kind::Lock, "a", &guard, 1);
    assert!(network.accepted() <= 2, "no connection was given up");
    guard.release().await.expect("it is held");
}

/// A server before Redis 6 does not know `HELLO`. It speaks RESP2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_know_hello_is_spoken_to_in_the_old_protocol() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("old.conf");
    std::fs::write(&config, "rename-command HELLO \"\"\n").expect("a file");
    let config = config.to_str().expect("a path");
    let server = RedisServer::builder().password("s3cret").arg("--include", config).start();
    let client = connect(&server.url(), options()).await;
    let other = connect(&server.url(), options()).await;
    live(&server, &client, &other).await;
    // Longer than a ping of the subscription takes to be missed.
    let holder = taken(&lock_of(&client, Kind::Lock, "a")).await;
    let waiter = tokio::spawn(lock_of(&other, Kind::Lock, "a").lock());
    eventually(PATIENCE, "listening", || listeners(&server, "a") == 1).await;
    let pings = server.commandstats("ping");
    eventually(PATIENCE, "a ping", || server.commandstats("ping") > pings).await;
    holder.release().await.expect("it is held");
    let guard = within(SOON, "the waiter", joined(waiter)).await.expect("freed");
    assert_held(&server, Kind::Lock, "a", &guard, 1);
    let wrong = format!("redis://:wr0ng@127.0.0.1:{}", server.port());
    let error = Client::connect_with(&wrong, options()).await.expect_err("the password is wrong");
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("wr0ng"), "{error:?}");
}

/// A caller that is gone does not take the reply of the next one with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn futures_dropped_at_random_shift_no_reply() {
    let server = RedisServer::start();
    let network = Network::start(server.port(), Pieces::Random(7)).await;
    let client = connect(&network.url(), options()).await;
    let stranger = connect(&server.url(), options()).await;
    let theirs = taken(&lock_of(&stranger, Kind::Lock, "theirs")).await;
    let tasks: Vec<_> = (0..16)
        .map(|n: u64| {
            let own = lock_of(&client, Kind::Lock, &format!("own-{n}"));
            let busy = lock_of(&client, Kind::Lock, "theirs");
            tokio::spawn(async move {
                for round in 0..40 {
                    let limit = Duration::from_micros((n * 37 + round * 101) % 1500);
                    let _ = tokio::time::timeout(limit, own.lock()).await;
                    assert!(busy.try_lock().await.expect("it answers").is_none());
                }
            })
        })
        .collect();
    for task in tasks {
        within(LONG, "a task", joined(task)).await;
    }
    assert_held(&server, Kind::Lock, "theirs", &theirs, 1);
    for n in 0..16 {
        let name = format!("own-{n}");
        eventually(PATIENCE, "undone", || stored(&server, Kind::Lock, &name).is_empty()).await;
    }
    assert!(network.accepted() <= 2, "no connection was given up");
}
