//! Requests that arrive late, twice or after their future was dropped leave no orphan, and release no other
//! hold.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use lockkeeper::{AnyGuard, AnyLock, Client, Error, Kind, Result};
use testkit::{ConnId, FaultProxy, History, RedisServer};
use tokio::time::Instant;

use crate::primitives::{Handle, Primitive};
use crate::support::*;

/// Cancelled or completed acquires, for each of the two runtimes.
///
/// The rule (RULES §16, rows 1 and 2) asks for a million: this is a million over both, which two
/// quiet cores do in about fifteen seconds. `LOCKKEEPER_ORPHAN_ROUNDS=1000000` runs a million on
/// each.
const ROUNDS: usize = 500_000;

const TASKS: usize = 64;

fn rounds() -> usize {
    let asked = std::env::var("LOCKKEEPER_ORPHAN_ROUNDS");
    asked.map_or(ROUNDS, |rounds| rounds.parse().expect("LOCKKEEPER_ORPHAN_ROUNDS is a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_acquires_leave_no_orphan_on_many_threads() {
    storm(rounds()).await;
}

#[tokio::test]
async fn cancelled_acquires_leave_no_orphan_on_one_thread() {
    storm(rounds()).await;
}

/// 64 tasks acquire and cancel at random points, while the scripts are flushed. No lease expires during the
/// test, so that every hold that is left is an orphan.
async fn storm(rounds: usize) {
    let server = Arc::new(RedisServer::start());
    let lease = Duration::from_secs(3600);
    // No request is to time out on a slow machine: that is for other tests.
    let patient = options().watchdog_timeout(lease).response_timeout(LONG);
    let client = connect(&server.url(), patient).await;
    let flusher = Flusher::start(&server);
    let granted = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (client, granted) = (client.clone(), Arc::clone(&granted));
            tokio::spawn(async move {
                for round in 0..rounds / TASKS {
                    acquire_and_cancel(&client, task, round, &granted).await;
                }
            })
        })
        .collect();
    // An orphan would block all waiters for its name: the test must fail and not hang.
    let limit = Duration::from_secs(30) + Duration::from_micros(900) * rounds as u32;
    let all = async {
        for task in tasks {
            joined(task).await;
        }
    };
    within(limit, "all tasks: somebody waits for an orphan", all).await;
    drop(flusher);
    // What is under way is up to 64 undos. What they are not about stays for an hour.
    let left = || keys(&server);
    eventually(PATIENCE, "no hold is left", || left().is_empty()).await;
    eventually(PATIENCE, "no subscriber is left", || {
        let channels = server.cli(&["PUBSUB", "CHANNELS", "redisson_lock__channel*"]);
        channels.array().is_empty()
    })
    .await;
    // It has seen all of it: grants that were kept, grants that were undone, hand-overs, flushes.
    let kept = granted.load(Ordering::Relaxed);
    let taken = server.commandstats("hset") + server.commandstats("set");
    assert!(kept > rounds / 20, "only {kept} of {rounds} completed");
    assert!(taken as usize > kept + rounds / 20, "only {taken} grants, {kept} of them kept");
    assert!(server.commandstats("script|flush") > 10);
    client.shutdown().await;
    assert_eq!(left(), Vec::<String>::new());
}

/// One acquire, given up at a random point or completed.
async fn acquire_and_cancel(client: &Client, task: usize, round: usize, granted: &AtomicUsize) {
    let kind = KINDS[fastrand::usize(..2)];
    // Half of them alone with their name, half of them in each other's way.
    let name = match fastrand::bool() {
        true => format!("own:{kind}:{task}:{}", round % 8),
        false => format!("shared:{kind}:{}", fastrand::u8(..8)),
    };
    let handle = lock_of(client, kind, &name);
    let request = handle.lock();
    let guard = match fastrand::u8(..10) {
        // After a few polls: mostly right after the request was sent.
        0..6 => polled(Box::pin(request), fastrand::u32(0..4)).await,
        // After some time.
        6..8 => {
            tokio::time::timeout(Duration::from_micros(fastrand::u64(..3000)), request).await.ok()
        }
        _ => Some(request.await),
    };
    let Some(guard) = guard else { return };
    let guard = guard.expect("the server is there");
    granted.fetch_add(1, Ordering::Relaxed);
    match fastrand::u8(..4) {
        0 => drop(guard),
        // A cancelled release is done all the same.
        1 => drop(polled(Box::pin(guard.release()), fastrand::u32(0..3)).await),
        _ => guard.release().await.expect("it is held"),
    }
}

