//! The server refuses or does not answer: callers are told at the time that RULES §7 says.
//!
//! The same checks run for every such [`Condition`].

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use lockkeeper::{Client, ClientOptions, Error, Kind, Phase};
use testkit::RedisServer;
use tokio::time::Instant;

use crate::support::*;

/// Long enough to tell it from a response timeout.
const UNREACHABLE_AFTER: std::time::Duration = std::time::Duration::from_millis(1500);

fn short() -> ClientOptions {
    options().connect_timeout(ms(500)).unreachable_after(UNREACHABLE_AFTER)
}

/// A reason for which the server does not serve.
#[derive(Clone, Copy, Debug)]
enum Condition {
    ReadOnly,
    /// A script that does not end, on another connection.
    Busy,
    /// Without memory.
    Full,
    /// The connections stay open, and nothing passes.
    HalfOpen,
    /// New connections are refused and the existing ones cut.
    Down,
}

impl Condition {
    /// What the error must name.
    fn says(self) -> &'static str {
        match self {
            Condition::ReadOnly => "READONLY",
            Condition::Busy => "BUSY",
            Condition::Full => "OOM",
            Condition::HalfOpen => "no answer",
            Condition::Down => "",
        }
    }

    /// Whether the server answers and refuses, or does not answer.
    fn refuses(self) -> bool {
        !matches!(self, Condition::HalfOpen | Condition::Down)
    }

    fn begin(self, Rig { server, proxy, .. }: &Rig) {
        match self {
            Condition::ReadOnly => drop(server.cli(&["REPLICAOF", "127.0.0.1", "1"]).ok()),
            Condition::Busy => keep_busy(server),
            Condition::Full => fill(server),
            Condition::HalfOpen => proxy.black_hole(true),
            Condition::Down => down(proxy),
        }
    }

    fn end(self, Rig { server, proxy, .. }: &Rig) {
        match self {
            Condition::ReadOnly => drop(server.cli(&["REPLICAOF", "NO", "ONE"]).ok()),
            Condition::Busy => drop(server.cli(&["SCRIPT", "KILL"]).ok()),
            Condition::Full => drop(server.cli(&["CONFIG", "SET", "maxmemory", "0"]).ok()),
            Condition::HalfOpen => proxy.black_hole(false),
            Condition::Down => proxy.refuse(false),
        }
    }

    #[track_caller]
    fn assert_reported<T: std::fmt::Debug>(self, answer: &Result<T, Error>) {
        let expected = match answer {
            Err(Error::Refused { lock: Some(_), phase: Phase::Acquire, .. }) => self.refuses(),
            Err(Error::Unreachable { lock: Some(_), phase: Phase::Acquire, .. }) => !self.refuses(),
            _ => false,
        };
        assert!(expected, "{self:?}: {answer:?}");
    }
}

fn keep_busy(server: &RedisServer) {
    server.cli(&["CONFIG", "SET", "busy-reply-threshold", "50"]).ok();
    let mut cli = server.connection();
    // Ends with an error when it is killed.
    thread::spawn(move || cli.cmd(&["EVAL", "while true do end", "0"]));
    let busy = || matches!(server.cli(&["PING"]), testkit::Reply::Error(_));
    let end = std::time::Instant::now() + PATIENCE;
    while !busy() {
        assert!(std::time::Instant::now() < end, "the server is not busy");
    }
}

/// Every write that needs memory is refused from now on.
pub(crate) fn fill(server: &RedisServer) {
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).ok();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).ok();
}

