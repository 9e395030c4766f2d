//! Many on both sides at one lock, and a counter that nothing else guards.

use std::time::{Duration, Instant};

use lockkeeper::{Client, ClientOptions};
use testkit::Redisson;
use testkit::java::Lock;

use crate::support::*;

on_versions! { [newest v3_27 v3_14]
    no_increment_is_lost_and_no_waiter_hangs
}

/// On each side, in as many threads or tasks.
const ROUNDS: u32 = 2000;
const THREADS: u32 = 3;

/// A waiter that was not told would have waited until the lease had ended: half a minute in Java. Here
/// it would have looked again after a few seconds, as often as it was not told.
const STUCK: Duration = Duration::from_secs(5);

/// The longest wait of one task.
async fn rounds(client: Client, name: String, counter: String) -> Duration {
    let lock = client.lock(&name);
    let mut connection = server().connection();
    let mut longest = Duration::ZERO;
    for _ in 0..ROUNDS {
        let asked = Instant::now();
        let guard = lock.lock().await.unwrap();
        longest = longest.max(asked.elapsed());
        increment(&mut connection, &counter);
        guard.release().await.unwrap();
    }
    longest
}

async fn no_increment_is_lost_and_no_waiter_hangs(redisson: Redisson) {
    let Stage { client, name, one, .. } = Stage::new(redisson, "stress").await;
    let counter = format!("{name}:counter");
    let other = connect(server(), ClientOptions::new()).await;
    let theirs: Lock<'_> = one.lock(&name);
    let start = Instant::now();
    let java = theirs.stress(&counter, ROUNDS, THREADS);
    // Two tasks of one client that hand it off, and one that is woken by the server.
    let tasks = [client.clone(), client, other]
        .map(|client| tokio::spawn(rounds(client, name.clone(), counter.clone())));
    let mut ours = Duration::ZERO;
    for task in tasks {
        ours = ours.max(within(3 * LONG, "Rust's rounds", task).await.unwrap());
    }
    let rust_done = start.elapsed();
    let java = tokio::task::block_in_place(|| java.answer_within(3 * LONG)).expect("Java's rounds");
    let java = java.ok();
    println!(
        "{}: {} rounds in {:.1?}, Rust's within {rust_done:.1?}; longest wait: Rust {ours:.1?}, \
         Java {:.1?}",
        redisson.profile(),
        2 * ROUNDS * THREADS,
        start.elapsed(),
        java.longest_wait
    );
    assert_eq!(java.rounds, u64::from(ROUNDS * THREADS));
    assert_eq!(server().cli(&["GET", &counter]).text(), (2 * ROUNDS * THREADS).to_string());
    assert!(ours < STUCK && java.longest_wait < STUCK);
    assert_eq!(server().cli(&["EXISTS", &name]).int(), 0);
}