/// The outcome of a future that is polled so often, and then dropped.
async fn polled<T>(mut future: Pin<Box<dyn Future<Output = T> + Send>>, polls: u32) -> Option<T> {
    for _ in 0..polls {
        let poll = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(outcome) = poll {
            return Some(outcome);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// At random, connections are cut, requests are delayed until after their timeout, replies are lost and scripts
/// are flushed. Meanwhile two clients with 16 tasks each acquire, cancel and release.
/// A granted lock is held until it is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_network_faults_leave_no_orphan_and_break_no_exclusion() {
    both(async |kind| {
        let server = RedisServer::start();
        let proxy = FaultProxy::start(server.port()).await;
        let patient = options().response_timeout(ms(400)).unreachable_after(LONG);
        let history = History::new();
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for client in 0..2 {
            let connected = connect(&proxy.url(), patient.clone()).await;
            for task in 0..16 {
                // Half of the tasks contend for four names. The others have names of their own, where a late
                // request finds the lock free.
                let name = match task % 2 {
                    0 => format!("shared-{}", task % 8),
                    _ => format!("own-{client}-{task}"),
                };
                let handle = lock_of(&connected, kind, &name);
                let (history, stop) = (history.clone(), Arc::clone(&stop));
                tasks.push(tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        hold_briefly(&handle, &history, client, task).await;
                    }
                }));
            }
        }
        inject_faults(&server, &proxy, kind, ms(4000)).await;
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            within(PATIENCE, "a task", joined(task)).await;
        }
        history.assert_valid();
        assert!(history.grants() > 100, "only {}", history.grants());
        eventually(PATIENCE, "no hold is left", || keys(&server).is_empty()).await;
    })
    .await;
}

async fn hold_briefly(handle: &AnyLock, history: &History, client: usize, task: usize) {
    let request = handle.lock();
    let guard = match fastrand::u8(..4) {
        0 => polled(Box::pin(request), fastrand::u32(1..4)).await,
        1 => tokio::time::timeout(ms(fastrand::u64(..100)), request).await.ok(),
        _ => Some(request.await),
    };
    let Some(guard) = guard else { return };
    let guard = guard.expect("it rides out whatever comes");
    let (name, holder) = (guard.name().to_string(), format!("{client}.{task}"));
    history.granted(&name, &holder, None);
    if fastrand::bool() {
        tokio::time::sleep(ms(fastrand::u64(..5))).await;
    }
    assert!(!guard.is_lost(), "{guard:?}");
    history.released(&name, &holder);
    match fastrand::u8(..4) {
        0 => drop(guard),
        _ => guard.release().await.expect("it was held to the end"),
    }
}

async fn inject_faults(server: &RedisServer, proxy: &FaultProxy, kind: Kind, span: Duration) {
    let end = tokio::time::Instant::now() + span;
    let scripts = [Sent::Acquire, Sent::Release, Sent::HandOff, Sent::Renew];
    while tokio::time::Instant::now() < end {
        let connections = proxy.connections();
        let any = connections.get(fastrand::usize(..connections.len().max(1)));
        match (fastrand::u8(..10), any) {
            (0, _) => proxy.cut(),
            (1..3, Some(id)) => proxy.cut_connection(*id),
            // Held for longer than anybody waits for an answer, and delivered after that.
            (3, Some(id)) => {
                proxy.hold_connection(*id, true);
                tokio::time::sleep(ms(600)).await;
                proxy.hold_connection(*id, false);
            }
            (4..7, _) => {
                let script = scripts[fastrand::usize(..4)].script(kind);
                let mark = script.map_or(b"\r\nNX\r\n".to_vec(), |script| {
                    let hash = server.cli(&["SCRIPT", "LOAD", script]).ok();
                    hash.text().as_bytes().to_vec()
                });
                proxy.drop_replies_once_after_request_matching(&mark);
            }
            _ => drop(server.cli(&["SCRIPT", "FLUSH"]).ok()),
        }
        tokio::time::sleep(ms(fastrand::u64(..60))).await;
    }
}

