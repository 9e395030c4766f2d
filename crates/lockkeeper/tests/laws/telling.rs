//! What it costs that a client says who it is and what it holds: little, and never a lock's time.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, ClientOptions};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::decorators::Counting;
use crate::store::{Store, eventually};

/// How long there is load: a minute where it costs nothing.
fn span(store: &Store) -> Duration {
    if store.is_paused() { Duration::from_secs(60) } else { Duration::from_millis(2500) }
}

/// A client whose requests are counted, with the watchdog timeout that users have.
async fn counted(store: &Store) -> (Client, Arc<Counting>) {
    let counting = Counting::new(store.backend().await);
    let client = Client::with_backend(Arc::clone(&counting) as _, ClientOptions::new());
    (client.unwrap(), counting)
}

/// Holds of all lengths come and go, so that there is always something new to tell.
pub(crate) async fn under_load_there_is_at_most_one_word_a_second(store: &Store) {
    let (client, counting) = counted(store).await;
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..10_u64 {
        let (client, span) = (client.clone(), span(store));
        let name = store.name(&format!("lock {task}"));
        tasks.spawn(async move {
            for turn in 0.. {
                let lock = client.lock(format!("{name} {turn}"));
                let guard = lock.lock().await.unwrap();
                sleep(Duration::from_millis(100 + 150 * task)).await;
                guard.release().await.unwrap();
                if begun.elapsed() > span {
                    return;
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let (words, seconds) = (counting.announces(), begun.elapsed().as_secs());
    assert!(words <= seconds + 2, "{words} in {seconds} s");
    assert!(words >= seconds / 3, "{words} in {seconds} s: new holds were not told of");
}

/// A thousand short holds, one after the other, are nobody's question.
pub(crate) async fn short_holds_are_not_told_of(store: &Store) {
    let (client, counting) = counted(store).await;
    let begun = Instant::now();
    let lock = client.lock(store.name("lock"));
    for _ in 0..1000 {
        lock.lock().await.unwrap().release().await.unwrap();
    }
    // The first is told of. Whoever is not seen to hold anything for a second has gone, and comes
    // anew.
    let (words, seconds) = (counting.announces(), begun.elapsed().as_secs());
    assert!(words >= 1 && words <= 1 + seconds, "{words} in {seconds} s");
    assert_eq!(counting.acquires(), 1000);
}

/// What does not change is told again only so that it is not forgotten.
pub(crate) async fn long_holds_are_told_of_once_and_then_kept_in_mind(store: &Store) {
    let (client, counting) = counted(store).await;
    let begun = Instant::now();
    let _held = client.lock(store.name("lock")).lock().await.unwrap();
    sleep(span(store)).await;
    let (words, tens) = (counting.announces(), begun.elapsed().as_secs() / 10);
    assert!(words > tens.saturating_sub(1) && words <= 2 + tens, "{words}");
}

/// The lock is granted though nobody hears who takes it.
pub(crate) async fn a_word_that_is_not_heard_holds_nothing_up(store: &Store) {
    let (client, counting) = counted(store).await;
    counting.deaf_to_words(true);
    let guard = client.lock(store.name("lock")).lock().await.unwrap();
    eventually("it was tried", async || counting.announces() > 0).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    let begun = Instant::now();
    client.shutdown().await;
    assert!(begun.elapsed() < store.slack(), "{:?}", begun.elapsed());
}
