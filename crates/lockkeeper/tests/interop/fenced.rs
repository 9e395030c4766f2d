//! `RFencedLock` and our `FencedLock`: one lock and one sequence of tokens, which only grows.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::{ClientOptions, Fence};
use testkit::java::Lock;
use testkit::{JavaPeer, RedisServer, Redisson};

use crate::support::*;

on_versions! { [newest v3_27]
    tokens_are_one_growing_sequence
    reentries_on_either_side_keep_the_sequence_growing
    a_plain_lock_of_the_name_excludes_and_issues_no_token
    tokens_grow_across_a_loss_of_all_data_from_the_first_that_rust_issues
}

fn token_key(name: &str) -> String {
    format!("redisson_lock_token:{{{name}}}")
}

/// Takes the lock, gives it back, and says under which token.
async fn java_token(lock: &Lock<'_>) -> u64 {
    let token = lock.lock_and_get_token().await.ok();
    assert_eq!(lock.token().await.ok(), Some(token));
    lock.unlock().await.ok();
    token
}

async fn rust_token(lock: &lockkeeper::FencedLock) -> u64 {
    let guard = lock.lock().await.unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    token
}

async fn tokens_are_one_growing_sequence(redisson: Redisson) {
    let Stage { client, name, one, two, .. } = Stage::new(redisson, "tokens").await;
    let ours = client.fenced_lock(&name);
    let fence = Fence::new();
    // Java first: it begins at one, and we go on from there.
    assert_eq!(java_token(&one.fenced(&name)).await, 1);
    for _ in 0..20 {
        let (mine, its) = (rust_token(&ours).await, java_token(&one.fenced(&name)).await);
        fence.admit(mine).expect("greater than Java's");
        // Java counts on from ours.
        assert_eq!(its, mine + 1);
        fence.admit(its).unwrap();
        let again = java_token(&two.fenced(&name)).await;
        assert_eq!(again, its + 1);
        fence.admit(again).unwrap();
        assert!(fence.admit(mine).is_err());
    }
    assert_eq!(server().cli(&["TTL", &token_key(&name)]).int(), -1, "Java's has no end either");
}

/// A re-entry has a new token in Java, and shares the first one here.
async fn reentries_on_either_side_keep_the_sequence_growing(redisson: Redisson) {
    let Stage { client, name, one, .. } = Stage::new(redisson, "re-entry with tokens").await;
    let (ours, theirs) = (client.fenced_lock(&name), one.fenced(&name));

    let first = theirs.lock_and_get_token().await.ok();
    assert_eq!(theirs.lock_and_get_token().await.ok(), first + 1);
    assert_eq!(ours.inspect().await.unwrap().holders.remove(0).hold_count, 2);
    theirs.unlock().await.ok();
    assert!(ours.try_lock().await.unwrap().is_none());
    theirs.unlock().await.ok();

    let owner = client.new_owner();
    let guard = ours.as_owner(&owner).lock().await.unwrap();
    let again = ours.as_owner(&owner).lock().await.unwrap();
    let token = guard.token();
    assert!(token > first + 1);
    assert_eq!(again.token(), token);
    assert_eq!(theirs.token().await.ok(), Some(token), "Java reads ours");
    guard.release().await.unwrap();
    assert!(!theirs.try_lock().await.ok());
    again.release().await.unwrap();
    assert_eq!(java_token(&theirs).await, token + 1);
}

async fn a_plain_lock_of_the_name_excludes_and_issues_no_token(redisson: Redisson) {
    let Stage { client, name, one, two, .. } = Stage::new(redisson, "plain and fenced").await;
    let token = rust_token(&client.fenced_lock(&name)).await;
    one.lock(&name).lock().await.ok();
    assert!(client.fenced_lock(&name).try_lock().await.unwrap().is_none());
    one.lock(&name).unlock().await.ok();
    let guard = client.lock(&name).lock().await.unwrap();
    assert_eq!(lockkeeper::Hold::token(&guard), None);
    let refused = two.fenced(&name).try_lock_and_get_token_within(Duration::ZERO, None);
    assert_eq!(refused.await.ok(), None);
    guard.release().await.unwrap();
    assert_eq!(two.fenced(&name).token().await.ok(), Some(token));
}

/// Java begins at one again, unless one of us was there before: ours are never behind the clock.
async fn tokens_grow_across_a_loss_of_all_data_from_the_first_that_rust_issues(redisson: Redisson) {
    let server = RedisServer::start();
    let peer = JavaPeer::start(redisson, &server.url());
    let ours = connect(&server, ClientOptions::new()).await.fenced_lock("x");
    let theirs = peer.on("one").fenced("x");
    let mut last = 0;
    for _ in 0..3 {
        let (mine, its) = (rust_token(&ours).await, java_token(&theirs).await);
        assert!(last < mine && mine < its, "{last}, {mine}, {its}");
        last = its;
        server.cli(&["FLUSHALL"]).ok();
    }
    assert_eq!(java_token(&theirs).await, 1, "what Java alone does");
    let mine = rust_token(&ours).await;
    assert!(mine > last, "{mine} after {last}");
    // Microseconds: no Java client can count past the clock.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert!(u128::from(mine) <= now.as_micros(), "{mine}");
}
