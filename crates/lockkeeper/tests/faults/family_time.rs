//! Time that passes for one side only, and data that goes back in time.

use lockkeeper::{AnyGuard, AnyLock, Client, Clock, LostReason};
use testkit::RedisServer;
use tokio::time::Instant;

use crate::family::*;
use crate::support::*;

/// All that have a lease.
const LEASED: [Sort; 6] =
    [Sort::Fair, Sort::Fenced, Sort::Spin, Sort::Read, Sort::Write, Sort::Permits];

/// The machine was suspended: its boot clock went on, tokio's did not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_is_noticed_at_once_and_signalled_within_a_quarter_second() {
    each(&LEASED, async |sort| {
        let server = started().await;
        let clock = Clock::system();
        let client = connect(&server.url(), options().clock(clock.clone())).await;
        for name in ["a", "b"] {
            set_up(&client, sort, name).await;
        }
        let renewed = Thing::new(&client, sort, "a").taken().await;
        let fixed = Thing::new(&client, sort, "b").leased(LONG).await;
        let cases = [(renewed, LostReason::Unreachable), (fixed, LostReason::Expired)];
        let channels = || server.cli(&["PUBSUB", "CHANNELS", "lockkeeper_notice:*"]);
        eventually(PATIENCE, "watched", || !channels().array().is_empty()).await;
        // Polled before the jump, so that it is the signal that ends them and not their first look.
        let mut lost = cases.each_ref().map(|(held, _)| Box::pin(held.guard().lost()));
        for lost in &mut lost {
            start(lost).await;
        }
        let told = lost.map(|lost| tokio::spawn(async move { (lost.await, Instant::now()) }));
        let jumped = Instant::now();
        clock.skip(LONG);
        assert!(cases.iter().all(|(held, _)| held.guard().is_lost()));
        for (told, (held, reason)) in told.into_iter().zip(&cases) {
            let (said, at) = within(PATIENCE, "the loss", joined(told)).await;
            assert_eq!(said, *reason, "{sort:?}");
            // The rule says 250 ms; the rest is for a machine with something else to do. The next
            // renewal would be in twenty seconds.
            assert!(at - jumped < ms(250) + SOON, "{:?}", at - jumped);
            assert!(held.guard().remaining().is_zero());
        }
    })
    .await;
}

/// The server stands still (SIGSTOP): whoever holds something is told before it can be taken, and what
/// it had can be had by another when the server goes on and the lease is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_costs_the_lease_in_time() {
    each(&LEASED, async |sort| {
        let lease = ms(1500);
        let set = Set::new(sort, options().watchdog_timeout(lease)).await;
        let held = set.mine().taken().await;
        let lost = held.guard().lost();
        let before = Instant::now();
        set.server().pause();
        let reason = within(PATIENCE, "the loss", lost).await;
        let after = before.elapsed();
        set.server().resume();
        assert_eq!(reason, LostReason::Unreachable, "{sort:?}");
        assert!(after < lease + SOON, "{sort:?}: told after {after:?}");
        // The server counts time while it stands still, so that the lease is over there, too.
        set.strangers().assert_free_within(SOON).await;
        drop(held);
    })
    .await;
}

/// Deleted behind its back, and restored by nobody: the next look tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_lease_notices_a_deletion_within_a_tick() {
    each(&LEASED, async |sort| {
        // Looked at every 200 ms.
        let set = Set::new(sort, options().watchdog_timeout(ms(600))).await;
        let held = set.mine().leased(LONG).await;
        let key = if sort == Sort::Permits { "{a}:timeout" } else { "a" };
        assert_eq!(set.server().cli(&["DEL", key]).int(), 1);
        let reason = within(ms(200) + SOON, "the loss", held.guard().lost()).await;
        assert_eq!(reason, LostReason::Deleted, "{sort:?}");
        assert_not_held(&held.release().await);
    })
    .await;
}

/// All that issue tokens, by turns on one name.
async fn next(client: &Client, round: usize) -> AnyGuard {
    let lock: AnyLock = match round % 3 {
        0 => client.fenced_lock("a").into(),
        1 => client.fair_lock("a").fenced().into(),
        _ => client.rw_lock("a").fenced().writer(),
    };
    within(PATIENCE, "a token", lock.lock()).await.expect("free")
}

/// The next token, which is greater than the last and stands in the store as plain digits.
async fn token_after(server: &RedisServer, client: &Client, round: usize, last: u64) -> u64 {
    let guard = next(client, round).await;
    let token = guard.token().expect("fenced");
    assert!(token > last, "{token} after {last}");
    let stored = server.cli(&["GET", TOKEN]).ok();
    assert_eq!(stored.text(), token.to_string(), "plain digits");
    assert!(stored.text().bytes().all(|byte| byte.is_ascii_digit()));
    assert_eq!(server.cli(&["PTTL", TOKEN]).int(), -1, "Java relies on it");
    guard.release().await.expect("held");
    token
}

const TOKEN: &str = "redisson_lock_token:{a}";

/// What may happen to the sequence between two tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_whatever_happens_to_their_sequence() {
    let server = started().await;
    let client = connect(&server.url(), options()).await;
    let mut last = 0;
    let old = {
        last = token_after(&server, &client, 0, last).await;
        last
    };
    for round in 0..6 {
        // Lost with everything else, and begun anew by a stranger.
        server.cli(&["FLUSHALL"]).ok();
        last = token_after(&server, &client, round, last).await;
        server.cli(&["FLUSHALL"]).ok();
        assert_eq!(server.cli(&["INCR", TOKEN]).int(), 1);
        last = token_after(&server, &client, round, last).await;
        // Deleted alone.
        assert_eq!(server.cli(&["DEL", TOKEN]).int(), 1);
        last = token_after(&server, &client, round, last).await;
        // Set back to what it was long ago.
        server.cli(&["SET", TOKEN, &old.to_string()]).ok();
        last = token_after(&server, &client, round, last).await;
        // Java's holders in between count on from ours.
        for _ in 0..3 {
            let java = server.cli(&["INCR", TOKEN]).int().unsigned_abs();
            assert_eq!(java, last + 1);
            last = java;
        }
        last = token_after(&server, &client, round, last).await;
        // What a script would make of the number without care.
        server.cli(&["SET", TOKEN, "1.79e+15"]).ok();
        last = token_after(&server, &client, round, last).await;
        // Somebody's clock was ahead: from there it goes on by one.
        let ahead = last + 3_600_000_000;
        server.cli(&["SET", TOKEN, &ahead.to_string()]).ok();
        assert_eq!(token_after(&server, &client, round, ahead).await, ahead + 1);
        server.cli(&["DEL", TOKEN]).ok();
        last = token_after(&server, &client, round, last).await;
    }
}

/// A laggard took over, or an old dump was restored: the tokens since are not given out again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_after_an_older_dump_was_restored() {
    let server = std::sync::Arc::new(persistent().await);
    let client = connect(&server.url(), options()).await;
    let mut last = token_after(&server, &client, 0, 0).await;
    server.cli(&["SAVE"]).ok();
    let saved = last;
    for round in 0..6 {
        last = token_after(&server, &client, round, last).await;
    }
    let restarted = std::sync::Arc::clone(&server);
    joined(tokio::task::spawn_blocking(move || {
        restarted.kill();
        restarted.restart();
    }))
    .await;
    assert_eq!(server.cli(&["GET", TOKEN]).text(), saved.to_string());
    for round in 0..6 {
        last = token_after(&server, &client, round, last).await;
    }
}