/// A single attempt fails within the response timeout, a limited wait at its limit, and an unlimited wait after
/// `unreachable_after`. A wait that outlasts the condition acquires the lock. A hold from before is kept.
async fn is_reported(it: Condition, kind: Kind) {
    let rig = Rig::new(kind, short()).await;
    let (held, handle) = (taken(&rig.handle("held")).await, rig.handle("a"));
    it.begin(&rig);
    let answer = within(RESPONSE + SOON, "one attempt", handle.try_lock()).await;
    it.assert_reported(&answer);
    let said = answer.unwrap_err().to_string();
    assert!(said.contains(it.says()), "{said:?} does not say {:?}", it.says());
    assert!(said.contains("\"a\"") && said.contains("acquiring"), "{said}");

    let started = Instant::now();
    let limited = handle.try_lock_for(ms(300));
    it.assert_reported(&within(ms(300) + SOON, "a limited wait", limited).await);
    assert!(started.elapsed() >= ms(300), "{:?}", started.elapsed());

    // A client that has not yet seen the outage waits for the whole span.
    let patient = handle.lock();
    let answer = within(UNREACHABLE_AFTER + SOON, "a patient wait", patient).await;
    it.assert_reported(&answer);
    if let Err(Error::Unreachable { silent_for, .. }) = answer {
        assert!(silent_for.is_some_and(|span| span >= UNREACHABLE_AFTER / 2), "{silent_for:?}");
    }

    let waiter = tokio::spawn(handle.lock());
    tokio::task::yield_now().await;
    it.end(&rig);
    // Its span may have ended just before the condition did; the next acquire succeeds.
    match within(PATIENCE, "the waiter", joined(waiter)).await {
        Ok(guard) => guard.release().await.expect("held"),
        answer => drop(assert_unreachable(&answer)),
    }
    let guard = within(SOON, "afterwards", handle.lock()).await;
    let guard = guard.expect("it is over");
    rig.assert_held("a", &guard, 1);
    guard.release().await.expect("held");
    rig.assert_free("a");
    rig.assert_held("held", &held, 1);
    held.release().await.expect("held");
}

/// A wait that begins before the condition and ends after it acquires the lock.
async fn is_waited_for(it: Condition, kind: Kind) {
    let rig = Rig::new(kind, options()).await;
    it.begin(&rig);
    let waiter = tokio::spawn(rig.handle("a").lock());
    // Several response timeouts.
    tokio::time::sleep(3 * RESPONSE).await;
    assert!(!waiter.is_finished(), "it did not wait");
    it.end(&rig);
    let guard = within(SOON, "the waiter", joined(waiter)).await;
    rig.assert_held("a", &guard.expect("it is over"), 1);
}

macro_rules! conditions {
    ($($name:ident: $scenario:ident $condition:ident;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            both(|kind| $scenario(Condition::$condition, kind)).await;
        })*
    };
}

conditions! {
    a_read_only_server_is_reported_until_it_recovers: is_reported ReadOnly;
    a_busy_server_is_reported_until_it_recovers: is_reported Busy;
    a_full_server_is_reported_until_it_recovers: is_reported Full;
    a_half_open_connection_is_reported_until_it_recovers: is_reported HalfOpen;
    an_unreachable_server_is_reported_until_it_recovers: is_reported Down;
    an_acquire_waits_until_a_read_only_server_recovers: is_waited_for ReadOnly;
    an_acquire_waits_until_a_busy_server_recovers: is_waited_for Busy;
    an_acquire_waits_until_a_half_open_connection_recovers: is_waited_for HalfOpen;
}

/// A persistent server that needs seconds to read its dump.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_waits_until_a_loading_server_is_ready() {
    both(async |kind| {
        let server = RedisServer::builder()
            .persistent(true)
            .arg("--key-load-delay", "1000")
            .arg("--loading-process-events-interval-bytes", "1024")
            .start();
        let server = Arc::new(server);
        let fill = "for i = 1, 2500 do redis.call('SET', 'fill' .. i, string.rep('x', 100)) end";
        server.cli(&["EVAL", fill, "0"]).ok();
        // It answers at once; a machine that stands still is not to be taken for it.
        let client = connect(&server.url(), options().response_timeout(PATIENCE)).await;
        let held = taken(&lock_of(&client, kind, "held")).await;
        let handle = lock_of(&client, kind, "a");
        let port = server.port();
        let restarting = tokio::task::spawn_blocking({
            let server = Arc::clone(&server);
            move || server.restart()
        });
        eventually(PATIENCE, "loading", || is_loading(port) == Some(true)).await;
        let attempt = handle.try_lock();
        let answer = within(PATIENCE, "one attempt", attempt).await;
        let mut loading = None;
        eventually(PATIENCE, "it is known", || {
            loading = is_loading(port);
            loading.is_some()
        })
        .await;
        assert_eq!(loading, Some(true), "it was over too soon to say anything");
        let said = assert_unreachable(&answer);
        let guard = within(PATIENCE, "a patient wait", handle.lock()).await;
        let guard = guard.expect("loaded");
        joined(restarting).await;
        assert_held(&server, kind, "a", &guard, 1);
        // The hold was in the dump, and the lease goes on.
        assert_held(&server, kind, "held", &held, 1);
        assert!(said.contains("LOADING"), "not clear: {said}");
    })
    .await;
}

