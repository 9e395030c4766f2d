//! A request is executed and its reply is lost: the client repeats it, and it counts once. Every request of
//! every primitive; [`replies`](crate::replies) has more cases for locks and mutexes.

use std::time::Duration;

use lockkeeper::{AnyGuard, AnyLock, Client, Error, Kind, MultiLock, Result};
use testkit::Cli;

use crate::primitives::{Fixture, LEASED, Primitive, each, ends_by_itself};
use crate::support::*;

async fn rig() -> Rig {
    Rig::new(Kind::Lock, options()).await
}

/// The outcome of `work`, during which one reply to `script` is lost.
async fn losing<T>(rig: &Rig, script: &str, what: &str, work: impl Future<Output = T>) -> T {
    losing_within(SOON, rig, script, what, work).await
}

/// The same for work that times out after [`TIMED_OUT`].
async fn losing_until_timeout<T>(
    rig: &Rig,
    script: &str,
    what: &str,
    work: impl Future<Output = T>,
) -> T {
    losing_within(TIMED_OUT + SOON, rig, script, what, work).await
}

/// Long enough for a request, the loss of its reply, a new connection and an answer: without an answer the
/// store is unreachable and not busy.
const TIMED_OUT: Duration = SOON;

async fn losing_within<T>(
    limit: Duration,
    rig: &Rig,
    script: &str,
    what: &str,
    work: impl Future<Output = T>,
) -> T {
    losing_mark(limit, rig, &rig.hash(script), what, work).await
}

async fn losing_mark<T>(
    limit: Duration,
    rig: &Rig,
    mark: &[u8],
    what: &str,
    work: impl Future<Output = T>,
) -> T {
    let before = rig.proxy.swallowed_replies();
    rig.proxy.drop_replies_once_after_request_matching(mark);
    let outcome = within(limit, what, work).await;
    // What is done in the background may take a moment longer.
    let lost = rig.proxy.wait_for_swallowed_replies(before + 1);
    within(SOON, &format!("{what}: a reply is lost"), lost).await;
    outcome
}

fn text(rig: &Rig, command: &[&str]) -> String {
    match rig.server.cli(command).ok() {
        testkit::Reply::Nil => "nothing".to_owned(),
        testkit::Reply::Int(number) => number.to_string(),
        reply => reply.text().to_owned(),
    }
}

fn get(rig: &Rig, key: &str) -> String {
    text(rig, &["GET", key])
}

fn number(rig: &Rig, command: &[&str]) -> i64 {
    rig.server.cli(command).ok().int()
}

/// All keys but those that end by themselves.
fn keys(rig: &Rig) -> Vec<String> {
    let keys = rig.server.cli(&["KEYS", "*"]).ok();
    let mut names: Vec<_> = keys.array().iter().map(|key| key.text().to_owned()).collect();
    names.retain(|name| !ends_by_itself(name));
    names.sort();
    names
}

/// The messages there were, and no more.
fn messages(listener: &mut Cli) -> Vec<String> {
    let messages = std::iter::from_fn(|| listener.next_message(ms(100)));
    messages.map(|(_, payload)| String::from_utf8(payload).expect("text")).collect()
}

fn listener(rig: &Rig, channel: &str) -> Cli {
    let mut listener = rig.server.connection();
    listener.subscribe(&[channel]);
    listener
}

