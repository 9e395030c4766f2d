//! Fencing tokens grow, whatever happens to the key of their sequence.

use lockkeeper::{AnyGuard, AnyLock, Client};
use testkit::{RedisServer, Reply};

use crate::primitives::{persistent, started};
use crate::support::*;

/// All kinds that issue tokens, in rotation on one name.
async fn next(client: &Client, round: usize) -> AnyGuard {
    let lock: AnyLock = match round % 3 {
        0 => client.fenced_lock("a").into(),
        1 => client.fair_lock("a").fenced().into(),
        _ => client.rw_lock("a").fenced().writer(),
    };
    within(PATIENCE, "a token", lock.lock()).await.expect("free")
}

/// The next token, which is greater than the last and is stored as plain digits.
async fn token_after(server: &RedisServer, client: &Client, round: usize, last: u64) -> u64 {
    let guard = next(client, round).await;
    let token = guard.token().expect("fenced");
    assert!(token > last, "{token} after {last}");
    let stored = server.cli(&["GET", TOKEN]).ok();
    assert_eq!(stored.text(), token.to_string(), "plain digits");
    assert!(stored.text().bytes().all(|byte| byte.is_ascii_digit()));
    assert!(token > 1_000_000_000_000_000, "microseconds of a wall clock: {token}");
    assert_eq!(server.cli(&["PTTL", TOKEN]).int(), -1, "Java relies on it");
    guard.release().await.expect("held");
    token
}

const TOKEN: &str = "redisson_lock_token:{a}";

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
        // Deleted with all other data, and begun again by another library.
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
        // Holders of Redisson increment it.
        for _ in 0..3 {
            let java = server.cli(&["INCR", TOKEN]).int().unsigned_abs();
            assert_eq!(java, last + 1);
            last = java;
        }
        last = token_after(&server, &client, round, last).await;
        // Not written as plain digits, and not a number.
        for text in ["1.79e+15", "no number at all"] {
            server.cli(&["SET", TOKEN, text]).ok();
            last = token_after(&server, &client, round, last).await;
        }
        // The clock of a server was ahead: the next token is greater by one.
        let ahead = last + 3_600_000_000;
        server.cli(&["SET", TOKEN, &ahead.to_string()]).ok();
        assert_eq!(token_after(&server, &client, round, ahead).await, ahead + 1);
        server.cli(&["DEL", TOKEN]).ok();
        last = token_after(&server, &client, round, last).await;
    }
}

/// As after a failover to a replica that lags: tokens issued since are not issued again.
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

/// As after a failover that lost the release of a fair lock: the identity that the client keeps for its next
/// waiter still holds the lock there. Its acquire is answered like a repetition, but with a new token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_release_was_lost_gets_a_new_token_from_its_kept_identity() {
    const TTL: &str = "3000";
    let server = started().await;
    let ours = connect(&server.url(), options()).await.fair_lock("a").fenced();
    let theirs = connect(&server.url(), options()).await.fair_lock("a").fenced();
    let (mut last, mut kept) = (0, 0);
    // A machine that stands still for a second lets the identity expire: then another round shows it.
    for _ in 0..20 {
        let before = within(PATIENCE, "theirs", theirs.lock()).await.expect("free");
        let waiter = tokio::spawn(ours.lock());
        let mut cli = server.connection();
        eventually(PATIENCE, "it waits", || {
            cli.cmd(&["LLEN", "redisson_lock_queue:{a}"]).int() == 1
        })
        .await;
        before.release().await.expect("held");
        let held = joined(waiter).await.expect("its turn");
        let (identity, hold) = (held.owner_id(), cli.cmd(&["DUMP", "a"]).ok());
        held.release().await.expect("held");
        let between = within(PATIENCE, "theirs", theirs.lock()).await.expect("free");
        last = last.max(between.token());
        between.release().await.expect("held");
        let Reply::Bulk(hold) = hold else { panic!("a string: {hold:?}") };
        cli.cmd(&[b"RESTORE", &b"a"[..], TTL.as_bytes(), &hold]).ok();
        let again = within(PATIENCE, "ours", ours.lock()).await.expect("the restored hold ends");
        kept += usize::from(again.owner_id() == identity);
        assert!(again.token() > last, "{} after {last}", again.token());
        last = again.token();
        again.release().await.expect("held");
        if kept == 3 {
            return;
        }
    }
    panic!("the identity was used again {kept} times");
}