/// Unless it does not answer in time.
fn is_loading(port: u16) -> Option<bool> {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(ms(500)))?;
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 8];
        stream.read_exact(&mut reply)?;
        Ok(&reply == b"-LOADING")
    };
    match ask() {
        Ok(loading) => Some(loading),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
        // Refused, while there is no server at all.
        Err(_) => Some(false),
    }
}

/// At the wait limit the last answer counts: busy is no error, silence is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_wait_limit_busy_is_none_and_silence_is_an_error() {
    both(async |kind| {
        let rig = Rig::new(kind, options().unreachable_after(LONG)).await;
        let holder = taken(&rig.direct_lock("a").await).await;
        let handle = rig.handle("a");
        let started = Instant::now();
        let busy = handle.try_lock_for(ms(1000));
        let busy = within(ms(1000) + SOON, "a limited wait", busy).await;
        assert!(busy.expect("the server answers").is_none());
        assert!(started.elapsed() >= ms(1000));
        // Silent at first, busy at last.
        rig.proxy.refuse(true);
        rig.proxy.cut();
        let late = tokio::spawn(handle.try_lock_for(ms(2000)));
        rig.proxy.wait_for_refusals(3).await;
        rig.proxy.refuse(false);
        let late = within(ms(2000) + SOON, "a limited wait", joined(late)).await;
        assert!(late.expect("it answered in the end").is_none());
        // Busy at first, silent at last.
        let silent = tokio::spawn(handle.try_lock_for(ms(2500)));
        eventually(PATIENCE, "listening", || listeners(&rig.server, "a") == 1).await;
        rig.proxy.refuse(true);
        rig.proxy.cut();
        let silent = within(ms(2500) + SOON, "a limited wait", joined(silent)).await;
        assert_unreachable(&silent);
        holder.release().await.expect("held");
    })
    .await;
}

/// The connections stay open, and the server stops answering after it said that the lock is busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_answering_during_a_limited_wait_is_unreachable() {
    both(async |kind| {
        let rig = Rig::new(kind, options().unreachable_after(LONG)).await;
        let holder = taken(&rig.direct_lock("a").await).await;
        let attempts = rig.proxy.expect_delivery(&rig.mark(Sent::Acquire));
        let limit = ms(2400);
        let waiting = tokio::spawn(rig.handle("a").try_lock_for(limit));
        // Before it subscribes and after.
        attempts.wait_for(2).await;
        rig.proxy.black_hole(true);
        let answer = within(limit + RESPONSE + SOON, "a limited wait", joined(waiting)).await;
        assert_unreachable(&answer);
        rig.proxy.black_hole(false);
        rig.proxy.cut();
        holder.release().await.expect("held");
        eventually(PATIENCE, "free", || rig.stored("a").is_empty()).await;
    })
    .await;
}

/// The lock is held and the server becomes read-only: a release is answered when it is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_refused_for_now_is_repeated() {
    both(async |kind| {
        let rig = Rig::new(kind, options()).await;
        let guard = taken(&rig.handle("a")).await;
        let releases = rig.proxy.expect_request(&rig.mark(Sent::Release));
        rig.server.cli(&["REPLICAOF", "127.0.0.1", "1"]).ok();
        let release = tokio::spawn(guard.release());
        releases.wait_for(1).await;
        assert_eq!(rig.stored("a").len(), 1);
        rig.server.cli(&["REPLICAOF", "NO", "ONE"]).ok();
        within(SOON, "release", joined(release)).await.expect("held");
        rig.assert_free("a");
    })
    .await;
}

/// Whatever listens there, its answer to the first request may not use up the memory of the client.
#[tokio::test]
async fn a_first_reply_that_does_not_end_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("it is bound"));
    let serving = thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        // More nils are announced than come.
        let reply = [&b"*9999999\r\n"[..], &b"_\r\n".repeat(2 * 1024 * 1024 / 3)].concat();
        let _ = client.write_all(&reply);
        // Until the client has closed the connection.
        while client.read(&mut [0; 1024]).is_ok_and(|count| count > 0) {}
    });
    let connecting = Client::connect_with(&url, options().connect_timeout(PATIENCE));
    let answer = within(PATIENCE + SOON, "connecting", connecting).await;
    let said = assert_unreachable(&answer);
    assert!(said.contains("not that of a Redis server"), "{said}");
    serving.join().expect("the server");
}
