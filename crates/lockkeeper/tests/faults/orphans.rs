//! Requests that arrive late, twice or after everybody has walked away leave no hold behind, and
//! take none away.

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

use crate::family::{Held, Sort, Thing};
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
async fn no_acquire_cancelled_anywhere_leaves_an_orphan_on_many_threads() {
    storm(rounds()).await;
}

#[tokio::test]
async fn no_acquire_cancelled_anywhere_leaves_an_orphan_on_one_thread() {
    storm(rounds()).await;
}

/// 64 tasks acquire and walk away at random points; the scripts are flushed all the while. No lease
/// ends while this runs, so that whatever is left at the end is an orphan.
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
                    walk_away(&client, task, round, &granted).await;
                }
            })
        })
        .collect();
    // An orphan would stop all who want its name: that is to be a failure, not a hang.
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
    eventually(PATIENCE, "nobody listens", || {
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
async fn walk_away(client: &Client, task: usize, round: usize, granted: &AtomicUsize) {
    let kind = KINDS[fastrand::usize(..2)];
    // Half of them alone with their name, half of them in each other's way.
    let name = match fastrand::bool() {
        true => format!("own:{kind}:{task}:{}", round % 8),
        false => format!("shared:{kind}:{}", fastrand::u8(..8)),
    };
    let handle = lock_of(client, kind, &name);
    let request = handle.lock();
    let guard = match fastrand::u8(..10) {
        // After so many polls: mostly right after the request was handed over.
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
        // A release that is walked away from is done all the same.
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

/// Connections are cut, requests held back until long after they were given up, replies lost, scripts
/// flushed, all at random; two clients with 16 tasks each acquire, walk away and release meanwhile.
/// Nobody is ever told anything but the truth: a lock that was granted is held until it is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_gone_mad_leaves_no_orphan_and_breaks_no_exclusion() {
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
                // Some fight for four names; the others are alone with theirs, where nothing that
                // arrives late finds the lock taken.
                let name = match task % 2 {
                    0 => format!("shared-{}", task % 8),
                    _ => format!("own-{client}-{task}"),
                };
                let handle = lock_of(&connected, kind, &name);
                let (history, stop) = (history.clone(), Arc::clone(&stop));
                tasks.push(tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        hold_for_a_moment(&handle, &history, client, task).await;
                    }
                }));
            }
        }
        go_mad(&server, &proxy, kind, ms(4000)).await;
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

async fn hold_for_a_moment(handle: &AnyLock, history: &History, client: usize, task: usize) {
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

async fn go_mad(server: &RedisServer, proxy: &FaultProxy, kind: Kind, span: Duration) {
    let end = tokio::time::Instant::now() + span;
    let scripts = [Sent::Acquire, Sent::Release, Sent::HandOver, Sent::Renew];
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

/// All keys but the notes of who a client is.
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
        for sent in [Sent::Acquire, Sent::Release, Sent::HandOver] {
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
async fn an_acquire_that_arrives_late_does_not_lengthen_what_was_left_standing() {
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
fn hold_of(server: &RedisServer, sort: Option<Sort>, owner: &str) -> (Duration, i64) {
    let reader = format!("{{a}}:{owner}:rwlock_timeout:1");
    let (key, field) = match sort {
        Some(Sort::Read) => (reader.as_str(), owner.to_owned()),
        Some(Sort::Write) => ("a", format!("{owner}:write")),
        _ => ("a", owner.to_owned()),
    };
    let left = pttl(server, key).min(pttl(server, "a"));
    (ms(left.max(0).unsigned_abs()), server.cli(&["HGET", "a", &field]).int())
}

/// A partial release stalls and is repeated; the owner holds it once more, for longer; then what stalled
/// arrives and cuts the time to live. No guard may count on more than that leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_release_that_arrives_late_cuts_no_lease_that_is_counted_on() {
    for sort in [None, Some(Sort::Fair), Some(Sort::Read), Some(Sort::Write)] {
        for fixed in [false, true] {
            let late = Late::new(Kind::Lock, false, LONG).await;
            let (server, client) = (&late.rig.server, &late.rig.client);
            let outer = match sort {
                None => late.take().await,
                Some(sort) => {
                    // So that what stalls is the request itself, and not one that finds no script.
                    late.rig.hash(sort.scripts().1);
                    match Thing::new(client, sort, "a").taken().await {
                        Held::Guard(guard) => guard,
                        Held::Permit(_) => unreachable!("it is a lock"),
                    }
                }
            };
            let owner = outer.owner_id().to_string();
            let short = ms(9_000);
            let inner = outer.reenter_for(short).await.expect("held");
            late.hold();
            within(PATIENCE, "release", outer.release()).await.expect("held");
            let again = match fixed {
                true => inner.reenter_for(LONG).await,
                false => inner.reenter().await,
            };
            let again = again.expect("held");
            assert_eq!(hold_of(server, sort, &owner).1, 2, "{sort:?}");
            late.deliver().await;
            let (before, promised) = (Instant::now(), again.remaining());
            let (left, count) = hold_of(server, sort, &owner);
            assert_eq!(count, 1, "{sort:?}: it comes late");
            let least = left + before.elapsed();
            assert!(promised <= least, "{sort:?}: {promised:?} promised of {least:?}");
            // And it is renewed in time for what may come at any moment.
            let renewed = || hold_of(server, sort, &owner).0 > short;
            eventually(PATIENCE, "it is renewed", renewed).await;
            assert!(!again.is_lost(), "{sort:?}: {again:?}");
            drop((again, inner));
            eventually(PATIENCE, "free", || pttl(server, "a") == -2).await;
        }
    }
}

/// Released, taken anew by the same client, and then the first try of the release arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_arrives_late_takes_nothing_away() {
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
async fn a_partial_release_that_arrives_late_takes_nothing_away() {
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
        // Whatever the store counts meanwhile, no hold is taken away by its end.
        again.release().await.expect("held");
        late.rig.assert_held("a", &outer, 1);
        outer.release().await.expect("held");
        late.rig.assert_free("a");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_that_arrives_late_moves_nothing() {
    for fenced in [true, false] {
        both(move |kind| async move {
            for _ in 0..20 {
                let late = Late::new(kind, fenced, LONG).await;
                let handed = late.rig.proxy.expect_request(&late.rig.mark(Sent::HandOver));
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
        let other = late.rig.strangers("a").await;
        let heir = other.lease(ms(30_000)).lock().await.expect("free");
        late.deliver().await;
        late.rig.assert_held("a", &heir, 1);
        assert!(pttl(&late.rig.server, "a") <= 30_000);
    })
    .await;
}