/// How often it is held, as stored; of permits, how many are left.
fn counts(rig: &Rig, primitive: Primitive) -> Vec<String> {
    let command = match primitive {
        Primitive::Mutex => return vec![number(rig, &["EXISTS", "a"]).to_string()],
        Primitive::Permits | Primitive::Semaphore => return vec![get(rig, "a")],
        _ => ["HVALS", "a"],
    };
    let counts = rig.server.cli(&command).ok();
    let counts = counts.array().iter().map(|count| count.text().to_owned());
    counts.filter(|count| count.parse::<u64>().is_ok()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_of_a_holder_counts_once() {
    each(LEASED, |primitive| async move {
        let fixture = Fixture::new(primitive, options().watchdog_timeout(ms(2400))).await;
        let (rig, release) = (&fixture.rig, primitive.release_script());
        let stored = || counts(rig, primitive);
        let once = if primitive == Primitive::Permits { ["0"] } else { ["1"] };
        let acquire = fixture.proxied().acquire();
        let held = losing_mark(SOON, rig, &fixture.acquire_mark(), "acquire", acquire).await;
        let held = held.expect("it is repeated");
        assert_eq!(stored(), once, "{primitive:?}");
        if primitive == Primitive::Fenced {
            assert_token(rig, held.guard(), 0);
        }
        if let Some(script) = primitive.acquire_script().filter(|_| primitive.is_reentrant()) {
            // A re-entry asks for no second token.
            let plain = primitive == Primitive::Fenced;
            let script = if plain { lua("LOCK_ACQUIRE") } else { script };
            let inner = losing(rig, script, "re-entry", held.guard().reenter()).await;
            let inner = inner.expect("it is repeated");
            assert_eq!(stored(), ["2"], "{primitive:?}");
            losing(rig, release, "inner", inner.release()).await.expect("held");
            assert_eq!(stored(), once, "{primitive:?}");
        }
        // Every 800 ms: beyond the lease that it had.
        let renewals = rig.proxy.expect_delivery(&rig.hash(primitive.renew_script()));
        let renewed = renewals.wait_for(4);
        losing_within(PATIENCE, rig, primitive.renew_script(), "renewals", renewed).await;
        assert!(!held.guard().is_lost(), "{primitive:?}");
        let mut heard = listener(rig, &channel("a"));
        losing(rig, release, "release", held.release()).await.expect("held to the end");
        fixture.assert_nothing_stored();
        if matches!(primitive, Primitive::Lock | Primitive::Mutex) {
            assert_eq!(messages(&mut heard), ["0"], "{primitive:?}: told once");
        }
    })
    .await;
}

/// What a change of a latch is answered with.
async fn changing<T>(rig: &Rig, what: &str, work: impl Future<Output = Result<T>>) -> T {
    losing(rig, lua("LATCH_CHANGE"), what, work).await.expect("told")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_of_a_latch_counts_once() {
    let rig = rig().await;
    let latch = rig.client.count_down_latch("a");
    let mut heard = listener(&rig, "redisson_countdownlatch__channel__{a}");
    assert!(changing(&rig, "set", latch.try_set_count(3)).await);
    assert_eq!(get(&rig, "a"), "3");
    assert!(!changing(&rig, "set again", latch.try_set_count(7)).await);
    let down = async |what| changing(&rig, what, latch.count_down()).await;
    assert_eq!(down("down").await, 2);
    assert_eq!(get(&rig, "a"), "2");
    assert_eq!(down("down again").await, 1);
    assert_eq!(messages(&mut heard), ["1"], "it was set once and has not opened");
    assert_eq!(down("the last").await, 0);
    assert_eq!(get(&rig, "a"), "nothing");
    assert_eq!(messages(&mut heard), ["0"], "it has opened once");
    assert_eq!(down("an open one").await, 0);
    assert!(changing(&rig, "set anew", latch.try_set_count(1)).await);
    assert!(changing(&rig, "delete", latch.delete()).await, "it was there");
    assert_eq!(get(&rig, "a"), "nothing");
    assert!(!changing(&rig, "delete again", latch.delete()).await);
    assert_eq!(messages(&mut heard), ["1", "0"]);
    assert!(latch.try_set_count(1).await.expect("told"));
    let asked = Box::pin(latch.wait_for(TIMED_OUT));
    let opened = losing_until_timeout(&rig, lua("COUNTER_INSPECT"), "a look", asked).await;
    assert!(!opened.expect("it is asked again"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_of_a_semaphore_counts_once() {
    let rig = rig().await;
    let semaphore = rig.client.semaphore("a");
    let mut heard = listener(&rig, "redisson_sc:{a}");
    let change = lua("SEMAPHORE_CHANGE");
    let set = semaphore.try_set_permits(5, None);
    assert!(losing(&rig, change, "set", set).await.expect("told"));
    let set = semaphore.try_set_permits(9, None);
    assert!(!losing(&rig, change, "set again", set).await.expect("told"));
    assert_eq!(messages(&mut heard), ["5"]);
    let permit = losing(&rig, lua("SEMAPHORE_ACQUIRE"), "acquire", semaphore.acquire(2)).await;
    let permit = permit.expect("it is repeated");
    assert_eq!((permit.count(), get(&rig, "a")), (2, "3".to_owned()));
    losing(&rig, lua("SEMAPHORE_RELEASE"), "release", permit.release()).await.expect("given back");
    assert_eq!(get(&rig, "a"), "5");
    assert_eq!(messages(&mut heard), ["5"], "told once");
    // By dropping it, too.
    let permit = semaphore.acquire(4).await.expect("free");
    let before = rig.proxy.swallowed_replies();
    rig.proxy.drop_replies_once_after_request_matching(&rig.hash(lua("SEMAPHORE_RELEASE")));
    let again = rig.proxy.expect_delivery(&rig.hash(lua("SEMAPHORE_RELEASE")));
    drop(permit);
    again.wait_for(2).await;
    assert!(rig.proxy.swallowed_replies() > before);
    eventually(SOON, "given back", || get(&rig, "a") == "5").await;
    // And what was forgotten.
    semaphore.acquire(2).await.expect("free").forget();
    let add = semaphore.add_permits(5);
    assert_eq!(losing(&rig, change, "add", add).await.expect("told"), 8);
    let drain = semaphore.drain_permits();
    assert_eq!(losing(&rig, change, "drain", drain).await.expect("told"), 8);
    assert_eq!(get(&rig, "a"), "0");
    let add = semaphore.add_permits(-2);
    assert_eq!(losing(&rig, change, "take away", add).await.expect("told"), -2);
    assert_eq!(get(&rig, "a"), "-2");
    let none = semaphore.try_acquire_for(1, TIMED_OUT);
    let none = losing_until_timeout(&rig, lua("SEMAPHORE_ACQUIRE"), "timed out", none).await;
    assert!(none.expect("busy in the end").is_none());
    assert_eq!(get(&rig, "a"), "-2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_of_a_permit_semaphore_counts_once() {
    let rig = rig().await;
    let semaphore = rig.client.permit_semaphore("a");
    let change = lua("SEMAPHORE_CHANGE");
    let set = semaphore.try_set_permits(3, None);
    assert!(losing(&rig, change, "set", set).await.expect("told"));
    let set = semaphore.try_set_permits(9, None);
    assert!(!losing(&rig, change, "set again", set).await.expect("told"));
    let guard = losing(&rig, lua("PERMITS_ACQUIRE"), "acquire", semaphore.acquire(2)).await;
    let guard = guard.expect("it is repeated");
    let taken = || (get(&rig, "a"), number(&rig, &["ZCARD", "{a}:timeout"]));
    assert_eq!(taken(), ("1".to_owned(), 2));
    for id in guard.permit_ids() {
        let score = rig.server.cli(&[&b"ZSCORE"[..], b"{a}:timeout", id.as_bytes()]);
        assert!(!score.is_nil(), "{id} is not stored");
    }
    let extend = guard.extend(LONG);
    if let Err(error) = losing(&rig, lua("PERMITS_RENEW"), "extend", extend).await {
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    }
    assert!(!guard.is_lost());
    losing(&rig, lua("PERMITS_RELEASE"), "release", guard.release()).await.expect("given back");
    assert_eq!(taken(), ("3".to_owned(), 0));
    // By their ids, from another client.
    let guard = rig.direct_client().await.permit_semaphore("a").acquire(2).await.expect("free");
    let ids = guard.permit_ids();
    let update = semaphore.extend(ids[0], LONG);
    assert!(losing(&rig, lua("PERMITS_CHANGE"), "a new lease", update).await.expect("told"));
    let release = semaphore.release(&ids);
    let released = losing(&rig, lua("PERMITS_CHANGE"), "release by id", release).await;
    assert_eq!(taken(), ("3".to_owned(), 0));
    assert!(released.expect("told"), "they were given back by this very request");
    let release = semaphore.release(&ids);
    let released = losing(&rig, lua("PERMITS_CHANGE"), "release again", release).await;
    assert!(!released.expect("told"), "they were given back before");
    let add = semaphore.add_permits(2);
    assert_eq!(losing(&rig, change, "add", add).await.expect("told"), 5);
    let resize = semaphore.set_permits(4);
    losing(&rig, change, "resize", resize).await.expect("told");
    assert_eq!(taken(), ("4".to_owned(), 0));
}

/// The position, the acquire at its turn, the heartbeat, and giving the position up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_of_a_waiter_of_a_fair_lock_counts_once() {
    let rig = rig().await;
    let lock = rig.client.fair_lock("a");
    let holder = rig.direct_client().await.fair_lock("a").lock().await.expect("free");
    rig.proxy.drop_replies_once_after_request_matching(&rig.hash(lua("FAIR_ACQUIRE")));
    let before = rig.proxy.swallowed_replies();
    let attempts = rig.proxy.expect_delivery(&rig.hash(lua("FAIR_ACQUIRE")));
    let waiter = tokio::spawn(lock.lock());
    // Without an answer; again; after the subscription.
    attempts.wait_for(3).await;
    assert!(rig.proxy.swallowed_replies() > before);
    let queued = || {
        [
            number(&rig, &["LLEN", "redisson_lock_queue:{a}"]),
            number(&rig, &["ZCARD", "redisson_lock_timeout:{a}"]),
            number(&rig, &["ZCARD", "lockkeeper_seen:{a}"]),
        ]
    };
    assert_eq!(queued(), [1, 1, 1], "one place");
    let kept = rig.proxy.expect_delivery(&rig.hash(lua("FAIR_KEEP")));
    rig.proxy.drop_replies_once_after_request_matching(&rig.hash(lua("FAIR_KEEP")));
    kept.wait_for(3).await;
    assert_eq!(queued(), [1, 1, 1], "still one place");

    // A waiter behind it leaves, and the reply to that is lost.
    let timed_out = lock.try_lock_for(TIMED_OUT);
    let timed_out = losing_until_timeout(&rig, lua("FAIR_RELEASE"), "timed out", timed_out).await;
    assert!(timed_out.expect("busy").is_none());
    eventually(SOON, "its place is given up", || queued() == [1, 1, 1]).await;

    let taken = async {
        holder.release().await.expect("held");
        joined(waiter).await
    };
    let guard = losing(&rig, lua("FAIR_ACQUIRE"), "the take", taken).await.expect("its turn");
    rig.assert_held("a", &guard, 1);
    assert_eq!(queued(), [0, 0, 0]);
    guard.release().await.expect("held");
    assert_eq!(keys(&rig), [""; 0]);
}

/// The hold counts of readers and writers, and the number of reader keys, as stored.
fn sides(rig: &Rig) -> (Vec<i64>, Vec<i64>, usize) {
    let fields = rig.server.cli(&["HGETALL", "a"]).ok();
    let (mut reading, mut writing) = (Vec::new(), Vec::new());
    for pair in fields.array().chunks(2) {
        match pair[0].text() {
            "mode" => {}
            field if field.ends_with(":write") => writing.push(pair[1].int()),
            _ => reading.push(pair[1].int()),
        }
    }
    let holds = rig.server.cli(&["KEYS", "{a}:*:rwlock_timeout:*"]).ok();
    (reading, writing, holds.array().len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_of_a_writer_counts_once() {
    let rig = rig().await;
    let lock = rig.client.rw_lock("a");
    let guard = lock.write().await.expect("free");
    let reading =
        losing(&rig, lua("READ_ACQUIRE"), "nested", guard.read()).await.expect("repeated");
    // It is asked for anew; what the lost answer was about is undone.
    eventually(SOON, "one reader", || sides(&rig) == (vec![1], vec![1], 1)).await;
    let mut heard = listener(&rig, "redisson_rwlock:{a}");
    losing(&rig, lua("WRITE_RELEASE"), "release", guard.release()).await.expect("held");
    assert_eq!(sides(&rig), (vec![1], vec![], 1), "it reads on");
    assert!(!reading.is_lost());
    assert_eq!(messages(&mut heard), ["1"], "told once");

    // One attempt only: it fails, leaves nothing but the read lock, and can be made again.
    let upgrade = losing(&rig, lua("WRITE_ACQUIRE"), "upgrade", reading.try_upgrade()).await;
    let upgrade = upgrade.expect_err("the reply is lost");
    assert!(matches!(upgrade.error(), Some(Error::Unreachable { .. })), "{upgrade:?}");
    let reading = upgrade.into_guard();
    eventually(SOON, "undone", || sides(&rig) == (vec![1], vec![], 1)).await;
    let upgrade = losing(&rig, lua("READ_RELEASE"), "upgrade", reading.try_upgrade()).await;
    let writing = upgrade.expect("the only reader");
    assert_eq!(sides(&rig), (vec![], vec![1], 0));
    let reading = writing.downgrade().await.expect("held");
    losing(&rig, lua("READ_RELEASE"), "reading", reading.release()).await.expect("held");
    assert_eq!(keys(&rig), [""; 0]);

    for (script, what) in [(lua("READ_ACQUIRE"), "its read"), (lua("WRITE_RELEASE"), "its release")]
    {
        let guard = lock.write().await.expect("free");
        let downgrade = guard.downgrade();
        let reading = losing(&rig, script, what, downgrade).await.expect("held to the end");
        eventually(SOON, what, || sides(&rig) == (vec![1], vec![], 1)).await;
        assert!(!reading.is_lost());
        reading.release().await.expect("held");
        assert_eq!(keys(&rig), [""; 0]);
    }
}

/// The word that a writer waits is given once and taken back once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_writer_is_counted_once() {
    let rig = rig().await;
    let reader = rig.direct_client().await.rw_lock("a").read().await.expect("free");
    let lock = rig.client.rw_lock("a");
    let waiting = || number(&rig, &["ZCARD", "lockkeeper_writers:{a}"]);
    let timed_out = lock.try_write_for(ms(500));
    let timed_out = losing(&rig, lua("WRITE_RELEASE"), "taken back", timed_out).await;
    assert!(timed_out.expect("busy").is_none());
    // Well before it would be forgotten by itself.
    eventually(ms(1000), "nobody waits", || waiting() == 0).await;
    let attempts = rig.proxy.expect_delivery(&rig.hash(lua("WRITE_ACQUIRE")));
    rig.proxy.drop_replies_once_after_request_matching(&rig.hash(lua("WRITE_ACQUIRE")));
    let writer = tokio::spawn(lock.write());
    attempts.wait_for(3).await;
    assert_eq!(waiting(), 1, "one word of one writer");
    let taken = async {
        reader.release().await.expect("held");
        joined(writer).await
    };
    let guard = losing(&rig, lua("WRITE_ACQUIRE"), "the take", taken).await.expect("free");
    assert_eq!((sides(&rig), waiting()), ((vec![], vec![1], 0), 0));
    guard.release().await.expect("held");
    assert_eq!(keys(&rig), [""; 0]);
}

/// The token of the guard is the stored one, and is greater than `before`.
fn assert_token(rig: &Rig, guard: &AnyGuard, before: u64) -> u64 {
    let token = guard.token().expect("fenced");
    assert_eq!(get(rig, "redisson_lock_token:{a}"), token.to_string());
    assert!(token > before, "{token} after {before}");
    token
}

/// A handoff inside a client goes by a script of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handoff_whose_reply_is_lost_passes_lock_and_token_once() {
    type Make = fn(&Client) -> AnyLock;
    let cases: [(Kind, &str, Make); 5] = [
        (Kind::Lock, lua("LOCK_HANDOFF"), |client| client.lock("a").into()),
        (Kind::Mutex, lua("MUTEX_HANDOFF"), |client| client.mutex("a").into()),
        (Kind::Lock, lua("LOCK_HANDOFF_FENCED"), |client| client.fenced_lock("a").into()),
        (Kind::Write, lua("WRITE_HANDOFF_FENCED"), |client| client.rw_lock("a").fenced().writer()),
        (Kind::Write, lua("WRITE_HANDOFF"), |client| client.rw_lock("a").writer()),
    ];
    for (kind, script, make) in cases {
        let rig = rig().await;
        let lock = make(&rig.client);
        let mut done = false;
        // A lock that was held for 10 ms is released and not handed off; a slow machine may need more
        // than one round. Each round must succeed.
        for _ in 0..100 {
            let first = lock.lock().await.expect("free");
            let (owner, token) = (first.owner_id(), first.token());
            let mut second = Box::pin(lock.lock());
            start(&mut second).await;
            rig.proxy.drop_replies_once_after_request_matching(&rig.hash(script));
            within(SOON, "release", first.release()).await.expect("it was held to the end");
            let second = within(SOON, "the successor", second).await.expect("handed off");
            assert_ne!(second.owner_id(), owner);
            if let Some(token) = token {
                assert_token(&rig, &second, token);
            }
            assert!(!second.is_lost());
            match kind {
                Kind::Mutex => assert_eq!(get(&rig, "a"), second.owner_id().to_string()),
                Kind::Write => assert_eq!(sides(&rig), (vec![], vec![1], 0)),
                _ => rig.assert_held("a", &second, 1),
            }
            second.release().await.expect("held");
            assert_eq!(number(&rig, &["EXISTS", "a"]), 0);
            done = rig.proxy.swallowed_replies() > 0;
            if done {
                break;
            }
        }
        assert!(done, "nothing was ever handed off");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_multi_lock_whose_reply_is_lost_are_held_once() {
    let rig = rig().await;
    let names = ["a", "b", "c"];
    let held =
        || names.map(|name| rig.stored(name).iter().map(|(_, count)| *count).collect::<Vec<_>>());
    let plain = MultiLock::new(names.map(|name| rig.client.lock(name)));
    let mixed = MultiLock::new([
        AnyLock::from(rig.client.lock("a")),
        AnyLock::from(rig.client.fair_lock("b")),
        AnyLock::from(rig.client.spin_lock("c")),
    ]);
    // A fixed lease starts anew once all members are held.
    let leased = mixed.lease(LONG);
    for (script, multi) in [
        (lua("LOCK_ACQUIRE_TOGETHER"), &plain),
        (lua("FAIR_ACQUIRE"), &mixed),
        (lua("LOCK_RENEW"), &leased),
    ] {
        let guard = losing(&rig, script, "acquire", multi.lock()).await.expect("repeated");
        assert_eq!(held(), [vec![1], vec![1], vec![1]]);
        assert!(!guard.is_lost());
        losing(&rig, lua("LOCK_RELEASE"), "release", guard.release()).await.expect("held");
        eventually(SOON, "all free", || keys(&rig).is_empty()).await;
    }
}

/// The library repeats the request, or reports that the outcome is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_release_whose_reply_is_lost_is_done_once() {
    let rig = rig().await;
    let other = rig.direct_client().await;
    type Make = fn(&Client) -> AnyLock;
    let cases: [(&str, Make); 4] = [
        (lua("LOCK_FORCE_UNLOCK"), |client| client.lock("a").into()),
        (lua("MUTEX_FORCE_UNLOCK"), |client| client.mutex("a").into()),
        (lua("FAIR_FORCE_UNLOCK"), |client| client.fair_lock("a").into()),
        (lua("RW_FORCE_UNLOCK"), |client| client.rw_lock("a").reader()),
    ];
    for (script, make) in cases {
        let victim = make(&other).lock().await.expect("free");
        let lock = make(&rig.client);
        let answer = losing(&rig, script, "force-release", lock.force_unlock("")).await;
        let honest = match &answer {
            Ok(done) => *done,
            Err(error) => matches!(error, Error::Unconfirmed { .. } | Error::Unreachable { .. }),
        };
        assert!(honest, "{answer:?}");
        assert_eq!(number(&rig, &["EXISTS", "a"]), 0);
        assert_not_held(&victim.release().await);
        assert!(!within(SOON, "again", lock.force_unlock("")).await.expect("reachable again"));
    }
}