/// All keys except announcements of clients.
fn keys(server: &RedisServer) -> Vec<String> {
    let keys = server.cli(&["KEYS", "*"]);
    let names = keys.array().iter().map(|key| key.text().to_owned());
    names.filter(|name| !name.starts_with("lockkeeper_client")).collect()
}

/// Makes the server forget its scripts every few milliseconds.
struct Flusher {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Flusher {
    fn start(server: &RedisServer) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut cli, stopped) = (server.connection(), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                cli.cmd(&["SCRIPT", "FLUSH"]).ok();
                thread::sleep(ms(fastrand::u64(1..20)));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A client whose first connection holds back what is sent on it.
struct Late {
    rig: Rig,
    first: ConnId,
}

impl Late {
    async fn new(kind: Kind, fenced: bool, lease: Duration) -> Self {
        let server = RedisServer::start();
        let rights = if fenced { "+@all" } else { "-client|kill" };
        server.cli(&["ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all", rights]).ok();
        let proxy = FaultProxy::start(server.port()).await;
        let url = format!("redis://u:p@127.0.0.1:{}", proxy.port());
        let options = options().watchdog_timeout(lease);
        let client = connect(&url, options).await;
        let first = proxy.connections()[0];
        let rig = Rig { client, proxy, server, kind };
        // So that what is held is the request itself, and not one that finds no script.
        for sent in [Sent::Acquire, Sent::Release, Sent::HandOff] {
            rig.mark(sent);
        }
        Self { rig, first }
    }

    fn hold(&self) {
        self.rig.proxy.hold_connection(self.first, true);
    }

    /// What was held back arrives, after everything that was sent on later connections; returns
    /// when the server has done with it.
    async fn deliver(&self) {
        self.rig.proxy.hold_connection(self.first, false);
        self.rig.proxy.wait_for_end(self.first).await;
    }

    /// How many grants the server has made.
    fn grants(&self) -> u64 {
        let set = match self.rig.kind {
            Kind::Mutex => "set",
            _ => "hset",
        };
        // The notes of who the client is are written in the background, each with one of these; a
        // count between two equal numbers of notes belongs to that number.
        let notes = || match self.rig.kind {
            Kind::Mutex => 0,
            _ => self.rig.server.commandstats("zadd"),
        };
        loop {
            let (before, all, after) = (notes(), self.rig.server.commandstats(set), notes());
            if before == after {
                return all.saturating_sub(before);
            }
        }
    }

    async fn take(&self) -> AnyGuard {
        let request = self.rig.handle("a").lock();
        within(PATIENCE, "acquire", request).await.expect("free")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_arrives_after_its_undo_leaves_no_hold() {
    both(async |kind| {
        let late = Late::new(kind, true, LONG).await;
        late.hold();
        let undone = late.rig.proxy.expect_delivery(&late.rig.mark(Sent::Release));
        assert_unreachable(&late.rig.handle("a").try_lock().await);
        undone.wait().await;
        late.deliver().await;
        assert_eq!(late.grants(), 0, "the first connection was killed before");
        late.rig.assert_free("a");
    })
    .await;
}

/// The counterpart of the above: without the right to kill the late request does run, which shows
/// that the fault is a real one. It is undone until its lease would have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_arrives_after_its_undo_is_undone_again_where_killing_is_forbidden() {
    both(async |kind| {
        let late = Late::new(kind, false, ms(4000)).await;
        late.hold();
        let releases = late.rig.proxy.expect_delivery(&late.rig.mark(Sent::Release));
        assert_unreachable(&late.rig.handle("a").try_lock().await);
        releases.wait_for(1).await;
        let seen = releases.count();
        late.deliver().await;
        assert_eq!(late.grants(), 1, "it runs late");
        // Well before its own lease has ended.
        releases.wait_for(seen + 1).await;
        eventually(SOON, "undone", || late.rig.stored("a").is_empty()).await;
    })
    .await;
}

/// Acquired, released, and then the first try of the acquire arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_arrives_after_the_release_leaves_no_hold() {
    both(async |kind| {
        let late = Late::new(kind, true, LONG).await;
        late.hold();
        let guard = late.take().await;
        guard.release().await.expect("it is held");
        late.deliver().await;
        late.rig.assert_free("a");
        assert_eq!(late.grants(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_arrives_after_the_release_is_undone_again_where_killing_is_forbidden() {
    both(async |kind| {
        let late = Late::new(kind, false, LONG).await;
        late.hold();
        let guard = late.take().await;
        let owner = guard.owner_id().to_string();
        guard.release().await.expect("it is held");
        late.deliver().await;
        assert_eq!(late.grants(), 2, "it runs late");
        assert!(late.rig.stored("a").iter().all(|(id, _)| *id == owner));
        eventually(SOON, "undone", || late.rig.stored("a").is_empty()).await;
        let again = late.take().await;
        late.rig.assert_held("a", &again, 1);
    })
    .await;
}

/// The same where the lock was left standing: that is not undone before its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_arrives_late_does_not_extend_leave_for() {
    both(async |kind| {
        let late = Late::new(kind, false, LONG).await;
        late.hold();
        let guard = late.take().await;
        let owner = guard.owner_id().to_string();
        let (left, before) = (ms(4_000), Instant::now());
        guard.leave_for(left).await.expect("it is held");
        late.deliver().await;
        while before.elapsed() < left {
            let stored = late.rig.stored("a");
            let over = before.elapsed() >= left;
            assert!(over || stored == [(owner.clone(), 1)], "{stored:?}");
            tokio::time::sleep(ms(50)).await;
        }
        eventually(SOON, "its time is over", || late.rig.stored("a").is_empty()).await;
    })
    .await;
}

/// How long the hold of this owner lasts at the store, and how often it is counted.
fn hold_of(server: &RedisServer, primitive: Primitive, owner: &str) -> (Duration, i64) {
    let reader = format!("{{a}}:{owner}:rwlock_timeout:1");
    let (key, field) = match primitive {
        Primitive::Read => (reader.as_str(), owner.to_owned()),
        Primitive::Write => ("a", format!("{owner}:write")),
        _ => ("a", owner.to_owned()),
    };
    let left = pttl(server, key).min(pttl(server, "a"));
    (ms(left.max(0).unsigned_abs()), server.cli(&["HGET", "a", &field]).int())
}

/// A partial release stalls and is repeated; the owner holds it once more, for longer; then what stalled
/// arrives. It cannot be revoked here, so it must not shorten the TTL: no guard may count on more than that leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_release_that_arrives_late_cuts_no_promised_lease() {
    for primitive in [Primitive::Lock, Primitive::Fair, Primitive::Read, Primitive::Write] {
        for fixed in [false, true] {
            let late = Late::new(Kind::Lock, false, LONG).await;
            let (server, client) = (&late.rig.server, &late.rig.client);
            // The script is loaded, so that the request itself stalls and not its first try.
            late.rig.hash(primitive.release_script());
            let lock = Handle::new(client, primitive, "a").lock().expect("it is a lock");
            let lock = lock.as_owner(&client.new_owner());
            let outer = lock.lock().await.expect("free");
            let owner = outer.owner_id().to_string();
            let short = ms(9_000);
            let inner = lock.lease(short).lock().await.expect("held");
            // Its partial release asks what the user may do, so that the next one is one request.
            inner.reenter().await.expect("held").release().await.expect("held");
            late.hold();
            within(PATIENCE, "release", outer.release()).await.expect("held");
            let again = match fixed {
                true => lock.lease(LONG).lock().await,
                false => inner.reenter().await,
            };
            let again = again.expect("held");
            assert_eq!(hold_of(server, primitive, &owner).1, 2, "{primitive:?}");
            late.deliver().await;
            let (before, promised) = (Instant::now(), again.remaining());
            let (left, count) = hold_of(server, primitive, &owner);
            assert_eq!(count, 1, "{primitive:?}: it comes late");
            let least = left + before.elapsed();
            assert!(promised <= least, "{primitive:?}: {promised:?} promised of {least:?}");
            assert!(left > short && !again.is_lost(), "{primitive:?}: {left:?}, {again:?}");
            drop((again, inner));
            eventually(PATIENCE, "free", || pttl(server, "a") == -2).await;
        }
    }
}

/// Released, taken anew by the same client, and then the first try of the release arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_arrives_late_releases_nothing() {
    for fenced in [true, false] {
        both(move |kind| async move {
            let late = Late::new(kind, fenced, LONG).await;
            let guard = late.take().await;
            late.hold();
            let released = within(PATIENCE, "release", guard.release()).await;
            released.expect("it is held");
            let heir = late.take().await;
            late.deliver().await;
            late.rig.assert_held("a", &heir, 1);
            heir.release().await.expect("it is held");
        })
        .await;
    }
}

/// The same with another client in between, and a partial release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_release_that_arrives_late_releases_nothing() {
    for fenced in [true, false] {
        let late = Late::new(Kind::Lock, fenced, LONG).await;
        let outer = late.take().await;
        let inner = outer.reenter().await.expect("held");
        late.hold();
        within(PATIENCE, "release", inner.release()).await.expect("held");
        let again = outer.reenter().await.expect("held");
        late.rig.assert_held("a", &outer, 2);
        late.deliver().await;
        if fenced {
            late.rig.assert_held("a", &outer, 2);
        }
        // Whatever the store counts meanwhile, all holds are released in the end.
        again.release().await.expect("held");
        late.rig.assert_held("a", &outer, 1);
        outer.release().await.expect("held");
        late.rig.assert_free("a");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handoff_that_arrives_late_changes_nothing() {
    for fenced in [true, false] {
        both(move |kind| async move {
            for _ in 0..20 {
                let late = Late::new(kind, fenced, LONG).await;
                let handed = late.rig.proxy.expect_request(&late.rig.mark(Sent::HandOff));
                let handle = late.rig.handle("a");
                let first = late.take().await;
                let mut second = Box::pin(handle.lock());
                start(&mut second).await;
                late.hold();
                let release = first.release();
                within(PATIENCE, "release", release).await.expect("held");
                let second = within(PATIENCE, "the successor", second).await;
                let second = second.expect("passed on");
                late.rig.assert_held("a", &second, 1);
                let owner = second.owner_id();
                second.release().await.expect("held");
                let third = late.take().await;
                assert_ne!(third.owner_id(), owner);
                late.deliver().await;
                late.rig.assert_held("a", &third, 1);
                if handed.count() > 0 {
                    return;
                }
            }
            panic!("nothing was ever handed over");
        })
        .await;
    }
}

/// A renewal that was given up arrives after the lock was released and taken by another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_arrives_late_renews_nothing() {
    both(async |kind| {
        let late = Late::new(kind, false, ms(3000)).await;
        let guard = late.take().await;
        let renewals = late.rig.proxy.expect_request(&late.rig.mark(Sent::Renew));
        late.hold();
        renewals.wait_for(2).await;
        let released: Result<(), Error> = guard.release().await;
        released.expect("it is held");
        let other = late.rig.direct_lock("a").await;
        let heir = other.lease(ms(30_000)).lock().await.expect("free");
        late.deliver().await;
        late.rig.assert_held("a", &heir, 1);
        assert!(pttl(&late.rig.server, "a") <= 30_000);
    })
    .await;
}
